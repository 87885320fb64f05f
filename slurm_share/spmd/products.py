"""Matrix products of distributed arrays, panel by panel (SUMMA).

A panel is a number of columns of the left array with the same rows of the right one. Each rank receives the elements of
a panel for its part of the result, and adds their product. The width of panels limits their memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import host
from .agreement import Distributed, agree, collective
from .comm import Comm
from .errors import UsageError
from .redistribute import exchange
from .rules.maps import Map
from .rules.plans import Part, in_turn
from .rules.positions import Positions, by_owner, count

PANEL_BYTES = 64 << 20
"""Limit of the two panels that a rank multiplies at a time, in bytes."""


@collective("product")
def mtimes(left: Any, right: Any, map: Map | None = None) -> Any:
    """Return the matrix product of two arrays of two dimensions. Collective.

    One of them may be a NumPy array, the same on all ranks; two give a NumPy array. `map`: map of the result; None:
    that of `product_map`. Raises UsageError if the shapes do not match.
    """
    if not is_distributed(left) and not is_distributed(right):
        return np.matmul(left, right)
    left, right = (one if is_distributed(one) else np.asarray(host.to_host(one)) for one in (left, right))
    for one in (left, right):
        if one.ndim != 2:
            raise UsageError(f"the product of distributed arrays takes two dimensions, not {one.ndim}")
    if left.shape[1] != right.shape[0]:
        raise UsageError(f"arrays of shapes {left.shape} and {right.shape} have no product")
    model = left if is_distributed(left) else right
    shape = (left.shape[0], right.shape[1])
    wanted = product_map(left, right) if map is None else map
    wanted.check_shape(shape)
    result = without_overlap(wanted)
    plain = [one for one in (left, right) if not is_distributed(one)]
    call = f"product{[(one.shape, one.dtype) for one in plain] or ''}"
    *dtypes, _ = agree(model.comm, call, [one for one in (left, right) if is_distributed(one)], wanted)
    dtype = np.result_type(*dtypes, *(one.dtype for one in plain))
    np.matmul(np.zeros((1, 1), dtype), np.zeros((1, 1), dtype))  # raises on all ranks if elements cannot be multiplied
    local = multiply(model.comm, left, right, shape, result, dtype)
    product = type(model)(shape, result, host.to_memory_of(model.local, local), model.comm)
    return product if result == wanted else product.redistribute(wanted)


def is_distributed(array: Any) -> bool:
    """Return whether an array is distributed."""
    return isinstance(getattr(array, "map", None), Map)


def product_map(left: Any, right: Any) -> Map:
    """Return the default map of a product: the rows of `left` and the columns of `right`, on the ranks of `left`.

    If that grid does not match the number of ranks, the grid of `left` is used. If only one array is distributed, its
    map is.
    """
    if not is_distributed(left):
        return without_overlap(right.map)
    if not is_distributed(right):
        return without_overlap(left.map)
    old = left.map
    grid = (old.grid[0], right.map.grid[1])
    if grid[0] * grid[1] != len(old.ranks):
        grid = old.grid
    return Map(grid, (old.dist[0], right.map.dist[1]), old.ranks, None, old.order)


def without_overlap(map: Map) -> Map:
    """Return the map without overlap."""
    return Map(map.grid, map.dist, map.ranks, None, map.order) if any(map.overlap) else map


def multiply(
    comm: Comm, left: Any, right: Any, shape: Sequence[int], result: Map, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return this rank's part of the product of two arrays, Dmats or NumPy arrays. Collective.

    `shape`: shape of the product; `result`: its map, without overlap.
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
    """Return this rank's rows (`axis` 0) or columns (`axis` 1) of a panel."""
    if not is_distributed(array):
        indices = result.owned(shape, comm.rank)[axis]
        within = slice(*panel)
        return np.asarray(host.to_host(array)[(indices, within) if axis == 0 else (within, indices)], dtype=dtype)
    place = result.coordinates(comm.rank)
    mine = 0 if place is None else result.axes[axis].count_owned(shape[axis], place[axis])
    size = (mine, panel[1] - panel[0])
    room = np.empty(size if axis == 0 else size[::-1], dtype)
    sends = _sends(array, shape, result, panel, axis)
    receives = _receives(array, shape, result, panel, axis, place)
    exchange(
        comm, f"product(axis={axis})", host.to_host(array.local), room, dtype, *in_turn(sends, receives, comm.rank)
    )
    return room


def _sends(array: Distributed, shape: Sequence[int], result: Map, panel: tuple[int, int], axis: int) -> list[Part]:
    """Return the sends of local elements for a panel: the same to all ranks that differ only along the other axis."""
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
    array: Distributed,
    shape: Sequence[int],
    result: Map,
    panel: tuple[int, int],
    axis: int,
    place: tuple[int, ...] | None,
) -> list[Part]:
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
