"""Make and open folders and files of one user below a folder that all users can write to.

Each component is opened relative to its parent, without following links, and checked after it is open: in /tmp, another
user may have put anything in its place.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import StateError

TRIES = 100
"""Attempts to make a folder in one that other processes of the user may remove while it is empty.

Four launchers that start and end without a pause made five attempts fail now and then."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def user_folder(uid: int) -> str:
    """Return the name of a user's folder below the node's /tmp."""
    return f"slurm-share-{uid}"


def file_name(text: str) -> str:
    """Return a file's name for a GPU or a job, of at most 128 characters."""
    return text if _NAME.fullmatch(text) else "x" + text.encode().hex()[:120]


def open_below(outer: Path, names: Sequence[str]) -> int:
    """Return the open folder `outer`/NAME/NAME..., each made with mode 0700 where it is missing.

    Raises OSError if `outer` cannot be opened, StateError if others can use a folder below it.
    """
    for _ in range(TRIES - 1):
        try:
            return _open_below(outer, names)
        except FileNotFoundError:
            pass  # removed by remove_empty of another process
    return _open_below(outer, names)


def remove_empty(outer: Path, names: Sequence[str]) -> None:
    """Remove the empty folders of open_below, the innermost first. Ignore errors."""
    try:
        for depth in range(len(names), 0, -1):
            outer.joinpath(*names[:depth]).rmdir()
    except OSError:
        pass


def _open_below(outer: Path, names: Sequence[str]) -> int:
    fd, where = os.open(outer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), outer
    for name in names:
        try:
            inner = open_folder(fd, name, where)
        finally:
            os.close(fd)
        fd, where = inner, where / name
    return fd


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
        fd = os.open(name, _FOLDER, dir_fd=parent)
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
