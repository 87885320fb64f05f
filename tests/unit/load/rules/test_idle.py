"""Which GPUs a job holds, and which of them are idle: below 5 percent for ten minutes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.load.rules import idle
from slurm_share.load.snapshot import GpuLoad, HeldGpu, JobLoad, Means, NodeLoad, Snapshot, Survey
from slurm_share.slurm.records import QueuedJob

NOW = 10_000.0


def means(m10: float | None, *, m5: float = 0.0, m15: float = 0.0, over_s: float = 900.0) -> Means:
    return Means(m1=m5, m5=m5, m15=m15, over_s=over_s, m10=m10)


def gpu(index: int = 0, **fields: object) -> GpuLoad:
    return GpuLoad(uuid=f"GPU-{index}", index=index, name="Fake", **fields)  # type: ignore[arg-type]


def queued(number: int = 7, **fields: object) -> QueuedJob:
    values = {"states": ("RUNNING",), "start": 1000, "nodes": "n1", "node_count": 1, "gpus": 1, **fields}
    values = {"name": "job", "user": "alice", "uid": 1, "partition": "gpu", "gpu_indexes": ((0,),), **values}
    return QueuedJob(job_id=number, **values)  # type: ignore[arg-type]


def node(gpus: tuple[GpuLoad, ...], jobs: tuple[JobLoad, ...] = (), **fields: object) -> NodeLoad:
    snapshot = Snapshot(node="n1", taken=NOW, cpus=2, cores=2, gpus=gpus, jobs=jobs, **fields)  # type: ignore[arg-type]
    return NodeLoad(name="n1", snapshot=snapshot)


def judged(*nodes: NodeLoad, jobs: tuple[QueuedJob, ...] = ()) -> Survey:
    return idle.judged(Survey(taken=NOW, user="alice", source="demo", nodes=nodes, jobs=jobs))


def verdicts(one: NodeLoad, *jobs: QueuedJob) -> list[tuple[int, int, bool | None]]:
    """Return (job, GPU, idle) of each GPU that is held."""
    return [(each.job, each.index, each.idle) for each in judged(one, jobs=jobs).nodes[0].held_gpus]


@pytest.mark.parametrize(
    ("fields", "runs_s", "expected"),
    [
        ({"utilization_percent_windows": means(4.9)}, 600.0, True),
        ({"utilization_percent_windows": means(5.0)}, 600.0, False),
        ({"utilization_percent_windows": means(0.0)}, 599.0, None),  # the job before it left it so
        ({"utilization_percent_windows": means(0.0)}, None, None),
        # Some kernel ran all the time.
        ({"utilization_percent_windows": means(90.0), "sm_percent_windows": means(0.5)}, 900.0, False),
        ({"sm_percent_windows": means(0.5)}, 900.0, True),  # a MIG instance has no utilisation
        ({"utilization_percent_windows": means(None, over_s=500.0)}, 900.0, None),
        # 5 percent of ten minutes already.
        ({"utilization_percent_windows": means(None, m5=10.0, over_s=300.0)}, 900.0, False),
        ({"utilization_percent_windows": means(None, m5=9.0, m15=9.0, over_s=300.0)}, 900.0, None),
        ({"utilization_percent_windows": means(None, m5=0.0, m15=8.0, over_s=400.0)}, 900.0, False),
        ({"unused_s": 600.0}, 900.0, True),
        ({"unused_s": 599.0}, 900.0, None),
        ({}, 900.0, None),
        ({"utilization_percent_windows": means(0.0), "problem": "GPU is lost"}, 900.0, None),
    ],
)
def test_a_gpu_is_idle_below_five_percent_for_ten_minutes(
    fields: dict[str, object], runs_s: float | None, expected: bool | None
) -> None:
    found, why = idle.is_idle(gpu(**fields), runs_s)
    assert found is expected
    assert bool(why) == (expected is None)


IDLE, BUSY = means(0.0), means(60.0)


def test_a_gpu_that_slurm_gave_and_that_no_process_is_on_is_held() -> None:
    gpus = (
        gpu(0, minor=1, utilization_percent_windows=IDLE),
        gpu(1, minor=0, utilization_percent_windows=BUSY),
        gpu(2, minor=2, utilization_percent_windows=IDLE),
    )
    assert verdicts(node(gpus), queued(gpu_indexes=((0, 1),))) == [(7, 0, True), (7, 1, False)]


def test_a_job_that_has_all_gpus_of_its_nodes_holds_them() -> None:
    gpus = (gpu(0, utilization_percent_windows=IDLE), gpu(1, utilization_percent_windows=BUSY))
    job = queued(gpus=4, gpu_indexes=None, node_count=2, nodes="n[1-2]")
    assert verdicts(node(gpus), job) == [(7, 0, True), (7, 1, False)]
    assert verdicts(node(gpus, hidden_gpus=1), job) == []


def test_a_job_that_does_not_run_holds_nothing_and_one_of_nobody_knows_holds_what_it_is_on() -> None:
    """Suspended, ending; and one that Slurm was not asked for, judged by how long it has been measured."""
    one = node((gpu(utilization_percent_windows=IDLE),))
    assert verdicts(one, queued(states=("SUSPENDED",))) == []
    for measured_s, expected in ((900.0, True), (30.0, None)):
        load = JobLoad(job=8, uid=1, user="alice", gpus=("GPU-0",), measured_s=measured_s)
        assert verdicts(node((gpu(utilization_percent_windows=IDLE),), (load,))) == [(8, 0, expected)]


def test_two_jobs_on_one_gpu_are_each_judged_and_it_counts_once() -> None:
    survey = judged(node((gpu(utilization_percent_windows=IDLE),)), jobs=(queued(7), queued(8, start=9_900)))
    held = survey.nodes[0].held_gpus
    assert [(one.job, one.idle) for one in held] == [(7, True), (8, None)]
    assert idle.count(held) == (1, False)


def one_held(index: int, verdict: bool | None) -> HeldGpu:
    return HeldGpu(uuid=f"GPU-{index}", index=index, job=7, user="alice", idle=verdict)


@pytest.mark.parametrize(
    ("held", "expected"),
    [((), (0, False)), ((True, False), (1, False)), ((True, None), (1, True)), ((None, None), (None, False))],
)
def test_unknown_is_not_counted_as_busy(held: tuple[bool | None, ...], expected: tuple[int | None, bool]) -> None:
    assert idle.count(one_held(at, verdict) for at, verdict in enumerate(held)) == expected


def test_a_line_of_a_node_without_its_gpus_is_not_judged() -> None:
    one = node(())
    line = replace(one, snapshot=replace(one.snapshot, gpu_sums=one.snapshot.sums))
    there = replace(node((gpu(),)), name="n2")
    assert [each.held_gpus for each in judged(line, there).nodes] == [None, ()]


def test_the_jobs_with_idle_gpus_are_named_the_worst_first() -> None:
    few = (gpu(0, utilization_percent_windows=IDLE), gpu(1, utilization_percent_windows=BUSY))
    many = replace(node(tuple(gpu(at, unused_s=900.0) for at in range(4))), name="n2")
    job = queued(7, gpu_indexes=((0, 1),))
    other = queued(9, array=8, element=3, user="bob", nodes="n2", gpu_indexes=((0, 1, 2, 3),))
    assert idle.sentences(judged(node(few), many, jobs=(job, other))) == [
        "job 8_3 of bob: 4 of 4 GPUs idle (n2: 0,1,2,3)",
        "job 7 of alice: 1 of 2 GPUs idle (n1: 0)",
    ]
