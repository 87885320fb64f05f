"""Hold a lock file alone. The kernel releases it when its holder dies."""

from __future__ import annotations

import fcntl
import time

from .process import Deadline


def take(fd: int, deadline: Deadline, pause_s: float) -> bool:
    """Hold the open file alone, trying again every `pause_s` seconds; False when another holder kept it until the
    deadline. flock(2) could wait by itself, but not until a moment."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if deadline.left() <= 0:
                return False
            time.sleep(min(pause_s, deadline.left()))
