"""Calls of mpi4py about the process and the library: clock, name of the machine, versions, start and end.

Nothing has to be started or ended: the first message connects the ranks, and a run ends with its processes.
"""

from __future__ import annotations

import os
from time import get_clock_info
from time import perf_counter as Wtime
from typing import Any

__all__ = [
    "BSEND_OVERHEAD", "THREAD_FUNNELED", "THREAD_MULTIPLE", "THREAD_SERIALIZED", "THREAD_SINGLE", "Attach_buffer",
    "Detach_buffer", "Finalize", "Flush_buffer", "Get_library_version", "Get_processor_name", "Get_version",
    "Init", "Init_thread", "Is_finalized", "Is_initialized", "Is_thread_main", "Pcontrol", "Query_thread", "Wtick",
    "Wtime", "get_vendor",
]  # fmt: skip

THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
BSEND_OVERHEAD = 0
"""Bytes of a buffer for `Bsend` that each message needs beyond its own."""
VENDOR = ("slurm_share.spmd", (1, 0, 0))
"""Name and version of the library."""


def Wtick() -> float:
    """Return the resolution of Wtime in seconds."""
    return get_clock_info("perf_counter").resolution


def Get_processor_name() -> str:
    """Return the name of this machine."""
    return os.uname().nodename


def Get_version() -> tuple[int, int]:
    """Return the version of the MPI standard from which the calls are."""
    return 3, 1


def Get_library_version() -> str:
    """Return the name of this package and its version."""
    name, version = VENDOR
    return f"{name} {'.'.join(map(str, version))}"


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    """Return name and version of this package, as mpi4py those of the MPI library."""
    return VENDOR


def Init() -> None:
    """Do nothing; see above."""


def Init_thread(required: int = THREAD_MULTIPLE) -> int:
    """Do nothing, and return what threads may do; see Query_thread."""
    return THREAD_MULTIPLE


def Finalize() -> None:
    """Do nothing; see above."""


def Is_initialized() -> bool:
    """Return True: messages can be sent at any time."""
    return True


def Is_finalized() -> bool:
    """Return False; see Is_initialized."""
    return False


def Query_thread() -> int:
    """Return THREAD_MULTIPLE: any thread may send and receive."""
    return THREAD_MULTIPLE


def Is_thread_main() -> bool:
    """Return whether this is the thread that started the program."""
    import threading

    return threading.current_thread() is threading.main_thread()


def Pcontrol(level: int) -> None:
    """Do nothing: there is no profiler of MPI."""


_attached: list[Any] = []


def Attach_buffer(buf: Any) -> None:
    """Keep the buffer for Detach_buffer. It is not needed: every send is buffered."""
    _attached[:] = [buf]


def Detach_buffer() -> Any:
    """Return the buffer of Attach_buffer, or None."""
    return _attached.pop() if _attached else None


def Flush_buffer() -> None:
    """Do nothing: a buffered send is complete at once."""
