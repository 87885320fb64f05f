"""Indices of a rank's part of an array in pPython's forms: ranges, lists of first and last index, FALLS."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rules.maps import Axis, Map
from .world import world


@dataclass
class Falls:
    """Blocks of one dimension that a rank stores: first and last index of the first block, stride, number of blocks."""

    l: int  # noqa: E741 - pPython's name
    r: int
    s: int
    n: int
    local_len: int
    complete_cycle: bool
    complete_block: bool
    dist: str


@dataclass
class PitFalls:
    """All ranks' blocks of one dimension: those of the first rank, and the distance `d` between the `p` ranks."""

    l: int  # noqa: E741 - pPython's name
    r: int
    s: int
    n: int
    d: int
    p: int
    rem_cycle: int
    dist: str
    overlap: int


def index_ranges(map: Map, shape: Sequence[int], rank: int) -> list[tuple[range, ...]]:
    """Return for each dimension the global indices that a rank stores, one range per block."""
    return [tuple(ranges) for ranges in _ranges(map, shape, rank)]


def first_blocks(map: Map, shape: Sequence[int], rank: int) -> list[range]:
    """Return for each dimension the first block that a rank stores."""
    return [next(ranges, range(0)) for ranges in _ranges(map, shape, rank)]


def _ranges(map: Map, shape: Sequence[int], rank: int) -> list[Iterator[range]]:
    places = map.coordinates(rank)
    if places is None:
        return [iter(()) for _ in shape]
    lengths = map.check_shape(shape)
    return [_ranges_of(*each) for each in zip(map.axes, lengths, places, strict=True)]


def _ranges_of(axis: Axis, length: int, place: int) -> Iterator[range]:
    if axis.kind == "b":
        yield range(*axis.stored_span(length, place))
    elif axis.places == 1:
        yield range(length)
    else:
        for start in range(place * axis.block, length, axis.places * axis.block):
            yield range(start, min(start + axis.block, length))


def pitfalls(map: Map, shape: Sequence[int]) -> list[PitFalls]:
    """Return for each dimension the blocks of all ranks."""
    found = []
    for axis, length in zip(map.axes, map.check_shape(shape), strict=True):
        block = axis.block or -(-length // axis.places)
        cycle = block * axis.places + axis.overlap
        rest = length % axis.places if axis.kind == "b" and not axis.overlap else length % max(cycle, 1)
        cycles = -(-length // cycle) if cycle else 0
        last = block - 1 + axis.overlap
        found.append(PitFalls(0, last, block * axis.places, cycles, block, axis.places, rest, axis.kind, axis.overlap))
    return found


def falls(map: Map, shape: Sequence[int], rank: int) -> list[Falls]:
    """Return for each dimension the blocks that a rank stores; an empty list if it has no part."""
    places = map.coordinates(rank)
    if places is None:
        return []
    parts = zip(pitfalls(map, shape), map.axes, map.check_shape(shape), places, strict=True)
    return [_falls_of(pitfall, axis, length, place) for pitfall, axis, length, place in parts]


def _falls_of(pitfall: PitFalls, axis: Axis, length: int, place: int) -> Falls:
    first, last = pitfall.l + place * pitfall.d, pitfall.r + place * pitfall.d
    complete_cycle = complete_block = True
    if axis.kind == "b":
        first, end = axis.stored_span(length, place)
        last = end - 1
        larger = length % axis.places
        whole = pitfall.r + place * pitfall.d <= pitfall.rem_cycle
        complete_cycle = whole if axis.overlap else not larger or place < larger
        complete_block = complete_cycle
    elif pitfall.rem_cycle:
        blocks = -(-pitfall.rem_cycle // pitfall.d)
        cut = place + 1 == blocks and pitfall.rem_cycle % pitfall.d > 0
        complete_cycle, complete_block = place + 1 <= blocks and not cut, not cut
    count = axis.count_stored(length, place)
    return Falls(first, last, pitfall.s, pitfall.n, count, complete_cycle, complete_block, axis.kind)


def global_ind(d: Any, dim: Any = None) -> list[NDArray[np.int64]]:
    """Return the global indices that this rank stores, an array for each of the given dimensions (None: all)."""
    if not hasattr(d, "global_ind"):
        lengths = [int(length) for length in np.shape(d)]
        if len(lengths) == 1:
            return [np.arange(lengths[0])]
        return [np.arange(lengths[axis]) for axis in _axes(dim, len(lengths))]
    stored = d.map.stored(d.shape, world().comm.rank)
    return [stored[axis] for axis in _axes(dim, len(d.shape))]


def global_block_range(d: Any, dim: Any = None) -> NDArray[Any] | None:
    """Return the first and last index of this rank's first block in each of the given dimensions (None: all).

    Returns None if this rank stores nothing.
    """
    axes = _axes(dim, np.ndim(d) if not hasattr(d, "map") else len(d.shape))
    if not hasattr(d, "map"):
        return np.array([[0, d.shape[axis] - 1] for axis in axes], dtype=int).reshape(len(axes), 2)
    blocks = first_blocks(d.map, d.shape, world().comm.rank)
    if not all(map(len, blocks)):
        return None
    return np.array([[blocks[axis][0], blocks[axis][-1]] for axis in axes], dtype=int)


def global_block_ranges(d: Any, dim: Any = None) -> Any:
    """Return [rank, first, last] of every rank of the grid, in the order of the grid.

    The result is an array with a row per rank, or for several dimensions a list of such arrays. For a rank that
    stores nothing, the last index is below the first.
    """
    if not hasattr(d, "map"):
        return np.array([[0, 0, d.shape[axis] - 1] for axis in _axes(dim, np.ndim(d))], dtype=int)
    found = []
    by_rank = [(int(rank), first_blocks(d.map, d.shape, int(rank))) for rank in d.map.placed.reshape(-1)]
    for axis in _axes(dim, len(d.shape)):
        rows = []
        for rank, blocks in by_rank:
            block = blocks[axis]
            rows.append([rank, block[0], block[-1]] if len(block) else [rank, d.shape[axis], d.shape[axis] - 1])
        found.append(np.array(rows, dtype=int))
    return found if len(found) > 1 else found[0]


def grid(d: Any) -> Any:
    """Return the ranks as an array with the shape of the grid of `d`."""
    return d.map["grid"]


def print_falls(f: Falls) -> None:
    """Print the blocks that a rank stores."""
    _print_fields("f", f)


def print_pitfalls(pf: PitFalls) -> None:
    """Print the blocks of all ranks."""
    _print_fields("pf", pf)


def _print_fields(prefix: str, record: Falls | PitFalls) -> None:
    fields = vars(record).items()
    sys.stdout.write("".join(f"   {prefix}.{name}: {value}\n" for name, value in fields if name != "overlap"))


def _axes(dim: Any, dimensions: int) -> list[int]:
    if dim is None:
        return list(range(dimensions))
    return [int(axis) for axis in np.asarray(dim).reshape(-1)]
