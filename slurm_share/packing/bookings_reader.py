"""What the packing launchers of a user have booked of a node's GPUs, for people who look.

A launcher keeps a file for each of its GPUs, `<tmp>/slurm-share-<uid>/bookings/<gpu uuid>/<job>.<pid>`, one JSON object
that is rewritten in place. Whoever looks may be root or an operator, and the folders are a user's own: a folder or file
that is a link, somebody else's, or more than a launcher makes is passed over. Nothing is locked, changed or removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core import own_folders
from ..core.records import Amount, Count, Moment

MOST_FILES = 64
"""Of one user on one GPU: more launchers than anybody runs there."""
MOST_BYTES = 4096
TRIES = 3
"""A file that is just being written may be read half."""
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class BookingRead(Struct, frozen=True, kw_only=True):
    """What one launcher has booked of one GPU."""

    booked_mib: Count = 0
    """For all its tasks there together."""
    clients: Count = 0
    """CUDA processes that they have."""
    tasks: Count = 0
    held_for: Count | None = None
    """The task for which it keeps the GPU free; None: it does not."""
    held_since: Moment | None = None
    """Unix time, seconds; None: not told."""
    job: str | Amount = ""
    pid: Count = 0
    start_ticks: Count = 0
    """pid and start time of the launcher, as in proc(5)."""

    @property
    def job_number(self) -> int | None:
        """Return Slurm's number of its job; None: it runs outside."""
        text = str(self.job)
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else None


Lives = Callable[[int, int, int], bool]
"""(pid, start time, uid) -> whether that process of that user lives."""


def read_bookings(tmp: Path, uid: int, gpus: Iterable[str], lives: Lives) -> dict[str, tuple[BookingRead, ...]]:
    """Return what a user's living launchers have booked, by GPU (UUID); GPUs without a booking are left out.

    Raises no error: what cannot be read is as good as not there.
    """
    base = own_folders.open_of_user(
        own_folders.open_of_user(_open(tmp), own_folders.user_folder(uid), uid), "bookings", uid
    )
    if base is None:
        return {}
    found = {}
    try:
        for gpu in gpus:
            if "/" in gpu or gpu in ("", ".", ".."):
                continue
            folder = own_folders.open_of_user(os.dup(base), gpu, uid)
            if folder is None:
                continue
            try:
                read = tuple(one for one in _read_all(folder, uid) if lives(one.pid, one.start_ticks, uid))
            finally:
                os.close(folder)
            if read:
                found[gpu] = read
    finally:
        os.close(base)
    return found


def _open(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def _read_all(folder: int, uid: int) -> list[BookingRead]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, MOST_FILES))
    except OSError:
        return []
    return [booking for name in names if (booking := _read(folder, name, uid)) is not None]


def _read(folder: int, name: str, uid: int) -> BookingRead | None:
    try:
        fd = os.open(name, _FILE, dir_fd=folder)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != uid:
            return None
        for _ in range(TRIES):
            try:
                return msgspec.json.decode(os.pread(fd, MOST_BYTES, 0), type=BookingRead)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
    except OSError:
        pass
    finally:
        os.close(fd)
    return None
