"""Find tasks that hang: no output, no CPU time, and no work on their GPU."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from ...node import descendants
from ...packing import Attempt
from . import task_process

CHECK_S = 30.0
"""Most seconds between two checks, each of which reads all processes of the node."""
GRACE_S = 25.0
"""Seconds from SIGTERM to SIGKILL, as at the end of a job."""


class _LastActivity(Struct, eq=False):
    """The state of a task at the last check."""

    size: int
    cpu_s: float
    since: float
    is_logged: bool = False
    told_to_end: float | None = None


class Hangs:
    """Watches the tasks of a launcher for signs of work."""

    def __init__(self, patience_s: float, *, is_killing: bool, say: Callable[[str], None]) -> None:
        """`patience_s`: how long a task may show no work. `is_killing`: end such tasks, do not only log them."""
        self._patience_s = patience_s
        self._signs = f"no output, no CPU time and no work on its GPU for {patience_s:g} s"
        self._is_killing = is_killing
        self._say = say
        self._seen: dict[int, _LastActivity] = {}
        self._next = 0.0

    def check(self, running: Sequence[Attempt], is_busy: Callable[[Attempt], bool]) -> None:
        """Check all running tasks if a check is due; log tasks that hang, and end them with `is_killing`."""
        now = time.monotonic()
        for task in running:
            seen = self._seen.get(task.task)
            if seen is not None and seen.told_to_end is not None and now - seen.told_to_end > GRACE_S:
                task_process.signal_group(task.pid, signal.SIGKILL)
        if now < self._next:
            return
        self._next = now + min(CHECK_S, self._patience_s / 4)
        tasks = [task for task in running if task.pid]
        cpu = descendants.read_session_cpu() if tasks else {}
        for task in tasks:
            size, cpu_s = _size(task.log), cpu.get(task.pid, 0.0)
            seen = self._seen.get(task.task)
            if seen is None or (size, cpu_s) != (seen.size, seen.cpu_s) or is_busy(task):
                self._seen[task.task] = _LastActivity(size, cpu_s, now)
            elif now - seen.since >= self._patience_s and not seen.is_logged:
                seen.is_logged = True
                self._act(task, seen, now)

    def _act(self, task: Attempt, seen: _LastActivity, now: float) -> None:
        if not self._is_killing:
            self._say(f"task {task.task} may hang: {self._signs}; --hang=kill would end it")
            return
        seen.told_to_end = now
        self._say(f"task {task.task} hangs: {self._signs}; it is told to end (--hang=kill)")
        task_process.tell_to_end(task.pid)

    def why_ended(self, task: int) -> str:
        """Return why a task was told to end; empty: it was not."""
        seen = self._seen.get(task)
        return "" if seen is None or seen.told_to_end is None else f"{self._signs}; ended by --hang=kill"

    def drop(self, task: int) -> None:
        """Drop the state of a task that has ended or was paused."""
        self._seen.pop(task, None)


def _size(log: str) -> int:
    try:
        return os.stat(log).st_size  # noqa: PTH116
    except OSError:
        return -1
