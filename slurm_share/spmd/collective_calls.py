"""Collective calls of a communicator, with mpi4py's names and order of arguments.

Lower-case calls take any object, upper-case calls arrays and other buffers. Modules that few programs need are imported
in the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import buffers, collectives
from .calls import checked_first
from .comm_base import CommBase
from .operations import SUM, Op


class CollectiveCalls(CommBase):
    """The calls that all ranks of a communicator make."""

    def barrier(self) -> None:
        """Wait until all ranks have made this call."""
        collectives.barrier(self.group)

    Barrier = barrier
    """mpi4py's name of `barrier`."""

    @checked_first
    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        """Return the root's object on every rank."""
        return collectives.bcast(self.group, obj, self._root(root, "bcast"))

    @checked_first
    def scatter(self, sendobj: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Return to each rank its element of the root's sequence."""
        return collectives.scatter(self.group, sendobj, self._root(root, "scatter"))

    @checked_first
    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return the list of all ranks' objects on the root, None elsewhere."""
        return collectives.gather(self.group, sendobj, self._root(root, "gather"))

    @checked_first
    def allgather(self, sendobj: Any) -> list[Any]:
        """Return the list of all ranks' objects on every rank."""
        return collectives.allgather(self.group, sendobj)

    @checked_first
    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Return element `rank` of every rank's sequence, in the order of ranks."""
        return collectives.alltoall(self.group, sendobj)

    @checked_first
    def reduce(self, sendobj: Any, op: Any = SUM, root: int = 0) -> Any:
        """Return the combination of all ranks' objects on the root, None elsewhere.

        Objects are combined in the order of ranks, first on each node. So the result has the same bits in every run of
        the same ranks on the same nodes. `op`: SUM, PROD, MIN, MAX, another of MPI's or an
        associative function of two values. MIN and MAX of values with a NaN are NaN, as in NumPy.
        """
        return collectives.reduce(self.group, sendobj, op, self._root(root, "reduce"))

    @checked_first
    def allreduce(self, sendobj: Any, op: Any = SUM) -> Any:
        """Return the combination of all ranks' objects on every rank; see `reduce`."""
        return collectives.allreduce(self.group, sendobj, op)

    @checked_first
    def scan(self, sendobj: Any, op: Any = SUM) -> Any:
        """Return the combination of the objects of rank 0 to this one."""
        return collectives.scan(self.group, sendobj, op)

    @checked_first
    def exscan(self, sendobj: Any, op: Any = SUM) -> Any:
        """Return the combination of the objects of rank 0 to the one before this, None on rank 0."""
        return collectives.exscan(self.group, sendobj, op)

    @checked_first
    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Copy the root's array into the array of every rank."""
        buffers.bcast(self.group, buf, self._root(root, "Bcast"))

    @checked_first
    def Gather(self, sendbuf: Any, recvbuf: Any = None, root: int = 0) -> None:
        """Copy the arrays of all ranks, of equal length, into the root's `recvbuf`, one after the other.

        Here and below, the part of a rank with IN_PLACE as a sendbuf is already in the recvbuf.
        """
        buffers.gather(self.group, sendbuf, recvbuf, self._root(root, "Gather"))

    @checked_first
    def Gatherv(self, sendbuf: Any, recvbuf: Any = None, root: int = 0) -> None:
        """Copy the arrays of all ranks, of any length, into the root's `[recvbuf, counts, displacements, type]`."""
        from . import parts

        parts.gatherv(self.group, sendbuf, recvbuf, self._root(root, "Gatherv"))

    @checked_first
    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copy the arrays of all ranks, of equal length, into every rank's `recvbuf`, one after the other."""
        buffers.allgather(self.group, sendbuf, recvbuf)

    @checked_first
    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copy the arrays of all ranks, of any length, into every rank's `[recvbuf, counts, displacements, type]`."""
        from . import parts

        parts.allgatherv(self.group, sendbuf, recvbuf)

    @checked_first
    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Copy each rank's part of the root's `sendbuf` into its `recvbuf`; IN_PLACE there: the root keeps its own."""
        buffers.scatter(self.group, sendbuf, recvbuf, self._root(root, "Scatter"))

    @checked_first
    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Copy each rank's part of the root's `[sendbuf, counts, displacements, type]` into its `recvbuf`."""
        from . import parts

        parts.scatterv(self.group, sendbuf, recvbuf, self._root(root, "Scatterv"))

    @checked_first
    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copy this rank's part of every rank's `sendbuf` into `recvbuf`, one after the other."""
        buffers.alltoall(self.group, sendbuf, recvbuf)

    @checked_first
    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copy as Alltoall, with a count and a displacement for each rank in both buffers."""
        from . import parts

        parts.alltoallv(self.group, sendbuf, recvbuf)

    @checked_first
    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copy as Alltoallv, with a type for each rank and displacements in bytes."""
        from . import parts

        parts.alltoallw(self.group, sendbuf, recvbuf)

    @checked_first
    def Reduce(self, sendbuf: Any, recvbuf: Any = None, op: Op = SUM, root: int = 0) -> None:
        """Combine the arrays of all ranks element by element into the root's `recvbuf`; see `reduce`."""
        buffers.reduce(self.group, sendbuf, recvbuf, op, self._root(root, "Reduce"))

    @checked_first
    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combine the arrays of all ranks element by element into every rank's `recvbuf`; see `reduce`."""
        buffers.allreduce(self.group, sendbuf, recvbuf, op)

    @checked_first
    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combine the arrays of all ranks as Reduce, and copy to each rank its part of the result, of equal length."""
        from . import prefixes

        prefixes.reduce_scatter_block(self.group, sendbuf, recvbuf, op)

    @checked_first
    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = SUM) -> None:
        """Combine as Reduce, and copy `recvcounts[rank]` elements to each rank; None: as many as its `recvbuf` has."""
        from . import prefixes

        prefixes.reduce_scatter(self.group, sendbuf, recvbuf, recvcounts, op)

    @checked_first
    def Scan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combine the arrays of rank 0 to this one into `recvbuf`."""
        from . import prefixes

        prefixes.scan(self.group, sendbuf, recvbuf, op)

    @checked_first
    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combine the arrays of rank 0 to the one before this into `recvbuf`; rank 0's stays as it is."""
        from . import prefixes

        prefixes.exscan(self.group, sendbuf, recvbuf, op)
