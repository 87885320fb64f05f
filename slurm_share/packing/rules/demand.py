"""Sum up the figures of a GPU while a task is alone there: its load.

The driver's figures per process are not used, since they may be wrong under MPS.
"""

from __future__ import annotations

import math

from ..records import GpuSample


class Figures:
    """Means of a GPU's figures over some time."""

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

    def mean(self, name: str) -> float | None:
        """Return the mean of a figure; None: it was not measured."""
        total, over = self._sums.get(name, (0.0, 0.0))
        return total / over if over > 0 else None

    def seconds(self) -> float:
        """Return the longest time over which a figure was measured."""
        return max((over for _, over in self._sums.values()), default=0.0)
