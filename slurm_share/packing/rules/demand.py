"""Attribute a GPU's figures to its tasks: by what they are while a task is alone, else by the step that it makes.

When a task comes or goes and all others stay, the change of a GPU's figures, over the task's speed, is its load. The
driver's figures of each process are not needed, which under MPS are not known to be right.
"""

from __future__ import annotations

import math

from ..records import GpuSample
from .loads import Load

LOADING_S = 30.0
"""After a change the tasks that are new load data and fill memory; figures count from then on."""
LEAST_S = 30.0
"""A mean is over at least so much time."""
FULL = 0.90
"""On a GPU that is busier than this, the others give way to a new task, and the step is smaller than its load."""
SPEED_LEAST = 0.2
"""A speed below it would make any noise a load."""
FIGURES = ("sm", "dram", "pcie", "util")


class Figures:
    """Means of a GPU's figures over a time in which its tasks stayed the same."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, gpu: GpuSample, seconds: float) -> None:
        """Add a sample. Means over a minute, which begin before, count only where the present is not known."""
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
        """Return the mean of a figure; None: it was not measured for so long."""
        total, over = self._sums.get(name, (0.0, 0.0))
        return total / over if over > 0 and over >= least_s else None

    def seconds(self) -> float:
        """Return over how much time the longest of the means is."""
        return max((over for _, over in self._sums.values()), default=0.0)


class _State:
    """A time in which the tasks of a GPU stayed the same."""

    def __init__(self, tasks: frozenset[int], since_s: float) -> None:
        self.tasks = tasks
        self.since_s = since_s
        self.figures = Figures()


class Steps:
    """The steps of one GPU's figures."""

    def __init__(self) -> None:
        self._now: _State | None = None
        self._before: _State | None = None

    def sample(self, tasks: frozenset[int], gpu: GpuSample, now_s: float, seconds: float) -> int | None:
        """Note the figures of the last `seconds`. Return the task that made the step which is now known; None: none."""
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
            self._before = None  # several at once, or one that is alone, of which the means say it
            return None
        return next(iter(changed))

    def load(self, task: int, speed: float) -> Load | None:
        """Return the load of the task that made the step, which is over then. `speed`: what it kept of its speed alone
        while the others were there; 1: all. None: the GPU was too busy to tell."""
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
        # Utilisation does not add up: two tasks that are always on the GPU have the same as one.
        return Load(sm_ratio=found["sm"], dram_ratio=found["dram"], pcie_ratio=found["pcie"], source="step")
