"""pPython's maps, distributed array and constructors, on those of this package.

`Dmap` is a map that can also be read as pPython's dictionary. `Dmat` holds the local part as any NumPy, CuPy or SciPy
sparse array; operations that need other ranks convert it to a `dmat.Dmat`.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

from .. import dmat, host, products
from ..errors import UsageError
from ..rules.maps import Map
from .indices import Falls, PitFalls, falls, index_ranges, pitfalls
from .world import world


class Dmap(Map, Mapping[str, Any]):
    """Map with pPython's arguments and keys.

    `map["dim" | "grid_spec" | "grid" | "dist_spec" | "proc_list" | "overlap"]` are read-only.
    """

    name = "grid_map_class"

    def __init__(
        self,
        grid_spec: Sequence[int],
        dist_spec: Any = None,
        proc_list: Sequence[int] | None = None,
        overlap: Sequence[int] | None = None,
        order: str = "C",
    ) -> None:
        """Raises UsageError if the arguments do not match."""
        super().__init__(grid_spec, dist_spec, proc_list, overlap, order)
        self._spec: dict[str, Any] = {
            "dim": len(self.grid),
            "grid_spec": list(self.grid),
            "proc_list": np.array(self.ranks),
            "dist_spec": {axis: _as_dictionary(*dist) for axis, dist in enumerate(self.dist)},
            "overlap": None if overlap is None else list(self.overlap),
            "grid": self.placed,
        }

    @property
    def shape(self) -> list[int]:
        """Number of processes along each dimension."""
        return list(self.grid)

    @property
    def placed(self) -> NDArray[np.int64]:
        """The ranks as an array of the grid's shape."""
        return np.array(self.ranks, dtype=np.int64).reshape(self.grid, order="C" if self.order == "C" else "F")

    def __getattr__(self, name: str) -> Any:
        """Return a value of the dictionary. `grid` and `overlap` are attributes of Map."""
        if name in ("dim", "grid_spec", "dist_spec", "proc_list"):
            return self._spec[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getitem__(self, key: str) -> Any:
        return self._spec[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spec)

    def __len__(self) -> int:
        return len(self._spec)

    def copy(self) -> Dmap:
        """Return a new map that is equal."""
        return Dmap(self.grid, self["dist_spec"], self.ranks, self["overlap"], self.order)

    def show(self) -> None:
        """Print grid, overlap and distributions."""
        _print(
            "  Map object",
            f"      Dimension:  {self['dim']}",
            f"      Grid specification: {self['grid_spec']}",
            f"      Grid: {self['grid']}",
            f"      Overlap: {self['overlap']}",
            "      Distribution: ",
            *(f"         Dim {axis}: {dist['dist']}" for axis, dist in self["dist_spec"].items()),
        )


def as_dmap(map: Map) -> Dmap:
    """Return the map as a Dmap."""
    if isinstance(map, Dmap):
        return map
    overlap = map.overlap if any(map.overlap) else None
    dist = {axis: _as_dictionary(*one) for axis, one in enumerate(map.dist)}
    return Dmap(map.grid, dist, map.ranks, overlap, map.order)


def inmap(m: Map, r: int) -> bool:
    """Return whether a rank has a part of the arrays of a map."""
    return m.coordinates(int(r)) is not None


def _as_dictionary(kind: str, block: int) -> dict[str, Any]:
    return {"dist": kind, "b_size": block} if kind == "bc" else {"dist": kind}


def _print(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


class Dmat(NDArrayOperatorsMixin):
    """Array that is distributed over ranks, with pPython's attributes."""

    def __init__(self, shape: Any, map: Map, local: Any) -> None:
        """`local`: the part of this rank. Programs call zeros, ones, rand or sparse."""
        self.shape: list[int] = list(shape)
        self.map: Dmap = as_dmap(map)
        self.local: Any = local

    @property
    def dim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    ndim = dim

    @property
    def dtype(self) -> Any:
        """The dtype of the local part."""
        return self.local.dtype

    @property
    def size(self) -> int:
        """Number of elements of the whole array."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the local part in bytes."""
        return int(getattr(self.local, "nbytes", 0))

    @property
    def local_dim(self) -> list[int]:
        """Shape of the local part according to the map."""
        return list(self.map.stored_shape(self.shape, world().comm.rank))

    @property
    def global_ind(self) -> dict[int, tuple[range, ...]]:
        """For each dimension, the global indices that this rank stores, as ranges."""
        return dict(enumerate(index_ranges(self.map, self.shape, world().comm.rank)))

    @property
    def falls(self) -> list[Falls]:
        """For each dimension, the blocks that this rank stores."""
        return falls(self.map, self.shape, world().comm.rank)

    @property
    def pitfalls(self) -> list[PitFalls]:
        """For each dimension, the blocks of all ranks."""
        return pitfalls(self.map, self.shape)

    def whole(self) -> dmat.Dmat:
        """Return the array as a `dmat.Dmat` that shares the local part."""
        return dmat.from_local(dense(self.local), self.map, tuple(self.shape), world().comm)

    def copy(self) -> Dmat:
        """Return an array with a copy of the local part."""
        return Dmat(self.shape, self.map, self.local.copy())

    def clear(self) -> None:
        """Drop the local part to free its memory."""
        self.local = None

    def show(self) -> None:
        """Print shapes, map and indices."""
        sys.stdout.write("*** Dmat object\n")
        self.map.show()
        sys.stdout.write(
            f"   global Dmat shape: {self.shape}\n   local array shape: {self.local.shape}\n"
            f"   global index: {self.global_ind}\n   local dimension: {self.local_dim}\n"
        )

    def __repr__(self) -> str:
        return f"Dmat(shape={self.shape}, map={self.map!r}, dtype={self.dtype})"

    def __getitem__(self, index: Any) -> Any:
        """Return elements as a NumPy array or scalar on every rank. Collective."""
        return self.whole()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Set elements; every rank sets those that it stores, so all must make the call. Collective with a Dmat."""
        whole = self.whole()
        if isinstance(value, Dmat):
            drops = any(hasattr(one, "__index__") for one in (index if isinstance(index, tuple) else (index,)))
            value = value.whole().gather_all() if drops else value.whole()
        whole[index] = value
        self.local = whole.local

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the array if this rank has all of it. Raises UsageError otherwise."""
        if list(self.local.shape) != self.shape:
            raise UsageError("a distributed array does not become a NumPy array by itself: use agg(X) or local(X)")
        return self.whole().__array__(dtype, copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Apply a NumPy function element by element: arrays of equal shape and map, and numbers. Sends nothing."""
        if ufunc is np.matmul and method == "__call__":
            return mtimes(*inputs)
        plain = [value.whole() if isinstance(value, Dmat) else value for value in inputs]
        if "out" in options:
            options["out"] = tuple(one.whole() if isinstance(one, Dmat) else one for one in options["out"])
        return _wrapped(getattr(ufunc, method)(*plain, **options))

    def __bool__(self) -> NoReturn:
        raise UsageError("a distributed array is neither true nor false: ask its local part, or agg(X)")

    __hash__ = None  # type: ignore[assignment]


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    # `X += 1` makes a new array, as in pPython: another reference to X keeps the old elements.
    setattr(Dmat, f"__i{_name}__", getattr(Dmat, f"__{_name}__"))


def _wrapped(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(_wrapped(one) for one in result)
    return Dmat(result.shape, result.map, result.local) if isinstance(result, dmat.Dmat) else result


def dense(local: Any) -> Any:
    """Return a local part as a dense NumPy or CuPy array, without a copy if it is one."""
    if host.is_array(local):
        return local
    return np.asarray(local.toarray() if hasattr(local, "toarray") else local)


def on_host(local: Any) -> NDArray[Any]:
    """Return a local part as a dense NumPy array, without a copy if it is one."""
    return np.asarray(host.to_host(dense(local)))


def zeros(*sizes: Any, map: Any = None, dtype: DTypeLike = np.float64, order: str = "C", gpu: bool = False) -> Any:
    """Return an array of zeros; without a map, a NumPy array, or with `gpu` a CuPy array."""
    return _made(lambda library, shape: library.zeros(shape, dtype=dtype, order=order), sizes, map, gpu)


def ones(*sizes: Any, map: Any = None, dtype: DTypeLike = np.float64, order: str = "C", gpu: bool = False) -> Any:
    """Return an array of ones; without a map, a NumPy array, or with `gpu` a CuPy array."""
    return _made(lambda library, shape: library.ones(shape, dtype=dtype, order=order), sizes, map, gpu)


def rand(*sizes: Any, map: Any = None, dtype: DTypeLike = np.float64, order: str = "C", gpu: bool = False) -> Any:
    """Return an array of random numbers in [0, 1) from each rank's global NumPy generator, which is not seeded."""

    def make(library: Any, shape: list[int]) -> Any:
        return library.random.random(shape).astype(dtype, order=order)

    return _made(make, sizes, map, gpu)


def sparse(*arguments: Any, map: Any = None) -> Dmat:
    """Return an array whose local part is a SciPy csr matrix.

    `sparse(X)` changes X. `sparse(m, n, map=)` and `sparse([], [], [], m, n, nzmax, map=)` make an array of zeros;
    `nzmax` is ignored, because SciPy cannot reserve memory.
    """
    from scipy.sparse import csr_matrix

    if len(arguments) == 1:
        (array,) = arguments
        if not isinstance(array, Dmat):
            raise UsageError(f"sparse(X) needs a distributed array, not {type(array).__name__}")
        array.local = csr_matrix(array.local)
        return array
    if not isinstance(map, Map):
        raise UsageError("sparse needs a map: sparse(m, n, map=...)")
    sizes = arguments if len(arguments) == 2 else arguments[3:5] or (0, 0)
    shape = [operator.index(size) for size in sizes]
    return Dmat(shape, map, csr_matrix(tuple(map.stored_shape(shape, world().comm.rank)), dtype=np.float64))


def _made(make: Callable[[Any, list[int]], Any], sizes: tuple[Any, ...], map: Any, gpu: bool) -> Any:
    """Return an array of the given sizes; `make` creates the local part with NumPy or CuPy."""
    library: Any = np
    if gpu:
        import cupy

        library = cupy
    given = sizes[0] if len(sizes) == 1 and np.ndim(sizes[0]) else sizes
    shape = [length(size) for size in given]
    if not isinstance(map, Map):
        return make(library, shape)
    if len(shape) == 1:
        shape *= 2
    return Dmat(shape, map, make(library, list(map.stored_shape(shape, world().comm.rank))))


def length(size: Any) -> int:
    """Return a length as an integer; programs may compute it as 240.0."""
    if isinstance(size, float | np.floating) and float(size).is_integer():
        return int(size)
    return operator.index(size)


def mtimes(a: Any, b: Any) -> Any:
    """Return the matrix product with the map of `a`, or that of `b` if `a` is not distributed. Collective.

    A number multiplies element by element.
    """
    if math.prod(np.shape(a)) == 1 or math.prod(np.shape(b)) == 1:
        return a * b
    if not isinstance(a, Dmat) and not isinstance(b, Dmat):
        return np.matmul(a, b)
    left, right = (one.whole() if isinstance(one, Dmat) else one for one in (a, b))
    map = a.map if isinstance(a, Dmat) else b.map
    return Dmat((a.shape[0], b.shape[1]), map, products.mtimes(left, right, map).local)
