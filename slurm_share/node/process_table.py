"""The processes of this node: pid, parent, name and start time. A hook reads each process once.

A user may leave tens of thousands of processes, and reading them all takes a large part of a hook's time. A hook asks
several questions about them: which jobs run, which MPS daemons there are, what a user has left. Most questions concern
root, system users and one or two other users. The owners of a process's folder and of the files in it tell the user at
a quarter of the cost of reading a file (task_dump_owner in fs/proc/base.c):

* The folder belongs to the effective uid of the process.
* So do the files, but they belong to root if the process may not dump core: it changed its uid after its program began,
  or asked for that (PR_SET_DUMPABLE). Files of an ordinary user belong to a process that was never root's; a slurmstepd
  that acts as a job's user for a moment has files of root's.

psutil has no such short cut, and importing it takes longer than a hook (host.py).
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # as mypy knows it; hooks load this module
if TYPE_CHECKING:
    from collections.abc import Collection

Row = tuple[int, bytes, float, float]
"""Parent's pid, kernel's name, start time and time of reading; times in seconds since boot."""
YOUNG_S = 2.0
"""Processes that were younger than this when they were read are read again: after a fork, another program follows."""
NOT_ASKED = -1
STEPD = "slurmstepd"
SLURMD_NAMES = (b"slurmd", b"slurmd-wlm")
"""The kernel's names of slurmd; Debian's daemon has the second one."""
FIRST_ORDINARY_UID = 1000
"""Same value as in share/rules/leftovers.py."""
_TICKS = os.sysconf("SC_CLK_TCK")
_UNKNOWN = float("inf")
_START = 19
"""Index of the start time among the fields after the name in /proc/PID/stat."""


class ProcessTable:
    """The processes in /proc. Each reading returns those of that moment, without reading known processes again."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._rows: dict[int, Row] = {}
        self._others: dict[int, int] = {}
        """Uid by pid of processes of ordinary users that no one asked for; NOT_ASKED: the user was not looked up."""
        self._knows_owners = _tells_owners(proc)
        self.files_read = 0
        """Files read since this table was made."""

    def read(self, uids: Collection[int] | None = None) -> dict[int, Row]:
        """Return the current processes by pid, without those that end before they are read.

        uids: only processes whose effective uid is one of these, root or a system user's are needed, and any
        slurmstepd. None: all. The result may contain others, too.
        """
        known, found, now = self._rows, {}, time.clock_gettime(time.CLOCK_BOOTTIME)
        others: dict[int, int] = {}
        wanted = uids if self._knows_owners else None
        for name in os.listdir(self._proc):  # noqa: PTH208  (hooks do without pathlib)
            if not name.isdecimal():
                continue
            pid = int(name)
            row = known.get(pid)
            if row is None or row[3] - row[2] < YOUNG_S:
                if wanted is not None:
                    owner = self._others.get(pid)
                    if owner is None or (owner == NOT_ASKED and wanted):
                        owner = self._ordinary_owner(name, is_asked=bool(wanted))
                    if owner is not None and owner not in wanted:
                        others[pid] = owner
                        continue
                row = self._read(name, now)
            if row is not None:
                found[pid] = row
        self._rows, self._others = found, others
        return found

    def _ordinary_owner(self, name: str, *, is_asked: bool) -> int | None:
        """Return the ordinary user as whom a process runs; None: root or a system user, or the process has ended.

        is_asked: whether the caller needs to know which user.
        """
        process = f"{self._proc}/{name}"
        try:
            is_ordinary = os.stat(f"{process}/stat").st_uid >= FIRST_ORDINARY_UID  # noqa: PTH116
            if is_ordinary and not is_asked:
                return NOT_ASKED
            effective = os.stat(process).st_uid  # noqa: PTH116
        except OSError:
            return None
        return effective if is_ordinary or (effective >= FIRST_ORDINARY_UID and not _is_stepd(process)) else None

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
"""The table shared in this program (`keep`). Only for programs that end soon, because pids are reused."""


def keep() -> None:
    """Let all callers in this program share one table. For hooks, which run for seconds."""
    global _kept
    _kept = ProcessTable("/proc")


def read(proc: str = "/proc", uids: Collection[int] | None = None) -> dict[int, Row]:
    """Return the current processes by pid; `uids` as for ProcessTable.read."""
    return (ProcessTable(proc) if _kept is None or proc != "/proc" else _kept).read(uids)


def read_children(parents: Collection[int], proc: str = "/proc") -> dict[int, list[int]]:
    """Return the children of each process that has any, from the kernel's list if it has one (CONFIG_PROC_CHILDREN),
    else by reading all processes."""
    found: dict[int, list[int]] = {}
    if os.access(f"{proc}/thread-self/children", os.R_OK):
        for parent in parents:
            children = [pid for thread in _names(f"{proc}/{parent}/task") for pid in _children(proc, parent, thread)]
            if children:
                found[parent] = children
        return found
    for pid, row in read(proc).items():
        if row[0] in parents:
            found.setdefault(row[0], []).append(pid)
    return found


def _children(proc: str, parent: int, thread: str) -> list[int]:
    try:
        with open(f"{proc}/{parent}/task/{thread}/children", "rb") as file:
            return [int(number) for number in file.read().split()]
    except OSError:
        return []  # it ends at this moment


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def _is_stepd(process: str) -> bool:
    """Return whether a process may be root's slurmstepd acting as a job's user for a moment.

    Any user can forbid core dumps of a process and give it that name. The program file excludes most of these, the real
    uid the rest.
    """
    try:
        if not os.readlink(f"{process}/exe").rpartition("/")[2].startswith(STEPD):  # noqa: PTH115
            return False
        with open(f"{process}/status", "rb") as file:
            return any(line.startswith(b"Uid:\t0\t") for line in file.read().splitlines())
    except OSError:
        return True


def _tells_owners(proc: str) -> bool:
    """Return whether the owners of files tell slurmstepd from a user's process. They do not if processes that changed
    their uid may dump core (fs.suid_dumpable is 1, for debugging; proc(5))."""
    try:
        if os.stat(proc).st_uid != 0:  # noqa: PTH116  (that of a container of a user's)
            return False
        with open(f"{proc}/sys/fs/suid_dumpable", "rb") as file:
            return file.read().strip() != b"1"
    except OSError:
        return False
