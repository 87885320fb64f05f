"""--until-done: when a next job follows, and how it is submitted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.core.errors import UsageError
from slurm_share.slurm import jobs
from slurm_share.triples.records import Ended, Run, Triple
from slurm_share.triples.rules import until_done
from slurm_share.triples.rules.until_done import LastJob

LAST = LastJob(job=7, is_cancelled=False, has_progressed=True, tasks=4, done=1, failed=1)
RUN = Run(name="train.sh", command=("train.sh",), cwd="/", triple=Triple(1, 4), processes=4, tasks=4, until_done=5)


@pytest.mark.parametrize("text", ["1", "0", "-1", "1001", "many", ""])
def test_a_number_of_jobs_is_at_least_two(text: str) -> None:
    with pytest.raises(UsageError, match="write the most jobs that the run may have, 2 to 1000"):
        until_done.parse(text)


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (LAST, ""),
        (replace(LAST, done=4, failed=0), "all 4 tasks are done; no further job is needed"),
        (replace(LAST, is_cancelled=True), "job 7 was cancelled, so no further job follows"),
        (replace(LAST, failed=3), "only failed tasks are left"),
        (replace(LAST, has_progressed=False), "job 7 has neither finished nor saved nor advanced a task"),
    ],
)
def test_a_next_job_follows_a_job_with_progress_and_tasks_that_are_left(last: LastJob, said: str) -> None:
    assert until_done.why_none(last, "LLSUB.1").startswith(said)
    assert bool(until_done.why_none(last, "LLSUB.1")) is bool(said)


def ended(job: str, outcome: str, **more: float) -> Ended:
    return Ended(task=0, rank=0, attempt=1, outcome=outcome, node="n1", job=job, started=1.0, seconds=1.0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempts", "is_progress"),
    [
        ([], False),
        ([ended("6", "done")], False),
        ([ended("7", "failed"), ended("7", "unfinished")], False),
        ([ended("7", "done")], True),
        ([ended("7.1", "saved")], True),
        ([ended("6", "unfinished", units=10.0), ended("7", "unfinished", units=10.0)], False),
        ([ended("7", "unfinished", units=11.0), ended("6", "unfinished", units=10.0)], True),
    ],
)
def test_a_job_progresses_by_a_done_saved_or_advanced_task(attempts: list[Ended], *, is_progress: bool) -> None:
    assert until_done.has_progressed(attempts, 7, {"6": 6, "7": 7, "7.1": 7}) is is_progress


@pytest.mark.parametrize(
    ("attempts", "is_progress"),
    [
        ([ended("7", "done"), ended("7", "unfinished")], False),
        ([ended("7", "done"), ended("7", "saved")], True),
        ([ended("7", "saved"), ended("7", "failed")], True),
        ([ended("6", "unfinished", units=10.0), ended("7", "unfinished", units=10.0)], False),
    ],
)
def test_a_rank_that_is_done_is_no_progress_of_a_run_that_starts_all_again(
    attempts: list[Ended], *, is_progress: bool
) -> None:
    assert until_done.has_progressed(attempts, 7, {"6": 6, "7": 7}, are_ranks=True) is is_progress


def test_a_next_job_starts_after_all_earlier_ones_and_says_what_it_is() -> None:
    argv = until_done.argv_after(["sbatch", "--parsable", "-d", "after:3", "x.sh"], RUN, 3, [7, 8], "LLSUB.1")
    assert argv == [
        "sbatch", "--parsable", "-d", "after:3", "--dependency=afterany:7:8", "--begin=now", "--job-name=train.sh.3",
        "--comment=llsub [1,4], job 3 of at most 5 of LLSUB.1", "x.sh",
    ]  # fmt: skip


def test_alloc_nodes_of_partitions() -> None:
    text = (
        "PartitionName=gpu AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A\n"
        "PartitionName=big AllocNodes=login[1-2] Default=NO\n"
    )
    found = jobs.parse_alloc_nodes(text)
    assert {name: (one.is_everywhere, one.is_default) for name, one in found.items()} == {
        "gpu": (True, True),
        "big": (False, False),
    }
