"""Decide which waiting tasks are given up because tasks like them ran out of memory with a whole GPU to themselves."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...core.text import gib_text
from ..attempt import Attempt
from ..records import Estimate, Source, TaskAsk
from .room import UNKNOWN_MIB

DEAD_LEAST = 3
"""Number of tasks of a family that have to run out of memory with a GPU to themselves before others are given up."""
SIZED_BY: frozenset[Source] = frozenset({"exact", "line", "other-gpu", "static", "probe"})
"""Estimates of the task itself. Those of its family or of a running sibling are the same for all its tasks."""


class _Dead(Struct, frozen=True):
    """A task that ran out of memory with a GPU to itself."""

    task: int
    exact: str
    size_mib: int
    """The user's own number or its estimate at its start; if there was none, the memory that it had."""
    had_mib: int


class DeadTasks:
    """The tasks of one run and node that no GPU could hold, and what others of their families have shown."""

    def __init__(self) -> None:
        self._dead: dict[str, list[_Dead]] = {}
        self._done: dict[str, int] = {}
        """Family -> largest size of a task that was done in this run, in MiB."""
        self._done_commands: set[str] = set()

    def died(self, ask: TaskAsk, estimate: Estimate, had_mib: int) -> None:
        """Record a task that ran out of memory with a GPU to itself, which gave it `had_mib`."""
        key = ask.key
        if key is not None and key.family:
            size_mib = own_size_mib(ask, (estimate,))
            dead = _Dead(ask.task, key.exact, had_mib if size_mib is None else min(size_mib, had_mib), had_mib)
            self._dead.setdefault(key.family, []).append(dead)

    def done(self, ask: TaskAsk, estimate: Estimate) -> None:
        """Record a task that was done."""
        key = ask.key
        if key is None:
            return
        if key.exact:
            self._done_commands.add(key.exact)
        size_mib = own_size_mib(ask, (estimate,))
        if key.family and size_mib is not None:
            self._done[key.family] = max(size_mib, self._done.get(key.family, 0))

    def why_hopeless(self, waiting: Attempt) -> str:
        """Return why a waiting task is given up; empty: it is tried.

        It is given up after DEAD_LEAST dead tasks of its family if it is the command of one of them, or if its own
        number or its estimate is at least the size of one of them. A command with a done run is always tried, and so is
        a task that is not larger than one that was done.
        """
        ask, key = waiting.ask, waiting.ask.key
        dead = () if key is None else self._dead.get(key.family, ())
        if key is None or len(dead) < DEAD_LEAST or key.exact in self._done_commands:
            return ""
        estimates = [estimate for _, estimate in waiting.estimates]
        if any(estimate.was_done for estimate in estimates):
            return ""
        same = next((one for one in dead if key.exact and one.exact == key.exact), None)
        if same is not None:
            return f"task {same.task}, the same command, {_died_text(same)}"
        size_mib = own_size_mib(ask, estimates)
        if size_mib is None or size_mib <= self._done.get(key.family, 0):
            return ""
        smallest = min(dead, key=lambda one: (one.size_mib, one.task))
        if size_mib < smallest.size_mib:
            return ""
        size = "--gpu-mem" if ask.gpu_mem_mib is not None else "estimate"
        return (
            f"its {size} is {gib_text(size_mib)}, and task {smallest.task} of the same script, with "
            f"{gib_text(smallest.size_mib)}, {_died_text(smallest)}"
        )


def own_size_mib(ask: TaskAsk, estimates: Sequence[Estimate]) -> int | None:
    """Return the user's own number for a task, or the smallest estimate of the task itself; None: not known."""
    if ask.gpu_mem_mib is not None:
        return ask.gpu_mem_mib
    sizes = [
        one.point_mib
        for one in estimates
        if one.source in SIZED_BY and not one.is_elastic and one.point_mib is not None
    ]
    return min(sizes, default=None)


def _died_text(dead: _Dead) -> str:
    size = f" ({gib_text(dead.had_mib)})" if dead.had_mib < UNKNOWN_MIB else ""
    return f"ran out of GPU memory with a GPU to itself{size}"
