"""Turn what a task's program counts into rates: closed windows, in which its neighbours stayed the same."""

from __future__ import annotations

from ..records import Rate, RateSource


class RateMeter:
    """The rate of one task. All times in seconds of a monotonic clock."""

    def __init__(self, source: RateSource, window_s: float = 30.0) -> None:
        self.source = source
        self.window_s = window_s

    def add(self, now_s: float, units: float) -> None:
        """Note how much the task has done since it began."""

    def restart(self, now_s: float) -> None:
        """Forget the windows: its neighbours have changed, or it was paused."""

    def rate(self) -> Rate | None:
        """Return the mean over the closed windows; None: there is none yet."""
        return None
