"""Fold the figures of many tasks: quantiles of each figure, and the tasks that most want a look."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from ...usage import GpuUse, TaskUse
from . import figures

WORST = 5
"""Tasks that are shown by themselves."""
BAD = ("gpu memory", "host memory", "time limit", "signal", "failed", "disturbed", "not started", "given up",
       "unfinished")  # fmt: skip
"""Outcomes of tasks that want a look, those with the clearest remedy first."""


class Quantiles(Struct, frozen=True, kw_only=True):
    """One figure of several tasks."""

    name: str
    """Key of FIGURES."""
    count: int
    """Tasks of which it is known."""
    least: float
    half: float
    """The median: no more than half of the tasks have more."""
    p90: float
    """One task of ten has more."""
    most: float
    most_task: int
    """The task with the most."""
    sum: float


def _gpu(use: Callable[[GpuUse], float | None]) -> Callable[[TaskUse], float | None]:
    return lambda task: figures.total(map(use, task.gpus))


FIGURES: dict[str, Callable[[TaskUse], float | None]] = {
    "time": lambda task: task.seconds,
    "cpu time": lambda task: task.cpu_s,
    "memory": lambda task: task.memory_peak_mib,
    "gpu memory": _gpu(lambda use: use.memory_peak_mib),
    "sm": lambda task: _mean([use.own_sm_percent for use in task.gpus]),
    "gpu idle": _gpu(lambda use: use.idle_s),
    "energy": _gpu(lambda use: None if use.energy is None else use.energy.joules),
}
"""Name -> the figure of a task; None: not known."""


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def quantiles(tasks: Sequence[TaskUse]) -> tuple[Quantiles, ...]:
    """Return the quantiles of each figure that is known of some task."""
    found = []
    for name, of in FIGURES.items():
        known = sorted((value, task.task) for task in tasks if (value := of(task)) is not None)
        if known:
            last = len(known) - 1
            found.append(
                Quantiles(
                    name=name,
                    count=len(known),
                    least=known[0][0],
                    half=known[last // 2][0],
                    p90=known[-(-9 * last // 10)][0],
                    most=known[-1][0],
                    most_task=known[-1][1],
                    sum=sum(value for value, _ in known),
                )
            )
    return tuple(found)


def worst(tasks: Sequence[TaskUse], most: int = WORST) -> tuple[TaskUse, ...]:
    """Return the tasks that most want a look: those that failed, then those whose GPU was idle for longest, then the
    longest. Of several attempts at a task the last one counts."""
    last = {task.task: task for task in tasks}.values()
    return tuple(sorted(last, key=_badness)[:most])


def _badness(task: TaskUse) -> tuple[int, float, float, int]:
    rank = BAD.index(task.outcome) if task.outcome in BAD else len(BAD)
    return rank, -(FIGURES["gpu idle"](task) or 0.0), -(task.seconds or 0.0), task.task
