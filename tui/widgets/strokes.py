"""Which figures of a history are drawn, with their letters and colours, and where a line of one has gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..history import Of
from ..wire import Point

GAP = 3.0
"""A pause so many times as long as those beside it is one in which nothing was seen."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the plot."""

    of: Of
    letter: str
    label: str
    role: str
    """The theme's colour."""


SERIES: tuple[Series, ...] = (
    Series("cpu_load_percent", "c", "CPU load", "primary"),
    Series("gpu_load_percent", "g", "GPU load", "success"),
    Series("sm_percent", "s", "SM now", "accent"),
    Series("memory_percent", "m", "memory", "warning"),
    Series("gpu_memory_percent", "v", "GPU memory", "error"),
)
"""Their letters are those of llload's flags."""

Stroke = list[tuple[float, float]]


def strokes(points: Sequence[Point], of: Of) -> list[Stroke]:
    """What is known of one figure, in pieces without a gap: (Unix time, percent)."""
    found: list[Stroke] = []
    pauses = [after.taken - before.taken for before, after in pairwise(points)]
    is_open = False
    for number, point in enumerate(points):
        value: float | None = getattr(point, of)
        if number and pauses[number - 1] > GAP * _near_pause_s(pauses, number - 1):
            is_open = False
        if value is None:
            is_open = False
            continue
        if not is_open:
            found.append([])
            is_open = True
        found[-1].append((point.taken, value))
    return found


def seen_s(points: Sequence[Point]) -> float:
    """Seconds in which something is known, without the gaps; 0.0 where it was seen once or never."""
    known = [point for point in points if any(getattr(point, series.of) is not None for series in SERIES)]
    pauses = [after.taken - before.taken for before, after in pairwise(known)]
    return sum(pause for at, pause in enumerate(pauses) if pause <= GAP * _near_pause_s(pauses, at))


def _near_pause_s(pauses: Sequence[float], at: int) -> float:
    """The longer of the pauses before and after; where history becomes coarser they grow once, and that is no gap."""
    near = [*pauses[max(0, at - 1) : at], *pauses[at + 1 : at + 2]]
    return max(near, default=pauses[at])
