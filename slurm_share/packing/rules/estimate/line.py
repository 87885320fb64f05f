"""Fit a straight line through the sizes of runs that differ in one number, such as the batch size.

From batches 32 and 64 it predicts the peak at 128 within 1.6 % for 11 of 12 published trainings; the figures are in
Yousefzadeh 2025, Table 6.2, and its author's measurements of September 2025.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations

from msgspec import Struct

REACH = 4.0
"""The line is used up to this factor outside the known numbers."""
POINTS_MOST = 30
"""Number of newest points in a fit: 435 slopes, about 0.1 ms."""
Point = tuple[float, float]
"""(the number, the peak in MiB)"""


class Line(Struct, frozen=True):
    """peak = base_mib + slope_mib * x, for x from `low` to `high`."""

    base_mib: float
    slope_mib: float
    """MiB per unit of the number, at least 0."""
    low: float
    high: float
    """Range of the known numbers."""
    runs: int

    def at(self, x: float) -> float | None:
        """Return the peak at `x` in MiB; None: `x` is too far outside the known numbers."""
        if not self.is_near(x):
            return None
        return self.base_mib + self.slope_mib * x

    def is_near(self, x: float) -> bool:
        """Return whether `x` is within the factor REACH of the known numbers, or, if one is not above 0, among them."""
        if self.low > 0 and x > 0:
            return self.low / REACH <= x <= self.high * REACH
        return self.is_inside(x)

    def is_inside(self, x: float) -> bool:
        return self.low <= x <= self.high


def fit(points: Sequence[Point]) -> Line | None:
    """Return the line through the points, newest last; None: they have fewer than two distinct numbers.

    Two distinct numbers are fitted by least squares, more by the median of all slopes (Theil-Sen), which is robust
    against single outliers. A negative slope is taken for noise: the slope is at least 0.
    """
    points = points[-POINTS_MOST:]
    numbers = {x for x, _ in points}
    if len(numbers) < 2:
        return None
    try:
        slope = _theil_sen(points) if len(numbers) > 2 else _least_squares(points)
        slope = max(slope, 0.0)
        base = statistics.median(y - slope * x for x, y in points)
    except (OverflowError, ValueError):  # numbers near the limits of a float
        return None
    return Line(base, slope, min(numbers), max(numbers), len(points))


def _theil_sen(points: Sequence[Point]) -> float:
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if a[0] != b[0])


def _least_squares(points: Sequence[Point]) -> float:
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:  # the difference of the two numbers vanishes in a float
        return 0.0
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
