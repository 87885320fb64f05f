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
    """on: selected; strong; dim; trouble; empty: plain."""
    hit: str = ""
    """What a click on it means; empty: nothing."""


class Line(Widget):
    """A line of the screen. Subclasses implement `lay_out`."""

    COMPONENT_CLASSES = {"line--on", "line--strong", "line--dim", "line--trouble"}  # noqa: RUF012
    DEFAULT_CSS = """
    Line {
        height: 1;
        .line--on { text-style: bold reverse; }
        .line--strong { text-style: bold; }
        .line--dim { color: $text-muted; }
        .line--trouble { text-style: bold; color: $text-error; }
    }
    """
    ALLOW_SELECT = False

    class Hit(Message):
        """A piece was clicked."""

        def __init__(self, line: Line, hit: str) -> None:
            self.line, self.hit = line, hit
            super().__init__()

        @property
        def control(self) -> Line:
            """The line, for `@on` with a selector."""
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
                found.append(Piece(text, piece.kind, piece.hit))
            left -= cell_len(text)
            if left <= 0:
                break
        return found

    def render(self) -> Text:
        """Return the line as plain text. (`get_visual_style` ignores `reverse`, rich's style does not.)"""
        text = Text(no_wrap=True, end="")
        for piece in self.pieces():
            text.append(piece.text, self.get_component_rich_style(f"line--{piece.kind}") if piece.kind else None)
        return text

    def on_click(self, event: events.Click) -> None:
        """Post which piece was clicked."""
        at = 0
        for piece in self.pieces():
            at += cell_len(piece.text)
            if event.x < at:
                if piece.hit:
                    event.stop()
                    self.post_message(self.Hit(self, piece.hit))
                return


def width_of(pieces: Sequence[Piece]) -> int:
    """Return the width of these pieces, in columns."""
    return sum(cell_len(terminal.safe(piece.text)) for piece in pieces)
