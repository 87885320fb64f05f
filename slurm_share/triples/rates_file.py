"""The rates of a launcher's tasks, for llload and the dashboard, in a file on the node that only its user can change.

`rates/<job>.<pid>` in the user's folder (core/own_folders.py) is replaced about every 5 s while tasks run, and removed
at the end. The launcher holds a lock (flock) on it; a file without a lock is from a dead launcher and is ignored.
Readers may be root or operators, and the folders belong to users. So readers also ignore links, files of other users,
files that others can write, and files larger than launchers make. A reader changes and removes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import msgspec

from ..core import own_folders, text_files
from ..core.errors import StateError
from ..packing import NodeRates

FOLDER = "rates"
MOST_FILES = 64
"""Most files read of one user: more than anybody's launchers on a node."""
MOST_NAMES = 1024
"""Most names examined, including files of dead launchers, which the next launcher removes."""
MOST_BYTES = 1024 * 1024
VERSION = 1
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_decoder = msgspec.json.Decoder(NodeRates)


class RatesFile:
    """The file of one launcher."""

    def __init__(self, tmp: Path, job: str, given: Path | None = None) -> None:
        """Set the names, without opening anything. `tmp`: the node's folder for temporary files; `given`: the folder
        that root made for the user."""
        self._tmp, self._given = tmp, given
        self._where = tmp
        self._name = own_folders.file_name(f"{job}.{os.getpid()}")
        self._folder = self._file = -1

    def write(self, rates: NodeRates) -> None:
        """Replace the file. Errors are ignored: the file is only for display."""
        data = msgspec.json.encode(rates)
        if len(data) > MOST_BYTES:
            return
        try:
            if self._folder < 0:
                self._folder, self._where = own_folders.open_own(self._tmp, (FOLDER,), self._given)
                _remove_left(self._folder)
            self._write(data)
        except FileNotFoundError:
            self._close()  # another launcher has removed the empty folder; the next write makes it again
        except (OSError, StateError):
            pass

    def _write(self, data: bytes) -> None:
        new = f".{self._name[:120]}.new"
        own_folders.remove_file(self._folder, new)
        fd = os.open(new, _NEW, 0o600, dir_fd=self._folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before the file gets its name
            if os.write(fd, data) != len(data):
                raise OSError(28, "No space left on device")
            os.rename(new, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            os.close(fd)
            own_folders.remove_file(self._folder, new)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = fd

    def remove(self) -> None:
        """Remove the file, and its folders if they are empty."""
        with contextlib.suppress(OSError):  # without a lock it is ignored, and the next launcher removes it
            if self._file >= 0:
                own_folders.remove_file(self._folder, self._name)
        if self._folder >= 0:
            own_folders.remove_empty(self._where, self._given)
        self._close()

    def _close(self) -> None:
        for fd in (self._file, self._folder):
            if fd >= 0:
                os.close(fd)
        self._folder = self._file = -1


def read_rates(
    tmp: Path, uids: Iterable[int], given: Callable[[int], Path] | None = None
) -> dict[int, tuple[NodeRates, ...]]:
    """Return uid -> rates of the user's living launchers, for users who have any. `given`: the folder that root makes
    for a user."""
    found = {}
    for uid in uids:
        rates: tuple[NodeRates, ...] = ()
        for folder in own_folders.open_all_of_user(tmp, FOLDER, uid, None if given is None else given(uid)):
            try:
                alive = (one for name in _names(folder) if (one := _read(folder, name, uid)) is not None)
                rates += tuple(islice(alive, MOST_FILES - len(rates)))
            finally:
                os.close(folder)
        if rates:
            found[uid] = rates
    return found


def _names(folder: int) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(islice((entry.name for entry in entries if not entry.name.startswith(".")), MOST_NAMES))
    except OSError:
        return []


def _read(folder: int, name: str, uid: int) -> NodeRates | None:
    try:
        fd = os.open(name, _READ, dir_fd=folder)
    except OSError:
        return None
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != uid or seen.st_mode & 0o022 or seen.st_size > MOST_BYTES:
            return None
        if not _is_locked(fd):
            return None
        rates = _decoder.decode(os.pread(fd, MOST_BYTES, 0))
        return rates if rates.version == VERSION else None
    except (OSError, *text_files.NOT_JSON):
        return None
    finally:
        os.close(fd)


def _is_locked(fd: int) -> bool:
    """Return whether the launcher that wrote the file is alive."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _remove_left(folder: int) -> None:
    """Remove the files of dead launchers."""
    for name in os.listdir(folder):
        try:
            fd = os.open(name, _READ, dir_fd=folder)
        except OSError:
            continue
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode) and not _is_locked(fd):
                own_folders.remove_file(folder, name)
        except OSError:
            continue
        finally:
            os.close(fd)
