"""Choose among the means of a figure by the time that was watched."""

from __future__ import annotations

from ..snapshot import Means
from . import thresholds


def within(figures: tuple[float, float, float], watched_s: float) -> float:
    """Return the longest of the means over 1, 5 and 15 minutes that is not longer than the job was watched: a longer
    one includes the job before."""
    return figures[(watched_s >= thresholds.SHORT_S) + (watched_s >= thresholds.LONG_S)]


def mean_within(means: Means | None, watched_s: float) -> float | None:
    """Return the longest of a figure's means that is not longer than the job was watched."""
    return None if means is None else within((means.m1, means.m5, means.m15), watched_s)


def recent(means: Means | None, watched_s: float) -> float | None:
    """Return the higher of the means over one and five minutes, so that a task that has just started counts fully."""
    if means is None or watched_s < thresholds.SHORT_S:
        return None if means is None else means.m1
    return max(means.m1, means.m5)
