"""Copies of arrays in GPU memory to the host: CuPy, Numba, PyTorch, JAX, and others with DLPack.

No library is imported: one of them has made the array. Where CuPy or PyTorch is imported already, a copy goes to pinned
memory, which the GPU writes to directly; such memory is used again once nothing refers to the copy.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

PINNED_BYTES = 256 << 20
"""Limit of the pinned memory of a process. Further copies go to ordinary memory."""
PINNED_MIN = 64 << 10
"""Smaller copies gain nothing from pinned memory."""
_GPU_DEVICES = (2, 10, 13)
"""DLPack's numbers of memory that only a GPU reads: CUDA, ROCm, CUDA managed."""


class Pool:
    """Pinned memory of one library, in pieces whose sizes are powers of two."""

    def __init__(self, make: Callable[[int], NDArray[np.uint8]]) -> None:
        """`make`: return pinned memory of so many bytes."""
        self._make = make
        self._free: dict[int, deque[NDArray[np.uint8]]] = {}
        self.made_bytes = 0

    def lease(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Return an uninitialised array in pinned memory; None: there is no more. It comes back with its last view."""
        count = int(np.prod(shape, dtype=np.int64))
        size = 1 << (count * dtype.itemsize - 1).bit_length()
        free = self._free.setdefault(size, deque())
        try:
            memory = free.pop()
        except IndexError:
            if self.made_bytes + size > PINNED_BYTES:
                return None
            try:
                memory = self._make(size)
            except Exception:  # noqa: BLE001 - of the library; ordinary memory does as well
                return None
            self.made_bytes += size
        return np.asarray(_Lease(memory, free))[: count * dtype.itemsize].view(dtype).reshape(shape)


class _Lease:
    """Owner of leased memory: the base of all arrays in it."""

    def __init__(self, memory: NDArray[np.uint8], free: deque[NDArray[np.uint8]]) -> None:
        self._memory, self._free = memory, free
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)


_pools: dict[str, Pool] = {}


def is_on_gpu(value: Any) -> bool:
    """Return whether a value is an array in GPU memory, as its CUDA interface or its DLPack device says."""
    try:
        if hasattr(value, "__cuda_array_interface__"):
            return True
        device = getattr(value, "__dlpack_device__", None)
        return callable(device) and not isinstance(value, type) and device()[0] in _GPU_DEVICES
    except Exception:  # noqa: BLE001 - of the library: PyTorch refuses the interface of a tensor with a gradient
        return hasattr(type(value), "__cuda_array_interface__")


def to_host(value: Any) -> NDArray[Any]:
    """Return a NumPy copy of an array on a GPU, made by its own library. Raises TypeError."""
    if callable(getattr(value, "get", None)):  # CuPy
        return _from_cupy(value)
    if callable(getattr(value, "copy_to_host", None)):  # Numba
        return np.asarray(value.copy_to_host())
    detached = value.detach() if hasattr(value, "detach") else value
    if hasattr(detached, "cpu"):  # PyTorch
        return _from_torch(detached)
    if hasattr(detached, "__dlpack__"):
        for name, copy in (("cupy", _from_cupy), ("torch", _from_torch)):
            library = sys.modules.get(name)
            if hasattr(library, "from_dlpack"):
                return copy(library.from_dlpack(detached))  # type: ignore[union-attr]
        if hasattr(detached, "__array__"):  # JAX
            return np.array(detached)
    raise TypeError(
        f"{type(value).__name__} is in GPU memory and has no get(), copy_to_host() or cpu(), nor is CuPy or PyTorch "
        "imported, which read it by DLPack: copy it to the host first"
    )


def _from_cupy(value: Any) -> NDArray[Any]:
    target: NDArray[Any] | None = None
    if getattr(getattr(value, "flags", None), "c_contiguous", False):
        target = _leased("cupy", _cupy_memory, value.shape, value.dtype)
    if target is None:
        return np.asarray(value.get())
    value.get(out=target)
    return target


def _from_torch(value: Any) -> NDArray[Any]:
    torch = sys.modules.get("torch")
    kind = str(getattr(value, "dtype", "")).rpartition(".")[2]
    if torch is None or not hasattr(torch, "from_numpy") or not hasattr(np, kind):
        return np.asarray(value.cpu().numpy())
    target: NDArray[Any] | None = _leased("torch", _torch_memory, tuple(value.shape), np.dtype(getattr(np, kind)))
    if target is None:
        return np.asarray(value.cpu().numpy())
    torch.from_numpy(target).copy_(value)
    return target


def _leased(name: str, make: Callable[[int], Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return pinned memory of a library that is imported; None: none, or the array is too small for it."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not PINNED_MIN <= nbytes <= PINNED_BYTES or sys.modules.get(name) is None:
        return None
    return _pools.setdefault(name, Pool(make)).lease(shape, dtype)


def _cupy_memory(size: int) -> NDArray[np.uint8]:
    memory = sys.modules["cupy"].cuda.alloc_pinned_memory(size)
    return np.frombuffer(memory, np.uint8, size)


def _torch_memory(size: int) -> NDArray[np.uint8]:
    torch = sys.modules["torch"]
    made: NDArray[np.uint8] = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return made
