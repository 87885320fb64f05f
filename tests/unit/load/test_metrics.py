"""Metrics: what a snapshot says is what comes back from Prometheus, and what it does not say has no series."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from slurm_share.load import metrics
from slurm_share.load.metrics import Cost, MetricLabels, PrometheusSeries
from slurm_share.load.snapshot import (
    GpuLoad,
    JobLoad,
    JobProgress,
    LevelRate,
    Means,
    OnGpu,
    ProcessLoad,
    Snapshot,
    UserLoad,
)
from slurm_share.node.gpu_figures import Activity

MIB = st.integers(0, 16 * 2**20)
PERCENT = st.floats(0, 100, width=32).map(lambda value: round(value, 3))
AMOUNT = st.floats(0, 10**6).map(lambda value: round(value, 4))
COUNT = st.integers(0, 1000)
NAME = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
"""Quotes, backslashes, newlines and colours among them: a user database may have any."""


def some(values):
    return st.none() | values


def means(value):
    return st.builds(Means, m1=value, m5=value, m15=value, over_s=AMOUNT)


GPU = st.builds(
    GpuLoad,
    uuid=st.uuids().map(lambda one: f"GPU-{one}"),
    index=st.integers(0, 15),
    name=NAME,
    minor=some(st.integers(0, 15)),
    mig_parent=st.booleans(),
    mig_of=some(st.just("GPU-parent")),
    simulated=st.booleans(),
    utilization_percent=some(PERCENT),
    activity=st.builds(Activity, **dict.fromkeys(Activity.__struct_fields__, some(PERCENT))),
    temperature_c=some(st.integers(-20, 120)),
    clients=some(COUNT),
    problem=some(NAME),
    **dict.fromkeys(("memory_total_mib", "memory_used_mib"), some(MIB)),
    **dict.fromkeys(("utilization_percent_windows", "sm_percent_windows"), some(means(PERCENT))),
    **dict.fromkeys(("power_w", "energy_j"), some(AMOUNT)),
)
OF_JOB = {
    "share": some(st.integers(1, 60)),
    "slots": some(st.integers(1, 240)),
    "cpu_cores_windows": some(means(AMOUNT)),
    "memory_kills": some(COUNT),
    "measured_s": AMOUNT,
    **dict.fromkeys(("tasks", "tasks_measured", "tasks_at_once"), COUNT),
    **dict.fromkeys(("gpu_load", "cpu_cores"), some(AMOUNT)),
    **dict.fromkeys(("gpu_memory_mib", "memory_mib", "task_peak_mib", "task_host_peak_mib"), some(MIB)),
}
OF_USER = {
    "processes": COUNT,
    **dict.fromkeys(("gpu_load", "cpu_cores"), some(AMOUNT)),
    **dict.fromkeys(("gpu_memory_mib", "memory_mib"), some(MIB)),
}


@st.composite
def snapshots(draw):
    """A node with GPUs, and jobs of some users on them."""
    gpus = draw(st.lists(GPU, max_size=3, unique_by=lambda gpu: gpu.uuid))
    gpus.sort(key=lambda gpu: (gpu.index, gpu.uuid))
    on = st.lists(st.sampled_from(sorted(gpu.uuid for gpu in gpus)), unique=True) if gpus else st.just([])
    on = on.map(lambda uuids: tuple(sorted(uuids)))
    people = draw(
        st.lists(st.tuples(st.integers(0, 2**31), NAME), max_size=3, unique_by=(lambda p: p[0], lambda p: p[1]))
    )
    jobs = []
    for number in draw(st.lists(st.integers(1, 2**31), max_size=3 if people else 0, unique=True).map(sorted)):
        uid, user = draw(st.sampled_from(people))
        owner = {"job": st.just(number), "uid": st.just(uid), "user": st.just(user)}
        job = draw(st.builds(JobLoad, gpus=on, **owner, **OF_JOB))
        jobs.append(replace(job, granted=job.gpus or None))
    users = []
    for uid, user in sorted(people, key=lambda person: person[1]):
        own = st.just(tuple(job.job for job in jobs if job.uid == uid))
        users.append(draw(st.builds(UserLoad, uid=st.just(uid), user=st.just(user), jobs=own, gpus=on, **OF_USER)))
    return draw(
        st.builds(
            Snapshot,
            node=NAME,
            taken=st.floats(1.7e9, 2e9),
            measured_s=AMOUNT,
            version=NAME,
            driver=some(NAME),
            load=some(st.tuples(AMOUNT, AMOUNT, AMOUNT)),
            **dict.fromkeys(("cpus", "cores"), COUNT),
            **dict.fromkeys(("interval_s", "cpu_cores"), some(AMOUNT)),
            **dict.fromkeys(("memory_total_mib", "memory_used_mib"), some(MIB)),
            gpus=st.just(tuple(gpus)),
            jobs=st.just(tuple(jobs)),
            users=st.just(tuple(users)),
            source=st.just("prometheus"),
        )
    )


def scraped(page: bytes) -> list[PrometheusSeries]:
    """Return Prometheus' answer: every sample of the page, with labels of its own."""
    found = []
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = {"__name__": sample.name, "instance": "n1:594", "job": "slurm-share", **sample.labels}
            found.append(PrometheusSeries(msgspec.convert(labels, MetricLabels), (1795271308.0, repr(sample.value))))
    return found


