"""Summarise the measured speeds of a run: groups of tasks, mean slowdown, aggregate speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from ...core.text import counted

SHOWN_MOST = 3
"""Number of groups in the summary: those that ran longest."""
TASKS_SHOWN = 8


class GroupResult(Struct, frozen=True, kw_only=True, tag_field="event", tag="group"):
    """The measured speeds of one group of tasks on a GPU: a line of `events.jsonl`."""

    gpu: int
    """Index."""
    tasks: tuple[int, ...]
    from_s: float
    """Seconds since the launcher began."""
    seconds: float
    windows: int
    """Number of windows of the task with fewest."""
    stp: float
    error: float
    """Standard error of `stp`."""
    delta: float | None
    """Sum of the times alone over the longest time together; None: a time alone is not known."""
    slowdowns: tuple[float, ...]
    """Slowdown of each task."""


def sentences(groups: Sequence[GroupResult]) -> list[str]:
    """Return the measured speeds as sentences for the summary; empty: no group was measured."""
    timed = [group for group in groups if group.seconds > 0]
    if not timed:
        return []
    spent: dict[int, list[tuple[float, float]]] = {}
    for group in timed:
        for task, slowdown in zip(group.tasks, group.slowdowns, strict=True):
            spent.setdefault(task, []).append((group.seconds, slowdown))
    means = [sum(s * slow for s, slow in parts) / sum(s for s, _ in parts) for parts in spent.values()]
    seconds = sum(group.seconds for group in timed)
    stp = sum(group.seconds * group.stp for group in timed) / seconds
    rests = f"measured of {counted(len(spent), 'task')} in {counted(len(timed), 'group')}"
    antt = f"together, a task took {sum(means) / len(means):.1f} x its time alone (ANTT), GPUs did {stp:.1f} x (STP)"
    longest = sorted(timed, key=lambda group: (-group.seconds, group.gpu, group.tasks))[:SHOWN_MOST]
    return [f"{antt}; {rests}", *(group_text(group) for group in longest)]


def group_text(group: GroupResult) -> str:
    """Return a group as text: "GPU 1, tasks 7 12: 1.30 +- 0.02 of one at a time for 12 min"."""
    delta = "" if group.delta is None else f" (delta {group.delta:.2f})"
    return (
        f"GPU {group.gpu}, tasks {_tasks(group.tasks)}: {group.stp:.2f} +- {group.error:.2f} of one at a time for "
        f"{span(group.seconds)}{delta}"
    )


def _tasks(tasks: Iterable[int]) -> str:
    numbers = list(tasks)
    more = len(numbers) - TASKS_SHOWN
    return " ".join(map(str, numbers[:TASKS_SHOWN])) + (f" and {more} more" if more > 0 else "")


def span(seconds: float) -> str:
    """Return a duration as text: 4.2 s, 11 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
