"""Cartesian grids of ranks: coordinates, neighbours, and the division of ranks into dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence


def coordinates(dims: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the coordinates of a rank; the last one changes first."""
    found = []
    for dim in reversed(dims):
        rank, place = divmod(rank, dim)
        found.append(place)
    return tuple(reversed(found))


def rank_at(dims: Sequence[int], periods: Sequence[bool], coords: Sequence[int]) -> int | None:
    """Return the rank with these coordinates; None: they are outside of a dimension that is no ring."""
    rank = 0
    for dim, is_ring, place in zip(dims, periods, coords, strict=True):
        if not is_ring and not 0 <= place < dim:
            return None
        rank = rank * dim + place % dim
    return rank


def neighbour(dims: Sequence[int], periods: Sequence[bool], rank: int, direction: int, distance: int) -> int | None:
    """Return the rank that is `distance` steps away in a dimension; None: there is none."""
    coords = list(coordinates(dims, rank))
    coords[direction] += distance
    return rank_at(dims, periods, coords)


def sub_grid(dims: Sequence[int], keeps: Sequence[bool], rank: int) -> tuple[int, int]:
    """Return the number of the grid of fewer dimensions in which a rank is, and its rank there."""
    coords = coordinates(dims, rank)
    color = place = 0
    for dim, keep, coord in zip(dims, keeps, coords, strict=True):
        if keep:
            place = place * dim + coord
        else:
            color = color * dim + coord
    return color, place


def fill(count: int, dims: Sequence[int]) -> list[int] | None:
    """Return `dims` with each 0 replaced, so that the product is `count`; None: that is impossible.

    The new numbers are as close to each other as possible, the largest first.
    """
    fixed = math.prod(dim for dim in dims if dim)
    free = sum(not dim for dim in dims)
    if count % fixed or (not free and count != fixed):
        return None
    best = iter(min(_divided(count // fixed, free, count // fixed), default=()))
    return [dim or next(best) for dim in dims]


def _divided(count: int, parts: int, most: int) -> Iterator[tuple[int, ...]]:
    """Return the products of `parts` factors that are `count`, none larger than the one before, nor than `most`."""
    if parts <= 1:
        if parts and count <= most:
            yield (count,)
        return
    for factor in range(min(most, count), 0, -1):
        if factor**parts < count:
            return
        if count % factor == 0:
            for rest in _divided(count // factor, parts - 1, factor):
                yield (factor, *rest)
