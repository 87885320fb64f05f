"""The logs of tasks: one for each task, or one for all tasks of a rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from ...packing import Attempt
from .. import run_folder
from ..records import Run
from . import task_process

TAIL_BYTES = 64 * 1024


class TaskLogs:
    """The open logs of one launcher."""

    def __init__(self, run: Run, *, was_here: bool) -> None:
        """`was_here`: logs of an earlier job may exist and are appended to."""
        self._kind = run.logs
        self._was_here = was_here
        self._open: dict[str, int] = {}
        """Path -> descriptor, for open logs of ranks."""

    def open(self, task: Attempt) -> tuple[int, int]:
        """Open the log of an attempt; return the offset at which its output begins, and the descriptor."""
        if self._kind == "task":
            out = os.open(task.log, task_process.LOG_FLAGS, 0o666)
            if task.attempt == 1 and not self._was_here:
                return 0, out
            size = os.fstat(out).st_size
        else:
            out, size = self._log_of_rank(task.log)
        if self._kind == "rank" or size:
            again = f", attempt {task.attempt}" if task.attempt > 1 else ""
            with contextlib.suppress(OSError):  # a full disk, which the loop reports
                size += os.write(out, f"--- task {task.task}{again}\n".encode())
        return size, out

    def _log_of_rank(self, log: str) -> tuple[int, int]:
        """Return the descriptor of a rank's log and its size. It stays open for later tasks until the next tick."""
        out = self._open.get(log)
        if out is not None:
            found = os.fstat(out)
            if found.st_nlink:
                return out, found.st_size
            os.close(self._open.pop(log))  # the file was removed
        self._open[log] = out = os.open(log, task_process.LOG_FLAGS, 0o666)
        return out, os.fstat(out).st_size

    def close(self, task: Attempt) -> None:
        """Close the log of a task that has started, unless it is the log of a rank."""
        if task.out >= 0 and task.log not in self._open:
            os.close(task.out)
        task.out = -1

    def close_unused(self, starting: Iterable[Attempt]) -> None:
        """Close the logs of ranks, except of tasks that are being started."""
        needed = {task.log for task in starting}
        for log in [one for one in self._open if one not in needed]:
            os.close(self._open.pop(log))


def read_tail(log: str, start: int) -> bytes:
    """Return the end of an attempt's output, which begins at `start`; empty if the log cannot be read."""
    with contextlib.suppress(OSError):
        return run_folder.read_end(log, TAIL_BYTES, start)
    return b""
