"""Conversion of objects to bytes and back: arrays as they lie in memory, other objects as pickle protocol 5.

The `meta` of an ARRAY body holds dtype, order and shape; that of a PICKLE5 body the lengths of pickle and buffers.

An array is pickled only if its dtype contains Python objects. Fortran order is kept. An array that is not contiguous is
copied. A subclass of ndarray is pickled, so that the receiver gets the same class.

An array in GPU memory (CuPy, Numba, PyTorch, JAX: `gpu_copies`) goes through host memory, and the receiver gets
a NumPy array, because the transport does not know on which GPU it is wanted. Call `cupy.asarray` there.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .envelope import ARRAY, PICKLE5, RAW
from .errors import TransportError
from .names import META_BYTES

_LENGTHS = struct.Struct("<Q")
_MOST_BUFFERS = META_BYTES // _LENGTHS.size - 3  # broadcasts prepend up to 16 bytes to the meta
_Array = NDArray[Any]


def encode(value: Any) -> tuple[int, bytes, Sequence[memoryview]]:
    """Return form, meta and buffers (contiguous bytes) of a value. Contiguous arrays are not copied.

    The buffers are the memory of the value: send them before it changes. `bytes` has the form RAW and no meta.
    """
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return _encode_array(value)
    if type(value) is bytes:
        return RAW, b"", (memoryview(value),)
    if _is_on_gpu(value):
        return _encode_array(_to_host(value))
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    if not buffers:
        return PICKLE5, b"", (memoryview(data),)
    try:
        views = [buffer.raw() for buffer in buffers]
    except BufferError:  # a buffer that is not contiguous can only be part of the pickle
        views = None
    if views is None or len(views) > _MOST_BUFFERS:
        return PICKLE5, b"", (memoryview(pickle.dumps(value, protocol=5)),)
    return PICKLE5, lengths_of((data, *views)), (memoryview(data), *views)


def lengths_of(parts: Sequence[bytes | memoryview]) -> bytes:
    """Return the meta of a pickle and its buffers, which are flat bytes."""
    return b"".join([_LENGTHS.pack(len(part)) for part in parts])


def decode(form: int, meta: bytes, body: memoryview) -> Any:
    """Return the value of a body. An array shares the memory of `body` and is writable.

    Raises TransportError if meta and body do not match.
    """
    if form == ARRAY:
        return _decode_array(meta, body)
    if form == RAW:
        return bytes(body)
    if not meta:
        return pickle.loads(body)
    if len(meta) % _LENGTHS.size:
        raise TransportError("a pickle whose lengths cannot be read")
    lengths = [length for (length,) in _LENGTHS.iter_unpack(meta)]
    if sum(lengths) != body.nbytes:
        raise TransportError(f"a pickle of {sum(lengths)} bytes in a body of {body.nbytes}")
    parts, at = [], 0
    for length in lengths:
        parts.append(body[at : at + length])
        at += length
    return pickle.loads(parts[0], buffers=parts[1:])


def array_of(meta: bytes) -> tuple[np.dtype[Any], tuple[int, ...], str]:
    """Return dtype, shape and order ("C" or "F") that an ARRAY body's meta names. Raises TransportError."""
    try:
        order = meta[:1].decode()
        dimensions = meta[1]
        shape = struct.unpack_from(f"<{dimensions}q", meta, 2)
        dtype = _dtype_of(meta[2 + 8 * dimensions :])
    except (struct.error, LookupError, ValueError, TypeError, SyntaxError) as error:
        raise TransportError(f"an array whose dtype and shape cannot be read: {meta[:60]!r}") from error
    if order not in ("C", "F") or dtype.hasobject or min(shape, default=0) < 0:
        raise TransportError(f"an array whose dtype and shape cannot be: {meta[:60]!r}")
    return dtype, shape, order


def _encode_array(array: _Array) -> tuple[int, bytes, Sequence[memoryview]]:
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    flat = array.T if order == "F" else np.ascontiguousarray(array)
    meta = order.encode() + bytes((array.ndim,)) + struct.pack(f"<{array.ndim}q", *array.shape)
    # As uint8, because memoryview cannot cast the formats of dates and structures.
    data = flat.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")
    return ARRAY, meta + _bytes_of(array.dtype), (data,)


def _decode_array(meta: bytes, body: memoryview) -> _Array:
    dtype, shape, order = array_of(meta)
    count = 1
    for length in shape:
        count *= length
    if count * dtype.itemsize != body.nbytes:
        raise TransportError(f"an array {dtype}{list(shape)} in a body of {body.nbytes} bytes")
    if not body.nbytes:
        return np.empty(shape, dtype, order="F" if order == "F" else "C")
    flat: _Array = np.frombuffer(body, np.uint8).view(dtype)
    return flat.reshape(shape[::-1]).T if order == "F" else flat.reshape(shape)


def _bytes_of(dtype: np.dtype[Any]) -> bytes:
    """Return a dtype as bytes: its type string, or a pickle if the string does not say all, as for structures."""
    plain = dtype.str
    if dtype.names is None and dtype.subdtype is None and np.dtype(plain) == dtype:
        return b"s" + plain.encode()
    return b"p" + pickle.dumps(dtype, protocol=5)


def _dtype_of(data: bytes) -> np.dtype[Any]:
    if data[:1] == b"s":
        return np.dtype(data[1:].decode())
    if data[:1] == b"p":
        try:
            made = pickle.loads(data[1:])
        except Exception as error:
            raise ValueError("no dtype") from error
        if isinstance(made, np.dtype):
            return made
    raise ValueError("no dtype")


def _is_on_gpu(value: Any) -> bool:
    """Return whether a value is an array in GPU memory. Most are not, and cost two look-ups."""
    if isinstance(value, np.ndarray | np.generic):
        return False
    if not hasattr(type(value), "__dlpack_device__") and not _has_cuda_interface(value):
        return False
    from . import gpu_copies

    return gpu_copies.is_on_gpu(value)


def _has_cuda_interface(value: Any) -> bool:
    try:
        return hasattr(value, "__cuda_array_interface__")
    except RuntimeError:  # PyTorch, for a GPU tensor that requires a gradient
        return True


def _to_host(value: Any) -> _Array:
    from . import gpu_copies

    return gpu_copies.to_host(value)
