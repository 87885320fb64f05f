"""Local parts in GPU memory, with a stand-in for CuPy: they are copied through host memory and stay on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from arrays import whole_array
from in_threads import run_ranks

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
