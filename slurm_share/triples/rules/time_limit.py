"""Decide what a running task that is over its time (--task-time) is told: to save its state, to end, or SIGKILL."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Step = Literal["save", "end", "kill"]

GRACE_S = 25.0
"""Seconds from the request to end until SIGKILL, as at the end of a run."""
SAVE_S = 60.0
"""Seconds that a task has for the signal of --checkpoint-signal, before it is told to end."""
GAP_MOST_S = 3.0
"""A longer time without a look at the tasks is one in which the launcher was stopped too, as by `scontrol suspend`."""
GAP_S = 1.0
"""Seconds of such a time that count as run time: the interval of one look at the tasks."""


class TaskTime(Struct):
    """The time of one running attempt, in seconds."""

    limit_s: float
    seen_s: float
    """Monotonic clock at the last look."""
    ran_s: float = 0.0
    """Its run time so far, without the time in which it, or the whole job, was stopped."""
    told: Step | None = None
    """The last step that was taken to end it; None: none was."""
    told_at_s: float = 0.0
    """Its run time then."""


def look(time: TaskTime, now_s: float, *, is_paused: bool = False) -> None:
    """Add the time since the last look to a task's run time. `is_paused`: the launcher has stopped the task."""
    gap_s = max(now_s - time.seen_s, 0.0)
    time.seen_s = now_s
    if not is_paused:
        time.ran_s += gap_s if gap_s <= GAP_MOST_S else GAP_S


def next_step(time: TaskTime, *, can_save: bool) -> Step | None:
    """Return what a task is told now, and record it; None: nothing. `can_save`: the run has a checkpoint signal."""
    step: Step | None = None
    for_s = time.ran_s - time.told_at_s
    if time.told is None:
        if time.ran_s >= time.limit_s:
            step = "save" if can_save else "end"
    elif time.told == "save":
        step = "end" if for_s >= SAVE_S else None
    elif for_s >= GRACE_S:
        step = "kill"
    if step is not None:
        time.told, time.told_at_s = step, time.ran_s
    return step
