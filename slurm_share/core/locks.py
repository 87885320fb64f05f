"""Take an exclusive lock on a file. The kernel releases it when the holder ends."""

from __future__ import annotations

import fcntl
import time

from .process import Deadline


def take(fd: int, deadline: Deadline, pause_s: float) -> bool:
    """Lock the open file; return False if another process held the lock until the deadline.

    flock(2) has no timeout, so try again every `pause_s` seconds.
    """
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if deadline.left() <= 0:
                return False
            time.sleep(min(pause_s, deadline.left()))
