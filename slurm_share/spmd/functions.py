"""Functions of distributed arrays: products, Fourier transforms, non-zeros, sums of several, another process grid.

pPython's names on top of these are in `ppython/`; NumPy arrays and Dmats may both be given where a function says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import host
from .agreement import agree
from .dmat import Dmat
from .errors import UsageError
from .products import mtimes as mtimes
from .rules.maps import Map


def whole_along(map: Map, shape: tuple[int, ...], axis: int) -> Map:
    """Return a map of the same ranks in which every rank has all of `axis`: its processes go to the longest other axis.

    A map in which they have it already stays. An array of one dimension is whole on the map's first rank.
    """
    if map.grid[axis] == 1:
        return map
    others = [place for place in range(len(shape)) if place != axis]
    if not others:
        return Map((1,), "b", map.ranks[:1])
    goal = max(others, key=lambda place: (shape[place], -place))
    grid, dist = list(map.grid), list(map.dist)
    grid[goal] *= grid[axis]
    grid[axis] = 1
    dist[goal] = ("b", 0)
    return Map(grid, dist, map.ranks, None, map.order)


def fft(array: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """Return numpy.fft.fft along one axis, with the array's map; collective.

    Where ranks share the axis, the array is redistributed so that each has it whole, and back. An array of one
    dimension is transformed by one rank. A NumPy array gives a NumPy array.
    """
    return _transform(np.fft.fft, array, n, axis, norm)


def ifft(array: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """Return numpy.fft.ifft along one axis, with the array's map; collective, as `fft`."""
    return _transform(np.fft.ifft, array, n, axis, norm)


def _transform(transform: Any, array: Any, n: int | None, axis: int, norm: str | None) -> Any:
    if not isinstance(array, Dmat):
        return transform(array, n, axis, norm)
    if not -array.ndim <= axis < array.ndim:
        raise UsageError(f"there is no axis {axis} in an array of {array.ndim} dimensions")
    axis %= array.ndim
    length = array.shape[axis] if n is None else n
    if length < 1:
        raise UsageError(f"a Fourier transform needs 1 point or more, not {length}")
    between = whole_along(array.map, array.shape, axis)
    whole = array if between == array.map else array.redistribute(between)
    shape = tuple(length if place == axis else one for place, one in enumerate(array.shape))
    mine = host.of(whole.local)
    kind = transform(np.zeros(1, mine.dtype)).dtype
    expected = tuple(one.size for one in between.stored(shape, array.comm.rank))
    local = transform(mine, n, axis, norm) if mine.size and 0 not in expected else np.zeros(expected, kind)
    result = Dmat(shape, between, host.like(array.local, local), array.comm)
    return result if between == array.map else result.redistribute(array.map)


def transpose_grid(array: Any) -> Any:
    """Return the same array on the transposed process grid (rows become columns of processes); collective.

    The data are not transposed. The dtype is the one that holds all ranks' parts. The argument stays as it is, unlike
    in pPython. What is no Dmat is returned as it is. Raises UsageError where there are not two dimensions.
    """
    if not isinstance(array, Dmat):
        return array
    if array.ndim != 2:
        raise UsageError(f"the process grid of an array of {array.ndim} dimensions cannot be transposed: 2 are needed")
    old = array.map
    return array.redistribute(Map(old.grid[::-1], old.dist, old.ranks, old.overlap, old.order))


def nonzero_parts(array: Dmat) -> list[tuple[NDArray[np.int64], ...]]:
    """Return for each rank of the map, in its order, the global indices of the non-zeros it owns; on all ranks.

    Each part is in row-major order. Collective. pPython's `find` lists them so, grid column by grid column.
    """
    agree(array.comm, "find", [array])
    owned = array.map.owned(array.shape, array.comm.rank)
    local = np.nonzero(host.of(array.owned))
    mine = tuple(indices[places] for indices, places in zip(owned, local, strict=True))
    parts = array.comm.allgather(mine)
    return [parts[rank] for rank in array.map.ranks]


def find(array: Any) -> tuple[NDArray[np.int64], ...]:
    """Return the indices of the non-zeros on all ranks, per dimension, in the order of numpy.nonzero; collective."""
    if not isinstance(array, Dmat):
        return np.nonzero(array)
    parts = nonzero_parts(array)
    found = [np.concatenate([part[axis] for part in parts]) for axis in range(array.ndim)]
    order = np.lexsort(found[::-1])
    return tuple(one[order] for one in found)


def summation(target: Dmat, *arrays: Dmat) -> Dmat:
    """Assign the sum of the arrays, each of any map, to `target`, and return it; collective. The dtype is target's."""
    if not arrays:
        raise UsageError("there is nothing to sum: give one array or more")
    total = arrays[0] if arrays[0].map == target.map else arrays[0].redistribute(target.map)
    for one in arrays[1:]:
        total = total + (one if one.map == target.map else one.redistribute(target.map))
    target[...] = total
    return target


def synch(array: Any) -> Any:
    """Fill the overlap of every rank (`Dmat.halo`), and return the array; collective."""
    if isinstance(array, Dmat):
        array.halo()
    return array
