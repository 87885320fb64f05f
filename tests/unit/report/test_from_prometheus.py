"""What a site's Prometheus has of a job, as a source of its report."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_cases as cases
from msgspec.structs import replace

from slurm_share.core.settings import Settings
from slurm_share.load import PrometheusRange, PrometheusSource, metrics
from slurm_share.report import prometheus
from slurm_share.report.rules import figures, from_prometheus, wording

STEP_S = 15.0
AT = [cases.BEGAN + STEP_S * n for n in range(41)]
JOB = cases.accounted(gpus=1, asked_gpus=1, cpu_s=None)
GIB = 1 << 30


def course(name: str, values: list[float], **labels: str) -> PrometheusRange:
    found = metrics.MetricLabels(name=f"slurm_share_{name}", node="n1", **labels)
    return PrometheusRange(found, tuple(zip(AT, values, strict=False)))


def of_job(*gpus: str) -> list[PrometheusRange]:
    own = {"jobid": "4711", "user": "alice"}
    return [
        course("job_cpu_used_cores", [4.0] * 41, **own),
        course("job_memory_bytes", [float(GIB * (1 + n % 5)) for n in range(41)], **own),
        course("job_gpu_memory_bytes", [float(2 * GIB)] * 40 + [float(6 * GIB)], **own),
        course("job_energy_joules_total", [100.0 * n for n in range(30)] + [50.0 * n for n in range(11)], **own),
        *(course("job_holds_gpu", [1.0] * 41, gpu=gpu, **own) for gpu in gpus),
    ]


def of_gpu(gpu: str, index: int) -> list[PrometheusRange]:
    known = {"gpu": gpu, "index": str(index)}
    return [
        course("gpu_info", [1.0] * 41, model="NVIDIA H100", **known),
        course("gpu_activity_ratio", [0.5] * 41, unit="sm", **known),
        course("gpu_activity_ratio", [0.1] * 41, unit="dram", **known),
        course("gpu_utilization_ratio", [0.9] * 41, **known),
        course("gpu_memory_total_bytes", [float(80 * GIB)] * 41, **known),
        course("gpu_power_watts", [300.0] * 41, **known),
    ]


def test_a_job_with_one_gpu_has_all_figures_and_a_course() -> None:
    (use,), (series,) = from_prometheus.records(JOB, cases.BEGAN + 600, STEP_S, of_job("GPU-0"), of_gpu("GPU-0", 0))
    assert (use.cpu_s, use.memory_peak_mib, use.ended) == (2400.0, 5 * 1024, cases.BEGAN + 600)
    (gpu,) = use.gpus
    assert (gpu.index, gpu.name, gpu.sm_percent, gpu.utilization_percent) == (0, "NVIDIA H100", 50.0, pytest.approx(90))
    assert (gpu.memory_peak_mib, gpu.memory_total_mib) == (6 * 1024, 80 * 1024)
    assert gpu.energy is not None
    assert gpu.energy.joules == 2900.0 + 500.0  # the agent began again
    assert set(gpu.by.values()) == set(use.by.values()) == {"prometheus"}
    assert (len(series.at), series.cpu_cores[0], series.gpus[0].load_percent[0]) == (41, 4.0, 50.0)
    found = figures.figures(cases.report(starts=(JOB,), uses=(use,)))
    assert wording.sources(found) == "Prometheus"


def test_sums_over_several_gpus_are_not_divided() -> None:
    gpus = [*of_gpu("GPU-0", 0), *of_gpu("GPU-1", 1)]
    (use,), (series,) = from_prometheus.records(JOB, cases.BEGAN + 600, STEP_S, of_job("GPU-0", "GPU-1"), gpus)
    assert [(gpu.sm_percent, gpu.memory_peak_mib, gpu.energy) for gpu in use.gpus] == [(50.0, None, None)] * 2
    assert use.gpus[0].unknown["energy"] == from_prometheus.TOGETHER
    assert series.gpus[1].memory_mib == [None] * 41


def test_a_part_of_the_time_gives_no_sum_over_it() -> None:
    part = [replace(one, points=one.points[:20]) for one in of_job()]
    (use,), _ = from_prometheus.records(JOB, cases.BEGAN + 600, STEP_S, part, ())
    assert (use.cpu_s, use.unknown["cpu_s"], use.measured_s) == (None, from_prometheus.PARTLY, 300.0)


def test_queries_name_the_job_its_user_and_its_gpus_alone() -> None:
    assert from_prometheus.job_query(JOB).endswith('jobid="4711",user="alice"}')
    assert from_prometheus.gpu_query(of_job("GPU-0", "GPU-1")).endswith('node=~"n1",gpu=~"GPU\\\\-0|GPU\\\\-1"}')
    assert from_prometheus.gpu_query(of_job()) == ""


def test_it_is_asked_only_where_no_course_is_known_by_those_who_may(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def read_ranges(self: object, query: str, *_: float) -> tuple[PrometheusRange, ...]:
        asked.append(query)
        return tuple(of_gpu("GPU-0", 0) if "gpu_(" in query else of_job("GPU-0"))

    monkeypatch.setattr(PrometheusSource, "read_ranges", read_ranges)
    problems: list[str] = []
    site = Settings(prometheus_url="http://127.0.0.1:1")
    uses, series = prometheus.read((JOB,), (), site, problems)
    assert (len(uses), len(series), len(asked)) == (1, 1, 2)
    assert prometheus.read((JOB,), series, site, problems) == ([], [])
    assert prometheus.read((JOB,), (), Settings(), problems) == ([], [])
    secret = replace(site, prometheus_token_file=str(tmp_path / "none"))
    assert prometheus.read((JOB,), (), secret, problems) == ([], [])
    assert (len(asked), problems) == (2, [])


def test_a_silent_prometheus_is_a_sentence_without_the_way_out_of_llload() -> None:
    problems: list[str] = []
    assert prometheus.read((JOB,), (), Settings(prometheus_url="http://127.0.0.1:1"), problems) == ([], [])
    (said,) = problems
    assert said.startswith("Prometheus at http://127.0.0.1:1 does not answer")
    assert said.endswith("is it running?")
