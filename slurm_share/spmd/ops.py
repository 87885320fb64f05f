"""Operations that combine two values in reduce and scan."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import UsageError


class Op:
    """A named reduction. A call combines two values: arrays element by element, objects with Python's operator."""

    def __init__(self, name: str, combine: Callable[[Any, Any], Any], ufunc: np.ufunc) -> None:
        self.name, self.ufunc = name, ufunc
        self._combine = combine

    def __call__(self, left: Any, right: Any) -> Any:
        if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
            return self.ufunc(left, right)
        return self._combine(left, right)

    def __repr__(self) -> str:
        return self.name


SUM = Op("SUM", operator.add, np.add)
PROD = Op("PROD", operator.mul, np.multiply)
MIN = Op("MIN", min, np.minimum)
MAX = Op("MAX", max, np.maximum)


def checked(op: Any) -> tuple[str, Callable[[Any, Any], Any]]:
    """Return the name of an operation and the function of two values. Raises UsageError if it is no operation."""
    if isinstance(op, Op):
        return op.name, op
    if not callable(op):
        raise UsageError(f"{op!r} is not a reduction: use SUM, PROD, MIN, MAX or a function of two values")
    return getattr(op, "__name__", type(op).__name__), op
