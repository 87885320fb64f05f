"""mpi4py's module MPI over the messages of this package: `from slurm_share.spmd import MPI`.

It only collects names; each is described where it is made.
"""

from __future__ import annotations

from . import environment, error_numbers, named_types
from .comm import COMM_NULL, COMM_SELF, COMM_WORLD, Comm
from .comm import Comm as Intracomm
from .constants import (
    ANY_SOURCE,
    ANY_TAG,
    BOTTOM,
    CART,
    COMM_TYPE_SHARED,
    CONGRUENT,
    DIST_GRAPH,
    GRAPH,
    IDENT,
    IN_PLACE,
    INFO_NULL,
    PROC_NULL,
    ROOT,
    SIMILAR,
    UNDEFINED,
    UNEQUAL,
)
from .datatypes import ORDER_C, ORDER_F, ORDER_FORTRAN, Datatype
from .environment import *  # noqa: F403
from .error_numbers import *  # noqa: F403
from .errors import SpmdError as Exception
from .groups import GROUP_EMPTY, GROUP_NULL
from .groups import RankGroup as Group
from .left_out import of_module as _error_of
from .matched import MESSAGE_NO_PROC, MESSAGE_NULL, Message
from .named_types import *  # noqa: F403
from .operations import (
    BAND,
    BOR,
    BXOR,
    LAND,
    LOR,
    LXOR,
    MAX,
    MAXLOC,
    MIN,
    MINLOC,
    NO_OP,
    OP_NULL,
    PROD,
    REPLACE,
    SUM,
    Op,
)
from .requests import REQUEST_NULL, Prequest, Request
from .status import Status

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "CART",
    "COMM_NULL",
    "COMM_SELF",
    "COMM_TYPE_SHARED",
    "COMM_WORLD",
    "CONGRUENT",
    "DIST_GRAPH",
    "GRAPH",
    "GROUP_EMPTY",
    "GROUP_NULL",
    "IDENT",
    "INFO_NULL",
    "IN_PLACE",
    "MAX",
    "MESSAGE_NO_PROC",
    "MESSAGE_NULL",
    "MIN",
    "ORDER_C",
    "ORDER_F",
    "ORDER_FORTRAN",
    "PROC_NULL",
    "PROD",
    "REQUEST_NULL",
    "ROOT",
    "SIMILAR",
    "SUM",
    "UNDEFINED",
    "UNEQUAL",
    "Comm",
    "Datatype",
    "Exception",
    "Group",
    "Intracomm",
    "Message",
    "Op",
    "Prequest",
    "Request",
    "Status",
]  # fmt: skip
__all__ += ["BAND", "BOR", "BOTTOM", "BXOR", "LAND", "LOR", "LXOR", "MAXLOC", "MINLOC", "NO_OP", "OP_NULL", "REPLACE"]
__all__ += environment.__all__
__all__ += [name for name in vars(error_numbers) if name.isupper()]
__all__ += [name for name, one in vars(named_types).items() if isinstance(one, Datatype)]


def __getattr__(name: str) -> object:
    if name in ("Cartcomm", "Compute_dims"):  # which few programs need
        from . import topologies

        return getattr(topologies, name)
    if name == "_typedict":  # mpi4py's, which programs use though its name is private
        return named_types.BY_LETTER
    raise _error_of(name)
