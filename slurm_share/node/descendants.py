"""Processes below this one, and the sessions they are in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from ..core.process import identify, is_gone
from ..core.records import ProcessIdentity

_TICKS = os.sysconf("SC_CLK_TCK")
_ENVIRON_BYTES = 4 << 20
_STOPPED = (b"T", b"t")


class Leader(Struct, frozen=True):
    """A process that leads a session of its own, alive or ended and not waited for."""

    pid: int
    since_boot: float
    """When it was started: seconds on CLOCK_BOOTTIME, in steps of a clock tick."""
    name: str
    """The kernel's name of it, at most 15 characters."""
    environ: frozenset[bytes]
    """NAME=VALUE; empty: it has ended, or hides it."""
    cpus: frozenset[int]
    """The cores that it may use, or might; empty: it is gone."""


class Member(Struct, frozen=True):
    """A living process that belongs to a task."""

    known: ProcessIdentity
    is_stopped: bool
    """By SIGSTOP or a like signal, or by who traces it."""


def read_children(proc: Path = Path("/proc")) -> tuple[ProcessIdentity, ...]:
    """Return our living children, those among them whose parents have ended (PR_SET_CHILD_SUBREAPER)."""
    found = (identify(pid, str(proc)) for pid in _children(proc))
    return tuple(known for known in found if known is not None)


def _children(proc: Path) -> list[int]:
    """Return the pids of our children, from the kernel's list where it has one (CONFIG_PROC_CHILDREN): a look at every
    process of the node takes long enough for a chain of short processes to run away."""
    try:
        lists = [(task / "children").read_bytes() for task in (proc / "self/task").iterdir()]
        return [int(pid) for pids in lists for pid in pids.split()]
    except OSError:
        me = os.getpid()
        return [pid for pid, stat in _stats(proc) if int(stat[1]) == me]


def read_session(leader: int, proc: Path = Path("/proc")) -> tuple[ProcessIdentity, ...]:
    """Return the living processes of a session."""
    found = (identify(pid, str(proc)) for pid, stat in _stats(proc) if int(stat[3]) == leader)
    return tuple(known for known in found if known is not None)


def read_family(leader: int, proc: Path = Path("/proc")) -> tuple[Member, ...]:
    """Return the living processes of a session, and those that descend from them and have left it."""
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
            members.append(Member(known, found[pid][0] in _STOPPED))
    return tuple(members)


def is_stopped(pid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether a process is stopped by a signal, or by who traces it; False where it is gone."""
    try:
        return (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] in _STOPPED
    except (OSError, IndexError):
        return False


def read_session_of(pid: int) -> int:
    """Return the session of a process, which is the pid of its leader; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[3])
    except (OSError, IndexError, ValueError):
        return 0


def read_session_cpu(proc: Path = Path("/proc")) -> dict[int, float]:
    """Return the CPU time of the living processes of each session, in seconds, by the pid of its leader."""
    found: dict[int, float] = {}
    for _, stat in _stats(proc):
        leader = int(stat[3])
        found[leader] = found.get(leader, 0.0) + (int(stat[11]) + int(stat[12])) / _TICKS
    return found


def read_leaders(proc: Path = Path("/proc")) -> tuple[Leader, ...]:
    """Return our children that lead sessions."""
    me = os.getpid()
    return tuple(_leader(pid, stat, proc) for pid, stat in _stats(proc) if int(stat[1]) == me and int(stat[3]) == pid)


def read_leader(pid: int, proc: Path = Path("/proc")) -> Leader | None:
    """Return a process that leads a session, whoever its parent is; None: it is gone, or leads none."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return _leader(pid, stat, proc) if len(stat) >= 20 and int(stat[3]) == pid else None


def _leader(pid: int, stat: list[bytes], proc: Path) -> Leader:
    folder = proc / str(pid)
    return Leader(pid, int(stat[19]) / _TICKS, _name(folder), _environ(folder), _cpus(pid))


def _cpus(pid: int) -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(pid))
    except OSError:
        return frozenset()


def _stats(proc: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield pid, and the fields of /proc/PID/stat from the third on, of every process that can be seen."""
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if len(fields) >= 20:
                yield int(folder.name), fields


def _name(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError:
        return ""


def _environ(folder: Path) -> frozenset[bytes]:
    try:
        with open(folder / "environ", "rb") as file:
            return frozenset(file.read(_ENVIRON_BYTES).split(b"\0"))
    except OSError:
        return frozenset()
