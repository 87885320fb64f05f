"""Read the energy counters of GPUs, and use the driver's accounting mode, as hooks do: through ctypes (driver.py).

In accounting mode the driver keeps figures of each process with a context on a GPU, also after its end: how much of its
time a kernel ran, its largest memory, its time (nvmlDeviceGetAccountingStats; Kepler and newer, not with MIG). It keeps
as many as its buffer has room for (nvmlDeviceGetAccountingBufferSize, 4000 on present drivers), the oldest go first.
Only root may turn it on; it stays on until the driver is unloaded. Names and structures: nvml.h of CUDA 12.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from msgspec import Struct

from ...core.errors import DriverError
from .driver import _ERRORS, MIB, _Session

TYPE_CHECKING = False  # as in driver.py
if TYPE_CHECKING:
    from typing import Any

_ENABLED = 1
"""NVML_FEATURE_ENABLED."""
_ACCOUNTED_MOST = 4000
"""Most processes of one GPU whose figures are read."""


class _AccountingStats(ctypes.Structure):
    """nvmlAccountingStats_t."""

    _fields_ = (
        ("gpuUtilization", ctypes.c_uint),
        ("memoryUtilization", ctypes.c_uint),
        ("maxMemoryUsage", ctypes.c_ulonglong),
        ("time", ctypes.c_ulonglong),
        ("startTime", ctypes.c_ulonglong),
        ("isRunning", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 5),
    )


class GpuCounter(Struct, frozen=True):
    """The energy counter of one GPU at one moment."""

    uuid: str
    energy_mj: int | None = None
    """Energy since the driver was loaded, millijoules; None: see `problem`."""
    problem: str = ""
    accounting: str = ""
    """Why accounting mode could not be turned on; empty: it is on, or nobody wanted it."""


class AccountedProcess(Struct, frozen=True):
    """The figures that the driver keeps of one process on one GPU."""

    pid: int
    began: float
    """Unix time in seconds."""
    seconds: float
    """Time for which it had its context; 0: it still runs."""
    gpu_percent: int | None
    """Part of that time in which one of its kernels ran; None: the driver does not tell."""
    memory_peak_mib: int | None
    runs: bool = False


def read_counters(uuids: Sequence[str], *, accounting: bool = False) -> tuple[GpuCounter, ...]:
    """Return the energy counters of these GPUs. `accounting`: turn accounting mode on before, which only root may.

    Raises DriverError if the driver does not answer.
    """
    with _Session() as session:
        return tuple(_counter(session, uuid, accounting) for uuid in uuids)


def _counter(session: _Session, uuid: str, accounting: bool) -> GpuCounter:
    handle = ctypes.c_void_p()
    code = session.code_of("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(handle))
    if code:
        return GpuCounter(uuid, problem=_text(code))
    found = ctypes.c_ulonglong()
    code = session.code_of("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(found))
    refused = _turn_on(session, handle) if accounting else ""
    return GpuCounter(uuid, None if code else found.value, _text(code) if code else "", refused)


def _turn_on(session: _Session, handle: Any) -> str:
    """Turn accounting mode on; return why that is not possible, empty if it is on. To turn it on again would empty the
    driver's buffer."""
    mode = ctypes.c_int()
    code = session.code_of("nvmlDeviceGetAccountingMode", handle, ctypes.byref(mode))
    if code or mode.value == _ENABLED:
        return _text(code) if code else ""
    code = session.code_of("nvmlDeviceSetAccountingMode", handle, ctypes.c_int(_ENABLED))
    return _text(code) if code else ""


def read_accounted(uuid: str, since: float) -> tuple[AccountedProcess, ...]:
    """Return what the driver keeps of processes on this GPU that began at `since` (Unix time) or later, by their start.

    Raises DriverError if the driver does not answer, or accounting mode is off or not supported.
    """
    with _Session() as session:
        handle = ctypes.c_void_p()
        session.ask("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(handle))
        mode = ctypes.c_int()
        session.ask("nvmlDeviceGetAccountingMode", handle, ctypes.byref(mode))
        if mode.value != _ENABLED:
            raise DriverError("nvmlDeviceGetAccountingMode", "accounting mode is off")
        count = ctypes.c_uint(_ACCOUNTED_MOST)
        pids = (ctypes.c_uint * _ACCOUNTED_MOST)()
        session.ask("nvmlDeviceGetAccountingPids", handle, ctypes.byref(count), pids)
        found = []
        for pid in pids[: min(count.value, _ACCOUNTED_MOST)]:
            stats = _AccountingStats()
            # NOT_FOUND: it left the buffer meanwhile
            if session.can("nvmlDeviceGetAccountingStats", handle, ctypes.c_uint(pid), ctypes.byref(stats)):
                one = _accounted(pid, stats)
                found += [one] if one.began >= since else []
        return tuple(sorted(found, key=lambda one: (one.began, one.pid)))


def _accounted(pid: int, stats: _AccountingStats) -> AccountedProcess:
    percent = int(stats.gpuUtilization)
    return AccountedProcess(
        pid,
        stats.startTime / 1e6,
        stats.time / 1e3,
        percent if percent <= 100 else None,  # NVML_VALUE_NOT_AVAILABLE is larger
        None if stats.maxMemoryUsage == 2**64 - 1 else int(stats.maxMemoryUsage // MIB),
        bool(stats.isRunning),
    )


def _text(code: int) -> str:
    return _ERRORS.get(code, f"NVML Error with code {code}")
