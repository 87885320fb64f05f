"""The interface that every view has."""

from __future__ import annotations

from textual.containers import Vertical
from textual.message import Message

from .location import Location, ViewName
from .picture import Picture
from .target import Target
from .wire import Subject


class View(Vertical):
    """Base of the views. The main screen keeps one of each, shows one at a time, and calls `draw` of that one alone:
    when a picture arrives, when the view is shown, and when the location changes."""

    view: ViewName

    class Down(Message):
        """Asks to go to what the cursor is on: Enter or a double click."""

        def __init__(self, location: Location) -> None:
            self.location = location
            super().__init__()

    def draw(self, picture: Picture, location: Location) -> None:
        """Show this survey. Must be quick: compute only what the visible rows need."""
        raise NotImplementedError

    def enter_location(self) -> Location | None:
        """Return where Enter leads from the row under the cursor; None: nowhere."""
        return None

    def subject(self) -> Subject | None:
        """Return what the large plot would show, the thing under the cursor; None: nothing."""
        return None

    def node_name(self) -> str:
        """Return the name of the node under the cursor; empty: there is none."""
        subject = self.subject()
        return "" if subject is None else subject.node

    def targets(self) -> tuple[Target, ...]:
        """Return what an action would apply to: the marked rows, else the row under the cursor."""
        return ()

    def copy_lines(self) -> tuple[str, ...]:
        """Return the lines that `copy` puts into the clipboard: for advice the resubmit lines, else the names of the
        rows."""
        return ()
