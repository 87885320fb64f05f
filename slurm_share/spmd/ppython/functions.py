"""pPython's functions on distributed arrays. Most take NumPy arrays and numbers too, so programs run with map=1."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import functions as base
from .. import host
from ..errors import UsageError
from ..rules.maps import Map
from .arrays import Dmat, on_host, zeros
from .arrays import mtimes as mtimes
from .dmap import Dmap
from .indices import grid


def local(d: Any) -> Any:
    """Return the local part of an array: that itself, not a copy. What is not distributed is returned as it is."""
    return d.local if isinstance(d, Dmat) else d


def put_local(x: Any, x_local: Any) -> Any:
    """Make `x_local` the local part of an array, and return the array; a number fills a new local part.

    The elements keep the type that `x_local` has. Raises UsageError where the shapes differ by more than dimensions of
    length 1. A NumPy array `x` is replaced: `x_local` is returned, or `x` filled with a number.
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
    """Return what a number asks of the type of the elements: a complex one needs complex elements, 0 fits all."""
    dtype = np.asarray(number).dtype
    if isinstance(number, np.generic | np.ndarray) or dtype.kind == "c":
        return dtype
    return np.float16 if dtype.kind == "f" else np.bool_


def agg(d: Any, leader: int | None = None) -> Any:
    """Return the whole array on rank `leader` (None: 0), the local part elsewhere; collective."""
    if not isinstance(d, Dmat):
        return d
    whole = d.whole().gather(_leader(leader))
    return d.local if whole is None else whole


oagg = agg
agg_by_topology = agg


def _leader(leader: int | None) -> int:
    if leader is not None:
        return int(leader)
    return int(getattr(sys.modules.get("pPython"), "leader", 0) or 0)


def agg_all(d: Any, leader: int | None = None) -> Any:
    """Return the whole array on every rank; collective."""
    return d.whole().gather_all() if isinstance(d, Dmat) else d


def remap(x: Any, new_map: Any) -> Any:
    """Return the same elements with another map; collective. `new_map` 1: a NumPy array on every rank."""
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
    """Return the same elements on the transposed grid of processes; collective. An array that is not distributed: B.

    An array that was spread by rows is spread by columns then, and the other way round.
    """
    if not isinstance(B, Dmat):
        return B
    if B.dim != 2:
        raise UsageError(f"transpose_grid takes arrays of two dimensions, not {B.dim}")
    rows, columns = B.map.grid
    spec = B.map
    return remap(B, Dmap([columns, rows], spec["dist_spec"], spec.ranks, spec["overlap"], spec.order))


def synch(d: Any) -> Any:
    """Fill each rank's overlap with what its neighbours own, and return the array; collective."""
    if isinstance(d, Dmat):
        whole = d.whole()
        whole.halo()
        d.local = whole.local
    return d


def fft(x: Any, N: Any = None, axis: int | None = None) -> Any:
    """Return the discrete Fourier transform along an axis; `N` [] or None: of the axis's whole length.

    Without an axis a NumPy array is transformed along its last one, a distributed array along the first. A distributed
    array that is split along the axis gets another map first; it changes otherwise.
    """
    length = None if N is None or np.ndim(N) else int(N)
    if not isinstance(x, Dmat):
        return np.fft.fft(x, length, -1 if axis is None else int(axis))
    along = x.map.check_axis(0 if axis is None else int(axis))
    if x.map.grid[along] > 1:
        x = remap(x, _whole_along(x.map, along))
    transformed = np.fft.fft(on_host(x.local), x.shape[along] if length is None else length, along)
    x.local = host.like(x.local, transformed)
    if length is not None:
        x.shape[along] = length
    return x


def _whole_along(map: Dmap, axis: int) -> Dmap:
    """Return a map that does not split an axis: all ranks are along the last one, or the first."""
    sizes = [1] * len(map.grid)
    sizes[0 if axis == len(sizes) - 1 else -1] = math.prod(map.grid)
    return Dmap(sizes, map["dist_spec"], map.placed.reshape(-1, order="F").tolist())


def find(x: Any) -> list[Any]:
    """Return the indices of non-zero elements, a list for each dimension, on every rank; collective."""
    if not isinstance(x, Dmat):
        return [indices if len(indices) else [] for indices in np.nonzero(x)]
    parts = dict(zip(x.map.ranks, base.nonzero_parts(x.whole()), strict=True))
    order = x.map.placed.reshape(-1, order="F").tolist()
    return [list(np.concatenate([parts[rank][axis] for rank in order])) for axis in range(x.dim)]


