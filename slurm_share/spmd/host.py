"""Arrays in GPU memory (CuPy): recognised without importing CuPy, copied through host memory."""

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
    """Return whether the value is an array in GPU memory that get() copies to the host."""
    return hasattr(value, "__cuda_array_interface__") and hasattr(value, "get")


def to_host(value: Any) -> Any:
    """Return the value, or a NumPy copy of it if it is in GPU memory."""
    if not is_on_gpu(value):
        return value
    from . import gpu_copies

    return gpu_copies.to_host(value)


def to_memory_of(model: Any, value: Any) -> Any:
    """Return the value, or a copy of it in GPU memory if `model` is there, made by the library of `model`."""
    return _library(model).asarray(value) if is_on_gpu(model) else value


def empty_like(model: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an uninitialised array in the same memory, host or GPU, as `model`."""
    library: Any = _library(model) if is_on_gpu(model) else np
    made: NDArray[Any] = library.empty(tuple(shape), dtype)
    return made


def _library(value: Any) -> Any:
    return importlib.import_module(type(value).__module__.partition(".")[0])
