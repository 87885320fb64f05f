"""Cartesian grids of ranks as communicators, with mpi4py's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from . import buffer_specs
from .arguments import whole
from .calls import CollectiveCall
from .comm import COMM_NULL, Comm
from .constants import CART, PROC_NULL
from .errors import UsageError
from .rules import grids
from .transport import Transport


class Cartcomm(Comm):
    """Communicator whose ranks form a grid; the last coordinate changes first from rank to rank."""

    def __init__(self, transport: Any, dims: Sequence[int] = (), periods: Sequence[bool] = ()) -> None:
        super().__init__(transport)
        if isinstance(transport, Cartcomm):
            dims, periods = transport.dims, transport.periods
        self._dims, self._periods = tuple(dims), tuple(periods)

    @property
    def dims(self) -> list[int]:
        """Number of ranks in each dimension."""
        return list(self._dims)

    @property
    def periods(self) -> list[bool]:
        """Whether each dimension is a ring."""
        return list(self._periods)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._dims)

    dim = ndim

    @property
    def coords(self) -> list[int]:
        """Coordinates of this rank."""
        return self.Get_coords(self.rank)

    @property
    def topo(self) -> tuple[list[int], list[bool], list[int]]:
        """`dims`, `periods` and `coords`."""
        return self.dims, self.periods, self.coords

    def Get_topo(self) -> tuple[list[int], list[bool], list[int]]:
        """Return `topo`."""
        return self.topo

    def Get_dim(self) -> int:
        """Return `ndim`."""
        return self.ndim

    def Get_topology(self) -> int:
        """Return CART."""
        return CART

    def Get_coords(self, rank: int) -> list[int]:
        """Return the coordinates of a rank."""
        return list(grids.coordinates(self._dims, self._rank_here(rank, "Get_coords")))

    def Get_cart_rank(self, coords: Any) -> int:
        """Return the rank with these coordinates, which may be outside only of dimensions that are rings."""
        places = _numbers(coords, "Get_cart_rank")
        if len(places) != self.ndim:
            raise UsageError(f"Get_cart_rank: the grid has {self.ndim} dimensions, and there are {len(places)} numbers")
        rank = grids.rank_at(self._dims, self._periods, places)
        if rank is None:
            raise UsageError(f"Get_cart_rank: {places} is outside of the grid {self.dims} (periods {self.periods})")
        return rank

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return the ranks to receive from and to send to, when each rank sends `disp` steps in a dimension.

        PROC_NULL stands for a rank beyond the edge.
        """
        axis, step = whole(direction), whole(disp)
        if axis is None or not 0 <= axis < self.ndim:
            raise UsageError(f"Shift: there is no dimension {direction!r}; the grid has {self.ndim}")
        if step is None:
            raise UsageError(f"Shift: the number of steps is an integer, not {disp!r}")
        source, dest = (grids.neighbour(self._dims, self._periods, self.rank, axis, one) for one in (-step, step))
        return PROC_NULL if source is None else source, PROC_NULL if dest is None else dest

    def Sub(self, remain_dims: Any) -> Cartcomm:
        """Return this rank's grid of the dimensions that are marked true. Collective."""
        keeps = [bool(one) for one in remain_dims] if np.iterable(remain_dims) else [bool(remain_dims)]
        if len(keeps) != self.ndim:
            raise UsageError(f"Sub: the grid has {self.ndim} dimensions, and there are {len(keeps)} marks")
        part = self.Split(*grids.sub_grid(self._dims, keeps, self.rank))
        dims = [dim for dim, keep in zip(self._dims, keeps, strict=True) if keep]
        return Cartcomm(part, dims, [ring for ring, keep in zip(self._periods, keeps, strict=True) if keep])

    @property
    def neighbors(self) -> list[int]:
        """In each dimension, the rank before this one and the rank after it; PROC_NULL beyond the edge."""
        return [rank for axis in range(self.ndim) for rank in self.Shift(axis, 1)]

    inneighbors = outneighbors = neighbors

    @property
    def nneighbors(self) -> int:
        """Number of `neighbors`."""
        return 2 * self.ndim

    indegree = outdegree = nneighbors

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        """Return the objects of the `neighbors`; None beyond the edge. Collective."""
        return self._exchange([sendobj] * self.nneighbors, "neighbor_allgather()")

    def neighbor_alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Send one object to each of the `neighbors`, and return theirs; None beyond the edge. Collective."""
        values = list(sendobj)
        if len(values) != self.nneighbors:
            raise UsageError(f"neighbor_alltoall needs {self.nneighbors} values, one per neighbour, not {len(values)}")
        return self._exchange(values, "neighbor_alltoall()")

    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copy the arrays of the `neighbors` into `recvbuf`, one after the other; beyond the edge it stays."""
        part = buffer_specs.readable(sendbuf, "Neighbor_allgather").flat
        self._copy(self.neighbor_allgather(part), recvbuf, "Neighbor_allgather")

    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send one part of `sendbuf` to each of the `neighbors`, and copy theirs as `Neighbor_allgather`."""
        whole_array = buffer_specs.readable(sendbuf, "Neighbor_alltoall").flat
        if whole_array.size % self.nneighbors:
            raise UsageError(f"Neighbor_alltoall: {whole_array.size} elements have no {self.nneighbors} equal parts")
        self._copy(self.neighbor_alltoall(np.split(whole_array, self.nneighbors)), recvbuf, "Neighbor_alltoall")

    def _copy(self, found: list[Any], recvbuf: Any, call: str) -> None:
        space = buffer_specs.writable(recvbuf, call)
        room = space.flat
        for number, array in enumerate(found):
            if array is None:
                continue
            if array.dtype != room.dtype or array.size * self.nneighbors != room.size:
                raise UsageError(
                    f"{call}: {array.size} elements of {array.dtype} from each of {self.nneighbors} neighbours do not "
                    f"fit {room.size} of {room.dtype}"
                )
            room[number * array.size : (number + 1) * array.size] = array
        space.store()

    def _exchange(self, values: list[Any], name: str) -> list[Any]:
        found: list[Any] = [None] * self.nneighbors
        neighbors = self.neighbors
        with self.group.call(name) as call:
            for rank, value in zip(neighbors, values, strict=True):
                if rank != PROC_NULL:
                    call.send_object(rank, value)
            for axis in range(self.ndim):
                self._receive_pair(call, axis, neighbors, found)
        return found

    @staticmethod
    def _receive_pair(call: CollectiveCall, axis: int, neighbors: list[int], found: list[Any]) -> None:
        # What a rank sends back comes first: in a ring of one or two ranks both neighbours are the same rank.
        for number in (2 * axis + 1, 2 * axis):
            if neighbors[number] != PROC_NULL:
                found[number] = call.receive_object(neighbors[number])

    def _rank_here(self, rank: Any, call: str) -> int:
        number = whole(rank)
        if number is None or not 0 <= number < self.size:
            raise UsageError(f"{call}: there is no rank {rank!r}; the grid has ranks 0 to {self.size - 1}")
        return number

    def _alike(self, transport: Transport) -> Cartcomm:
        return Cartcomm(transport, self._dims, self._periods)


def create_cart(comm: Comm, dims: Any, periods: Any) -> Cartcomm:
    """Return `Comm.Create_cart`."""
    sizes = _numbers(dims, "Create_cart")
    if any(one < 1 for one in sizes):
        raise UsageError(f"Create_cart: dimensions are numbers of ranks from 1 on, not {sizes}; see Compute_dims")
    rings = [bool(one) for one in periods] if np.iterable(periods) else [bool(periods)] * len(sizes)
    if len(rings) != len(sizes):
        raise UsageError(f"Create_cart: {len(sizes)} dimensions, and {len(rings)} periods")
    count = math.prod(sizes)
    if count > comm.size:
        raise UsageError(f"Create_cart: a grid {sizes} needs {count} ranks, and the communicator has {comm.size}")
    number, told = comm._agree("Create_cart()", (sizes, rings))
    other = next((one for one in told if one != told[0]), None)
    if other is not None:
        raise UsageError(
            f"Create_cart: rank 0 makes the grid {told[0]} (dims, periods), rank {told.index(other)} {other}"
        )
    if comm.rank >= count:
        return cast("Cartcomm", COMM_NULL)
    return Cartcomm(comm._transport_of(range(count), number), sizes, rings)


def Compute_dims(nnodes: int, dims: Any) -> list[int]:
    """Return numbers of ranks per dimension whose product is `nnodes`, as close to each other as possible.

    `dims`: the number of dimensions, or one number for each: 0 is replaced, another one stays.
    """
    count, axes = whole(nnodes), whole(dims)
    given = [0] * axes if axes is not None and axes >= 0 else _numbers(dims, "Compute_dims")
    if count is None or count < 1 or any(one < 0 for one in given):
        raise UsageError(
            f"Compute_dims({nnodes!r}, {dims!r}) needs a number of ranks from 1 on, and dimensions from 0 on"
        )
    found = grids.fill(count, given)
    if found is None:
        raise UsageError(f"Compute_dims: {count} ranks have no grid with the dimensions {given}")
    return found


def _numbers(values: Any, call: str) -> list[int]:
    found = [whole(one) for one in (values if np.iterable(values) else [values])]
    if any(one is None for one in found):
        raise UsageError(f"{call} needs integers, not {values!r}")
    return [one for one in found if one is not None]
