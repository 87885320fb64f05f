"""Make, check and remove the folders of MPS daemons, which root gives to a user and takes back.

The pipe directory belongs to its user, who can put anything into it: links, folders that change while they are walked,
thousands of nested folders. So the code here follows no link, does not recurse, and removes a folder only after taking
it away from its user.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

from ..core import mounts
from ..core.errors import MpsFolderError
from ..core.process import Deadline
from ..core.scan import Scan
from .records import MpsPlace

BATCH = 10_000
"""The most names of a user's folder that are kept in memory."""
LOG_LIMIT_BYTES = 1024 * 1024
LOG_FILES = ("control.log", "server.log")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_parents(place: MpsPlace) -> None:
    """Make the two folders above the pipe directory, 0711, if they are missing.

    Raises MpsFolderError if another user can write to them.
    """
    with _translated(place), _parents(place, make=True):
        pass


def make(place: MpsPlace, files: Mapping[str, str] = MappingProxyType({})) -> None:
    """Make the pipe directory and its log folder, 0700 and the owner's. The daemon itself would make them 0777.

    files: name -> text of files in the pipe directory, which the owner can read.

    Raises MpsFolderError, also if the pipe directory exists.
    """
    leaf = _leaf(place)
    with _translated(place), _parents(place, make=True) as parent:
        os.mkdir(leaf, 0o700, dir_fd=parent)
        with _opened(leaf, parent) as folder:
            os.mkdir("logs", 0o700, dir_fd=folder)
            with _opened("logs", folder) as logs:
                _hand_over(logs, place)
            for name, text in files.items():
                fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
                with os.fdopen(fd, "w") as file:
                    os.fchmod(fd, 0o644)
                    file.write(text)
            _hand_over(folder, place)  # last, so that no other user can write into it before


def uncover(place: MpsPlace) -> tuple[str, ...]:
    """Detach what the daemon's user mounted on its folder, its locks, or its own lock file; return a sentence for each.

    Call it before the daemon is looked at, which opens these. Raises MpsFolderError.
    """
    leaf, notes = _leaf(place), list[str]()
    with _translated(place), _parents(place, make=False) as parent:
        if parent >= 0:
            for name in (leaf, f"{leaf}.ui", f"{leaf}.lock"):
                mounts.uncover(parent, name, notes)
            try:
                folder = os.open(leaf, _FOLDER, dir_fd=parent)
            except (FileNotFoundError, NotADirectoryError):
                return tuple(notes)
            try:
                mounts.uncover(folder, "control_lock", notes)
            finally:
                os.close(folder)
    return tuple(notes)


def remove(place: MpsPlace, deadline: Deadline) -> tuple[str, ...]:
    """Remove the pipe directory with its contents, if there is one, and what an earlier removal left; return a sentence
    for each file system that its user had mounted there.

    Call it only after the daemon has ended: without its folder it would run on, and no client could reach it
    (measured). Raises MpsFolderError if something cannot be removed.
    """
    leaf, notes = _leaf(place), list[str]()
    with _translated(place), _parents(place, make=False) as parent:
        if parent < 0:
            return ()
        move = partial(os.rename, leaf, f".{leaf}.{time.monotonic_ns()}", src_dir_fd=parent, dst_dir_fd=parent)
        try:
            mounts.retry_uncovered(move, parent, leaf, notes)
        except FileNotFoundError:
            pass
        for name in [entry.name for entry in os.scandir(parent) if entry.name.startswith(f".{leaf}.")]:
            _remove_tree(parent, name, deadline, notes)
    return tuple(notes)


def remove_below(parent: int, name: str, deadline: Deadline, notes: list[str]) -> None:
    """Remove a user's folder in an open folder of root's, with its contents, however deep; add a sentence to `notes`
    for each file system that its user had mounted there. Raises OSError."""
    _remove_tree(parent, name, deadline, notes)


def remove_user(place: MpsPlace) -> None:
    """Remove the user's folder above the pipe directory if it is empty."""
    try:
        os.rmdir(os.path.dirname(place.pipe))  # noqa: PTH106, PTH120
    except OSError:
        pass


def bound_logs(place: MpsPlace, limit_bytes: int = LOG_LIMIT_BYTES) -> tuple[str, ...]:
    """Empty the logs that are larger on disk than the limit; return their names. Called whenever a daemon is joined.

    The daemon appends, so it continues at the new end. RLIMIT_FSIZE is no alternative: its signal would end the daemon
    or server with all clients, and it also limits their shared memory.
    """
    emptied = []
    try:
        logs = os.open(place.logs, _FOLDER)
    except OSError:
        return ()
    try:
        for name in LOG_FILES:
            fd = _open_log(logs, name, os.O_WRONLY, place)
            if fd is None:
                continue
            with os.fdopen(fd, "wb", buffering=0):
                if os.fstat(fd).st_blocks * 512 > limit_bytes:
                    os.ftruncate(fd, 0)
                    emptied.append(name)
    finally:
        os.close(logs)
    return tuple(emptied)


def last_log_line(place: MpsPlace, name: str) -> str:
    """Return the last line of a log, for an error message; empty if there is none."""
    try:
        logs = os.open(place.logs, _FOLDER)
    except OSError:
        return ""
    try:
        fd = _open_log(logs, name, os.O_RDONLY, place)
        if fd is None:
            return ""
        with os.fdopen(fd, "rb") as file:
            file.seek(max(0, os.fstat(fd).st_size - 2048))
            lines = file.read(2048).decode(errors="replace").splitlines()
        return lines[-1].strip() if lines else ""
    finally:
        os.close(logs)


