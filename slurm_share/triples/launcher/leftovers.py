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


def end_processes(
    find: Callable[[], Iterable[ProcessIdentity] | None], grace_s: float, asked: Collection[int] = ()
) -> None:
    """End processes: SIGTERM once to each, SIGKILL after `grace_s` seconds.

    Gives up after 2 x `grace_s` on a process that hangs in the kernel. `find` returns those that are left; None: none.
    `asked`: pids that have had their SIGTERM.
    """
    deadline, patience = Deadline.after(grace_s), Deadline.after(2 * grace_s)
    told = set(asked)
    while patience.left() > 0 and (left := find()) is not None:
        is_time = deadline.left() == 0
        for known in left:
            if is_time:
                end(known, signal.SIGKILL)  # its children then become ours
            elif known.pid not in told:
                told.add(known.pid)
                if end(known, signal.SIGTERM):
                    end(known, signal.SIGCONT)  # a stopped process handles SIGTERM only when it continues
        time.sleep(ROUND_S if is_time else PAUSE_S)


def end_children(grace_s: float, ended: Callable[[int, int], None], asked: Collection[int] = ()) -> None:
    """End all children as `end_processes` does. `ended`: as for `reap`."""
    end_processes(lambda: descendants.read_children() if reap(ended) else None, grace_s, asked)
