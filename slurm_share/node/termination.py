"""End leftover processes: SIGTERM, a moment later SIGKILL. Each signal goes to that very process or to none."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

from ..core.process import Deadline, end, is_same
from .records import NodeProcess

GRACE_S = 2.0
"""After SIGTERM: time to let go of the GPU in good order, which a SIGKILL in the middle of a kernel does not."""


def end_processes(processes: Iterable[NodeProcess], deadline: Deadline) -> tuple[NodeProcess, ...]:
    """Send SIGTERM, then SIGKILL, each only to that very process; return those that are still there at the end. All
    of them got SIGKILL; they may need more time to end."""
    left = tuple(processes)
    for number, patience in ((signal.SIGTERM, deadline.at_most(GRACE_S)), (signal.SIGKILL, deadline)):
        for process in left:
            # A stopped process takes SIGTERM only when it goes on.
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
    """Send SIGKILL to every process of the user at once: only so is a process ended that starts its successor before it
    is. To be called as root, for a user who has no job on the node."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            if os.getuid() == uid != 0:
                os.kill(-1, signal.SIGKILL)  # every process that this user may signal, but for this one
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
