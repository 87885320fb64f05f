"""Redistribution between any maps, assignment to slices, halos and gathering, compared with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import DTYPES, RECORD, assert_is, random_key, random_map, random_shape, spread, whole_array
from hypothesis import given
from hypothesis import strategies as st
from in_threads import on_ranks, run

from slurm_share.spmd import redistribute
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.dmat import Dmat, from_local, zeros
from slurm_share.spmd.errors import CollectiveMismatch, NoRoom, UsageError
from slurm_share.spmd.gathering import is_contiguous_block
from slurm_share.spmd.rules.maps import Map
from slurm_share.spmd.rules.plans import Part

SEEDS = st.integers(0, 2**32 - 1)


def case(seed: int, size: int) -> tuple[np.random.Generator, int, tuple[int, ...], Map, Map]:
    generator = np.random.default_rng(seed)
    ndim = int(generator.integers(1, 5))
    shape = random_shape(generator, ndim, (41, 41, 13, 7)[ndim - 1])
    return generator, ndim, shape, random_map(generator, ndim, size), random_map(generator, ndim, size)


@given(seed=SEEDS, size=st.integers(1, 6), dtype=st.sampled_from(DTYPES), per_node=st.sampled_from([None, 1, 2]))
@on_ranks()
def test_any_map_to_any_map_equals_the_whole_array(comm: Comm, seed: int, size: int, dtype: Any, per_node: Any) -> None:
    _, _, shape, source, target = case(seed, size)
    whole = whole_array(shape, dtype)
    array = spread(whole, source, comm)
    assert_is(array.redistribute(target), whole)
    goal = from_local(np.zeros(target.stored_shape(shape, comm.rank), dtype), target, shape, comm)
    goal[...] = array
    assert_is(goal, whole)
    assert_is(array, whole)


@given(seed=SEEDS, size=st.integers(1, 6), dtype=st.sampled_from(DTYPES))
@on_ranks()
def test_gather_returns_the_whole_array_on_the_root_only(comm: Comm, seed: int, size: int, dtype: Any) -> None:
    generator, _, shape, source, _ = case(seed, size)
    whole = whole_array(shape, dtype)
    root = int(generator.integers(size))
    array = spread(whole, source, comm)
    gathered = array.gather(root)
    assert (gathered is None) == (comm.rank != root)
    for one in (gathered, array.gather_all()):
        if one is not None:
            assert one.dtype == whole.dtype
            np.testing.assert_array_equal(one, whole)


@given(seed=SEEDS, size=st.integers(1, 6))
@on_ranks()
def test_halo_fills_the_overlap_from_the_owners(comm: Comm, seed: int, size: int) -> None:
    _, _, shape, source, _ = case(seed, size)
    whole = whole_array(shape, "f8")
    array = spread(whole, source, comm)
    mine = array.owned.copy()
    array.local[...] = -1
    array.owned[...] = mine
    array.halo()
    assert_is(array, whole)


@given(seed=SEEDS, size=st.integers(1, 6), dtype=st.sampled_from(DTYPES))
@on_ranks()
def test_reading_a_selection_gives_it_to_all_ranks(comm: Comm, seed: int, size: int, dtype: Any) -> None:
    generator, _, shape, source, _ = case(seed, size)
    whole = whole_array(shape, dtype)
    keys = [random_key(generator, shape) for _ in range(3)]
    array = spread(whole, source, comm)
    for key in keys:
        found, expected = array[key], whole[key]
        assert type(found) is type(expected), key
        np.testing.assert_array_equal(found, expected, err_msg=str(key))


@given(seed=SEEDS, size=st.integers(1, 6))
@on_ranks()
def test_assigning_numbers_and_plain_arrays_equals_numpy(comm: Comm, seed: int, size: int) -> None:
    generator, _, shape, source, _ = case(seed, size)
    keys = [random_key(generator, shape) for _ in range(3)]
    whole = whole_array(shape, "f8")
    after = whole.copy()
    values: list[Any] = []
    for number, key in enumerate(keys):
        values.append(-number if number == 1 else whole_array(after[key].shape, "i4", 1000 * number))
        after[key] = values[-1]
    array = spread(whole, source, comm)
    for key, value in zip(keys, values, strict=True):
        array[key] = value
    assert_is(array, after)


@given(seed=SEEDS, size=st.integers(1, 6), per_node=st.sampled_from([None, 2]))
@on_ranks()
def test_assigning_a_distributed_array_to_a_slice_equals_numpy(comm: Comm, seed: int, size: int, per_node: Any) -> None:
    generator, ndim, shape, target, _ = case(seed, size)
    key = random_key(generator, shape, only_slices=True)
    whole = whole_array(shape, "f8")
    value = whole_array(whole[key].shape, "f4", 1000)
    source = random_map(generator, ndim, size)
    after = whole.copy()
    after[key] = value
    array = spread(whole, target, comm)
    array[key] = spread(value, source, comm)
    assert_is(array, after)


@on_ranks(3)
def test_assigning_a_distributed_row_to_a_row_equals_numpy(comm: Comm) -> None:
    whole, row = whole_array((5, 4), "f8"), whole_array((4,), "i4", 70)
    array = spread(whole, Map((3, 1), "b", None, (1, 0)), comm)
    array[2, :] = spread(row, Map((3,), "c"), comm)
    array[:, 3] = -row[None, :1]
    after = whole.copy()
    after[2], after[:, 3] = row, -row[0]
    assert_is(array, after)
    with pytest.raises(UsageError, match=r"\(4,\) does not fit a selection of shape \(5,\)"):
        array[:, 1] = spread(row, Map((3,)), comm)


@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize("per_node", [None, 2])
def test_large_arrays_go_through_windows_where_there_are_some(windows: bool, per_node: Any) -> None:
    whole = whole_array((800, 300), "f8")
    rows, blocks = Map((4, 1)), Map((2, 2), ("c", ("bc", 3)), (3, 0, 2, 1))

    def program(comm: Comm) -> tuple[int, int]:
        array = spread(whole, rows, comm)
        for _ in range(3):
            array = array.redistribute(blocks)
            assert_is(array, whole)
            array = array.redistribute(rows)
            assert_is(array, whole)
        comm.barrier()
        array.redistribute(rows)
        transport: Any = comm.transport
        return len(transport.windows), sum(one.released for one in transport.windows)

    counts = run(4, program, per_node=per_node, windows=windows)
    assert any(made for made, _ in counts) == windows
    assert all(released == made for made, released in counts)
    if windows and per_node is None:
        assert [made for made, _ in counts] == [6] * 4


def test_a_window_is_not_released_while_a_rank_may_still_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redistribute, "WINDOW_MIN", 1)
    whole = whole_array((8, 8), "f8")

    def program(comm: Comm) -> list[int]:
        array = spread(whole, Map((4, 1)), comm)
        array.redistribute(Map((1, 4)))
        transport: Any = comm.transport
        return [one.released for one in transport.windows]

    assert run(4, program) == [[0]] * 4


def test_windows_wait_for_readers_that_have_not_shown_that_they_are_past() -> None:
    part = Part(1, (10_000,), (slice(0, 10_000, 1),))
    source, target = np.arange(10_000.0), np.zeros(10_000)

    def program(comm: Comm) -> list[int]:
        sends, receives = ([], [part._replace(rank=0)]) if comm.rank else ([part], [])
        transport: Any = comm.transport
        released = []
        for turn in range(4):
            if turn == 3:
                comm.barrier()
            redistribute.exchange(comm, "test", source, target, source.dtype, sends, receives)
            released.append(sum(one.released for one in transport.windows))
        return released

    assert run(2, program)[0] == [0, 0, 0, 3]
    np.testing.assert_array_equal(target, source)


@on_ranks(4)
def test_without_memory_for_a_window_blocks_go_by_messages(comm: Comm) -> None:
    whole = whole_array((800, 300), "f8")

    def full(size: int) -> Any:
        raise NoRoom("no shared memory")

    comm.transport.window = full  # type: ignore[method-assign]
    assert_is(spread(whole, Map((4, 1)), comm).redistribute(Map((1, 4))), whole)


def test_more_than_the_limit_goes_by_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redistribute, "WINDOW_MAX", 1000)
    monkeypatch.setattr(redistribute, "WINDOW_MIN", 1)
    whole = whole_array((40, 40), "f8")

    def program(comm: Comm) -> int:
        assert_is(spread(whole, Map((4, 1)), comm).redistribute(Map((1, 4))), whole)
        transport: Any = comm.transport
        return len(transport.windows)

    assert run(4, program) == [0] * 4


@pytest.mark.parametrize("piece", [8, 100, 1 << 20])
def test_large_blocks_travel_in_pieces(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(redistribute, "PIECE_BYTES", piece)
    whole = whole_array((12, 10), "f8")

    def program(comm: Comm) -> None:
        array = spread(whole, Map((3, 1)), comm)
        array = array.redistribute(Map((1, 3), "c"))
        assert_is(array, whole)
        assert_is(array.redistribute(Map((1, 1), "b", (2,))).redistribute(Map((3, 1))), whole)

    run(3, program, windows=False)


# ---- dtypes ----


def test_complex_on_one_rank_makes_the_array_complex_everywhere() -> None:
    def program(comm: Comm) -> Any:
        array = zeros(4, 4, map=Map((2, 1)), comm=comm)
        if comm.rank == 1:
            array.local = array.local + 1j
        there = array.redistribute(Map((1, 2)))
        return there.dtype, there.gather_all()

    expected = np.zeros((4, 4), complex)
    expected[2:] = 1j
    for dtype, whole in run(2, program):
        assert dtype == np.complex128
        np.testing.assert_array_equal(whole, expected)


@on_ranks(3)
def test_halo_and_assignment_bring_all_ranks_to_one_dtype(comm: Comm) -> None:
    array = zeros(6, map=Map((3,), "b", None, (1,)), comm=comm)
    if comm.rank == 1:
        array.local = array.local + 1j
    array.halo()
    assert_is(array, np.array([0, 0, 1j, 1j, 0, 0]))
    array = zeros(6, map=Map((3,)), comm=comm)
    if comm.rank == 1:
        array.local = array.local + 1j
    array[1:4] = zeros(3, map=Map((3,)), comm=comm) + 2j
    assert_is(array, np.array([0, 2j, 2j, 2j, 0, 0]))


def test_a_rank_without_a_part_has_no_say_in_the_dtype() -> None:
    def program(comm: Comm) -> Any:
        array = zeros(4, map=Map((2,)), comm=comm)
        if comm.rank < 2:
            array.local = array.local.astype(np.float32)
        return array.redistribute(Map((3,))).dtype

    assert run(3, program) == [np.float32] * 3


# ---- mistakes ----


def test_other_maps_on_one_rank_are_an_error_on_all() -> None:
    def program(comm: Comm) -> str:
        array = zeros(8, 8, map=Map((2, 1) if comm.rank else (1, 2)), comm=comm)
        with pytest.raises(CollectiveMismatch) as error:
            array.redistribute(Map((1, 2)))
        return str(error.value)

    first, second = run(2, program)
    assert first == second
    assert (
        "rank 0 is in redistribute of (8, 8) by Map((1, 2), 'b') to Map((1, 2), 'b'), rank 1 in redistribute" in first
    )


@on_ranks(2)
def test_another_target_on_one_rank_is_an_error_on_all(comm: Comm) -> None:
    array = zeros(8, 8, map=Map((2, 1)), comm=comm)
    with pytest.raises(CollectiveMismatch):
        array.redistribute(Map((1, 2), "c" if comm.rank else "b"))


@on_ranks(2)
def test_another_key_on_one_rank_is_an_error_on_all(comm: Comm) -> None:
    array = zeros(8, map=Map((2,)), comm=comm)
    with pytest.raises(CollectiveMismatch):
        array[comm.rank :]


@on_ranks(2)
def test_other_calls_on_one_rank_are_named_on_all(comm: Comm) -> None:
    array = zeros(8, map=Map((2,)), comm=comm)
    with pytest.raises(CollectiveMismatch, match=r"rank 0 is in gather\(root=0\) of .*, rank 1 in sum\("):
        array.sum() if comm.rank else array.gather()


def _gather_and_meet(array: Dmat, everywhere: bool) -> None:
    """Gather, then meet: ranks that only send learn of a failed gather in their next call."""
    try:
        array.gather_all() if everywhere else array.gather()
    finally:
        array.comm.barrier()


@pytest.mark.parametrize("everywhere", [False, True], ids=["gather", "gather_all"])
@on_ranks(3)
def test_dtypes_without_a_common_one_are_an_error_on_all(comm: Comm, everywhere: bool) -> None:
    local = np.zeros(2, "f8" if comm.rank else RECORD)
    array = Dmat((6,), Map((3,)), local, comm)
    error = UsageError if comm.rank == 0 else CollectiveMismatch
    with pytest.raises(error, match="without a common one"):
        _gather_and_meet(array, everywhere)


@pytest.mark.parametrize("everywhere", [False, True], ids=["gather", "gather_all"])
@on_ranks(3)
def test_another_map_in_a_gather_is_an_error_on_all(comm: Comm, everywhere: bool) -> None:
    array = zeros(8, map=Map((3,), "c" if comm.rank == 2 else "b"), comm=comm)
    with pytest.raises(CollectiveMismatch, match=r"\(\(3,\), 'c'\)|has failed"):
        _gather_and_meet(array, everywhere)


@pytest.mark.parametrize("kinds", [("f4", "f8", "i8"), ("i1", "c8", "i2"), ("f8", "f8", "f4")])
@pytest.mark.parametrize("root", [0, 1, None])
def test_parts_of_other_dtypes_are_gathered_in_the_one_that_holds_all(kinds: tuple[str, ...], root: int | None) -> None:
    whole = np.arange(12).reshape(4, 3)

    def program(comm: Comm) -> Any:
        array = spread(whole.astype(kinds[comm.rank]), Map((3, 1), "b", (2, 0, 1)), comm)
        return array.gather_all() if root is None else array.gather(root)

    for rank, got in enumerate(run(3, program)):
        if root in (rank, None):
            assert np.array_equal(got, whole)
            assert got.dtype == np.result_type(*kinds)
        else:
            assert got is None


@pytest.mark.parametrize("place", [(slice(0, 2, 1), slice(0, 3, 1)), (slice(1, 2, 1), slice(0, 2, 1))])
def test_a_block_of_neighbours_is_contiguous_block(place: tuple[slice, ...]) -> None:
    assert is_contiguous_block((4, 3), place)


@on_ranks(2)
def test_a_wrong_shape_or_complex_values_do_not_fit(comm: Comm) -> None:
    array, other = zeros(4, 4, map=Map((2, 1)), comm=comm), zeros(3, 4, map=Map((2, 1)), comm=comm)
    with pytest.raises(UsageError, match=r"\(3, 4\) does not fit a selection of shape \(4, 4\)"):
        array[...] = other
    with pytest.raises(UsageError, match="complex"):
        array[...] = array * 1j
    with pytest.raises(UsageError, match="complex"):
        array[0, 0] = 1j
    with pytest.raises(ValueError, match="broadcast"):
        array[:, 1] = np.zeros(3)
    with pytest.raises(UsageError, match="there is no rank 2"):
        array.gather(2)
    with pytest.raises(IndexError):
        array[4, 0]
