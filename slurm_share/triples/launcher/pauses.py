"""Pause and continue running tasks: SIGSTOP and SIGCONT to all of their processes.

The table records a pause before the first process is stopped. So if a launcher is killed, a process that is left
handles its paused tasks: the guard for a loop, the loop for a guard, the watchdog (`watchdog`) for both.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection

from ...core.process import end, identify
from ...node import descendants, processes
from ...packing import Attempt
from .table import Table
from .watchdog import Watchdog

ROUNDS_MOST = 25
ROUND_S = 0.004
"""Seconds between two rounds of SIGSTOP. Processes that a task forks in the meantime are in the next list. Two lists in
a row without a running process end the rounds. A process inside a system call stops when the call returns."""


def stop(leader: int) -> bool:
    """Stop a task's session and descendants; return False if a process runs on: in a system call, or forked late."""
    quiet = 0
    for _ in range(ROUNDS_MOST):
        awake = [one for one in descendants.read_family(leader) if not one.is_stopped]
        for one in awake:
            end(one.known, signal.SIGSTOP)
        quiet = 0 if awake else quiet + 1
        if quiet == 2:
            return True
        time.sleep(ROUND_S)
    return False


def go_on(leader: int) -> None:
    """Continue all processes of a task."""
    for one in descendants.read_family(leader):
        end(one.known, signal.SIGCONT)


class Pauses:
    """The paused tasks of a loop."""

    def __init__(self, table: Table, watchdog: Watchdog | None, say: Callable[[str], None]) -> None:
        """`watchdog` None: no task can be paused."""
        self._table = table
        self._watchdog = watchdog
        self._say = say
        self._stopped: dict[int, Attempt] = {}
        self._partly: set[int] = set()
        """Tasks of which some processes still run."""

    @property
    def tasks(self) -> Collection[int]:
        return self._stopped.keys()

    @property
    def is_possible(self) -> bool:
        """Return whether tasks may be paused: the watchdog, which handles them if the launcher is killed, is alive."""
        return self._watchdog is not None and self._watchdog.lives()

    def pause(self, task: Attempt) -> bool:
        """Pause a task; return False if tasks may not be paused, or the task is gone."""
        leader = identify(task.pid) if task.pid > 1 else None
        if not self.is_possible or leader is None or leader.start_ticks is None:
            return False
        self._table.pause(task.worker, leader.start_ticks)
        self._stopped[task.task] = task
        if not stop(task.pid):
            self._partly.add(task.task)
            self._say(f"some processes of task {task.task} could not be stopped yet; the launcher tries again")
        return True

    def resume(self, number: int) -> None:
        """Continue a task; do nothing if it is not paused."""
        task = self._stopped.pop(number, None)
        self._partly.discard(number)
        if task is not None:
            go_on(task.pid)
            self._table.pause(task.worker, 0)

    def resume_all(self) -> None:
        for number in list(self._stopped):
            self.resume(number)

    def check(self) -> None:
        """Stop paused tasks again that something else has continued, such as `scontrol resume`."""
        for number, task in self._stopped.items():
            if (number in self._partly or not processes.is_stopped(task.pid)) and stop(task.pid):
                self._partly.discard(number)
