"""Distributed arrays: each rank of a run stores a part.

The map defines the part of each rank, an ordinary array: `X.local`. Element-wise operations work on the parts and send
nothing. Operations that need parts of other ranks are collective, as their docstrings say: all ranks of the run must
call them, in the same order, including ranks without a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

from . import array_reductions, host
from .agreement import agree, collective
from .comm import COMM_WORLD, Comm
from .errors import MapMismatch, UsageError
from .gathering import gather_array
from .products import mtimes
from .redistribute import assign_slice, fill_overlap, move, staged
from .rules import plans
from .rules.maps import Indices, Map


class Dmat(NDArrayOperatorsMixin):
    """An array distributed over ranks by its map."""

    def __init__(self, shape: Sequence[int], map: Map, local: NDArray[Any], comm: Comm | None = None) -> None:
        """`comm`: None means COMM_WORLD. Raises UsageError if `local` has not the shape that the map requires."""
        self.comm = COMM_WORLD if comm is None else comm
        """Communicator of the ranks."""
        self.shape: tuple[int, ...] = checked_shape(shape, map)
        """Shape of the whole array."""
        self.map = map
        """The map: how it is distributed."""
        if max(map.ranks) >= self.comm.size:
            raise UsageError(
                f"the map names rank {max(map.ranks)}, and the run has {self.comm.size} ranks, counted from 0: {map!r}"
            )
        self._bind(local if host.is_array(local) else np.asarray(local))

    @property
    def local(self) -> NDArray[Any]:
        """The part of this rank with its overlap: the array itself, not a copy.

        An assigned array replaces it and must have the same shape; its dtype becomes the dtype. An assigned number
        fills it. Other ranks do not notice: call halo() if the map has an overlap.
        """
        return self._local

    @local.setter
    def local(self, value: Any) -> None:
        array = value if host.is_array(value) else np.asarray(value)
        if array.ndim == 0:
            self._refuse_complex(array.dtype)
            self._local[...] = array[()]
        else:
            self._bind(array)

    def _bind(self, array: NDArray[Any]) -> None:
        expected = self.map.stored_shape(self.shape, self.comm.rank)
        if tuple(array.shape) != expected:
            raise UsageError(
                f"rank {self.comm.rank} has a part of shape {expected} of this array of shape {self.shape}, "
                f"not {tuple(array.shape)}: {self.map!r}"
            )
        if array.dtype.hasobject:
            raise UsageError("a distributed array holds numbers, not Python objects")
        self._local = array

    def _refuse_complex(self, given: np.dtype[Any], into: np.dtype[Any] | None = None) -> None:
        """Raise UsageError if complex values would lose their imaginary parts."""
        kept = self.dtype if into is None else into
        if given.kind == "c" and kept.kind in "fiub":
            raise UsageError(f"complex values do not fit an array of {kept}: X = X.astype(complex) makes a complex one")

    @property
    def owned(self) -> NDArray[Any]:
        """A view of `local` without the overlap."""
        return self._local[tuple(map(slice, self.map.owned_shape(self.shape, self.comm.rank)))]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of `local`. If ranks' dtypes differ, collective operations use the one that holds all."""
        return self._local.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements of the whole array."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Size of the whole array in bytes, without overlaps."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def indices(self, axis: int) -> Indices:
        """Return the global indices along an axis of the elements that this rank stores."""
        return self.map.stored(self.shape, self.comm.rank)[axis]

    def like(self, local: NDArray[Any]) -> Dmat:
        """Return a Dmat of the same shape and map with another local part."""
        return Dmat(self.shape, self.map, local, self.comm)

    def copy(self) -> Dmat:
        """Return a Dmat with a copy of the local part."""
        return self.like(self._local.copy())

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Dmat:
        return self.copy()

    def astype(self, dtype: DTypeLike) -> Dmat:
        """Return a copy of that dtype."""
        return self.like(self._local.astype(dtype))

    @property
    def real(self) -> Dmat:
        """A copy of the real parts."""
        return self.like(self._local.real.copy())

    @property
    def imag(self) -> Dmat:
        """A copy of the imaginary parts."""
        return self.like(self._local.imag.copy())

    @collective("redistribute")
    def redistribute(self, map: Map) -> Dmat:
        """Return the array with another map and the same dtype. Collective."""
        checked_shape(self.shape, map)
        dtype, _ = agree(self.comm, "redistribute", [self], map)
        local = host.empty_like(self._local, map.stored_shape(self.shape, self.comm.rank), dtype)
        target = Dmat(self.shape, map, local, self.comm)
        move("redistribute", self, target, dtype)
        return target

    @collective("gather")
    def gather(self, root: int = 0) -> NDArray[Any] | None:
        """Return the whole array on `root`, None elsewhere. Collective."""
        if not 0 <= root < self.comm.size:
            raise UsageError(f"there is no rank {root}: the run has {self.comm.size} ranks")
        return gather_array(self, root)

    @collective("gather_all")
    def gather_all(self) -> NDArray[Any]:
        """Return the whole array on every rank. Collective."""
        whole = gather_array(self, None)
        assert whole is not None
        return whole

    @collective("halo")
    def halo(self) -> None:
        """Fill the overlap of every rank with the owners' values. Collective; does nothing without an overlap."""
        if any(self.map.overlap):
            dtype, _ = agree(self.comm, "halo", [self])
            if dtype != self.dtype:
                self._local = self._local.astype(dtype)
            fill_overlap(self)

    @collective("X[...]")
    def __getitem__(self, key: Any) -> Any:
        """Return the selected part as a NumPy array or a scalar on all ranks. Collective, with the same key on all."""
        chosen = chosen_ranges(self.shape, key)
        selection = plans.selection(self.shape, self.map, key, self.comm.rank)
        if chosen == list(map(range, self.shape)):
            return self.gather_all()[selection.final]
        mine = None
        if selection.owned is not None:
            mine = selection.owned.take(host.to_host(self._local))
        dtype, parts = agree(self.comm, f"X[{chosen}]", [self], extra=mine)
        whole = np.empty(selection.shape, dtype)
        for part in selection.parts:
            part.put(whole, parts[part.rank])
        return whole[selection.final]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Assign to the selected part.

        A number, or a NumPy array that broadcasts to the selection, must be the same on all ranks; nothing is sent. A
        Dmat of any map makes the call collective; if the key contains a number, the Dmat is gathered on all ranks. The
        dtype does not change, as in NumPy; complex values for a real array are an error.
        """
        if isinstance(value, Dmat):
            self._assign(key, value)
            return
        value = np.asarray(host.to_host(value))
        self._refuse_complex(value.dtype)
        selection = plans.selection(self.shape, self.map, key, self.comm.rank)
        kept = _kept_shape(selection)
        while value.ndim > len(kept) and value.shape[0] == 1:
            value = value[0]  # as NumPy does
        whole = np.broadcast_to(value, kept)[tuple(None if one == 0 else one for one in selection.final)]
        if selection.stored is not None:
            there, here = selection.stored
            with staged(self._local) as room:
                here.put(room, there.take(whole) if value.ndim else np.broadcast_to(value, here.shape))

    @collective("assignment")
    def _assign(self, key: Any, source: Dmat) -> None:
        chosen = chosen_ranges(self.shape, key)
        selected = tuple(map(len, chosen))
        kept = _kept_shape(plans.selection(self.shape, self.map, key, self.comm.rank))
        if source.shape != kept:
            raise UsageError(f"an array of shape {source.shape} does not fit a selection of shape {kept}")
        if kept != selected:
            self[key] = source.gather_all()
            return
        into, dtype, _ = agree(self.comm, f"Y[{chosen}] = X", [self, source])
        self._refuse_complex(dtype, into)
        if self._local.dtype != into:
            self._local = self._local.astype(into)
        if chosen == list(map(range, self.shape)):
            move("assignment", source, self, dtype)
        else:
            assign_slice(self, chosen, source, dtype)

    @collective("reduction")
    def _reduce(self, name: str, axis: Any, dtype: DTypeLike | None, out: Any, keepdims: bool) -> Any:
        if out is not None:
            raise UsageError(f"{name} of a distributed array returns a NumPy array and takes no `out`")
        agreed, _ = agree(self.comm, f"{name}(axis={axis}, dtype={dtype}, keepdims={keepdims})", [self])
        return array_reductions.reduce_parts(self, name, agreed, axis, dtype, keepdims)

    def sum(self, axis: Any = None, dtype: DTypeLike | None = None, out: Any = None, keepdims: bool = False) -> Any:
        """Return the sum on all ranks, the same bits on each: a scalar, with `axis` a NumPy array. Collective."""
        return self._reduce("sum", axis, dtype, out, keepdims)

    def prod(self, axis: Any = None, dtype: DTypeLike | None = None, out: Any = None, keepdims: bool = False) -> Any:
        """Return the product on all ranks: a scalar, with `axis` a NumPy array. Collective."""
        return self._reduce("prod", axis, dtype, out, keepdims)

    def mean(self, axis: Any = None, dtype: DTypeLike | None = None, out: Any = None, keepdims: bool = False) -> Any:
        """Return the mean on all ranks: a scalar, with `axis` a NumPy array. Collective."""
        return self._reduce("mean", axis, dtype, out, keepdims)

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Return the least element on all ranks: a scalar, with `axis` a NumPy array. Collective."""
        return self._reduce("min", axis, None, out, keepdims)

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Return the greatest element on all ranks: a scalar, with `axis` a NumPy array. Collective."""
        return self._reduce("max", axis, None, out, keepdims)

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Return on all ranks whether any element is true: a scalar, with `axis` a NumPy array. Collective."""
        return self._reduce("any", axis, None, out, keepdims)

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Return on all ranks whether all elements are true: a scalar, with `axis` a NumPy array. Collective."""
        return self._reduce("all", axis, None, out, keepdims)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Apply a NumPy function element by element: arrays of equal shape and map, and numbers. Sends nothing."""
        if ufunc is np.matmul and method == "__call__":
            return _matmul(*inputs, **kwargs)
        return _apply_ufunc(ufunc, method, inputs, kwargs)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the array if this rank has all of it. Raises UsageError otherwise; it never gathers implicitly."""
        if tuple(self._local.shape) != self.shape:
            raise UsageError(
                f"rank {self.comm.rank} has a part of shape {tuple(self._local.shape)} of an array of shape "
                f"{self.shape}: gather_all() returns the whole array on every rank, `local` is the part"
            )
        whole: NDArray[Any] = host.to_host(self._local)
        wanted = whole.dtype if dtype is None else np.dtype(dtype)
        if copy is False and (wanted != whole.dtype or whole is not self._local):
            raise ValueError("a copy is needed for another dtype, or from a GPU, and copy=False forbids it")
        return whole.astype(wanted, copy=bool(copy))

    def __bool__(self) -> bool:
        """Return whether the only element is true. Collective. Raises ValueError if there are more, as NumPy does."""
        if self.size != 1:
            raise ValueError(
                f"the truth value of an array with {self.size} elements is ambiguous: use X.any() or X.all()"
            )
        return bool(self.all())

    def __reduce__(self) -> NoReturn:
        """Raise UsageError: a part is useless without the others."""
        raise UsageError(
            "a distributed array cannot be pickled or sent: send its `local`, or use slurm_share.spmd.array_files.save"
        )

    def __repr__(self) -> str:
        return (
            f"Dmat(shape={self.shape}, dtype={self.dtype}, map={self.map!r}; "
            f"rank {self.comm.rank} has {tuple(self._local.shape)})"
        )


def _apply_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a ufunc to the local parts of arrays and to numbers.

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
    first: Dmat = next(one for one in (*inputs, *outputs) if isinstance(one, Dmat))
    arguments = [_part(first, one, f"numpy.{ufunc.__name__}") for one in inputs]
    if "where" in kwargs:
        kwargs["where"] = _part(first, kwargs["where"], "where=")
    if outputs:
        if not all(one is None or isinstance(one, Dmat) for one in outputs):
            raise UsageError("the result of distributed arrays is a distributed array: give one as `out`, or X.local")
        kwargs["out"] = tuple(None if one is None else _part(first, one, "out=") for one in outputs)
    if first.local.size == 0 < first.size:
        _refuse_numbers(ufunc, inputs, arguments)
    results = ufunc(*arguments, **kwargs)
    given = outputs or (None,) * ufunc.nout
    several = results if isinstance(results, tuple) else (results,)
    wrapped = tuple(first.like(one) if out is None else out for one, out in zip(several, given, strict=True))
    return wrapped if isinstance(results, tuple) else wrapped[0]


def _refuse_numbers(ufunc: np.ufunc, inputs: tuple[Any, ...], arguments: list[Any]) -> None:
    """Raise what the ufunc raises for a number beside any element, such as integers to the power of -1.

    A rank without elements would not notice, and would go on alone.
    """
    if all(isinstance(one, Dmat) for one in inputs):
        return
    elements = [
        np.ones(1, part.dtype) if isinstance(one, Dmat) else one for one, part in zip(inputs, arguments, strict=True)
    ]
    with np.errstate(all="ignore"):
        ufunc(*elements)


def _part(first: Dmat, other: Any, what: str) -> Any:
    """Return the local part of a distributed array with the map of the first, or a number unchanged."""
    if isinstance(other, Dmat):
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


def _matmul(left: Any, right: Any, out: Any = None, **kwargs: Any) -> Dmat:
    if kwargs:
        raise UsageError(f"the product of distributed arrays takes no {', '.join(kwargs)}")
    product: Dmat = mtimes(left, right)
    if out is None:
        return product
    target: Dmat = out[0] if isinstance(out, tuple) else out
    target[...] = product
    return target


def _kept_shape(selection: plans.Selection) -> tuple[int, ...]:
    """Return the shape of a selection, without the dimensions that a number selects."""
    return tuple(count for count, one in zip(selection.shape, selection.final, strict=True) if one != 0)


def chosen_ranges(shape: Sequence[int], key: Any) -> list[range]:
    """Return the indices that a key selects in each dimension, in the order of the key."""
    keys = plans.read_key(shape, key)
    return [one.indices()[:: -1 if one.final == "backward" else 1] for one in keys]


def checked_shape(shape: Sequence[int], map: Map) -> tuple[int, ...]:
    """Return the shape as a tuple of ints. Raises UsageError if it does not match the map."""
    if not isinstance(map, Map):
        raise UsageError(f"an array is distributed by a Map, not by {type(map).__name__} {map!r}")
    return map.check_shape(shape)


def _made(maker: Any, shape: tuple[Any, ...], map: Any, dtype: DTypeLike, order: str, comm: Comm | None) -> Any:
    lengths = tuple(shape[0]) if len(shape) == 1 and not hasattr(shape[0], "__index__") else shape
    if map is None or (isinstance(map, int) and map == 1):
        return maker(lengths, dtype=dtype, order=order)
    comm = COMM_WORLD if comm is None else comm
    lengths = checked_shape(lengths, map)
    return Dmat(lengths, map, maker(map.stored_shape(lengths, comm.rank), dtype=dtype, order=order), comm)


def zeros(*shape: Any, map: Any = None, dtype: DTypeLike = np.float64, order: Any = "C", comm: Any = None) -> Any:
    """Return a Dmat of zeros, or a NumPy array for the map None or 1, which makes a program serial.

    `shape`: the lengths, or one sequence of them. `order`: memory order of the local parts.
    """
    return _made(np.zeros, shape, map, dtype, order, comm)


def ones(*shape: Any, map: Any = None, dtype: DTypeLike = np.float64, order: Any = "C", comm: Any = None) -> Any:
    """Return a Dmat of ones; arguments as for `zeros`."""
    return _made(np.ones, shape, map, dtype, order, comm)


def empty(*shape: Any, map: Any = None, dtype: DTypeLike = np.float64, order: Any = "C", comm: Any = None) -> Any:
    """Return an uninitialised Dmat; arguments as for `zeros`."""
    return _made(np.empty, shape, map, dtype, order, comm)


def rand(
    *shape: Any,
    map: Any = None,
    dtype: DTypeLike = np.float64,
    order: Any = "C",
    comm: Any = None,
    seed: int | None = None,
) -> Any:
    """Return a Dmat of random numbers in [0, 1), for a complex dtype in both parts.

    Each rank has its own generator. A `seed` reproduces the numbers of each rank, so the array depends on the number of
    ranks. Collective if the map has an overlap. Other arguments as for `zeros`.
    """
    rank = 0
    if isinstance(map, Map):
        comm = COMM_WORLD if comm is None else comm
        rank = comm.rank
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(rank,)))

    def maker(lengths: Sequence[int], dtype: DTypeLike, order: Any) -> NDArray[Any]:
        kind = np.dtype(dtype)
        if kind.kind not in "fc":
            raise UsageError(f"random numbers are real or complex, not {kind}")
        real = generator.random(lengths)
        values = real + 1j * generator.random(lengths) if kind.kind == "c" else real
        return np.asarray(values, dtype=kind, order=order)

    made = _made(maker, shape, map, dtype, order, comm)
    if isinstance(made, Dmat):
        made.halo()
    return made


def from_local(local: NDArray[Any], map: Map, shape: Sequence[int], comm: Comm | None = None) -> Dmat:
    """Return a Dmat of existing parts; it uses the arrays themselves, not copies."""
    return Dmat(shape, map, local, comm)
