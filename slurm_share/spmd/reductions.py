"""Combination of the arrays of all ranks element by element.

The order is always that of ranks, first within each node and then between nodes. So the result has the same bits in
every run of the same ranks on the same nodes, with and without windows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import bulk
from .calls import STAR_RANKS, WINDOW_BYTES, CollectiveCall, Group, Lease, as_bytes, decode_message, room
from .envelope import RAW
from .operations import MAX as MAX
from .operations import MIN as MIN
from .operations import NUMBERS
from .operations import PROD as PROD
from .operations import SUM as SUM
from .operations import Op as Op
from .rules import trees

Flat = NDArray[Any]

SHARED_BYTES = 64 << 10
SHARED_IN_ALL_BYTES = 2 << 20
"""Least size of an array, and of all arrays of a node, from which on ranks combine parts of them in a window.

Below that the five waits cost more than they save, measured with 2, 4 and 8 ranks on 2 cores.
"""
_SLAB = 2 << 20
"""Limit of the bytes of each rank that are in the window at a time."""


def reduce(group: Group, call: CollectiveCall, part: Flat, op: Op, root: int) -> Flat | None:
    """Return the combined array on the root, None elsewhere, within a call."""
    total = room(part.shape, part.dtype) if group.rank == group.node_ranks[0] else None
    if not _in_window(group, call, part, op, total, everywhere=False):
        total = _combine_up(call, group.inside(group.node_ranks[0]), part, op)
    if total is not None:
        total = _combine_up(call, group.between(0), total, op)
    if root == 0:
        return total
    if total is not None:
        call.send(root, b"", (as_bytes(total).data,))
        return None
    if group.rank == root:
        total = room(part.shape, part.dtype)
        call.receive(0).take_into(as_bytes(total).data)
    return total


def allreduce(group: Group, call: CollectiveCall, part: Flat, op: Op, target: Flat) -> None:
    """Put the combined array into `target` on every rank, within a call."""
    if len(group.nodes) == 1 and _in_window(group, call, part, op, target, everywhere=True):
        return
    total = reduce(group, call, part, op, 0)
    if total is not None:
        target[:] = total
    data = as_bytes(target)
    bulk.broadcast(group, call, 0, bulk.Item(RAW, b"", (data.data,)) if total is not None else None, data)


def _combine_up(call: CollectiveCall, branch: trees.Branch, part: Flat, op: Op) -> Flat | None:
    """Combine the arrays of this rank and its subtree; return the result on the root, else send it to the parent."""
    value, space = part, None
    for child in reversed(branch.children):
        space = room(part.shape, part.dtype) if space is None else space
        call.receive(child).take_into(as_bytes(space).data)
        result = room(part.shape, part.dtype) if value is part else value
        op.into(value, space, result)
        value = result
    if branch.parent is not None:
        call.send(branch.parent, b"", (as_bytes(value).data,))
        return None
    return value


def combine_node(
    group: Group, call: CollectiveCall, value: Any, combine: Callable[[Any, Any], Any], everywhere: bool
) -> tuple[bool, Any]:
    """Combine any objects of the ranks of this node.

    Returns whether a window was used, and the result: on the first rank of the node, or with `everywhere` and a window
    on all. Only the first rank knows whether all arrays have the same shape and type, so a rank offers a large array
    before it sends it.
    """
    inside = group.inside(group.node_ranks[0])
    offer = _offer(group, value, combine)
    frames = [call.receive(child) for child in reversed(inside.children)]
    if offer and all(frame.envelope.form == RAW and frame.envelope.meta == offer for frame in frames):
        assert isinstance(combine, Op)
        if inside.parent is not None:
            call.send(inside.parent, offer)
        part = np.ascontiguousarray(value).reshape(-1)
        lease = bulk.lease_window(group, call, group.node_ranks[0], _window_size(group, part))
        if lease is not None:
            target = room(part.shape, part.dtype) if everywhere or inside.parent is None else None
            _combine_in_window(group, call, lease, part, combine, target, everywhere)
            return True, None if target is None else target.reshape(value.shape)
        offered = [True] * len(frames)
    else:
        offered = [frame.envelope.form == RAW and bool(frame.envelope.meta) for frame in frames]
        for child, has_offered in zip(reversed(inside.children), offered, strict=True):
            if has_offered:
                call.send(child, bulk.NO_WINDOW)
    for child, frame, has_offered in zip(reversed(inside.children), frames, offered, strict=True):
        other = call.receive_object(child) if has_offered else decode_message(frame)
        value = combine(value, other)
    if inside.parent is not None:
        call.send_object(inside.parent, value)
    return False, value


def _offer(group: Group, value: Any, combine: Any) -> bytes:
    """Return dtype and shape of an array that could be combined in a window; no bytes for other objects."""
    if (
        type(value) is not np.ndarray
        or not isinstance(combine, Op)
        or not combine.is_closed
        or value.dtype.kind not in NUMBERS
        or not value.dtype.isnative
        or not _pays(group, value)
    ):
        return b""
    return f"{value.dtype.str}{value.shape}".encode()


def _in_window(group: Group, call: CollectiveCall, part: Flat, op: Op, target: Flat | None, everywhere: bool) -> bool:
    """Combine the arrays of this node's ranks into `target` through a window.

    `everywhere`: all ranks of the node have a `target`, else only the first. Returns False on all ranks of the node if
    a window saves nothing or there is no memory for one.
    """
    if not op.by_elements or not _pays(group, part):
        return False
    lease = bulk.lease_window(group, call, group.node_ranks[0], _window_size(group, part))
    if lease is not None:
        _combine_in_window(group, call, lease, part, op, target, everywhere)
    return lease is not None


def _pays(group: Group, part: Flat) -> bool:
    """Return whether a window is faster for arrays of this size."""
    ranks = len(group.node_ranks)
    return (
        group.transport.has_windows
        and ranks > 1
        and part.nbytes >= SHARED_BYTES
        and part.nbytes * ranks >= SHARED_IN_ALL_BYTES
    )


def _window_size(group: Group, part: Flat) -> int:
    return (len(group.node_ranks) + 1) * _slab(group, part) * part.itemsize


def _slab(group: Group, part: Flat) -> int:
    """Return the number of elements of each rank that are in the window at a time."""
    return max(1, min(part.nbytes, _SLAB, WINDOW_BYTES // (len(group.node_ranks) + 1)) // part.itemsize)


def _combine_in_window(
    group: Group, call: CollectiveCall, lease: Lease, part: Flat, op: Op, target: Flat | None, everywhere: bool
) -> None:
    """Combine the arrays of this node's ranks into `target`; each rank combines one part of all arrays."""
    ranks, slab = group.node_ranks, _slab(group, part)
    mine, inside = group.rank - ranks[0], group.inside(ranks[0])
    slots = lease.memory[: _window_size(group, part)].view(part.dtype).reshape(-1, slab)
    for start, stop in trees.pieces(part.size, slab):
        slots[mine, : stop - start] = part[start:stop]
        bulk.node_barrier(call, inside)
        _combine_part(slots, stop - start, len(ranks), mine, op)
        bulk.node_barrier(call, inside)
        if target is not None:
            target[start:stop] = slots[-1, : stop - start]
    if everywhere and lease.needs_answer:
        bulk.collect_up(call, inside)
    if lease.needs_answer or not everywhere:
        lease.finish()
    group.node_passed = call.number - 1


def _combine_part(slots: Flat, count: int, ranks: int, mine: int, op: Op) -> None:
    """Combine this rank's part of all slots into the last one, in the same order as with messages."""
    begin, end = trees.equal_part(count, ranks, mine)
    steps = trees.merges(ranks, STAR_RANKS)
    for into, other in steps[:-1]:
        # No other rank uses this part of any slot now.
        target = slots[into, begin:end]
        op.into(target, slots[other, begin:end], target)
    into, other = steps[-1]
    op.into(slots[into, begin:end], slots[other, begin:end], slots[-1, begin:end])
