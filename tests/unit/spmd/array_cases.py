"""Program of ranks: random cases of distributed arrays, compared with NumPy. Arguments: first seed, number of cases.

Every rank draws the same cases. Rank 0 prints the number of cases at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from arrays import DTYPES, assert_is, random_key, random_map, random_shape, spread, whole_array

from slurm_share.spmd import COMM_WORLD
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.functions import fft, find
from slurm_share.spmd.products import mtimes
from slurm_share.spmd.rules.maps import Map

Random = np.random.Generator


def redistribution(random: Random, comm: Comm) -> None:
    ndim = int(random.integers(1, 5))
    shape, dtype = random_shape(random, ndim), DTYPES[random.integers(len(DTYPES))]
    whole = whole_array(shape, dtype)
    array = spread(whole, random_map(random, ndim, comm.size), comm)
    for _ in range(2):
        array = array.redistribute(random_map(random, ndim, comm.size))
        assert_is(array, whole)


def large_redistribution(random: Random, comm: Comm) -> None:
    shape = tuple((200 + random.integers(0, 400, 2)).tolist())
    whole = whole_array(shape, ("f8", "c16", "i1")[random.integers(3)])
    maps = [random_map(random, 2, comm.size), Map((comm.size, 1)), Map((1, comm.size), "c")]
    array = spread(whole, maps[0], comm)
    for number in range(6):
        array = array.redistribute(maps[number % 3])
        assert_is(array, whole)


def gathering(random: Random, comm: Comm) -> None:
    ndim = int(random.integers(1, 5))
    whole = whole_array(random_shape(random, ndim), DTYPES[random.integers(len(DTYPES))])
    array = spread(whole, random_map(random, ndim, comm.size), comm)
    root = int(random.integers(comm.size))
    for gathered in (array.gather(root), array.gather_all()):
        if gathered is not None:
            np.testing.assert_array_equal(gathered, whole)
        else:
            assert comm.rank != root


def large_gathering(random: Random, comm: Comm) -> None:
    whole = whole_array((700, 300), "f8")
    array = spread(whole, random_map(random, 2, comm.size), comm)
    for _ in range(3):
        np.testing.assert_array_equal(array.gather_all(), whole)


def slices(random: Random, comm: Comm) -> None:
    ndim = int(random.integers(1, 4))
    shape = random_shape(random, ndim)
    whole = whole_array(shape, "f8")
    array = spread(whole, random_map(random, ndim, comm.size), comm)
    key = random_key(random, shape)
    np.testing.assert_array_equal(array[key], whole[key])
    array[key] = -1
    whole[key] = -1
    key = random_key(random, shape, only_slices=True)
    value = whole_array(whole[key].shape, "f4", 5000)
    array[key] = spread(value, random_map(random, ndim, comm.size), comm)
    whole[key] = value
    assert_is(array, whole)


def overlaps(random: Random, comm: Comm) -> None:
    ndim = int(random.integers(1, 4))
    whole = whole_array(random_shape(random, ndim), "f8")
    array = spread(whole, random_map(random, ndim, comm.size), comm)
    mine = array.owned.copy()
    array.local[...] = -1
    array.owned[...] = mine
    array.halo()
    assert_is(array, whole)


def calculations(random: Random, comm: Comm) -> None:
    shape = tuple(random.integers(1, 9, 2).tolist())
    whole = random.integers(0, 5, shape).astype("f8")
    array = spread(whole, random_map(random, 2, comm.size), comm)
    assert_is(array * 2 - array / 3, whole * 2 - whole / 3)
    for name in ("sum", "mean", "min", "max", "any", "all"):
        axis = (None, 0, 1)[random.integers(3)]
        np.testing.assert_allclose(getattr(array, name)(axis=axis), getattr(np, name)(whole, axis=axis))
    np.testing.assert_array_equal(find(array), np.nonzero(whole))
    other = random.integers(0, 5, (shape[1], 4)).astype("f4")
    assert_is(mtimes(array, spread(other, random_map(random, 2, comm.size), comm)), whole @ other)
    there = fft(array, axis=0)
    expected = np.fft.fft(whole, axis=0)[np.ix_(there.indices(0), there.indices(1))]
    np.testing.assert_allclose(there.local, expected, atol=1e-9)


KINDS: list[Callable[[Random, Comm], None]] = [
    redistribution,
    redistribution,
    large_redistribution,
    gathering,
    large_gathering,
    slices,
    slices,
    overlaps,
    calculations,
]


def run_cases(comm: Comm, first: int, count: int) -> None:
    """Run the cases of these seeds. Raises if a result differs from NumPy's."""
    for seed in range(first, first + count):
        kind = KINDS[seed % len(KINDS)]
        try:
            kind(np.random.default_rng(seed), comm)
        except BaseException:
            sys.stderr.write(f"rank {comm.rank} of {comm.size}: case {seed}, {kind.__name__}\n")
            raise
    comm.barrier()


if __name__ == "__main__":
    run_cases(COMM_WORLD, int(sys.argv[1]), int(sys.argv[2]))
    if COMM_WORLD.rank == 0:
        print(f"{sys.argv[2]} cases on {COMM_WORLD.size} ranks: equal to NumPy")
