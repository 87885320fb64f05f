"""Collective calls that combine buffers and give each rank another part of the result: scans and Reduce_scatter.

Values are combined in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import reductions
from .buffer_specs import check_order, counted, flatten, is_in_place, raw_bytes, readable, writable
from .buffers import described, pair
from .calls import CollectiveCall, Group
from .errors import MessageMismatch, UsageError
from .operations import Op, for_buffers
from .parts import lengths_text

Flat = NDArray[Any]


def scan(group: Group, sendbuf: Any, recvbuf: Any, op: Op) -> None:
    part, target = pair(sendbuf, recvbuf, "Scan")
    name = for_buffers(op, part.dtype, "Scan").name
    with group.call(f"Scan({name}, {described(part)})") as call:
        total = flatten(part)
        if group.rank > 0:
            before = np.empty_like(total)
            call.receive(group.rank - 1).take_into(raw_bytes(before))
            op.into(before, total, before)
            total = before
        if group.rank + 1 < group.size:
            call.send(group.rank + 1, b"", (raw_bytes(total),))
    target.flat[:] = total
    target.store()


def exscan(group: Group, sendbuf: Any, recvbuf: Any, op: Op) -> None:
    part, target = pair(sendbuf, recvbuf, "Exscan")
    name = for_buffers(op, part.dtype, "Exscan").name
    with group.call(f"Exscan({name}, {described(part)})") as call:
        own = flatten(part)
        before = np.empty_like(own)
        if group.rank > 0:
            call.receive(group.rank - 1).take_into(raw_bytes(before))
        if group.rank + 1 < group.size:
            total = own
            if group.rank > 0:
                total = np.empty_like(own)
                op.into(before, own, total)
            call.send(group.rank + 1, b"", (raw_bytes(total),))
    if group.rank > 0:
        target.flat[:] = before
        target.store()


def reduce_scatter_block(group: Group, sendbuf: Any, recvbuf: Any, op: Op) -> None:
    in_place = is_in_place(sendbuf)
    target = writable(recvbuf, "Reduce_scatter_block", group.size if in_place else 1)
    source = target if in_place else readable(sendbuf, "Reduce_scatter_block", group.size)
    count, rest = divmod(source.array.size, group.size)
    if rest or source.array.dtype != target.array.dtype or not (in_place or count == target.array.size):
        raise UsageError(
            f"Reduce_scatter_block: sendbuf has {counted(source.array)}, recvbuf {counted(target.array)}, and the "
            f"first must have {group.size} times the elements of the second"
        )
    check_order(source.array, target.array, "Reduce_scatter_block")
    name = for_buffers(op, source.array.dtype, "Reduce_scatter_block").name
    with group.call(f"Reduce_scatter_block({name}, {described(source.array)})") as call:
        _reduce_and_spread(group, call, source.flat, [count] * group.size, op, target.flat[:count])
    target.store(count)


def reduce_scatter(group: Group, sendbuf: Any, recvbuf: Any, recvcounts: Any, op: Op) -> None:
    target = writable(recvbuf, "Reduce_scatter")
    source = target if is_in_place(sendbuf) else readable(sendbuf, "Reduce_scatter")
    name = for_buffers(op, source.array.dtype, "Reduce_scatter").name
    check_order(source.array, target.array, "Reduce_scatter")
    counts = None if recvcounts is None else _counts(group, recvcounts, source.array, target.array)
    if counts is None and source is target:
        raise UsageError("Reduce_scatter with IN_PLACE needs recvcounts, the number of elements for each rank")
    if source.array.dtype != target.array.dtype:
        raise UsageError(f"Reduce_scatter: sendbuf has {counted(source.array)}, recvbuf {counted(target.array)}")
    text = "" if counts is None else f", {lengths_text(counts)}"
    with group.call(f"Reduce_scatter({name}, {described(source.array)}{text})") as call:
        counts = _agreed(group, call, target.array.size, source.array.size) if counts is None else counts
        _reduce_and_spread(group, call, source.flat, counts, op, target.flat[: counts[group.rank]])
    target.store(counts[group.rank])


def _counts(group: Group, recvcounts: Any, source: Flat, target: Flat) -> list[int]:
    """Return the number of elements for each rank. Raises UsageError if they do not fit the buffers."""
    given = [recvcounts] * group.size if isinstance(recvcounts, (int, np.integer)) else list(recvcounts)
    counts = [int(one) for one in given]
    if len(counts) != group.size or min(counts) < 0:
        raise UsageError(f"Reduce_scatter: recvcounts has one number for each of the {group.size} ranks, not {given}")
    if sum(counts) != source.size or counts[group.rank] > target.size:
        raise UsageError(
            f"Reduce_scatter: recvcounts {counts} need a sendbuf of {sum(counts)} and a recvbuf of "
            f"{counts[group.rank]} elements, not {source.size} and {target.size}"
        )
    return counts


def _agreed(group: Group, call: CollectiveCall, own: int, total: int) -> list[int]:
    """Return the lengths of all ranks' receive buffers, within a call. Raises MessageMismatch unless they fill up."""
    if group.rank != 0:
        call.send(0, str(own).encode())
        counts = [int(one) for one in call.receive(0).envelope.meta.split()]
    else:
        counts = [own, *(int(call.receive(rank).envelope.meta) for rank in range(1, group.size))]
        for rank in range(1, group.size):
            call.send(rank, " ".join(map(str, counts)).encode())
    if sum(counts) != total:
        raise MessageMismatch(f"Reduce_scatter: recvbufs have {counts} elements, and the sendbuf has {total}")
    return counts


def _reduce_and_spread(
    group: Group, call: CollectiveCall, part: Flat, counts: Sequence[int], op: Op, target: Flat
) -> None:
    """Combine the arrays of all ranks, and copy to each rank its part of the result, within a call."""
    total = reductions.reduce(group, call, part, op, 0)
    if total is None:
        call.receive(0).take_into(raw_bytes(target))
        return
    pieces = np.split(total, np.cumsum(counts)[:-1])
    for rank in range(1, group.size):
        call.send(rank, b"", (raw_bytes(pieces[rank]),))
    target[:] = pieces[0]
