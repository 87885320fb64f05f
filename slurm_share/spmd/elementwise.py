"""Element-wise NumPy functions on the local parts of distributed arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import MapMismatch, UsageError


def apply_ufunc(kind: type, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a ufunc to arrays of type `kind` (Dmat) and numbers. Sends nothing.

    Raises MapMismatch if maps or shapes differ, UsageError for plain arrays among the arguments.
    """
    if method != "__call__":
        raise UsageError(
            f"numpy.{ufunc.__name__}.{method} of a distributed array is not offered: use its own sum, prod, min, max, "
            "any, all, or apply it to `local`"
        )
    if ufunc.signature is not None:
        raise UsageError(f"numpy.{ufunc.__name__} does not work element by element: apply it to `local`")
    outputs = kwargs.pop("out", ())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    first: Any = next(one for one in (*inputs, *outputs) if isinstance(one, kind))
    arguments = [_part(first, one, f"numpy.{ufunc.__name__}") for one in inputs]
    if "where" in kwargs:
        kwargs["where"] = _part(first, kwargs["where"], "where=")
    if outputs:
        if not all(one is None or isinstance(one, kind) for one in outputs):
            raise UsageError("the result of distributed arrays is a distributed array: give one as `out`, or X.local")
        kwargs["out"] = tuple(None if one is None else _part(first, one, "out=") for one in outputs)
    results = ufunc(*arguments, **kwargs)
    given = outputs or (None,) * ufunc.nout
    several = results if isinstance(results, tuple) else (results,)
    wrapped = tuple(first.like(one) if out is None else out for one, out in zip(several, given, strict=True))
    return wrapped if isinstance(results, tuple) else wrapped[0]


def _part(first: Any, other: Any, what: str) -> Any:
    """Return the local part of a distributed array with the map of the first, or a number unchanged."""
    if isinstance(other, type(first)):
        if other is not first and (other.shape != first.shape or other.map != first.map):
            raise MapMismatch(
                f"{what} needs arrays of the same shape and map, and has {first.shape} by {first.map!r} and "
                f"{other.shape} by {other.map!r}: "
                + (
                    "redistribute first: b.redistribute(a.map)"
                    if other.shape == first.shape
                    else "shapes must be equal"
                )
            )
        return other.local
    if np.ndim(other):
        raise UsageError(
            f"{what} of a distributed array and a plain one of shape {np.shape(other)}: use X.local for this rank's "
            "part, or from_local() to make a distributed array of the ranks' parts"
        )
    return other
