"""Local parts that lie in a GPU's memory (CuPy): recognised without importing CuPy, moved through host memory."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_array(value: Any) -> bool:
    """Return whether the value is an array of NumPy or of a GPU library."""
    return isinstance(value, np.ndarray) or is_on_gpu(value)


def is_on_gpu(value: Any) -> bool:
    """Return whether the value is an array in a GPU's memory that can be copied to the host with get()."""
    return hasattr(value, "__cuda_array_interface__") and hasattr(value, "get")


def of(value: Any) -> Any:
    """Return the value; an array of a GPU as a NumPy array."""
    return value.get() if is_on_gpu(value) else value


def like(model: Any, value: Any) -> Any:
    """Return the value; where `model` lies in a GPU's memory, as an array of the same library."""
    return _library(model).asarray(value) if is_on_gpu(model) else value


def empty_like(model: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array whose elements are not set, in the memory where `model` lies."""
    library: Any = _library(model) if is_on_gpu(model) else np
    made: NDArray[Any] = library.empty(tuple(shape), dtype)
    return made


def _library(value: Any) -> Any:
    return importlib.import_module(type(value).__module__.partition(".")[0])
