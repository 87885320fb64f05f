"""The rates of a launcher's tasks, for llload and the dashboard: a file on the node that only its user can change.

`<tmp>/slurm-share-<uid>/rates/<job>.<pid>`, written whole about every 5 s while tasks run, and removed at the end. Its
launcher holds a lock (flock) on it, so that a file whose launcher is gone can be told, and is passed over. Whoever
looks may be root or an operator, and the folders are a user's own: what is a link, somebody else's, open to others or
larger than a launcher makes it is passed over, too. A reader changes and removes nothing.
"""

from __future__ import annotations

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
"""Of one user on a node: more launchers than anybody runs there."""
MOST_NAMES = 1024
"""Of those, files of dead launchers too, which lie there until the next one starts."""
MOST_BYTES = 1024 * 1024
VERSION = 1
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_decoder = msgspec.json.Decoder(NodeRates)


class RatesFile:
    """The file of one launcher."""

    def __init__(self, tmp: Path, job: str) -> None:
        """Open nothing yet. `tmp`: the node's folder for temporary files."""
        self._tmp = tmp
        self._names = (own_folders.user_folder(os.getuid()), FOLDER)
        self._name = own_folders.file_name(f"{job}.{os.getpid()}")
        self._folder = self._file = -1

    def write(self, rates: NodeRates) -> None:
        """Replace the file. A disk that takes nothing is no error: the file is only for display."""
        data = msgspec.json.encode(rates)
        if len(data) > MOST_BYTES:
            return
        try:
            if self._folder < 0:
                self._folder = own_folders.open_below(self._tmp, self._names)
                _remove_left(self._folder)
            self._write(data)
        except FileNotFoundError:
            self._close()  # another launcher has removed the empty folder; the next write makes it anew
        except (OSError, StateError):
            pass

    def _write(self, data: bytes) -> None:
        new = f".{self._name[:120]}.new"
        own_folders.remove_file(self._folder, new)
        fd = os.open(new, _NEW, 0o600, dir_fd=self._folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before it is there by its name
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
        """Remove the file, and the folders around it where nothing else is in them."""
        try:
            if self._file >= 0:
                own_folders.remove_file(self._folder, self._name)
        except OSError:
            pass  # without its lock it is passed over, and the next launcher removes it
        if self._folder >= 0:
            own_folders.remove_empty(self._tmp, self._names)
        self._close()

    def _close(self) -> None:
        for fd in (self._file, self._folder):
            if fd >= 0:
                os.close(fd)
        self._folder = self._file = -1


def read_rates(tmp: Path, uids: Iterable[int]) -> dict[int, tuple[NodeRates, ...]]:
    """Return the rates of the launchers of these users that are alive, by user; users without any are left out."""
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
    """Return whether the launcher that has written the file lives."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _remove_left(folder: int) -> None:
    """Remove the files of launchers that are dead."""
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
