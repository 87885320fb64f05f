"""Look for tasks that hang: no output, no CPU time, and nothing computes on their GPU."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from ...node import descendants
from . import task_process
from .running import Running

LOOK_S = 30.0
"""Between two looks, each of which goes through all processes of the node; a quarter of the patience where that is
less."""
GRACE_S = 25.0
"""From SIGTERM to SIGKILL, as at the end of a job."""


class _Seen:
    """What was last seen of a task."""

    def __init__(self, size: int, cpu_s: float, now: float) -> None:
        self.size = size
        self.cpu_s = cpu_s
        self.since = now
        self.is_told = False
        self.told_to_end: float | None = None


class Hangs:
    """The tasks of a launcher that show no sign of work."""

    def __init__(self, patience_s: float, *, is_killing: bool, say: Callable[[str], None]) -> None:
        self._patience_s = patience_s
        self._is_killing = is_killing
        self._say = say
        self._seen: dict[int, _Seen] = {}
        self._next = 0.0

    def look(self, running: Sequence[Running], is_busy: Callable[[Running], bool]) -> None:
        """Look at all running tasks, if it is time; say which of them hang, and end them if that was asked."""
        now = time.monotonic()
        for task in running:
            its = self._seen.get(task.turn.task)
            if its is not None and its.told_to_end is not None and now - its.told_to_end > GRACE_S:
                task_process.signal_group(task.pid, signal.SIGKILL)
        if now < self._next:
            return
        self._next = now + min(LOOK_S, self._patience_s / 4)
        tasks = [task for task in running if task.pid]
        cpu = descendants.read_session_cpu() if tasks else {}
        for task in tasks:
            size, cpu_s = _size(task.log), cpu.get(task.pid, 0.0)
            its = self._seen.get(task.turn.task)
            if its is None or (size, cpu_s) != (its.size, its.cpu_s) or is_busy(task):
                self._seen[task.turn.task] = _Seen(size, cpu_s, now)
            elif now - its.since >= self._patience_s and not its.is_told:
                its.is_told = True
                self._note(task, its, now)

    def _note(self, task: Running, its: _Seen, now: float) -> None:
        what = f"no output, no CPU time and no work on its GPU for {self._patience_s:g} s"
        if not self._is_killing:
            self._say(f"task {task.turn.task} may hang: {what}; --hang=kill would end it")
            return
        its.told_to_end = now
        self._say(f"task {task.turn.task} hangs: {what}; it is told to end (--hang=kill)")
        task_process.signal_group(task.pid, signal.SIGTERM)
        task_process.signal_group(task.pid, signal.SIGCONT)

    def why_ended(self, task: int) -> str:
        """Return why this task was told to end; empty: it was not."""
        its = self._seen.get(task)
        if its is None or its.told_to_end is None:
            return ""
        return f"no output, no CPU time and no work on its GPU for {self._patience_s:g} s; ended by --hang=kill"

    def forget(self, task: int) -> None:
        """Drop what was seen of a task that has ended."""
        self._seen.pop(task, None)


def _size(log: str) -> int:
    try:
        return os.stat(log).st_size  # noqa: PTH116
    except OSError:
        return -1
