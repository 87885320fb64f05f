"""A table of the task in each worker, in memory shared by loop, guard and watchdog, in case the loop is killed."""

from __future__ import annotations

import ctypes
import mmap
import struct

from msgspec import Struct

from ..records import ENV_ATTEMPT, ENV_TASK

_ROW = struct.Struct("=qqiiddqqq")
_ENDING = struct.Struct("=qq")
_PID = 16
_END = 40
_PAUSED = struct.calcsize("=qqiiddqq")
"""Offset of the last field of a row."""
_NONE = -1


class Row(Struct, frozen=True):
    """The task of one worker."""

    worker: int
    task: int
    attempt: int
    pid: int
    """0: the start was not confirmed."""
    started: float
    """Unix time, seconds."""
    since_boot: float
    """The same on CLOCK_BOOTTIME, seconds."""
    code: int | None = None
    """Exit code of a task that has ended and is not recorded yet."""
    signal: int | None = None
    gpu: int | None = None
    """Position of its GPU among the node's GPUs; None: the GPU of its worker."""
    paused_ticks: int = 0
    """Start time of its leader in clock ticks (field 22 of /proc/PID/stat) while the task is paused; 0: it runs."""

    @property
    def has_ended(self) -> bool:
        """Return whether the loop has seen the end of the task."""
        return (self.code, self.signal) != (None, None)

    @property
    def variables(self) -> set[bytes]:
        """Return the variables that identify the processes of the attempt."""
        return {f"{ENV_TASK}={self.task}".encode(), f"{ENV_ATTEMPT}={self.attempt}".encode()}


class Table:
    """One row per worker. Only the loop writes.

    If the loop is killed during a write, the row is of a task that had just started or that is already recorded.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._map = mmap.mmap(-1, max(workers, 1) * _ROW.size)
        for worker in range(workers):
            self.clear(worker)

    def begin(
        self, worker: int, task: int, attempt: int, started: float, since_boot: float, gpu: int | None = None
    ) -> None:
        """Enter a task that is about to be started. `gpu`: position of its GPU; None: the GPU of the worker."""
        place = _NONE if gpu is None else gpu
        _ROW.pack_into(self._map, worker * _ROW.size, task, attempt, 0, place, started, since_boot, _NONE, _NONE, 0)

    def pid_of(self, worker: int) -> ctypes.c_int:
        """Return the memory into which posix_spawn(3) writes the pid of a worker's task."""
        return ctypes.c_int.from_buffer(self._map, worker * _ROW.size + _PID)

    def end(self, worker: int, code: int | None, signal: int | None) -> None:
        """Enter the end of a task that is not recorded yet."""
        offset = worker * _ROW.size + _END
        _ENDING.pack_into(self._map, offset, _NONE if code is None else code, _NONE if signal is None else signal)

    def pause(self, worker: int, ticks: int) -> None:
        """Enter a pause of a task whose leader started at clock tick `ticks`; 0: the task continues."""
        struct.pack_into("=q", self._map, worker * _ROW.size + _PAUSED, ticks)

    def clear(self, worker: int) -> None:
        """Mark a worker as free."""
        _ROW.pack_into(self._map, worker * _ROW.size, _NONE, 0, 0, 0, 0.0, 0.0, _NONE, _NONE, 0)

    def rows(self) -> tuple[Row, ...]:
        found = []
        for worker in range(self._workers):
            row = _ROW.unpack_from(self._map, worker * _ROW.size)
            task, attempt, pid, gpu, started, since_boot, code, signal, paused_ticks = row
            if task != _NONE:
                code, signal, gpu = (None if one == _NONE else one for one in (code, signal, gpu))
                found.append(Row(worker, task, attempt, pid, started, since_boot, code, signal, gpu, paused_ticks))
        return tuple(found)
