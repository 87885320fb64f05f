"""Division of positions along one dimension among the places of a grid that own or store them.

Evenly spaced indices are divided by closed formulas, in time that depends on the number of places and not on the
length, because an array of one dimension can be very long. Only the division of block-cyclic indices among places
without blocks needs a vector of all indices that the rank owns.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .maps import Axis
from .positions import Positions, by_owner, even_runs, from_vector, vector_of

ByPlace = list[tuple[int, Positions]]
"""Places of the grid along the dimension, ascending, each with its positions. Places without one are left out."""


def split_range(length: int, indices: range, axis: Axis, with_overlap: bool = False) -> ByPlace:
    """Return the positions among ascending indices that each place owns, or stores including its overlap."""
    if not indices:
        return []
    if axis.places == 1:
        return [(0, slice(0, len(indices), 1))]
    if axis.kind == "b":

        def below(limit: int) -> int:
            return min(max(-(-(limit - indices.start) // indices.step), 0), len(indices))

        return _split_among_blocks(length, indices[0], indices[-1], below, axis, with_overlap)
    if axis.block == 1:
        turn = axis.places // math.gcd(indices.step, axis.places)
        firsts = ((index % axis.places, position) for position, index in enumerate(indices[:turn]))
        return [(place, slice(position, len(indices), turn)) for place, position in sorted(firsts)]
    if indices.step == 1:
        each = ((place, _runs_within(indices, axis, place)) for place in range(axis.places))
        return [(place, positions) for place, positions in each if positions is not None]
    return by_owner(axis.owners(length, np.array(indices, dtype=np.int64)))


def split_owned(length: int, mine: Axis, place: int, axis: Axis, with_overlap: bool = False) -> ByPlace:
    """Divide the indices that a place of `mine` owns among the places of `axis` that own, or store, them."""
    even = mine.owned_range(length, place)
    if even is not None:
        return split_range(length, range(even.start, even.stop, even.step), axis, with_overlap)
    if axis.places == 1:
        return [(0, slice(0, mine.count_owned(length, place), 1))]
    if axis.kind == "b":
        first, last = mine.owned_ends(length, place)
        return _split_among_blocks(
            length, first, last, lambda limit: mine.count_owned(limit, place), axis, with_overlap
        )
    return by_owner(axis.owners(length, mine.owned(length, place)))


def split_stored(length: int, mine: Axis, place: int, axis: Axis) -> ByPlace:
    """Divide the indices that a place of `mine` stores among the places of `axis` that own them."""
    even = mine.stored_range(length, place)
    if even is None:
        return split_owned(length, mine, place, axis)
    return split_range(length, range(even.start, even.stop, even.step), axis)


def _split_among_blocks(
    length: int, first: int, last: int, below: Callable[[int], int], axis: Axis, with_overlap: bool
) -> ByPlace:
    """Divide ascending indices from `first` to `last` among blocks; `below(i)` counts those below i."""
    first_place, last_place = axis.owners(length, np.array([first, last])).tolist()
    span = axis.stored_span if with_overlap else axis.span
    while first_place and span(length, first_place - 1)[1] > first:  # earlier places store some too
        first_place -= 1
    found: ByPlace = []
    for place in range(first_place, last_place + 1):
        begin, end = map(below, span(length, place))
        if begin < end:
            found.append((place, slice(begin, end, 1)))
    return found


def _runs_within(indices: range, axis: Axis, place: int) -> Positions | None:
    """Return the positions among consecutive indices that are in the blocks of a block-cyclic place."""
    block, stride, origin = axis.block, axis.block * axis.places, axis.block * place - indices.start
    number = (-block - origin) // stride + 1  # of the first block that ends after the first index
    runs = -(-(len(indices) - origin) // stride) - number
    if runs < 1:
        return None
    first = origin + number * stride
    last = first + (runs - 1) * stride
    begin = max(first, 0)
    first_width = min(first + block, len(indices)) - begin
    last_width = min(block, len(indices) - last)
    return even_runs(begin, first_width, first + stride, stride, block, runs, last_width, len(indices))


def local_positions(length: int, axis: Axis, place: int, indices: range, chosen: Positions) -> Positions:
    """Return the local positions of chosen ones of ascending indices; the place must store all, at least one."""
    if isinstance(chosen, slice):
        # Evenly spaced indices of one place are evenly spaced in its part. That holds for block-cyclic places too: the
        # offset in the cycle grows evenly, and stays within one block, which is at most half of the cycle.
        found = indices[chosen]
        first, last = axis.positions(length, place, np.array([found[0], found[-1]])).tolist()
        return slice(first, last + 1, (last - first) // (len(found) - 1) if len(found) > 1 else 1)
    vector = indices.start + indices.step * vector_of(chosen)
    return from_vector(axis.positions(length, place, vector), axis.count_stored(length, place))
