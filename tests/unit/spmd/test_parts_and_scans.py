"""Collective calls with parts of any length, scans and operations give the results of NumPy on any ranks and nodes."""

from __future__ import annotations

import inspect
import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_threads import on_ranks, run

from slurm_share.spmd import MPI
from slurm_share.spmd.collective_calls import CollectiveCalls
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.errors import CollectiveMismatch, MessageMismatch, SpmdError, UsageError

LAYOUTS = [(1, None), (2, None), (3, 1), (5, 2), (9, 4)]
layouts = pytest.mark.parametrize(("size", "per_node"), LAYOUTS)
both = pytest.mark.parametrize("windows", [True, False], ids=["windows", "messages"])


@given(data=st.data())
def test_parts_of_any_lengths_and_places_arrive(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 9), "ranks")
    per_node = data.draw(st.integers(1, 9), "per node")
    windows = data.draw(st.booleans(), "windows")
    root = data.draw(st.integers(0, size - 1), "root")
    counts = data.draw(st.lists(st.sampled_from([0, 1, 3, 4_000]), min_size=size, max_size=size), "counts")
    order = data.draw(st.permutations(range(size)), "order of the parts in memory")
    dtype = np.dtype(data.draw(st.sampled_from(["i2", "f8", "c16", "i2,f8"])))
    gap = data.draw(st.integers(0, 2), "gap")
    in_place = data.draw(st.booleans(), "in place")
    starts = [0] * size
    end = 0
    for rank in order:
        starts[rank] = end + gap
        end += counts[rank] + gap
    whole = np.zeros(end, dtype)
    for rank in range(size):
        whole[starts[rank] : starts[rank] + counts[rank]] = _values(rank, counts[rank], dtype)

    def program(comm: Comm) -> None:
        me = comm.rank
        mine = _values(me, counts[me], dtype)
        own = np.zeros(end, dtype)
        own[starts[me] : starts[me] + counts[me]] = mine
        keeps = in_place and me == root
        got = own.copy() if keeps else np.zeros(end, dtype)
        spec = [got, counts, starts, MPI.Datatype(dtype)]
        comm.Gatherv(MPI.IN_PLACE if keeps else mine, spec if me == root else None, root)
        assert got.tobytes() == (whole if me == root else np.zeros(end, dtype)).tobytes()
        got = own.copy() if in_place else np.zeros(end, dtype)
        comm.Allgatherv(MPI.IN_PLACE if in_place else mine, [got, (counts, starts), MPI.Datatype(dtype)])
        assert got.tobytes() == whole.tobytes()
        part = np.zeros(counts[me], dtype)
        comm.Scatterv([whole, (counts, starts)] if me == root else None, MPI.IN_PLACE if keeps else part, root)
        assert keeps or part.tobytes() == mine.tobytes()

    run(size, program, per_node=per_node, windows=windows)


@given(data=st.data())
def test_every_rank_gets_its_part_of_every_rank(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 9), "ranks")
    few = st.integers(0, 4)
    table = data.draw(st.lists(st.lists(few, min_size=size, max_size=size), min_size=size, max_size=size), "counts")
    if data.draw(st.booleans(), "in place"):
        table = [[table[min(a, b)][max(a, b)] for b in range(size)] for a in range(size)]
        in_place = True
    else:
        in_place = False

    def program(comm: Comm) -> None:
        me = comm.rank
        sends, receives = table[me], [table[rank][me] for rank in range(size)]
        source = np.concatenate([np.full(count, 100.0 * me + to) for to, count in enumerate(sends)])
        target = source.copy() if in_place else np.zeros(sum(receives))
        comm.Alltoallv(MPI.IN_PLACE if in_place else [source, sends], [target, receives, MPI.DOUBLE])
        expected = [100.0 * rank + me for rank, count in enumerate(receives) for _ in range(count)]
        assert target.tolist() == expected
        starts = [8 * sum(sends[:rank]) for rank in range(size)]
        places = [8 * sum(receives[:rank]) for rank in range(size)]
        target[:] = 0
        kinds = [MPI.DOUBLE] * size
        comm.Alltoallw([source, (sends, starts), kinds], [target, receives, places, kinds])
        assert target.tolist() == expected

    run(size, program, per_node=data.draw(st.integers(1, 9)))


