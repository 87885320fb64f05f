"""Read how many slots of a job are promised to steps that have not begun, and wake the srun that waits for a free one.

plugins/slot_queue.c does the same in C. `names.py` documents the locks on the queue's file.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from ..core import names

OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK
"""For the files of slots, which belong to the user. O_NONBLOCK: opening a FIFO in a file's place must not block."""
_LOCK = struct.Struct("@hhqqi4x")
"""struct flock of fcntl(2) on 64-bit Linux: type, whence, start, length (0: to the end), pid."""
_STEPS = 1 << 32
_END = names.QUEUE_STEPS + _STEPS * names.QUEUE_ROOM
PASSES_MAX = 8192
"""The most queries of one call. They find at least half as many locks, more than the sruns of a job hold."""


def promised(folder: Path) -> int:
    """Return how many slots of the job are promised to steps that have not chosen yet; 0 if there is no queue.

    The caller holds the lock for choosing slots.
    """
    try:
        queue = os.open(folder / names.SLOTS_QUEUE, OPEN_FLAGS)
    except OSError:
        return 0
    try:
        return sum(_left(queue, start, end) for start, end in _locks(queue))
    except OSError:
        return 0
    finally:
        os.close(queue)


def tell(folder: Path) -> None:
    """Wake the first srun that waits, since a slot may be free."""
    try:
        queue = os.open(folder / names.SLOTS_QUEUE, OPEN_FLAGS)
    except OSError:
        return
    try:
        os.utime(queue)
    except OSError:
        pass  # the srun also checks periodically
    finally:
        os.close(queue)


def _locks(queue: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each promise. The kernel returns any one lock in a range; search on both sides of it."""
    ranges = [(names.QUEUE_CLAIMS, _END)]
    for _ in range(PASSES_MAX):
        if not ranges:
            return
        start, end = ranges.pop()
        if start >= end:
            continue
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
        kind, _, first, length, _ = _LOCK.unpack(fcntl.fcntl(queue, fcntl.F_OFD_GETLK, asked))
        if kind == fcntl.F_UNLCK:
            continue
        found = max(first, start), end if length == 0 else min(first + length, end)
        yield found
        ranges += [(start, found[0]), (found[1], end)]


def _left(queue: int, start: int, end: int) -> int:
    """Return how many slots of a promise are left, i.e. its tasks have not chosen yet."""
    slots = min(end - start, names.QUEUE_ROOM)
    if start < names.QUEUE_STEPS:
        return slots
    step = (start - names.QUEUE_STEPS) // names.QUEUE_ROOM
    chosen = int.from_bytes(os.pread(queue, 2, 2 * step), "little")
    return max(0, slots - chosen)
