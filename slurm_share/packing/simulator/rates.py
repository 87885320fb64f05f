"""Simulate the rates that a launcher would measure: noisy windows, some of which are missing.

A unit of work is a second of a task alone. The meter of the live launcher closes the windows.
"""

from __future__ import annotations

import math
import random

from ..rules.rates import RateMeter
from ..speed_records import Rate
from .records import Assumptions

STEP_S = 2.0
"""Time after a change of neighbours at which a task finishes its current step, and its windows begin."""
WINDOWS = (3, 6, 12)
ALONE_WINDOWS = (1, 2, 3)
"""The board gets the rates of a GPU's tasks at each decision and at these numbers of closed windows: when `rules.undo`
tests and groups are learned or, for a task alone on its GPU, until its rate alone is known."""
LATER = (4, 8, 16)
"""Further numbers of windows if windows are missing."""


class TaskRates:
    """The simulated rate of one attempt."""

    def __init__(self, assumed: Assumptions, window_s: float, draw: random.Random) -> None:
        self._assumed = assumed
        self._draw = draw
        self._meter = RateMeter("progress", window_s)
        self._units = 0.0
        self._speed = 0.0
        self._begin_s = 0.0
        self.next_s = 0.0
        """End of the open window; the rate is constant until then."""
        self.is_reported = False
        """The board has the rate of all closed windows."""
        self._closed = 0
        self.reported: Rate | None = None
        """The last rate that the board got."""

    def restart(self, now: float, speed: float) -> None:
        """Start new windows after a change of neighbours. `speed`: the true speed from now on; 0: paused."""
        self.catch_up(now)
        self._meter.restart(now)
        self._begin_s, self._closed, self._speed = now + STEP_S, -1, speed
        self.next_s = self._begin_s
        self.is_reported = False

    def catch_up(self, now: float) -> None:
        """Pass the work of the windows that have ended since then to the meter."""
        if self._speed <= 0.0:
            return
        window = self._meter.window_s
        while (at := self.next_s) <= now:
            self._closed += 1
            self.is_reported = False
            self.next_s = self._begin_s + (self._closed + 1) * window
            passed = window if self._closed else STEP_S
            self._units += self._speed * passed * math.exp(self._draw.gauss(0.0, self._assumed.rate_sigma))
            is_missing = self._assumed.missing_ratio > 0.0 and self._draw.random() < self._assumed.missing_ratio
            if not is_missing:
                self._meter.add(at, self._units)

    def rate(self, now: float) -> Rate | None:
        """Return the mean over the closed windows; None: there is none yet."""
        self.catch_up(now)
        return self._meter.rate() if self._speed > 0.0 else None


def report_times_s(changed_s: float, window_s: float, *, is_alone: bool = False, has_gaps: bool = False) -> list[float]:
    """Return when the board gets the rates of a GPU whose tasks have changed. `has_gaps`: windows are missing."""
    counts = ALONE_WINDOWS if is_alone else WINDOWS
    return [changed_s + STEP_S + count * window_s for count in sorted((*counts, *(LATER if has_gaps else ())))]
