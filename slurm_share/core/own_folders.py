"""Make and open the folder in which one user's launchers on a node tell each other, and status displays, what they do.

Root makes one below the state folder for the user of a shared job. Elsewhere it is `slurm-share-UID` in the node's
/tmp, where any user can make that name first. If it is not a folder of the user's alone, `slurm-share-UID.RANDOM` takes
its place: nobody else can know that name in advance, and the user's other processes find it by its owner, since no user
can make a folder that belongs to another.

Each component is opened relative to its parent, without following links, and checked after it is open. One on which a
file system is mounted is nobody's: a user can mount one that claims another owner, or never answers (fusermount3 with
user_allow_other in fuse.conf).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from . import mounts
from .errors import StateError
from .process import Deadline
from .scan import Scan

TRIES = 100
"""Attempts to make a folder in one that other processes of the user may remove while it is empty.

Four launchers that start and end without a pause made five attempts fail now and then."""
MAKER_SEARCH_S, READER_SEARCH_S = 2.0, 0.05
"""The most time to search /tmp for the user's folders: for a launcher, and for a status display, which reads often."""
MOST_FOLDERS = 8
"""The most folders of one user that are read. Launchers use one at a time."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def user_folder(uid: int) -> str:
    """Return the first choice for the name of a user's folder in the node's /tmp."""
    return f"slurm-share-{uid}"


def random_suffix() -> str:
    """Return the end of a name in /tmp that no other user can make first."""
    return f".{os.urandom(8).hex()}"


def file_name(text: str) -> str:
    """Return a file's name for a GPU or a job, of at most 128 characters."""
    return text if _NAME.fullmatch(text) else "x" + os.fsencode(text).hex()[:120]


def open_own(tmp: Path, names: Sequence[str], given: Path | None = None) -> tuple[int, Path]:
    """Return the open folder NAME/NAME... of this user on the node, and its path. Make what is missing, with mode 0700.

    `given`: the folder that root makes for the user; used if it exists. `tmp`: where the user's folder is otherwise.
    Raises OSError if it cannot be made there, StateError if others can use a folder below the user's.
    """
    for _ in range(TRIES - 1):
        try:
            return _open_own(tmp, names, given)
        except FileNotFoundError:
            pass  # removed by remove_empty of another process, or two were made at the same time
    return _open_own(tmp, names, given)


def remove_empty(folder: Path, given: Path | None = None) -> None:
    """Remove an empty folder of open_own, and the user's around it if it is empty and not `given`. Ignore errors."""
    with contextlib.suppress(OSError):
        folder.rmdir()
        if folder.parent != given:
            folder.parent.rmdir()


