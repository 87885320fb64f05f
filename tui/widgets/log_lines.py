"""The lines of a file that may hold anything, drawn as plain text, the end of it followed."""

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

LINES_MOST = 20_000
LETTERS_MOST = 4_000_000
"""Most characters that are kept while a file grows."""
LINE_MOST = 4000
"""Most characters of a line; the rest is left out with a sign."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[()*+][0-~]|[=>78cDEHM])")
"""Colours, titles and moves of the cursor, as programs write them who believe that they have a terminal."""


def clean(line: str) -> str:
    """One line as it is drawn: of a progress bar its last state, without escapes; what is left of control characters is
    written out."""
    line = line.removesuffix("\r")
    line = line.rpartition("\r")[2] or line.replace("\r", "")
    text = _ESCAPES.sub("", line[: 4 * LINE_MOST]).expandtabs(8)
    text = text[:LINE_MOST] + "…" if len(text) > LINE_MOST or len(line) > 4 * LINE_MOST else text
    return terminal.safe(text)


class LogLines(ScrollView, can_focus=True):
    """Only what is on the screen is drawn, however long the file."""

    DEFAULT_CSS = "LogLines { background: $background; color: $foreground; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "up", show=False),
        Binding("down,j", "down", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("left,h", "sideways(-8)", show=False),
        Binding("right,l", "sideways(8)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        """Safe to draw."""
        self.follows = True
        """Whether the end stays in sight as it grows."""
        self._rest = ""
        """The last line, which has no end yet; it is drawn too."""
        self._letters = 0
        self._widest = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def begin(self) -> None:
        """Forget what is there."""
        self.lines, self._rest, self._letters, self._widest = [], "", 0, 0
        self._decoder.reset()
        self._arrange()

    def add(self, data: bytes) -> None:
        """More of the file."""
        text = self._rest + self._decoder.decode(data)
        if self._rest:
            self.lines.pop()
        *whole, self._rest = text.split("\n")
        self._rest = self._rest[-8 * LINE_MOST :]
        # Before they are made clean: 256 KiB of newlines would take longer than a frame.
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
        """One line of the screen."""
        x, top = self.scroll_offset
        style = self.rich_style
        at = top + y
        text = self.lines[at] if at < len(self.lines) else ""
        strip = Strip([Segment(text, style)])
        return strip.crop_extend(x, x + self.size.width, style)

    def action_up(self) -> None:
        """A line up; whoever looks back is not taken to the end again."""
        self._go(self.scroll_offset.y - 1)

    def action_down(self) -> None:
        """A line down."""
        self._go(self.scroll_offset.y + 1)

    def action_page(self, by: int) -> None:
        """By screens."""
        self._go(self.scroll_offset.y + by * max(1, self.size.height - 1))

    def action_edge(self, end: int) -> None:
        """To the begin, or to the end, which is followed from then on."""
        self._go(self.max_scroll_y if end else 0)

    def action_sideways(self, by: int) -> None:
        """Long lines."""
        self.scroll_to(x=max(0, self.scroll_offset.x + by), animate=False)

    def _go(self, y: int) -> None:
        self.follows = y >= self.max_scroll_y
        self.scroll_to(y=max(0, y), animate=False)

    def watch_scroll_y(self, old: float, new: float) -> None:
        """The wheel and the bar look back as well."""
        super().watch_scroll_y(old, new)
        if new < old and not self.is_vertical_scroll_end:
            self.follows = False
        elif new > old and self.is_vertical_scroll_end:
            self.follows = True
