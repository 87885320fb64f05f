"""Sum up the figures of a GPU while a task is alone there: its load.

The driver's figures per process are not used, since they may be wrong under MPS.
"""

from __future__ import annotations

import math

from ...node.gpu_figures import GpuLoad, Means


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
