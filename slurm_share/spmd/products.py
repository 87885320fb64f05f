"""Matrix products of distributed arrays, panel by panel (SUMMA).

For some columns of the left array at a time, and the same rows of the right one, every rank gets what it needs for its
part of the result, and adds the product. The panels' width is such that they take a fixed amount of memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import host
from .agreement import agree
from .comm import Comm
from .errors import UsageError
from .parts import Spread
from .redistribute import exchange
from .rules.maps import Map
from .rules.plans import Part, in_turn
from .rules.positions import Positions, by_owner, count

PANEL_BYTES = 64 << 20
"""Size of the two panels that a rank multiplies at a time."""


def mtimes(left: Any, right: Any, map: Map | None = None) -> Any:
    """Return the matrix product of two arrays of two dimensions, of which one may be a NumPy array (all of it here).

    The result's map: `map`; None: `left`'s rows and `right`'s columns on the grid of `left` (of the Dmat, where there
    is one). Two NumPy arrays give a NumPy array. Collective. Raises UsageError where shapes do not fit.
    """
    if not is_spread(left) and not is_spread(right):
        return np.matmul(left, right)
    left, right = (one if is_spread(one) else np.asarray(host.of(one)) for one in (left, right))
    for one in (left, right):
        if one.ndim != 2:
            raise UsageError(f"the product of distributed arrays takes two dimensions, not {one.ndim}")
    if left.shape[1] != right.shape[0]:
        raise UsageError(f"arrays of shapes {left.shape} and {right.shape} have no product")
    model = left if is_spread(left) else right
    shape = (left.shape[0], right.shape[1])
    wanted = product_map(left, right) if map is None else map
    wanted.check_shape(shape)
    result = bare(wanted)
    plain = [one for one in (left, right) if not is_spread(one)]
    call = f"product{[(one.shape, one.dtype) for one in plain] or ''}"
    *dtypes, _ = agree(model.comm, call, [one for one in (left, right) if is_spread(one)], wanted)
    dtype = np.result_type(*dtypes, *(one.dtype for one in plain))
    local = multiply(model.comm, left, right, shape, result, dtype)
    product = type(model)(shape, result, host.like(model.local, local), model.comm)
    return product if result == wanted else product.redistribute(wanted)


def is_spread(array: Any) -> bool:
    """Return whether an array is distributed."""
    return isinstance(getattr(array, "map", None), Map)


def product_map(left: Any, right: Any) -> Map:
    """Return the map of a product: the left one's rows and the right one's columns, on the left one's ranks.

    Where these would be more or fewer processes than ranks, on the left one's grid. With one distributed array: its
    map.
    """
    if not is_spread(left):
        return bare(right.map)
    if not is_spread(right):
        return bare(left.map)
    old = left.map
    grid = (old.grid[0], right.map.grid[1])
    if grid[0] * grid[1] != len(old.ranks):
        grid = old.grid
    return Map(grid, (old.dist[0], right.map.dist[1]), old.ranks, None, old.order)


def bare(map: Map) -> Map:
    """Return the map without overlap."""
    return Map(map.grid, map.dist, map.ranks, None, map.order) if any(map.overlap) else map


def multiply(
    comm: Comm, left: Any, right: Any, shape: Sequence[int], result: Map, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return this rank's part of the product of two arrays, Dmats or NumPy arrays that all ranks have. Collective.

    `shape` and `result`, a map without overlap, are those of the product.
    """
    local = np.zeros(result.owned_shape(shape, comm.rank), dtype)
    inner = left.shape[1]
    along = -(-shape[0] // result.grid[0]) + -(-shape[1] // result.grid[1])
    width = max(1, PANEL_BYTES // max(1, along * dtype.itemsize))
    for first in range(0, inner, width):
        panel = (first, min(inner, first + width))
        columns = _panel(comm, left, shape, result, panel, 0, dtype)
        rows = _panel(comm, right, shape, result, panel, 1, dtype)
        if local.size:
            np.add(local, np.matmul(columns, rows), out=local)
    return local


def _panel(
    comm: Comm, array: Any, shape: Sequence[int], result: Map, panel: tuple[int, int], axis: int, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return what this rank multiplies: its rows (`axis` 0) or columns (1) of the result, within the panel."""
    if not is_spread(array):
        indices = result.owned_ranges(shape, comm.rank)[axis]
        within = slice(*panel)
        return np.asarray(host.of(array)[(indices, within) if axis == 0 else (within, indices)], dtype=dtype)
    place = result.coordinates(comm.rank)
    mine = 0 if place is None else result.axes[axis].count_owned(shape[axis], place[axis])
    size = (mine, panel[1] - panel[0])
    room = np.empty(size if axis == 0 else size[::-1], dtype)
    sends = _sends(array, shape, result, panel, axis)
    receives = _receives(array, shape, result, panel, axis, place)
    exchange(comm, f"product(axis={axis})", host.of(array.local), room, dtype, *in_turn(sends, receives, comm.rank))
    return room


def _sends(array: Spread, shape: Sequence[int], result: Map, panel: tuple[int, int], axis: int) -> list[Part]:
    """Return which elements of the local array go to which ranks: the same to all that differ along the other axis."""
    place = array.map.coordinates(array.comm.rank)
    if place is None:
        return []
    lines = array.map.axes[axis].owned(shape[axis], place[axis])
    across = array.map.axes[1 - axis].owned(array.shape[1 - axis], place[1 - axis])
    first, end = np.searchsorted(across, panel).tolist()
    if first == end:
        return []
    goals = by_owner(result.axes[axis].owners(shape[axis], lines))
    parts = []
    for (goal, positions), other in itertools.product(goals, range(result.grid[1 - axis])):
        coordinates = (goal, other) if axis == 0 else (other, goal)
        if all(result.owned_shape(shape, result.rank_at(coordinates))):
            parts.append(_part(result.rank_at(coordinates), positions, slice(first, end, 1), axis))
    return parts


def _receives(
    array: Spread, shape: Sequence[int], result: Map, panel: tuple[int, int], axis: int, place: tuple[int, ...] | None
) -> list[Part]:
    """Return from which ranks which elements of the panel come."""
    if place is None or not all(result.owned_shape(shape, array.comm.rank)):
        return []
    lines = result.axes[axis].owned(shape[axis], place[axis])
    sources = by_owner(array.map.axes[axis].owners(shape[axis], lines))
    inner = np.arange(*panel, dtype=np.int64)
    others = by_owner(array.map.axes[1 - axis].owners(array.shape[1 - axis], inner))
    parts = []
    for (source, positions), (other, within) in itertools.product(sources, others):
        coordinates = (source, other) if axis == 0 else (other, source)
        parts.append(_part(array.map.rank_at(coordinates), positions, within, axis))
    return parts


def _part(rank: int, lines: Positions, across: Positions, axis: int) -> Part:
    axes = (lines, across) if axis == 0 else (across, lines)
    return Part(rank, (count(axes[0]), count(axes[1])), axes)
