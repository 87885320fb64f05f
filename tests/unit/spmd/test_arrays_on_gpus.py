"""Local parts in GPU memory, with a stand-in for CuPy: they are copied through host memory and stay on the GPU."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from arrays import whole_array
from in_threads import run_ranks

from slurm_share.spmd import codec, gpu_copies
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.dmat import Dmat
from slurm_share.spmd.rules.maps import Map

COLUMNS = Map((1, 2))


class FakeGpuArray:
    """Array that can only be read by a copy to the host, as in CuPy."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)
        self.__cuda_array_interface__ = dict(self.values.__array_interface__)

    def get(self) -> Any:
        return self.values.copy()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __getitem__(self, key: Any) -> FakeGpuArray:
        return FakeGpuArray(self.values[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        self.values[key] = value.values if isinstance(value, FakeGpuArray) else value

    def astype(self, dtype: Any, copy: bool = True) -> FakeGpuArray:
        return FakeGpuArray(self.values.astype(dtype))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> FakeGpuArray:
        return FakeGpuArray(ufunc(*(one.values if isinstance(one, FakeGpuArray) else one for one in inputs)))

    dtype = property(lambda self: self.values.dtype)
    shape = property(lambda self: self.values.shape)
    ndim = property(lambda self: self.values.ndim)
    size = property(lambda self: self.values.size)


def asarray(values: Any) -> FakeGpuArray:
    """Stand-in for cupy.asarray: `host` looks for it in the module of the class."""
    return FakeGpuArray(values)


def empty(shape: Any, dtype: Any) -> FakeGpuArray:
    """Stand-in for cupy.empty, found in the same way."""
    return FakeGpuArray(np.zeros(shape, dtype))


def test_parts_in_a_gpus_memory_go_through_the_host_and_stay_there() -> None:
    whole = whole_array((6, 5), "f8")
    map = Map((2, 1), "b", None, (1, 0))

    def program(comm: Comm) -> None:
        local = FakeGpuArray(whole[np.ix_(*map.stored(whole.shape, comm.rank))])
        array = Dmat((6, 5), map, local, comm)  # type: ignore[arg-type]
        there = array.redistribute(COLUMNS)
        assert isinstance(there.local, FakeGpuArray)
        np.testing.assert_array_equal(there.local.get(), whole[:, there.indices(1)])
        np.testing.assert_array_equal(array.gather_all(), whole)
        np.testing.assert_array_equal(array[1:3, ::2], whole[1:3, ::2])
        assert array.sum() == whole.sum()
        more = array + 1
        assert isinstance(more.local, FakeGpuArray)
        np.testing.assert_array_equal(more.gather_all(), whole + 1)
        more.local = 3
        assert isinstance(more.local, FakeGpuArray)
        more[0:2, :] = 7
        more[...] = there
        more.halo()
        np.testing.assert_array_equal(more.gather_all(), whole)
        if comm.rank == 0:
            np.testing.assert_array_equal(more.local.get(), whole[:4])

    run_ranks(2, lambda transport: program(Comm(transport)))


# ---- copies to the host: stand-ins for CuPy, PyTorch and JAX, none of which is installed here ----


class FakeCuPyArray(FakeGpuArray):
    """Array that is copied into given memory, too, as in CuPy."""

    def get(self, out: Any = None) -> Any:
        if out is None:
            return self.values.copy()
        out[...] = self.values
        return out

    flags = property(lambda self: self.values.flags)


class FakeDlpackArray:
    """Array of a library that has DLPack only."""

    def __init__(self, values: Any, device: int = 2) -> None:
        self.values, self.device = np.array(values), device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self) -> Any:
        return self.values


class FakeTensor(FakeDlpackArray):
    """Tensor of PyTorch on a GPU."""

    def detach(self) -> FakeTensor:
        return self

    def cpu(self) -> FakeTensor:
        return FakeTensor(self.values.copy(), 1)

    def numpy(self) -> Any:
        return self.values

    dtype = property(lambda self: f"torch.{self.values.dtype}")
    shape = property(lambda self: self.values.shape)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Put a stand-in for CuPy into sys.modules, and return the sizes of the pinned memory that it makes."""
    made: list[int] = []

    def alloc(size: int) -> bytearray:
        made.append(size)
        return bytearray(size)

    library = SimpleNamespace(
        cuda=SimpleNamespace(alloc_pinned_memory=alloc), from_dlpack=lambda one: FakeCuPyArray(one.__dlpack__())
    )
    monkeypatch.setitem(sys.modules, "cupy", library)
    monkeypatch.setattr(gpu_copies, "_pools", {})
    return made


def test_pinned_memory_is_used_again_once_no_view_of_the_copy_is_left(cupy: list[int]) -> None:
    whole = np.arange(20_000.0).reshape(100, 200)
    first = gpu_copies.to_host(FakeCuPyArray(whole))
    view = first[10:20, ::2]
    del first
    second = gpu_copies.to_host(FakeCuPyArray(whole + 1))
    np.testing.assert_array_equal(view, whole[10:20, ::2])
    np.testing.assert_array_equal(second, whole + 1)
    assert cupy == [1 << 18] * 2
    del view, second
    gc.collect()
    for _ in range(5):
        np.testing.assert_array_equal(gpu_copies.to_host(FakeCuPyArray(whole)), whole)
    assert cupy == [1 << 18] * 2


def test_pinned_memory_has_a_limit_and_other_copies_go_to_ordinary_memory(
    cupy: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_copies, "PINNED_BYTES", 1 << 18)
    whole = np.arange(20_000.0)
    kept = [gpu_copies.to_host(FakeCuPyArray(whole + number)) for number in range(3)]
    small = gpu_copies.to_host(FakeCuPyArray(whole[:10]))
    columns = gpu_copies.to_host(FakeCuPyArray(np.asfortranarray(whole.reshape(100, 200))))
    assert cupy == [1 << 18]
    for number, one in enumerate(kept):
        np.testing.assert_array_equal(one, whole + number)
    np.testing.assert_array_equal(small, whole[:10])
    np.testing.assert_array_equal(columns, whole.reshape(100, 200))


def test_a_library_that_makes_no_pinned_memory_copies_to_ordinary_memory(
    cupy: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: int) -> bytearray:
        raise MemoryError

    monkeypatch.setattr(sys.modules["cupy"].cuda, "alloc_pinned_memory", refuse)
    whole = np.arange(20_000.0)
    np.testing.assert_array_equal(gpu_copies.to_host(FakeCuPyArray(whole)), whole)


def test_tensors_go_through_pinned_memory_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Target:
        def __init__(self, array: Any) -> None:
            self.array = array

        def copy_(self, tensor: FakeTensor) -> None:
            self.array[...] = tensor.values

    made = []

    def empty(size: int, dtype: Any, pin_memory: bool) -> FakeTensor:
        assert pin_memory
        made.append(size)
        return FakeTensor(np.empty(size, dtype), 3)

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(from_numpy=Target, empty=empty, uint8=np.uint8))
    monkeypatch.setattr(gpu_copies, "_pools", {})
    whole = np.arange(20_000, dtype="f4")
    np.testing.assert_array_equal(gpu_copies.to_host(FakeTensor(whole)), whole)
    assert made == [1 << 17]
    np.testing.assert_array_equal(gpu_copies.to_host(FakeTensor(whole[:3])), whole[:3])


def test_arrays_with_dlpack_on_a_gpu_are_sent_as_numpy_arrays(cupy: list[int]) -> None:
    def program(comm: Comm) -> Any:
        if comm.rank == 0:
            comm.send(FakeDlpackArray(np.arange(5)), 1)
            comm.send(FakeTensor(np.arange(4)), 1)
            comm.send(FakeDlpackArray(np.arange(3), 1), 1)  # in host memory: pickled
            return None
        return [comm.recv(source=0) for _ in range(3)]

    first, second, third = run_ranks(2, lambda transport: program(Comm(transport)))[1]
    np.testing.assert_array_equal(first, np.arange(5))
    np.testing.assert_array_equal(second, np.arange(4))
    assert isinstance(third, FakeDlpackArray)


def test_an_array_that_nobody_here_can_copy_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cupy", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TypeError, match="copy it to the host first"):
        codec.encode(FakeDlpackArray(np.arange(5)))
