"""Calls and classes of mpi4py that this package leaves out, with what to use instead."""

from __future__ import annotations

from typing import Any

from .errors import Unsupported

_WINDOWS = "use messages, or a Dmat, whose parts all ranks can read and write"
_FILES = "use save and load of a Dmat, or one file for each rank"
_SPAWNING = "start as many ranks as the program needs, or submit another run with llsub"
_BETWEEN = "use Split, or one communicator of all ranks"
_REQUESTS = "use the call without a request; every send is buffered, so isend and irecv can overlap it with work"
_NEIGHBOURS = "use Create_cart, which has the neighbours of a grid, or Isend and Irecv with a list of ranks"
_HANDLERS = "errors are Python exceptions: catch MPI.Exception, and remove this call"
_HINTS = "there are no hints: pass MPI.INFO_NULL or leave the argument out"
_ATTRIBUTES = "keep the value in a variable of the program"
_PACKING = "send the arrays one by one, or together as an object with send"
_MEMORY = "use NumPy arrays: large messages of one node are shared without asking"
_SESSIONS = "use MPI.COMM_WORLD, which needs no start"
_OWN_REQUESTS = "use a thread or concurrent.futures"
_PICKLE = "use Python's pickle; send and recv use its protocol 5, and what another module has made is sent as bytes"
_HANDLES = "there is no MPI library below whose handles could be given away"

MODULE = {
    **dict.fromkeys(("Win", "WIN_NULL"), _WINDOWS),
    **dict.fromkeys(("File", "FILE_NULL", "Register_datarep"), _FILES),
    **dict.fromkeys(("Open_port", "Close_port", "Publish_name", "Unpublish_name", "Lookup_name"), _SPAWNING),
    "Intercomm": _BETWEEN,
    **dict.fromkeys(("Graphcomm", "Distgraphcomm"), _NEIGHBOURS),
    **dict.fromkeys(("Session", "SESSION_NULL"), _SESSIONS),
    **dict.fromkeys(("Info", "INFO_ENV"), _HINTS),
    **dict.fromkeys(("Errhandler", "ERRORS_RETURN", "ERRORS_ARE_FATAL", "ERRORS_ABORT", "ERRHANDLER_NULL"), _HANDLERS),
    **dict.fromkeys(("Add_error_class", "Add_error_code", "Add_error_string", "Get_error_string"), _HANDLERS),
    **dict.fromkeys(("Alloc_mem", "Free_mem"), _MEMORY),
    "Grequest": _OWN_REQUESTS,
    **dict.fromkeys(("_sizeof", "_addressof", "_handleof", "Get_address", "_comm_lock_table"), _HANDLES),
    **dict.fromkeys(("pickle", "Pickle"), _PICKLE),
    **dict.fromkeys(("buffer", "memory"), "use memoryview, bytearray or NumPy arrays"),
    "Topocomm": "use Cartcomm",
    "Get_hw_resource_info": _HINTS,
}
"""Names of the module MPI, and what to use instead."""

_OWN_TYPES = "use basic datatypes with np.ascontiguousarray of the part, or send the array as an object"
PREFIXES = {
    "WIN_": _WINDOWS, "LOCK_": _WINDOWS, "MODE_": _FILES, "SEEK_": _FILES, "COMBINER_": _OWN_TYPES,
    "DISTRIBUTE_": _OWN_TYPES, "COMM_TYPE_": "use MPI.COMM_TYPE_SHARED",
}  # fmt: skip
"""Beginnings of further names of the module."""

COMM = {
    **dict.fromkeys(("Spawn", "Spawn_multiple", "Accept", "Connect", "Join"), _SPAWNING),
    **dict.fromkeys(("Create_intercomm", "Merge", "Get_remote_group", "Get_remote_size"), _BETWEEN),
    **dict.fromkeys(
        (
            "Ibarrier", "Ibcast", "Igather", "Igatherv", "Iscatter", "Iscatterv", "Iallgather", "Iallgatherv",
            "Ialltoall", "Ialltoallv", "Ialltoallw", "Ireduce", "Iallreduce", "Ireduce_scatter",
            "Ireduce_scatter_block", "Iscan", "Iexscan", "Idup", "Idup_with_info", "Barrier_init", "Bcast_init",
            "Gather_init", "Gatherv_init", "Scatter_init", "Scatterv_init", "Allgather_init", "Allgatherv_init",
            "Alltoall_init", "Alltoallv_init", "Alltoallw_init", "Reduce_init", "Allreduce_init",
            "Reduce_scatter_init", "Reduce_scatter_block_init", "Scan_init", "Exscan_init", "Psend_init",
            "Precv_init",
        ),
        _REQUESTS,
    ),
    **dict.fromkeys(
        (
            "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent", "neighbor_allgather",
            "neighbor_alltoall", "Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall",
            "Neighbor_alltoallv", "Neighbor_alltoallw", "Ineighbor_allgather", "Ineighbor_allgatherv",
            "Ineighbor_alltoall", "Ineighbor_alltoallv", "Ineighbor_alltoallw",
        ),
        _NEIGHBOURS,
    ),
    **dict.fromkeys(("py2f", "f2py", "toint", "fromint", "fromhandle", "handle"), _HANDLES),
    **dict.fromkeys(("Cart_map", "Graph_map"), "use Create_cart, which keeps the order of the ranks"),
    "Create_from_group": "use Create_group",
    **dict.fromkeys(("Set_errhandler", "Get_errhandler", "Call_errhandler"), _HANDLERS),
    **dict.fromkeys(("Get_info", "Set_info"), _HINTS),
    **dict.fromkeys(("Get_attr", "Set_attr", "Delete_attr", "Create_keyval", "Free_keyval"), _ATTRIBUTES),
}  # fmt: skip
"""Names of communicators, and what to use instead."""


class _Call:
    """Attribute whose use raises Unsupported."""

    def __init__(self, name: str, instead: str) -> None:
        self._name, self._instead = name, instead

    def __get__(self, _instance: object, _owner: type | None = None) -> Any:
        raise Unsupported(self._name, self._instead)


class LeftOutCalls:
    """The names of COMM as attributes, each of which raises Unsupported."""


for _name, _instead in COMM.items():
    setattr(LeftOutCalls, _name, _Call(f"Comm.{_name}", _instead))


def of_module(name: str) -> AttributeError:
    """Return the error about a name that the module MPI lacks."""
    instead = MODULE.get(name) or next((text for prefix, text in PREFIXES.items() if name.startswith(prefix)), "")
    if instead:
        return Unsupported(f"MPI.{name}", instead)
    return AttributeError(f"module 'slurm_share.spmd.MPI' has no attribute {name!r}", name=name)