def told(value):
    """A record without its reasons."""
    if isinstance(value, tuple):
        return tuple(map(told, value))
    if not isinstance(value, msgspec.Struct):
        return value
    fields = {name: told(getattr(value, name)) for name in value.__struct_fields__ if name != "unknown"}
    return type(value)(**fields)


@given(snapshots())
def test_what_a_snapshot_says_comes_back_from_prometheus(snapshot):
    back = metrics.snapshots(scraped(metrics.render(snapshot)))
    assert told(back[snapshot.node]) == told(snapshot)


@settings(max_examples=20)
@given(snapshots())
def test_the_line_of_a_node_needs_eleven_series(snapshot):
    """However many GPUs, jobs and users it has: their sums are what the snapshot itself adds up."""
    lines = [one for one in scraped(metrics.render(snapshot)) if one.metric.name in metrics.NODE_LINE]
    assert len(lines) <= len(metrics.NODE_LINE) == 11
    back = metrics.snapshots(lines)[snapshot.node]
    assert (back.gpus, back.jobs, back.users) == ((), (), ())
    assert back.unknown["gpus"] == back.unknown["jobs"] == metrics.NOT_ASKED
    sums, expected = back.sums, snapshot.sums
    assert (sums.gpu_load is None) == (expected.gpu_load is None)
    assert sums.gpu_load is None or sums.gpu_load == pytest.approx(expected.gpu_load)
    expected = replace(expected, gpu_load=sums.gpu_load, simulated=snapshot.simulated)
    assert sums == expected
    for field in ("taken", "measured_s", "cpus", "cores", "load", "memory_total_mib", "memory_used_mib"):
        assert getattr(back, field) == getattr(snapshot, field), field


BUSY = Snapshot(
    node="n1",
    taken=1795271308.25,
    cpus=16,
    cores=8,
    gpus=(
        GpuLoad(
            uuid="GPU-0", index=0, name="Fake", memory_total_mib=1000, memory_used_mib=10, utilization_percent=50.0
        ),
        GpuLoad(uuid="GPU-1", index=1, name="Fake", problem="GPU is lost"),
    ),
    processes=tuple(
        ProcessLoad(pid=pid, name="python", uid=2001, user="alice", job=7, gpus=(OnGpu(uuid="GPU-0", memory_mib=5),))
        for pid in range(100, 160)
    ),
    jobs=(JobLoad(job=7, uid=2001, user="alice", gpus=("GPU-0",), gpu_memory_mib=300),),
)


def test_processes_make_no_series():
    with_them, without = metrics.render(BUSY), metrics.render(replace(BUSY, processes=()))
    assert with_them == without
    assert metrics.snapshots(scraped(with_them))["n1"].unknown["processes"] == metrics.NOT_KEPT


def test_the_rate_of_a_jobs_tasks_comes_back_without_where_it_is_from():
    progress = JobProgress(
        source="log", family="f", tasks=4, rated=3, paused=1, rate_per_s=51.5, spread_per_s=1.0, windows=4,
        speed_ratio=0.75, finished_per_h=6.0, levels=(LevelRate(level=4, per_s=51.5),),
    )  # fmt: skip
    one = JobLoad(job=7, uid=1, user="u", progress=progress)
    found = scraped(
        metrics.render(Snapshot(node="n1", taken=1.0, cpus=1, cores=1, jobs=(one, replace(one, job=8, progress=None))))
    )
    told = {each.metric.name.removeprefix("slurm_share_job_"): float(each.value[1]) for each in found
            if each.metric.jobid == "7"}  # fmt: skip
    names = ("rate_per_second", "task_speed_ratio", "finished_per_hour", "tasks_launched", "tasks_with_rate")
    assert [told[name] for name in (*names, "tasks_paused")] == [51.5, 0.75, 6.0, 4.0, 3.0, 1.0]
    first, second = metrics.snapshots(found)["n1"].jobs
    assert first.progress == JobProgress(
        tasks=4, rated=3, paused=1, rate_per_s=51.5, speed_ratio=0.75, finished_per_h=6.0
    )
    assert second.progress is None


