"""The screen with the end of a job's or task's output, which is followed."""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Static

from slurm_share.core import terminal
from slurm_share.core.errors import SlurmShareError
from slurm_share.load import text as load_text
from slurm_share.triples import LogFile, Tail, job_output

from .. import clipboard
from ..keymap import LOG, close_with
from ..widgets.glyphs import ARROWS, arrow
from ..widgets.log_lines import LogLines

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
