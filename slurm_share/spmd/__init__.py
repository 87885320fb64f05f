"""Messages and distributed arrays between the tasks of a run (SPMD: every rank runs the same program).

The package is installed in the Python of the user's programs: it needs only NumPy and imports nothing else of
slurm_share. The names below are imported at their first use, because the launcher imports `wire` and `rendezvous`
without NumPy.
"""

from __future__ import annotations

TYPE_CHECKING = False  # mypy takes it as true; importing `typing` would cost more than this module
if TYPE_CHECKING:
    from . import MPI
    from .array_files import load, save
    from .comm import ANY_SOURCE, ANY_TAG, COMM_WORLD, MAX, MIN, PROD, SUM, Comm, Status
    from .dmat import Dmat, empty, from_local, ones, rand, zeros
    from .errors import SpmdError
    from .functions import fft, find, ifft, summation, transpose_grid
    from .products import mtimes
    from .rules.maps import Map

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "COMM_WORLD",
    "MAX",
    "MIN",
    "MPI",
    "PROD",
    "SUM",
    "Comm",
    "Dmat",
    "Map",
    "SpmdError",
]
__all__ += ["Status", "empty", "fft", "find", "from_local", "ifft", "load", "mtimes", "ones", "rand", "save"]
__all__ += ["summation", "transpose_grid", "zeros"]

_HOME = {
    **dict.fromkeys(("load", "save"), "array_files"),
    **dict.fromkeys(("Dmat", "empty", "from_local", "ones", "rand", "zeros"), "dmat"),
    **dict.fromkeys(("fft", "find", "ifft", "summation", "transpose_grid"), "functions"),
    "Map": "rules.maps",
    "mtimes": "products",
    "SpmdError": "errors",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    if name == "MPI":
        return importlib.import_module(f"{__name__}.MPI")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'comm')}"), name)
