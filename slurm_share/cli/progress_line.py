"""Show a run's progress as a line of text."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from ..packing import Progress
from ..triples import TaskCounts, as_text

LINE_EVERY_S = 30.0
"""Seconds between lines if the output is not a terminal."""


class ProgressLine:
    """Progress on standard output, or on `stream`.

    One line that is overwritten on a terminal, else a new line every LINE_EVERY_S.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._text, self._shown_s = "", float("-inf")

    def show(self, text: str) -> None:
        """Show a new text."""
        now = time.monotonic()
        if self._terminal:
            columns = os.get_terminal_size(self._stream.fileno()).columns or 80  # 0: the terminal has no size set
            self._stream.write(f"\r\x1b[K{text[: columns - 1]}")
        elif text != self._text and now - self._shown_s >= LINE_EVERY_S:
            self._stream.write(f"{text}\n")
            self._shown_s = now
        else:
            return  # keep `_text`, so that a later call shows this text if it has not changed by then
        self._text = text
        self._stream.flush()

    def end(self) -> None:
        """End the line, so that other output starts on a new one."""
        if self._terminal and self._text:
            self._stream.write("\n")
            self._stream.flush()


class LauncherLine:
    """Progress of a launcher on standard error. It prints nothing if that is not a terminal."""

    def __init__(self, total: int, stream: int = 2) -> None:
        self._total = total
        self._stream = stream
        self._is_terminal = os.isatty(stream)
        self._since = time.monotonic()

    def show(self, progress: Progress) -> None:
        """Show the progress; end the line when all is done."""
        if not self._is_terminal:
            return
        ended = progress.tasks_ended
        per_s = ended / max(time.monotonic() - self._since, 0.001) if ended else None
        counts = TaskCounts(
            max(self._total, progress.tasks),
            done=progress.done,
            failed=progress.failed,
            saved=progress.saved,
            running=progress.running,
            per_s=per_s,
            work=progress.work,
            given_up=progress.given_up,
        )
        text = as_text(counts)
        line_end = "\n" if progress.ended else ""
        try:
            width = os.get_terminal_size(self._stream).columns
            os.write(self._stream, f"\r\x1b[K{text[: max(width - 1, 1)]}{line_end}".encode())
        except OSError:
            self._is_terminal = False
