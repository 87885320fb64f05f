"""Compute means over the last minutes of a figure that is read at irregular times."""

from __future__ import annotations

import math
from bisect import bisect_left

from msgspec import Struct

from .gpu_figures import Means

MINUTES = (60.0, 300.0, 900.0)
KEPT_S = MINUTES[-1]
TEN_S, LEAST_OF_TEN_S = 600.0, 540.0
"""A mean over ten minutes needs this much of them measured, so that a gap of a minute does not make it unknown."""
GRAIN_S = 5.0
"""Readings closer together than this become one point, so that 15 minutes have at most 181."""


class WindowSeries(Struct, frozen=True):
    """A figure over time, stored as its integral, so that a mean is the difference of two points. The three tuples have
    an entry for each point, oldest first. Only `add` makes one."""

    at: tuple[float, ...] = ()
    """Times of the points on the monotonic clock, seconds."""
    total: tuple[float, ...] = ()
    """Integral of the figure up to each point, figure times seconds."""
    covered: tuple[float, ...] = ()
    """Seconds up to each point for which there was a figure."""


def add(series: WindowSeries, now: float, dt: float, value: float | None) -> WindowSeries:
    """Return the series with `value` as the mean of the `dt` seconds before `now`; None: not known."""
    if value is None or dt <= 0:
        return series
    if not series.at or now <= series.at[-1]:
        # The clock stood still or went back, which the kernel's never does: start again rather than count twice.
        series = WindowSeries((now - dt,), (0.0,), (0.0,))
    elif now - dt > series.at[-1]:
        # The integral does not change over a gap.
        series = _append(series, now - dt, series.total[-1], series.covered[-1])
    total, covered = series.total[-1] + value * dt, series.covered[-1] + dt
    if len(series.at) > 1 and series.at[-1] - series.at[-2] < GRAIN_S and now - series.at[-2] <= 2 * GRAIN_S:
        series = WindowSeries(series.at[:-1], series.total[:-1], series.covered[:-1])
    return _trim(_append(series, now, total, covered), now)


def means(series: WindowSeries, now: float, since: float = -math.inf) -> Means | None:
    """Return the means up to `now`; None if there is no reading in the last 15 minutes. `since`: the means start with
    the first point after it."""
    if since > -math.inf:
        series = _from(series, bisect_left(series.at, since))
    over_s = _measured(series, now, KEPT_S)[1]
    if over_s <= 0:
        return None
    mean, found = 0.0, []
    for seconds in reversed(MINUTES):
        total, covered = _measured(series, now, seconds)
        # Without a reading in the last minute (the driver was silent), the next longer window is used.
        mean = total / covered if covered > 0 else mean
        found.append(mean)
    m15, m5, m1 = found
    total, covered = _measured(series, now, TEN_S)
    return Means(m1, m5, m15, over_s, total / covered if covered >= LEAST_OF_TEN_S else None)


def is_over(series: WindowSeries, now: float) -> bool:
    """Return whether it is too old to count in any window."""
    return not series.at or now - series.at[-1] > KEPT_S


def _measured(series: WindowSeries, now: float, seconds: float) -> tuple[float, float]:
    """Return (integral, covered seconds) of the last `seconds`."""
    start = now - seconds
    place = bisect_left(series.at, start)
    if place >= len(series.at):
        return 0.0, 0.0
    if place == 0:
        total, covered = series.total[0], series.covered[0]
    else:
        before, after = series.at[place - 1], series.at[place]
        part = (start - before) / (after - before)
        total = series.total[place - 1] + part * (series.total[place] - series.total[place - 1])
        covered = series.covered[place - 1] + part * (series.covered[place] - series.covered[place - 1])
    return series.total[-1] - total, series.covered[-1] - covered


def _append(series: WindowSeries, at: float, total: float, covered: float) -> WindowSeries:
    return WindowSeries((*series.at, at), (*series.total, total), (*series.covered, covered))


def _trim(series: WindowSeries, now: float) -> WindowSeries:
    """Drop the points that no window reaches, except the last one before them, from which windows are measured."""
    old = bisect_left(series.at, now - KEPT_S) - 1
    return _from(series, old) if old > 0 else series


def _from(series: WindowSeries, first: int) -> WindowSeries:
    return WindowSeries(series.at[first:], series.total[first:], series.covered[first:])
