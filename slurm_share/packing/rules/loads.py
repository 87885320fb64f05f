"""The loads of commands and families on each GPU model, from figures of a GPU while a task is alone there.

The driver's figures per process are not used, since they may be wrong under MPS.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

from ...node.gpu_figures import GpuLoad, Means
from ..history_records import TaskRun
from ..records import TaskKey
from ..speed_records import Load

NEWEST = 5
"""Number of newest loads of a command that count."""
NEWEST_OF_FAMILY = 15
"""The same for a family, whose loads differ more."""
COMMANDS_MOST = 4096
"""Number of commands and families that are kept; the one with the oldest load is dropped first."""
ALONE_S = 60.0
"""Least time alone for a load; for a task shorter than twice this, half of its time."""
LEAST_S = 5.0
UTIL_FACTOR = 0.9
"""SM activity over utilisation, where only that is known. Utilisation is an upper bound. Assumed."""


def load_of(run: TaskRun) -> Load | None:
    """Return the load of a finished attempt; None: it was not alone for long enough."""
    if run.alone_seconds < max(LEAST_S, min(ALONE_S, 0.5 * run.seconds)):
        return None
    return make_load(run.sm_ratio, run.util_ratio, run.dram_ratio)


def make_load(sm: float | None, util: float | None, dram: float | None) -> Load | None:
    """Return the load from the mean figures of a GPU on which one task was alone; None: they are not known.

    If the driver gives no SM activity, `sm` is the utilisation.
    """
    if dram is None and sm == util and util is not None:
        sm = UTIL_FACTOR * util
    if sm is None or not math.isfinite(sm):
        return None
    return Load(sm_ratio=_ratio(sm), dram_ratio=_ratio(dram or 0.0), busy_ratio=1.0 if util is None else _ratio(util))


class Loads:
    """The newest loads of each command and family, on each GPU model."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], deque[Load]] = {}
        self._middle: dict[tuple[str, str, bool], Load] = {}
        """(name, GPU model, whether it is a family) -> the load that is expected of it. One name may be both."""

    def add(self, key: TaskKey, gpu_model: str, load: Load) -> None:
        """Record the load of a task that was alone on a GPU."""
        for name, most in ((key.exact, NEWEST), (key.family, NEWEST_OF_FAMILY)):
            if name:
                known = self._of.pop((name, gpu_model), None) or deque(maxlen=most)
                known.append(load)
                self._of[name, gpu_model] = known
                self._forget(name, gpu_model)
        while len(self._of) > COMMANDS_MOST:
            oldest = next(iter(self._of))
            del self._of[oldest]
            self._forget(*oldest)

    def _forget(self, name: str, gpu_model: str) -> None:
        for is_family in (False, True):
            self._middle.pop((name, gpu_model, is_family), None)

    def find(self, key: TaskKey | None, gpu_model: str) -> Load | None:
        """Return the load of a command, else of its family, on this GPU model; None: not measured."""
        if key is None:
            return None
        for name, is_family in ((key.exact, False), (key.family, True)):
            if known := self._of.get((name, gpu_model)):
                place = name, gpu_model, is_family
                if place not in self._middle:
                    self._middle[place] = _middle(known, is_family=is_family)
                return self._middle[place]
        return None


def _middle(loads: Sequence[Load], *, is_family: bool) -> Load:
    return Load(
        sm_ratio=_median(load.sm_ratio for load in loads),
        dram_ratio=_median(load.dram_ratio for load in loads),
        busy_ratio=_median(load.busy_ratio for load in loads),
        is_family=is_family,
    )


def _median(values: Iterable[float]) -> float:
    return _ratio(median(values))


def _ratio(value: float) -> float:
    """Return a ratio from 0 to 1, rounded to 0.01 so that noise does not make the journal grow."""
    return round(min(max(value, 0.0), 1.0), 2) if math.isfinite(value) else 0.0


class Figures:
    """Means of a GPU's figures over some time."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, gpu: GpuLoad, seconds: float) -> None:
        """Add a sample. Means over a minute, which may include earlier tasks, count only without a current figure."""
        sm, dram, util = gpu.load_percent, gpu.activity.dram_percent, gpu.utilization_percent
        now = (
            ("sm", minute_ratio(gpu.load_percent_windows) if sm is None else ratio(sm)),
            ("dram", minute_ratio(gpu.dram_percent_windows) if dram is None else ratio(dram)),
            ("util", minute_ratio(gpu.utilization_percent_windows) if util is None else ratio(util)),
        )
        for name, value in now:
            if value is not None and math.isfinite(value):
                total, over = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = (total + value * seconds, over + seconds)

    def mean(self, name: str) -> float | None:
        """Return the mean of a figure; None: it was not measured."""
        total, over = self._sums.get(name, (0.0, 0.0))
        return total / over if over > 0 else None

    def seconds(self) -> float:
        """Return the longest time over which a figure was measured."""
        return max((over for _, over in self._sums.values()), default=0.0)


def ratio(percent: float) -> float:
    return round(percent / 100, 4)


def minute_ratio(means: Means | None) -> float | None:
    """Return the mean of a figure over the last minute as a ratio; None: not known."""
    return None if means is None else ratio(means.m1)
