"""Modules of pPython's names, here or in a library. A module is imported when one of its names is first used."""

from __future__ import annotations

import importlib
from typing import Any

_HERE = {
    "messages": (
        "BcastMsg MPI_Abort MPI_Bcast MPI_Comm_rank MPI_Comm_size MPI_Finalize MPI_Init MPI_Mcast MPI_Probe MPI_Recv "
        "MPI_Send MPI_Tcast Np Pid ProbeMsg RecvMsg SendMsg gagg multicast pyMPI_Save_messages"
    ),
    "dmap": "Dmap inmap",
    "arrays": "Dmat ones rand sparse zeros",
    "functions": (
        "agg agg_all agg_by_topology cos dcomplex display double fft find local mtimes ndims oagg proc_grid put_local "
        "remap sin size submat summation synch transpose_grid uint16 uint32 uint64 uint8 unfun"
    ),
    "indices": ("Falls PitFalls global_block_range global_block_ranges global_ind grid print_falls print_pitfalls"),
    "helpers": (
        "factorint lcm pPython_finalize pPython_init pPython_ver partition_1d pyMPI_Comm_dir pyMPI_Delete_all "
        "pyMPI_Host_name pyMPI_Host_rank pyMPI_Sleep pyMPI_Ver tup2ary"
    ),
    "prun": "MPI_Run pRUN",
}
_HOME = {name: module for module, names in _HERE.items() for name in names.split()}

_LIBRARY = {
    "GPC": ("pPython", ""),
    "OS": ("checkOS", ""),
    "ceil": ("math", "ceil"),
    "datetime": ("datetime", "datetime"),
    "floor": ("math", "floor"),
    "getsizeof": ("sys", "getsizeof"),
    "glob": ("glob", "glob"),
    "np": ("numpy", ""),
    "pyMCW": ("pyMPI_COMM_WORLD", ""),
    "sleep": ("time", "sleep"),
    "timer": ("timeit", "default_timer"),
} | {
    name: (name, "")
    for name in ("math", "numpy", "os", "pathlib", "platform", "random", "re", "shutil", "string", "sys", "time")
}


def find_name(name: str) -> Any:
    """Return the object of one of pPython's names. Raises AttributeError if there is no such name."""
    if name in _HOME:
        return getattr(importlib.import_module(f"{__package__}.{_HOME[name]}"), name)
    if name in _LIBRARY:
        module, attribute = _LIBRARY[name]
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found
    if name == "MPI_COMM_WORLD":
        from .world import world

        return world().describe()
    if name == "GPU":
        import os

        return int(os.environ.get("GPU", "0") or 0)
    if name in _SYSTEM:
        return _system()[name]
    raise AttributeError(name)


_SYSTEM = ("islinux", "ismac", "ispc", "isunix", "listLinuxSystem", "listMacSystem", "listPCSystem", "systemName")


def _system() -> dict[str, Any]:
    """Return the names of pPython's checkOS with their values on Linux."""
    import platform

    values = (1, 0, 0, 1, ["Linux"], ["Darwin"], ["Windows"], platform.system())
    return dict(zip(_SYSTEM, values, strict=True))
