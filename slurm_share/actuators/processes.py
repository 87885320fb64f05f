"""Ends leftover processes: asks, waits a moment, then insists. Never one whose identity is not the one decided on."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable

from ..process import Deadline, end, is_same
from ..records import NodeProcess

GRACE_S = 2.0
"""After SIGTERM: time to let go of the GPU in good order, which a SIGKILL in the middle of a kernel does not."""


def end_processes(processes: Iterable[NodeProcess], deadline: Deadline) -> tuple[NodeProcess, ...]:
    """SIGTERM, then SIGKILL, each only to that very process; answers with those that are still there at the end."""
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
