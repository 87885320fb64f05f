"""Attribute the figures of a GPU to its tasks.

While a task is alone, the figures are its load. When it starts or ends beside others, its load is the change (step) of
the figures divided by its speed. The driver's figures per process are not used, since they may be wrong under MPS.
"""

from __future__ import annotations

import math

from msgspec import Struct, field

from ..records import GpuSample
from .loads import Load

LOADING_S = 30.0
"""Time after a change in which figures do not count: a new task first loads data and fills memory."""
LEAST_S = 30.0
"""Least time over which a mean is taken."""
FULL = 0.90
"""On a GPU that is busier than this, a new task displaces the others, and the step is smaller than its load."""
SPEED_LEAST = 0.2
"""At a lower speed, noise would be counted as load."""
FIGURES = ("sm", "dram", "pcie", "util")


class Figures:
    """Means of a GPU's figures over a period in which its tasks stayed the same."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, gpu: GpuSample, seconds: float) -> None:
        """Add a sample. Means over a minute, which may include earlier tasks, count only without a current figure."""
        now = (
            ("sm", gpu.sm_ratio if gpu.sm_now_ratio is None else gpu.sm_now_ratio),
            ("dram", gpu.dram_ratio if gpu.dram_now_ratio is None else gpu.dram_now_ratio),
            ("pcie", gpu.pcie_ratio),
            ("util", gpu.util_ratio if gpu.util_now_ratio is None else gpu.util_now_ratio),
        )
        for name, value in now:
            if value is not None and math.isfinite(value):
                total, over = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = (total + value * seconds, over + seconds)

    def mean(self, name: str, least_s: float = 0.0) -> float | None:
        """Return the mean of a figure; None: it was measured for less than `least_s`."""
        total, over = self._sums.get(name, (0.0, 0.0))
        return total / over if over > 0 and over >= least_s else None

    def seconds(self) -> float:
        """Return the longest time over which a figure was measured."""
        return max((over for _, over in self._sums.values()), default=0.0)


class _State(Struct):
    """A period in which the tasks of a GPU stayed the same."""

    tasks: frozenset[int]
    since_s: float
    figures: Figures = field(default_factory=Figures)


class Steps:
    """Steps in the figures of one GPU."""

    def __init__(self) -> None:
        self._now: _State | None = None
        self._before: _State | None = None

    def sample(self, tasks: frozenset[int], gpu: GpuSample, now_s: float, seconds: float) -> int | None:
        """Record the figures of the last `seconds`. Return the task whose step is now known; None: no step is known."""
        if self._now is None or self._now.tasks != tasks:
            before = self._now
            is_known = before is not None and before.figures.seconds() >= LEAST_S
            self._before = before if is_known else None
            self._now = _State(tasks, now_s)
            return None
        if now_s - self._now.since_s < LOADING_S:
            return None
        self._now.figures.add(gpu, seconds)
        if self._before is None or self._now.figures.seconds() < LEAST_S:
            return None
        changed = tasks ^ self._before.tasks
        if len(changed) != 1 or len(tasks | self._before.tasks) < 2:
            self._before = None  # several tasks changed, or one task is alone and its load is the mean
            return None
        return next(iter(changed))

    def load(self, task: int, speed: float) -> Load | None:
        """Return the load of the task that made the step, and forget the step. `speed`: the task's speed beside the
        others over its speed alone. None: the GPU was too busy."""
        before, now, self._before = self._before, self._now, None
        if before is None or now is None or not speed >= SPEED_LEAST:
            return None
        more, less = (now, before) if task in now.tasks else (before, now)
        busiest = more.figures.mean("sm")
        if busiest is None or busiest > FULL:
            return None
        found: dict[str, float | None] = {}
        for name in FIGURES:
            high, low = more.figures.mean(name, LEAST_S), less.figures.mean(name, LEAST_S)
            found[name] = None if high is None or low is None else min(max((high - low) / speed, 0.0), 1.0)
        if found["sm"] is None:
            return None
        # Utilisation does not add up: two tasks that always use the GPU show the same as one.
        return Load(sm_ratio=found["sm"], dram_ratio=found["dram"], pcie_ratio=found["pcie"], source="step")
