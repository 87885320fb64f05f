"""Memory that this process may use: that of the node, limited by its control groups (a Slurm job's limit).

The kernel kills a process that uses more, and no allocation fails before that. So callers that can do with less check
here first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def total_bytes() -> int:
    """Return the memory of the node, or the smaller limit of the control groups."""
    limits = [limit for limit, _used in _limits()]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


def available_bytes() -> int:
    """Return how many bytes this process can still allocate."""
    left = [limit - used for limit, used in _limits()]
    return max(0, min([_available_in_node(), *left]))


def _available_in_node() -> int:
    # Not from psutil: users' Python has only NumPy.
    kib = _field(Path("/proc/meminfo"), "MemAvailable:")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") if kib is None else kib * 1024


def _limits() -> Iterator[tuple[int, int]]:
    """Yield limit and use of each control group of this process that has a limit.

    Use leaves out the inactive page cache, which the kernel can drop.
    """
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, limit_file, used_file, dropped = _CGROUPS, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, dropped = _CGROUPS / "memory", "total_inactive_file"
            limit_file, used_file = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        innermost = root / path.lstrip("/")
        # Including the root: in a container that is the container's own group.
        for folder in (innermost, *(one for one in innermost.parents if one.is_relative_to(root))):
            limit, used = _text(folder / limit_file).strip(), _text(folder / used_file).strip()
            if limit.isdecimal() and used.isdecimal() and int(limit) < 1 << 60:
                yield int(limit), int(used) - (_field(folder / "memory.stat", dropped) or 0)


def _field(path: Path, name: str) -> int | None:
    """Return the number after a name at the beginning of a line; None: there is none."""
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value.split()[0])
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # a container has only some of these files
