"""pPython's functions of distributed arrays. Most also take NumPy arrays and numbers, so programs run with map=1."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from .. import functions as base
from .. import host
from ..errors import UsageError
from ..rules.maps import Map
from .arrays import Dmap, Dmat, on_host, zeros
from .arrays import mtimes as mtimes
from .indices import grid
from .messages import combine_pairs


def local(d: Any) -> Any:
    """Return the local part of a distributed array, not a copy; any other value unchanged."""
    return d.local if isinstance(d, Dmat) else d


def put_local(x: Any, x_local: Any) -> Any:
    """Replace the local part of an array by `x_local`, and return the array; a number fills a new local part.

    The dtype becomes that of `x_local`. Raises UsageError if the shapes differ by more than dimensions of length 1. For
    a NumPy array `x`, the result is `x_local`, or a copy of `x` filled with the number.
    """
    if not isinstance(x, Dmat):
        return np.full_like(x, x_local) if np.ndim(x_local) == 0 and np.ndim(x) else x_local
    wanted = tuple(x.local_dim)
    if np.ndim(x_local) == 0:
        x.local = np.full(wanted, x_local, dtype=np.result_type(x.local.dtype, _kind(x_local)))
        return x
    shape = tuple(x_local.shape) if hasattr(x_local, "shape") else np.shape(x_local)
    if shape != wanted:
        if [length for length in shape if length != 1] != [length for length in wanted if length != 1]:
            raise UsageError(
                f"put_local: this rank's part of an array of shape {x.shape} has shape {wanted}, not {shape}"
            )
        x_local = np.reshape(x_local, wanted)
    x.local = x_local if hasattr(x_local, "shape") else np.asarray(x_local)
    return x


def _kind(number: Any) -> Any:
    """Return the least dtype that holds a number; bool for a whole number, which fits any dtype."""
    dtype = np.asarray(number).dtype
    if isinstance(number, np.generic | np.ndarray) or dtype.kind == "c":
        return dtype
    return np.float16 if dtype.kind == "f" else np.bool_


def agg(d: Any, leader: int | None = None) -> Any:
    """Return the whole array on rank `leader` (None: pPython.leader), the local part elsewhere. Collective."""
    if not isinstance(d, Dmat):
        return d
    whole = d.whole().gather(_leader(leader))
    return d.local if whole is None else whole


oagg = agg_by_topology = agg


def _leader(leader: int | None) -> int:
    if leader is not None:
        return int(leader)
    return int(getattr(sys.modules.get("pPython"), "leader", 0) or 0)


def agg_all(d: Any, leader: int | None = None) -> Any:
    """Return the whole array on every rank. Collective."""
    return d.whole().gather_all() if isinstance(d, Dmat) else d


def remap(x: Any, new_map: Any) -> Any:
    """Return the array with another map; `new_map` 1: a NumPy array on every rank. Collective."""
    if isinstance(x, Dmat):
        if not isinstance(new_map, Map):
            return agg_all(x)
        return Dmat(x.shape, new_map, x.whole().redistribute(new_map).local)
    if not isinstance(new_map, Map):
        return np.array(x)
    made = zeros(*np.shape(x), map=new_map, dtype=np.asarray(x).dtype)
    made[...] = x
    return made


def transpose_grid(B: Any) -> Any:
    """Return the array on the transposed grid of processes; a value that is not distributed unchanged. Collective.

    An array distributed by rows becomes one distributed by columns, and vice versa.
    """
    if not isinstance(B, Dmat):
        return B
    transposed = base.transpose_grid(B.whole())
    return Dmat(B.shape, transposed.map, transposed.local)


def synch(d: Any) -> Any:
    """Fill each rank's overlap with the elements of its neighbours, and return the array. Collective."""
    if isinstance(d, Dmat):
        whole = d.whole()
        whole.halo()
        d.local = whole.local
    return d


def fft(x: Any, N: Any = None, axis: int | None = None) -> Any:
    """Return the discrete Fourier transform along an axis. `N`: number of points; [] or None: the length of the axis.

    The default axis is the last of a NumPy array and the first of a distributed array. If a distributed array is split
    along the axis, the result is a new array with another map; otherwise the argument changes.
    """
    length = None if N is None or np.ndim(N) else int(N)
    if not isinstance(x, Dmat):
        return np.fft.fft(x, length, -1 if axis is None else int(axis))
    along = x.map.check_axis(0 if axis is None else int(axis))
    if x.map.grid[along] > 1:
        x = remap(x, _whole_along(x.map, along))
    transformed = np.fft.fft(on_host(x.local), x.shape[along] if length is None else length, along)
    x.local = host.to_memory_of(x.local, transformed)
    if length is not None:
        x.shape[along] = length
    return x


