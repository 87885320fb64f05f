"""Blocks of ranks are assembled to the same array as in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_threads import run_ranks

from slurm_share.spmd import gathering
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.gathering import gather_blocks
from slurm_share.spmd.rules.positions import from_vector


def places(length: int, parts: int, kind: str) -> list[np.ndarray]:
    """Return the indices of each part: a block, cyclic, or cyclic in pairs."""
    everything = np.arange(length)
    if kind == "b":
        return np.array_split(everything, parts)
    width = 1 if kind == "c" else 2
    return [everything[everything // width % parts == part] for part in range(parts)]


def gathered(shape: tuple[int, ...], grid: tuple[int, ...], kinds: str, root: int | None, **where: Any) -> Any:
    """Return the result of each rank, and the array itself."""
    whole = np.arange(math.prod(shape), dtype=where.pop("dtype", "f4")).reshape(shape)
    axes = [places(length, parts, kind) for length, parts, kind in zip(shape, grid, kinds, strict=True)]
    size = where.pop("size")

    def program(transport: Any) -> Any:
        comm = Comm(transport)
        here = [np.empty(0, np.int64)] * len(shape)
        if comm.rank < math.prod(grid):
            spot = np.unravel_index(comm.rank, grid)
            here = [axis[int(place)] for axis, place in zip(axes, spot, strict=True)]
        block = whole[np.ix_(*here)]
        if comm.rank % 2:
            here = [from_vector(vector, length) for vector, length in zip(here, shape, strict=True)]
        results = [gather_blocks(comm.group, shape, whole.dtype, block, here, root) for _ in range(2)]
        comm.barrier()
        results.append(gather_blocks(comm.group, shape, whole.dtype, block, here, root))
        return results

    return whole, run_ranks(size, program, **where)


@pytest.mark.parametrize("windows", [True, False], ids=["windows", "messages"])
@given(data=st.data())
def test_every_layout_and_any_root(data: st.DataObject, windows: bool) -> None:
    dimensions = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.lists(st.integers(0, 60), min_size=dimensions, max_size=dimensions)))
    grid = tuple(data.draw(st.lists(st.integers(1, 3), min_size=dimensions, max_size=dimensions)))
    kinds = data.draw(st.text("bcd", min_size=dimensions, max_size=dimensions))
    size = math.prod(grid) + data.draw(st.integers(0, 2))
    root = data.draw(st.none() | st.integers(0, size - 1))
    per_node = data.draw(st.none() | st.integers(1, 4))
    whole, results = gathered(shape, grid, kinds, root, size=size, per_node=per_node, windows=windows)
    for rank, results_of_rank in enumerate(results):
        for got in results_of_rank:
            if root is None or rank == root:
                assert np.array_equal(got, whole)
                assert got.dtype == whole.dtype
            else:
                assert got is None


@pytest.mark.parametrize(
    ("shape", "grid", "kinds"),
    [
        ((600, 700), (4, 1), "bb"),
        ((700, 600), (2, 2), "cd"),
        ((1, 400_000), (1, 4), "bb"),
        ((400_000,), (4,), "c"),
        ((3, 5, 30_000), (1, 2, 2), "bdb"),
        ((2, 3, 70_000), (2, 2, 1), "bcb"),
    ],
)
@pytest.mark.parametrize("per_node", [None, 3])
def test_large_arrays_go_through_the_window_in_parts(
    shape: tuple[int, ...], grid: tuple[int, ...], kinds: str, per_node: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are small here, so there are more of them than sections of the window."""
    monkeypatch.setattr(gathering, "_LEAST_SLAB", 64 << 10)
    monkeypatch.setattr(gathering, "_SLAB", 64 << 10)
    assert gathering.slabs(shape, 4).number > 8
    whole, results = gathered(shape, grid, kinds, 1, size=4, per_node=per_node)
    assert all(np.array_equal(got, whole) for got in results[1])


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(1, 64))
def test_slabs_cover_the_array_once_and_are_contiguous(lengths: list[int], itemsize: int) -> None:
    shape = tuple(lengths)
    cut = gathering._Slabs(shape, min(1, len(shape) - 1), max(1, itemsize % shape[min(1, len(shape) - 1)]))
    flat = np.arange(math.prod(shape)).reshape(shape)
    seen = []
    for number in range(cut.number):
        before, start, stop = cut.place(number)
        part = flat[before][start:stop].reshape(-1)
        assert part.size <= cut.elements
        seen.append(part)
    assert np.array_equal(np.concatenate(seen), np.arange(flat.size))