def test_a_gpu_that_a_job_holds_has_a_series_with_and_without_a_process():
    jobs = (
        JobLoad(job=7, uid=1, user="a", gpus=("GPU-0",), granted=("GPU-0", "GPU-1")),
        JobLoad(job=8, uid=1, user="a", gpus=("GPU-1",)),
        JobLoad(job=9, uid=1, user="a", granted=()),
    )
    page = metrics.render(replace(BUSY, jobs=jobs))
    held = [line for line in page.decode().splitlines() if line.startswith("slurm_share_job_holds_gpu{")]
    assert held == [
        f'slurm_share_job_holds_gpu{{gpu="{gpu}",jobid="{job}",node="n1",user="a"}} 1.0'
        for job, gpu in ((7, "GPU-0"), (7, "GPU-1"), (8, "GPU-1"))
    ]
    back = metrics.snapshots(scraped(page))["n1"].jobs
    assert [(job.gpus, job.granted) for job in back] == [
        (("GPU-0",), ("GPU-0", "GPU-1")),
        (("GPU-1",), ("GPU-1",)),
        ((), None),
    ]


def test_slots_can_be_added_up():
    jobs = (JobLoad(job=7, uid=1, user="a", share=4, slots=16), JobLoad(job=8, uid=1, user="a"))
    page = metrics.render(replace(BUSY, jobs=jobs)).decode()
    slots = [line for line in page.splitlines() if line.startswith("slurm_share_job_slots")]
    assert slots == ['slurm_share_job_slots{jobid="7",node="n1",user="a"} 16.0']


def test_unknown_is_no_series_and_never_zero():
    page = metrics.render(BUSY).decode()
    assert 'slurm_share_gpu_memory_used_bytes{gpu="GPU-0",index="0",node="n1"} 1.048576e+07' in page
    assert 'slurm_share_gpu_memory_used_bytes{gpu="GPU-1"' not in page
    lost = metrics.snapshots(scraped(page.encode()))["n1"].gpus[1]
    assert (lost.memory_used_mib, lost.unknown["memory_used_mib"]) == (None, metrics.NOT_REPORTED)
    assert lost.problem == "GPU is lost"


def test_a_name_that_is_no_text_is_written_as_an_escape():
    page = metrics.render(replace(BUSY, jobs=(JobLoad(job=7, uid=1, user="b\udcf6b"),)))
    assert rb'user="b\\udcf6b"' in page


def test_two_accounts_of_one_name_are_told_apart():
    users = tuple(UserLoad(uid=uid, user=name, gpu_memory_mib=1) for uid, name in ((1, "a"), (2, "a"), (3, "b")))
    page = metrics.render(replace(BUSY, users=users)).decode()
    series = [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]
    assert len(set(series)) == len(series)
    named = [line for line in series if line.startswith("slurm_share_user_gpu_memory_bytes")]
    assert [line.partition('user="')[2] for line in named] == ['a (uid 1)"}', 'a (uid 2)"}', 'b"}']


def test_problems_are_counted_and_told_where_to_read_them():
    page = metrics.render(replace(BUSY, problems=("pid 4711 is gone", "GPU 1 is lost")))
    assert b"4711" not in page
    assert metrics.snapshots(scraped(page))["n1"].problems == (metrics.PROBLEMS.format("2 problems"),)


def test_what_is_not_ours_or_makes_no_sense_is_passed_over():
    at = 1795271308.0
    series = [
        *scraped(metrics.render(BUSY)),
        PrometheusSeries(MetricLabels(name="up", node="n1"), (at, "1")),
        PrometheusSeries(MetricLabels(name="slurm_share_node_load1", node="n9"), (at, "1")),
        PrometheusSeries(MetricLabels(name="slurm_share_node_load1"), (at, "1")),
        PrometheusSeries(MetricLabels(name="slurm_share_job_info", node="n1", jobid="../etc", uid="0"), (at, "1")),
        PrometheusSeries(MetricLabels(name="slurm_share_job_tasks", node="n1", jobid="8"), (at, "1")),
        PrometheusSeries(MetricLabels(name="slurm_share_gpu_clients", node="n1", gpu="GPU-9"), (at, "1")),
    ]
    found = metrics.snapshots(series)
    assert list(found) == ["n1"]
    assert [job.job for job in found["n1"].jobs] == [7]
    assert [gpu.uuid for gpu in found["n1"].gpus] == ["GPU-0", "GPU-1"]


def test_the_agents_own_cost_is_on_the_page():
    cost = Cost(cpu_ratio=None, resident_bytes=41943040, round_s=0.012, rounds=7, failed=1)
    page = metrics.render_cost(cost, "n1").decode()
    assert 'slurm_share_agent_resident_memory_bytes{node="n1"} 4.194304e+07' in page
    assert 'slurm_share_agent_rounds_failed_total{node="n1"} 1.0' in page
    assert "cpu_ratio" not in page
