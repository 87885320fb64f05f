"""Read a user's bookings of GPU memory for status displays.

A launcher keeps a file for each of its GPUs, `bookings/<gpu uuid>/<job>.<pid>` in the user's folder
(core/own_folders.py), one JSON object that is rewritten in place. The reader may be root or an operator, and the user
controls the folders: a link, a file of another user, and files beyond the number that launchers make are ignored.
Nothing is locked, changed or removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core import files, own_folders, text_files
from ..core.records import Amount, Count, JobStart, Moment

FOLDER = "bookings"
MOST_FILES = 64
"""Most files of one user on one GPU: more launchers than run there."""
MOST_BYTES = 4096
TRIES = 3
"""Number of reads, since a file that is being written may be incomplete."""


class BookingRead(Struct, frozen=True, kw_only=True):
    """The booking of one launcher on one GPU, as far as it is shown."""

    booked_mib: Count = 0
    """Sum over all its tasks there."""
    clients: Count = 0
    """Number of their CUDA processes."""
    tasks: Count = 0
    held_for: Count | None = None
    """The task for which the GPU is kept free; None: none."""
    held_since: Moment | None = None
    """Start of that hold, Unix time in seconds; None: none."""
    job: str | Amount = ""
    pid: Count = 0
    """Process of the launcher; with `start_ticks`, as in proc(5)."""
    start_ticks: Count = 0

    @property
    def job_number(self) -> int | None:
        """Return the number of the launcher's Slurm job; None: it runs outside of Slurm."""
        return JobStart.parse(str(self.job)).number


Lives = Callable[[int, int, int], bool]
"""Returns whether the process with this pid, start time and uid exists."""


def read_bookings(
    tmp: Path, uid: int, gpus: Iterable[str], lives: Lives, given: Path | None = None
) -> dict[str, tuple[BookingRead, ...]]:
    """Return the bookings of a user's running launchers by GPU (UUID), without GPUs that have none. `given`: the folder
    that root makes for the user.

    Raises no error: what cannot be read is ignored.
    """
    names = [gpu for gpu in gpus if "/" not in gpu and gpu not in ("", ".", "..")]
    found: dict[str, tuple[BookingRead, ...]] = {}
    for base in own_folders.open_all_of_user(tmp, FOLDER, uid, given):
        try:
            for gpu in names:
                folder = own_folders.open_of_user(os.dup(base), gpu, uid)
                if folder is None:
                    continue
                try:
                    read = tuple(one for one in _read_all(folder, uid) if lives(one.pid, one.start_ticks, uid))
                finally:
                    os.close(folder)
                if read:
                    found[gpu] = found.get(gpu, ()) + read
        finally:
            os.close(base)
    return found


def _read_all(folder: int, uid: int) -> list[BookingRead]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, MOST_FILES))
    except OSError:
        return []
    return [booking for name in names if (booking := _read(folder, name, uid)) is not None]


def _read(folder: int, name: str, uid: int) -> BookingRead | None:
    for _ in range(TRIES):
        try:
            data = files.read_regular(name, MOST_BYTES, uid=uid, folder=folder)
            return None if data is None else msgspec.json.decode(data, type=BookingRead)
        except OSError:
            return None
        except text_files.NOT_JSON:
            continue
    return None
