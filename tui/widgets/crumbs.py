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
            Piece(_short(crumb_text(place, before)), "strong" if number == len(self.way) - 1 else "", str(number))
            for number, (before, place) in enumerate(zip((None, *self.way), self.way, strict=False))
        ]
        for first in range(len(names)):
            shown = [Piece(" ")] if first == 0 else [Piece(" "), MORE]
            for number, name in enumerate(names[first:]):
                shown += [BETWEEN, name] if number else [name]
            if width_of(shown) <= width or first == len(names) - 1:
                return shown
        return []


def crumb_text(place: Place, before: Place | None = None) -> str:
    """The last thing that it is narrowed to; of a GPU and a process with the node, where the place before does not
    say it."""
    node = f"{place.node} " if place.node and (before is None or before.node != place.node) else ""
    if place.process is not None:
        return f"{node}process {place.process.pid}"
    if place.gpu:
        return node + (place.gpu_name or place.gpu)
    title = TITLES[place.view]
    thing = place.node or _job(place) or place.user
    if place.view == "advice":
        return f"{title} {thing}".strip()
    return thing or title


def _job(place: Place) -> str:
    return place.job_name or ("" if place.job is None else str(place.job))


def _short(name: str) -> str:
    from slurm_share.core import terminal

    return terminal.shortened(name, MOST)
