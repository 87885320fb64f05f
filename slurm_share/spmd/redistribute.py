"""Execution of the plans of `rules/plans.py`: pack blocks, send them, put received ones in place.

On a node, a rank puts all blocks for other ranks into one window of shared memory, from which each receiver copies its
block into place: two copies in all. Between nodes, without windows, and for small amounts, a block is a message.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import host
from .agreement import Distributed
from .bodies import Received
from .calls import CollectiveCall, Group
from .comm import Comm
from .errors import NoRoom
from .names import PIECE_BYTES
from .rules.plans import Part, assignment, in_turn, redistribution
from .transport import Window

WINDOW_MIN = 64 << 10
WINDOW_MAX = 256 << 20
"""Limits of the bytes that a rank sends through a window to its node, since a window stays until the next call."""
_ALIGNED = 64
_OFFSET = struct.Struct("<Q")


def move(name: str, source: Distributed, target: Distributed, dtype: np.dtype[Any]) -> None:
    """Fill the local part of an array from one with another map. Collective.

    All ranks must have agreed on shape, maps and `dtype`, in which elements are sent.
    """
    plan = redistribution(source.shape, source.map, target.map, source.comm.rank)
    with staged(target.local) as room:
        exchange(source.comm, name, host.to_host(source.local), room, dtype, plan.sends, plan.receives, plan.kept)


def assign_slice(target: Distributed, chosen: Sequence[range], source: Distributed, dtype: np.dtype[Any]) -> None:
    """Fill a slice of an array from an array of the slice's shape; as for `move`. Collective.

    `chosen`: the indices of the slice in each dimension.
    """
    comm = target.comm
    sends, receives = assignment(target.shape, target.map, chosen, source.map, comm.rank)
    parts = in_turn(sends, receives, comm.rank)
    with staged(target.local) as room:
        exchange(comm, "assignment to a slice", host.to_host(source.local), room, dtype, *parts)
    if any(target.map.overlap):
        fill_overlap(target)


def fill_overlap(array: Distributed) -> None:
    """Fill the overlap of an array with the owners' values. Collective, with the same dtype on all ranks."""
    plan = redistribution(array.shape, array.map, array.map, array.comm.rank)
    with staged(array.local) as room:
        exchange(array.comm, "halo", room, room, room.dtype, plan.sends, plan.receives)


@contextlib.contextmanager
def staged(target: Any) -> Iterator[NDArray[Any]]:
    """Give the array, or a host copy of one in GPU memory, to write to; copy that back if no error is raised."""
    room = host.to_host(target)
    yield room
    if room is not target:
        target[...] = host.to_memory_of(target, room)


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

    Collective. Each send matches a receive on the other rank, with the elements in the same order.
    """
    group = comm.group
    with group.call(f"{name} as {dtype.str}") as call:
        near = [part for part in sends if part.rank in group.node_ranks]
        window = _window(group, sum(_room_of(part, dtype) for part in near))
        offset = 0
        for part in sends:
            if window is None or part.rank not in group.node_ranks:
                block = _bytes(part.take(source, np.empty(part.shape, dtype)))
                for first in range(0, len(block), PIECE_BYTES):
                    call.send(part.rank, b"", (block[first : first + PIECE_BYTES],))
            else:
                part.take(source, _block(window.memory, offset, part, dtype))
                call.send(part.rank, _OFFSET.pack(offset), (), window=window)
                offset += _room_of(part, dtype)
        if kept is not None:
            view = kept[0].view(source)
            kept[1].put(target, kept[0].take(source) if view is None else view)
        for part in receives:
            _received(call, part, target, dtype)
    if window is not None:
        group.lent.append((window, call.number, [part.rank for part in near]))


def _room_of(part: Part, dtype: np.dtype[Any]) -> int:
    """Return the size of a block in a window, with padding, in bytes."""
    size = part.size * dtype.itemsize
    return size + -size % _ALIGNED


def _block(memory: memoryview, offset: int, part: Part, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(memory, dtype, part.size, offset).reshape(part.shape)


def _bytes(block: NDArray[Any]) -> memoryview:
    return block.reshape(-1).view(np.uint8).data


def _received(call: CollectiveCall, part: Part, target: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Wait for a block and put it in place."""
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


def _take_pieces(call: CollectiveCall, message: Received, data: memoryview) -> None:
    """Receive the messages of a block, the first of which has arrived, into its memory."""
    message.take_into(data[:PIECE_BYTES])
    for first in range(PIECE_BYTES, len(data), PIECE_BYTES):
        call.receive(message.envelope.source).take_into(data[first : first + PIECE_BYTES])


def _window(group: Group, size: int) -> Window | None:
    """Return memory to share with ranks of this node; None: send messages instead."""
    lent, group.lent = group.lent, []
    for window, number, readers in lent:
        if all(group.has_passed(rank, number) for rank in readers):
            window.release()
        else:
            group.lent.append((window, number, readers))
    if not group.transport.has_windows or not WINDOW_MIN <= size <= WINDOW_MAX:
        return None
    try:
        return group.transport.window(size)
    except NoRoom:
        return None
