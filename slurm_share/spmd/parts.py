"""Collective calls with buffers whose parts have another length for each rank, as `Comm` describes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .buffer_specs import (
    Blocks,
    Elements,
    counted,
    is_in_place,
    raw_bytes,
    readable,
    readable_blocks,
    typed_blocks,
    writable,
    writable_blocks,
)
from .bulk import Item, broadcast
from .calls import CollectiveCall, Group, as_bytes, dtype_name, room
from .envelope import RAW
from .errors import MessageMismatch, UsageError
from .rules import trees

Flat = NDArray[Any]


def gatherv(group: Group, sendbuf: Any, recvbuf: Any, root: int) -> None:
    blocks = None
    if group.rank == root:
        blocks = _blocks_to_fill(recvbuf, "Gatherv", group.size)
        part = blocks.parts[root] if is_in_place(sendbuf) else readable(sendbuf, "Gatherv")
        _check_own(part, blocks.parts[root], "Gatherv")
    else:
        part = readable(sendbuf, "Gatherv")
    with group.call(f"Gatherv({_type(part)}, root={root})") as call:
        _collect(group, call, part.flat, blocks, root)
    if blocks is not None:
        blocks.store()


def allgatherv(group: Group, sendbuf: Any, recvbuf: Any) -> None:
    blocks = _blocks_to_fill(recvbuf, "Allgatherv", group.size)
    part = blocks.parts[group.rank] if is_in_place(sendbuf) else readable(sendbuf, "Allgatherv")
    _check_own(part, blocks.parts[group.rank], "Allgatherv")
    lengths = [one.array.size for one in blocks.parts]
    with group.call(f"Allgatherv({lengths_text(lengths)} x {_type(part)})") as call:
        whole = room(sum(lengths), part.array.dtype)
        packed = _cut(whole, lengths)
        if group.rank == 0:
            _collect(group, call, part.flat, Blocks([Elements(one) for one in packed]), 0)
        else:
            _collect(group, call, part.flat, None, 0)
        data = as_bytes(whole)
        broadcast(group, call, 0, Item(RAW, b"", (data.data,)) if group.rank == 0 else None, data)
    group.node_passed = call.number - 1
    for one, values in zip(blocks.parts, packed, strict=True):
        one.flat[:] = values
    blocks.store()


def scatterv(group: Group, sendbuf: Any, recvbuf: Any, root: int) -> None:
    if group.rank != root:
        space = writable(recvbuf, "Scatterv")
        with group.call(f"Scatterv({_type(space)}, root={root})") as call:
            _take(call, root, space, "Scatterv")
        space.store()
        return
    if sendbuf is None:
        raise UsageError("Scatterv needs a sendbuf on the root")
    blocks = readable_blocks(sendbuf, "Scatterv", group.size)
    own = blocks.parts[root]
    space = own if is_in_place(recvbuf) else writable(recvbuf, "Scatterv")
    _check_own(own, space, "Scatterv")
    with group.call(f"Scatterv({_type(space)}, root={root})") as call:
        for rank in trees.rotated(group.size, root):
            call.send(rank, b"", (raw_bytes(blocks.parts[rank].flat),))
    if space is not own:
        space.flat[:] = own.flat
        space.store()


def alltoallv(group: Group, sendbuf: Any, recvbuf: Any) -> None:
    target = writable_blocks(recvbuf, "Alltoallv", group.size)
    source = _copies(target) if is_in_place(sendbuf) else readable_blocks(sendbuf, "Alltoallv", group.size)
    _check_own(source.parts[group.rank], target.parts[group.rank], "Alltoallv")
    _exchange(group, source, target, f"Alltoallv({_type(target.parts[0])})")


def alltoallw(group: Group, sendbuf: Any, recvbuf: Any) -> None:
    target = typed_blocks(recvbuf, "Alltoallw", group.size, to_fill=True)
    source = _copies(target) if is_in_place(sendbuf) else typed_blocks(sendbuf, "Alltoallw", group.size, to_fill=False)
    _check_own(source.parts[group.rank], target.parts[group.rank], "Alltoallw")
    _exchange(group, source, target, "Alltoallw()")


def lengths_text(lengths: Sequence[int]) -> str:
    """Return lengths as a short text that all ranks with the same lengths have."""
    return "+".join(map(str, lengths))


def _exchange(group: Group, source: Blocks, target: Blocks, name: str) -> None:
    others = trees.rotated(group.size, group.rank)
    with group.call(name) as call:
        for rank in others:
            call.send(rank, b"", (raw_bytes(source.parts[rank].flat),))
        target.parts[group.rank].flat[:] = source.parts[group.rank].flat
        for rank in reversed(others):
            _take(call, rank, target.parts[rank], call.name)
    group.node_passed = call.number - 1
    target.store()


def _collect(group: Group, call: CollectiveCall, part: Flat, blocks: Blocks | None, root: int) -> None:
    """Copy the parts of all ranks into the root's blocks, within a call."""
    if blocks is None:
        call.send(root, b"", (raw_bytes(part),))
        return
    blocks.parts[root].flat[:] = part
    for rank in reversed(trees.rotated(group.size, root)):
        _take(call, rank, blocks.parts[rank], call.name)


def _take(call: CollectiveCall, source: int, space: Elements, name: str) -> None:
    """Receive the part of a rank. Raises MessageMismatch on all ranks if it has another length."""
    message = call.receive(source)
    if message.envelope.size != space.array.nbytes:
        size = max(space.array.itemsize, 1)
        why = (
            f"{name}: rank {message.envelope.source} sends {message.envelope.size // size} x "
            f"{dtype_name(space.array.dtype)}, and the receiver's count is {space.array.size}"
        )
        call.fail(why)
        raise MessageMismatch(why)
    message.take_into(raw_bytes(space.flat))


def _blocks_to_fill(recvbuf: Any, call: str, size: int) -> Blocks:
    if recvbuf is None:
        raise UsageError(f"{call} needs a recvbuf on the rank that receives")
    return writable_blocks(recvbuf, call, size)


def _check_own(part: Elements, space: Elements, call: str) -> None:
    """Raise UsageError unless this rank's part is alike the part of the other buffer for this rank."""
    if part.array.size != space.array.size or part.array.dtype != space.array.dtype:
        raise UsageError(
            f"{call}: this rank sends itself {counted(part.array)}, and its count to receive is {counted(space.array)}"
        )


def _copies(blocks: Blocks) -> Blocks:
    return Blocks([Elements(one.flat.copy()) for one in blocks.parts])


def _cut(whole: Flat, lengths: Sequence[int]) -> list[Flat]:
    return np.split(whole, np.cumsum(lengths)[:-1])


def _type(part: Elements) -> str:
    return dtype_name(part.array.dtype)
