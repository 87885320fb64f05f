"""A process that ends tasks which nobody else can: loop and guard were killed.

Outside Slurm, and where Slurm finds a job's processes by their parents, nobody ends the processes of a launcher that is
killed. A task that is stopped then would keep its GPU's memory for ever, and a rank would wait for others that are
gone. So a run that may pause tasks, or has ranks, has this process beside it. It does nothing but wait until the other
end of a pipe is closed, which only the loop and the guard hold: the kernel closes it, however they end. Then it ends
the tasks that the table has as paused, or all ranks, as the guard does for a loop that was killed.

It is a session of its own, no child of the guard, and has none of its files: it holds up nobody who waits for the
launcher's output or its locks. It ends with the run, since the pipe does.
"""

from __future__ import annotations

import os
import select
import signal

from ...core.process import Deadline, end, identify
from ...node import descendants
from ..records import ENV_ATTEMPT, ENV_TASK
from .table import Row, Table

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from typing import NoReturn

GRACE_S = 5.0
"""From SIGTERM to SIGKILL, and for as long again: as the guard gives the tasks of a loop that was killed."""
ROUND_S = 0.02
CLOCK_TICK_S = 0.02
"""The kernel tells a process's start in clock ticks of 10 ms."""
_FILES = 1 << 20


class Watchdog:
    """The launcher's end of the pipe."""

    def __init__(self, file: int) -> None:
        self._file = file

    def lives(self) -> bool:
        """Return whether the process is there: nobody else reads the pipe."""
        if self._file < 0:
            return False
        poll = select.poll()
        poll.register(self._file, 0)  # POLLERR, which comes without being asked for: the reader is gone
        return not poll.poll(0)

    def close(self) -> None:
        """Let it end, as far as this process is concerned."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def start(table: Table, *, ends_all: bool = False) -> Watchdog | None:
    """Start the process; None where there can be no further process. Call it before the loop is forked, and before
    descendants are adopted, so that it is nobody's child. `ends_all`: it ends all tasks, not the paused ones alone."""
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
    """Fork once more and wait there. No code of the launcher may run in either process, whatever happens."""
    try:
        if os.fork() == 0:
            _become_nobodys(reading)
            while os.read(reading, 64):
                pass
            end_tasks(table, ends_all=ends_all)
    except BaseException:  # noqa: BLE001  (nobody is left to read what it says)
        pass
    finally:
        os._exit(0)


def _become_nobodys(reading: int) -> None:
    """Leave the session, the files and the folder of the launcher, and heed no signal but SIGKILL."""
    os.setsid()
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    null = os.open("/dev/null", os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(null, file)
    os.closerange(3, reading)
    os.closerange(reading + 1, _FILES)


def end_tasks(table: Table, *, ends_all: bool) -> None:
    """End the tasks that are paused, or all: SIGTERM, which they take when they go on, then SIGKILL."""
    is_its = _is_running_its if ends_all else _is_its
    rows = [row for row in table.rows() if is_its(row)]
    told: set[int] = set()
    deadline, patience = Deadline.after(GRACE_S), Deadline.after(2 * GRACE_S)
    while patience.left() > 0:
        left = [one.known for row in rows for one in descendants.read_family(row.pid)]
        if not left:
            return
        for known in left:
            if deadline.left() == 0:
                end(known, signal.SIGKILL)
            elif known.pid not in told:
                told.add(known.pid)
                end(known, signal.SIGTERM)
                end(known, signal.SIGCONT)
        select.select([], [], [], ROUND_S)


def _is_its(row: Row) -> bool:
    """Return whether a row's pid is still its task's.

    Where the leader is gone, what is left of its session is the task's: the kernel gives its number to nobody else
    before the session is gone.
    """
    if row.pid <= 1 or not row.paused_ticks:
        return False
    leader = identify(row.pid)
    return leader is None or leader.start_ticks == row.paused_ticks


def _is_running_its(row: Row) -> bool:
    """Return whether a row's pid is its task's, by when that began and by its variables."""
    if row.pid <= 1 or (row.code, row.signal) != (None, None):
        return False
    one = descendants.read_leader(row.pid)
    wanted = {f"{ENV_TASK}={row.task}".encode(), f"{ENV_ATTEMPT}={row.attempt}".encode()}
    return one is not None and one.since_boot >= row.since_boot - CLOCK_TICK_S and wanted <= one.environ
