"""The line that shows a run's progress on a terminal."""

from __future__ import annotations

import os
import sys
import time

from ..triples import Progress, TaskCounts, as_text

LINE_EVERY_S = 30.0
"""Where no terminal shows it, lines are kept."""


class Line:
    """On a terminal one line, written over; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._text, self._at = "", float("-inf")

    def show(self, text: str) -> None:
        """Replace the line by a new one."""
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
    """The launcher's own: on standard error, and nothing where that is no terminal."""

    def __init__(self, total: int, stream: int = 2) -> None:
        self._total = total
        self._stream = stream
        self._watched = os.isatty(stream)
        self._since = time.monotonic()

    def show(self, progress: Progress) -> None:
        """Draw it; the last time with its line end."""
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
