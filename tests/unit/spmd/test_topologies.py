"""Communicators whose ranks form a grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from in_threads import on_ranks

from slurm_share.spmd import MPI
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.errors import UsageError

NULL = MPI.PROC_NULL


@on_ranks(7)
def test_a_grid_has_coordinates_and_neighbours(comm: Comm) -> None:
    grid = comm.Create_cart([2, 3], periods=[False, True])
    assert bool(grid) == (comm.rank < 6)
    if not grid:
        assert grid == MPI.COMM_NULL
        return
    rank = comm.rank
    assert isinstance(grid, MPI.Cartcomm)
    assert isinstance(grid, MPI.Intracomm)
    assert (grid.size, grid.rank, grid.Get_topology(), grid.is_topo) == (6, rank, MPI.CART, True)
    assert (grid.dims, grid.periods, grid.ndim, grid.Get_dim()) == ([2, 3], [False, True], 2, 2)
    assert grid.coords == grid.Get_coords(rank) == [rank // 3, rank % 3]
    assert grid.topo == grid.Get_topo() == ([2, 3], [False, True], [rank // 3, rank % 3])
    assert [grid.Get_cart_rank(grid.Get_coords(one)) for one in range(6)] == list(range(6))
    assert grid.Get_cart_rank([1, -1]) == 5
    assert grid.Shift(0, 1) == ((NULL, rank + 3) if rank < 3 else (rank - 3, NULL))
    row = rank // 3 * 3
    assert grid.Shift(1, 1) == (row + (rank - 1) % 3, row + (rank + 1) % 3)
    assert grid.Shift(1, -1) == (row + (rank + 1) % 3, row + (rank - 1) % 3)
    assert grid.Dup().dims == MPI.Cartcomm(grid).dims == [2, 3]


@on_ranks(6)
def test_parts_of_a_grid(comm: Comm) -> None:
    grid = comm.Create_cart((2, 3), True)
    rows, columns = grid.Sub([False, True]), grid.Sub([True, False])
    assert (rows.dims, rows.periods, columns.dims) == ([3], [True], [2])
    assert rows.allgather(comm.rank) == [comm.rank // 3 * 3 + one for one in range(3)]
    assert columns.allgather(comm.rank) == [comm.rank % 3, comm.rank % 3 + 3]
    assert grid.Sub([False, False]).size == 1


@on_ranks(4)
@pytest.mark.parametrize(("dims", "periods"), [([4], True), ([2, 2], True), ([4, 1], [False, True]), ([2, 2], False)])
def test_neighbours_exchange_values(comm: Comm, dims: list[int], periods: Any) -> None:
    grid = comm.Create_cart(dims, periods)
    near = grid.neighbors
    assert grid.neighbor_allgather(grid.rank) == [None if one == NULL else one for one in near]
    # Each rank tells its neighbour in which direction it went; the direction back is the other one.
    told = grid.neighbor_alltoall([(grid.rank, number) for number in range(len(near))])
    assert told == [None if one == NULL else (one, number ^ 1) for number, one in enumerate(near)]
    room = np.full((len(near), 3), -1)
    grid.Neighbor_allgather(np.full(3, grid.rank), room)
    assert room[:, 1].tolist() == [-1 if one == NULL else one for one in near]
    room[:] = -1
    grid.Neighbor_alltoall(np.arange(3 * len(near)).reshape(-1, 3) + 100 * grid.rank, room)
    expected = [-1 if one == NULL else 100 * one + 3 * (number ^ 1) for number, one in enumerate(near)]
    assert room[:, 0].tolist() == expected


@on_ranks(4)
def test_what_is_no_grid_is_refused(comm: Comm) -> None:
    for dims, periods, text in (
        ([5], None, "needs 5 ranks"),
        ([0, 2], None, "from 1 on"),
        ([2, 2], [True], "2 dimensions, and 1 periods"),
        (["a"], None, "integers"),
    ):
        with pytest.raises(UsageError, match=text):
            comm.Create_cart(dims, periods)
    with pytest.raises(UsageError, match=r"rank 0 makes the grid .*, rank 1 "):
        comm.Create_cart([4] if comm.rank == 0 else [2, 2])
    grid = comm.Create_cart([2, 2])
    for call, text in (
        (lambda: grid.Get_cart_rank([2, 0]), "outside"),
        (lambda: grid.Get_cart_rank([0]), "2 dimensions"),
        (lambda: grid.Get_coords(4), "ranks 0 to 3"),
        (lambda: grid.Shift(2, 1), "no dimension 2"),
        (lambda: grid.Sub([True]), "1 marks"),
        (lambda: grid.neighbor_alltoall([1]), "needs 4 values"),
    ):
        with pytest.raises(UsageError, match=text):
            call()


def test_compute_dims() -> None:
    assert MPI.Compute_dims(12, 2) == [4, 3]
    assert MPI.Compute_dims(12, [0, 2]) == [6, 2]
    for count, dims in ((6, [4, 0]), (0, 2), (6, [-1, 0])):
        with pytest.raises(UsageError, match="Compute_dims"):
            MPI.Compute_dims(count, dims)
