"""Collective calls with arrays and other buffers of sizes that all ranks know, as `Comm` describes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import reductions
from .buffer_specs import (
    Elements,
    check_alike,
    check_order,
    counted,
    flatten,
    is_in_place,
    memory_order,
    raw_bytes,
    readable,
    writable,
)
from .bulk import Item, broadcast, collect_up, lease_window, node_barrier
from .calls import WINDOW_BYTES, CollectiveCall, Group, as_bytes, dtype_name, room
from .envelope import RAW
from .errors import UsageError
from .operations import Op, for_buffers
from .rules import trees

Flat = NDArray[Any]

SHARED_BYTES = 512 << 10
"""Size from which on a result that all ranks of a node need goes through a window."""
_SLAB = 1 << 20
"""Limit of the bytes of each rank that are in the window at a time."""


def bcast(group: Group, buffer: Any, root: int) -> None:
    space = readable(buffer, "Bcast") if group.rank == root else writable(buffer, "Bcast")
    with group.call(f"Bcast({described(space.array)}, root={root})") as call:
        _broadcast(group, call, space.flat, root)
    if group.rank != root:
        space.store()


def gather(group: Group, sendbuf: Any, recvbuf: Any, root: int) -> None:
    whole = _room(recvbuf, "Gather", group.size) if group.rank == root else None
    part = _part(group, sendbuf, whole, "Gather")
    with group.call(f"Gather({described(part)}, root={root})") as call:
        collect(group, call, flatten(part), None if whole is None else whole.flat, root)
    if whole is not None:
        whole.store()


def collect(group: Group, call: CollectiveCall, part: Flat, whole: Flat | None, root: int) -> None:
    """Copy the parts of all ranks into the root's `whole`, within a call."""
    leader = group.leader(root)
    if group.rank != leader:
        call.send(leader, b"", (raw_bytes(part),))
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
            call.receive(rank).take_into(raw_bytes(slot))
    if group.rank != root:
        call.send(root, b"", (raw_bytes(mine),))
        return
    assert whole is not None
    for node, other in zip(group.nodes, trees.leaders(group.nodes, root), strict=True):
        if other != root:
            slot = whole[node.first * part.size : (node.first + node.count) * part.size]
            call.receive(other).take_into(raw_bytes(slot))


def allgather(group: Group, sendbuf: Any, recvbuf: Any) -> None:
    space = _room(recvbuf, "Allgather", group.size)
    given = _part(group, sendbuf, space, "Allgather")
    part, whole = flatten(given), space.flat
    with group.call(f"Allgather({described(given)})") as call:
        if not _exchange(group, call, part, whole):
            collect(group, call, part, whole, 0)
            _broadcast(group, call, whole, 0)
    group.node_passed = call.number - 1
    space.store()


