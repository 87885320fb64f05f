"""What every view has: it draws a picture, narrowed to a place, and knows what the cursor is on."""

from __future__ import annotations

from textual.containers import Vertical
from textual.message import Message

from .picture import Picture
from .place import Place, ViewName
from .target import Target
from .wire import Subject


class View(Vertical):
    """Base of the views. The app keeps one of each, shows one at a time, and calls `draw` of that one alone: whenever a
    picture arrives, when it is shown, and when the place changes."""

    view: ViewName

    class Down(Message):
        """Enter, or a double click: go to what the cursor is on."""

        def __init__(self, place: Place) -> None:
            self.place = place
            super().__init__()

    def draw(self, picture: Picture, place: Place) -> None:
        """Show this survey. Quick: everything dear is thought out for visible rows only."""
        raise NotImplementedError

    def below(self) -> Place | None:
        """Where Enter goes from here; None: nowhere."""
        return None

    def subject(self) -> Subject | None:
        """What the one large plot would show: the thing under the cursor."""
        return None

    def node_name(self) -> str:
        """The node under the cursor; empty: it is on none."""
        subject = self.subject()
        return "" if subject is None else subject.node

    def targets(self) -> tuple[Target, ...]:
        """What a command would act on: the marked rows, else the one under the cursor."""
        return ()

    def copied(self) -> tuple[str, ...]:
        """Lines that `copy` puts into the clipboard: of advice the resubmit lines, else the row's names."""
        return ()
