"""Read how many slots of a job are promised to steps that have not begun, and wake the srun that waits for a free one.

This does in Python what plugins/slot_queue.c does, for a process that takes slots without waiting for them. `names.py`
says what the locks on the queue's file mean.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from ..core import names

_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK
_LOCK = struct.Struct("@hhqqi4x")
"""struct flock of fcntl(2) on 64-bit Linux: type, whence, start, length (0: without end), pid."""
_STEPS = 1 << 32
_END = names.QUEUE_STEPS + _STEPS * names.QUEUE_ROOM
PASSES_MAX = 8192
"""At most half as many locks are read: the sruns of a job's slots hold fewer."""


def promised(folder: Path) -> int:
    """Return how many slots of the job are promised to steps that have not chosen yet; 0 where there is no queue.

    Hold the lock of those who choose meanwhile.
    """
    try:
        queue = os.open(folder / names.SLOTS_QUEUE, _OPEN)
    except OSError:
        return 0
    try:
        return sum(_left(queue, start, end) for start, end in _locks(queue))
    except OSError:
        return 0
    finally:
        os.close(queue)


def tell(folder: Path) -> None:
    """Wake the first srun that waits: a slot may be free."""
    try:
        queue = os.open(folder / names.SLOTS_QUEUE, _OPEN)
    except OSError:
        return
    try:
        os.utime(queue)
    except OSError:
        pass  # it looks again by itself after a while
    finally:
        os.close(queue)


def _locks(queue: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each promise. The kernel names any one lock of a range; it parts the range in two."""
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
    """Return what is left of a promise: slots whose tasks have not chosen."""
    slots = min(end - start, names.QUEUE_ROOM)
    if start < names.QUEUE_STEPS:
        return slots
    step = (start - names.QUEUE_STEPS) // names.QUEUE_ROOM
    chosen = int.from_bytes(os.pread(queue, 2, 2 * step), "little")
    return max(0, slots - chosen)
