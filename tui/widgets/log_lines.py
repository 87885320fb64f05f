"""The lines of a file with any content, drawn as plain text; the end can be followed."""

from __future__ import annotations

import codecs
import re
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from slurm_share.core import terminal

from ..keymap import SCROLL

LINES_MOST = 20_000
LETTERS_MOST = 4_000_000
"""Most characters that are kept of a growing file."""
LINE_MOST = 4000
"""Most characters of a line; the rest is cut with a sign."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[()*+][0-~]|[=>78cDEHM])")
"""Escape sequences of programs that write for a terminal: colours, titles, cursor moves."""


def clean(line: str) -> str:
    """Return a line safe to draw: the last state of a progress bar, without escape sequences; other control characters
    are escaped."""
    line = line.removesuffix("\r")
    line = line.rpartition("\r")[2] or line.replace("\r", "")
    text = _ESCAPES.sub("", line[: 4 * LINE_MOST]).expandtabs(8)
    text = text[:LINE_MOST] + "…" if len(text) > LINE_MOST or len(line) > 4 * LINE_MOST else text
    return terminal.safe(text)


class LogLines(ScrollView, can_focus=True):
    """The lines of a file. Draws only the visible ones."""

    DEFAULT_CSS = "LogLines { background: $background; color: $foreground; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        *SCROLL,
        Binding("left,h", "sideways(-8)", show=False),
        Binding("right,l", "sideways(8)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        """Lines that are safe to draw."""
        self.follows = True
        """Whether the end stays visible as it grows."""
        self._rest = ""
        """The unfinished last line, which is drawn too."""
        self._letters = 0
        self._widest = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def begin(self) -> None:
        self.lines, self._rest, self._letters, self._widest = [], "", 0, 0
        self._decoder.reset()
        self._arrange()

    def add(self, data: bytes) -> None:
        """Add a piece of the file, which may end within a line."""
        text = self._rest + self._decoder.decode(data)
        if self._rest:
            self.lines.pop()
        *whole, self._rest = text.split("\n")
        self._rest = self._rest[-8 * LINE_MOST :]
        # Drop the rest before cleaning: 256 KiB of newlines would take longer than a frame.
        new = [clean(line) for line in (*whole[-LINES_MOST:], *([self._rest] if self._rest else []))]
        self.lines += new
        self._letters += sum(map(len, new))
        self._widest = max([self._widest, *map(cell_len, new)])
        self._bound()
        self._arrange()

    def _bound(self) -> None:
        drop = max(0, len(self.lines) - LINES_MOST)
        if self._letters > LETTERS_MOST:
            self._letters = sum(map(len, self.lines))
            while drop < len(self.lines) - 1 and self._letters > LETTERS_MOST:
                self._letters -= len(self.lines[drop])
                drop += 1
        del self.lines[:drop]

    def _arrange(self) -> None:
        self.virtual_size = Size(self._widest, len(self.lines))
        if self.follows:
            self.scroll_end(animate=False, x_axis=False, force=True, immediate=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        x, top = self.scroll_offset
        text = self.lines[top + y] if top + y < len(self.lines) else ""
        return Strip([Segment(text, self.rich_style)]).crop_extend(x, x + self.size.width, self.rich_style)

    def action_scroll(self, lines: int) -> None:
        """Scroll, and follow the end only at the end."""
        self._go(self.scroll_offset.y + lines)

    def action_page(self, by: int) -> None:
        self._go(self.scroll_offset.y + by * max(1, self.size.height - 1))

    def action_edge(self, end: int) -> None:
        """Scroll to the beginning, or to the end and follow it."""
        self._go(self.max_scroll_y if end else 0)

    def action_sideways(self, by: int) -> None:
        self.scroll_to(x=max(0, self.scroll_offset.x + by), animate=False)

    def _go(self, y: int) -> None:
        self.follows = y >= self.max_scroll_y
        self.scroll_to(y=max(0, y), animate=False)

    def watch_scroll_y(self, old: float, new: float) -> None:
        """Stop following when the user scrolls back; resume at the end."""
        super().watch_scroll_y(old, new)
        if new < old and not self.is_vertical_scroll_end:
            self.follows = False
        elif new > old and self.is_vertical_scroll_end:
            self.follows = True
