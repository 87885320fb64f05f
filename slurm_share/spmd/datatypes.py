"""MPI's datatypes, with mpi4py's names: which elements of a buffer a message has, and how much memory they span.

A datatype is a NumPy dtype, and the places of its elements if there are gaps or another order. The receiver's type may
have other places than the sender's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import arguments
from .errors import UsageError

ORDER_C, ORDER_FORTRAN = 56, 57
"""For `Create_subarray`: the last or the first index is that of neighbours in memory."""
ORDER_F = ORDER_FORTRAN
_BYTE = np.dtype(np.uint8)
_MOST_PLACES = 1 << 28
Places = NDArray[np.intp]


class Datatype:
    """Elements of one NumPy dtype at some places of a buffer; the next one begins an extent later."""

    __slots__ = ("_extent", "_lb", "_predefined", "count", "dtype", "name", "places")

    def __init__(
        self,
        dtype: Any,
        count: int = 1,
        places: Places | None = None,
        lb: int = 0,
        extent: int | None = None,
        name: str = "",
        *,
        predefined: bool = False,
    ) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        """Type of the elements that are moved; bytes if the datatype has elements of several types."""
        self.count = count
        """Number of elements of that dtype."""
        self.places = places
        """Offset of each element in bytes; None: one after the other, from 0."""
        self._lb, self._extent = lb, count * self.dtype.itemsize if extent is None else extent
        self.name = name
        self._predefined = predefined

    def __repr__(self) -> str:
        gaps = "" if self.places is None else f", extent {self._extent}"
        return f"<Datatype {self}{gaps}>"

    def __str__(self) -> str:
        return self.name or f"{self.count} x {self.dtype}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Datatype):
            return NotImplemented
        if self._predefined and other._predefined:
            return self.name == other.name
        if self._is_plain and other._is_plain:
            return self.dtype == other.dtype
        return self is other

    def __hash__(self) -> int:
        return hash(self.dtype) if self._is_plain else id(self)

    @property
    def _is_plain(self) -> bool:
        """Whether this is one element of a dtype; such a type equals the named ones of the dtype."""
        return self.count == 1 and self.is_dense

    @property
    def is_dense(self) -> bool:
        """Whether elements follow each other without gaps, also from one of this type to the next."""
        return self.places is None and self._lb == 0 and self._extent == self.count * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Number of bytes of the elements, without gaps."""
        fields = self.dtype.fields
        width = self.dtype.itemsize if fields is None else sum(one[0].itemsize for one in fields.values())
        return self.count * width

    @property
    def extent(self) -> int:
        """Distance in bytes to the next one of this type."""
        return self._extent

    @property
    def lb(self) -> int:
        """Lower bound in bytes."""
        return self._lb

    @property
    def ub(self) -> int:
        """Upper bound in bytes."""
        return self._lb + self._extent

    @property
    def true_lb(self) -> int:
        """Offset in bytes of the first element in memory."""
        return 0 if self.places is None or not self.count else int(self.places.min())

    @property
    def true_ub(self) -> int:
        """Offset in bytes of the end of the last element in memory."""
        if self.places is None or not self.count:
            return self.count * self.dtype.itemsize
        return int(self.places.max()) + self.dtype.itemsize

    @property
    def true_extent(self) -> int:
        """Number of bytes from the first element in memory to the end of the last."""
        return self.true_ub - self.true_lb

    @property
    def is_predefined(self) -> bool:
        """Whether this is one of the named types, such as DOUBLE."""
        return self._predefined

    is_named = is_predefined

    @property
    def typestr(self) -> str:
        """NumPy's name of a type of one element, such as "f8". Raises UsageError for others."""
        if self.places is None and self.count == 1 and self.dtype.names is None:
            return self.dtype.str.lstrip("<>=|")
        raise UsageError(f"{self!r} has no type string: it has several elements, or elements of several types")

    @property
    def typechar(self) -> str:
        """NumPy's letter of a type of one element, such as "d". Raises UsageError for others."""
        code = self.typestr
        return "c" if code == "S1" else self.dtype.char

    def Get_size(self) -> int:
        """Return `size`."""
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Return lower bound and extent in bytes."""
        return self._lb, self._extent

    def Get_true_extent(self) -> tuple[int, int]:
        """Return the first byte that an element uses, and the number of bytes up to the end of the last."""
        return self.true_lb, self.true_extent

    def Get_name(self) -> str:
        """Return the name."""
        return self.name

    def Set_name(self, name: str) -> None:
        """Give a name, which messages show."""
        self.name = name

    def Commit(self) -> Datatype:
        """Return this type: there is nothing to prepare."""
        return self

    def Free(self) -> None:
        """Do nothing: Python frees the memory. Raises UsageError for a named type."""
        if self._predefined:
            raise UsageError(f"{self!r} is one of the named types, which cannot be freed")

    free = Free

    def Dup(self) -> Datatype:
        """Return a copy of this type."""
        return Datatype(self.dtype, self.count, self.places, self._lb, self._extent, self.name)

    Create_dup = Dup

    @classmethod
    def fromcode(cls, code: Any) -> Datatype:
        """Return the type of one NumPy dtype, or of its name, such as "d" or "float64"."""
        return as_datatype(code, "Datatype.fromcode")

    def tocode(self) -> str:
        """Return the letter or type string that `fromcode` takes."""
        return self.typechar

    def Create_contiguous(self, count: int) -> Datatype:
        """Return the type of `count` of this type, one after the other."""
        return self._at(np.arange(_length(count, "Create_contiguous")) * self._extent)

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Return the type of `count` blocks, whose starts are `stride` of this type apart."""
        return self.Create_hvector(count, blocklength, _integer(stride) * self._extent)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Return the type of `count` blocks, whose starts are `stride` bytes apart."""
        blocks = np.arange(_length(count, "Create_vector")) * _integer(stride)
        inside = np.arange(_length(blocklength, "Create_vector")) * self._extent
        return self._at((blocks[:, None] + inside).ravel())

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Return the type of blocks of those lengths, at those displacements counted in this type."""
        return self.Create_hindexed(blocklengths, [_integer(one) * self._extent for one in displacements])

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Return the type of blocks of those lengths, at those displacements in bytes."""
        lengths = [_length(one, "Create_indexed") for one in blocklengths]
        starts = [_integer(one) for one in displacements]
        if len(lengths) != len(starts):
            raise UsageError(f"Create_indexed: there are {len(lengths)} blocks and {len(starts)} displacements")
        return self._at(_joined(start + np.arange(n) * self._extent for n, start in zip(lengths, starts, strict=True)))

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Return the type of blocks of one length, at those displacements counted in this type."""
        return self.Create_indexed([blocklength] * len(displacements), displacements)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Return the type of blocks of one length, at those displacements in bytes."""
        return self.Create_hindexed([blocklength] * len(displacements), displacements)

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = ORDER_C
    ) -> Datatype:
        """Return the type of a block of an array of that many of this type; it spans the whole array."""
        whole, part, first = (tuple(map(_integer, one)) for one in (sizes, subsizes, starts))
        if not len(whole) == len(part) == len(first) or not whole:
            raise UsageError(f"Create_subarray: sizes {whole}, subsizes {part} and starts {first} differ in length")
        for length, count, start in zip(whole, part, first, strict=True):
            if count < 1 or start < 0 or start + count > length:
                raise UsageError(f"Create_subarray: {count} elements from {start} on are not within {length}")
        if order not in (ORDER_C, ORDER_FORTRAN):
            raise UsageError(f"Create_subarray: the order is ORDER_C or ORDER_FORTRAN, not {order!r}")
        if order == ORDER_FORTRAN:
            whole, part, first = whole[::-1], part[::-1], first[::-1]
        places = np.zeros((1,), np.intp)
        for length, count, start in zip(whole, part, first, strict=True):
            places = (places[:, None] * length + np.arange(start, start + count)).ravel()
        made = self._at(places * self._extent)
        return made.Create_resized(0, self._extent * int(np.prod(whole)))

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """Return this type with another lower bound and extent, in bytes."""
        return Datatype(self.dtype, self.count, self.places, _integer(lb), _integer(extent))

    Resized = Create_resized

    @classmethod
    def Create_struct(
        cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Datatype:
        """Return the type of blocks of several types, at those displacements in bytes; its elements are bytes."""
        kinds = [as_datatype(one, "Create_struct") for one in datatypes]
        if not len(blocklengths) == len(displacements) == len(kinds):
            raise UsageError("Create_struct: lengths, displacements and datatypes differ in number")
        blocks = [
            kind.Create_hindexed([length], [start])
            for kind, length, start in zip(kinds, blocklengths, displacements, strict=True)
        ]
        same = all(one.dtype == blocks[0].dtype for one in blocks)
        places = _joined(one.offsets() if same else _byte_places(one.offsets(), one.dtype.itemsize) for one in blocks)
        lb = min((one.lb for one in blocks), default=0)
        ub = max((one.ub for one in blocks), default=0)
        align = max((one.dtype.alignment for one in kinds), default=1)
        dtype = blocks[0].dtype if blocks and same else _BYTE
        return Datatype(dtype, places.size, places, lb, ub - lb + -(ub - lb) % align)

    def Create_darray(self, *_words: Any, **_named: Any) -> Datatype:
        """Refuse: use `Create_subarray`."""
        raise UsageError("Create_darray is not offered: give each rank's block to Create_subarray")

    def offsets(self) -> Places:
        """Return the offset in bytes of each element."""
        return np.arange(self.count) * self.dtype.itemsize if self.places is None else self.places

    def indices(self, count: int) -> Places:
        """Return the offset in bytes of each element of `count` of this type in a row."""
        return (np.arange(count)[:, None] * self._extent + self.offsets()).ravel()

    def _at(self, starts: Places) -> Datatype:
        """Return the type of one of this type at each of those offsets in bytes."""
        count = starts.size * self.count
        if self.is_dense and starts.size and np.array_equal(starts, np.arange(starts.size) * self._extent):
            return Datatype(self.dtype, count)
        if count > _MOST_PLACES:
            raise UsageError(f"a datatype of {count} elements with gaps is too large; copy the part to an array")
        places = (starts[:, None] + self.offsets()).ravel()
        if not starts.size:
            return Datatype(self.dtype, 0, np.empty(0, np.intp), 0, 0)
        lb = int(starts.min()) + self._lb
        return Datatype(self.dtype, count, places, lb, int(starts.max()) + self.ub - lb)


def selected(memory: NDArray[np.uint8], places: Places, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Places]:
    """Return a view of the memory and the indices in it of the elements at those offsets in bytes.

    The view has that dtype if all offsets are multiples of its size, else it has bytes.
    """
    size = dtype.itemsize
    if size > 1 and not (places % size).any():
        return memory[: memory.size - memory.size % size].view(dtype), places // size
    return (memory.view(dtype), places) if size == 1 else (memory, _byte_places(places, size))


def as_datatype(given: Any, call: str) -> Datatype:
    """Return a datatype, or that of a NumPy dtype, type or name. Raises UsageError."""
    if isinstance(given, Datatype):
        return given
    try:
        dtype = np.dtype({"c": "S1", "U": "U1"}.get(given, given) if isinstance(given, str) else given)
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or given is None or dtype.hasobject or not dtype.itemsize:
        raise UsageError(f"{call}: {given!r} is no type of elements: give one such as MPI.DOUBLE, or 'd'")
    return Datatype(dtype, name=dtype.str if dtype.names is None else "")


def _byte_places(places: Places, size: int) -> Places:
    return (places[:, None] + np.arange(size)).ravel()


def _joined(parts: Iterable[Places]) -> Places:
    return np.concatenate([np.empty(0, np.intp), *parts]).astype(np.intp)


def _integer(given: Any) -> int:
    number = arguments.whole(given)
    if number is None:
        raise UsageError(f"a datatype is made of integers, not {given!r}")
    return number


def _length(given: Any, call: str) -> int:
    number = _integer(given)
    if number < 0:
        raise UsageError(f"{call}: a count or length is at least 0, not {number}")
    return number
