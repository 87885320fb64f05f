"""The line with the views, the cluster and the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..location import TITLES, ViewName
from ..picture import Picture
from .line import Line, Piece, width_of

TABS: tuple[ViewName, ...] = ("nodes", "users", "jobs", "gpus", "node", "advice")
PROGRAM = "llload-tui"
PARENT: dict[ViewName, ViewName] = {"gpu": "gpus", "process": "gpus"}
"""The tab that is lit for a view without one."""


class Tabs(Line):
    """The views, which can be clicked or chosen by key."""

    def __init__(self, keys: Mapping[ViewName, str]) -> None:
        """`keys`: the key of each view, as text."""
        super().__init__()
        self.keys = keys
        self.at: ViewName = "nodes"
        self.who: tuple[str, ...] = (PROGRAM,)
        """Program, cluster, user; the first are left out where it is narrow."""

    def show(self, view: ViewName, picture: Picture | None) -> None:
        """Show this view as the current one, and whose survey this is."""
        who: tuple[str, ...] = (PROGRAM,)
        if picture is not None:
            survey = picture.survey
            who = (PROGRAM, survey.cluster, "all users" if survey.everybody else survey.user)
        at = PARENT.get(view, view)
        if (at, who) != (self.at, self.who):
            self.at, self.who = at, who
            self.refresh()

    def lay_out(self, width: int) -> Sequence[Piece]:
        """Return all tabs, in a narrow terminal only the keys and the name of the current one; then the cluster and the
        user, as far as they fit."""
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
