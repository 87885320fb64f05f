"""Read a file that only root or its reader can have written, and replace a file atomically."""

from __future__ import annotations

import grp
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from .errors import StateError


def read(file: Path, most_bytes: int) -> bytes | None:
    """Return the file's content, at most `most_bytes`; None: there is no such file.

    Raises StateError if it cannot be read, is a link or no regular file, or another user owns it or may write it. The
    caller adds what to do about it.
    """
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(str(file), f"cannot be read ({error.strerror})") from error
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid not in (0, os.geteuid()) or seen.st_mode & 0o022:
            raise StateError(
                str(file),
                "is no file, belongs to another user or can be written by one "
                f"(uid {seen.st_uid}, mode {seen.st_mode & 0o7777:04o})",
            )
        with open(fd, "rb", closefd=False) as stream:
            return stream.read(most_bytes)
    except OSError as error:
        raise StateError(str(file), f"cannot be read ({error.strerror})") from error
    finally:
        os.close(fd)


def read_regular(
    file: Path | str,
    most_bytes: int,
    *,
    start: int = 0,
    uid: int | None = None,
    follows: bool = False,
    folder: int | None = None,
) -> bytes | None:
    """Return at most `most_bytes` of a file from `start` on; None: it is no regular file, or another user's.

    `uid`: the owner that it must have; None: any. `follows`: a link stands for its file; otherwise it is an error.
    `folder`: the descriptor of the folder that the path is relative to. A fifo does not block. Raises OSError.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follows else os.O_NOFOLLOW)
    fd = os.open(file, flags, dir_fd=folder)
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or (uid is not None and seen.st_uid != uid):
            return None
        return read_from(fd, start, most_bytes)
    finally:
        os.close(fd)


def read_from(fd: int, start: int, most_bytes: int) -> bytes:
    """Return at most `most_bytes` of an open file from `start` on. Raises OSError."""
    parts = []
    while most_bytes > 0 and (part := os.pread(fd, min(most_bytes, 1 << 20), start)):
        parts.append(part)
        start += len(part)
        most_bytes -= len(part)
    return b"".join(parts)


def write(
    file: Path,
    data: bytes,
    *,
    mode: int = 0o600,
    new: Path | None = None,
    finish: Callable[[int], None] | None = None,
    flush: bool = False,
    folder: int | None = None,
) -> None:
    """Write a new file and rename it to `file`, so that readers see all of the old or all of the new content.

    `mode`: the new file's, before the umask. `new`: its name until the rename, in the same folder; a file of that name,
    which a killed process may have left, is removed first. Default: a name that no other file has. `finish`: sets owner
    and mode, given the descriptor. `flush`: write it to disk before the rename, against a power cut, or because a
    network file system says only then that it is full. `folder`: the descriptor of the folder that the paths are
    relative to. Raises OSError, and removes the new file then.
    """
    # The new file is always made here (O_EXCL): one that was there already may be open in another process.
    if new is None:
        new = file.parent / f".{file.name}.{os.getpid()}.{time.time_ns()}"
    else:
        try:
            os.unlink(new, dir_fd=folder)
        except FileNotFoundError:
            pass
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(new, flags, mode, dir_fd=folder)
    try:
        with open(fd, "wb") as stream:
            stream.write(data)
            stream.flush()
            if finish is not None:
                finish(fd)
            if flush:
                os.fsync(fd)
        os.replace(new, file, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        try:
            os.unlink(new, dir_fd=folder)
        except OSError:
            pass
        raise


def group_id(name: str) -> int | None:
    """Return the id of a group; None: the name is empty, or this host has no such group."""
    try:
        return grp.getgrnam(name).gr_gid if name else None
    except KeyError:
        return None