@both
@layouts
@on_ranks()
def test_scans_and_scattered_reductions(comm: Comm, size: int, per_node: int | None, windows: bool) -> None:
    me = comm.rank
    for count in (0, 3, 40_000):
        table = np.random.default_rng(count).normal(size=(size, count))
        for in_place in (False, True):
            sums = table[0].copy()
            for row in table[1 : me + 1]:
                sums += row
            got = table[me].copy() if in_place else np.zeros(count)
            comm.Scan(MPI.IN_PLACE if in_place else table[me], got)
            assert got.tobytes() == sums.tobytes()
            got = table[me].copy() if in_place else np.full(count, 7.0)
            before = got.copy() if me == 0 else table[:me].min(axis=0)
            comm.Exscan(MPI.IN_PLACE if in_place else table[me], got, MPI.MIN)
            assert got.tobytes() == before.tobytes()
            whole = np.repeat(table[me], size)
            total = table.max(axis=0) if count else np.zeros(0)
            expected = np.repeat(total, size)
            block = whole.copy() if in_place else np.zeros(count)
            comm.Reduce_scatter_block(MPI.IN_PLACE if in_place else whole, block, MPI.MAX)
            assert block[:count].tobytes() == expected[me * count : (me + 1) * count].tobytes()
            counts = [count * 2 * (rank % 2) for rank in range(size)]
            counts[-1] += count * size - sum(counts)
            start = sum(counts[:me])
            part = whole.copy() if in_place else np.zeros(counts[me])
            comm.Reduce_scatter(MPI.IN_PLACE if in_place else whole, part, counts, MPI.MAX)
            assert part[: counts[me]].tobytes() == expected[start : start + counts[me]].tobytes()
        part = np.zeros(counts[me])
        comm.Reduce_scatter(whole, part, op=MPI.MAX)
        assert part.tobytes() == expected[start : start + counts[me]].tobytes()
    assert comm.exscan(me + 1) == (None if me == 0 else me * (me + 1) // 2)
    assert comm.exscan(str(me)) == (None if me == 0 else "".join(map(str, range(me))))


@both
@layouts
@on_ranks()
def test_in_place_takes_the_data_of_the_receive_buffer(
    comm: Comm, size: int, per_node: int | None, windows: bool
) -> None:
    me, root = comm.rank, size - 1
    for count in (1, 70_000):
        table = np.arange(size * count, dtype=np.float64).reshape(size, count)
        own = np.zeros_like(table)
        own[me] = table[me]
        got = own.copy()
        comm.Allgather(MPI.IN_PLACE, got)
        assert np.array_equal(got, table)
        got = own.copy()
        comm.Gather(MPI.IN_PLACE if me == root else table[me], got if me == root else None, root)
        assert np.array_equal(got, table if me == root else own)
        part = np.zeros(count)
        comm.Scatter(table if me == root else None, MPI.IN_PLACE if me == root else part, root)
        assert me == root or np.array_equal(part, table[me])
        total = table[me].copy()
        comm.Allreduce(MPI.IN_PLACE, total)
        assert np.array_equal(total, table.sum(axis=0))
        total = table[me].copy()
        comm.Reduce(MPI.IN_PLACE if me == root else total, total if me == root else None, MPI.MAX, root)
        assert np.array_equal(total, table[root if me == root else me])
        mine = np.repeat(np.arange(size) + 100 * me, count)
        comm.Alltoall(MPI.IN_PLACE, mine)
        assert np.array_equal(mine, np.repeat(100 * np.arange(size) + me, count))


NUMPY = {
    "SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "LAND": np.logical_and,
    "LOR": np.logical_or, "LXOR": np.logical_xor, "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}  # fmt: skip


@both
@pytest.mark.parametrize("name", NUMPY)
@on_ranks(5, per_node=3)
def test_operations_on_buffers_are_those_of_numpy(comm: Comm, name: str, windows: bool) -> None:
    op = getattr(MPI, name)
    for dtype in ("i4", "u1", "?") if name.startswith("B") else ("i4", "u1", "?", "f4"):
        for count in (3, 300_000 if dtype == "i4" else 5):
            table = np.random.default_rng(1).integers(0, 3, (5, count)).astype(dtype)
            expected = table[0]
            for row in table[1:]:
                expected = NUMPY[name](expected, row).astype(dtype)
            got = np.zeros(count, dtype)
            comm.Allreduce(table[comm.rank], got, op)
            assert np.array_equal(got, expected)
            assert np.array_equal(comm.allreduce(table[comm.rank], op), expected)
            values = [int(row[0]) for row in table]
            objects = values[0]
            for value in values[1:]:
                objects = NUMPY[name](objects, value)
            assert comm.allreduce(values[comm.rank], op) == objects


@both
@given(data=st.data())
def test_places_of_extremes_are_those_of_the_lowest_index(data: st.DataObject, windows: bool) -> None:
    size = data.draw(st.integers(1, 9))
    value = st.sampled_from([0.0, 1.0, 2.0, math.nan])
    row = st.lists(st.tuples(value, st.integers(0, 3)), min_size=4, max_size=4)
    table = data.draw(st.lists(row, min_size=size, max_size=size))
    dtype = data.draw(st.sampled_from([MPI.DOUBLE_INT.dtype, MPI.FLOAT_INT.dtype, np.dtype("f8,i8")]))
    times = data.draw(st.sampled_from([1, 20_000 if size > 6 else 1]))

    def program(comm: Comm) -> None:
        mine = np.array(table[comm.rank] * times, dtype)
        for op, sign in ((MPI.MAXLOC, -1), (MPI.MINLOC, 1)):
            got = np.zeros_like(mine)
            comm.Allreduce(mine, got, op)
            for place in range(4):
                column = [line[place] for line in table]
                best = min(column, key=lambda one: (not math.isnan(one[0]), sign * one[0], one[1]))
                nans = [one[1] for one in column if math.isnan(one[0])]
                index = min(nans) if nans else best[1]
                found = got[place + 4 * (times - 1)].item()
                alone = comm.allreduce(table[comm.rank][place], op)
                for one in (found, alone):
                    assert one[1] == index
                    assert math.isnan(one[0]) if nans else one[0] == best[0]

    run(size, program, per_node=data.draw(st.integers(1, 9)), windows=windows)


@both
@given(data=st.data())
def test_a_nan_of_any_rank_is_the_least_and_the_greatest(data: st.DataObject, windows: bool) -> None:
    size = data.draw(st.integers(1, 9))
    nans = data.draw(st.sets(st.integers(0, size - 1)))
    kind = data.draw(
        st.sampled_from([float, np.float64, np.float32, complex, np.complex64, np.datetime64, "array", "wide"])
    )

    def value(rank: int) -> Any:
        if kind is np.datetime64:
            return np.datetime64("NaT" if rank in nans else f"2026-01-{1 + rank:02}")
        number = math.nan if rank in nans else float((rank * 7) % 5)
        if kind in ("array", "wide"):
            array = np.full(70_000 if kind == "wide" and size > 4 else 3, 1.0)
            array[1] = number
            return array
        return kind(number)  # type: ignore[operator]

    def program(comm: Comm) -> None:
        for op, pick in ((MPI.MAX, max), (MPI.MIN, min)):
            results = [comm.allreduce(value(comm.rank), op), comm.reduce(value(comm.rank), op, size - 1)]
            assert (results[1] is not None) == (comm.rank == size - 1)
            for result in results:
                if result is None:
                    continue
                if kind in ("array", "wide"):
                    assert result[0] == 1.0
                    result = result[1]
                else:
                    assert type(result) is type(value(0))
                assert (result != result) == bool(nans)
                if not nans:
                    expected = [value(rank) for rank in range(size)]
                    expected = [one[1] if kind in ("array", "wide") else one for one in expected]
                    assert result == pick(
                        expected, key=lambda one: one.real if kind in (complex, np.complex64) else one
                    )
            seen = comm.scan(value(comm.rank), op)
            seen = seen[1] if kind in ("array", "wide") else seen
            assert (seen != seen) == any(rank in nans for rank in range(comm.rank + 1))

    run(size, program, per_node=data.draw(st.integers(1, 9)), windows=windows)


@both
def test_operations_of_users_combine_in_the_order_of_ranks(windows: bool) -> None:
    run(6, _multiply, per_node=4, windows=windows)


def _multiply(comm: Comm) -> None:
    """A product of matrices is associative but does not commute; the function sees whole buffers."""

    def product(left: Any, right: Any, kind: Any) -> None:
        assert kind == MPI.DOUBLE
        a = np.frombuffer(left, "d").reshape(-1, 2, 2)
        b = np.frombuffer(right, "d").reshape(-1, 2, 2)
        b[:] = a @ b

    op = MPI.Op.Create(product, commute=False)
    assert not op.Is_commutative()
    for count in (1, 30_001):  # parts of a window would cut matrices
        table = np.random.default_rng(7).integers(-2, 3, (6, count, 2, 2)).astype(float)
        expected = table[0]
        for one in table[1:]:
            expected = expected @ one
        got = np.zeros_like(expected)
        mine = table[comm.rank].copy()
        comm.Allreduce(mine, got, op)
        assert np.array_equal(got, expected)
        assert np.array_equal(mine, table[comm.rank])
        got[:] = 0
        comm.Scan(mine, got, op)
        first = table[0]
        for one in table[1 : comm.rank + 1]:
            first = first @ one
        assert np.array_equal(got, first)
    joined = MPI.Op.Create(lambda a, b, _kind: a + b)
    assert comm.allreduce(str(comm.rank), joined) == "012345"
    joined.Free()


def test_operations_can_be_called_pickled_and_used_on_one_rank() -> None:
    assert (MPI.SUM(1, 2), MPI.LXOR(2, 4), MPI.BAND(6, 3), MPI.MAXLOC((1, 3), (1, 2))) == (3, False, 2, (1, 2))
    assert (MPI.REPLACE(1, 2), MPI.NO_OP(1, 2)) == (2, 1)
    assert pickle.loads(pickle.dumps(MPI.MAXLOC)) is MPI.MAXLOC
    copy = MPI.Op(MPI.MAXLOC)
    assert copy == pickle.loads(pickle.dumps(copy)) == MPI.MAXLOC != MPI.MINLOC
    assert MPI.Op() == MPI.OP_NULL
    assert not MPI.OP_NULL
    own = MPI.Op.Create(max, commute=True)
    again = pickle.loads(pickle.dumps(own))
    assert own == MPI.Op(own) != again
    own.Free()
    assert own == MPI.OP_NULL
    assert again.Is_commutative()
    assert MPI.MINLOC(([1], 1), (low := [1], 0))[0] is low
    target = np.array([1, 2, 3])
    MPI.PROD.Reduce_local(np.array([2, 3, 4]), target)
    assert target.tolist() == [2, 6, 12]
    with pytest.raises(UsageError, match="SUM is one of the named operations, which cannot be freed"):
        MPI.SUM.Free()
    with pytest.raises(UsageError, match="Reduce_local: recvbuf has 3 x int64, and 2 x int64 are needed"):
        MPI.SUM.Reduce_local(np.array([2, 3]), target)
    with pytest.raises(UsageError, match="BAND combines integers, not elements of float64"):
        MPI.BAND.Reduce_local(np.ones(2), np.ones(2))
    with pytest.raises(UsageError, match="MAXLOC combines pairs of a value and an index"):
        MPI.MAXLOC.Reduce_local(np.ones(2), np.ones(2))
    with pytest.raises(UsageError, match="cannot use NO_OP, which combines nothing"):
        MPI.NO_OP.Reduce_local(np.ones(2), np.ones(2))


@pytest.mark.parametrize(("sends", "says"), [(2, "rank 1 sends 2 x float64"), (4, "rank 1 sends 4 x float64")])
def test_another_count_than_the_receivers_is_told(sends: int, says: str) -> None:
    def program(comm: Comm) -> None:
        into = np.zeros(6)
        comm.Gatherv(np.zeros(sends if comm.rank else 3), [into, [3, 3]] if comm.rank == 0 else None)
        comm.barrier()

    with pytest.raises((MessageMismatch, CollectiveMismatch), match=f"{says}, and the receiver's count is 3"):
        run(2, program)


F2 = np.asfortranarray(np.arange(6.0).reshape(2, 3))
C2 = np.ascontiguousarray(F2)
MIXED: dict[str, Any] = {
    "Allreduce here": lambda comm: comm.Allreduce(C2, np.zeros((2, 3), order="F")),
    "Allreduce there": lambda comm: comm.Allreduce(*([F2, F2.copy(order="F")] if comm.rank else [C2, C2.copy()])),
    "Scan": lambda comm: comm.Scan(F2, C2.copy()),
    "Gather here": lambda comm: comm.Gather(F2, np.zeros((2, 2, 3))),
    "Gather there": lambda comm: comm.Gather(F2 if comm.rank else C2, np.zeros((2, 2, 3)) if comm.rank == 0 else None),
    "Allgather": lambda comm: comm.Allgather(C2, np.zeros((2, 3, 2), order="F")),
    "Scatter": lambda comm: comm.Scatter(np.zeros((2, 2, 3)), np.zeros((2, 3), order="F")),
    "Alltoall": lambda comm: comm.Alltoall(np.zeros((2, 2)), np.zeros((2, 2), order="F")),
    "Bcast": lambda comm: comm.Bcast((F2 if comm.rank else C2).copy(order="K")),
    "Reduce": lambda comm: comm.Reduce(F2 if comm.rank else C2, C2.copy()),
    "Reduce_scatter_block": lambda comm: comm.Reduce_scatter_block(np.ones((4, 2), order="F"), np.zeros((2, 2))),
}


@pytest.mark.parametrize("name", MIXED)
def test_other_memory_orders_are_refused(name: str) -> None:
    with pytest.raises(SpmdError, match="Fortran order"):
        run(2, lambda comm: (MIXED[name](comm), comm.barrier()))


@on_ranks(3)
def test_columns_of_an_array_in_fortran_order_are_its_parts(comm: Comm) -> None:
    """As in mpi4py: they follow each other in memory."""
    whole = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    column = np.zeros(4)
    comm.Scatter(whole if comm.rank == 0 else None, column)
    assert column.tolist() == whole[:, comm.rank].tolist()
    got = np.zeros((4, 3), order="F")
    comm.Gather(column, got if comm.rank == 2 else None, 2)
    assert comm.rank != 2 or np.array_equal(got, whole)
    own = np.zeros((4, 3), order="F")
    own[:, comm.rank] = column
    comm.Allgather(MPI.IN_PLACE, own)
    assert np.array_equal(own, whole)


@on_ranks(4)
def test_derived_types_select_elements_in_collective_calls(comm: Comm) -> None:
    size, me = comm.size, comm.rank
    whole = np.arange(16.0).reshape(4, 4)
    column = MPI.DOUBLE.Create_vector(4, 1, 4).Create_resized(0, 8).Commit()
    mine = np.zeros(4)
    comm.Scatter([whole, 1, column] if me == 0 else None, mine)
    assert mine.tolist() == whole[:, me].tolist()
    got = np.zeros((4, 4))
    comm.Allgather(mine, [got, 1, column])
    assert np.array_equal(got, whole)
    got[:] = 0
    comm.Gatherv(mine, [got, [1] * size, list(range(size)), column] if me == 1 else None, root=1)
    assert me != 1 or np.array_equal(got, whole)
    area = whole.copy() if me == 3 else np.zeros((4, 4))
    block = MPI.DOUBLE.Create_subarray([4, 4], [2, 2], [1, 1])
    comm.Bcast([area, 1, block], 3)
    assert np.array_equal(area[1:3, 1:3], whole[1:3, 1:3])
    assert me == 3 or area.sum() == whole[1:3, 1:3].sum()
    comm.Allreduce(MPI.IN_PLACE, [area, 1, block])
    assert np.array_equal(area[1:3, 1:3], 4 * whole[1:3, 1:3])


def test_names_order_and_defaults_of_arguments_are_those_of_mpi4py() -> None:
    """For calls, datatypes and operations that both have; ours may have a default where mpi4py has none."""
    theirs = pytest.importorskip("mpi4py.MPI", reason="there is no mpi4py for this machine")
    collective = [
        name for name in vars(CollectiveCalls) if not name.startswith("_") and hasattr(theirs.Intracomm, name)
    ]
    assert len(collective) > 20
    pairs = [(MPI.Comm, theirs.Intracomm, name) for name in collective]
    for ours, other in ((MPI.Datatype, theirs.Datatype), (MPI.Op, theirs.Op)):
        pairs += [(ours, other, name) for name in vars(ours) if not name.startswith("_") and hasattr(other, name)]
    compared = 0
    for ours, other, name in pairs:
        one = getattr(ours, name)
        if not callable(one) or name in ("Create_darray", "__init__"):
            continue
        text = (getattr(other, name).__doc__ or "").splitlines()[0]
        if not text.startswith(f"{name}("):
            continue
        compared += 1
        mine = [parameter for parameter in inspect.signature(one).parameters.values() if parameter.name != "self"]
        words = _parameters(text)
        assert [parameter.name for parameter in mine[: len(words)]] == [word for word, _ in words], name
        for parameter, (word, default) in itertools.zip_longest(mine, words, fillvalue=("", None)):
            assert word, f"{name} has {parameter}, which mpi4py lacks"
            if default is not None:
                assert str(parameter.default) == default or repr(parameter.default) == default, (name, word)
    assert compared > 50


def _parameters(text: str) -> list[tuple[str, str | None]]:
    """Return names and defaults of the parameters in the first line of a docstring of mpi4py."""
    inner = text[text.index("(") + 1 : text.rindex(") ->")]
    depth, words, word = 0, [], ""
    for letter in inner + ",":
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            words.append(word.strip())
            word = ""
        else:
            word += letter
    found = []
    for one in words:
        if one and one not in ("self", "cls", "/"):
            name, _, rest = one.partition(":")
            found.append((name, rest.partition("=")[2].strip() or None))
    return [(name, "56" if default == "ORDER_C" else default) for name, default in found]


def _values(rank: int, count: int, dtype: np.dtype[Any]) -> np.ndarray:
    array = np.zeros(count, dtype)
    for field in dtype.names or ("",):
        place = array[field] if field else array
        place[:] = np.arange(count) % 100 + 100 * rank
    return array
