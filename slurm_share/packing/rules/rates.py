"""Turn the work counter of a task into rates, over windows in which its neighbours stayed the same."""

from __future__ import annotations

import math
from collections import deque

from ..speed_records import Rate, RateSource

WINDOWS_KEPT = 24
"""A rate is the mean of this many newest closed windows: twelve minutes at 30 s. A program changes in hours."""
OUTPUT_WINDOWS = 5
OUTPUT_SPREAD_RATIO = 0.10
"""Lines of output count as work only with OUTPUT_WINDOWS windows that differ by at most this part of their mean."""
STILL_FACTOR = 4.0
"""A task without progress for this multiple of its longest step or window counts as stalled, and its rate falls."""

UNITS_MAX = 1e30
"""Larger counter values are rejected as a mistake."""


class RateMeter:
    """Measures the rate of one task. All times are seconds of a monotonic clock.

    A window begins and ends when the counter rises, and lasts at least `window_s`. So a counter that rises every five
    minutes has windows of five minutes with one step each, and no empty windows. The first rise after `restart` begins
    a window and is not counted, since part of that step was done before.

    If the counter has risen at least twice, a window is closed without a rise after STILL_FACTOR times the longest time
    between two rises, and at least STILL_FACTOR times `window_s`.

    A counter that falls starts again: an epoch is over, or the program has returned to a saved state. Its new value
    counts as at most the largest rise before, because it may have restarted at any number.
    """

    def __init__(self, source: RateSource, window_s: float = 30.0) -> None:
        self.source = source
        self.window_s = window_s
        self.units: float | None = None
        """Total work, including the work before the counter fell; None: there was no value yet."""
        self.shown = 0.0
        """Current value of the counter."""
        self._largest_rise = 0.0
        self._now_s = -math.inf
        self._begun_s: float | None = None
        """Begin of the open window; None: no window is open."""
        self._done = 0.0
        """Work in the open window."""
        self._rise_s: float | None = None
        """Time of the last rise since the last restart; None: there was none."""
        self._windows: deque[tuple[float, float]] = deque(maxlen=WINDOWS_KEPT)
        """(seconds, units) of the closed windows."""
        self._closed = 0
        """Number of windows that were closed since the last restart."""
        self._rate_now: Rate | None = None
        """Cached result of `rate`, which is called at every decision."""
        self._is_known = True
        self._longest_step_s = 0.0
        """Longest time between two rises; 0: there were fewer than two."""
        self._all_s = self._all_units = 0.0

    def add(self, now_s: float, units: float) -> None:
        """Record the work of the task since it began. Impossible numbers and older samples are ignored."""
        if not (0 <= units <= UNITS_MAX and math.isfinite(now_s)) or now_s < self._now_s:
            return
        self._now_s = now_s
        if self.units is None:
            self.units = self.shown = units
            self._rise(now_s, 0.0)
            return
        rise = units - self.shown
        self.shown = units
        if rise > 0:
            self._largest_rise = max(self._largest_rise, rise)
        elif rise < 0:
            rise = min(units, self._largest_rise)
        if rise > 0:
            self.units += rise
            self._rise(now_s, rise)
        elif self._begun_s is not None and self._stands_still(now_s - self._begun_s):
            self._close(self._begun_s, now_s)

    def _stands_still(self, seconds: float) -> bool:
        return self._longest_step_s > 0 and seconds > STILL_FACTOR * max(self._longest_step_s, self.window_s)

    def _rise(self, now_s: float, rise: float) -> None:
        if self._begun_s is None or self._rise_s is None:
            self._begun_s = self._rise_s = now_s
            self._done = 0.0
            return
        self._longest_step_s = max(self._longest_step_s, now_s - self._rise_s)
        self._all_s += now_s - self._rise_s
        self._all_units += rise
        self._rise_s = now_s
        self._done += rise
        if now_s - self._begun_s >= self.window_s:
            self._close(self._begun_s, now_s)

    def _close(self, begun_s: float, now_s: float) -> None:
        if now_s > begun_s:
            self._windows.append((now_s - begun_s, self._done))
            self._closed += 1
            self._is_known = False
            self._begun_s, self._done = now_s, 0.0

    def restart(self, now_s: float) -> None:
        """Discard the windows, because the neighbours have changed or the task was paused. Earlier work still counts
        in `units` and `mean_per_s`."""
        self._now_s = max(self._now_s, now_s)
        self._windows.clear()
        self._closed = 0
        self._rate_now, self._is_known = None, True
        self._begun_s = self._rise_s = None
        self._done = 0.0

    def rate(self) -> Rate | None:
        """Return the mean over the closed windows; None: there is none yet, or lines of output come unevenly.

        The error of the mean comes from the spread of the windows. With one window, it is as large as the rate.
        """
        if not self._is_known:
            self._rate_now, self._is_known = self._mean(), True
        return self._rate_now

    def _mean(self) -> Rate | None:
        count = len(self._windows)
        seconds = done = squares = 0.0
        for passed, units in self._windows:
            seconds += passed
            done += units
        if not seconds:
            return None
        mean = done / seconds
        if count == 1:
            return None if self.source == "output" else self._rate(mean, mean)
        for passed, units in self._windows:
            squares += passed * (units / passed - mean) ** 2
        spread = math.sqrt(squares / seconds * count / (count - 1))
        if self.source == "output" and (count < OUTPUT_WINDOWS or spread > OUTPUT_SPREAD_RATIO * mean or not mean):
            return None
        return self._rate(mean, spread / math.sqrt(count))

    def _rate(self, per_s: float, error_per_s: float) -> Rate | None:
        if not (math.isfinite(per_s) and math.isfinite(error_per_s)):
            return None
        return Rate(per_s=per_s, error_per_s=error_per_s, windows=self._closed, source=self.source)

    @property
    def mean_per_s(self) -> float | None:
        """Return the mean over the whole task, also before restarts; None: nothing was measured."""
        if self._all_s <= 0 or self._all_units <= 0:
            return None
        mean = self._all_units / self._all_s
        return mean if math.isfinite(mean) else None
