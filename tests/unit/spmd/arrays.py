"""Random distributed arrays for tests, and the NumPy arrays that they must equal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from slurm_share.spmd.comm import Comm
from slurm_share.spmd.dmat import Dmat, from_local
from slurm_share.spmd.rules.maps import Map

RECORD = np.dtype([("key", "<i4"), ("value", "<f8"), ("flag", "?")])
DTYPES = [np.dtype(one) for one in ("f8", "f4", "c8", "c16", "?", "i1", "u2", "i8", "M8[s]", "S3")] + [RECORD]


def whole_array(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> NDArray[Any]:
    """Return an array whose elements differ, as far as the dtype allows."""
    dtype = np.dtype(dtype)
    numbers = np.arange(math.prod(shape), dtype=np.int64) + 1 + seed
    if dtype.names:
        array = np.zeros(numbers.shape, dtype)
        for name in dtype.names:
            array[name] = whole_array(numbers.shape, dtype[name], seed)
        return array.reshape(shape)
    if dtype.kind == "b":
        return (numbers * 2654435761 >> 7 & 1).astype(bool).reshape(shape)
    if dtype.kind == "c":
        return (numbers - 1j * numbers[::-1]).astype(dtype).reshape(shape)
    if dtype.kind == "S":
        return np.char.mod("%d", numbers).astype(dtype).reshape(shape)
    return numbers.astype(dtype).reshape(shape)


def spread(whole: NDArray[Any], map: Map, comm: Comm) -> Dmat:
    """Return the array distributed; each rank copies its part index by index."""
    stored = map.stored(whole.shape, comm.rank)
    return from_local(np.ascontiguousarray(whole[np.ix_(*stored)]), map, whole.shape, comm)


def assert_is(array: Dmat, whole: NDArray[Any]) -> None:
    """Check that this rank's part, with its overlap, equals the array at the map's indices."""
    expected = whole[np.ix_(*array.map.stored(whole.shape, array.comm.rank))]
    assert array.shape == whole.shape
    assert array.local.dtype == whole.dtype
    np.testing.assert_array_equal(array.local, expected)


def random_map(generator: np.random.Generator, ndim: int, size: int, overlap: bool = True) -> Map:
    """Return a map over some of the ranks, in any order."""
    grid = [1] * ndim
    for axis in generator.permutation(ndim):
        room = size // math.prod(grid)
        grid[axis] = int(generator.integers(1, room + 1))
    ranks = generator.permutation(size)[: math.prod(grid)].tolist()
    dist = [("b", "b", "c", ("bc", int(generator.integers(1, 8))))[generator.integers(4)] for _ in range(ndim)]
    over = [int(generator.integers(10)) if overlap and one == "b" and generator.random() < 0.5 else 0 for one in dist]
    return Map(grid, dist, ranks, over, "CF"[generator.integers(2)])


DISTS = st.one_of(st.just("b"), st.just("c"), st.tuples(st.just("bc"), st.integers(1, 7)))


@st.composite
def maps(draw: st.DrawFn, dimensions: int) -> Map:
    """Return a strategy for maps with ranks in any order."""
    grid = draw(st.lists(st.integers(1, 4), min_size=dimensions, max_size=dimensions))
    dists = draw(st.lists(DISTS, min_size=dimensions, max_size=dimensions))
    overlap = [draw(st.integers(0, 9)) if dist == "b" else 0 for dist in dists]
    count = math.prod(grid)
    ranks = draw(st.permutations(range(count + 3)))[:count]
    return Map(grid, dists, ranks, overlap, draw(st.sampled_from("CF")))


def random_shape(generator: np.random.Generator, ndim: int, longest: int = 13) -> tuple[int, ...]:
    return tuple(generator.integers(0, longest, ndim).tolist())


def random_key(generator: np.random.Generator, shape: tuple[int, ...], only_slices: bool = False) -> tuple[Any, ...]:
    """Return a random key for an array of that shape: numbers, slices with steps of both signs, an ellipsis."""
    key: list[Any] = []
    for length in shape:
        kind = generator.integers(4)
        if kind == 0 and length and not only_slices:
            key.append(int(generator.integers(-length, length)))
        elif kind == 1:
            key.append(slice(None))
        else:
            first, last = generator.integers(-length - 1, length + 2, 2).tolist()
            key.append(slice(first, last, int(generator.choice([-3, -1, 1, 2, 3]))))
    if generator.random() < 0.2:
        key[len(key) - 1 :] = [Ellipsis]
    return tuple(key)
