"""Read a user's bookings of GPU memory for status displays, which may belong to root or an operator (core/live.py)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core import live
from ..core.records import Amount, Count, JobStart, Moment

BOOKINGS = "bookings.json"
MOST_BYTES = 64 * 1024


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

    @property
    def job_number(self) -> int | None:
        """Return the number of the launcher's Slurm job; None: it runs outside of Slurm."""
        return JobStart.parse(str(self.job)).number


_decode = msgspec.json.Decoder(dict[str, BookingRead]).decode


def read_bookings(
    tmp: Path, uid: int, gpus: Collection[str], given: Path | None = None
) -> dict[str, tuple[BookingRead, ...]]:
    """Return the bookings of a user's living launchers by GPU (UUID), without GPUs that have none. `given`: the folder
    that root makes for the user.

    Raises no error: what cannot be read is ignored.
    """
    found: dict[str, tuple[BookingRead, ...]] = {}
    for of_launcher in live.read_all(tmp, uid, BOOKINGS, _decode, MOST_BYTES, given):
        for gpu, booking in of_launcher.items():
            if gpu in gpus:
                found[gpu] = (*found.get(gpu, ()), booking)
    return found
