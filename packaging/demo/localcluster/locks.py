"""Locks between processes. The kernel frees them when their holder is gone, however it went."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import ClusterError, Misuse
from .progress import Say

_LONGEST_S = 400.0
"""Nothing is made in more than a minute or two; past this, whoever holds the lock hangs."""
_GRACE_S = 0.5
"""A program a killed holder was just starting has its files open until its exec."""


@contextlib.contextmanager
def waiting(path: Path, say: Say) -> Iterator[None]:
    """Hold `path` exclusively; where another process holds it, say so and wait.

    Raises ClusterError, naming the holder, where it does not let go for minutes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if not _try(file.fileno()):
            say(f"  waiting for another process that is making the same ({path.stem})")
            if not _try_for(file.fileno(), _LONGEST_S):
                raise ClusterError(
                    f"{path} is held for more than {_LONGEST_S:.0f} s by {_holders(path)}; end that first"
                )
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


def _holders(path: Path) -> str:
    """The processes that hold a lock on the file, as /proc/locks has them."""
    inode = f":{path.stat().st_ino}"
    lines = [line.split() for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines()]
    pids = sorted({words[4] for words in lines if words[1] == "FLOCK" and words[5].endswith(inode)})
    return ", ".join(f"process {pid}" for pid in pids) or "a process that /proc/locks does not name"


def _is_still(fd: int, path: Path) -> bool:
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(fd)
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)
