"""Processes below this one, and their sessions. Only the launcher asks.

psutil finds children in a list of all processes: with 150 of them and 4 children that takes 2.3 ms instead of 0.18 ms
(python -m timeit -p -s 'import psutil' 'psutil.Process().children()'). It has no session id. With it, reading the CPU
time of all processes takes as long as here, but its import delays the start of every launcher (host.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from ..core.process import identify, is_gone
from ..core.records import ProcessIdentity
from .cgroups import slurp

_TICKS = os.sysconf("SC_CLK_TCK")
_ENVIRON_BYTES = 4 << 20
_STOPPED = (b"T", b"t")


class Leader(Struct, frozen=True):
    """A process that leads its own session; it runs, or has ended and is not reaped."""

    pid: int
    since_boot: float
    """Start time: seconds on CLOCK_BOOTTIME, in steps of a clock tick."""
    name: str
    """The kernel's name of the process, at most 15 characters."""
    environ: frozenset[bytes]
    """NAME=VALUE; empty: the process has ended, or its environment is hidden."""
    cpus: frozenset[int]
    """Cores that it may use; empty: it has ended."""


class DescendantProcess(Struct, frozen=True):
    """A running process of a task."""

    known: ProcessIdentity
    is_stopped: bool
    """Stopped by SIGSTOP or a similar signal, or by a tracer."""


def read_children(proc: Path = Path("/proc")) -> tuple[ProcessIdentity, ...]:
    """Return our running children, including those adopted from parents that ended (PR_SET_CHILD_SUBREAPER)."""
    found = (identify(pid, str(proc)) for pid in _children(proc))
    return tuple(known for known in found if known is not None)


def _children(proc: Path) -> list[int]:
    """Return the pids of our children, from the kernel's list if it has one (CONFIG_PROC_CHILDREN).

    Reading all processes of the node takes so long that a chain of short processes could escape.
    """
    try:
        lists = [(task / "children").read_bytes() for task in (proc / "self/task").iterdir()]
        return [int(pid) for pids in lists for pid in pids.split()]
    except OSError:
        me = os.getpid()
        return [pid for pid, stat in _stats(proc) if int(stat[1]) == me]


def read_session(leader: int, proc: Path = Path("/proc")) -> tuple[ProcessIdentity, ...]:
    """Return the running processes of a session."""
    found = (identify(pid, str(proc)) for pid, stat in _stats(proc) if int(stat[3]) == leader)
    return tuple(known for known in found if known is not None)


def read_family(leader: int, proc: Path = Path("/proc")) -> tuple[DescendantProcess, ...]:
    """Return the running processes of a session, and their descendants that have left it."""
    found = {pid: stat for pid, stat in _stats(proc) if not is_gone(stat)}
    ours = {pid for pid, stat in found.items() if int(stat[3]) == leader}
    children: dict[int, list[int]] = {}
    for pid, stat in found.items():
        children.setdefault(int(stat[1]), []).append(pid)
    new = list(ours)
    while new:
        new = [child for parent in new for child in children.get(parent, ()) if child not in ours]
        ours.update(new)
    members = []
    for pid in sorted(ours):
        known = identify(pid, str(proc))
        if known is not None and known.start_ticks == int(found[pid][19]):
            members.append(DescendantProcess(known, found[pid][0] in _STOPPED))
    return tuple(members)


def read_session_of(pid: int) -> int:
    """Return the session of a process, which is its leader's pid; 0 if it has ended."""
    fields = _stat(Path("/proc"), pid)
    return int(fields[3]) if fields else 0


def read_parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if it has ended."""
    fields = _stat(Path("/proc"), pid)
    return int(fields[1]) if fields else 0


def read_session_cpu(proc: Path = Path("/proc")) -> dict[int, float]:
    """Return the CPU time in seconds of the running processes of each session, by the leader's pid."""
    found: dict[int, float] = {}
    for _, stat in _stats(proc):
        leader = int(stat[3])
        found[leader] = found.get(leader, 0.0) + (int(stat[11]) + int(stat[12])) / _TICKS
    return found


def read_leaders(proc: Path = Path("/proc")) -> tuple[Leader, ...]:
    """Return our children that lead a session."""
    me = os.getpid()
    return tuple(_leader(pid, stat, proc) for pid, stat in _stats(proc) if int(stat[1]) == me and int(stat[3]) == pid)


def read_leader(pid: int, proc: Path = Path("/proc")) -> Leader | None:
    """Return a session leader, whoever its parent is; None: it has ended, or leads no session."""
    stat = _stat(proc, pid)
    return _leader(pid, stat, proc) if stat and int(stat[3]) == pid else None


def _leader(pid: int, stat: list[bytes], proc: Path) -> Leader:
    name = slurp(proc / str(pid) / "comm").decode("utf-8", "replace").rstrip("\n")
    try:
        cpus = frozenset(os.sched_getaffinity(pid))
    except OSError:
        cpus = frozenset()
    return Leader(pid, int(stat[19]) / _TICKS, name, _environ(proc / str(pid)), cpus)


def _stats(proc: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the pid and `_stat` of all visible processes."""
    for name in os.listdir(proc):  # noqa: PTH208  (a Path for each process takes time)
        if name.isdigit() and (fields := _stat(proc, name)):
            yield int(name), fields


def _stat(proc: Path, pid: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third on; empty: it has ended."""
    fields = slurp(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
    return fields if len(fields) >= 20 else []


def _environ(folder: Path) -> frozenset[bytes]:
    try:
        with open(folder / "environ", "rb") as file:
            return frozenset(file.read(_ENVIRON_BYTES).split(b"\0"))
    except OSError:
        return frozenset()
