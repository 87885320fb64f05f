"""Which slots of a job are taken, without taking one to find out."""

from __future__ import annotations

import os
from pathlib import Path

from ..paths import Paths

LOCKS = Path("/proc/locks")


def read_leased(paths: Paths, job_id: int, locks: Path = LOCKS) -> frozenset[int] | None:
    """Numbers of the slots that a slurmstepd holds; None where that cannot be seen.

    A lock that is tried is a lock that is held for a moment, and a task would be refused for it. The kernel's own list
    (proc(5), /proc/locks) names device and inode of every lock; in another pid namespace it may show none of them.
    """
    try:
        held = {_inode(line) for line in locks.read_text(encoding="ascii").splitlines() if " FLOCK " in line}
        found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(paths.slots(job_id))]
    except OSError:
        return None
    return frozenset(
        int(name)
        for name, stat in found
        if name.isdigit() and (os.major(stat.st_dev), os.minor(stat.st_dev), stat.st_ino) in held
    )


def _inode(line: str) -> tuple[int, int, int]:
    """`1: FLOCK ADVISORY WRITE 708 00:2a:4321 0 EOF` -> (0, 42, 4321)."""
    major, minor, inode = next(word for word in line.split() if word.count(":") == 2).split(":")
    return int(major, 16), int(minor, 16), int(inode)
