"""The first line of the screen while figures are simulated, so that they are not taken for measurements."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_share.load import notes

from ..picture import Picture
from .line import Line, Piece


class Banner(Line):
    """Shown only while something on the screen is simulated."""

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
        """Show what is simulated in this survey, as llload says it."""
        text = notes.banner(picture.survey) or (notes.SIMULATED if picture.is_simulated else "")
        if text != self.text:
            self.text = text
            self.display = bool(text)
            self.refresh()

    def lay_out(self, width: int) -> Sequence[Piece]:
        return [Piece(self.text.center(width))]
