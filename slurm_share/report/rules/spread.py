"""Fold the figures of many tasks: quantiles of each figure, and the tasks that most want a look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from ...usage import GpuUse, TaskUse
from . import figures

WORST = 5
"""Tasks that are shown by themselves."""
FAR = 1.5
"""Times the median from which a task is slow. Source: spark.speculation.multiplier of Spark 3."""
FAR_LEAST_S = 1.0
"""Seconds above the median from which a task is slow: the launcher samples once a second."""
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
    """Return the tasks that most want a look: those that failed, then those at or over their memory's cap, then the
    slow ones, then those with an idle GPU. Empty: all are done, and much alike. Of several attempts at a task the last
    one counts."""
    last = tuple({task.task: task for task in tasks}.values())
    usual = {name: _median(last, name) for name in ("time", "gpu idle")}
    ranked = [(_ranked(task, usual), task) for task in last]
    return tuple(task for rank, task in sorted(ranked, key=lambda one: one[0]) if rank[0] < _ALIKE)[:most]


_CAPPED, _SLOW, _IDLE, _ALIKE = range(len(BAD), len(BAD) + 4)
"""Ranks of tasks that were done, after those of BAD."""


def _ranked(task: TaskUse, usual: Mapping[str, float]) -> tuple[int, float, int]:
    """Return (rank, how far from the others: the less, the farther, number of the task)."""
    seconds, idle = task.seconds or 0.0, FIGURES["gpu idle"](task) or 0.0
    if task.outcome in BAD:
        return BAD.index(task.outcome), -seconds, task.task
    if any(_is_at_cap(gpu) for gpu in task.gpus):
        return _CAPPED, -seconds, task.task
    if _stands_out(seconds, usual["time"]):
        return _SLOW, -seconds, task.task
    return (_IDLE if _stands_out(idle, usual["gpu idle"]) else _ALIKE), -idle, task.task


def _is_at_cap(gpu: GpuUse) -> bool:
    """Return whether a task took all that it may have on a GPU, or more than was booked for it."""
    peak, cap, booked = gpu.memory_peak_mib, gpu.memory_cap_mib, gpu.memory_booked_mib
    return peak is not None and ((cap is not None and peak >= cap) or (booked is not None and peak > booked))


def _median(tasks: Sequence[TaskUse], name: str) -> float:
    known = [value for task in tasks if (value := FIGURES[name](task)) is not None]
    return median(known) if known else 0.0


def _stands_out(seconds: float, usual: float) -> bool:
    return seconds > FAR * usual and seconds - usual > FAR_LEAST_S
