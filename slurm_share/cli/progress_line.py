"""Show a run's progress as a line of text."""

from __future__ import annotations

import os
import sys
import time

from ..triples import Progress, TaskCounts, as_text

LINE_EVERY_S = 30.0
"""Seconds between lines if the output is no terminal."""


class Line:
    """Progress on standard output: one line that is overwritten on a terminal, else a new line every LINE_EVERY_S."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._text, self._at = "", float("-inf")

    def show(self, text: str) -> None:
        """Show a new text."""
        now = time.monotonic()
        if self._terminal:
            columns = os.get_terminal_size(sys.stdout.fileno()).columns or 80  # 0: a terminal that nobody gave a size
            sys.stdout.write(f"\r\x1b[K{text[: columns - 1]}")
        elif text != self._text and now - self._at >= LINE_EVERY_S:
            sys.stdout.write(f"{text}\n")
            self._at = now
        else:
            return  # `_text` is what was shown last: what stays as it is now is still shown later
        self._text = text
        sys.stdout.flush()

    def end(self) -> None:
        """End the line, so that other output starts on a new one."""
        if self._terminal and self._text:
            sys.stdout.write("\n")
            sys.stdout.flush()


class LauncherLine:
    """Progress of a launcher on standard error; nothing if that is no terminal."""

    def __init__(self, total: int, stream: int = 2) -> None:
        self._total = total
        self._stream = stream
        self._watched = os.isatty(stream)
        self._since = time.monotonic()

    def show(self, progress: Progress) -> None:
        """Show the progress; end the line when all is done."""
        if not self._watched:
            return
        over = progress.done + progress.failed
        task_counts = TaskCounts(self._total, progress.done, progress.failed, progress.running, work=progress.work)
        text = as_text(task_counts, over / max(time.monotonic() - self._since, 0.001) if over else None)
        end = "\n" if progress.ended else ""
        try:
            width = os.get_terminal_size(self._stream).columns
            os.write(self._stream, f"\r\x1b[K{text[: max(width - 1, 1)]}{end}".encode())
        except OSError:
            self._watched = False
