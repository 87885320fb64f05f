"""What a task is told that is over its time."""

from __future__ import annotations

from slurm_share.triples.rules import time_limit
from slurm_share.triples.rules.time_limit import GRACE_S, SAVE_S, TaskTime


def steps(seconds: int, *, can_save: bool = False, limit_s: float = 10.0) -> list[tuple[int, str]]:
    """Return when a task is told what, if it is looked at each second and ends at nothing."""
    time, found = TaskTime(limit_s, 0.0), []
    for now in range(1, seconds):
        time_limit.look(time, float(now))
        if step := time_limit.next_step(time, can_save=can_save):
            found.append((now, step))
    return found


def test_a_task_over_its_time_is_told_to_end_and_killed_after_the_grace() -> None:
    assert steps(10) == []
    assert steps(40) == [(10, "end"), (35, "kill")]
    assert steps(40)[1][0] - steps(40)[0][0] == GRACE_S


def test_what_does_not_end_after_sigkill_gets_it_again() -> None:
    assert steps(70)[1:] == [(35, "kill"), (60, "kill")]


def test_with_a_checkpoint_signal_it_may_save_first() -> None:
    assert steps(100, can_save=True) == [(10, "save"), (10 + int(SAVE_S), "end"), (95, "kill")]


def test_time_in_which_the_job_or_the_task_is_stopped_does_not_count() -> None:
    time = TaskTime(10.0, 0.0)
    time_limit.look(time, 2.0)
    time_limit.look(time, 3600.0)  # scontrol suspend: the launcher was stopped too
    assert time.ran_s == 3.0
    time_limit.look(time, 3602.0, is_paused=True)
    assert time.ran_s == 3.0
    assert time_limit.next_step(time, can_save=False) is None
    time_limit.look(time, 3601.0)  # a clock that goes back
    assert time.ran_s == 3.0
