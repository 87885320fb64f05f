"""Make, check and remove the folders of MPS daemons: root makes them, gives them to a user and takes them back.

The pipe directory is its user's, so everything in it may be a trap: a link instead of a file, a folder that changes
while it is walked, ten thousand folders in one another. Nothing here follows a link, nothing recurses, and what is
removed was taken out of its user's reach first.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import MpsFolderError
from ..core.process import Deadline
from ..core.scan import Scan
from .records import MpsPlace

BATCH = 10_000
"""Names of a user's folder in memory at once."""
LOG_LIMIT_BYTES = 1024 * 1024
LOG_FILES = ("control.log", "server.log")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_parents(place: MpsPlace) -> None:
    """Make the folder that the pipe directory lies in, and the one above, 0711. Can be done twice.

    Raises MpsFolderError where somebody else could put things in the daemon's way there.
    """
    with _translated(place), _parents(place, make=True):
        pass


def make(place: MpsPlace) -> None:
    """Make the pipe directory and its log folder, fresh, the owner's, 0700. The daemon itself would make them 0777.

    Raises MpsFolderError; FileExistsError does not leave: whatever was there has to be removed before.
    """
    leaf = _leaf(place)
    with _translated(place), _parents(place, make=True) as parent:
        os.mkdir(leaf, 0o700, dir_fd=parent)
        with _opened(leaf, parent) as folder:
            os.mkdir("logs", 0o700, dir_fd=folder)
            with _opened("logs", folder) as logs:
                _hand_over(logs, place)
            _hand_over(folder, place)  # last: until here nobody else can reach in


def remove(place: MpsPlace, deadline: Deadline) -> None:
    """Remove the pipe directory with all in it, and what an earlier removal left. Nothing to do where there is none.

    Only after its daemon is gone: one that lost its folder lives on, out of everybody's reach (measured).
    Raises MpsFolderError where something cannot be removed.
    """
    leaf = _leaf(place)
    with _translated(place), _parents(place, make=False) as parent:
        if parent < 0:
            return
        try:
            os.rename(leaf, f".{leaf}.{time.monotonic_ns()}", src_dir_fd=parent, dst_dir_fd=parent)
        except FileNotFoundError:
            pass
        for name in [entry.name for entry in os.scandir(parent) if entry.name.startswith(f".{leaf}.")]:
            _remove_tree(parent, name, deadline)


def remove_user(place: MpsPlace) -> None:
    """Remove the folder of a user without daemons, unless something is still in it."""
    try:
        os.rmdir(os.path.dirname(place.pipe))  # noqa: PTH106, PTH120
    except OSError:
        pass


def bound_logs(place: MpsPlace, limit_bytes: int = LOG_LIMIT_BYTES) -> tuple[str, ...]:
    """Empty the logs that have grown beyond the limit; return their names. Called on every visit to a daemon.

    The daemon appends, so it goes on at the new end. Not RLIMIT_FSIZE: its signal would end the daemon or server with
    all clients, and it holds for their shared memory, too. Counted is what a file takes, not how long it says it is.
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
    """Return the end of a log, for a sentence about what went wrong; empty where there is none."""
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
    """Open a log that is a plain file of the owner's with no second name: anything else may be another user's file."""
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
    """Open the folder above the pipe directory without following a link, and prove that nobody else can write to it.

    Where it is not there and not to be made, -1.
    """
    above = os.path.dirname(place.pipe)  # noqa: PTH120
    name = os.path.basename(above)  # noqa: PTH119
    top = _open_top(os.path.dirname(above), make)  # noqa: PTH120
    try:
        parent = -1 if top < 0 else _open_parent(name, top, make)
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


def _open_top(path: str, make: bool) -> int:
    if make:
        try:
            os.mkdir(path, 0o711)  # noqa: PTH102
        except FileExistsError:
            pass
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        if make:
            raise
        return -1


def _open_parent(name: str, top: int, make: bool) -> int:
    if make:
        try:
            os.mkdir(name, 0o711, dir_fd=top)
        except FileExistsError:
            pass
    try:
        return os.open(name, _FOLDER, dir_fd=top)
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


def _remove_tree(parent: int, name: str, deadline: Deadline) -> None:
    """Remove a folder with all in it, however deep: what lies in an inner folder is moved to the outermost one
    first."""
    try:
        top = _take(name, parent)
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent)
        return
    try:
        for entry in _names(top, deadline):
            _remove_entry(top, entry, deadline)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _remove_entry(top: int, entry: str, deadline: Deadline) -> None:
    if _unlinked(entry, top):
        return
    inner = _take(entry, top)
    try:
        for child in _names(inner, deadline):
            if not _unlinked(child, inner):
                os.rename(child, f"{entry[:16]}.{time.monotonic_ns()}", src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(entry, dir_fd=top)


def _names(folder: int, deadline: Deadline) -> Iterator[str]:
    """Yield what is in a folder until it is empty: the caller removes each entry. Raises TimeoutError at the
    deadline."""
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
            raise TimeoutError(0, "too much lies in it to be removed in time")


def _take(name: str, above: int) -> int:
    """Open a folder and make it the caller's alone: its user can put nothing more into it."""
    fd = os.open(name, _FOLDER, dir_fd=above)
    if os.geteuid() == 0:
        os.fchown(fd, 0, 0)
    os.fchmod(fd, 0o700)
    return fd


def _unlinked(name: str, folder: int) -> bool:
    """Remove an entry; return False if it is a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True
