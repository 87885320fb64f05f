"""Move tasks to another GPU: signal them to save their state and end, so that they start again elsewhere."""

from __future__ import annotations

import signal
import time

from ...core.process import end
from ...node import descendants
from . import task_process
from .running import Running

SAVE_S = 60.0
"""Seconds that a task has to save its state and end, before SIGTERM."""
GRACE_S = 25.0
"""Seconds from SIGTERM to SIGKILL, as at the end of a job."""


class Moves:
    """The tasks of a loop that are being moved."""

    def __init__(self, checkpoint_signal: int | None) -> None:
        """`checkpoint_signal`: the signal on which tasks save their state and end; None: SIGTERM is sent at once."""
        self._signal = checkpoint_signal
        self._due: dict[int, tuple[Running, float, signal.Signals]] = {}
        """Task number -> the task, when it gets its next signal (monotonic clock, seconds), and that signal."""

    def begin(self, task: Running) -> None:
        """Signal a task to save its state and end."""
        task.is_moving = True
        now = time.monotonic()
        if self._signal is None:
            self._due[task.turn.task] = (task, now, signal.SIGTERM)
            self.check()
        else:
            task_process.signal_group(task.pid, signal.Signals(self._signal))
            self._due[task.turn.task] = (task, now + SAVE_S, signal.SIGTERM)

    def check(self) -> None:
        """Send the signals that are due. Call it about once a second."""
        now = time.monotonic()
        for number, (task, due, signo) in list(self._due.items()):
            if now < due:
                continue
            task_process.signal_group(task.pid, signo)
            if signo is signal.SIGTERM:
                task_process.signal_group(task.pid, signal.SIGCONT)
                self._due[number] = (task, now + GRACE_S, signal.SIGKILL)
            else:
                for known in descendants.read_session(task.pid):
                    end(known, signal.SIGKILL)

    def drop(self, task: int) -> None:
        """Drop a task that has ended."""
        self._due.pop(task, None)
