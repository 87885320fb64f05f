"""pPython's arrays and functions give what NumPy gives on the whole array, on any map."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ppython_ranks import on_ranks

from slurm_share.spmd.errors import MapMismatch, UsageError
from slurm_share.spmd.ppython import functions as f
from slurm_share.spmd.ppython.arrays import Dmap, Dmat, inmap, ones, rand, sparse, zeros
from slurm_share.spmd.ppython.indices import global_block_range, global_block_ranges, global_ind, grid

DISTS: list[Any] = [{"dist": "b"}, {"dist": "c"}, {"dist": "bc", "b_size": 2}, {"dist": "bc", "b_size": 3}]


def filled(whole: np.ndarray[Any, Any], map: Dmap, rank: int) -> Dmat:
    """Return a distributed array with the elements of a whole one."""
    made = zeros(*whole.shape, map=map, dtype=whole.dtype)
    return f.put_local(made, whole[np.ix_(*map.stored(whole.shape, rank))])


def numbered(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(float(np.prod(shape))).reshape(shape)


def everywhere(size: int, program: Callable[[int], Any], expected: Any) -> None:
    """Check that the program returns the expected array on every rank."""
    for result in on_ranks(size, program):
        np.testing.assert_array_equal(result, expected)


# Redistribution


@pytest.mark.parametrize("ranks", [[3, 2, 1, 0], [0, 3, 1, 2]])
@pytest.mark.parametrize("order", ["C", "F"])
def test_agg_puts_the_parts_of_ranks_in_any_order_in_place(ranks: list[int], order: str) -> None:
    whole = numbered(7, 9)

    def program(rank: int) -> Any:
        X = filled(whole, Dmap([2, 2], {}, ranks, order=order), rank)
        return f.agg(X), f.local(X)

    results = on_ranks(4, program)
    np.testing.assert_array_equal(results[0][0], whole)
    assert all(results[rank][0] is results[rank][1] for rank in (1, 2, 3))


def test_a_map_on_some_of_the_ranks_works() -> None:
    whole = numbered(5, 4)

    def program(rank: int) -> Any:
        X = filled(whole, Dmap([2, 1], {}, [2, 1]), rank)
        return f.agg(X), f.agg_all(f.remap(X, Dmap([1, 4], "c", range(4)))), inmap(X.map, rank)

    results = on_ranks(4, program)
    np.testing.assert_array_equal(results[0][0], whole)
    for rank, (_, every, inside) in enumerate(results):
        np.testing.assert_array_equal(every, whole)
        assert inside is (rank in (1, 2))


def test_agg_returns_the_whole_on_a_given_leader_and_what_is_not_distributed_as_it_is() -> None:
    def program(rank: int) -> Any:
        plain = np.zeros(2)
        return f.agg(ones(3, 4, map=Dmap([3, 1], {}, range(3))), 2).shape, f.agg(plain) is plain, f.agg(5)

    assert on_ranks(3, program) == [((1, 4), True, 5), ((1, 4), True, 5), ((3, 4), True, 5)]


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.complex64, np.bool_])
def test_remap_and_transpose_grid_keep_the_type_of_elements(dtype: Any) -> None:
    whole = (numbered(6, 5) % 7).astype(dtype)

    def program(rank: int) -> Any:
        X = filled(whole, Dmap([3, 1], {}, range(3)), rank)
        one, other = f.remap(X, Dmap([1, 3], "c", range(3))), f.transpose_grid(X)
        return f.agg_all(one), f.agg_all(other), other.map["grid_spec"], f.agg_all(X)

    for one, other, spec, before in on_ranks(3, program):
        for result in (one, other, before):
            np.testing.assert_array_equal(result, whole)
            assert result.dtype == dtype
        assert spec == [1, 3]


def test_remap_takes_numpy_arrays_and_gives_them() -> None:
    whole = numbered(5, 6)

    def program(rank: int) -> Any:
        X = f.remap(whole, Dmap([1, 2], {}, range(2)))
        return f.agg_all(X), f.remap(X, 1), f.remap(whole, 1)

    for results in on_ranks(2, program):
        for result in results:
            np.testing.assert_array_equal(result, whole)
        assert results[2] is not whole


# Local parts


def test_local_is_the_array_itself() -> None:
    X = zeros(4, 4, map=Dmap([1, 1], {}, [0]))
    f.local(X)[1, 2] = 5
    assert X.local[1, 2] == 5
    assert f.local(7) == 7


def test_put_local_binds_an_array_and_fills_a_new_one_with_a_number() -> None:
    def program(rank: int) -> Any:
        X = ones(4, 6, map=Dmap([2, 1], {}, range(2)), dtype=np.float32)
        before = f.local(X)
        assert f.put_local(X, 0) is X
        filled_with_0 = (X.local.tolist() == [[0.0] * 6] * 2, X.local.dtype, before.sum())
        mine = np.zeros((2, 6))
        f.put_local(X, mine)
        bound = X.local is mine
        f.put_local(X, 2.5j)
        return filled_with_0, bound, X.local[0, 0]

    assert on_ranks(2, program) == [((True, np.dtype(np.float32), 12.0), True, 2.5j)] * 2


def test_put_local_takes_a_vector_for_a_row_and_refuses_other_shapes() -> None:
    def program(rank: int) -> Any:
        X = zeros(1, 6, map=Dmap([1, 2], {}, range(2)))
        vector = np.arange(3)
        f.put_local(X, vector)
        vector[0] = 9
        with pytest.raises(UsageError, match=r"has shape \(1, 3\), not \(6,\)"):
            f.put_local(X, np.zeros(6))
        return X.local.tolist()

    assert on_ranks(2, program) == [[[9, 1, 2]]] * 2


def test_put_local_of_a_numpy_array_gives_the_new_one() -> None:
    assert f.put_local(np.zeros((2, 2)), [[1, 2], [3, 4]]) == [[1, 2], [3, 4]]
    assert f.put_local(np.zeros((2, 2)), 3).tolist() == [[3, 3], [3, 3]]


# Constructors


def test_one_size_with_a_map_of_two_dimensions_is_a_square() -> None:
    def program(rank: int) -> Any:
        map = Dmap([2, 1], {}, range(2))
        return [zeros(8, map=map).shape, ones([6, 4], map=map).shape, rand(6.0, np.float64(4), map=map).shape]

    assert on_ranks(2, program) == [[[8, 8], [6, 4], [6, 4]]] * 2


def test_without_a_map_the_constructors_give_numpy_arrays() -> None:
    assert zeros(2, 3).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert ones([2], map=1, dtype=int).tolist() == [1, 1]
    assert rand(3, 3, map=1).shape == (3, 3)
    assert ones(2, 3, order="F").flags.f_contiguous


def test_rand_draws_from_numpys_generator_of_the_rank() -> None:
    X = Dmap([1, 1], {}, [0])
    np.random.seed(4)
    drawn = rand(3, 2, map=X).local
    np.random.seed(4)
    np.testing.assert_array_equal(drawn, np.random.random((3, 2)))


# Elements


def test_elements_and_slices_are_set_where_they_are_stored_and_read_everywhere() -> None:
    expected = numbered(9, 7)
    expected[3, 2], expected[-1, ::2], expected[1:8:3, 1:] = -1, -2, -3
    expected[4] = np.arange(7) * 10

    def program(rank: int) -> Any:
        X = filled(numbered(9, 7), Dmap([2, 2], {0: DISTS[3], 1: DISTS[1]}, range(4)), rank)
        X[3, 2] = -1
        X[-1, ::2] = -2
        X[1:8:3, 1:] = -3
        X[np.int64(4), :] = np.arange(7) * 10
        return f.agg_all(X), X[3, 2], X[4, :], X[1:3, 2:4], X[:, :]

    for whole, element, row, block, everything in on_ranks(4, program):
        np.testing.assert_array_equal(whole, expected)
        assert element == -1
        np.testing.assert_array_equal(row, expected[4])
        np.testing.assert_array_equal(block, expected[1:3, 2:4])
        np.testing.assert_array_equal(everything, expected)


def test_a_plane_of_a_distributed_array_is_set_from_another_with_another_map() -> None:
    expected = np.zeros((6, 4, 2))
    expected[:, :, 1] = numbered(6, 4)

    def program(rank: int) -> Any:
        Y = zeros(6, 4, 2, map=Dmap([1, 2, 1], {}, range(2)))
        Y[:, :, 1] = filled(numbered(6, 4), Dmap([2, 1], {}, range(2)), rank)
        return f.agg_all(Y)

    everywhere(2, program, expected)


def test_an_element_of_an_overlap_is_set_on_both_ranks() -> None:
    def program(rank: int) -> Any:
        X = zeros(4, 2, map=Dmap([2, 1], {}, range(2), [1, 0]))
        X[2, 0] = 5
        return X.local[:, 0].tolist()

    assert on_ranks(2, program) == [[0, 0, 5], [5, 0]]


# Operators


def test_operators_are_numpys_and_leave_their_arguments_alone() -> None:
    a, b = numbered(4, 6) + 1, numbered(4, 6)[::-1] + 2

    def program(rank: int) -> Any:
        map = Dmap([1, 3], {}, range(3))
        A, B = filled(a, map, rank), filled(b, map, rank)
        results = [A + B, 2 - A, A * B, B / A, A**2, -A, abs(A - B), A < B, A == B, np.float64(3) * A, np.sqrt(A)]
        results.append((A + 1.0 + 1.0).copy())
        return [f.agg_all(one) for one in results], f.agg_all(A)

    expected = [a + b, 2 - a, a * b, b / a, a**2, -a, abs(a - b), a < b, a == b, 3 * a, np.sqrt(a), a + 2]
    for results, unchanged in on_ranks(3, program):
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, wanted)
        np.testing.assert_array_equal(unchanged, a)


def test_an_augmented_assignment_makes_another_array() -> None:
    X = ones(2, 2, map=Dmap([1, 1], {}, [0]))
    other = X
    X += 1
    assert other.local.sum() == 4
    assert X.local.sum() == 8


def test_what_operators_cannot_do_is_refused() -> None:
    def program(rank: int) -> None:
        A, B = ones(4, 4, map=Dmap([2, 1], {}, range(2))), ones(4, 4, map=Dmap([1, 2], {}, range(2)))
        with pytest.raises(MapMismatch, match="redistribute first"):
            A + B
        with pytest.raises(UsageError, match="neither true nor false"):
            bool(A == A)
        with pytest.raises(UsageError, match="use agg"):
            np.asarray(A)

    on_ranks(2, program)


# Functions


def test_synch_fills_the_overlap_from_the_next_rank() -> None:
    def program(rank: int) -> Any:
        X = zeros(8, 8, map=Dmap([1, 4], {}, range(4), [0, 1]))
        widths = X.local.shape[1]
        X.local[:] = rank
        assert f.synch(X) is X
        return widths, X.local[0].tolist()

    assert on_ranks(4, program) == [(3, [0, 0, 1]), (3, [1, 1, 2]), (3, [2, 2, 3]), (2, [3, 3])]


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("grid_spec", [[3, 1], [1, 3]])
@pytest.mark.parametrize("length", [[], 4, 9])
def test_fft_along_any_axis_of_any_map(axis: int | None, grid_spec: list[int], length: Any) -> None:
    whole = numbered(6, 7) ** 2 % 5

    def program(rank: int) -> Any:
        X = filled(whole, Dmap(grid_spec, {}, range(3)), rank)
        return f.agg_all(f.fft(X) if axis is None else f.fft(X, length, axis))

    along = axis or 0
    expected = np.fft.fft(whole, None if axis is None or length == [] else length, along)
    for result in on_ranks(3, program):
        np.testing.assert_allclose(result, expected, atol=1e-9)


def test_fft_of_a_numpy_array_is_along_the_last_axis() -> None:
    np.testing.assert_allclose(f.fft(numbered(2, 3)), np.fft.fft(numbered(2, 3)))
    np.testing.assert_allclose(f.fft(numbered(2, 3), [], 0), np.fft.fft(numbered(2, 3), axis=0))


def test_find_lists_every_non_zero_once_on_every_rank() -> None:
    whole = (numbered(6, 5) % 3 == 0) * 1.0

    def program(rank: int) -> Any:
        X = filled(whole, Dmap([2, 2], {}, [3, 0, 2, 1], [1, 1]), rank)
        return f.find(X)

    expected = sorted(zip(*map(list, np.nonzero(whole)), strict=True))
    for i, j in on_ranks(4, program):
        assert sorted(zip(i, j, strict=True)) == expected
    assert f.find(np.array([0, 2, 0]))[0].tolist() == [1]
    assert f.find(np.zeros(2)) == [[]]
    assert [list(one) for one in f.find(np.eye(2))] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("kinds", ["DD", "DN", "ND", "NN"])
def test_mtimes_of_distributed_and_plain_matrices(kinds: str) -> None:
    a, b = numbered(5, 6), numbered(6, 4)

    def program(rank: int) -> Any:
        A = filled(a, Dmap([4, 1], {}, range(4)), rank) if kinds[0] == "D" else a
        B = filled(b, Dmap([2, 2], "c", range(4)), rank) if kinds[1] == "D" else b
        product = f.mtimes(A, B)
        first = A if kinds[0] == "D" else B
        assert kinds == "NN" or product.map == first.map
        return f.agg_all(product)

    everywhere(4, program, a @ b)


def test_mtimes_with_a_number_is_element_by_element() -> None:
    def program(rank: int) -> Any:
        return f.agg_all(f.mtimes(filled(numbered(3, 3), Dmap([2, 1], {}, range(2)), rank), 2))

    everywhere(2, program, 2 * numbered(3, 3))


def test_summation_adds_arrays_of_any_maps() -> None:
    whole = numbered(5, 4)

    def program(rank: int) -> Any:
        rows, columns = Dmap([2, 1], {}, range(2)), Dmap([1, 2], "c", range(2))
        X, Y = filled(whole, rows, rank), filled(whole, columns, rank)
        one = f.summation(zeros(5, 4, map=rows), X, Y, X)
        other = f.summation(zeros(5, 4, map=columns), {0: X, 1: Y})
        return f.agg_all(one), f.agg_all(other)

    for one, other in on_ranks(2, program):
        np.testing.assert_array_equal(one, 3 * whole)
        np.testing.assert_array_equal(other, 2 * whole)


def test_conversions_change_a_distributed_array_and_not_a_plain_one() -> None:
    def program(rank: int) -> Any:
        X = filled(numbered(2, 2) + 0.5, Dmap([2, 1], {}, range(2)), rank)
        Y = X.copy()
        return [
            f.uint8(X) is X and X.local.dtype,
            f.dcomplex(X, Y).local.dtype,
            f.cos(Y) is Y and bool((Y.local == np.cos(numbered(2, 2)[rank] + 0.5)).all()),
        ]

    assert on_ranks(2, program) == [[np.uint8, np.complex128, True]] * 2
    plain = np.array([0.5, 1.0])
    assert f.dcomplex(plain, plain).tolist() == [0.5 + 0.5j, 1 + 1j]
    assert f.uint64(7) == np.uint64(7)
    assert f.uint64(7).dtype == np.uint64
    assert f.double(np.array([1], dtype=int)).dtype == np.float64
    assert plain.dtype == np.float64


def test_size_and_ndims_of_arrays_and_numbers() -> None:
    X = zeros(2, 3, 4, map=Dmap([1, 1, 1], {}, [0]))
    assert (f.size(X), f.size(X, 1), f.size(X, [0, 2]), f.ndims(X)) == ([2, 3, 4], [3], [2, 4], 3)
    assert (f.size(np.zeros(5)), f.ndims(np.zeros(5)), f.size(3), f.ndims(2.5)) == ([1, 5], 2, [1, 1], 2)


def test_sparse_parts_are_scipys_and_whole_when_gathered() -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")

    def program(rank: int) -> Any:
        map = Dmap([1, 2], {}, range(2))
        X = sparse(filled(np.eye(4), map, rank))
        assert scipy_sparse.issparse(X.local)
        assert X.local.nnz == 2
        empty = sparse([], [], [], 3, 4, 9, map=map)
        return f.agg_all(X), empty.local.shape, sparse(2, 6, map=map).shape

    for whole, part, shape in on_ranks(2, program):
        np.testing.assert_array_equal(whole, np.eye(4))
        assert part == (3, 2)
        assert shape == [2, 6]


def test_submat_and_display(capsys: pytest.CaptureFixture[str]) -> None:
    map = Dmap([1, 1], {}, [0])
    X = filled(numbered(2, 3), map, 0)
    assert f.submat(X, {"type": "()", "subs": {0: ":", 1: ":"}}) is X
    assert f.submat(X, [{"type": "()", "subs": [1, slice(0, 2)]}]).tolist() == [3, 4]
    f.display(X)
    f.display(map)
    said = capsys.readouterr().out
    assert said.startswith("X = \n  Distributed matrix object\n[[0. 1. 2.]")
    assert "Dimension:  2" in said


# Indices


def test_indices_of_a_rank_as_arrays_ranges_and_blocks() -> None:
    def program(rank: int) -> Any:
        X = zeros(10, 7, map=Dmap([2, 1], {0: DISTS[2], 1: DISTS[0]}, [1, 0]))
        rows, columns = global_ind(X)
        block = global_block_range(X)
        assert block is not None
        return rows.tolist(), global_ind(X, 1)[0].tolist() == columns.tolist(), X.global_ind[0], block.tolist()

    first, second = on_ranks(2, program)
    assert first == ([2, 3, 6, 7], True, (range(2, 4), range(6, 8)), [[2, 3], [0, 6]])
    assert second == ([0, 1, 4, 5, 8, 9], True, (range(2), range(4, 6), range(8, 10)), [[0, 1], [0, 6]])


def test_blocks_of_all_ranks_in_the_grids_order() -> None:
    X = zeros(10, 3, map=Dmap([1, 4], {}, [0, 3, 2, 1]))
    assert global_block_ranges(X, 1).tolist() == [[0, 0, 0], [3, 1, 1], [2, 2, 2], [1, 3, 2]]
    both = global_block_ranges(X)
    assert both[0].tolist() == [[0, 0, 9], [3, 0, 9], [2, 0, 9], [1, 0, 9]]
    assert grid(X).tolist() == [[0, 3, 2, 1]]


def test_indices_of_plain_arrays() -> None:
    plain = np.zeros((3, 5))
    assert [one.tolist() for one in global_ind(plain)] == [[0, 1, 2], [0, 1, 2, 3, 4]]
    assert [one.tolist() for one in global_ind(np.zeros(3), 0)] == [[0, 1, 2]]
    block = global_block_range(plain, 1)
    assert block is not None
    assert block.tolist() == [[0, 4]]
    assert global_block_ranges(plain).tolist() == [[0, 0, 2], [0, 0, 4]]


def test_falls_describe_the_blocks_of_a_rank() -> None:
    X = zeros(13, 11, map=Dmap([4, 1], {0: DISTS[1], 1: DISTS[0]}, range(4)))
    rows, columns = X.falls
    assert (rows.l, rows.r, rows.s, rows.n, rows.local_len, rows.dist) == (0, 0, 4, 4, 4, "c")
    assert (columns.l, columns.r, columns.s, columns.n, columns.local_len) == (0, 10, 11, 1, 11)
    assert [(one.d, one.p) for one in X.pitfalls] == [(1, 4), (11, 1)]


# Maps


def test_a_map_reads_as_pPythons_dictionary() -> None:
    map = Dmap([2, 2], {"dist": "bc", "b_size": 3}, range(4), order="F")
    assert (map["dim"], map["grid_spec"], map["proc_list"].tolist()) == (2, [2, 2], [0, 1, 2, 3])
    assert map["grid"].tolist() == [[0, 2], [1, 3]]
    assert map["dist_spec"] == {0: {"dist": "bc", "b_size": 3}, 1: {"dist": "bc", "b_size": 3}}
    assert map["overlap"] is None
    assert (map.dim, map.grid_spec, map.dist_spec) == (2, [2, 2], map["dist_spec"])
    assert not hasattr(map, "other")
    assert pickle.loads(pickle.dumps(map)) == map
    assert "grid" in map
    assert "other" not in map
    assert map.get("other", 5) == 5
    assert list(map) == list(map.keys()) == [key for key, _ in map.items()]
    assert map.copy() == map
    assert map != Dmap([2, 2], "c", range(4))
    assert Dmap([2], {}, [0, 1], [1])["overlap"] == [1]


def test_an_array_that_is_whole_here_becomes_one_of_numpy_with_another_type() -> None:
    """NumPy 2 asks for a copy only where one is needed, and no longer reads False so."""

    def program(rank: int) -> tuple[Any, bool]:
        array = filled(numbered(2, 3), Dmap([1, 1], {}, [0]), rank)
        return np.asarray(array, dtype=np.float32), np.asarray(array) is array.local

    ((found, is_same),) = on_ranks(1, program)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, numbered(2, 3))
    assert is_same