def summation(sum: Any, *arrays: Any) -> Any:
    """Return `sum` with the element-wise sum of arrays, which are given one by one or in a dictionary or list."""
    parts = arrays[0] if len(arrays) == 1 and not isinstance(arrays[0], Dmat | np.ndarray) else arrays
    parts = list(parts.values()) if isinstance(parts, Mapping) else list(parts)
    if not parts:
        raise UsageError("summation needs arrays to add")
    if isinstance(sum, Dmat):
        parts = [part if part.map == sum.map else remap(part, sum.map) for part in parts]
    while len(parts) > 1:
        pairs = [parts[at] + parts[at + 1] for at in range(0, len(parts) - 1, 2)]
        parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
    sum[...] = parts[0]
    return sum


def submat(a: Dmat, s: Any) -> Any:
    """Return the elements that MATLAB's subscript structure selects, on every rank; collective.

    `s["subs"]`: for each dimension ":" or what NumPy takes.
    """
    subs = (s[0] if isinstance(s, list) else s)["subs"]
    each = [subs[axis] for axis in range(a.dim)]
    index = tuple(slice(None) if isinstance(one, str) else one for one in each)
    return a if all(isinstance(one, slice) and one == slice(None) for one in index) else a[index]


def display(m: Any) -> None:
    """Print a map, or the name and the elements of a distributed array; collective then."""
    if isinstance(m, Dmap):
        m.show()
    elif isinstance(m, Dmat):
        names = [name for name, value in sys._getframe(1).f_locals.items() if value is m]
        sys.stdout.write(f"{names[0] if names else 'ans'} = \n  Distributed matrix object\n{agg(m)}\n")


def size(d: Any, dims: Any = None) -> list[int]:
    """Return the length of each of the given dimensions (None: all). A vector of NumPy is a row, a number 1 x 1."""
    shape = [int(length) for length in d.shape] if hasattr(d, "shape") else list(np.shape(d))
    if dims is None:
        return [1] * (2 - len(shape)) + shape if len(shape) < 2 else shape
    if not shape:
        shape = [1, 1]
    return [shape[int(axis)] for axis in np.asarray(dims).reshape(-1)]


def ndims(a: Any) -> int:
    """Return how many dimensions there are, at least 2."""
    return len(size(a))


def unfun(fhandle: Callable[[Any], Any], x: Any) -> Any:
    """Return what a function makes of an array; a distributed array changes."""
    if isinstance(x, Dmat):
        x.local = fhandle(x.local)
        return x
    return fhandle(x)


def sin(x: Any) -> Any:
    """Return the sine of each element; a distributed array changes."""
    return unfun(np.sin, x)


def cos(x: Any) -> Any:
    """Return the cosine of each element; a distributed array changes."""
    return unfun(np.cos, x)


def _as(dtype: Any) -> Callable[[Any], Any]:
    return lambda part: part.astype(dtype) if hasattr(part, "astype") else dtype(part)


def double(d: Any) -> Any:
    """Return the elements as 64-bit floating point numbers; a distributed array changes."""
    return unfun(_as(np.float64), d)


def uint8(d: Any) -> Any:
    """Return the elements as unsigned integers of 8 bits; a distributed array changes."""
    return unfun(_as(np.uint8), d)


def uint16(d: Any) -> Any:
    """Return the elements as unsigned integers of 16 bits; a distributed array changes."""
    return unfun(_as(np.uint16), d)


def uint32(d: Any) -> Any:
    """Return the elements as unsigned integers of 32 bits; a distributed array changes."""
    return unfun(_as(np.uint32), d)


def uint64(d: Any) -> Any:
    """Return the elements as unsigned integers of 64 bits; a distributed array changes."""
    return unfun(_as(np.uint64), d)


def dcomplex(*parts: Any) -> Any:
    """Return complex elements of a real part, and an imaginary part if given; a distributed real part changes."""
    imaginary: Any = parts[1] if len(parts) > 1 else 0.0
    if isinstance(parts[0], Dmat):
        parts[0].local = parts[0].local + 1j * local(imaginary)
        return parts[0]
    return parts[0] + 1j * imaginary


proc_grid = grid
