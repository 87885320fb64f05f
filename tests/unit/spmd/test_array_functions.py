"""Reductions, products, transforms and searches of distributed arrays, compared with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import RECORD, assert_is, random_map, random_shape, spread, whole_array
from hypothesis import given
from hypothesis import strategies as st
from in_threads import on_ranks, run

from slurm_share.spmd import array_reductions, functions, products
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.dmat import ones, zeros
from slurm_share.spmd.errors import CollectiveMismatch, UsageError
from slurm_share.spmd.rules.maps import Map

SEEDS = st.integers(0, 2**32 - 1)
ROWS, COLUMNS = Map((2, 1)), Map((1, 2))


# ---- reductions ----

NAMES = ["sum", "prod", "mean", "min", "max", "any", "all"]


@given(seed=SEEDS, size=st.integers(1, 6), dtype=st.sampled_from(["f8", "f4", "f2", "i8", "i1", "?", "c8"]))
@on_ranks()
def test_reductions_equal_numpy_on_all_ranks(comm: Comm, seed: int, size: int, dtype: str) -> None:
    generator = np.random.default_rng(seed)
    ndim = int(generator.integers(1, 4))
    map, shape = random_map(generator, ndim, size), tuple(generator.integers(1, 8, ndim).tolist())
    whole = generator.integers(0, 4, shape).astype(dtype)
    axes: list[Any] = [None, *range(-ndim, ndim), tuple(range(ndim)), (0,)]
    array = spread(whole, map, comm)
    for name in NAMES:
        axis = axes[(seed + len(name)) % len(axes)]
        keepdims = bool(seed % 2)
        found = getattr(array, name)(axis=axis, keepdims=keepdims)
        expected = getattr(np, name)(whole, axis=axis, keepdims=keepdims)
        assert type(found) is type(expected)
        assert found.dtype == expected.dtype, name
        np.testing.assert_allclose(found, expected, rtol=1e-3 if dtype == "f2" else 1e-5)
        np.testing.assert_array_equal(getattr(np, name)(array, axis=axis, keepdims=keepdims), found)


def test_sums_have_the_same_bits_on_all_ranks_and_a_dtype() -> None:
    whole = np.random.default_rng(3).random((57, 13))

    def program(comm: Comm) -> Any:
        array = spread(whole, Map((2, 2), "c", (3, 1, 0, 2)), comm)
        assert array.sum(dtype="f4").dtype == np.float32
        return array.sum(), array.sum(axis=1).tobytes(), array.mean()

    results = run(4, program)
    assert results == results[:1] * 4


@on_ranks(2)
def test_the_mean_of_half_precision_numbers_does_not_overflow(comm: Comm) -> None:
    whole = np.full(20_000, 10, np.float16)
    found = spread(whole, Map((2,)), comm).mean()
    assert (found, found.dtype) == (10, np.float16)


@pytest.mark.parametrize("map", [Map((3,)), Map((3,), "c", (2, 0, 1))])
@on_ranks(3)
def test_not_a_number_and_negative_numbers_are_reduced_as_in_numpy(comm: Comm, map: Map) -> None:
    for values in ([-3.0, -1.0, -2.0, -9.0], [1.0, np.nan, 2.0, 0.0]):
        array = spread(np.array(values), map, comm)
        np.testing.assert_equal([array.min(), array.max()], [np.min(values), np.max(values)])


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@on_ranks(2)
def test_empty_arrays_are_reduced_as_in_numpy(comm: Comm) -> None:
    whole = np.zeros((0, 3))
    array = spread(whole, ROWS, comm)
    assert array.sum() == 0
    assert array.all()
    assert not array.any()
    np.testing.assert_array_equal(array.sum(axis=0), np.zeros(3))
    assert array.max(axis=1).shape == (0,)
    for name in ("min", "max"):
        with pytest.raises(ValueError, match="zero-size array to reduction operation"):
            getattr(array, name)()
        with pytest.raises(ValueError, match="zero-size array to reduction operation"):
            getattr(array, name)(axis=0)
    assert np.isnan(array.mean())


def test_reductions_of_wrong_axes_dtypes_or_with_out_are_refused_on_all_ranks() -> None:
    def program(comm: Comm) -> None:
        array = zeros(4, 4, map=ROWS, comm=comm)
        for axis in (2, -3, (0, 5)):
            with pytest.raises(np.exceptions.AxisError):
                array.sum(axis=axis)
        with pytest.raises(UsageError, match="twice"):
            array.sum(axis=(0, -2))
        with pytest.raises(UsageError, match="takes no `out`"):
            np.sum(array, out=np.zeros(()))
        with pytest.raises(TypeError):
            zeros(1, 1, map=ROWS, dtype=RECORD, comm=comm).sum()
        with pytest.raises(CollectiveMismatch):
            array.sum(axis=comm.rank)

    run(2, program)
    assert array_reductions.reduced_axes((-1, 0), 3) == (0, 2)


# ---- functions ----


@given(
    seed=SEEDS,
    size=st.integers(1, 6),
    dtype=st.sampled_from(["f8", "c16", "i8", "?"]),
    panel=st.sampled_from([1, 100, 1 << 20]),
)
def test_matrix_products_equal_numpy(seed: int, size: int, dtype: str, panel: int) -> None:
    generator = np.random.default_rng(seed)
    rows, inner, columns = generator.integers(0, 9, 3).tolist()
    left, right = (
        generator.integers(0, 4, (rows, inner)).astype(dtype),
        generator.integers(0, 4, (inner, columns)).astype("f4"),
    )
    first, second = random_map(generator, 2, size), random_map(generator, 2, size)
    wanted = random_map(generator, 2, size)
    expected = left @ right

    def program(comm: Comm) -> None:
        one, other = spread(left, first, comm), spread(right, second, comm)
        for product in (one @ other, products.mtimes(left, other), products.mtimes(one, right), np.matmul(one, other)):
            assert_is(product, expected)
        product = products.mtimes(one, other, wanted)
        assert product.map == wanted
        assert_is(product, expected)
        assert_is(one, left)
        np.testing.assert_array_equal(products.mtimes(left, right), expected)

    before, products.PANEL_BYTES = products.PANEL_BYTES, panel
    try:
        run(size, program)
    finally:
        products.PANEL_BYTES = before


@on_ranks(4)
def test_a_product_has_the_rows_of_the_left_and_the_columns_of_the_right_map(comm: Comm) -> None:
    cyclic = Map((2, 2), ("c", "b"))
    blocks = Map((2, 2), ("b", ("bc", 2)), (3, 2, 1, 0))
    one, other = zeros(4, 5, map=cyclic, comm=comm), zeros(5, 6, map=blocks, comm=comm)
    assert (one @ other).map == Map((2, 2), ("c", ("bc", 2)))
    square = ones(4, 4, map=cyclic, comm=comm)
    square @= square
    assert_is(square, np.full((4, 4), 4.0))
    with pytest.raises(UsageError, match="have no product"):
        other @ one
    with pytest.raises(UsageError, match="takes two dimensions, not 1"):
        one @ zeros(5, map=Map((4,)), comm=comm)


@given(seed=SEEDS, size=st.integers(1, 6), inverse=st.booleans())
@on_ranks()
def test_fourier_transforms_equal_numpy(comm: Comm, seed: int, size: int, inverse: bool) -> None:
    generator = np.random.default_rng(seed)
    ndim = int(generator.integers(1, 4))
    map, shape = random_map(generator, ndim, size), tuple(generator.integers(1, 9, ndim).tolist())
    whole = generator.random(shape) + 1j * generator.random(shape)
    axis = int(generator.integers(-ndim, ndim))
    points = None if seed % 3 else int(generator.integers(1, 12))
    ours, theirs = (functions.ifft, np.fft.ifft) if inverse else (functions.fft, np.fft.fft)
    expected = theirs(whole, points, axis)
    found = ours(spread(whole, map, comm), points, axis)
    assert found.map == map
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.local, expected[np.ix_(*map.stored(expected.shape, comm.rank))], atol=1e-12)
    np.testing.assert_allclose(ours(whole, points, axis), expected)


@on_ranks(4)
def test_a_transform_along_distributed_rows_has_the_right_shape(comm: Comm) -> None:
    whole = whole_array((8, 6), "f8")
    array = functions.fft(spread(whole, Map((4, 1)), comm), axis=0)
    np.testing.assert_allclose(array.gather_all(), np.fft.fft(whole, axis=0))
    with pytest.raises(UsageError, match="no axis 2"):
        functions.fft(array, axis=2)
    with pytest.raises(UsageError, match="1 point or more"):
        functions.fft(array, 0)


def test_transposing_the_grid_keeps_imaginary_parts_and_the_argument() -> None:
    whole = whole_array((6, 5), "f8").astype(complex)
    whole[5, 2] += 3j

    def program(comm: Comm) -> None:
        array = zeros(6, 5, map=Map((3, 1)), comm=comm)
        mine = whole[np.ix_(array.indices(0), array.indices(1))]
        array.local = mine if (mine.imag != 0).any() else mine.real
        turned = functions.transpose_grid(array)
        assert turned.map == Map((1, 3))
        assert_is(turned, whole)
        assert array.local.shape == (2, 5)
        assert_is(functions.transpose_grid(turned), whole)
        with pytest.raises(UsageError, match="2 are needed"):
            functions.transpose_grid(zeros(4, map=Map((3,)), comm=comm))

    run(3, program)
    assert functions.transpose_grid(whole) is whole


@given(seed=SEEDS, size=st.integers(1, 5))
@on_ranks()
def test_find_returns_all_non_zeros_to_all_ranks(comm: Comm, seed: int, size: int) -> None:
    generator = np.random.default_rng(seed)
    ndim = int(generator.integers(1, 4))
    map, shape = random_map(generator, ndim, size), random_shape(generator, ndim, 7)
    whole = generator.integers(0, 2, shape).astype("f4")
    array = spread(whole, map, comm)
    np.testing.assert_array_equal(functions.find(array), np.nonzero(whole))
    parts = functions.nonzero_parts(array)
    assert sum(part[0].size for part in parts) == whole.sum()


@on_ranks(2)
def test_summation_adds_arrays_of_any_maps(comm: Comm) -> None:
    whole = whole_array((6, 5), "f8")
    target = zeros(6, 5, map=ROWS, comm=comm)
    parts = [spread(whole, map, comm) for map in (ROWS, COLUMNS, Map((2, 1), "c"))]
    assert functions.summation(target, *parts) is target
    assert_is(target, 3 * whole)
    assert_is(parts[0], whole)
    with pytest.raises(UsageError, match="nothing to sum"):
        functions.summation(target)
