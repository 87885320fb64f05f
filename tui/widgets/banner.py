"""The first line, where figures are simulated: nobody is to take them for a measurement."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_share.load import notes

from ..picture import Picture
from .line import Line, Piece


class Banner(Line):
    """There only while something on the screen is simulated; in llload's words."""

    DEFAULT_CSS = """
    Banner {
        display: none;
        text-style: bold reverse;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def show(self, picture: Picture) -> None:
        """Say what is simulated in this survey."""
        text = notes.banner(picture.survey) or (notes.SIMULATED if picture.is_simulated else "")
        if text != self.text:
            self.text = text
            self.display = bool(text)
            self.refresh()

    def lay_out(self, width: int) -> Sequence[Piece]:
        """The words in the middle of a line that is all of one colour, or all reversed."""
        return [Piece(self.text.center(width))]
