"""Buffers as calls with upper-case names take them: an array, or a list of a buffer, counts, displacements and a type.

The forms are mpi4py's: `buf`, `[buf, type]`, `[buf, count]`, `[buf, count, type]`, `[buf, (count, displacement), type]`
and `[buf, count, displacement, type]`. In calls with counts for each rank, counts and displacements are sequences.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .bodies import Received
from .calls import dtype_name
from .codec import array_of
from .constants import BOTTOM, IN_PLACE
from .datatypes import Datatype, Places, as_datatype, selected
from .envelope import ARRAY, Envelope
from .errors import MessageMismatch, NotContiguous, UsageError

Flat = NDArray[Any]
_DLPACK_HOST = 1
"""DLPack's number for host memory."""
_TYPES = (Datatype, str, np.dtype, type)


def is_in_place(given: Any) -> bool:
    """Return whether an argument is IN_PLACE, or None, which mpi4py takes as the same."""
    return given is None or given is IN_PLACE


class Elements:
    """The elements of a buffer that a message or one rank's part of a call has.

    `array` is contiguous: memory of the buffer if there are no gaps, else a copy, which `store` writes back.
    """

    __slots__ = ("_places", "_view", "array")

    def __init__(self, array: Flat, view: Flat | None = None, places: Places | None = None) -> None:
        self.array, self._view, self._places = array, view, places

    @property
    def flat(self) -> Flat:
        """The elements in the order of memory."""
        return flatten(self.array)

    def store(self, count: int | None = None) -> None:
        """Write the first `count` elements of the copy, None: all, to their places in the buffer."""
        if self._view is None:
            return
        assert self._places is not None
        data = self.array if count is None else self.array[:count]
        if self._view.dtype != data.dtype:
            data = data.view(np.uint8)
        self._view[self._places[: data.size]] = data


def flatten(array: Flat) -> Flat:
    """Return the elements of a contiguous array in the order of memory."""
    return array if array.ndim == 1 else array.reshape(-1, order="A")


def raw_bytes(elements: Flat) -> memoryview:
    """Return the bytes of a flat array."""
    return elements.view(np.uint8).data if elements.nbytes else memoryview(bytearray())


def memory_order(array: Flat) -> str:
    """Return "C" or "F" if an array has only one memory order; "" if the order makes no difference."""
    if array.ndim < 2 or (array.flags.c_contiguous and array.flags.f_contiguous):
        return ""
    return "C" if array.flags.c_contiguous else "F"


def check_alike(source: Elements, target: Elements, call: str, times: int = 1) -> None:
    """Raise UsageError unless `target` has `times` the elements of `source`, of one type and in one memory order."""
    one, other = source.array, target.array
    if other.size != one.size * times or other.dtype != one.dtype:
        raise UsageError(
            f"{call}: recvbuf has {counted(other)}, and {one.size * times} x {dtype_name(one.dtype)} are needed"
        )
    check_order(one, other, call)


def check_order(one: Flat, other: Flat, call: str) -> None:
    """Raise UsageError if one array is in C order and the other in Fortran order."""
    if {memory_order(one), memory_order(other)} == {"C", "F"}:
        raise UsageError(
            f"{call}: one buffer is in C order and the other in Fortran order, and the call copies memory as it lies: "
            "use numpy.ascontiguousarray or numpy.asfortranarray on one of them"
        )


def counted(array: Flat) -> str:
    """Return the number of elements of an array and their type."""
    return f"{array.size} x {dtype_name(array.dtype)}"


def readable_array(given: Any, call: str) -> Flat:
    """Return a buffer as an array whose memory can be sent.

    Raises NotContiguous, or UsageError if the value is no buffer or holds Python objects.
    """
    if not isinstance(given, np.ndarray):
        if given is None:
            raise UsageError(f"{call} needs an array or another buffer, not None")
        try:
            given = np.from_dlpack(given) if _is_in_host_memory(given) else np.asarray(memoryview(given))
        except TypeError:
            raise UsageError(
                f"{call} needs an array or another buffer, or a list of a buffer and its type such as "
                f"[buffer, MPI.DOUBLE], not {type(given).__name__}; {call.lower()}() takes any object"
            ) from None
    array: Flat = np.asarray(given)  # of a subclass such as memmap the memory counts
    if array.dtype.hasobject:
        raise UsageError(f"{call} cannot send an array of Python objects ({array.dtype}); use {call.lower()}()")
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise NotContiguous(
            f"{call} needs a contiguous array; this one, of shape {array.shape}, is a view with gaps: "
            "give numpy.ascontiguousarray(array), or receive into a contiguous array and copy it"
        )
    return array


