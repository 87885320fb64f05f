"""Functions of distributed arrays: Fourier transforms, non-zeros, sums of several arrays, transposed process grids.

`ppython/` offers pPython's names on top of these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import host
from .agreement import agree, collective
from .dmat import Dmat
from .errors import UsageError
from .rules.maps import Map


def whole_along(map: Map, shape: tuple[int, ...], axis: int) -> Map:
    """Return a map of the same ranks in which every rank has all of `axis`; its processes go to the longest other axis.

    Returns the map itself if `axis` is not split. An array of one dimension goes to the map's first rank.
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
    """Return numpy.fft.fft along one axis, with the array's map. Collective.

    If the axis is split, the array is redistributed so that each rank has all of the axis, and back. One rank
    transforms an array of one dimension. A NumPy array gives a NumPy array.
    """
    return _transform(np.fft.fft, array, n, axis, norm)


def ifft(array: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """Return numpy.fft.ifft along one axis; as `fft`."""
    return _transform(np.fft.ifft, array, n, axis, norm)


@collective("Fourier transform")
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
    if between == array.map:
        dtype, _ = agree(array.comm, "Fourier transform", [array])
        whole = array
    else:
        whole = array.redistribute(between)
        dtype = whole.dtype
    shape = tuple(length if place == axis else one for place, one in enumerate(array.shape))
    mine = host.to_host(whole.local).astype(dtype, copy=False)
    kind = transform(np.zeros(1, dtype)).dtype
    expected = tuple(one.size for one in between.stored(shape, array.comm.rank))
    local = transform(mine, n, axis, norm) if mine.size and 0 not in expected else np.zeros(expected, kind)
    result = Dmat(shape, between, host.to_memory_of(array.local, local), array.comm)
    return result if between == array.map else result.redistribute(array.map)


@collective("transpose_grid")
def transpose_grid(array: Any) -> Any:
    """Return the array on the transposed process grid, in which rows and columns of processes are swapped. Collective.

    The elements are not transposed. The argument does not change, unlike in pPython. Returns a value that is no Dmat
    unchanged. Raises UsageError unless there are two dimensions.
    """
    if not isinstance(array, Dmat):
        return array
    if array.ndim != 2:
        raise UsageError(f"the process grid of an array of {array.ndim} dimensions cannot be transposed: 2 are needed")
    old = array.map
    return array.redistribute(Map(old.grid[::-1], old.dist, old.ranks, old.overlap, old.order))


@collective("find")
def nonzero_parts(array: Dmat) -> list[tuple[NDArray[np.int64], ...]]:
    """Return for each rank of the map the global indices of the non-zeros that it owns, on all ranks. Collective.

    Ranks are in the order of the map, indices in row-major order, as pPython's `find` needs them.
    """
    agree(array.comm, "find", [array])
    owned = array.map.owned(array.shape, array.comm.rank)
    local = np.nonzero(host.to_host(array.owned))
    mine = tuple(indices[places] for indices, places in zip(owned, local, strict=True))
    parts = array.comm.allgather(mine)
    return [parts[rank] for rank in array.map.ranks]


def find(array: Any) -> tuple[NDArray[np.int64], ...]:
    """Return the indices of the non-zeros, as numpy.nonzero does, on all ranks. Collective."""
    if not isinstance(array, Dmat):
        return np.nonzero(array)
    parts = nonzero_parts(array)
    found = [np.concatenate([part[axis] for part in parts]) for axis in range(array.ndim)]
    order = np.lexsort(found[::-1])
    return tuple(one[order] for one in found)


@collective("summation")
def summation(target: Dmat, *arrays: Dmat) -> Dmat:
    """Assign the sum of arrays of any maps to `target` and return it; its dtype does not change. Collective."""
    if not arrays:
        raise UsageError("there is nothing to sum: give one array or more")
    total = arrays[0] if arrays[0].map == target.map else arrays[0].redistribute(target.map)
    for one in arrays[1:]:
        total = total + (one if one.map == target.map else one.redistribute(target.map))
    target[...] = total
    return target
