"""Stop running tasks for a while, and let them go on: SIGSTOP and SIGCONT to all that belongs to them.

That a task is stopped is in the table before its first process is: whoever is left when a launcher is killed lets it go
on. The guard does so for a loop, the loop for a guard, and the watchdog (`watchdog`) for both.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection

from ...core.process import end, identify
from ...node import descendants
from .running import Running
from .table import Table
from .watchdog import Watchdog

ROUNDS_MOST = 25
ROUND_S = 0.004
"""Between two rounds of SIGSTOP. What a task forks meanwhile is in the next list; two lists in a row in which all are
stopped end it. A process in the kernel stops when it comes back from there, which is not waited for."""


def stop(leader: int) -> bool:
    """Stop a task: its session, and what has left the session and descends from it. Return whether all of it stands
    still; what does not is in the kernel, or forks faster than it can be stopped."""
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
    """Let all processes of a task go on."""
    for one in descendants.read_family(leader):
        end(one.known, signal.SIGCONT)


class Pauses:
    """The tasks of a loop that are stopped."""

    def __init__(self, table: Table, watchdog: Watchdog | None, say: Callable[[str], None]) -> None:
        """`watchdog` None: nothing is ever stopped."""
        self._table = table
        self._watchdog = watchdog
        self._say = say
        self._stopped: dict[int, Running] = {}
        self._partly: set[int] = set()
        """Those of which not all processes could be stopped yet."""

    @property
    def tasks(self) -> Collection[int]:
        """Return the numbers of the tasks that are stopped."""
        return self._stopped.keys()

    @property
    def is_possible(self) -> bool:
        """Return whether a task may be stopped: the watchdog lives, which would let it go on without us."""
        return self._watchdog is not None and self._watchdog.lives()

    def pause(self, task: Running) -> bool:
        """Stop a task; return False where that may not be done, or it is gone."""
        leader = identify(task.pid) if task.pid > 1 else None
        if not self.is_possible or leader is None or leader.start_ticks is None:
            return False
        self._table.pause(task.worker, leader.start_ticks)
        self._stopped[task.turn.task] = task
        if not stop(task.pid):
            self._partly.add(task.turn.task)
            self._say(f"not all processes of task {task.turn.task} could be stopped at once; it is tried again")
        return True

    def resume(self, number: int) -> None:
        """Let a task go on; nothing happens to one that is not stopped."""
        task = self._stopped.pop(number, None)
        self._partly.discard(number)
        if task is not None:
            go_on(task.pid)
            self._table.pause(task.worker, 0)

    def resume_all(self) -> None:
        """Let all tasks go on."""
        for number in list(self._stopped):
            self.resume(number)

    def look(self) -> None:
        """Stop what somebody else has let go on, as `scontrol resume` does with all processes of a job."""
        for number, task in self._stopped.items():
            if (number in self._partly or not descendants.is_stopped(task.pid)) and stop(task.pid):
                self._partly.discard(number)
