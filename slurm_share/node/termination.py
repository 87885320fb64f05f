"""End leftover processes: SIGTERM, then SIGKILL. Signals never reach a process that reuses the pid."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

from ..core.process import Deadline, end, is_same
from .records import NodeProcess

GRACE_S = 2.0
"""Seconds after SIGTERM to release the GPU in good order; SIGKILL would come in the middle of a kernel."""


def end_processes(processes: Iterable[NodeProcess], deadline: Deadline) -> tuple[NodeProcess, ...]:
    """Send SIGTERM, then SIGKILL; return the processes that still run at the end. All of them got SIGKILL and may need
    more time."""
    left = tuple(processes)
    for number, patience in ((signal.SIGTERM, deadline.at_most(GRACE_S)), (signal.SIGKILL, deadline)):
        for process in left:
            # A stopped process handles SIGTERM only when it continues.
            if end(process.identity, number) and number is signal.SIGTERM:
                end(process.identity, signal.SIGCONT)
        left = _wait(left, patience)
        if not left:
            break
    return left


def _wait(processes: tuple[NodeProcess, ...], deadline: Deadline) -> tuple[NodeProcess, ...]:
    while True:
        processes = tuple(process for process in processes if is_same(process.identity))
        if not processes or deadline.left() == 0:
            return processes
        time.sleep(0.01)


def end_all_of(uid: int, gid: int) -> None:
    """Send SIGKILL to all processes of the user at once, so that none can start a successor before it ends.

    Call it as root, for a user without a job on the node.
    """
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            if os.getuid() == uid != 0:
                os.kill(-1, signal.SIGKILL)  # all processes that this user may signal, except this one
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
