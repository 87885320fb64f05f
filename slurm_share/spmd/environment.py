"""Calls of mpi4py about the process and the library: clock, name of the machine, versions, start and end.

Nothing has to be started or ended: the first message connects the ranks, and a run ends with its processes.
"""

from __future__ import annotations

import os
from time import get_clock_info
from time import perf_counter as Wtime

__all__ = [
    "THREAD_FUNNELED", "THREAD_MULTIPLE", "THREAD_SERIALIZED", "THREAD_SINGLE", "Finalize", "Get_library_version",
    "Get_processor_name", "Get_version", "Init", "Init_thread", "Is_finalized", "Is_initialized", "Is_thread_main",
    "Pcontrol", "Query_thread", "Wtick", "Wtime", "get_vendor",
]  # fmt: skip

THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
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
