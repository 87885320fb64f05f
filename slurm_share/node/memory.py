"""Read the memory of this process's cgroup: limit, use, and out-of-memory kills. psutil knows no cgroups.

The machine's memory is read here as well: psutil.virtual_memory() takes 29 us instead of 40 us, but importing psutil
delays the start of every launcher (host.py).
"""

from __future__ import annotations

from pathlib import Path

from ..core.patterns import pattern
from . import cgroups
from .cgroups import slurp
from .records import MemoryLimit, MemoryUse

_MIB = 1024 * 1024
_MEMINFO = pattern(rb"(?m)^(MemTotal|MemAvailable):\s+([0-9]+)")
_UNLIMITED_V1 = 1 << 60
"""cgroup v1 writes no limit as the largest multiple of a page below 2^63."""


class HostMemory:
    """The memory cgroup of this process and its children: cgroup v2, or the memory controller of v1."""

    def __init__(self, proc: Path = Path("/proc"), mounts: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._folders, self._is_v2 = _find(proc, mounts)

    def kills(self) -> int:
        """Return the number of out-of-memory kills in this cgroup since it was made; 0 if unknown."""
        if not self._folders:
            return 0
        file = "memory.events" if self._is_v2 else "memory.oom_control"
        return cgroups.keyed(self._folders[0] / file).get(b"oom_kill", 0)

    def used_mib(self) -> int | None:
        """Return the memory that the processes of this cgroup use, without cached files; None: it has no limit, or is
        not known."""
        used = self._limit(self._folders[0]) if self._folders else None
        return None if used is None else used.used_mib

    def cpu_s(self) -> float | None:
        """Return the CPU time of all processes of this cgroup since it was made; None: cgroup v1, or not known."""
        usage = cgroups.keyed(self._folders[0] / "cpu.stat").get(b"usage_usec") if self._folders else None
        return None if usage is None else usage / 1e6

    def room(self) -> MemoryUse | None:
        """Return the nearest limit, or the machine's memory if less of that is left; None if neither is known."""
        rooms = [room for folder in self._folders if (room := self._limit(folder)) is not None]
        machine = self._machine()
        if machine is not None:
            rooms.append(machine)
        return min(rooms, key=lambda room: room.total_mib - room.used_mib, default=None)

    def limit(self) -> MemoryLimit | None:
        """Return the lowest limit of our cgroup and its parents, or the machine's memory; None: neither is known."""
        found = [MemoryLimit(one.total_mib) for folder in self._folders if (one := self._limit(folder)) is not None]
        machine = self._machine()
        if machine is not None:
            found.append(MemoryLimit(machine.total_mib, is_machine=True))
        return min(found, key=lambda one: one.mib, default=None)

    def _limit(self, folder: Path) -> MemoryUse | None:
        limit, used = (
            ("memory.max", "memory.current") if self._is_v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        most, now = slurp(folder / limit).strip(), slurp(folder / used).strip()
        if not most.isdigit() or not now.isdigit() or int(most) >= _UNLIMITED_V1:
            return None
        stat = cgroups.keyed(folder / "memory.stat")
        cache = max(stat.get(b"inactive_file", 0), stat.get(b"total_inactive_file", 0))
        return MemoryUse(int(most) // _MIB, max(int(now) - cache, 0) // _MIB)

    def _machine(self) -> MemoryUse | None:
        found = dict(_MEMINFO.findall(slurp(self._proc / "meminfo")))
        if len(found) < 2:
            return None
        total, available = int(found[b"MemTotal"]) // 1024, int(found[b"MemAvailable"]) // 1024
        return MemoryUse(total, total - available)


def _find(proc: Path, mounts: Path) -> tuple[list[Path], bool]:
    """Return the folders of our cgroup and its parents, nearest first, and whether they are v2."""
    unified = None
    for line in slurp(proc / "self/cgroup").decode(errors="replace").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return _upwards(mounts / "memory", path), False
        if number == "0":
            unified = path
    return ([], True) if unified is None else (_upwards(mounts, unified), True)


def _upwards(root: Path, path: str) -> list[Path]:
    here = root / path.lstrip("/")
    return [folder for folder in (here, *here.parents) if folder == root or root in folder.parents]
