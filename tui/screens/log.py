"""The screen with the end of a job's or task's output, which is followed."""

from __future__ import annotations

import codecs
import contextlib
import re
import shlex
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from slurm_share.core import terminal
from slurm_share.core.errors import SlurmShareError
from slurm_share.load import text as load_text
from slurm_share.triples import LogFile, Tail, job_output

from .. import clipboard
from ..keymap import LOG, SCROLL, close_with
from ..widgets.glyphs import ARROWS, arrow

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


READ_S = 1.0


class LogScreen(Screen[None]):
    """One of several files. A thread reads it, since a file system may hang."""

    DEFAULT_CSS = """
    LogScreen { background: $background; color: $foreground; }
    #log-title { height: 1; width: 100%; background: $panel; text-style: bold; }
    #log-note { height: auto; max-height: 3; width: 100%; text-style: bold; color: $text-warning; display: none; }
    #log-keys { height: 1; width: 100%; background: $panel; color: $text-muted; }
    LogLines { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*LOG]

    class Came(Message):
        """A piece of a file, or why it cannot be read."""

        def __init__(self, turn: int, piece: job_output.FilePart | None, why: str = "") -> None:
            self.turn, self.piece, self.why = turn, piece, why
            super().__init__()

    def __init__(
        self,
        files: Sequence[LogFile],
        open_tail: Callable[[LogFile], Tail],
        read_s: float = READ_S,
        *,
        closes: Iterable[str] = (),
    ) -> None:
        """`files`: at least one. `open_tail` raises SlurmShareError if a file must not be shown. `closes`: further keys
        that close the screen."""
        super().__init__()
        close_with(self._bindings, closes)
        self.files = tuple(files)
        self.at = 0
        self._open_tail, self._read_s = open_tail, read_s
        self._turn = 0
        self._over = threading.Event()

    @property
    def file(self) -> LogFile:
        return self.files[self.at]

    def compose(self) -> ComposeResult:
        yield Static(id="log-title", markup=False)
        yield Static(id="log-note", markup=False)
        yield LogLines()
        yield Static(id="log-keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(LogLines).focus()
        self._begin()

    def on_unmount(self) -> None:
        self._over.set()

    def on_resize(self) -> None:
        self._write()

    def _begin(self) -> None:
        self._over.set()
        self._over = threading.Event()
        self._turn += 1
        self.query_one(LogLines).begin()
        self._note("")
        self._write()
        args = (self._turn, self.file, self._over)
        threading.Thread(target=self._read, args=args, name="log", daemon=True).start()

    def _read(self, turn: int, file: LogFile, over: threading.Event) -> None:
        """Post what is read until `over` is set; runs in a thread."""
        tail: Tail | None = None
        last = ""
        try:
            while not over.is_set():
                try:
                    tail = tail or self._open_tail(file)
                    piece = tail.read()
                    if piece.data or piece.anew or last:
                        self._tell(self.Came(turn, piece))
                    last = ""
                except SlurmShareError as error:
                    if str(error) != last:
                        last = str(error)
                        self._tell(self.Came(turn, None, last))
                over.wait(self._read_s)
        finally:
            if tail is not None:
                tail.close()

    def _tell(self, came: Came) -> None:
        # An app that has just ended has no event loop.
        with contextlib.suppress(RuntimeError):
            self.post_message(came)

    def on_log_screen_came(self, message: Came) -> None:
        """Draw a piece, unless another file is on the screen by now."""
        message.stop()
        if message.turn == self._turn and message.piece is None:
            self._note(message.why)
        elif message.turn == self._turn and message.piece is not None:
            lines = self.query_one(LogLines)
            if message.piece.anew:
                lines.begin()
            lines.add(message.piece.data)
            self._note("earlier output is not shown" if message.piece.left_out else "")
            self._write()

    def _note(self, text: str) -> None:
        note = self.query_one("#log-note", Static)
        note.update(terminal.safe(text))
        note.display = bool(text)

    def _write(self) -> None:
        many = f" ({self.at + 1} of {len(self.files)})" if len(self.files) > 1 else ""
        title = f" {terminal.safe(self.file.title)}{many}: {terminal.safe(self.file.path)}"
        self.query_one("#log-title", Static).update(load_text.cut(title, max(1, self.size.width)))
        follows = "on" if self.query_one(LogLines).follows else "off"
        arrows = " ".join(map(arrow, ARROWS))
        other = "Tab other file  " if len(self.files) > 1 else ""
        keys = f" Esc back  f follow: {follows}  {other}{arrows} scroll  y copy path"
        self.query_one("#log-keys", Static).update(load_text.cut(keys, max(1, self.size.width)))

    def action_follow(self) -> None:
        lines = self.query_one(LogLines)
        lines.follows = not lines.follows
        if lines.follows:
            lines.action_edge(1)
        self._write()

    def action_other(self, by: int) -> None:
        if len(self.files) > 1:
            self.at = (self.at + by) % len(self.files)
            self._begin()

    def action_copy(self) -> None:
        """Copy the path, quoted for a shell and with control characters escaped."""
        clipboard.put(self.app, [shlex.quote(terminal.safe(self.file.path))])
        self.app.notify("path copied", markup=False)
