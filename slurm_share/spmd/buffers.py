"""Collective calls with arrays and other buffers of sizes that all ranks know, as `Comm` describes them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from . import reductions
from .buffer_specs import flatten, memory_order, raw_bytes, readable, readable_array, writable, writable_array
from .bulk import Item, broadcast, collect_up, lease_window, node_barrier
from .calls import WINDOW_BYTES, CollectiveCall, Group, as_bytes, dtype_name, room
from .envelope import RAW
from .errors import UsageError
from .reductions import Op
from .rules import trees

Flat = NDArray[Any]

SHARED_BYTES = 512 << 10
"""Size from which on a result that all ranks of a node need goes through a window."""
_SLAB = 1 << 20
"""Limit of the bytes of each rank that are in the window at a time."""


def bcast(group: Group, buffer: Any, root: int) -> None:
    space = readable(buffer, "Bcast") if group.rank == root else writable(buffer, "Bcast")
    with group.call(f"Bcast({_described(space.array)}, root={root})") as call:
        _broadcast(group, call, space.flat, root)
    if group.rank != root:
        space.store()


def gather(group: Group, sendbuf: Any, recvbuf: Any, root: int) -> None:
    part = flatten(readable_array(sendbuf, "Gather"))
    whole = _room(recvbuf, part, group.size, "Gather") if group.rank == root else None
    with group.call(f"Gather({_counted(part)}, root={root})") as call:
        collect(group, call, part, whole, root)


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
    part = flatten(readable_array(sendbuf, "Allgather"))
    whole = _room(recvbuf, part, group.size, "Allgather")
    with group.call(f"Allgather({_counted(part)})") as call:
        if not _exchange(group, call, part, whole):
            collect(group, call, part, whole, 0)
            _broadcast(group, call, whole, 0)
    group.node_passed = call.number - 1


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
    part = flatten(writable_array(recvbuf, "Scatter"))
    whole = None
    if group.rank == root:
        if sendbuf is None:
            raise UsageError("Scatter needs a sendbuf on the root")
        sent = flatten(readable_array(sendbuf, "Scatter"))
        whole = _of_size(part.size * group.size, sent, part, "Scatter: sendbuf")
    with group.call(f"Scatter({_counted(part)}, root={root})") as call:
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
    source, target = flatten(readable_array(sendbuf, "Alltoall")), flatten(writable_array(recvbuf, "Alltoall"))
    count, rest = divmod(source.size, group.size)
    if rest or target.size != source.size or target.dtype != source.dtype:
        raise UsageError(
            f"Alltoall needs two buffers of equal length and type, a multiple of {group.size} elements long; "
            f"these have {_counted(source)} and {_counted(target)}"
        )
    others = trees.rotated(group.size, group.rank)
    with group.call(f"Alltoall({_counted(source)})") as call:
        for rank in others:
            call.send(rank, b"", (raw_bytes(source[rank * count : (rank + 1) * count]),))
        own = slice(group.rank * count, (group.rank + 1) * count)
        target[own] = source[own]
        for rank in reversed(others):
            call.receive(rank).take_into(raw_bytes(target[rank * count : (rank + 1) * count]))
    group.node_passed = call.number - 1


def reduce(group: Group, sendbuf: Any, recvbuf: Any, op: Op, root: int) -> None:
    part = flatten(readable_array(sendbuf, "Reduce"))
    target = _room(recvbuf, part, 1, "Reduce") if group.rank == root else None
    with group.call(f"Reduce({_ufunc(op, part, 'Reduce')}, {_counted(part)}, root={root})") as call:
        total = reductions.reduce(group, call, part, op, root)
    if target is not None:
        target[:] = total


def allreduce(group: Group, sendbuf: Any, recvbuf: Any, op: Op) -> None:
    part = flatten(readable_array(sendbuf, "Allreduce"))
    target = _room(recvbuf, part, 1, "Allreduce")
    with group.call(f"Allreduce({_ufunc(op, part, 'Allreduce')}, {_counted(part)})") as call:
        reductions.allreduce(group, call, part, op, target)
    group.node_passed = call.number - 1


def _counted(array: Flat) -> str:
    return f"{array.size} x {dtype_name(array.dtype)}"


def _described(array: Flat) -> str:
    """Return length and type of an array, and its memory order if that is not C's."""
    return _counted(array) + (" in Fortran order" if memory_order(array) == "F" else "")


def _ufunc(op: Any, part: Flat, call: str) -> str:
    """Return the name of the operation. Raises UsageError if it cannot combine such elements."""
    if part.dtype.kind not in reductions.NUMBERS:
        raise UsageError(f"{call} combines numbers, not elements of {part.dtype}; use {call.lower()}()")
    if not isinstance(op, Op):
        raise UsageError(f"{call} takes SUM, PROD, MIN or MAX, not {op!r}; {call.lower()}() takes any function")
    return op.name


def _room(given: Any, part: Flat, count: int, call: str) -> Flat:
    """Return the flat receive buffer. Raises UsageError unless it has `count` times the elements of `part`."""
    if given is None:
        raise UsageError(f"{call} needs a recvbuf on the rank that receives")
    return _of_size(part.size * count, flatten(writable_array(given, call)), part, f"{call}: recvbuf")


def _of_size(size: int, array: Flat, part: Flat, what: str) -> Flat:
    if array.size != size or array.dtype != part.dtype:
        needed = f"{size} x {dtype_name(part.dtype)}"
        raise UsageError(f"{what} has {_counted(array)}, and {needed} are needed")
    return array
