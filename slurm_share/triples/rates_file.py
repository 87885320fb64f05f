"""The rates of a launcher's tasks, for llload and the dashboard, in a file on the node that only its user can change.

`<tmp>/slurm-share-<uid>/rates/<job>.<pid>` is replaced about every 5 s while tasks run, and removed at the end. The
launcher holds a lock (flock) on it; a file without a lock is from a dead launcher and is ignored. Readers may be root
or operators, and the folders belong to users. So readers also ignore links, files of other users, files that others can
write, and files larger than launchers make. A reader changes and removes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import msgspec

from ..core import own_folders
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

    def __init__(self, tmp: Path, job: str) -> None:
        """Set the names, without opening anything. `tmp`: the node's folder for temporary files."""
        self._tmp = tmp
        self._names = (own_folders.user_folder(os.getuid()), FOLDER)
        self._name = own_folders.file_name(f"{job}.{os.getpid()}")
        self._folder = self._file = -1

    def write(self, rates: NodeRates) -> None:
        """Replace the file. Errors are ignored: the file is only for display."""
        data = msgspec.json.encode(rates)
        if len(data) > MOST_BYTES:
            return
        try:
            if self._folder < 0:
                self._folder = own_folders.open_below(self._tmp, self._names)
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
            own_folders.remove_empty(self._tmp, self._names)
        self._close()

    def _close(self) -> None:
        for fd in (self._file, self._folder):
            if fd >= 0:
                os.close(fd)
        self._folder = self._file = -1


def read_rates(tmp: Path, uids: Iterable[int]) -> dict[int, tuple[NodeRates, ...]]:
    """Return uid -> rates of the user's living launchers, for users who have any."""
    found = {}
    for uid in uids:
        try:
            outer = os.open(tmp, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return {}
        own = own_folders.open_of_user(outer, own_folders.user_folder(uid), uid)
        folder = own_folders.open_of_user(own, FOLDER, uid)
        if folder is None:
            continue
        try:
            alive = (one for name in _names(folder) if (one := _read(folder, name, uid)) is not None)
            rates = tuple(islice(alive, MOST_FILES))
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
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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
