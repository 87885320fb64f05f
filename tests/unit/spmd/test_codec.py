"""Conversion of objects to bytes and back."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import numpy as np
import pytest

from slurm_share.spmd import codec
from slurm_share.spmd.envelope import ARRAY, PICKLE5, RAW
from slurm_share.spmd.errors import TransportError


def sent(value: Any) -> Any:
    """Return the value as a receiver gets it, in its own memory."""
    form, meta, buffers = codec.encode(value)
    return codec.decode(form, meta, memoryview(bytearray(b"".join(buffers))))


STRUCTURED = np.dtype([("a", "<i4"), ("b", [("x", ">f8"), ("y", "S3")]), ("c", "u1", (2,))], align=True)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24.0).reshape(2, 3, 4),
        np.arange(6, dtype=np.complex64),
        np.array(True),
        np.array(3.5, dtype=">f8"),
        np.zeros((3, 0, 2)),
        np.zeros(0),
        np.zeros(3, dtype=STRUCTURED),
        np.array(["ab", "c"]),
        np.array([b"ab", b"c"]),
        np.array(["2020-01-01", "NaT"], dtype="M8[ns]"),
        np.arange(4, dtype=np.float16),
        np.arange(10)[::-1],
        np.arange(20).reshape(4, 5)[1:3, ::2],
        np.broadcast_to(np.arange(3), (4, 3)),
        np.arange(3, dtype=np.longdouble),
        np.empty(2, dtype="V7"),
    ],
    ids=lambda array: f"{array.dtype.kind}{array.shape}",
)
def test_an_array_comes_with_its_dtype_and_shape(array: np.ndarray) -> None:
    form, _meta, _buffers = codec.encode(array)
    assert form == ARRAY
    got = sent(array)
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert got.tobytes() == array.tobytes()
    assert got.flags.writeable


def test_a_contiguous_array_is_sent_from_its_own_memory() -> None:
    for array in (np.arange(1000.0).reshape(10, 100), np.asfortranarray(np.arange(1000.0).reshape(10, 100))):
        _form, _meta, (buffer,) = codec.encode(array)
        assert np.shares_memory(np.frombuffer(buffer, np.uint8), array)


def test_fortran_order_is_kept() -> None:
    array = np.asfortranarray(np.arange(24).reshape(2, 3, 4))
    got = sent(array)
    assert got.flags.f_contiguous
    assert not got.flags.c_contiguous
    assert np.array_equal(got, array)


def test_an_array_lies_in_the_body() -> None:
    form, meta, buffers = codec.encode(np.arange(100))
    body = memoryview(bytearray(b"".join(buffers)))
    assert np.shares_memory(codec.decode(form, meta, body), np.frombuffer(body, np.uint8))


def test_an_array_of_objects_and_a_subclass_go_as_pickles() -> None:
    for value in (np.array([1, "x", None], dtype=object), np.ma.masked_array([1, 2], [True, False])):
        assert codec.encode(value)[0] == PICKLE5
        got = sent(value)
        assert type(got) is type(value)
        assert list(got) == list(value)


def test_bytes_go_as_they_are() -> None:
    assert codec.encode(b"abc")[:2] == (RAW, b"")
    assert sent(b"abc") == b"abc"
    assert type(sent(b"")) is bytes


def test_other_values_are_pickled_and_their_arrays_are_not_copied() -> None:
    value = {"x": np.arange(1000.0), "y": [np.arange(10), datetime.date(2020, 1, 1)], "z": bytearray(b"abc")}
    form, meta, buffers = codec.encode(value)
    assert form == PICKLE5
    assert meta
    assert any(np.shares_memory(np.frombuffer(one, np.uint8), value["x"]) for one in buffers)
    got = sent(value)
    assert np.array_equal(got["x"], value["x"])
    assert got["x"].flags.writeable
    assert got["y"][1] == value["y"][1]
    assert got["z"] == value["z"]


def test_parts_that_are_not_contiguous_and_very_many_parts_still_come() -> None:
    value = [np.arange(20)[::2], np.arange(20).reshape(4, 5).T]
    assert all(np.array_equal(a, b) for a, b in zip(sent(value), value, strict=True))
    many = [pickle.PickleBuffer(bytearray([n % 256])) for n in range(200_000)]
    _form, meta, _buffers = codec.encode(many)
    assert len(meta) <= 1 << 20
    assert [bytes(one) for one in sent(many)[:300]] == [bytes([n % 256]) for n in range(300)]


class OnGpu:
    """Stand-in for arrays of CuPy and PyTorch."""

    def __init__(self, values: Any, way: str) -> None:
        self._values = np.asarray(values)
        self.__cuda_array_interface__ = {"shape": self._values.shape, "data": (0, False), "version": 3}
        if way:
            setattr(self, way, lambda: self._values if way == "get" else self)

    def numpy(self) -> np.ndarray:
        return self._values

    def __reduce__(self) -> Any:
        raise AssertionError("an array on a GPU is not pickled")


@pytest.mark.parametrize("way", ["get", "cpu"])
def test_an_array_on_a_gpu_arrives_in_host_memory(way: str) -> None:
    got = sent(OnGpu([1.0, 2.0], way))
    assert type(got) is np.ndarray
    assert list(got) == [1.0, 2.0]


def test_an_array_on_a_gpu_that_cannot_be_copied_is_refused_with_a_sentence() -> None:
    with pytest.raises(TypeError, match="OnGpu is in GPU memory"):
        codec.encode(OnGpu([1.0], ""))


@pytest.mark.parametrize(
    ("form", "meta", "size"),
    [
        (ARRAY, b"", 8),
        (ARRAY, b"C\x01", 8),
        (ARRAY, b"X" + codec.encode(np.zeros(1))[1][1:], 8),
        (ARRAY, codec.encode(np.zeros(2))[1], 8),
        (ARRAY, b"C\x01" + (-1).to_bytes(8, "little", signed=True) + b"s<f8", 8),
        (ARRAY, b"C\x01" + (1).to_bytes(8, "little") + b"sO", 8),
        (ARRAY, b"C\x01" + (1).to_bytes(8, "little") + b"snothing", 8),
        (ARRAY, b"C\x01" + (1).to_bytes(8, "little") + b"p" + pickle.dumps(3), 8),
        (PICKLE5, b"123", 8),
        (PICKLE5, (9).to_bytes(8, "little"), 8),
    ],
)
def test_a_meta_that_does_not_fit_is_an_error_of_the_transport(form: int, meta: bytes, size: int) -> None:
    with pytest.raises(TransportError):
        codec.decode(form, meta, memoryview(bytearray(size)))
