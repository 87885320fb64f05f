"""The module `pPython` and the flat modules that a program imports."""

from __future__ import annotations

import os
import re
from types import ModuleType
from typing import Any

from .flat_names import FLAT, GATHERED
from .homes import find_name


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
            return self._of_run(name)
        if name in ("use_gpu", "gpu_device"):
            return self._of_gpu(name)
        raise AttributeError(f"module 'pPython' has no attribute {name!r}")

    def _of_run(self, name: str) -> Any:
        from .world import world

        here = world()
        return {"Np": here.comm.size, "Pid": here.comm.rank, "comm": here.describe()}[name]

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
