"""The folder of a living launcher on its node, and the one test whether a launcher lives.

::

    <the user's folder>/live/             0700, the user's; core/own_folders.py says where
        lock                              held while a launcher reads all bookings and books (packing/bookings.py)
        4711.1234/                        of the launcher with that job and pid, which holds a lock (flock) on it
            bookings.json                 the memory that it has booked on each GPU (packing/bookings.py)
            rates.json                    the rates of its tasks (triples/rates_file.py)
            progress/0 ... 47             what the task in that worker has done (triples/launcher/rates.py)

Guard and loop hold the lock until both have ended, so it needs no pid and holds in containers. A folder whose lock is
free is that of a dead launcher: readers ignore it, and the next launcher removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from . import files, own_folders, text_files
from .errors import StateError

FOLDER = "live"
MOST_LAUNCHERS = 64
"""Most launchers read of one user: more than anybody has on a node."""
TRIES = 3
"""Number of reads, since a file that is being written in place may be incomplete."""
MOST_NAMES = 1024
"""Most names examined, including folders of dead launchers."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


T = TypeVar("T")


class LiveFolder:
    """The folder of this launcher. Guard and loop share it after a fork."""

    def __init__(self, tmp: Path, job: str, given: Path | None = None) -> None:
        """Make and lock the folder, and remove those of dead launchers. `tmp` is on the node's own disk, `given` the
        folder that root made for the user; `job` names the launcher's job.

        Raises StateError if it cannot be made, or what is in the user's folder is a link or open to others.
        """
        self._tmp, self._job, self._given = tmp, job, given
        self.outer = (given or tmp) / FOLDER
        self.name = own_folders.file_name(f"{job}.{os.getpid()}")
        self.base = self.fd = -1
        """Descriptors of the folder of all launchers, and of this one's."""
        try:
            self.fd = self._open()
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise StateError(str(self.outer), f"cannot be used ({error.strerror})") from error
            raise

    @property
    def path(self) -> Path:
        """Return the path of the folder."""
        return self.outer / self.name

    def _open(self) -> int:
        for _ in range(own_folders.TRIES):
            self._close()
            self.base, self.outer = own_folders.open_own(self._tmp, (FOLDER,), self._given)
            for _ in self.others():
                pass  # removes what dead launchers have left
            try:
                fd = own_folders.open_folder(self.base, self.name, self.outer)
            except FileNotFoundError:
                continue  # another launcher has removed the empty folder around it
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_nlink:
                    return fd
            except BlockingIOError:  # a launcher in another container has that pid, or somebody reads it
                self.name = own_folders.file_name(f"{self._job}.{os.getpid()}")[:100] + own_folders.random_suffix()
            os.close(fd)
        raise StateError(str(self.path), "is removed again and again by another process")

    def others(self) -> Iterator[int]:
        """Yield the open folder of each other living launcher of the user, and remove those of dead ones. Raises
        OSError."""
        for name in os.listdir(self.base):  # noqa: PTH208 - a descriptor
            if name == self.name:
                continue
            try:
                fd = os.open(name, _FOLDER, dir_fd=self.base)
            except OSError:
                continue  # it is gone, or no folder: no launcher has made it
            try:
                if is_alive(fd):
                    yield fd
                else:
                    _remove(self.base, name, fd)
            finally:
                os.close(fd)

    def replace(self, name: str, data: bytes) -> None:
        """Replace a file of the folder. Raises OSError."""
        new = f".{name}.new"
        own_folders.remove_file(self.fd, new)
        fd = os.open(new, _NEW, 0o600, dir_fd=self.fd)
        try:
            if os.write(fd, data) != len(data):
                raise OSError(28, "No space left on device")
            os.rename(new, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError:
            own_folders.remove_file(self.fd, new)
            raise
        finally:
            os.close(fd)

    def remove(self, name: str) -> None:
        """Remove a file of the folder if it exists. Raises OSError."""
        own_folders.remove_file(self.fd, name)

    def close(self) -> None:
        """Remove the folder, and those around it where nothing else is in them. Guard and loop may both call it."""
        if self.fd >= 0:
            _remove(self.base, self.name, self.fd)
            own_folders.remove_empty(self.outer, self._given)
        self._close()

    def _close(self) -> None:
        for fd in (self.fd, self.base):
            if fd >= 0:
                os.close(fd)
        self.fd = self.base = -1


def is_alive(fd: int) -> bool:
    """Return whether the launcher with this open folder lives: whether another process holds its lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def read_all(
    tmp: Path, uid: int, name: str, decode: Callable[[bytes], T], most_bytes: int, given: Path | None = None
) -> list[T]:
    """Return what `decode` makes of file `name` of each living launcher of a user, without those that are larger.

    For readers such as root: the folders are the user's, so links, files of other users and what others may write are
    ignored, and nothing is changed or removed. `given`: the folder that root makes for the user. Raises no error.
    """
    found: list[T] = []
    for base in own_folders.open_all_of_user(tmp, FOLDER, uid, given):
        try:
            for folder in _living(base, uid):
                if len(found) < MOST_LAUNCHERS and (one := _read(folder, name, uid, decode, most_bytes)) is not None:
                    found.append(one)
        finally:
            os.close(base)
    return found


def _read(folder: int, name: str, uid: int, decode: Callable[[bytes], T], most_bytes: int) -> T | None:
    for _ in range(TRIES):
        try:
            data = files.read_regular(name, most_bytes + 1, uid=uid, folder=folder)
            return None if data is None or len(data) > most_bytes else decode(data)
        except OSError:
            return None
        except text_files.NOT_JSON:
            continue
    return None


def _living(base: int, uid: int) -> Iterator[int]:
    try:
        with os.scandir(base) as entries:
            names = sorted(islice((entry.name for entry in entries), MOST_NAMES))
    except OSError:
        return
    for name in names:
        folder = own_folders.open_of_user(os.dup(base), name, uid)
        if folder is None:
            continue
        try:
            if not os.fstat(folder).st_mode & 0o022 and is_alive(folder):
                yield folder
        except OSError:
            continue  # a file system without locks
        finally:
            os.close(folder)


def _remove(base: int, name: str, fd: int) -> None:
    with contextlib.suppress(OSError):  # somebody has put folders into it; the next launcher tries again
        _empty(fd)
        os.rmdir(name, dir_fd=base)


def _empty(fd: int) -> None:
    for name in os.listdir(fd):
        try:
            os.unlink(name, dir_fd=fd)
        except IsADirectoryError:
            inner = os.open(name, _FOLDER, dir_fd=fd)
            try:
                for file in os.listdir(inner):  # noqa: PTH208 - a descriptor
                    os.unlink(file, dir_fd=inner)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=fd)
