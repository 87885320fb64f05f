"""The processes of this node: number, parent, name and start. A hook reads each of them once.

A user may leave tens of thousands of processes. To read them all takes a good part of a hook's time, and a hook has
several questions about them: which jobs live, which MPS daemons there are, what a user has left.
"""

from __future__ import annotations

import os
import time

Row = tuple[int, bytes, float, float]
"""Parent's pid, the kernel's name of it, when it was started and when it was read, seconds after the kernel's start."""
YOUNG_S = 2.0
"""A process that was younger when it was read is read again: what is forked becomes another program a moment later."""
_TICKS = os.sysconf("SC_CLK_TCK")
_UNKNOWN = float("inf")
_START = 19
"""Of the fields after the name in /proc/PID/stat."""


class ProcessTable:
    """What /proc lists. Each reading has the processes of that moment; a process that is known is not read again."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._rows: dict[int, Row] = {}
        self.files_read = 0
        """Since it was made."""

    def read(self) -> dict[int, Row]:
        """The processes that are there now, by pid; without those that are gone before they can be read."""
        known, found, now = self._rows, {}, time.clock_gettime(time.CLOCK_BOOTTIME)
        for name in os.listdir(self._proc):  # noqa: PTH208  (hooks do without pathlib)
            if not name.isdecimal():
                continue
            row = known.get(int(name))
            if row is None or row[3] - row[2] < YOUNG_S:
                row = self._read(name, now)
            if row is not None:
                found[int(name)] = row
        self._rows = found
        return found

    def _read(self, name: str, now: float) -> Row | None:
        self.files_read += 1
        try:
            fd = os.open(f"{self._proc}/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            head, _, tail = os.read(fd, 4096).rpartition(b")")
        except OSError:
            return None
        finally:
            os.close(fd)
        fields = tail.split()
        if len(fields) < 2:
            return None
        start = int(fields[_START]) / _TICKS if len(fields) > _START else _UNKNOWN
        return int(fields[1]), head.partition(b"(")[2], start, now


_kept: ProcessTable | None = None
"""That of a program which ends soon: a pid may come again, and then is another process."""


def keep() -> None:
    """Let all questions of this program share one table. For a hook, which lives some seconds."""
    global _kept
    _kept = ProcessTable("/proc")


def read(proc: str = "/proc") -> dict[int, Row]:
    """The processes that are there now, by pid."""
    return (ProcessTable(proc) if _kept is None or proc != "/proc" else _kept).read()
