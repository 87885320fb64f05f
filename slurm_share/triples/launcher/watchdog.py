"""A process that ends paused tasks, or ranks, if both loop and guard are killed.

Outside Slurm, and with proctrack/linuxproc, the processes of a killed launcher run on. A paused task would then keep
its GPU memory forever, and ranks would wait for others that are gone. So a run that may pause tasks, or has ranks,
starts a watchdog. It waits on a pipe of which only loop and guard hold the other end, which the kernel closes in any
case. Then it ends the tasks that are paused in the table, or all ranks, as the guard does for a killed loop.

It has a session of its own, is not a child of the guard, and holds none of its files, so nothing that waits for the
launcher's output or locks waits for it. It ends with the run.
"""

from __future__ import annotations

import os
import select
import signal

from ...core.process import identify
from ...node import descendants
from . import leftovers
from .table import Row, Table

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from typing import NoReturn

GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL, and from there until it gives up; for guard and watchdog."""
CLOCK_TICK_S = 0.02
"""Tolerance of start times, seconds: the kernel reports them in clock ticks of 10 ms."""
_FILES = 1 << 20


class Watchdog:
    """The launcher's end of the pipe to the watchdog."""

    def __init__(self, file: int) -> None:
        self._file = file

    def lives(self) -> bool:
        """Return whether the watchdog is alive: it is the only reader of the pipe."""
        if self._file < 0:
            return False
        poll = select.poll()
        poll.register(self._file, 0)  # poll(2) always reports POLLERR, which means that there is no reader
        return not poll.poll(0)

    def close(self) -> None:
        """Close this process's end of the pipe; the watchdog ends when all ends are closed."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def start(table: Table, *, ends_all: bool = False) -> Watchdog | None:
    """Start the watchdog; None: no process can be started. `ends_all`: it ends all tasks, not only paused ones.

    Call it before the loop is forked and before descendants are adopted, so that it does not become our child.
    """
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return None
    if child == 0:
        _begin(table, reading, ends_all=ends_all)
    os.waitpid(child, 0)
    os.close(reading)
    return Watchdog(writing)


def _begin(table: Table, reading: int, *, ends_all: bool) -> NoReturn:
    """Fork again and wait for the end of the pipe. Exits in any case, so that no code of the launcher runs here."""
    try:
        if os.fork() == 0:
            _detach(reading)
            while os.read(reading, 64):
                pass
            end_tasks(table, ends_all=ends_all)
    except BaseException:  # noqa: BLE001  (it has no output to report to)
        pass
    finally:
        os._exit(0)


def _detach(reading: int) -> None:
    """Leave the session, files and folder of the launcher, and block all signals but SIGKILL and SIGSTOP."""
    os.setsid()
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    null = os.open("/dev/null", os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(null, file)
    os.closerange(3, reading)
    os.closerange(reading + 1, _FILES)


def end_tasks(table: Table, *, ends_all: bool) -> None:
    """End the paused tasks, or all: SIGTERM and SIGCONT, SIGKILL after GRACE_S."""
    is_selected = _is_running if ends_all else _is_paused
    rows = [row for row in table.rows() if is_selected(row)]
    leftovers.end_processes(
        lambda: [one.known for row in rows for one in descendants.read_family(row.pid)] or None, GRACE_S
    )


def _is_paused(row: Row) -> bool:
    """Return whether a row's task is paused, and its pid not reused. A session without leader keeps its number."""
    if row.pid <= 1 or not row.paused_ticks:
        return False
    leader = identify(row.pid)
    return leader is None or leader.start_ticks == row.paused_ticks


def _is_running(row: Row) -> bool:
    """Return whether a row's task runs, and its pid was not reused, by start time and variables."""
    if row.pid <= 1 or row.has_ended:
        return False
    one = descendants.read_leader(row.pid)
    return one is not None and one.since_boot >= row.since_boot - CLOCK_TICK_S and row.variables <= one.environ
