"""Rates of simulated tasks, as a launcher would measure them: noisy windows, of which some are missing.

A unit of work is a second of a task alone. Windows are closed by the meter of the live launcher.
"""

from __future__ import annotations

import math
import random

from ..rules.rates import RateMeter
from ..speed_records import Rate
from .records import Assumptions

STEP_S = 2.0
"""So long after a change of neighbours, a task finishes the step that it was at: its windows begin there."""
WINDOWS = (3, 6, 12)
ALONE_WINDOWS = (1, 2, 3)
"""The rates of a GPU's tasks are told when so many windows are closed, and at each decision: when `rules.undo` tests,
and when groups are learned. Of a task alone on its GPU, until its rate alone is known."""
LATER = (4, 8, 16)
"""Also then, where windows are missing."""


class TaskRates:
    """The rate of one attempt."""

    __slots__ = (
        "_assumed",
        "_begin_s",
        "_closed",
        "_draw",
        "_meter",
        "_speed",
        "_units",
        "is_told",
        "next_s",
        "told",
    )

    def __init__(self, assumed: Assumptions, window_s: float, draw: random.Random) -> None:
        self._assumed = assumed
        self._draw = draw
        self._meter = RateMeter("progress", window_s)
        self._units = 0.0
        self._speed = 0.0
        self._begin_s = 0.0
        self.next_s = 0.0
        """When the open window ends; its rate stays the same until then."""
        self.is_told = False
        """The board was told the rate of all windows that have been closed."""
        self._closed = 0
        self.told: Rate | None = None
        """The last rate that the board was told."""

    def restart(self, now: float, speed: float) -> None:
        """Note that neighbours have changed, and the true speed from now on; 0: it is paused."""
        self.catch_up(now)
        self._meter.restart(now)
        self._begin_s, self._closed, self._speed = now + STEP_S, -1, speed
        self.next_s = self._begin_s
        self.is_told = False

    def catch_up(self, now: float) -> None:
        """Show the meter what was done in the windows that have ended since."""
        if self._speed <= 0.0:
            return
        window = self._meter.window_s
        while (at := self.next_s) <= now:
            self._closed += 1
            self.is_told = False
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


def told_at_s(changed_s: float, window_s: float, *, is_alone: bool = False, has_gaps: bool = False) -> list[float]:
    """Return when the rates of a GPU are told whose tasks have changed. `has_gaps`: windows are missing."""
    counts = ALONE_WINDOWS if is_alone else WINDOWS
    return [changed_s + STEP_S + count * window_s for count in sorted((*counts, *(LATER if has_gaps else ())))]
