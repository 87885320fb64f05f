"""The line with the current location and the path to it."""

from __future__ import annotations

from collections.abc import Sequence

from ..location import TITLES, Location
from .line import Line, Piece, width_of

BETWEEN = Piece(" > ", "dim")
MORE = Piece("… > ", "dim")
MOST = 40
"""Most columns of one name."""


class Crumbs(Line):
    """The path; a click on a part goes back to it."""

    def __init__(self) -> None:
        super().__init__()
        self.path: tuple[Location, ...] = ()

    def show(self, path: tuple[Location, ...]) -> None:
        if path != self.path:
            self.path = path
            self.refresh()

    def lay_out(self, width: int) -> Sequence[Piece]:
        """Return the path; the first names are left out where it does not fit."""
        names = [
            Piece(_short(crumb_text(location, before)), "strong" if number == len(self.path) - 1 else "", str(number))
            for number, (before, location) in enumerate(zip((None, *self.path), self.path, strict=False))
        ]
        for first in range(len(names)):
            shown = [Piece(" ")] if first == 0 else [Piece(" "), MORE]
            for number, name in enumerate(names[first:]):
                shown += [BETWEEN, name] if number else [name]
            if width_of(shown) <= width or first == len(names) - 1:
                return shown
        return []


def crumb_text(location: Location, before: Location | None = None) -> str:
    """Return the name of a location, for a GPU and a process with the node, unless `before` says it."""
    node = f"{location.node} " if location.node and (before is None or before.node != location.node) else ""
    if location.process is not None:
        return f"{node}process {location.process.pid}"
    if location.gpu:
        return node + (location.gpu_name or location.gpu)
    title = TITLES[location.view]
    thing = location.node or _job(location) or location.user
    if location.view == "advice":
        return f"{title} {thing}".strip()
    return thing or title


def _job(location: Location) -> str:
    return location.job_name or ("" if location.job is None else str(location.job))


def _short(name: str) -> str:
    from slurm_share.core import terminal

    return terminal.shortened(name, MOST)
