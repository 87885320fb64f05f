"""Along one dimension: which of some positions belong to which place of a grid.

All evenly spaced indices are shared out by closed formulas, in time that depends on the number of places and not on the
length: the only dimension of an array can be very long. What remains, the owned indices of a block-cyclic distribution
among places that are not blocks, goes through a vector of as many indices as the rank owns.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .maps import Axis
from .positions import Positions, by_owner, even_runs, from_vector, vector_of

Shares = list[tuple[int, Positions]]
"""Place in the grid along the dimension, ascending, and which positions it has. Places with none are left out."""


def share_range(length: int, indices: range, axis: Axis, with_overlap: bool = False) -> Shares:
    """Return which of ascending indices each place owns, or with its overlap stores, as positions among them."""
    if not indices:
        return []
    if axis.places == 1:
        return [(0, slice(0, len(indices), 1))]
    if axis.kind == "b":

        def below(limit: int) -> int:
            return min(max(-(-(limit - indices.start) // indices.step), 0), len(indices))

        return _share_among_blocks(length, indices[0], indices[-1], below, axis, with_overlap)
    if axis.kind == "c" or axis.block == 1:
        turn = axis.places // math.gcd(indices.step, axis.places)
        firsts = ((index % axis.places, position) for position, index in enumerate(indices[:turn]))
        return [(place, slice(position, len(indices), turn)) for place, position in sorted(firsts)]
    if indices.step == 1:
        each = ((place, _runs_within(indices, axis, place)) for place in range(axis.places))
        return [(place, positions) for place, positions in each if positions is not None]
    return by_owner(axis.owners(length, np.array(indices, dtype=np.int64)))


def share_owned(length: int, mine: Axis, place: int, axis: Axis, with_overlap: bool = False) -> Shares:
    """Return which of what a place of `mine` owns each place of `axis` owns, or stores, as positions among it."""
    even = mine.owned_range(length, place)
    if even is not None:
        return share_range(length, range(even.start, even.stop, even.step), axis, with_overlap)
    if axis.places == 1:
        return [(0, slice(0, mine.count_owned(length, place), 1))]
    if axis.kind == "b":
        first, last = mine.owned_ends(length, place)
        return _share_among_blocks(
            length, first, last, lambda limit: mine.count_owned(limit, place), axis, with_overlap
        )
    return by_owner(axis.owners(length, mine.owned(length, place)))


def share_stored(length: int, mine: Axis, place: int, axis: Axis) -> Shares:
    """Return which of what a place of `mine` stores each place of `axis` owns, as positions among it."""
    even = mine.stored_range(length, place)
    if even is None:
        return share_owned(length, mine, place, axis)
    return share_range(length, range(even.start, even.stop, even.step), axis)


def owned_positions(length: int, axis: Axis, place: int) -> Positions:
    """Return where in the whole dimension lies what a place owns, which must be something."""
    even = axis.owned_range(length, place)
    found = _runs_within(range(length), axis, place) if even is None else even
    assert found is not None
    return found


def _share_among_blocks(
    length: int, first: int, last: int, below: Callable[[int], int], axis: Axis, with_overlap: bool
) -> Shares:
    """Share out ascending indices from `first` to `last`, of which `below(i)` are less than i, among blocks."""
    first_place, last_place = axis.owners(length, np.array([first, last])).tolist()
    span = axis.stored_span if with_overlap else axis.span
    while first_place and span(length, first_place - 1)[1] > first:  # places before store some too
        first_place -= 1
    found: Shares = []
    for place in range(first_place, last_place + 1):
        begin, end = map(below, span(length, place))
        if begin < end:
            found.append((place, slice(begin, end, 1)))
    return found


def _runs_within(indices: range, axis: Axis, place: int) -> Positions | None:
    """Return which of neighbouring indices are in the blocks of a place of a block-cyclic distribution."""
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
    """Return where a place stores the chosen ones of ascending indices; it must store all of them, and some."""
    if isinstance(chosen, slice):
        # Evenly spaced indices of one place are evenly spaced in it. In a block-cyclic distribution their offset in
        # the cycle grows evenly, too: it stays within one block, and that is at most half of the cycle.
        found = indices[chosen]
        first, last = axis.positions(length, place, np.array([found[0], found[-1]])).tolist()
        return slice(first, last + 1, (last - first) // (len(found) - 1) if len(found) > 1 else 1)
    vector = indices.start + indices.step * vector_of(chosen)
    return from_vector(axis.positions(length, place, vector), axis.count_stored(length, place))
