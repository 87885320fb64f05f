"""The text about a run while it waits, runs and is interrupted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.triples.rules.progress import JobState, TaskCounts, line

HALF = TaskCounts(100, done=40, failed=1, running=8)


@pytest.mark.parametrize(
    ("task_counts", "states", "reason", "start", "said"),
    [
        (HALF, "RUNNING", "", "", "40 of 100 done, 1 failed, 8 running, 51 left"),
        (None, "RUNNING", "", "", "job 5: running"),
        (None, "PENDING", "Resources", "15:02:11", "job 5: pending (Resources), expected 15:02:11"),
        (
            HALF, "PENDING", "BeginTime", "15:02:11",
            "job 5: pending (BeginTime), requeued, expected 15:02:11; 40 of 100 done, 1 failed, 59 left",
        ),
        (
            HALF, "PENDING REQUEUE_HOLD", "job requeued in held state", "",
            "job 5: pending requeue hold (job requeued in held state), requeued, scontrol release 5 lets it start; "
            "40 of 100 done, 1 failed, 59 left",
        ),
        (None, "PENDING", "JobHeldUser", "", "job 5: pending (JobHeldUser), scontrol release 5 lets it start"),
        (HALF, "SUSPENDED", "", "", "job 5: suspended; 40 of 100 done, 1 failed, 8 suspended, 51 left"),
        (HALF, "RUNNING COMPLETING", "", "", "job 5: completing; 40 of 100 done, 1 failed, 59 left"),
        (HALF, "COMPLETING NODE_FAIL", "", "", "job 5: completing node fail; 40 of 100 done, 1 failed, 59 left"),
    ],
)  # fmt: skip
def test_slurm_says_whether_anything_runs(
    task_counts: TaskCounts | None, states: str, reason: str, start: str, said: str
) -> None:
    requeues = 1 if task_counts is HALF else 0
    state = JobState(job=5, states=tuple(states.split()), reason=reason, start=start, restarts=requeues)
    assert line(task_counts, state) == said


@pytest.mark.parametrize("state", ["PENDING", "RUNNING CONFIGURING"])
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_state_from_before_the_start_of_the_launchers_is_not_joined_with_their_figures(
    state: str, restarts: int
) -> None:
    before = JobState(job=5, states=tuple(state.split()), restarts=restarts)
    assert line(replace(HALF, restarts=restarts), before) == "40 of 100 done, 1 failed, 8 running, 51 left"
    unknown = JobState(job=5, states=("PENDING",))
    assert line(HALF, unknown) == "job 5: pending; 40 of 100 done, 1 failed, 59 left"


def test_without_a_word_of_slurms_the_launchers_word_stands() -> None:
    assert line(HALF, None) == "40 of 100 done, 1 failed, 8 running, 51 left"
    assert line(None, None) == ""
    state = JobState(job=5, states=("RUNNING",))
    assert line(HALF, state, ["n1", "n2"]).endswith("51 left; no news from n1, n2")
