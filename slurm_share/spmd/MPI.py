"""mpi4py's module MPI over the messages of this package: `from slurm_share.spmd import MPI`.

It only collects names; each is described where it is made.
"""

from __future__ import annotations

from . import environment
from .comm import COMM_WORLD, Comm
from .constants import ANY_SOURCE, ANY_TAG, COMM_TYPE_SHARED, IN_PLACE, PROC_NULL, ROOT, UNDEFINED
from .environment import *  # noqa: F403
from .errors import SpmdError as Exception
from .left_out import of_module as _error_of
from .reductions import MAX, MIN, PROD, SUM, Op
from .status import Status

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "COMM_TYPE_SHARED",
    "COMM_WORLD",
    "IN_PLACE",
    "MAX",
    "MIN",
    "PROC_NULL",
    "PROD",
    "ROOT",
    "SUM",
    "UNDEFINED",
    "Comm",
    "Exception",
    "Op",
    "Status",
]  # fmt: skip
__all__ += environment.__all__


def __getattr__(name: str) -> object:
    raise _error_of(name)
