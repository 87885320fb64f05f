"""Carry out the plans of `rules/plans.py`: pack blocks, send them, put what comes in its place.

On a node, all that a rank sends to others goes into one window of shared memory, from which each receiver copies its
block straight into place: two copies in all. Between nodes, without windows, and for small amounts, a block is a
message.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import host
from .calls import Call, Group
from .comm import Comm
from .errors import NoRoom
from .names import PIECE_BYTES
from .rules.assignment import assignment
from .rules.maps import Map
from .rules.plans import Part, halo, in_turn, redistribution
from .transport import Message, Window

WINDOW_MIN = 64 << 10
WINDOW_MAX = 256 << 20
"""A rank that sends less, or more, on its node sends messages instead: a window stays until the next such call."""
_ALIGNED = 64
_OFFSET = struct.Struct("<Q")


class Lent(NamedTuple):
    """A window that other ranks read; it is released when all of them are known to have finished the call."""

    window: Window
    number: int
    """Number of the collective call."""
    readers: tuple[int, ...]


_lent: weakref.WeakKeyDictionary[Group, list[Lent]] = weakref.WeakKeyDictionary()


def move(
    comm: Comm,
    name: str,
    shape: Sequence[int],
    source_map: Map,
    source: NDArray[Any],
    target_map: Map,
    target: NDArray[Any],
    dtype: np.dtype[Any],
) -> None:
    """Fill the local array `target` of one map from the local arrays `source` of another. Collective.

    All ranks have agreed on `dtype`, in which the elements travel, on shape and maps.
    """
    plan = redistribution(shape, source_map, target_map, comm.rank)
    with staged(target) as room:
        exchange(comm, name, host.of(source), room, dtype, plan.sends, plan.receives, plan.kept)


def assign_slice(
    comm: Comm,
    shape: Sequence[int],
    target_map: Map,
    target: NDArray[Any],
    chosen: Sequence[range],
    source_map: Map,
    source: NDArray[Any],
    dtype: np.dtype[Any],
) -> None:
    """Fill a slice of the array of which `target` is the local part from an array of the slice's shape. Collective.

    `chosen`: the indices that are assigned to, per dimension. The rest is as for `move`.
    """
    sends, receives = assignment(shape, target_map, chosen, source_map, comm.rank)
    with staged(target) as room:
        exchange(comm, "assignment to a slice", host.of(source), room, dtype, *in_turn(sends, receives, comm.rank))
    if any(target_map.overlap):
        fill_overlap(comm, shape, target_map, target)


def fill_overlap(comm: Comm, shape: Sequence[int], map: Map, local: NDArray[Any]) -> None:
    """Fill the overlap of a local array with its owners' values. Collective; all ranks' arrays have the same dtype."""
    with staged(local) as room:
        for number, step in enumerate(halo(shape, map, comm.rank)):
            exchange(comm, f"halo(dimension={number})", room, room, room.dtype, step.sends, step.receives)


class staged:
    """Give a NumPy array to be written to instead of an array in a GPU's memory, and copy it there at the end."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.room: NDArray[Any] = host.of(target)

    def __enter__(self) -> NDArray[Any]:
        return self.room

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and self.room is not self.target:
            self.target[...] = host.like(self.target, self.room)


def exchange(
    comm: Comm,
    name: str,
    source: NDArray[Any],
    target: NDArray[Any],
    dtype: np.dtype[Any],
    sends: Sequence[Part],
    receives: Iterable[Part],
    kept: tuple[Part, Part] | None = None,
) -> None:
    """Send blocks of `source` to other ranks, and put theirs into `target`; `kept` is copied from one to the other.

    Collective. Each send has its receive on that rank, with the elements in the same order.
    """
    group = comm.group
    with comm.call(f"{name} as {dtype.str}") as call:
        near = [part for part in sends if part.rank in group.node_ranks]
        window = _window(group, sum(map(_room_of, near, [dtype] * len(near))))
        offset = 0
        for part in sends:
            if window is None or part.rank not in group.node_ranks:
                block = _bytes(_taken(part, source, dtype))
                for first in range(0, len(block), PIECE_BYTES):
                    call.send(part.rank, b"", (block[first : first + PIECE_BYTES],))
            else:
                _taken(part, source, dtype, _block(window.memory, offset, part, dtype))
                call.send(part.rank, _OFFSET.pack(offset), (), window=window)
                offset += _room_of(part, dtype)
        if kept is not None:
            view = kept[0].view(source)
            kept[1].put(target, _taken(kept[0], source, dtype) if view is None else view)
        for part in receives:
            _received(call, part, target, dtype)
    if window is not None:
        _lent.setdefault(group, []).append(Lent(window, call.number, tuple(part.rank for part in near)))


def _room_of(part: Part, dtype: np.dtype[Any]) -> int:
    """Return the bytes of a block in a window."""
    size = part.size * dtype.itemsize
    return size + -size % _ALIGNED


def _taken(part: Part, source: NDArray[Any], dtype: np.dtype[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
    block = np.empty(part.shape, dtype) if out is None else out
    part.take(source, block)
    return block


def _block(memory: memoryview, offset: int, part: Part, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(memory, dtype, part.size, offset).reshape(part.shape)


def _bytes(block: NDArray[Any]) -> memoryview:
    return block.reshape(-1).view(np.uint8).data


def _received(call: Call, part: Part, target: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Wait for a block of a rank, and put it in its place."""
    message = call.receive(part.rank)
    if message.window is not None:
        (offset,) = _OFFSET.unpack(message.envelope.meta)
        part.put(target, _block(message.window, offset, part, dtype))
        return
    view = part.view(target)
    if view is not None and view.flags.c_contiguous and target.dtype == dtype:
        _take_pieces(call, message, _bytes(view))
    elif message.envelope.size == part.size * dtype.itemsize:
        part.put(target, _block(message.take(), 0, part, dtype))
    else:
        block = np.empty(part.shape, dtype)
        _take_pieces(call, message, _bytes(block))
        part.put(target, block)


def _take_pieces(call: Call, message: Message, data: memoryview) -> None:
    """Receive a block at its place in memory, from its first message on."""
    message.take_into(data[:PIECE_BYTES])
    for first in range(PIECE_BYTES, len(data), PIECE_BYTES):
        call.receive(message.envelope.source).take_into(data[first : first + PIECE_BYTES])


def _window(group: Group, size: int) -> Window | None:
    """Return memory to share with ranks of this node; None where messages do as well or must do."""
    waiting = []
    for one in _lent.pop(group, []):
        if all(group.has_passed(rank, one.number) for rank in one.readers):
            one.window.release()
        else:
            waiting.append(one)
    _lent[group] = waiting
    if not group.transport.has_windows or not WINDOW_MIN <= size <= WINDOW_MAX:
        return None
    try:
        return group.transport.window(size)
    except NoRoom:
        return None
