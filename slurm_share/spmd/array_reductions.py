"""Reductions of distributed arrays: sum, mean, extremes and others.

Each rank reduces the part that it owns, all ranks exchange the partial results, and each combines them in the order of
the process grid. So the result has the same bits on all ranks, and in every run with the same map. It is a scalar or a
NumPy array on all ranks, also if only one axis is reduced: it is much smaller than the array, and expressions such as
`X.local / norm[X.indices(0)]` need all of it.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import host
from .agreement import Distributed
from .errors import RepeatedAxis
from .rules.plans import blocks
from .rules.positions import put, take

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "any": np.logical_or,
    "all": np.logical_and,
}
"""The function that combines the ranks' partial results."""

_OF_VALUES = (ArithmeticError, ValueError, Warning)
"""Errors that one rank's values may raise: of numpy.errstate, of warning filters, of strings that are no numbers."""


def reduce_parts(
    array: Distributed, name: str, agreed: np.dtype[Any], axis: Any, dtype: DTypeLike | None, keepdims: bool
) -> Any:
    """Return the reduction `name` of the array along `axis` (a number, several, or None: all) on all ranks.

    `agreed`: common dtype of all parts; `dtype`: dtype of the result, None: NumPy's choice. Collective. Raises on all
    ranks what NumPy raises for an invalid axis or dtype, and for an empty array.
    """
    axes = reduced_axes(axis, array.ndim)
    options: dict[str, Any] = {} if dtype is None else {"dtype": np.dtype(dtype)}
    if 0 in array.shape:
        return getattr(np.empty(array.shape, agreed), name)(axis=axes, keepdims=keepdims, **options)
    # NumPy's result for one element: the dtype of the result, or the TypeError that all ranks must raise.
    result = getattr(np.ones((1,) * array.ndim, agreed), name)(axis=axes, **options).dtype
    within = _of_mean(agreed, options) if name == "mean" else options
    reduction = "sum" if name == "mean" else name
    kind = getattr(np.ones((1,) * array.ndim, agreed), reduction)(axis=axes, **within).dtype
    total = _combined(array, name, kind, axes, _part(array, reduction, agreed, axes, within))
    if name == "mean":
        count = math.prod(array.shape[one] for one in axes)
        total = np.true_divide(total, count, out=total, casting="unsafe").astype(result, copy=False)
    if not keepdims:
        total = total.reshape([length for place, length in enumerate(total.shape) if place not in axes])
    return total[()]


def reduced_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes, counted from 0 and sorted. Raises ValueError, numpy.exceptions.AxisError, as NumPy does."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    numbers = [operator.index(one) for one in given]
    for number in numbers:
        if not -ndim <= number < ndim:
            raise np.exceptions.AxisError(number, ndim)
    axes = tuple(sorted(number % ndim for number in numbers))
    if len(set(axes)) != len(axes):
        raise RepeatedAxis(f"axis {axis} names a dimension twice")
    return axes


def _of_mean(agreed: np.dtype[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the sum from which NumPy makes a mean; its integers include time differences."""
    if options or (agreed.kind not in "bium" and agreed.type is not np.float16):
        return options
    return {"dtype": np.dtype(np.float32 if agreed.kind == "f" else np.float64)}


def _part(
    array: Distributed, reduction: str, agreed: np.dtype[Any], axes: tuple[int, ...], options: dict[str, Any]
) -> NDArray[Any] | Exception | None:
    """Return this rank's partial result, with all axes; an error of its values; None: it owns no elements."""
    mine = host.to_host(array.owned)
    if not mine.size:
        return None
    try:
        part: NDArray[Any] = getattr(mine.astype(agreed, copy=False), reduction)(axis=axes, keepdims=True, **options)
    except _OF_VALUES as error:
        return error
    return part


def _combined(array: Distributed, name: str, kind: np.dtype[Any], axes: tuple[int, ...], part: Any) -> NDArray[Any]:
    """Return the whole result of dtype `kind`, with all axes, from the partial results of all ranks. Collective.

    Raises the error of the first rank that had one, on all ranks.
    """
    parts = array.comm.allgather(part)
    for one in parts:
        if isinstance(one, _OF_VALUES):
            raise one
    full = tuple(1 if place in axes else length for place, length in enumerate(array.shape))
    whole, reached = np.zeros(full, kind), np.zeros(full, bool)
    for block in blocks(array.shape, array.map):
        where = [slice(0, 1, 1) if axis in axes else one for axis, one in enumerate(block.axes)]
        other = parts[block.rank]
        known, old = np.empty(other.shape, kind), np.empty(other.shape, bool)
        take(whole, where, known)
        take(reached, where, old)
        put(whole, where, np.where(old, _UFUNCS[name](known, other), other))
        put(reached, where, np.ones(other.shape, bool))
    return whole
