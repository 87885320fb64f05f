"""Share bookings of GPU memory between the launchers of one user on a node, so that no two book the same memory.

::

    <the user's folder>/bookings/         0700, the user's; core/own_folders.py says where
        lock                              held while one launcher reads, decides and books
        GPU-3f.../4711.1234               what the launcher with that job and pid has booked there (Booking)

A launcher (guard or loop process) holds a lock (flock) on each of its files until it ends. A file without a lock
belongs to a dead launcher; the next launcher that reads removes it. Reading and booking are one critical section. The
file `lock` holds a counter of changes, so that a launcher of short tasks need not read all files before each start.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core import locks, own_folders, process, text_files
from ..core.errors import StateError
from ..core.process import Deadline
from ..core.records import Count
from .bookings_reader import FOLDER, MOST_BYTES, BookingRead

LOCK = "lock"
PATIENCE_S = 2.0
"""Longest wait for the lock. It is normally held for less than 10 ms, longer if a launcher is stopped (SIGSTOP)."""
PAUSE_S = 0.001
FRESH_S = 1.0
"""Others' bookings are read again after this time even without a change: a launcher that dies does not count up."""
_COUNT = struct.Struct("=Q")


class BookingsBusyError(StateError):
    """Raised when another launcher holds the lock for too long."""


class Booking(BookingRead, frozen=True, kw_only=True):
    """The booking of one launcher on one GPU: the content of its file."""

    version: int = 1
    memory_mib: Count = 0
    """Memory in use by its tasks at the last sample."""
    since: float = 0.0
    """Unix time of the last change, seconds."""


class Elsewhere(Struct, frozen=True):
    """The figures of another launcher of the user on one GPU, or the sums over all of them.

    They have no limits: a file with one wrong figure must not count as no booking, or its memory is booked twice.
    """

    booked_mib: int = 0
    memory_mib: int = 0
    clients: int = 0


class Bookings:
    """The bookings of this launcher, and access to those of the others."""

    def __init__(self, tmp: Path, job: str, gpus: Sequence[str], given: Path | None = None) -> None:
        """Create the files without bookings. `tmp` is on the node's own disk, `given` the folder that root made for the
        user; `job` names the launcher's job; `gpus` are UUIDs.

        Raises StateError if the folder cannot be used: it cannot be made, or what is in it is a link or open to others.
        """
        self.folder = (given or tmp) / FOLDER
        me = process.identify(os.getpid())
        self._me = (os.getpid(), (me.start_ticks or 0) if me is not None else 0)
        self._job = job
        self._name = own_folders.file_name(f"{job}.{os.getpid()}")
        self._folders: dict[str, int] = {}
        self._files: dict[str, int] = {}
        self._written: dict[str, Booking] = {}
        self._count = -1
        self._read_at = 0.0
        self._others: dict[str, Elsewhere] = {}
        self._lock = -1
        try:
            base, self.folder = own_folders.open_own(tmp, (FOLDER,), given)
            try:
                self._lock = own_folders.open_file(base, LOCK, self.folder)
                for gpu in gpus:
                    self._folders[gpu] = own_folders.open_folder(base, own_folders.file_name(gpu), self.folder)
            finally:
                os.close(base)
            with self.section():
                for gpu in gpus:
                    self._files[gpu] = own_folders.open_file(
                        self._folders[gpu], self._name, self.folder / own_folders.file_name(gpu)
                    )
                    fcntl.flock(self._files[gpu], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            self._close_all()
            if isinstance(error, OSError):
                raise StateError(str(self.folder), f"cannot be used ({error.strerror})") from error
            raise

    @contextmanager
    def section(self) -> Iterator[None]:
        """Hold the lock of all launchers of the user, so that no booking changes meanwhile.

        Raises BookingsBusyError if another process holds it for too long.
        """
        if not locks.take(self._lock, Deadline.after(PATIENCE_S), PAUSE_S):
            raise BookingsBusyError(
                str(self.folder / LOCK), f"another launcher of yours holds it for more than {PATIENCE_S:g} s"
            )
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def others(self) -> Mapping[str, Elsewhere]:
        """Return the bookings of others by GPU (UUID), and remove files of dead launchers. Call it in `section` only.

        Raises StateError if the folder cannot be read.
        """
        try:
            count = self._read_count()
            now = time.monotonic()
            if count != self._count or now - self._read_at > FRESH_S:
                self._others = {gpu: self._read_others(fd) for gpu, fd in self._folders.items()}
                self._count, self._read_at = count, now
        except OSError as error:
            raise StateError(str(self.folder), f"cannot be read ({error.strerror})") from error
        return self._others

    def write(self, bookings: Mapping[str, Booking]) -> None:
        """Replace the bookings of this launcher on each GPU (UUID). Call it in `section` only.

        Raises StateError if a file cannot be written.
        """
        changed = False
        for gpu, booking in bookings.items():
            whole = msgspec.structs.replace(booking, job=self._job, pid=self._me[0], start_ticks=self._me[1], since=0.0)
            if gpu not in self._files or self._written.get(gpu) == whole:
                continue
            data = msgspec.json.encode(msgspec.structs.replace(whole, since=round(time.time(), 3)))
            try:
                # Write in place: a new file would not have the lock. Launchers read in the section only.
                if os.pwrite(self._files[gpu], data, 0) != len(data):
                    raise OSError(28, "No space left on device")
                os.ftruncate(self._files[gpu], len(data))
            except OSError as error:
                raise StateError(str(self.folder), f"cannot be written ({error.strerror})") from error
            self._written[gpu] = whole
            changed = True
        if changed:
            self._raise_count()

    def close(self) -> None:
        """Remove all bookings of this launcher. Guard and loop may both call it, also twice."""
        if self._lock < 0:
            return
        try:
            with self.section():
                for gpu in self._files:
                    own_folders.remove_file(self._folders[gpu], self._name)
                self._raise_count()
        except (OSError, StateError):
            pass  # the locks end with this process, and the next launcher removes the files
        self._close_all()

    def _close_all(self) -> None:
        for fd in (*self._files.values(), *self._folders.values(), self._lock):
            if fd >= 0:
                os.close(fd)
        self._files, self._folders, self._lock = {}, {}, -1

    def _read_others(self, folder: int) -> Elsewhere:
        others = [_read_or_remove(folder, name) for name in os.listdir(folder) if name != self._name]
        found = [one for one in others if one is not None]
        return Elsewhere(
            booked_mib=sum(max(one.booked_mib, 0) for one in found),
            memory_mib=sum(max(one.memory_mib, 0) for one in found),
            clients=sum(max(one.clients, 0) for one in found),
        )

    def _read_count(self) -> int:
        data = os.pread(self._lock, _COUNT.size, 0)
        return int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else 0

    def _raise_count(self) -> None:
        count = (self._read_count() + 1) % (1 << 64)
        os.pwrite(self._lock, _COUNT.pack(count), 0)
        if self._count == count - 1:
            self._count = count  # the change is our own


def _read_or_remove(folder: int, name: str) -> Elsewhere | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None  # the file is gone, or a link, which no launcher makes
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return msgspec.json.decode(os.pread(fd, MOST_BYTES, 0), type=Elsewhere)
        own_folders.remove_file(folder, name)
        return None
    except text_files.NOT_JSON:
        return None  # the file is still empty, or another release wrote it
    finally:
        os.close(fd)
