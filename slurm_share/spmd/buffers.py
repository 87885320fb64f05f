"""Collective calls with arrays and other buffers, whose size every rank knows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import codec, reductions
from .bulk import Item, answered, leased, meet, spread
from .calls import Call, Group, named
from .errors import MessageMismatch, NotContiguous, UsageError
from .ops import Op
from .rules import trees
from .transport import ARRAY, RAW, Envelope
from .windows import WINDOW_BYTES, as_bytes, room

Flat = NDArray[Any]

SHARED_BYTES = 512 << 10
"""Results from this size on go through a window where all ranks of a node need them."""
_SLAB = 1 << 20
"""What goes through the window at once, of each rank, at most."""


def sent(given: Any, call: str) -> Flat:
    """Return a buffer as an array of which the memory is sent.

    Raises NotContiguous, UsageError where it is no buffer or holds Python objects.
    """
    if not isinstance(given, np.ndarray):
        try:
            given = np.asarray(memoryview(given))
        except TypeError:
            low = call.lower()
            pair = "; give the array alone, without its type" if isinstance(given, (list, tuple)) else ""
            raise UsageError(
                f"{call} needs an array or another buffer, not {type(given).__name__}{pair}; {low}() takes any object"
            ) from None
    array: Flat = given
    if array.dtype.hasobject:
        raise UsageError(f"{call} cannot send an array of Python objects ({array.dtype}); use {call.lower()}()")
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise NotContiguous(
            f"{call} needs a contiguous array; this one, of shape {array.shape}, is a view with gaps: "
            "give numpy.ascontiguousarray(array), or receive into a contiguous array and copy it"
        )
    return array


def written(given: Any, call: str) -> Flat:
    """Return a buffer as an array that is written to; raises as `sent`, and UsageError where it is read-only."""
    array = sent(given, call)
    if not array.flags.writeable:
        raise UsageError(f"{call} cannot write into a read-only {type(given).__name__}")
    return array


def flat(array: Flat) -> Flat:
    """Return a contiguous array's elements as they lie in memory."""
    return array.reshape(-1, order="A")


def raw(elements: Flat) -> memoryview:
    """Return the bytes of a flat array."""
    return elements.view(np.uint8).data if elements.nbytes else memoryview(bytearray())


