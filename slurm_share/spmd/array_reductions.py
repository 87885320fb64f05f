"""Sums, means, extremes of distributed arrays.

Every rank reduces what it owns, all ranks exchange these partial results, and each combines them in the order of the
process grid: the same bits on all ranks, and in every run with the same map. The result is a scalar or a NumPy array
on all ranks, also where one axis is reduced: it is small beside the array, and `X.local / norm[X.indices(0)]` needs it
whole.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import host
from .errors import UsageError
from .parts import Spread
from .rules.plans import blocks
from .rules.positions import put, take

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def reduce_parts(
    array: Spread, name: str, agreed: np.dtype[Any], axis: Any, dtype: DTypeLike | None, keepdims: bool
) -> Any:
    """Return the reduction `name` of the whole array along `axis` (None: all; a number or several), on all ranks.

    `agreed` is the dtype that all ranks' parts have in common; `dtype` that of the result, None as NumPy chooses.
    Collective. Raises what NumPy raises for such an axis, dtype or empty array.
    """
    axes = reduced_axes(axis, array.ndim)
    if name == "mean":
        return _mean(array, agreed, axes, dtype, keepdims)
    return _reduced(array, _UFUNCS[name], agreed, axes, dtype, keepdims)


def reduced_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes as numbers from 0, each once. Raises UsageError, numpy.exceptions.AxisError."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    numbers = [operator.index(one) for one in given]
    for number in numbers:
        if not -ndim <= number < ndim:
            raise np.exceptions.AxisError(number, ndim)
    axes = tuple(sorted(number % ndim for number in numbers))
    if len(set(axes)) != len(axes):
        raise UsageError(f"axis {axis} names a dimension twice")
    return axes


def _mean(array: Spread, agreed: np.dtype[Any], axes: Sequence[int], dtype: DTypeLike | None, keepdims: bool) -> Any:
    """Return the mean with NumPy's dtypes: float64 of integers; float16 is summed in float32."""
    result = np.dtype(dtype) if dtype is not None else np.dtype(np.float64) if agreed.kind in "iub" else agreed
    within = np.dtype(np.float32) if result == np.float16 else result
    total = _reduced(array, np.add, agreed, axes, within, keepdims)
    count = int(np.prod([array.shape[one] for one in axes], dtype=np.int64))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.true_divide(total, count).astype(result)


def _reduced(
    array: Spread, ufunc: np.ufunc, agreed: np.dtype[Any], axes: Sequence[int], dtype: DTypeLike | None, keepdims: bool
) -> Any:
    options: Any = {} if dtype is None else {"dtype": dtype}
    # NumPy's own answer for one element: which dtype comes out, and the TypeError that all ranks must raise.
    kind = ufunc.reduce(np.ones((1,) * array.ndim, agreed), axis=tuple(axes), **options).dtype
    full = tuple(1 if place in axes else length for place, length in enumerate(array.shape))
    count = int(np.prod([array.shape[one] for one in axes], dtype=np.int64))
    if ufunc.identity is None and count == 0 and 0 not in full:
        raise ValueError(f"zero-size array to reduction operation {ufunc.__name__} which has no identity")
    mine = host.of(array.owned)
    part = None
    if mine.size:
        part = ufunc.reduce(mine.astype(agreed, copy=False), axis=tuple(axes), keepdims=True, **options)
    whole = _combined(array, ufunc, array.comm.allgather(part), full, kind, set(axes))
    shape = full if keepdims else tuple(length for place, length in enumerate(full) if place not in axes)
    return whole.reshape(shape)[()]


def _combined(
    array: Spread, ufunc: np.ufunc, parts: Sequence[Any], full: tuple[int, ...], kind: np.dtype[Any], axes: set[int]
) -> NDArray[Any]:
    """Return the partial results put in their places, and combined where several ranks share one."""
    whole = np.full(full, 0 if ufunc.identity is None else ufunc.identity, kind)
    reached = np.zeros(full, bool)
    for block in blocks(array.shape, array.map):
        where = [slice(0, 1, 1) if axis in axes else one for axis, one in enumerate(block.axes)]
        part = parts[block.rank]
        known, old = np.empty(part.shape, kind), np.empty(part.shape, bool)
        take(whole, where, known)
        take(reached, where, old)
        put(whole, where, np.where(old, ufunc(known, part), part))
        put(reached, where, np.ones(part.shape, bool))
    return whole
