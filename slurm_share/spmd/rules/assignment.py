"""Plan of one rank for the assignment of a distributed array to a slice of another one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .maps import Indices, Map
from .plans import Part, parts_of
from .positions import Positions, by_owner, from_vector, vector_of

Along = list[tuple[int, Positions]]
"""For one dimension: places in the other map's grid, each with positions in this rank's local array."""


def assignment(
    shape: Sequence[int], map: Map, chosen: Sequence[range], source: Map, rank: int
) -> tuple[list[Part], list[Part]]:
    """Return the sends of one rank from the assigned array, and its receives for elements that it owns in the other.

    `shape`, `map`: those of the array that is assigned to; `chosen`: its assigned indices per dimension; `source`: map
    of the assigned array, whose shape is that of `chosen`. Overlaps are not filled. Blocks list the elements by
    ascending index in the assigned array. Both results include parts of this rank for itself.
    """
    sends: list[Along] = []
    receives: list[Along] = []
    there, here = source.coordinates(rank), map.coordinates(rank)
    for number, (one, length) in enumerate(zip(chosen, shape, strict=True)):
        mine, other = map.axes[number], source.axes[number]
        if there is not None:
            owned = other.owned(len(one), there[number])
            sends.append(by_owner(mine.owners(length, one.start + one.step * owned)))
        if here is not None:
            turns, positions = _meet(one, mine.owned(length, here[number]))
            found = by_owner(other.owners(len(one), turns))
            receives.append([(place, _chosen(positions, at, length)) for place, at in found])
    return (
        [] if there is None else parts_of(map, sends),
        [] if here is None else parts_of(source, receives),
    )


def _meet(chosen: range, indices: Indices) -> tuple[Indices, Indices]:
    """Return the elements of `chosen` that are among these indices, ascending, and their positions there."""
    turns, rest = np.divmod(indices - chosen.start, chosen.step)
    positions = np.flatnonzero((rest == 0) & (turns >= 0) & (turns < len(chosen)))
    turns = turns[positions]
    return (turns, positions) if chosen.step > 0 else (turns[::-1], positions[::-1])


def _chosen(positions: Indices, at: Positions, length: int) -> Positions:
    """Return the positions selected by `at` in the form that is fastest to copy; descending ones stay a vector."""
    vector = positions[vector_of(at)]
    return from_vector(vector, length) if len(vector) < 2 or vector[0] < vector[1] else vector
