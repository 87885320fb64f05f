"""The line that says where one is, and the way that led there."""

from __future__ import annotations

from collections.abc import Sequence

from ..place import TITLES, Place
from .line import Line, Piece, width_of

BETWEEN = Piece(" > ", "dim")
MORE = Piece("… > ", "dim")
MOST = 40
"""Columns of one name."""


class Crumbs(Line):
    """Click one to go back to it."""

    def __init__(self) -> None:
        super().__init__()
        self.way: tuple[Place, ...] = ()

    def show(self, way: tuple[Place, ...]) -> None:
        """The places from the first to this one."""
        if way != self.way:
            self.way = way
            self.refresh()

    def lay_out(self, width: int) -> Sequence[Piece]:
        """From the left; where it is narrow the first names give way, since the last one says where one is."""
        names = [
            Piece(_short(words(place)), "strong" if number == len(self.way) - 1 else "", str(number))
            for number, place in enumerate(self.way)
        ]
        for first in range(len(names)):
            shown = [Piece(" ")] if first == 0 else [Piece(" "), MORE]
            for number, name in enumerate(names[first:]):
                shown += [BETWEEN, name] if number else [name]
            if width_of(shown) <= width or first == len(names) - 1:
                return shown
        return []


def words(place: Place) -> str:
    """The last thing that it is narrowed to."""
    if place.process is not None:
        return f"process {place.process.pid}"
    title = TITLES[place.view]
    thing = place.gpu_name or place.gpu if place.gpu else place.node or _job(place) or place.user
    if place.view == "advice":
        return f"{title} {thing}".strip()
    return thing or title


def _job(place: Place) -> str:
    return place.job_name or ("" if place.job is None else str(place.job))


def _short(name: str) -> str:
    from slurm_share.cli import screen

    return screen.shortened(name, MOST)
