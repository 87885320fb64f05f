"""Reductions of distributed arrays: sum, mean, extremes and others.

Each rank reduces the part that it owns, all ranks exchange the partial results, and each combines them in the order of
the process grid. So the result has the same bits on all ranks, and in every run with the same map. It is a scalar or a
NumPy array on all ranks, also if only one axis is reduced: it is much smaller than the array, and expressions such as
`X.local / norm[X.indices(0)]` need all of it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from . import host
from .agreement import Distributed
from .errors import UsageError
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
    array: Distributed, name: str, agreed: np.dtype[Any], axis: Any, dtype: DTypeLike | None, keepdims: bool
) -> Any:
    """Return the reduction `name` of the array along `axis` (a number, several, or None: all) on all ranks.

    `agreed`: common dtype of all parts; `dtype`: dtype of the result, None: NumPy's choice. Collective. Raises the
    errors of NumPy for an invalid axis or dtype or an empty array.
    """
    axes = reduced_axes(axis, array.ndim)
    if name == "mean":
        return _mean(array, agreed, axes, dtype, keepdims)
    return _reduced(array, _UFUNCS[name], agreed, axes, dtype, keepdims)


def reduced_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes, counted from 0 and sorted. Raises UsageError, numpy.exceptions.AxisError."""
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


def _mean(
    array: Distributed, agreed: np.dtype[Any], axes: Sequence[int], dtype: DTypeLike | None, keepdims: bool
) -> Any:
    """Return the mean with NumPy's dtypes: float64 of integers; float16 is summed in float32."""
    result = np.dtype(dtype) if dtype is not None else np.dtype(np.float64) if agreed.kind in "iub" else agreed
    within = np.dtype(np.float32) if result == np.float16 else result
    total = _reduced(array, np.add, agreed, axes, within, keepdims)
    count = int(np.prod([array.shape[one] for one in axes], dtype=np.int64))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.true_divide(total, count).astype(result)


def _reduced(
    array: Distributed,
    ufunc: np.ufunc,
    agreed: np.dtype[Any],
    axes: Sequence[int],
    dtype: DTypeLike | None,
    keepdims: bool,
) -> Any:
    options: Any = {} if dtype is None else {"dtype": dtype}
    # NumPy's result for one element: the dtype of the result, or the TypeError that all ranks must raise.
    kind = ufunc.reduce(np.ones((1,) * array.ndim, agreed), axis=tuple(axes), **options).dtype
    full = tuple(1 if place in axes else length for place, length in enumerate(array.shape))
    count = int(np.prod([array.shape[one] for one in axes], dtype=np.int64))
    if ufunc.identity is None and count == 0 and 0 not in full:
        raise ValueError(f"zero-size array to reduction operation {ufunc.__name__} which has no identity")
    mine = host.to_host(array.owned)
    part = None
    if mine.size:
        part = ufunc.reduce(mine.astype(agreed, copy=False), axis=tuple(axes), keepdims=True, **options)
    parts = array.comm.allgather(part)
    whole = np.full(full, 0 if ufunc.identity is None else ufunc.identity, kind)
    reached = np.zeros(full, bool)
    for block in blocks(array.shape, array.map):
        where = [slice(0, 1, 1) if axis in axes else one for axis, one in enumerate(block.axes)]
        mine = parts[block.rank]
        known, old = np.empty(mine.shape, kind), np.empty(mine.shape, bool)
        take(whole, where, known)
        take(reached, where, old)
        put(whole, where, np.where(old, ufunc(known, mine), mine))
        put(reached, where, np.ones(mine.shape, bool))
    shape = full if keepdims else tuple(length for place, length in enumerate(full) if place not in axes)
    return whole.reshape(shape)[()]
