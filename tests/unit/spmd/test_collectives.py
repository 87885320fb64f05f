"""Collective calls give the right results for any number of ranks and nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_threads import on_ranks, run, run_ranks

from slurm_share.spmd.comm import MAX, MIN, PROD, SUM, Comm
from slurm_share.spmd.errors import CollectiveMismatch, UsageError
from slurm_share.spmd.gathering import gather_blocks

Program = Callable[[Comm], Any]


LAYOUTS = [(1, None), (2, None), (3, 1), (4, 3), (5, 2), (7, 4), (9, 4), (9, None), (20, None), (19, 1)]
layouts = pytest.mark.parametrize(("size", "per_node"), LAYOUTS)
both = pytest.mark.parametrize("windows", [True, False], ids=["windows", "messages"])


@layouts
@on_ranks()
def test_lower_case_calls(comm: Comm, size: int, per_node: int | None) -> None:
    root = size // 2
    me = comm.rank
    everyone = list(range(size))
    assert comm.bcast({"from": me}, root) == {"from": root}
    assert comm.gather(("rank", me), root) == ([("rank", rank) for rank in everyone] if me == root else None)
    assert comm.allgather(me * me) == [rank * rank for rank in everyone]
    assert comm.scatter([f"for {rank}" for rank in everyone] if me == root else None, root) == f"for {me}"
    assert comm.alltoall([(me, to) for to in everyone]) == [(rank, me) for rank in everyone]
    assert comm.reduce(me + 1, SUM, root) == (sum(everyone) + size if me == root else None)
    assert comm.allreduce(me + 1, PROD) == np.prod([rank + 1 for rank in everyone], dtype=object)
    assert comm.allreduce(-me, MIN) == 1 - size
    assert comm.allreduce((me, "x"), MAX) == (size - 1, "x")
    assert comm.scan(me) == me * (me + 1) // 2
    comm.barrier()


@layouts
@on_ranks()
def test_values_are_combined_in_the_order_of_ranks(comm: Comm, size: int, per_node: int | None) -> None:
    """Concatenation of strings is associative but not commutative."""
    word = "".join(f"<{rank}>" for rank in range(size))
    assert comm.allreduce(f"<{comm.rank}>", lambda left, right: left + right) == word
    for root in {0, size - 1, size // 2}:
        assert comm.reduce([comm.rank], SUM, root) == (list(range(size)) if comm.rank == root else None)
    assert comm.scan(f"<{comm.rank}>") == "".join(f"<{rank}>" for rank in range(comm.rank + 1))


@both
@layouts
@on_ranks()
def test_upper_case_calls(comm: Comm, size: int, per_node: int | None, windows: bool) -> None:
    root = size - 1
    me = comm.rank
    for count in (0, 1, 5, 3_000, 70_000):
        table = np.arange(size * count, dtype=np.float64).reshape(size, count)
        array = table[me].copy() if me == root else np.zeros(count)
        comm.Bcast(array, root)
        assert np.array_equal(array, table[root])
        room = np.zeros((size, count))
        comm.Gather(table[me], room if me == root else None, root)
        assert np.array_equal(room, table if me == root else np.zeros_like(room))
        comm.Allgather(table[me], room)
        assert np.array_equal(room, table)
        part = np.zeros(count)
        comm.Scatter(table if me == root else None, part, root)
        assert np.array_equal(part, table[me])
        mine = np.repeat(np.arange(size) + 100 * me, count)
        got = np.zeros_like(mine)
        comm.Alltoall(mine, got)
        assert np.array_equal(got, np.repeat(100 * np.arange(size) + me, count))
        total = np.zeros(count)
        comm.Reduce(table[me], total if me == root else None, SUM, root)
        assert np.array_equal(total, table.sum(axis=0) if me == root else np.zeros(count))
        comm.Allreduce(table[me] - 1, total, MAX)
        assert np.array_equal(total, table.max(axis=0) - 1 if count else total)


@both
@given(data=st.data())
def test_any_dtype_root_and_size(data: st.DataObject, windows: bool) -> None:
    size = data.draw(st.integers(1, 9), "ranks")
    per_node = data.draw(st.integers(1, 4), "per node")
    root = data.draw(st.integers(0, size - 1), "root")
    dtype = np.dtype(data.draw(st.sampled_from(["i1", "?", "<f4", "c16", ">i4", "M8[s]", "S5", "i2,f8"])))
    count = data.draw(st.sampled_from([0, 1, 17, 2_500, 20_001]), "count")
    order = data.draw(st.sampled_from("CF"))
    source = np.random.default_rng(count + size)
    bits = source.integers(0, 2, size * count * dtype.itemsize, np.uint8)
    table = bits.view(dtype).reshape(size, count, 1) if count else np.zeros((size, 0, 1), dtype)

    def program(comm: Comm) -> None:
        me = comm.rank
        mine = np.array(table[me], order=order)
        assert same(comm.bcast(mine if me == root else None, root), table[root])
        gathered = comm.gather(mine, root)
        if me == root:
            assert gathered is not None
            assert all(map(same, gathered, table))
        assert all(map(same, comm.allgather(mine), table))
        assert same(comm.scatter(list(table) if me == root else None, root), table[me])
        room = np.zeros_like(table)
        comm.Allgather(mine, room)
        assert same(room, table)
        array = mine.copy(order=order) if me == root else np.zeros((count, 1), dtype, order=order)
        comm.Bcast(array, root)
        assert same(array, table[root])

    run(size, program, per_node=per_node, windows=windows)


def same(left: np.ndarray, right: np.ndarray) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@both
def test_large_values_do_not_go_through_the_ranks_between(windows: bool) -> None:
    """Among 20 ranks of a node, most are not children of the root."""
    shared: list[Any] = []

    def program(transport: Any) -> None:
        shared.append(transport.shared)
        comm = Comm(transport)
        mine = np.full(5_000 if comm.rank % 3 else 10, comm.rank)
        got = comm.gather(mine, 4)
        assert (got is None) == (comm.rank != 4)
        assert got is None or [(len(one), int(one[0])) for one in got] == [
            (5_000 if rank % 3 else 10, rank) for rank in range(20)
        ]

    run_ranks(20, program, windows=windows)
    assert max(envelope.size for envelope in shared[0].sent) < 45_000


@both
def test_sums_have_the_same_bits_on_every_rank_and_in_every_run(windows: bool) -> None:
    def program(comm: Comm) -> tuple[bytes, bytes]:
        values = np.random.default_rng(comm.rank).normal(size=30_000) * 10.0 ** (comm.rank * 3)
        total = np.empty_like(values)
        comm.Allreduce(values, total)
        return total.tobytes(), comm.allreduce(values).tobytes()

    seen = {bits for _ in range(3) for pair in run(6, program, per_node=4, windows=windows) for bits in pair}
    assert len(seen) == 1


@pytest.mark.parametrize("size", [1, 3])
@on_ranks()
def test_what_is_returned_is_the_receivers_own(comm: Comm, size: int) -> None:
    """Changing a result changes neither other ranks' results nor the sender's value."""
    mine = np.full(4, comm.rank)
    for got in (comm.allgather(mine), comm.alltoall([mine] * comm.size), comm.gather(mine) or []):
        for array in got:
            array += 100
    for array in (comm.reduce(mine), comm.allreduce(mine), comm.scan(mine), comm.scatter([mine] * comm.size)):
        if array is not None:
            array += 100
    listed = [comm.rank]
    for found in (comm.reduce(listed, MIN), comm.allreduce(listed, MAX), comm.scan(listed, MAX)):
        if found is not None:
            found.append(100)
    comm.barrier()
    assert (mine == comm.rank).all()
    assert listed == [comm.rank]


@on_ranks(2)
def test_a_sequence_of_another_length_is_refused(comm: Comm) -> None:
    with pytest.raises(UsageError, match="alltoall needs a sequence with one value for each of the 2 ranks, not 3"):
        comm.alltoall([1, 2, 3])
    here = "" if comm.rank == 0 else "scatter has failed on rank 0: UsageError: "
    with pytest.raises(UsageError, match=f"^(collective call 2: )?{here}scatter needs .* not None"):
        comm.scatter(None)
    comm.barrier()


@on_ranks(2)
def test_reductions_that_are_none_are_refused(comm: Comm) -> None:
    with pytest.raises(UsageError, match="'sum' is not a reduction: use SUM, PROD, MIN, MAX, another"):
        comm.allreduce(1, "sum")
    with pytest.raises(UsageError, match="Allreduce takes SUM, PROD, MIN or MAX"):
        comm.Allreduce(np.ones(2), np.ones(2), max)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Reduce: SUM combines numbers, not elements of <U3"):
        comm.Reduce(np.array(["abc"]), np.array(["abc"]))
    assert comm.allreduce(comm.rank, max) == 1


A, B = np.zeros(6), np.zeros(12)
CALLS: dict[str, Program] = {
    "barrier": lambda comm: comm.barrier(),
    "bcast 0": lambda comm: comm.bcast(1, 0),
    "bcast 1": lambda comm: comm.bcast(1, 1),
    "gather 0": lambda comm: comm.gather(1, 0),
    "gather 1": lambda comm: comm.gather(1, 1),
    "scatter 0": lambda comm: comm.scatter([1] * comm.size, 0),
    "scatter 1": lambda comm: comm.scatter([1] * comm.size, 1),
    "allgather": lambda comm: comm.allgather(1),
    "alltoall": lambda comm: comm.alltoall([1] * comm.size),
    "reduce 0": lambda comm: comm.reduce(1, SUM, 0),
    "reduce 1": lambda comm: comm.reduce(1, SUM, 1),
    "reduce MAX": lambda comm: comm.reduce(1, MAX, 0),
    "allreduce": lambda comm: comm.allreduce(1),
    "allreduce MAX": lambda comm: comm.allreduce(1, MAX),
    "scan": lambda comm: comm.scan(1),
    "Bcast": lambda comm: comm.Bcast(A.copy()),
    "Bcast of another type": lambda comm: comm.Bcast(A.astype("f4")),
    "Bcast of another length": lambda comm: comm.Bcast(B.copy()),
    "Gather": lambda comm: comm.Gather(A, np.zeros((comm.size, 6))),
    "Gather of another length": lambda comm: comm.Gather(B, np.zeros((comm.size, 12))),
    "Allgather": lambda comm: comm.Allgather(A, np.zeros((comm.size, 6))),
    "Scatter": lambda comm: comm.Scatter(np.zeros((comm.size, 6)), A.copy()),
    "Alltoall": lambda comm: comm.Alltoall(np.zeros(12 * comm.size), np.zeros(12 * comm.size)),
    "Reduce": lambda comm: comm.Reduce(A, A.copy()),
    "Reduce 1": lambda comm: comm.Reduce(A, A.copy(), SUM, 1),
    "Allreduce": lambda comm: comm.Allreduce(A, A.copy()),
    "Allreduce MIN": lambda comm: comm.Allreduce(A, A.copy(), MIN),
    "Bcast of 64 KiB": lambda comm: comm.Bcast(np.zeros(8192)),
    "Gather of 64 KiB": lambda comm: comm.Gather(np.zeros(8192), np.zeros((comm.size, 8192))),
    "Allreduce of 64 KiB": lambda comm: comm.Allreduce(np.zeros(8192), np.zeros(8192)),
    "Allgather of 64 KiB": lambda comm: comm.Allgather(np.zeros(8192), np.zeros((comm.size, 8192))),
    "bcast of 64 KiB": lambda comm: comm.bcast(np.zeros(8192), 2),
    "reduce of 64 KiB": lambda comm: comm.reduce(np.zeros(8192), PROD, 0),
    "gather_blocks": lambda comm: gather_blocks(
        comm.group, (comm.size, 9), int, np.zeros((1, 9), int), [slice(comm.rank, comm.rank + 1, 1), slice(0, 9, 1)]
    ),
    "gather_blocks of 64 KiB": lambda comm: gather_blocks(
        comm.group, (8192 * comm.size,), int, np.zeros(8192, int), [slice(comm.rank, 8192 * comm.size, comm.size)]
    ),
}


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("one", CALLS)
def test_a_rank_in_another_call_than_the_others_is_noticed(one: str, odd: int) -> None:
    """At the latest in its next call, because a rank that only sends does not wait."""
    for other in CALLS:
        if other == one:
            continue

        def program(comm: Comm, other: str = other) -> None:
            CALLS[one if comm.rank == odd else other](comm)
            comm.barrier()

        with pytest.raises(CollectiveMismatch) as caught:
            run(3, program, per_node=None if len(other) % 2 else 2)
        text = str(caught.value)
        assert text.startswith(("collective call 1: ", "collective call 2: ")), (one, other)


def test_the_sentence_names_both_calls_with_their_arguments() -> None:
    with pytest.raises(CollectiveMismatch) as caught:
        run(2, lambda comm: comm.bcast(1, 0) if comm.rank == 0 else comm.Gather(np.zeros(3), np.zeros(6), root=1))
    assert str(caught.value) == (
        "collective call 1: rank 1 is in Gather(3 x float64, root=1), rank 0 in bcast(root=0); "
        "all ranks must make the same collective calls in the same order"
    )
