"""End processes that tasks have left behind in process groups and sessions of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable

from ...core.process import Deadline, end
from ...core.records import ProcessIdentity
from ...node import descendants

PAUSE_S = 0.02
ROUND_S = 0.001
"""Seconds between two rounds of SIGKILL. Short, to catch a chain of processes in which each starts the next."""


def reap(ended: Callable[[int, int], None]) -> bool:
    """Collect the children that have ended, with pid and wait status of each; return False if no child is left."""
    try:
        while (waited := os.waitpid(-1, os.WNOHANG))[0]:
            ended(*waited)
    except ChildProcessError:
        return False
    return True


def end_round(processes: Iterable[ProcessIdentity], told: set[int], *, is_time: bool) -> None:
    """Send SIGTERM once to each process that is not in `told` (pids), and SIGKILL to each when it is time."""
    for known in processes:
        if is_time:
            end(known, signal.SIGKILL)  # its children then become ours
        elif known.pid not in told:
            told.add(known.pid)
            if end(known, signal.SIGTERM):
                end(known, signal.SIGCONT)  # a stopped process handles SIGTERM only when it continues


def end_children(grace_s: float, ended: Callable[[int, int], None], asked: Collection[int] = ()) -> None:
    """End all children: SIGTERM once to each, SIGKILL after `grace_s` seconds.

    Gives up after 2 x `grace_s` on a child that hangs in the kernel. `ended`: as for `reap`. `asked`: pids that have
    had their SIGTERM.
    """
    deadline, patience = Deadline.after(grace_s), Deadline.after(2 * grace_s)
    told = set(asked)
    while patience.left() > 0 and reap(ended):
        is_time = deadline.left() == 0
        end_round(descendants.read_children(), told, is_time=is_time)
        time.sleep(ROUND_S if is_time else PAUSE_S)
