"""The series of a history that are drawn, with letters and colours, and the gaps in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..history import Figure
from ..wire import Point

GAP = 3.0
"""A pause this many times longer than its neighbours is a gap."""


@dataclass(frozen=True, slots=True)
class Series:
    """A figure of the plot, with its letter, label and colour."""

    of: Figure
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
"""All series; their letters are those of llload's flags."""

Polyline = list[tuple[float, float]]


def polylines(points: Sequence[Point], of: Figure) -> list[Polyline]:
    """Return the known values of one figure, split at gaps: (Unix time, percent)."""
    found: list[Polyline] = []
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


def observed_s(points: Sequence[Point]) -> float:
    """Return the seconds in which something is known, without gaps; 0.0 if there is at most one point."""
    known = [point for point in points if any(getattr(point, series.of) is not None for series in SERIES)]
    pauses = [after.taken - before.taken for before, after in pairwise(known)]
    return sum(pause for at, pause in enumerate(pauses) if pause <= GAP * _near_pause_s(pauses, at))


def _near_pause_s(pauses: Sequence[float], at: int) -> float:
    """Return the longer of the pauses before and after. The pauses grow once where the history becomes coarser, which
    is no gap."""
    near = [*pauses[max(0, at - 1) : at], *pauses[at + 1 : at + 2]]
    return max(near, default=pauses[at])