def _open_log(logs: int, name: str, flags: int, place: MpsPlace) -> int | None:
    """Open a log if it is a regular file of the owner's without a second hard link; None for anything else, which can
    be another user's file."""
    try:
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=logs)
    except OSError:
        return None
    info = os.fstat(fd)
    if stat.S_ISREG(info.st_mode) and info.st_nlink == 1 and info.st_uid == place.owner.uid:
        return fd
    os.close(fd)
    return None


def _leaf(place: MpsPlace) -> str:
    return os.path.basename(place.pipe)  # noqa: PTH119


@contextmanager
def _translated(place: MpsPlace) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MpsFolderError(place.pipe, f"its folder cannot be made or removed: {error.strerror}") from error


@contextmanager
def _parents(place: MpsPlace, make: bool) -> Iterator[int]:
    """Open the folder above the pipe directory without following a link, and check that nobody else can write to it.

    Yield -1 if it is missing and not to be made.
    """
    above = os.path.dirname(place.pipe)  # noqa: PTH120
    name = os.path.basename(above)  # noqa: PTH119
    top = _open_folder(os.path.dirname(above), make, None, _FOLDER & ~os.O_NOFOLLOW)  # noqa: PTH120
    try:
        parent = -1 if top < 0 else _open_folder(name, make, top, _FOLDER)
        try:
            for fd, sticky_will_do in ((top, True), (parent, False)):
                if fd >= 0:
                    _check(fd, sticky_will_do, place)
            yield parent
        finally:
            if parent >= 0:
                os.close(parent)
    finally:
        if top >= 0:
            os.close(top)


def _open_folder(path: str, make: bool, above: int | None, flags: int) -> int:
    """Open a folder, after making it with mode 0711 if `make`; return -1 if it is missing and not to be made."""
    if make:
        try:
            os.mkdir(path, 0o711, dir_fd=above)
        except FileExistsError:
            pass
    try:
        return os.open(path, flags, dir_fd=above)
    except FileNotFoundError:
        if make:
            raise
        return -1


def _check(fd: int, sticky_will_do: bool, place: MpsPlace) -> None:
    info = os.fstat(fd)
    owners = (0, os.geteuid()) if sticky_will_do else (os.geteuid(),)
    open_to_all = info.st_mode & 0o022 and not (sticky_will_do and info.st_mode & stat.S_ISVTX)
    if info.st_uid not in owners or open_to_all:
        raise MpsFolderError(
            place.pipe,
            f"the folder around it belongs to uid {info.st_uid} with mode {stat.S_IMODE(info.st_mode):04o}; it must be "
            f"the caller's (uid {os.geteuid()}) and writable by nobody else",
        )


@contextmanager
def _opened(name: str, above: int) -> Iterator[int]:
    fd = os.open(name, _FOLDER, dir_fd=above)
    try:
        yield fd
    finally:
        os.close(fd)


def _hand_over(fd: int, place: MpsPlace) -> None:
    os.fchmod(fd, 0o700)
    if os.geteuid() == 0:
        os.fchown(fd, place.owner.uid, place.owner.gid)


def _remove_tree(parent: int, name: str, deadline: Deadline, notes: list[str]) -> None:
    """Remove a folder with its contents, however deep: first move the contents of inner folders to the top."""
    mounts.uncover(parent, name, notes)
    try:
        top = _take(name, parent)
    except NotADirectoryError:
        mounts.unlink(name, parent, notes)
        return
    try:
        for entry in _names(top, deadline):
            _remove_entry(top, entry, deadline, notes)
    finally:
        os.close(top)
    mounts.rmdir(name, parent, notes)


def _remove_entry(top: int, entry: str, deadline: Deadline, notes: list[str]) -> None:
    if _unlinked(entry, top, notes):
        return
    mounts.uncover(top, entry, notes)
    inner = _take(entry, top)
    try:
        for child in _names(inner, deadline):
            if not _unlinked(child, inner, notes):
                mounts.retry_uncovered(partial(_move_to_top, child, inner, entry, top), inner, child, notes)
    finally:
        os.close(inner)
    mounts.rmdir(entry, top, notes)


def _move_to_top(child: str, inner: int, entry: str, top: int) -> None:
    os.rename(child, f"{entry[:16]}.{time.monotonic_ns()}", src_dir_fd=inner, dst_dir_fd=top)


def _names(folder: int, deadline: Deadline) -> Iterator[str]:
    """Yield the names in a folder until it is empty; the caller removes each. Raises TimeoutError at the deadline."""
    while True:
        scan = Scan(folder, deadline, BATCH)
        batch = [entry.name for entry in scan]
        if not batch and scan.is_whole:
            return
        for name in batch:
            if deadline.left() <= 0:
                break
            yield name
        if deadline.left() <= 0:
            raise TimeoutError(0, "it has too many entries to be removed in time")


def _take(name: str, above: int) -> int:
    """Open a folder and make it accessible to the caller only, so that its user cannot write into it any more."""
    fd = os.open(name, _FOLDER, dir_fd=above)
    if os.geteuid() == 0:
        os.fchown(fd, 0, 0)
    os.fchmod(fd, 0o700)
    return fd


def _unlinked(name: str, folder: int, notes: list[str]) -> bool:
    """Remove a file; return False if it is a folder."""
    try:
        mounts.unlink(name, folder, notes)
    except IsADirectoryError:
        return False
    return True