def open_all_of_user(tmp: Path, name: str, uid: int, given: Path | None = None) -> list[int]:
    """Return the open folder `name` of each of the user's folders on this node; see open_own.

    For readers such as root: makes nothing. What is in the folders is the user's and must be checked.
    """
    bases = [] if given is None or (fd := _opened_given(given, uid)) is None else [fd]
    try:
        outer = os.open(tmp, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        outer = -1
    if outer >= 0:
        try:
            bases += [fd for _, fd in _existing(outer, uid, READER_SEARCH_S)]
        finally:
            os.close(outer)
    return [fd for base in bases if (fd := open_of_user(base, name, uid)) is not None]


def _open_own(tmp: Path, names: Sequence[str], given: Path | None) -> tuple[int, Path]:
    fd, where = _open_base(tmp, given)
    for name in names:
        try:
            inner = open_folder(fd, name, where)
        finally:
            os.close(fd)
        fd, where = inner, where / name
    return fd, where


def _open_base(tmp: Path, given: Path | None) -> tuple[int, Path]:
    uid = os.getuid()
    if given is not None and (fd := _opened_given(given, uid)) is not None:
        return fd, given
    outer = os.open(tmp, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = _existing(outer, uid, MAKER_SEARCH_S) or [_made(outer, uid, tmp)]
    finally:
        os.close(outer)
    for _, fd in found[1:]:
        os.close(fd)
    name, fd = found[0]
    return fd, tmp / name


def _existing(outer: int, uid: int, search_s: float) -> list[tuple[str, int]]:
    """Return name and descriptor of the user's folder in the open folder `outer`: the first choice, or all others."""
    first = user_folder(uid)
    fd = _opened(first, outer, uid)
    return [(first, fd)] if fd is not None else _others(outer, uid, search_s)


def _others(outer: int, uid: int, search_s: float) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for entry in Scan(outer, Deadline.after(search_s)):
        if entry.name.startswith(f"{user_folder(uid)}.") and (fd := _opened(entry.name, outer, uid)) is not None:
            found.append((entry.name, fd))
            if len(found) == MOST_FOLDERS:
                break
    return sorted(found)


def _made(outer: int, uid: int, where: Path) -> tuple[str, int]:
    """Make a folder of the user's in `outer`, where there is none; return its name and descriptor.

    Raises FileNotFoundError if another process of the user made one meanwhile, since all must use the same: each looks
    for others after making its own, so of two at least one sees the other's.
    """
    name = user_folder(uid)
    try:
        os.mkdir(name, 0o700, dir_fd=outer)
    except FileExistsError:
        name += random_suffix()
        os.mkdir(name, 0o700, dir_fd=outer)
    fd = _opened(name, outer, uid)
    if fd is None:
        os.stat(name, dir_fd=outer, follow_symlinks=False)  # FileNotFoundError: removed meanwhile
        raise StateError(str(where / name), "was made just now and is not a folder that only you can use")
    found = _others(outer, uid, MAKER_SEARCH_S)
    if (first := _opened(user_folder(uid), outer, uid)) is not None:
        found.append((user_folder(uid), first))
    for _, one in found:
        os.close(one)
    if {one for one, _ in found} == {name}:
        return name, fd
    os.close(fd)
    with contextlib.suppress(OSError):  # a third process uses it already
        os.rmdir(name, dir_fd=outer)
    raise FileNotFoundError(2, "another one was made at the same time", name)


def _opened_given(given: Path, uid: int) -> int | None:
    """Return root's folder for the user's launchers, open, if it is there."""
    try:
        parent = os.open(given.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _opened(given.name, parent, uid)
    finally:
        os.close(parent)


def _opened(name: str, parent: int, uid: int) -> int | None:
    """Return an open folder if it is this user's, nobody else can use it, and nothing is mounted on it."""
    try:
        fd = mounts.open_uncovered(name, parent)
    except OSError:
        return None
    found = os.fstat(fd)
    if found.st_uid == uid and not found.st_mode & 0o077:
        return fd
    os.close(fd)
    return None


def open_folder(parent: int, name: str, where: Path) -> int:
    """Return the open folder `name` in the open folder `parent`, whose path is `where`. Make it if it is missing.

    Raises StateError if others can use it, FileNotFoundError if it or `parent` was removed meanwhile.
    """
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        pass
    try:
        fd = os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StateError(str(where / name), f"is no folder, or a link ({error.strerror})") from error
    return _checked(fd, where / name, stat.S_ISDIR)


def open_file(folder: int, name: str, where: Path) -> int:
    """Return the open file `name` in the open folder `folder`, whose path is `where`. Make it if it is missing.

    Raises StateError if others can use it.
    """
    try:
        fd = os.open(name, _FILE, 0o600, dir_fd=folder)
    except OSError as error:
        raise StateError(str(where / name), f"cannot be opened ({error.strerror})") from error
    return _checked(fd, where / name, stat.S_ISREG)


def remove_file(folder: int, name: str) -> None:
    """Remove a file of an open folder if it exists."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def open_of_user(parent: int | None, name: str, uid: int) -> int | None:
    """Close `parent` and return its open folder `name`; None: there is none, or it is another user's.

    For readers such as root: makes nothing and checks no mode.
    """
    if parent is None:
        return None
    try:
        fd = mounts.open_uncovered(name, parent)
    except OSError:
        return None
    finally:
        os.close(parent)
    if os.fstat(fd).st_uid == uid:
        return fd
    os.close(fd)
    return None


def _checked(fd: int, where: Path, is_kind: Callable[[int], bool]) -> int:
    """Return an open folder or file. Close it and raise StateError if others can use it."""
    try:
        _check(fd, where, is_kind)
    except StateError:
        os.close(fd)
        raise
    return fd


def _check(fd: int, where: Path, is_kind: Callable[[int], bool]) -> None:
    found = os.fstat(fd)
    if not is_kind(found.st_mode):
        raise StateError(str(where), "is not what a launcher makes there; remove it")
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StateError(
            str(where),
            f"belongs to uid {found.st_uid} with mode {found.st_mode & 0o7777:04o}, and a launcher works in folders "
            "of your own that nobody else can use; remove it, or chmod go= it",
        )
