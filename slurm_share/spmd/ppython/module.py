"""The module `pPython` and the flat modules that a program imports.

A module of this package or of a library is imported when one of its names is first used.
"""

from __future__ import annotations

import importlib
import os
import re
from types import ModuleType
from typing import Any

from .flat_names import FLAT, GATHERED

_HERE = {
    "messages": (
        "BcastMsg MPI_Abort MPI_Bcast MPI_Comm_rank MPI_Comm_size MPI_Finalize MPI_Init MPI_Mcast MPI_Probe "
        "MPI_Recv MPI_Send MPI_Tcast Np Pid ProbeMsg RecvMsg SendMsg factorint gagg lcm multicast "
        "pPython_finalize pPython_init pPython_ver partition_1d pyMPI_Comm_dir pyMPI_Delete_all pyMPI_Host_name "
        "pyMPI_Host_rank pyMPI_Save_messages pyMPI_Sleep pyMPI_Ver tup2ary"
    ),
    "arrays": "Dmap Dmat inmap ones rand sparse zeros",
    "functions": (
        "agg agg_all agg_by_topology cos dcomplex display double fft find local mtimes ndims oagg proc_grid put_local "
        "remap sin size submat summation synch transpose_grid uint16 uint32 uint64 uint8 unfun"
    ),
    "indices": ("Falls PitFalls global_block_range global_block_ranges global_ind grid print_falls print_pitfalls"),
    "prun": "MPI_Run pRUN",
    "helpers": "ExecShellCmd pyMPI_Buffer_file pyMPI_Lock_file",
}
_HOME = {name: module for module, names in _HERE.items() for name in names.split()}

_LIBRARY = {
    "GPC": ("pPython", ""),
    "OS": ("checkOS", ""),
    "PIPE": ("subprocess", "PIPE"),
    "Popen": ("subprocess", "Popen"),
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


class NamesModule(ModuleType):
    """Module whose names are looked up when they are first used."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        super().__init__(name, f"Names of pPython's module {name}, on the messages and arrays of slurm_share.spmd.")
        self.__all__ = names

    def __getattr__(self, name: str) -> Any:
        if name not in self.__all__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = find_name(name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})


class PPythonModule(NamesModule):
    """The module `pPython`, which programs call GPC. Reading Np, Pid or comm connects this process to its run."""

    def __init__(self) -> None:
        super().__init__("pPython", ("Np", "Pid", "comm"))
        self.__path__: list[str] = []
        self.leader = 0
        self.tag_num = 0
        self.tag = "tag-0"
        self.os = os

    def __getattr__(self, name: str) -> Any:
        if name in self.__all__:
            from .world import world

            here = world()
            return {"Np": here.comm.size, "Pid": here.comm.rank, "comm": here.describe()}[name]
        if name in ("use_gpu", "gpu_device"):
            return self._of_gpu(name)
        raise AttributeError(f"module 'pPython' has no attribute {name!r}")

    def _of_gpu(self, name: str) -> Any:
        """Return whether there is a GPU and CuPy (`use_gpu`), or the first visible CuPy device (`gpu_device`)."""
        import importlib.util

        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        usable = visible not in ("", "-1", "NoDevFiles") and importlib.util.find_spec("cupy") is not None
        if name == "use_gpu":
            return usable
        if not usable:
            return None
        import cupy

        return cupy.cuda.Device(0)


def make_module(fullname: str) -> ModuleType | None:
    """Return pPython's module of that name; None: pPython has none, or it has no counterpart here."""
    if fullname == "pPython":
        return PPythonModule()
    package, _, part = fullname.rpartition(".")
    if package == "pPython" and part in GATHERED:
        return NamesModule(fullname, GATHERED[part])
    return NamesModule(fullname, FLAT[fullname]) if fullname in FLAT else None


_SEEN = (
    "GPC MPI_Comm_rank MPI_Comm_size MPI_Finalize MPI_Init OS ceil datetime grid np os pPython_finalize pPython_init "
    "pyMCW pyMPI_Host_rank pyMPI_Sleep sleep sys time timer"
)
"""Names that a program can use without import, because pPython runs it inside a module with these names."""
_IMPORT = re.compile(r"^\s*(?:from|import)\s+(\w+)", re.MULTILINE)


def names_without_import(program: str) -> dict[str, Any]:
    """Return the names that a program may use without import; none unless it imports modules of pPython."""
    try:
        with open(program, encoding="utf-8", errors="replace") as file:
            imported = set(_IMPORT.findall(file.read()))
    except OSError:
        return {}
    is_for_ppython = "pPython" in imported or not imported.isdisjoint(FLAT)
    return {name: find_name(name) for name in _SEEN.split()} if is_for_ppython else {}
