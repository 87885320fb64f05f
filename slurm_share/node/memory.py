"""Read the memory of this process's cgroup: limit, use, and out-of-memory kills. psutil knows no cgroups.

The machine's memory is read here as well: psutil.virtual_memory() takes 29 us instead of 40 us, but importing psutil
delays the start of every launcher (host.py).
"""

from __future__ import annotations

from pathlib import Path

from .records import MemoryUse

_MIB = 1024 * 1024
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
        file = self._folders[0] / ("memory.events" if self._is_v2 else "memory.oom_control")
        for line in _text(file).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.isdigit():
                return int(value)
        return 0

    def room(self) -> MemoryUse | None:
        """Return the nearest limit, or the machine's memory if less of that is left; None if neither is known."""
        rooms = [room for folder in self._folders if (room := self._limit(folder)) is not None]
        machine = self._machine()
        if machine is not None:
            rooms.append(machine)
        return min(rooms, key=lambda room: room.total_mib - room.used_mib, default=None)

    def _limit(self, folder: Path) -> MemoryUse | None:
        limit, used = (
            ("memory.max", "memory.current") if self._is_v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        most, now = _text(folder / limit).strip(), _text(folder / used).strip()
        if not most.isdigit() or not now.isdigit() or int(most) >= _UNLIMITED_V1:
            return None
        cache = 0
        for line in _text(folder / "memory.stat").splitlines():
            key, _, value = line.partition(" ")
            if key in ("inactive_file", "total_inactive_file"):
                cache = max(cache, int(value))
        return MemoryUse(int(most) // _MIB, max(int(now) - cache, 0) // _MIB)

    def _machine(self) -> MemoryUse | None:
        found = {}
        for line in _text(self._proc / "meminfo").splitlines():
            key, _, value = line.partition(":")
            found[key] = value.split()[0] if value.split() else ""
        try:
            total, available = int(found["MemTotal"]) // 1024, int(found["MemAvailable"]) // 1024
        except (KeyError, ValueError):
            return None
        return MemoryUse(total, total - available)


def _find(proc: Path, mounts: Path) -> tuple[list[Path], bool]:
    """Return the folders of our cgroup and its parents, nearest first, and whether they are v2."""
    unified = None
    for line in _text(proc / "self/cgroup").splitlines():
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


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
