"""The files in which tasks write how much they have done: one for each worker, in the launcher's folder (core/live.py).

The path of a worker's file stays the same, so that its tasks' environment need not be made anew.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

from ...core import own_folders
from ...core.errors import StateError
from ...core.live import LiveFolder
from ..rules.log_counts import amount_of

FOLDER = "progress"
TAIL_BYTES = 256
"""Read from the end of a file: programs may append numbers instead of writing over them."""
SETTLED_NS = 50_000_000
"""A file system's clock ticks every 4 to 10 ms: two changes within a tick look like one."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ProgressFiles:
    """The files of one launcher's workers."""

    def __init__(self, live: LiveFolder) -> None:
        """Make the folder. Raises StateError."""
        self.folder = live.path / FOLDER
        self._changed_ns = -1
        """When the folder last changed; -1: not known, or so shortly ago that it may have changed again since."""
        self._there: frozenset[str] = frozenset()
        try:
            self._fd = own_folders.open_folder(live.fd, FOLDER, live.path)
        except OSError as error:
            raise StateError(str(self.folder), f"cannot be made ({error.strerror})") from error

    def _has(self, worker: int) -> bool:
        """Return whether that worker has a file. A folder that has not changed costs one system call."""
        changed_ns = os.fstat(self._fd).st_mtime_ns
        if changed_ns != self._changed_ns:
            with os.scandir(self._fd) as entries:
                self._there = frozenset(entry.name for entry in entries)
            is_settled = time.time_ns() - changed_ns > SETTLED_NS
            self._changed_ns = changed_ns if is_settled else -1
        return str(worker) in self._there

    def remove(self, worker: int) -> None:
        """Remove what an earlier attempt in that worker has written, or what it had left behind has."""
        with contextlib.suppress(OSError):  # a folder, for example, which is never read
            if self._has(worker):
                os.unlink(str(worker), dir_fd=self._fd)

    def read(self, worker: int) -> tuple[float, float] | None:
        """Return how much the task in that worker has done, and when it wrote that (Unix time); None: nothing."""
        try:
            if not self._has(worker):
                return None
            fd = os.open(str(worker), _OPEN, dir_fd=self._fd)
        except OSError:
            return None
        try:
            seen = os.fstat(fd)
            if not stat.S_ISREG(seen.st_mode):
                return None
            number = parse_number(os.pread(fd, TAIL_BYTES, max(0, seen.st_size - TAIL_BYTES)))
            return None if number is None else (number, seen.st_mtime)
        except OSError:
            return None
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close the folder, which is removed with the launcher's."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def parse_number(data: bytes) -> float | None:
    """Return the number in the last whole line of a file; None: there is none. Without any line end, all of it."""
    whole, end, _ = data.rpartition(b"\n")
    words = (whole if end else data).split()
    return amount_of(words[-1]) if words else None
