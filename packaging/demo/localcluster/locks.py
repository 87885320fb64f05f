"""Locks between processes. The kernel frees them when their holder is gone, however it went."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import Misuse
from .progress import Say

_GRACE_S = 0.5
"""A program a killed holder was just starting has its files open until its exec."""


@contextlib.contextmanager
def waiting(path: Path, say: Say) -> Iterator[None]:
    """Hold `path` exclusively; where another process holds it, say so and wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if not _try(file.fileno()):
            say(f"  waiting for another process that is making the same ({path.stem})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def at_once(path: Path, refusal: str) -> Iterator[None]:
    """Hold `path` exclusively or raise Misuse(`refusal`), nearly at once; the file is removed at the end.

    Removing a lock file is safe only if whoever gets the lock checks that it is still the file of that name.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # the folder was removed by a cluster going down at this moment
        if not _try_for(fd, _GRACE_S):
            os.close(fd)
            raise Misuse(refusal)
        if _is_still(fd, path):
            break
        os.close(fd)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # only succeeds when no other cluster is there


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _try_for(fd: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not _try(fd):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _is_still(fd: int, path: Path) -> bool:
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(fd)
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)
