"""End processes that tasks have left behind in process groups and sessions of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection

from ...core.process import Deadline, end
from ...node import descendants

PAUSE_S = 0.02
ROUND_S = 0.001
"""Seconds between two rounds of SIGKILL. Short, to catch a chain of processes in which each starts the next."""


def end_children(grace_s: float, ended: Callable[[int, int], None], asked: Collection[int] = ()) -> bool:
    """End all children: SIGTERM once to each, SIGKILL after `grace_s` seconds.

    Returns True when wait(2) reports that no child is left; False if one is still there after 2 x `grace_s`, because it
    hangs in the kernel. `ended` is called with pid and wait status of each. `asked`: pids that have had their SIGTERM.
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
                end(known, signal.SIGKILL)  # its children then become ours
            elif known.pid not in told:
                told.add(known.pid)
                if end(known, signal.SIGTERM):
                    end(known, signal.SIGCONT)  # a stopped process handles SIGTERM only when it continues
        time.sleep(ROUND_S if is_time else PAUSE_S)
    return False
