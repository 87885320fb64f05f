"""Collective calls of a communicator, with mpi4py's names and order of arguments.

Lower-case calls take any object, upper-case calls arrays and other buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import buffers, collectives
from .comm_base import CommBase
from .reductions import SUM, Op


class CollectiveCalls(CommBase):
    """The calls that all ranks of a communicator make."""

    def barrier(self) -> None:
        """Wait until all ranks have made this call."""
        collectives.barrier(self.group)

    Barrier = barrier
    """mpi4py's name of `barrier`."""

    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        """Return the root's object on every rank."""
        return collectives.bcast(self.group, obj, self._rank(root, "bcast"))

    def scatter(self, sendobj: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Return to each rank its element of the root's sequence."""
        return collectives.scatter(self.group, sendobj, self._rank(root, "scatter"))

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return the list of all ranks' objects on the root, None elsewhere."""
        return collectives.gather(self.group, sendobj, self._rank(root, "gather"))

    def allgather(self, sendobj: Any) -> list[Any]:
        """Return the list of all ranks' objects on every rank."""
        return collectives.allgather(self.group, sendobj)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Return element `rank` of every rank's sequence, in the order of ranks."""
        return collectives.alltoall(self.group, sendobj)

    def reduce(self, sendobj: Any, op: Any = SUM, root: int = 0) -> Any:
        """Return the combination of all ranks' objects on the root, None elsewhere.

        Objects are combined in the order of ranks, first on each node. So the result has the same bits in every run of
        the same ranks on the same nodes. `op`: SUM, PROD, MIN, MAX or an associative function of two values.
        """
        return collectives.reduce(self.group, sendobj, op, self._rank(root, "reduce"))

    def allreduce(self, sendobj: Any, op: Any = SUM) -> Any:
        """Return the combination of all ranks' objects on every rank; see `reduce`."""
        return collectives.allreduce(self.group, sendobj, op)

    def scan(self, sendobj: Any, op: Any = SUM) -> Any:
        """Return the combination of the objects of rank 0 to this one."""
        return collectives.scan(self.group, sendobj, op)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Copy the root's array into the array of every rank."""
        buffers.bcast(self.group, buf, self._rank(root, "Bcast"))

    def Gather(self, sendbuf: Any, recvbuf: Any = None, root: int = 0) -> None:
        """Copy the arrays of all ranks, of equal length, into the root's `recvbuf`, one after the other."""
        buffers.gather(self.group, sendbuf, recvbuf, self._rank(root, "Gather"))

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copy the arrays of all ranks, of equal length, into every rank's `recvbuf`, one after the other."""
        buffers.allgather(self.group, sendbuf, recvbuf)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Copy each rank's part of the root's `sendbuf` into its `recvbuf`."""
        buffers.scatter(self.group, sendbuf, recvbuf, self._rank(root, "Scatter"))

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copy this rank's part of every rank's `sendbuf` into `recvbuf`, one after the other."""
        buffers.alltoall(self.group, sendbuf, recvbuf)

    def Reduce(self, sendbuf: Any, recvbuf: Any = None, op: Op = SUM, root: int = 0) -> None:
        """Combine the arrays of all ranks element by element into the root's `recvbuf`; see `reduce`."""
        buffers.reduce(self.group, sendbuf, recvbuf, op, self._rank(root, "Reduce"))

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combine the arrays of all ranks element by element into every rank's `recvbuf`; see `reduce`."""
        buffers.allreduce(self.group, sendbuf, recvbuf, op)