def fitting(space: Flat, envelope: Envelope) -> memoryview:
    """Return the bytes of the beginning of `space` that a message fills. Raises MessageMismatch."""
    about = f"the message of rank {envelope.source} with tag {envelope.tag!r}"
    if envelope.form != ARRAY:
        raise MessageMismatch(f"{about} is no array but another object; receive it with recv()")
    dtype, shape, _ = codec.array_of(envelope.meta)
    if dtype != space.dtype:
        raise MessageMismatch(f"{about} is an array of {dtype}{list(shape)}, the buffer has elements of {space.dtype}")
    if envelope.size > space.nbytes:
        raise MessageMismatch(
            f"{about} has {envelope.size // max(dtype.itemsize, 1)} elements, the buffer has room for {space.size}"
        )
    return raw(flat(space)[: envelope.size // max(dtype.itemsize, 1)])


def bcast(group: Group, buffer: Any, root: int) -> None:
    """Copy the root's array into every rank's."""
    array = flat(sent(buffer, "Bcast") if group.rank == root else written(buffer, "Bcast"))
    with group.call(f"Bcast({_counted(array)}, root={root})") as call:
        _spread(group, call, array, root)


def gather(group: Group, sendbuf: Any, recvbuf: Any, root: int) -> None:
    """Copy all ranks' arrays into the root's `recvbuf`, one behind the other."""
    part = flat(sent(sendbuf, "Gather"))
    whole = None
    if group.rank == root:
        whole = _room(recvbuf, part, group.size, "Gather")
    with group.call(f"Gather({_counted(part)}, root={root})") as call:
        collect(group, call, part, whole, root)


def collect(group: Group, call: Call, part: Flat, whole: Flat | None, root: int) -> None:
    """Copy all ranks' parts into the root's `whole`, within a call."""
    speaker = group.speaker(root)
    if group.rank != speaker:
        call.send(speaker, b"", (raw(part),))
        return
    first, count = group.node_ranks[0], len(group.node_ranks)
    if group.rank == root:
        assert whole is not None
        mine = whole[first * part.size : (first + count) * part.size]
    else:
        mine = room(count * part.size, part.dtype)
    for place, rank in enumerate(group.node_ranks):
        slot = mine[place * part.size : (place + 1) * part.size]
        if rank == group.rank:
            slot[:] = part
        else:
            call.receive(rank).take_into(raw(slot))
    if group.rank != root:
        call.send(root, b"", (raw(mine),))
        return
    assert whole is not None
    for node, other in zip(group.nodes, trees.speakers(group.nodes, root), strict=True):
        if other != root:
            slot = whole[node.first * part.size : (node.first + node.count) * part.size]
            call.receive(other).take_into(raw(slot))


def allgather(group: Group, sendbuf: Any, recvbuf: Any) -> None:
    """Copy all ranks' arrays into every rank's `recvbuf`, one behind the other."""
    part = flat(sent(sendbuf, "Allgather"))
    whole = _room(recvbuf, part, group.size, "Allgather")
    with group.call(f"Allgather({_counted(part)})") as call:
        if not _exchange(group, call, part, whole):
            collect(group, call, part, whole, 0)
            _spread(group, call, whole, 0)
    group.node_passed = call.number - 1


def _exchange(group: Group, call: Call, part: Flat, whole: Flat) -> bool:
    """Do the same by way of a window. Returns False, on all ranks, where that is of no use or there is no memory."""
    ranks = group.node_ranks
    if group.size == 1 or len(group.nodes) > 1 or not group.transport.has_windows or whole.nbytes < SHARED_BYTES:
        return False
    inside = group.inside(0)
    slab = max(1, min(part.nbytes, _SLAB, WINDOW_BYTES // (2 * len(ranks))) // part.itemsize)
    lease = leased(group, call, 0, 2 * len(ranks) * slab * part.itemsize)
    if lease is None:
        return False
    halves = lease.memory[: 2 * len(ranks) * slab * part.itemsize].view(part.dtype).reshape(2, len(ranks), slab)
    table = whole.reshape(len(ranks), part.size)
    for number, (start, stop) in enumerate(trees.pieces(part.size, slab)):
        # Who writes here has met the others since they read what was in this half.
        slots = halves[number % 2, :, : stop - start]
        slots[group.rank] = part[start:stop]
        meet(call, inside)
        table[:, start:stop] = slots
    if lease.answer:
        answered(call, inside)
        lease.finish()
    return True


def _spread(group: Group, call: Call, array: Flat, root: int) -> None:
    data = as_bytes(array)
    spread(group, call, root, Item(RAW, b"", (raw(array),)) if group.rank == root else None, data)


def scatter(group: Group, sendbuf: Any, recvbuf: Any, root: int) -> None:
    """Copy each rank's part of the root's `sendbuf` into its `recvbuf`."""
    part = flat(written(recvbuf, "Scatter"))
    whole = _source(sendbuf, part, group.size, "Scatter") if group.rank == root else None
    with group.call(f"Scatter({_counted(part)}, root={root})") as call:
        speaker = group.speaker(root)
        if group.rank != speaker:
            call.receive(speaker).take_into(raw(part))
            return
        if whole is not None:
            for node, other in zip(group.nodes, trees.speakers(group.nodes, root), strict=True):
                if other != root:
                    begin, end = node.first * part.size, (node.first + node.count) * part.size
                    call.send(other, b"", (raw(whole[begin:end]),))
            whole = whole[group.node_ranks[0] * part.size :]
        else:
            whole = room(len(group.node_ranks) * part.size, part.dtype)
            call.receive(root).take_into(raw(whole))
        for place, rank in enumerate(group.node_ranks):
            slot = whole[place * part.size : (place + 1) * part.size]
            if rank == group.rank:
                part[:] = slot
            else:
                call.send(rank, b"", (raw(slot),))


def alltoall(group: Group, sendbuf: Any, recvbuf: Any) -> None:
    """Copy this rank's part of every rank's `sendbuf` into `recvbuf`, one behind the other."""
    source, target = flat(sent(sendbuf, "Alltoall")), flat(written(recvbuf, "Alltoall"))
    count, rest = divmod(source.size, group.size)
    if rest or target.size != source.size or target.dtype != source.dtype:
        raise UsageError(
            f"Alltoall needs two buffers of equal length and type, a multiple of {group.size} elements long; "
            f"these have {_counted(source)} and {_counted(target)}"
        )
    others = trees.rotated(group.size, group.rank)
    with group.call(f"Alltoall({_counted(source)})") as call:
        for rank in others:
            call.send(rank, b"", (raw(source[rank * count : (rank + 1) * count]),))
        own = slice(group.rank * count, (group.rank + 1) * count)
        target[own] = source[own]
        for rank in reversed(others):
            call.receive(rank).take_into(raw(target[rank * count : (rank + 1) * count]))
    group.node_passed = call.number - 1


def reduce(group: Group, sendbuf: Any, recvbuf: Any, op: Op, root: int) -> None:
    """Combine all ranks' arrays element by element into the root's `recvbuf`."""
    part = flat(sent(sendbuf, "Reduce"))
    target = _room(recvbuf, part, 1, "Reduce") if group.rank == root else None
    with group.call(f"Reduce({_ufunc(op, part, 'Reduce')}, {_counted(part)}, root={root})") as call:
        total = reductions.reduce(group, call, part, op, root)
    if target is not None:
        target[:] = total


def allreduce(group: Group, sendbuf: Any, recvbuf: Any, op: Op) -> None:
    """Combine all ranks' arrays element by element into every rank's `recvbuf`."""
    part = flat(sent(sendbuf, "Allreduce"))
    target = _room(recvbuf, part, 1, "Allreduce")
    with group.call(f"Allreduce({_ufunc(op, part, 'Allreduce')}, {_counted(part)})") as call:
        reductions.allreduce(group, call, part, op, target)
    group.node_passed = call.number - 1


def _counted(array: Flat) -> str:
    return f"{array.size} x {named(array.dtype)}"


def _ufunc(op: Any, part: Flat, call: str) -> str:
    """Return the name of the operation. Raises UsageError where it cannot combine such elements."""
    if part.dtype.kind not in reductions.NUMBERS:
        raise UsageError(f"{call} combines numbers, not elements of {part.dtype}; use {call.lower()}()")
    if not isinstance(op, Op):
        raise UsageError(f"{call} takes SUM, PROD, MIN or MAX, not {op!r}; {call.lower()}() takes any function")
    return op.name


def _room(given: Any, part: Flat, count: int, call: str) -> Flat:
    """Return the buffer that receives `count` times as much as `part`, flat. Raises UsageError if it does not fit."""
    if given is None:
        raise UsageError(f"{call} needs a recvbuf on the rank that receives")
    return _same(flat(written(given, call)), part, count, call, "recvbuf")


def _source(given: Any, part: Flat, count: int, call: str) -> Flat:
    if given is None:
        raise UsageError(f"{call} needs a sendbuf on the root")
    return _same(flat(sent(given, call)), part, count, call, "sendbuf")


def _same(array: Flat, part: Flat, count: int, call: str, name: str) -> Flat:
    if array.size != part.size * count or array.dtype != part.dtype:
        needed = f"{part.size * count} x {named(part.dtype)}"
        raise UsageError(f"{call}: {name} has {_counted(array)}, and {needed} are needed")
    return array
