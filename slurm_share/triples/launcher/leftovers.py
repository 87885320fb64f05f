"""End what tasks have left behind: processes in groups and sessions of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection

from ...core.process import Deadline, end
from ...node import descendants

PAUSE_S = 0.02
ROUND_S = 0.001
"""Between two rounds of SIGKILL: a chain of processes that each start the next is to be overtaken."""


def end_children(grace_s: float, ended: Callable[[int, int], None], asked: Collection[int] = ()) -> bool:
    """End all children: SIGTERM once to each, SIGKILL after `grace_s` seconds. False where
    one outlives that for as long again: it is in the kernel, where no signal reaches it.

    `ended` is told of each by pid and wait status. `asked` are those that have had their SIGTERM. That none is left is
    the kernel's word (wait(2) has nobody to wait for) and not that of one look at a list of processes.
    """
    deadline, patience = Deadline.after(grace_s), Deadline.after(2 * grace_s)
    told = set(asked)
    while patience.left() > 0:
        try:
            while (waited := os.waitpid(-1, os.WNOHANG))[0]:
                ended(*waited)
        except ChildProcessError:
            return True
        is_time = deadline.left() == 0
        for known in descendants.read_children():
            if is_time:
                end(known, signal.SIGKILL)  # and what it has started is our child then
            elif known.pid not in told:
                told.add(known.pid)
                if end(known, signal.SIGTERM):
                    end(known, signal.SIGCONT)  # a stopped process takes it when it goes on
        time.sleep(ROUND_S if is_time else PAUSE_S)
    return False
