"""Distributed arrays: local parts and element-wise operations, compared with NumPy."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import numpy as np
import pytest
from arrays import DTYPES, assert_is, random_map, random_shape, spread, whole_array
from hypothesis import given
from hypothesis import strategies as st
from in_threads import on_ranks, run

from slurm_share.spmd.comm import Comm
from slurm_share.spmd.dmat import empty, from_local, ones, rand, zeros
from slurm_share.spmd.errors import MapMismatch, UsageError
from slurm_share.spmd.rules.maps import Map

SEEDS = st.integers(0, 2**32 - 1)
ROWS, COLUMNS = Map((2, 1)), Map((1, 2))


# ---- making, and the part of a rank ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@on_ranks(2)
def test_constructors_make_the_part_of_each_rank(comm: Comm, dtype: Any) -> None:
    assert_is(zeros(5, 4, map=ROWS, dtype=dtype, comm=comm), np.zeros((5, 4), dtype))
    assert_is(zeros([5, 4], map=Map((2, 1), "c"), dtype=dtype, comm=comm), np.zeros((5, 4), dtype))
    made = empty((5, 4), map=ROWS, dtype=dtype, comm=comm)
    assert (made.shape, made.dtype) == ((5, 4), dtype)
    if dtype.kind not in "MSV":
        assert_is(ones(5, 4, map=ROWS, dtype=dtype, comm=comm), np.ones((5, 4), dtype))


@pytest.mark.parametrize("map", [None, 1])
def test_constructors_without_a_map_make_numpy_arrays(map: Any) -> None:
    for maker in (zeros, ones, empty, rand):
        made = maker(3, 4, map=map, dtype="f4")
        assert type(made) is np.ndarray
        assert (made.shape, made.dtype) == ((3, 4), np.float32)
    assert zeros(3, 4, map=map, order="F").flags.f_contiguous


def test_random_numbers_differ_between_ranks_and_repeat_with_a_seed() -> None:
    def program(comm: Comm) -> Any:
        first, second, free = (rand(6, 4, map=ROWS, comm=comm, seed=seed) for seed in (7, 7, None))
        np.testing.assert_array_equal(first.local, second.local)
        assert not np.array_equal(first.local, free.local)
        return first.gather_all()

    whole = run(2, program)[0]
    assert not np.array_equal(whole[:3], whole[3:])
    assert 0 <= whole.min() < whole.max() < 1


@on_ranks(2)
def test_random_numbers_agree_where_parts_overlap(comm: Comm) -> None:
    made = rand(8, 5, map=Map((2, 1), "b", None, (2, 0)), dtype="c8", comm=comm)
    assert_is(made, made.gather_all())
    assert (made.gather_all().imag > 0).any()


def test_random_integers_are_refused() -> None:
    with pytest.raises(UsageError, match="random numbers are real or complex, not int64"):
        rand(3, dtype="i8")


@on_ranks(2)
def test_local_is_the_array_itself_and_owned_a_view_without_overlap(comm: Comm) -> None:
    local = np.zeros((5 if comm.rank == 0 else 4, 3))
    array = from_local(local, Map((2, 1), "b", None, (1, 0)), (8, 3), comm)
    assert array.local is local
    assert array.owned.shape == (4, 3)
    assert array.owned.base is local
    np.testing.assert_array_equal(array.indices(0), [[0, 1, 2, 3, 4], [4, 5, 6, 7]][comm.rank])
    np.testing.assert_array_equal(array.indices(1), range(3))


@on_ranks(2)
def test_a_new_local_part_takes_the_place_of_the_old_one_and_numbers_fill_it(comm: Comm) -> None:
    array = zeros(4, 3, map=ROWS, comm=comm)
    for number in (7, 2.5, np.float32(3), np.array(4)):
        before = array.local
        array.local = number
        assert array.local is before
        assert (array.local == number).all()
    with pytest.raises(UsageError, match="complex values do not fit an array of float64"):
        array.local = 1j
    other = np.ones((2, 3), complex)
    array.local = other
    assert array.local is other
    assert array.dtype == complex
    array.local = [[1, 2, 3], [4, 5, 6]]
    assert array.dtype == int


def test_a_local_part_of_another_shape_is_refused_at_once() -> None:
    def program(comm: Comm) -> None:
        array = zeros(5, 3, map=ROWS, comm=comm)
        with pytest.raises(
            UsageError, match=r"rank 1 has a part of shape \(2, 3\) of this array of shape \(5, 3\), not"
        ):
            array.local = np.zeros((5, 3))
        with pytest.raises(UsageError, match=r"not \(2, 2\)"):
            from_local(np.zeros((2, 2)), ROWS, (5, 3), comm)
        with pytest.raises(UsageError, match="Python objects"):
            array.local = np.zeros((2, 3), object)

    run(2, lambda comm: program(comm) if comm.rank else None)


@on_ranks(1)
def test_maps_that_do_not_fit_are_refused(comm: Comm) -> None:
    with pytest.raises(UsageError, match="a map of 2 dimensions cannot distribute an array of 3"):
        zeros(4, 4, 4, map=ROWS, comm=comm)
    with pytest.raises(UsageError, match="names rank 1, and the run has 1"):
        zeros(4, 4, map=ROWS, comm=comm)
    with pytest.raises(UsageError, match="distributed by a Map, not by dict"):
        zeros(4, 4, map={}, comm=comm)


@on_ranks(2)
def test_sizes_are_those_of_the_whole_array(comm: Comm) -> None:
    array = zeros(5, 3, map=Map((2, 1), "b", None, (1, 0)), dtype="f4", comm=comm)
    assert (array.ndim, array.size, array.nbytes, len(array), array.shape) == (2, 15, 60, 5, (5, 3))
    assert np.shape(array) == (5, 3)


@on_ranks(2)
def test_copies_have_memory_of_their_own_and_can_be_copied_again(comm: Comm) -> None:
    whole = whole_array((4, 3), "f8")
    array = spread(whole, ROWS, comm)
    for made in (array.copy(), copy.copy(array), copy.deepcopy(array), (array + 1.0 + 1.0).copy() - 2):
        assert_is(made, whole)
        assert not np.shares_memory(made.local, array.local)
    assert_is(array.astype("f4"), whole.astype("f4"))
    both = array * (1 + 2j)
    assert_is(both.real, whole)
    assert_is(both.imag, 2 * whole)


def test_it_says_map_and_local_shape() -> None:
    shown = run(2, lambda comm: str(zeros(5, 3, map=ROWS, comm=comm)))
    assert shown[1] == "Dmat(shape=(5, 3), dtype=float64, map=Map((2, 1), 'b'); rank 1 has (2, 3))"


def test_it_is_not_pickled() -> None:
    with pytest.raises(UsageError, match="cannot be pickled or sent"):
        run(1, lambda comm: pickle.dumps(zeros(3, map=Map((1,)), comm=comm)))


@on_ranks(1)
def test_it_cannot_be_hashed_or_taken_as_memory(comm: Comm) -> None:
    array = zeros(3, map=Map((1,)), comm=comm)
    with pytest.raises(TypeError, match="unhashable"):
        hash(array)
    with pytest.raises(TypeError):
        memoryview(array)  # type: ignore[arg-type]
    assert not hasattr(array, "__array_interface__")
    assert not hasattr(array, "__dlpack__")


# ---- element by element ----

NAMES = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
BINARY = [getattr(operator, name) for name in (*NAMES, "eq", "ne", "lt", "le", "gt", "ge")]
IN_PLACE = [getattr(operator, f"i{name}") for name in NAMES]


@given(
    seed=SEEDS,
    size=st.integers(1, 4),
    op=st.sampled_from(BINARY),
    dtype=st.sampled_from(["f8", "f4", "i8", "i1", "u2"]),
)
@on_ranks()
def test_operators_equal_numpy(comm: Comm, seed: int, size: int, op: Any, dtype: str) -> None:
    generator = np.random.default_rng(seed)
    ndim = int(generator.integers(1, 4))
    map = random_map(generator, ndim, size)
    shape = random_shape(generator, ndim, 7)
    left, right = (generator.integers(1, 5, shape).astype(dtype) for _ in range(2))
    first, second = spread(left, map, comm), spread(right, map, comm)
    for found, expected in (
        (op(first, second), op(left, right)),
        (op(first, 3), op(left, 3)),
        (op(2, first), op(2, left)),
        (op(first, np.float32(1.5)), op(left, np.float32(1.5))),
    ):
        assert_is(found, expected)
    assert_is(first, left)
    assert_is(second, right)


@pytest.mark.parametrize("op", IN_PLACE, ids=lambda op: op.__name__)
@on_ranks(2)
def test_operators_in_place_change_the_left_array_only(comm: Comm, op: Any) -> None:
    left, right = whole_array((4, 3), "f8"), whole_array((4, 3), "f8", 2) % 4 + 1
    first, second = spread(left, ROWS, comm), spread(right, ROWS, comm)
    memory, same = first.local, first
    first = op(first, second)
    assert first is same
    assert first.local is memory
    assert_is(first, op(left.copy(), right))
    assert_is(second, right)


@on_ranks(2)
def test_unary_operators_and_numpy_functions(comm: Comm) -> None:
    whole = whole_array((4, 3), "f8") - 5
    array = spread(whole, ROWS, comm)
    for function in (operator.neg, operator.pos, abs, np.sin, np.exp, np.isfinite, np.square, np.sign):
        assert_is(function(array), function(whole))
    assert_is(~(array > 0), ~(whole > 0))
    assert_is(np.maximum(array, 0.5), np.maximum(whole, 0.5))
    assert_is(np.arctan2(array, array + 1), np.arctan2(whole, whole + 1))
    for found, expected in zip(np.divmod(array, 3), np.divmod(whole, 3), strict=True):
        assert_is(found, expected)
    for found, expected in zip(np.modf(array), np.modf(whole), strict=True):
        assert_is(found, expected)
    out = zeros(4, 3, map=ROWS, comm=comm)
    assert np.add(array, 1, out=out, where=array > 0) is out
    assert_is(out, np.where(whole > 0, whole + 1, 0))
    assert_is(np.add(array, 1, dtype="f4"), np.add(whole, 1, dtype="f4"))


@on_ranks(2)
def test_equal_is_element_by_element_and_has_no_truth_value(comm: Comm) -> None:
    first, second = zeros(4, 3, map=ROWS, comm=comm), zeros(4, 3, map=ROWS, comm=comm)
    second.local[0, 0] = 1
    same = first == second
    assert same.dtype == bool
    assert not same.local[0, 0]
    assert same.local[0, 1:].all()
    with pytest.raises(ValueError, match="12 elements is ambiguous"):
        bool(same)
    with pytest.raises(ValueError, match="0 elements"):
        bool(zeros(0, map=Map((2,)), comm=comm))
    assert not same.all()
    assert bool(ones(1, map=Map((2,)), comm=comm))
    assert not zeros(1, 1, map=COLUMNS, comm=comm)


@on_ranks(2)
def test_other_maps_or_shapes_are_an_error_that_says_what_to_do(comm: Comm) -> None:
    array = zeros(4, 4, map=ROWS, comm=comm)
    for other in (zeros(4, 4, map=COLUMNS, comm=comm), zeros(4, 4, map=Map((2, 1), "c"), comm=comm)):
        with pytest.raises(MapMismatch, match=r"redistribute first: b.redistribute\(a.map\)"):
            array + other
        with pytest.raises(MapMismatch, match="redistribute first"):
            array += other
    with pytest.raises(MapMismatch, match="shapes must be equal"):
        array == zeros(4, 5, map=ROWS, comm=comm)  # noqa: B015
    assert_is(array + zeros(4, 4, map=Map((2, 1), ("b", "c")), comm=comm), np.zeros((4, 4)))


@on_ranks(2)
def test_plain_arrays_beside_distributed_ones_are_refused(comm: Comm) -> None:
    array = zeros(4, 4, map=ROWS, comm=comm)
    for other in (np.zeros((2, 4)), np.zeros((4, 4)), np.zeros(4), [1, 2, 3, 4]):
        for op in (lambda: array + other, lambda: other * array, lambda: array == other):  # noqa: B023
            with pytest.raises(UsageError, match=r"use X.local for this rank's part, or from_local\(\)"):
                op()
    with pytest.raises(UsageError, match="give one as `out`"):
        np.add(array, 1, out=np.zeros((2, 4)))
    assert_is(array + np.array(2), np.full((4, 4), 2.0))


@on_ranks(2)
def test_other_uses_of_numpy_functions_are_refused_with_the_way_out(comm: Comm) -> None:
    array = zeros(4, 4, map=ROWS, comm=comm)
    with pytest.raises(UsageError, match=r"numpy.add.reduce of a distributed array is not offered: use its own sum"):
        np.add.reduce(array)
    with pytest.raises(UsageError, match=r"numpy.multiply.outer"):
        np.multiply.outer(array, array)
    with pytest.raises(UsageError, match="takes no dtype"):
        np.matmul(array, array, dtype="f4")
    if hasattr(np, "vecdot"):  # NumPy 2
        with pytest.raises(UsageError, match="does not work element by element"):
            np.vecdot(array, array)


@on_ranks(2)
def test_an_array_is_made_a_numpy_array_only_where_all_of_it_is(comm: Comm) -> None:
    with pytest.raises(UsageError, match=r"gather_all\(\) returns the whole array"):
        np.asarray(zeros(4, 4, map=ROWS, comm=comm))
    whole = ones(4, 4, map=Map((1, 1)), comm=comm)
    if comm.rank == 0:
        assert np.asarray(whole) is whole.local
        assert np.array(whole) is not whole.local
        assert np.asarray(whole, "i4").dtype == np.int32
        np.testing.assert_array_equal(np.linalg.norm(whole), 4)
        with pytest.raises(ValueError, match="copy=False forbids it"):
            whole.__array__(np.int32, copy=False)
    else:
        with pytest.raises(UsageError, match="rank 1 has a part of shape"):
            np.asarray(whole)
