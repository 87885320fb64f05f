"""Which task runs in which worker, in memory that loop and guard share, for the case that the loop dies."""

from __future__ import annotations

import ctypes
import mmap
import struct

from msgspec import Struct

_ROW = struct.Struct("=qqiiddqqq")
_PID = 16
_OWN_GPU = -1
_END = 40
_PAUSED = struct.calcsize("=qqiiddqq")
"""Where the last field of a row begins."""
_NOBODY = -1


class Row(Struct, frozen=True):
    """The task of one worker."""

    worker: int
    task: int
    attempt: int
    pid: int
    """0: it was about to be started."""
    started: float
    """Unix time, seconds."""
    since_boot: float
    """The same moment on CLOCK_BOOTTIME, seconds."""
    code: int | None = None
    signal: int | None = None
    """How it ended, where that was seen and not yet written down."""
    gpu: int | None = None
    """Position of its GPU among the node's, where that is not its worker's own."""
    paused_ticks: int = 0
    """When its leader was started (field 22 of /proc/PID/stat), while the task is stopped, or is just being; 0: it
    runs."""


class Table:
    """One row per worker. Only the loop writes.

    If it dies during a write, that was about a task that had just begun, or that is recorded already.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._map = mmap.mmap(-1, max(workers, 1) * _ROW.size)
        for worker in range(workers):
            self.clear(worker)

    def begin(
        self, worker: int, task: int, attempt: int, started: float, since_boot: float, gpu: int | None = None
    ) -> None:
        """Note a task that is about to be started. `gpu`: position of its GPU, where that is not the worker's own."""
        place = _OWN_GPU if gpu is None else gpu
        _ROW.pack_into(self._map, worker * _ROW.size, task, attempt, 0, place, started, since_boot, _NOBODY, _NOBODY, 0)

    def pid_of(self, worker: int) -> ctypes.c_int:
        """Return the memory of the worker's pid, where the C library writes it when the task starts."""
        return ctypes.c_int.from_buffer(self._map, worker * _ROW.size + _PID)

    def end(self, worker: int, code: int | None, signal: int | None) -> None:
        """Note that a task has ended and is not recorded yet."""
        offset = worker * _ROW.size + _END
        struct.pack_into("=qq", self._map, offset, *(_NOBODY if one is None else one for one in (code, signal)))

    def pause(self, worker: int, ticks: int) -> None:
        """Note that a task is about to be stopped, whose leader was started at that clock tick; 0: it goes on."""
        struct.pack_into("=q", self._map, worker * _ROW.size + _PAUSED, ticks)

    def clear(self, worker: int) -> None:
        """Note that the worker is free."""
        _ROW.pack_into(self._map, worker * _ROW.size, _NOBODY, 0, 0, 0, 0.0, 0.0, _NOBODY, _NOBODY, 0)

    def rows(self) -> tuple[Row, ...]:
        """Return the rows of the workers that have a task."""
        found = []
        for worker in range(self._workers):
            row = _ROW.unpack_from(self._map, worker * _ROW.size)
            task, attempt, pid, gpu, started, since_boot, code, signal, paused_ticks = row
            if task != _NOBODY:
                found.append(
                    Row(
                        worker,
                        task,
                        attempt,
                        pid,
                        started,
                        since_boot,
                        None if code == _NOBODY else code,
                        None if signal == _NOBODY else signal,
                        None if gpu == _OWN_GPU else gpu,
                        paused_ticks,
                    )
                )
        return tuple(found)