def _is_in_host_memory(given: Any) -> bool:
    """Return whether a value is an array of another library in host memory, such as a tensor of PyTorch."""
    device = getattr(given, "__dlpack_device__", None)
    return device is not None and device()[0] == _DLPACK_HOST


def writable_array(given: Any, call: str) -> Flat:
    """Return a buffer as a writable array. Raises as `readable_array`, and UsageError if it is read-only."""
    array = readable_array(given, call)
    if not array.flags.writeable:
        raise UsageError(f"{call} cannot write into a read-only {type(given).__name__}")
    return array


def readable(given: Any, call: str, blocks: int = 1) -> Elements:
    """Return the elements of a buffer that is sent; `blocks`: number of parts, of which a given count is one."""
    return _elements(given, call, blocks, writable=False)


def writable(given: Any, call: str, blocks: int = 1) -> Elements:
    """Return the elements of a buffer that is filled; as `readable`. Raises UsageError also if it is read-only."""
    return _elements(given, call, blocks, writable=True)


def fill(space: Elements, message: Received) -> None:
    """Copy the array of a message to the start of a buffer.

    An array in the other memory order is copied right if the shapes agree. Raises MessageMismatch before the body is
    taken.
    """
    shape = transposed_shape(space, message.envelope)
    if shape is not None:
        room = np.empty(message.envelope.size // space.array.itemsize, space.array.dtype)
        message.take_into(raw_bytes(room))
        space.array[...] = room.reshape(shape[::-1]).T if memory_order(space.array) == "C" else room.reshape(shape)
        return
    count = message.envelope.size // max(space.array.itemsize, 1)
    message.take_into(raw_bytes(space.flat[:count]))
    space.store(count)


def transposed_shape(space: Elements, envelope: Envelope) -> tuple[int, ...] | None:
    """Return the shape of an array that comes in the other memory order; None: it comes in that of `space`.

    Raises MessageMismatch if the message does not fit.
    """
    array = space.array
    about = f"the message of rank {envelope.source} with tag {envelope.tag!r}"
    if envelope.form != ARRAY:
        raise MessageMismatch(f"{about} is no array but another object; receive it with recv()")
    dtype, shape, order = array_of(envelope.meta)
    if not _is_alike(dtype, array.dtype):
        raise MessageMismatch(f"{about} is an array of {dtype}{list(shape)}, the buffer has elements of {array.dtype}")
    if envelope.size > array.nbytes:
        raise MessageMismatch(
            f"{about} has {envelope.size // max(dtype.itemsize, 1)} elements, the buffer has room for {array.size}"
        )
    own = memory_order(array)
    if own and envelope.size and len(shape) > 1 and order != own and sum(length > 1 for length in shape) > 1:
        if shape == array.shape:
            return shape
        names = {"C": "in C order", "F": "in Fortran order"}
        raise MessageMismatch(
            f"{about} is an array {list(shape)} {names[order]}, the buffer is one of {list(array.shape)} {names[own]}: "
            "use one order, or arrays of equal shape"
        )
    return None


class Blocks:
    """The parts of a buffer for each rank, of any lengths, one `Elements` each."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Elements]) -> None:
        self.parts = parts

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.parts[0].array.dtype

    def store(self) -> None:
        """Write all copies to their places in the buffer."""
        for part in self.parts:
            part.store()


def readable_blocks(given: Any, call: str, size: int) -> Blocks:
    """Return the parts of a buffer for `size` ranks, which are sent."""
    return _blocks(given, call, size, writable=False)


def writable_blocks(given: Any, call: str, size: int) -> Blocks:
    """Return the parts of a buffer for `size` ranks, which are filled."""
    return _blocks(given, call, size, writable=True)


def typed_blocks(given: Any, call: str, size: int, *, to_fill: bool) -> Blocks:
    """Return the parts of a buffer with a type for each rank; displacements are in bytes, as in Alltoallw."""
    words = list(given) if isinstance(given, (list, tuple)) else []
    if len(words) == 3 and isinstance(words[1], (tuple, list)) and len(words[1]) == 2:
        words[1:2] = list(words[1])
    if len(words) == 2:
        words[1:1] = [[1] * size, [0] * size]
    if len(words) != 4 or not isinstance(words[3], (list, tuple)):
        _refuse(given, call, "[buffer, counts, displacements in bytes, types]")
    counts, starts = _numbers(words[1], call, size, "counts"), _numbers(words[2], call, size, "displacements")
    if len(words[3]) != size:
        raise UsageError(f"{call}: there are {len(words[3])} types, and {size} are needed")
    array, memory = _memory(words[0], call, to_fill)
    kinds = [as_datatype(one, call) for one in words[3]]
    return Blocks([_part(array, memory, *one, call, to_fill) for one in zip(kinds, counts, starts, strict=True)])


def _elements(given: Any, call: str, blocks: int, *, writable: bool) -> Elements:
    if type(given) is np.ndarray and not given.dtype.hasobject:  # most buffers, without the checks below
        flags = given.flags
        if flags.c_contiguous and (flags.writeable or not writable):
            return Elements(given)
    if not isinstance(given, (list, tuple)):
        return Elements(writable_array(given, call) if writable else readable_array(given, call))
    buffer, count, start, kind = _simple(given, call)
    array, memory = _memory(buffer, call, writable)
    kind = _kind(kind, array, call)
    if count is None and start == 0 and kind.is_dense and array.dtype == kind.dtype and array.size % kind.count == 0:
        return Elements(array)
    if count is None:
        left = array.nbytes - start * kind.extent
        if left < 0:
            raise UsageError(f"{call}: the displacement {start} is beyond the end of the buffer")
        if left and (kind.extent <= 0 or left % kind.extent):
            raise UsageError(
                f"{call}: give a count: the buffer has {left} bytes, which is no multiple of the "
                f"{kind.extent} bytes of {kind}"
            )
        count = left // kind.extent if left else 0
    else:
        count *= blocks
    return _part(array, memory, kind, count, start * kind.extent, call, writable)


def _simple(given: Sequence[Any], call: str) -> tuple[Any, int | None, int, Any]:
    """Return buffer, count, displacement and type of a list. Raises UsageError."""
    words = list(given)
    if not 2 <= len(words) <= 4:
        _refuse(given, call, "[buffer, count, type]")
    count: Any = None
    start: Any = 0
    kind: Any = None
    if len(words) == 2 and isinstance(words[1], _TYPES):
        kind = words[1]
    elif len(words) == 4:
        count, start, kind = words[1:]
    else:
        count = words[1]
        kind = words[2] if len(words) == 3 else None
        if isinstance(count, (tuple, list)):
            if len(count) != 2:
                _refuse(given, call, "[buffer, (count, displacement), type]")
            count, start = count
    return (
        words[0],
        None if count is None else _number(count, call, "count"),
        _number(start or 0, call, "displacement"),
        kind,
    )


def _blocks(given: Any, call: str, size: int, *, writable: bool) -> Blocks:
    counts: Any = None
    starts: Any = None
    kind: Any = None
    buffer = given
    if isinstance(given, (list, tuple)):
        words = list(given)
        if not 2 <= len(words) <= 4:
            _refuse(given, call, "[buffer, counts, displacements, type]")
        buffer = words[0]
        if len(words) == 2 and isinstance(words[1], _TYPES):
            kind = words[1]
        elif len(words) == 4:
            counts, starts, kind = words[1:]
        else:
            counts = words[1]
            kind = words[2] if len(words) == 3 else None
            if isinstance(counts, tuple):
                if len(counts) == 2:
                    counts, starts = counts  # as in mpi4py, also if there are two ranks
                elif len(counts) != size:
                    _refuse(given, call, "[buffer, (counts, displacements), type]")
    array, memory = _memory(buffer, call, writable)
    kind = _kind(kind, array, call)
    if counts is None:
        if array.nbytes and (kind.extent <= 0 or array.nbytes % kind.extent):
            raise UsageError(f"{call}: give counts: {array.nbytes} bytes are no multiple of the size of {kind}")
        whole, more = divmod(array.nbytes // kind.extent if array.nbytes else 0, size)
        lengths = [whole + (rank < more) for rank in range(size)]
    else:
        lengths = _numbers(counts, call, size, "counts")
    if starts is None:
        places = [sum(lengths[:rank]) for rank in range(size)]
    elif _is_number(starts):
        places = [_number(starts, call, "displacement") * rank for rank in range(size)]
    else:
        places = _numbers(starts, call, size, "displacements")
    return Blocks(
        [
            _part(array, memory, kind, count, start * kind.extent, call, writable)
            for count, start in zip(lengths, places, strict=True)
        ]
    )


def _memory(buffer: Any, call: str, writable: bool) -> tuple[Flat, NDArray[np.uint8]]:
    """Return a buffer as an array, and its bytes; None and BOTTOM are empty."""
    if buffer is None or buffer is BOTTOM:
        buffer = bytearray()
    array = writable_array(buffer, call) if writable else readable_array(buffer, call)
    flat = flatten(array)
    return array, flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)


def _kind(given: Any, array: Flat, call: str) -> Datatype:
    """Return the datatype of a buffer's elements. Raises UsageError if the array has elements of another type."""
    if given is None:
        return Datatype(array.dtype)
    kind = as_datatype(given, call)
    if array.nbytes and not _can_view(array.dtype, kind.dtype):
        raise UsageError(
            f"{call}: the array has elements of {array.dtype}, and the type {kind} has elements of "
            f"{kind.dtype}: give the array's own type, or convert it with astype()"
        )
    return kind


def _part(
    array: Flat, memory: NDArray[np.uint8], kind: Datatype, count: int, start: int, call: str, writable: bool
) -> Elements:
    """Return the elements of `count` of a type from a byte on."""
    if kind.is_dense or not count:
        stop = start + count * kind.extent
        if start < 0 or stop > memory.size:
            _too_small(kind, count, start, memory.size, call)
        return Elements(memory[start:stop].view(kind.dtype) if stop > start else np.empty(0, kind.dtype))
    places = kind.indices(count) + start
    if places.size and (places.min() < 0 or places.max() + kind.dtype.itemsize > memory.size):
        _too_small(kind, count, start, memory.size, call)
    view, indices = selected(memory, places, kind.dtype)
    taken = view[indices]
    return Elements(
        taken if taken.dtype == kind.dtype else taken.view(kind.dtype), *((view, indices) if writable else ())
    )


def _too_small(kind: Datatype, count: int, start: int, size: int, call: str) -> NoReturn:
    behind = f" from byte {start} on" if start else ""
    raise UsageError(f"{call}: the buffer has {size} bytes, which is too few for {count} of {kind}{behind}")


def _can_view(own: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return whether memory of one dtype may be meant as elements of another."""
    if own == wanted or own.kind in "SVU" or wanted.kind in "SVU" or 1 in (own.itemsize, wanted.itemsize):
        return True
    if own.kind in "iumM" and wanted.kind in "iumM":
        return own.itemsize == wanted.itemsize
    return own.kind == "c" and wanted.kind == "f" and own.itemsize == 2 * wanted.itemsize


def _is_alike(sent: np.dtype[Any], space: np.dtype[Any]) -> bool:
    """Return whether elements that were sent can fill a buffer: of one type, or both are single bytes."""
    return sent == space or (sent.itemsize == space.itemsize == 1 and "b" not in (sent.kind, space.kind))


def _is_number(given: Any) -> bool:
    return hasattr(given, "__index__") and not isinstance(given, np.ndarray)


def _number(given: Any, call: str, what: str) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        raise UsageError(f"{call}: a {what} is an integer, not {given!r}") from None
    if number < 0:
        raise UsageError(f"{call}: a {what} is at least 0, not {number}")
    return number


def _numbers(given: Any, call: str, size: int, what: str) -> list[int]:
    """Return a number for each rank, from a sequence or one number for all."""
    if _is_number(given):
        return [_number(given, call, what)] * size
    try:
        numbers = [operator.index(one) for one in (given.tolist() if isinstance(given, np.ndarray) else given)]
    except TypeError:
        raise UsageError(f"{call}: {what} are integers, one for each rank, not {given!r}") from None
    if len(numbers) != size:
        raise UsageError(f"{call}: there are {len(numbers)} {what}, and {size} are needed, one for each rank")
    if min(numbers) < 0:
        raise UsageError(f"{call}: {what} are at least 0, not {min(numbers)}")
    return numbers


def _refuse(given: Any, call: str, form: str) -> NoReturn:
    raise UsageError(
        f"{call}: a list of {len(given) if isinstance(given, (list, tuple)) else 1} is not understood; give {form}"
    )