def _exchange(group: Group, call: CollectiveCall, part: Flat, whole: Flat) -> bool:
    """Do `allgather` through a window. Returns False on all ranks if that saves nothing or there is no memory."""
    ranks = group.node_ranks
    if group.size == 1 or len(group.nodes) > 1 or not group.transport.has_windows or whole.nbytes < SHARED_BYTES:
        return False
    inside = group.inside(0)
    slab = max(1, min(part.nbytes, _SLAB, WINDOW_BYTES // (2 * len(ranks))) // part.itemsize)
    lease = lease_window(group, call, 0, 2 * len(ranks) * slab * part.itemsize)
    if lease is None:
        return False
    halves = lease.memory[: 2 * len(ranks) * slab * part.itemsize].view(part.dtype).reshape(2, len(ranks), slab)
    table = whole.reshape(len(ranks), part.size)
    for number, (start, stop) in enumerate(trees.pieces(part.size, slab)):
        # Since the other ranks read this half, all ranks have met in the barrier of the other half.
        slots = halves[number % 2, :, : stop - start]
        slots[group.rank] = part[start:stop]
        node_barrier(call, inside)
        table[:, start:stop] = slots
    if lease.needs_answer:
        collect_up(call, inside)
        lease.finish()
    return True


def _broadcast(group: Group, call: CollectiveCall, array: Flat, root: int) -> None:
    data = as_bytes(array)
    broadcast(group, call, root, Item(RAW, b"", (raw_bytes(array),)) if group.rank == root else None, data)


def scatter(group: Group, sendbuf: Any, recvbuf: Any, root: int) -> None:
    whole = None
    if group.rank == root:
        if sendbuf is None:
            raise UsageError("Scatter needs a sendbuf on the root")
        sent = readable(sendbuf, "Scatter", group.size)
        whole = sent.flat
        in_place = is_in_place(recvbuf)
        space = Elements(_own_part(group, sent.array, "Scatter")) if in_place else writable(recvbuf, "Scatter")
        if whole.size != space.array.size * group.size or whole.dtype != space.array.dtype:
            needed = f"{space.array.size * group.size} x {dtype_name(space.array.dtype)}"
            raise UsageError(f"Scatter: sendbuf has {counted(whole)}, and {needed} are needed")
        check_order(sent.array, space.array, "Scatter")
        part = np.empty_like(space.flat) if in_place else space.flat
    else:
        space = writable(recvbuf, "Scatter")
        part = space.flat
    with group.call(f"Scatter({described(space.array)}, root={root})") as call:
        _spread(group, call, whole, part, root)
    space.store()


def _spread(group: Group, call: CollectiveCall, whole: Flat | None, part: Flat, root: int) -> None:
    """Copy the parts of the root's `whole` into the `part` of all ranks, within a call."""
    leader = group.leader(root)
    if group.rank != leader:
        call.receive(leader).take_into(raw_bytes(part))
        return
    if whole is not None:
        for node, other in zip(group.nodes, trees.leaders(group.nodes, root), strict=True):
            if other != root:
                begin, end = node.first * part.size, (node.first + node.count) * part.size
                call.send(other, b"", (raw_bytes(whole[begin:end]),))
        whole = whole[group.node_ranks[0] * part.size :]
    else:
        whole = room(len(group.node_ranks) * part.size, part.dtype)
        call.receive(root).take_into(raw_bytes(whole))
    for place, rank in enumerate(group.node_ranks):
        slot = whole[place * part.size : (place + 1) * part.size]
        if rank == group.rank:
            part[:] = slot
        else:
            call.send(rank, b"", (raw_bytes(slot),))


def alltoall(group: Group, sendbuf: Any, recvbuf: Any) -> None:
    space = writable(recvbuf, "Alltoall", group.size)
    sent = Elements(space.array.copy(order="K")) if is_in_place(sendbuf) else readable(sendbuf, "Alltoall", group.size)
    source, target = sent.flat, space.flat
    count, rest = divmod(source.size, group.size)
    if rest or target.size != source.size or target.dtype != source.dtype:
        raise UsageError(
            f"Alltoall needs two buffers of equal length and type, a multiple of {group.size} elements long; "
            f"these have {counted(source)} and {counted(target)}"
        )
    check_order(sent.array, space.array, "Alltoall")
    others = trees.rotated(group.size, group.rank)
    with group.call(f"Alltoall({counted(source)})") as call:
        for rank in others:
            call.send(rank, b"", (raw_bytes(source[rank * count : (rank + 1) * count]),))
        own = slice(group.rank * count, (group.rank + 1) * count)
        target[own] = source[own]
        for rank in reversed(others):
            call.receive(rank).take_into(raw_bytes(target[rank * count : (rank + 1) * count]))
    group.node_passed = call.number - 1
    space.store()


def reduce(group: Group, sendbuf: Any, recvbuf: Any, op: Op, root: int) -> None:
    target = None
    if group.rank == root:
        part, target = pair(sendbuf, recvbuf, "Reduce")
    else:
        part = readable(sendbuf, "Reduce").array
    name = for_buffers(op, part.dtype, "Reduce").name
    with group.call(f"Reduce({name}, {described(part)}, root={root})") as call:
        total = reductions.reduce(group, call, flatten(part), op, root)
    if target is not None:
        target.flat[:] = total
        target.store()


def allreduce(group: Group, sendbuf: Any, recvbuf: Any, op: Op) -> None:
    part, target = pair(sendbuf, recvbuf, "Allreduce")
    name = for_buffers(op, part.dtype, "Allreduce").name
    with group.call(f"Allreduce({name}, {described(part)})") as call:
        reductions.allreduce(group, call, flatten(part), op, target.flat)
    group.node_passed = call.number - 1
    target.store()


def pair(sendbuf: Any, recvbuf: Any, call: str) -> tuple[Flat, Elements]:
    """Return the array to combine and the buffer for the result, which are alike; with IN_PLACE they are one."""
    if recvbuf is None:
        raise UsageError(f"{call} needs a recvbuf on the rank that receives")
    target = writable(recvbuf, call)
    if is_in_place(sendbuf):
        return target.array, target
    source = readable(sendbuf, call)
    check_alike(source, target, call)
    return source.array, target


def described(array: Flat) -> str:
    """Return length and type of an array, and its memory order if that is not C's."""
    return counted(array) + (" in Fortran order" if memory_order(array) == "F" else "")


def _room(recvbuf: Any, call: str, blocks: int) -> Elements:
    """Return the buffer for the parts of all ranks."""
    if recvbuf is None:
        raise UsageError(f"{call} needs a recvbuf on the rank that receives")
    return writable(recvbuf, call, blocks)


def _part(group: Group, sendbuf: Any, whole: Elements | None, call: str) -> Flat:
    """Return the array that this rank sends, alike the parts of `whole`. With IN_PLACE it is in `whole`."""
    if whole is not None and is_in_place(sendbuf):
        return _own_part(group, whole.array, call)
    source = readable(sendbuf, call)
    if whole is not None:
        check_alike(source, whole, call, group.size)
    return source.array


def _own_part(group: Group, whole: Flat, call: str) -> Flat:
    """Return the part of this rank in the array of all parts, in its memory order if it is Fortran's."""
    count, rest = divmod(whole.size, group.size)
    if rest:
        raise UsageError(f"{call}: a buffer of {counted(whole)} has no equal parts for {group.size} ranks")
    part = flatten(whole)[group.rank * count : (group.rank + 1) * count]
    if memory_order(whole) == "F" and whole.shape[-1] % group.size == 0:
        return part.reshape((*whole.shape[:-1], -1), order="F")
    return part
