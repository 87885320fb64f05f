"""Append whole lines to files: the one module that opens a file for appending, but for the output of tasks.

A line that was written stays readable, whatever happens to the writers after it:

- A write that fails, on a full disk for example, leaves nothing of its data behind.
- A writer that is killed may leave half a line. The next write begins a new line after it, or removes it.
- Several writers take turns by flock(2), which on NFS is a lock that all clients see (flock(2), "NFS details").
  O_APPEND alone is not enough there: two clients can overwrite each other's lines (open(2), "O_APPEND"). On a file
  system without locks a file must have one writer; then a failed write is not removed, since the end of the file could
  be another's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time

TYPE_CHECKING = False  # as mypy knows it, without the import of `typing`: hooks use this module
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Literal

    Torn = Literal["end", "cut", "keep"]
    """The treatment of half a line at the end of the file by a write: end it with a newline, remove it, or nothing, if
    the file does not consist of lines."""

LOCK_S, LOCK_PAUSE_S = 2.0, 0.01
"""Most seconds to wait for other writers, each of which holds the lock for one write; pause between two attempts."""
_BLOCK = 1 << 16
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""O_RDWR: to see whether the last line is whole. O_NONBLOCK: a pipe without a reader does not block."""


class AppendFile:
    """A file open for appending. Its methods raise OSError; several processes may use one descriptor after a fork."""

    def __init__(
        self,
        file: Path | str,
        *,
        mode: int = 0o644,
        folder: int | None = None,
        is_held: bool = False,
        lock_s: float | None = LOCK_S,
        torn: Torn = "end",
        most_bytes: int | None = None,
        flush: bool = False,
    ) -> None:
        """Open or make the file. Raises OSError, also for a link and for what is not a regular file.

        `mode`: of a new file, before the umask. `folder`: a descriptor of the folder that `file` is relative to.
        `is_held`: lock the file until it is closed, so that there is no second writer; raises BlockingIOError if there
        is one. `lock_s`: otherwise, most seconds to wait for the lock at each write; None: write without lock.
        `most_bytes`: a write that would make the file larger fails with EFBIG. `flush`: fsync(2) after each write.
        """
        self._is_held, self._lock_s, self._torn = is_held, lock_s, torn
        self._most_bytes, self._flush = most_bytes, flush
        self._is_locked = False
        self._end: int | None = None
        """The size of a held file after this process has written, so that it need not be read; None: not known."""
        self.fd = os.open(file, _FLAGS, mode, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(self.fd).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            if is_held:
                self._lock(0.0)
        except BaseException:
            os.close(self.fd)
            raise

    def append(self, data: bytes) -> int:
        """Write lines, all of them or none. Return the bytes of half a line that was removed before them."""
        if self._is_held:
            return self._append(data)
        with self.locked():
            return self._append(data)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for several actions, such as to read before `append`."""
        if self._is_locked or self._is_held or self._lock_s is None:
            yield
            return
        self._lock(self._lock_s)
        try:
            yield
        finally:
            if self._is_locked:
                self._is_locked = False
                fcntl.flock(self.fd, fcntl.LOCK_UN)

    def sync(self) -> None:
        """Wait until everything that was written would survive a power loss."""
        os.fsync(self.fd)

    def close(self) -> None:
        """Close the file, which releases its lock."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _lock(self, most_s: float) -> None:
        from . import locks  # imported here, with what it needs: the log of hooks is without lock
        from .process import Deadline

        try:
            is_taken = locks.take(self.fd, Deadline.after(most_s), LOCK_PAUSE_S)
        except OSError:
            return  # a file system without locks
        if not is_taken:
            raise BlockingIOError(errno.EWOULDBLOCK, f"another process has held it for {most_s:g} s")
        self._is_locked = True

    def _append(self, data: bytes) -> int:
        end, self._end = self._end, None  # not known again until everything is written
        size, cut = os.fstat(self.fd).st_size if end is None else end, 0
        if end is None and self._torn != "keep" and size and os.pread(self.fd, 1, size - 1) != b"\n":
            if self._torn == "cut" and self._is_locked:
                cut = size - whole_bytes(self.fd, size)
            else:
                data = b"\n" + data
        if self._most_bytes is not None and size - cut + len(data) > self._most_bytes:
            raise OSError(errno.EFBIG, f"it would have more than {self._most_bytes >> 20} MiB")
        if cut:
            size -= cut
            os.ftruncate(self.fd, size)
        written = 0
        try:
            while written < len(data):
                written += os.write(self.fd, data[written:])
            if self._flush:
                os.fsync(self.fd)
        except OSError:
            if self._is_locked or self._is_held:  # otherwise the end of the file may be another writer's
                with contextlib.suppress(OSError):
                    os.ftruncate(self.fd, size)
            raise
        if self._is_held:
            self._end = size + len(data)
        return cut


@contextlib.contextmanager
def opened(
    file: Path | str,
    *,
    mode: int = 0o644,
    folder: int | None = None,
    lock_s: float | None = LOCK_S,
    torn: Torn = "end",
    most_bytes: int | None = None,
    flush: bool = False,
) -> Iterator[AppendFile]:
    """Open a file as `AppendFile` does, with its lock held until the end of the context.

    If another process replaces or removes the file meanwhile, the new one is opened. Raises OSError.
    """
    end_s = time.monotonic() + (lock_s or 0.0)
    while True:
        out = AppendFile(file, mode=mode, folder=folder, lock_s=lock_s, torn=torn, most_bytes=most_bytes, flush=flush)
        try:
            with out.locked():
                if lock_s is None or _has_name(out.fd, file, folder):
                    yield out
                    return
                if time.monotonic() >= end_s:
                    raise BlockingIOError(errno.EWOULDBLOCK, "another process replaces it again and again")
        finally:
            out.close()


def append(
    file: Path | str,
    data: bytes,
    *,
    mode: int = 0o644,
    lock_s: float | None = LOCK_S,
    most_bytes: int | None = None,
    flush: bool = False,
) -> None:
    """Append lines to a file in one call, as `AppendFile.append` does. Raises OSError."""
    with opened(file, mode=mode, lock_s=lock_s, most_bytes=most_bytes, flush=flush) as out:
        out.append(data)


def _has_name(fd: int, file: Path | str, folder: int | None) -> bool:
    try:
        there = os.stat(file, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))


def whole_bytes(fd: int, size: int) -> int:
    """Return the number of the first `size` bytes of a file up to the end of their last whole line."""
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
