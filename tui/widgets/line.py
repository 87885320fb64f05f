"""A line of the screen made of pieces, some of which can be clicked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from slurm_share.core import terminal
from slurm_share.load import text as load_text


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a line, never markup."""

    text: str
    kind: str = ""
    """Its style: on (selected), strong, dim or problem; empty: plain."""
    target: str = ""
    """The id that a click on it sends; empty: a click does nothing."""


class Line(Widget):
    """A line of the screen. Subclasses implement `lay_out`."""

    COMPONENT_CLASSES = {"line--on", "line--strong", "line--dim", "line--problem"}  # noqa: RUF012
    DEFAULT_CSS = """
    Line {
        height: 1;
        .line--on { text-style: bold reverse; }
        .line--strong { text-style: bold; }
        .line--dim { color: $text-muted; }
        .line--problem { text-style: bold; color: $text-error; }
    }
    """
    ALLOW_SELECT = False

    class Clicked(Message):
        """Sent when a piece with a target was clicked."""

        def __init__(self, line: Line, target: str) -> None:
            self.line, self.target = line, target
            super().__init__()

        @property
        def control(self) -> Line:
            """Return the line, which `@on` compares with a selector."""
            return self.line

    def lay_out(self, width: int) -> Sequence[Piece]:
        """Return the pieces for this width; a longer line is cut."""
        raise NotImplementedError

    def pieces(self) -> list[Piece]:
        """Return the present pieces, cut to the width."""
        left, found = self.size.width, []
        for piece in self.lay_out(left):
            text = load_text.cut(terminal.safe(piece.text), left)
            if text:
                found.append(Piece(text, piece.kind, piece.target))
            left -= cell_len(text)
            if left <= 0:
                break
        return found

    def render(self) -> Text:
        """Return the line as rich text, because textual's own styles (`get_visual_style`) ignore `reverse`."""
        text = Text(no_wrap=True, end="")
        for piece in self.pieces():
            text.append(piece.text, self.get_component_rich_style(f"line--{piece.kind}") if piece.kind else None)
        return text

    def on_click(self, event: events.Click) -> None:
        """Send `Clicked` with the target of the piece under the mouse."""
        end = 0
        for piece in self.pieces():
            end += cell_len(piece.text)
            if event.x < end:
                if piece.target:
                    event.stop()
                    self.post_message(self.Clicked(self, piece.target))
                return


def width_of(pieces: Sequence[Piece]) -> int:
    """Return the width of these pieces, in columns."""
    return sum(cell_len(terminal.safe(piece.text)) for piece in pieces)
