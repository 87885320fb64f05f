"""The files in which tasks write how much they have done: one for each worker, in a folder of the user's own.

::

    <the user's folder>/progress/          0700, the user's; core/own_folders.py says where
        4711.1234/                         of the launcher with that job and pid; it holds a lock (flock) on it
            0 ... 47                       what the task in that worker has done: a number

The path of a worker's file stays the same, so that its tasks' environment need not be made anew. A folder whose lock is
free is what a dead launcher has left; the next launcher removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path

from ...core import own_folders
from ...core.errors import StateError
from ..rules.log_counts import amount_of

FOLDER = "progress"
TAIL_BYTES = 256
"""Read from the end of a file: programs may append numbers instead of writing over them."""
SETTLED_NS = 50_000_000
"""A file system's clock ticks every 4 to 10 ms: two changes within a tick look like one."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ProgressFiles:
    """The files of one launcher's workers."""

    def __init__(self, tmp: Path, job: str, given: Path | None = None) -> None:
        """Make the folder. `tmp` is on the node's own disk, `given` the folder that root made for the user; `job` names
        the launcher's job.

        Raises StateError where it cannot be made, or what is in the user's folder is a link or open to others.
        """
        self._tmp, self._given = tmp, given
        self._where = (given or tmp) / FOLDER
        self._name = own_folders.file_name(f"{job}.{os.getpid()}")
        self._base = self._fd = -1
        self._changed_ns = -1
        """When the folder last changed; -1: not known, or so shortly ago that it may have changed again since."""
        self._there: frozenset[str] = frozenset()
        try:
            self._fd = self._open()
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise StateError(str(self._where), f"cannot be used ({error.strerror})") from error
            raise

    @property
    def folder(self) -> Path:
        """Return the path of the folder."""
        return self._where / self._name

    def _open(self) -> int:
        for _ in range(own_folders.TRIES):
            self._close()
            self._base, self._where = own_folders.open_own(self._tmp, (FOLDER,), self._given)
            _remove_left(self._base)
            try:
                fd = own_folders.open_folder(self._base, self._name, self._where)
            except FileNotFoundError:
                continue  # another launcher has removed the empty folder around it
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_nlink:
                    return fd
            except BlockingIOError:
                pass  # another launcher is just removing it
            os.close(fd)
        raise StateError(str(self.folder), "is removed again and again by another process")

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
        """Remove the folder, and those around it where nothing else is in them."""
        if self._fd >= 0:
            _remove(self._base, self._name, self._fd)
            own_folders.remove_empty(self._where, self._given)
        self._close()

    def _close(self) -> None:
        for fd in (self._fd, self._base):
            if fd >= 0:
                os.close(fd)
        self._fd = self._base = -1


def parse_number(data: bytes) -> float | None:
    """Return the number in the last whole line of a file; None: there is none. Without any line end, all of it."""
    whole, end, _ = data.rpartition(b"\n")
    words = (whole if end else data).split()
    return amount_of(words[-1]) if words else None


def _remove_left(base: int) -> None:
    """Remove the folders of launchers that are dead."""
    for name in os.listdir(base):
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=base)
        except OSError:
            continue  # no folder: no launcher has made it
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(base, name, fd)
        except OSError:
            pass  # its launcher lives
        finally:
            os.close(fd)


def _remove(base: int, name: str, fd: int) -> None:
    with contextlib.suppress(OSError):  # somebody has put a folder into it; the next launcher tries again
        for file in os.listdir(fd):
            os.unlink(file, dir_fd=fd)
        os.rmdir(name, dir_fd=base)
