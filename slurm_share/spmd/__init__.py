"""Messages and distributed arrays between the tasks of a run (SPMD: every rank runs the same program).

The package is installed in the Python of the user's programs: it needs only NumPy and imports nothing else of
slurm_share. The names below are imported at their first use, because the launcher imports `wire` and `rendezvous`
without NumPy.
"""

from __future__ import annotations

TYPE_CHECKING = False  # mypy takes it as true; importing `typing` would cost more than this module
if TYPE_CHECKING:
    from .array_files import load as load
    from .array_files import save as save
    from .comm import ANY_SOURCE as ANY_SOURCE
    from .comm import ANY_TAG as ANY_TAG
    from .comm import MAX as MAX
    from .comm import MIN as MIN
    from .comm import PROD as PROD
    from .comm import SUM as SUM
    from .comm import Comm as Comm
    from .comm import Status as Status
    from .dmat import Dmat as Dmat
    from .dmat import empty as empty
    from .dmat import from_local as from_local
    from .dmat import ones as ones
    from .dmat import rand as rand
    from .dmat import zeros as zeros
    from .errors import SpmdError as SpmdError
    from .functions import fft as fft
    from .functions import find as find
    from .functions import ifft as ifft
    from .functions import summation as summation
    from .functions import transpose_grid as transpose_grid
    from .products import mtimes as mtimes
    from .rules.maps import Map as Map

    COMM_WORLD: Comm

_HOME = {
    **dict.fromkeys(("ANY_SOURCE", "ANY_TAG", "COMM_WORLD", "Comm", "MAX", "MIN", "PROD", "SUM", "Status"), "comm"),
    **dict.fromkeys(("Dmat", "empty", "from_local", "ones", "rand", "zeros"), "dmat"),
    **dict.fromkeys(("fft", "find", "ifft", "summation", "transpose_grid"), "functions"),
    **dict.fromkeys(("load", "save"), "array_files"),
    "Map": "rules.maps",
    "mtimes": "products",
    "SpmdError": "errors",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
