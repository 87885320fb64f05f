"""Locks between processes; the kernel releases a lock when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import ClusterError, Misuse
from .progress import say

_LONGEST_S = 1800.0
"""Building takes two minutes, and many on a busy machine; if a lock is held longer than this, its holder hangs."""
_GRACE_S = 0.5
"""A program that a killed holder was starting keeps the file open until its exec."""


@contextlib.contextmanager
def waiting(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; report if another process holds it, and wait.

    Raises ClusterError, naming the holder, if that takes minutes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if not _try_lock(file.fileno()):
            say(f"  waiting for another process that is making the same ({path.stem})")
            if not _try_lock_for(file.fileno(), _LONGEST_S):
                raise ClusterError(
                    f"{path} is held for more than {_LONGEST_S:.0f} s by {_holders(path)}; end that first"
                )
        yield


@contextlib.contextmanager
def exclusively(path: Path, refusal: str) -> Iterator[None]:
    """Hold an exclusive lock on `path`, or raise Misuse(`refusal`) after a short wait; remove the file at the end.

    Since the file is removed, a process that gets the lock must check that its file still has that name.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # a cluster that went down meanwhile removed the folder
        if not _try_lock_for(fd, _GRACE_S):
            os.close(fd)
            raise Misuse(refusal)
        if _is_same_file(fd, path):
            break
        os.close(fd)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # succeeds only if no other cluster is there


def made_once(home: Path, fill: Callable[[Path], object], *, kind: str = "") -> Path:
    """Return the folder `home`. If it is missing, `fill` makes it under another name, so that it is complete or absent.

    The caller holds a lock on all folders whose name begins with `kind` (default: on this one).
    """
    if not home.exists():
        for left in home.parent.glob(f".making-{kind or home.name + '-'}*"):
            shutil.rmtree(left, ignore_errors=True)  # its builder has ended
        # a program of a killed builder may still write into its folder, so ours has a name of its own
        making = home.with_name(f".making-{home.name}-{os.getpid()}")
        making.mkdir(parents=True)
        try:
            fill(making)
            making.rename(home)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return home


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _try_lock_for(fd: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not _try_lock(fd):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _holders(path: Path) -> str:
    """Return the processes that hold a lock on the file, from /proc/locks."""
    inode = f":{path.stat().st_ino}"
    lines = [line.split() for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines()]
    pids = sorted({words[4] for words in lines if words[1] == "FLOCK" and words[5].endswith(inode)})
    return ", ".join(f"process {pid}" for pid in pids) or "a process that /proc/locks does not name"


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
