"""The line with the views, and whose dashboard of which cluster this is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..picture import Picture
from ..place import TITLES, ViewName
from .line import Line, Piece, width_of

TABS: tuple[ViewName, ...] = ("nodes", "users", "jobs", "gpus", "node", "advice")
PROGRAM = "llload-tui"
PARENT: dict[ViewName, ViewName] = {"gpu": "gpus", "process": "gpus"}
"""Views that have no tab -> the tab that is lit while one is there."""


class Tabs(Line):
    """Click one, or press its key."""

    def __init__(self, keys: Mapping[ViewName, str]) -> None:
        """`keys`: how the key of each view is written."""
        super().__init__()
        self.keys = keys
        self.at: ViewName = "nodes"
        self.who: tuple[str, ...] = (PROGRAM,)
        """Program, cluster, user: where it is narrow the first ones give way."""

    def show(self, view: ViewName, picture: Picture | None) -> None:
        """Where one is, and in whose look."""
        who: tuple[str, ...] = (PROGRAM,)
        if picture is not None:
            survey = picture.survey
            who = (PROGRAM, survey.cluster, "all users" if survey.everybody else survey.user)
        at = PARENT.get(view, view)
        if (at, who) != (self.at, self.who):
            self.at, self.who = at, who
            self.refresh()

    def lay_out(self, width: int) -> Sequence[Piece]:
        """All tabs; where it is narrow the keys, and the name of one alone. Then as much of whose it is as fits."""
        tabs = [Piece(f" {self.keys[view]} {TITLES[view]} ", "on" if view == self.at else "", view) for view in TABS]
        if width_of(tabs) > width:
            tabs = [
                Piece(f" {self.keys[view]} {TITLES[view]} ", "on", view)
                if view == self.at
                else Piece(f" {self.keys[view]}", "", view)
                for view in TABS
            ]
        for first in range(len(self.who)):
            who = Piece("  ".join(filter(None, self.who[first:])) + " ", "dim")
            gap = width - width_of([*tabs, who])
            if gap > 1:
                return [*tabs, Piece(" " * gap), who]
        return tabs