def _whole_along(map: Dmap, axis: int) -> Dmap:
    """Return pPython's map that does not split an axis: all ranks are along the last axis, or else the first."""
    sizes = [1] * len(map.grid)
    sizes[0 if axis == len(sizes) - 1 else -1] = math.prod(map.grid)
    return Dmap(sizes, map["dist_spec"], map.placed.reshape(-1, order="F").tolist())


def find(x: Any) -> list[Any]:
    """Return the indices of non-zero elements, a list for each dimension, on every rank. Collective."""
    if not isinstance(x, Dmat):
        return [indices if len(indices) else [] for indices in np.nonzero(x)]
    parts = dict(zip(x.map.ranks, base.nonzero_parts(x.whole()), strict=True))
    order = x.map.placed.reshape(-1, order="F").tolist()
    return [list(np.concatenate([parts[rank][axis] for rank in order])) for axis in range(x.dim)]


def summation(sum: Any, *arrays: Any) -> Any:
    """Assign the element-wise sum of arrays, also in a dictionary or list, to `sum` and return it. Collective."""
    parts = arrays[0] if len(arrays) == 1 and not isinstance(arrays[0], Dmat | np.ndarray) else arrays
    parts = list(parts.values()) if isinstance(parts, Mapping) else list(parts)
    if not parts:
        raise UsageError("summation needs arrays to add")
    if isinstance(sum, Dmat):
        parts = [part if part.map == sum.map else remap(part, sum.map) for part in parts]
    sum[...] = combine_pairs(operator.add, parts)
    return sum


def submat(a: Dmat, s: Any) -> Any:
    """Return the elements that MATLAB's subscript structure selects, on every rank. Collective.

    `s["subs"]`: for each dimension ":" or a NumPy index.
    """
    subs = (s[0] if isinstance(s, list) else s)["subs"]
    each = [subs[axis] for axis in range(a.dim)]
    index = tuple(slice(None) if isinstance(one, str) else one for one in each)
    return a if all(isinstance(one, slice) and one == slice(None) for one in index) else a[index]


def display(m: Any) -> None:
    """Print a map, or the name and the elements of a distributed array, which is collective."""
    if isinstance(m, Dmap):
        m.show()
    elif isinstance(m, Dmat):
        names = [name for name, value in sys._getframe(1).f_locals.items() if value is m]
        sys.stdout.write(f"{names[0] if names else 'ans'} = \n  Distributed matrix object\n{agg(m)}\n")


def size(d: Any, dims: Any = None) -> list[int]:
    """Return the lengths of the given dimensions (None: all). A NumPy vector is a row, a number is 1 x 1."""
    shape = [int(length) for length in d.shape] if hasattr(d, "shape") else list(np.shape(d))
    if dims is None:
        return [1] * (2 - len(shape)) + shape if len(shape) < 2 else shape
    if not shape:
        shape = [1, 1]
    return [shape[int(axis)] for axis in np.asarray(dims).reshape(-1)]


def ndims(a: Any) -> int:
    """Return the number of dimensions, at least 2."""
    return len(size(a))


def unfun(fhandle: Callable[[Any], Any], x: Any) -> Any:
    """Apply a function to an array and return the result; a distributed array is changed in place."""
    if isinstance(x, Dmat):
        x.local = fhandle(x.local)
        return x
    return fhandle(x)


def _as(dtype: Any) -> Callable[[Any], Any]:
    return lambda part: part.astype(dtype) if hasattr(part, "astype") else dtype(part)


# A distributed array is changed in place, as by `unfun`.
sin, cos = partial(unfun, np.sin), partial(unfun, np.cos)
double, uint8, uint16, uint32, uint64 = (
    partial(unfun, _as(dtype)) for dtype in (np.float64, np.uint8, np.uint16, np.uint32, np.uint64)
)


def dcomplex(*parts: Any) -> Any:
    """Return complex elements of a real and an optional imaginary part; a distributed real part is changed in place."""
    imaginary: Any = parts[1] if len(parts) > 1 else 0.0
    if isinstance(parts[0], Dmat):
        parts[0].local = parts[0].local + 1j * local(imaginary)
        return parts[0]
    return parts[0] + 1j * imaginary


proc_grid = grid
