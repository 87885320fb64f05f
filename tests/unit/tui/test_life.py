"""The life of a job, from the agents' records of all its nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from slurm_share_tui.feed_life import read_life
from slurm_share_tui.life import points_of
from slurm_share_tui.wire import Point, ReadLife

from slurm_share.core.settings import Settings
from slurm_share.load.sources.prometheus import PrometheusSource
from slurm_share.usage.records import GpuSeries, GpuUse, JobUse, UseSeries


def use(node: str, **words) -> JobUse:
    return JobUse(job=1, uid=1, node=node, **words)


def series(node: str, at: list[float], **words) -> UseSeries:
    return UseSeries(job=1, uid=1, node=node, every_s=10.0, at=at, **words)


def test_two_nodes_are_summed_and_relative_to_what_the_job_has() -> None:
    gpu = GpuUse(uuid="g", memory_total_mib=1000)
    usage = [use("n1", cpus=4, memory_limit_mib=100, gpus=(gpu,)), use("n2", cpus=4, memory_limit_mib=300)]
    both = [
        series("n1", [100.0, 110.0], cpu_cores=[2.0, 4.0], memory_mib=[50, 100],
               gpus=[GpuSeries(uuid="g", load_percent=[40.0, 60.0], memory_mib=[100, 500])]),
        series("n2", [101.0, 111.0], cpu_cores=[0.0, 4.0], memory_mib=[50, 100]),
    ]  # fmt: skip
    first, second = points_of(usage, both)
    assert (first.cpu_load_percent, first.memory_percent) == (25.0, 25.0)
    assert (first.gpu_load_percent, first.gpu_memory_percent) == (40.0, 10.0)
    assert (second.cpu_load_percent, second.memory_percent) == (100.0, 50.0)


def test_what_is_unknown_stays_unknown() -> None:
    (point,) = points_of([], [series("n1", [100.0], cpu_cores=[2.0], memory_mib=[None])])
    assert (point.cpu_load_percent, point.memory_percent, point.gpu_load_percent) == (None, None, None)
    assert points_of([use("n1", cpus=4)], []) == ()
    assert points_of([], [series("n1", [])]) == ()


def test_a_node_that_is_silent_for_a_while_is_left_out_of_the_sum() -> None:
    usage = [use("n1", cpus=4), use("n2", cpus=4)]
    found = points_of(
        usage, [series("n1", [100.0, 110.0], cpu_cores=[2.0, 2.0]), series("n2", [100.0], cpu_cores=[4.0])]
    )
    assert [point.cpu_load_percent for point in found] == [75.0, 50.0]


@pytest.mark.parametrize("every", [10.0, 120.0])
def test_series_of_different_intervals_share_points(every: float) -> None:
    coarse = UseSeries(job=1, uid=1, node="n2", every_s=every, at=[100.0], cpu_cores=[1.0])
    found = points_of(
        [use("n1", cpus=1), use("n2", cpus=1)], [series("n1", [100.0, 110.0], cpu_cores=[1.0, 1.0]), coarse]
    )
    assert all(point.cpu_load_percent == 100.0 for point in found)


def test_without_an_agent_prometheus_is_asked_and_what_neither_knows_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def read_range(self, query: str, begin: float, end: float, timeout_s: float):
        asked.append(query)
        return ((begin, 50.0),) if "cpu" in query else ()

    monkeypatch.setattr(PrometheusSource, "read_range", read_range)
    settings = Settings(agent_socket="/nowhere/agent.sock", prometheus_url="http://127.0.0.1:1")
    found = read_life(ReadLife(job=7, began=100.0, cpus=4, memory_mib=1), settings)
    assert (found.by, found.points) == ("Prometheus", (Point(100.0, 50.0),))
    assert asked == [
        '100 * sum(slurm_share_job_cpu_used_cores{jobid="7"}) / 4',
        '100 * sum(slurm_share_job_memory_bytes{jobid="7"}) / 1048576',
    ]
    none = read_life(ReadLife(job=7, began=100.0), settings)
    assert none.points == ()
    assert none.problem.endswith("Prometheus has none")
    refused = read_life(ReadLife(job=7, began=100.0), replace(settings, prometheus_token_file="/nowhere/token"))
    assert "/nowhere/agent.sock" in refused.problem  # the agents are what a user can have; operators have Prometheus
    assert "/nowhere/token" in refused.problem
    assert "/nowhere/agent.sock" in read_life(ReadLife(job=7), Settings(agent_socket="/nowhere/agent.sock")).problem
