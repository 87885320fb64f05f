"""Share bookings of GPU memory between the launchers of one user on a node, so that no two book the same memory.

The bookings of a launcher are in `bookings.json` in its folder (core/live.py). Reading and booking are one critical
section, under a lock that is in the folder around it. The lock's file holds a counter of changes, so that a launcher of
short tasks need not read all files before each start.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core import files, live, locks, own_folders, text_files
from ..core.errors import StateError
from ..core.live import LiveFolder
from ..core.process import Deadline
from ..core.records import Amount, Count, JobStart, Moment
from ..node.gpu_figures import GpuBooking

BOOKINGS = "bookings.json"
MOST_BYTES = 64 * 1024
LOCK = "lock"
PATIENCE_S = 2.0
"""Longest wait for the lock. It is normally held for less than 10 ms, longer if a launcher is stopped (SIGSTOP)."""
PAUSE_S = 0.001
FRESH_S = 1.0
"""Others' bookings are read again after this time even without a change: a launcher that dies does not count up."""
_COUNT = struct.Struct("=Q")


class BookingsBusyError(StateError):
    """Raised when another launcher holds the lock for too long."""


class Booking(Struct, frozen=True, kw_only=True):
    """The booking of one launcher on one GPU, as its file has it by the GPU's UUID."""

    booked_mib: Count = 0
    """Sum over all its tasks there."""
    memory_mib: Count = 0
    """Memory in use by its tasks at the last sample."""
    clients: Count = 0
    """Number of their CUDA processes."""
    tasks: Count = 0
    held_for: Count | None = None
    """The task for which the GPU is kept free; None: none."""
    held_since: Moment | None = None
    """Start of that hold, Unix time in seconds; None: none."""
    job: str | Amount = ""


class OtherBookings(Struct, frozen=True):
    """The figures of another launcher of the user on one GPU, or the sums over all of them.

    They have no limits: a file with one wrong figure must not count as no booking, or its memory is booked twice.
    """

    booked_mib: int = 0
    memory_mib: int = 0
    clients: int = 0


class Bookings:
    """The bookings of this launcher, and access to those of the others."""

    def __init__(self, own: LiveFolder, job: str, gpus: Sequence[str]) -> None:
        """Make the file without bookings. `job` names the launcher's job; `gpus` are UUIDs.

        Raises StateError if the folder cannot be used.
        """
        self.folder = own.outer
        self._live, self._job = own, job
        self._written = {gpu: Booking(job=job) for gpu in gpus}
        self._count = -1
        self._read_at = 0.0
        self._others: dict[str, OtherBookings] = {}
        self._lock = self._file = -1
        try:
            self._lock = own_folders.open_file(own.base, LOCK, own.outer)
            self._file = own_folders.open_file(own.fd, BOOKINGS, own.path)
        except BaseException:
            self._close_all()
            raise

    @contextmanager
    def section(self) -> Iterator[None]:
        """Hold the lock of all launchers of the user, so that no booking changes meanwhile.

        Raises BookingsBusyError if another process holds it for too long.
        """
        if not locks.take(self._lock, Deadline.after(PATIENCE_S), PAUSE_S):
            raise BookingsBusyError(
                str(self.folder / LOCK), f"another launcher of yours holds it for more than {PATIENCE_S:g} s"
            )
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def others(self) -> Mapping[str, OtherBookings]:
        """Return the bookings of others by GPU (UUID), and remove files of dead launchers. Call it in `section` only.

        Raises StateError if the folder cannot be read.
        """
        try:
            count = self._read_count()
            now = time.monotonic()
            if count != self._count or now - self._read_at > FRESH_S:
                self._others = self._read_others()
                self._count, self._read_at = count, now
        except OSError as error:
            raise StateError(str(self.folder), f"cannot be read ({error.strerror})") from error
        return self._others

    def write(self, bookings: Mapping[str, Booking]) -> None:
        """Replace the bookings of this launcher on each GPU (UUID). Call it in `section` only.

        Raises StateError if a file cannot be written.
        """
        whole = {gpu: msgspec.structs.replace(one, job=self._job) for gpu, one in bookings.items()}
        whole = self._written | {gpu: one for gpu, one in whole.items() if gpu in self._written}
        if whole == self._written:
            return
        data = msgspec.json.encode(whole)
        try:
            # Write in place, which is fast: launchers read in the section only, and status displays read again.
            if os.pwrite(self._file, data, 0) != len(data):
                raise OSError(28, "No space left on device")
            os.ftruncate(self._file, len(data))
        except OSError as error:
            raise StateError(str(self.folder), f"cannot be written ({error.strerror})") from error
        self._written = whole
        self._raise_count()

    def close(self) -> None:
        """Remove all bookings of this launcher. Guard and loop may both call it, also twice."""
        if self._lock < 0:
            return
        try:
            with self.section():
                self._live.remove(BOOKINGS)
                self._raise_count()
        except (OSError, StateError):
            pass  # the lock of the launcher ends with it
        self._close_all()

    def _close_all(self) -> None:
        for fd in (self._file, self._lock):
            if fd >= 0:
                os.close(fd)
        self._file = self._lock = -1

    def _read_others(self) -> dict[str, OtherBookings]:
        """Return the sums over all other living launchers, for each GPU of this one."""
        found: dict[str, list[OtherBookings]] = {gpu: [] for gpu in self._written}
        for folder in self._live.others():
            try:
                data = files.read_regular(BOOKINGS, MOST_BYTES, folder=folder) or b""
                for gpu, one in msgspec.json.decode(data, type=dict[str, OtherBookings]).items():
                    if gpu in found:
                        found[gpu].append(one)
            except (OSError, *text_files.NOT_JSON):
                continue  # it books nothing yet, or its user has put another file there
        return {
            gpu: OtherBookings(
                booked_mib=sum(max(one.booked_mib, 0) for one in parts),
                memory_mib=sum(max(one.memory_mib, 0) for one in parts),
                clients=sum(max(one.clients, 0) for one in parts),
            )
            for gpu, parts in found.items()
        }

    def _read_count(self) -> int:
        data = os.pread(self._lock, _COUNT.size, 0)
        return int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else 0

    def _raise_count(self) -> None:
        count = (self._read_count() + 1) % (1 << 64)
        os.pwrite(self._lock, _COUNT.pack(count), 0)
        if self._count == count - 1:
            self._count = count  # the change is our own


# ---- For status displays ----

_decode = msgspec.json.Decoder(dict[str, Booking]).decode


def read_bookings(
    tmp: Path, uid: int, gpus: Collection[str], given: Path | None = None
) -> dict[str, tuple[GpuBooking, ...]]:
    """Return the bookings of a user's living launchers by GPU (UUID), without GPUs that have none. `given`: the folder
    that root makes for the user.

    Raises no error: what cannot be read is ignored.
    """
    found: dict[str, tuple[GpuBooking, ...]] = {}
    for of_launcher in live.read_all(tmp, uid, BOOKINGS, _decode, MOST_BYTES, given):
        for gpu, one in of_launcher.items():
            if gpu in gpus:
                shown = GpuBooking(
                    uid=uid, job=JobStart.parse(str(one.job)).number, booked_mib=one.booked_mib, tasks=one.tasks,
                    clients=one.clients, held_for=one.held_for, held_since=one.held_since,
                )  # fmt: skip
                found[gpu] = (*found.get(gpu, ()), shown)
    return found
