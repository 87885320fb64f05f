"""Which slots of a job are taken, without taking one to find out."""

from __future__ import annotations

import os
from pathlib import Path

from ..core.paths import Paths

LOCKS = Path("/proc/locks")


def read_leased(paths: Paths, job_id: int, slots: int, locks: Path = LOCKS) -> frozenset[int] | None:
    """Numbers of the job's `slots` slots that a slurmstepd holds; None where that cannot be seen. Their folder is not
    for listing, not even to their user, so the files are asked for by name.

    A lock that is tried is a lock that is held for a moment, and a task would be refused for it. The kernel's own list
    (proc(5), /proc/locks) names device and inode of every lock; in another pid namespace it may show none of them.
    """
    try:
        held = {_inode(line) for line in locks.read_text(encoding="ascii").splitlines() if " FLOCK " in line}
        found = [(number, os.lstat(paths.slots(job_id) / str(number))) for number in range(slots)]
    except OSError:
        return None
    return frozenset(
        number for number, stat in found if (os.major(stat.st_dev), os.minor(stat.st_dev), stat.st_ino) in held
    )


def _inode(line: str) -> tuple[int, int, int]:
    """`1: FLOCK ADVISORY WRITE 708 00:2a:4321 0 EOF` -> (0, 42, 4321)."""
    major, minor, inode = next(word for word in line.split() if word.count(":") == 2).split(":")
    return int(major, 16), int(minor, 16), int(inode)
