"""Transfer of large bodies in collective calls: through a shared window in a node, in pieces between nodes.

Without windows, or memory for them, all bodies are sent as messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .bodies import Received
from .calls import WINDOW_BYTES, Bytes, CollectiveCall, Group, Lease, room
from .names import INLINE_BYTES
from .rules import trees

CHAIN_BYTES = 1 << 20
"""Larger bodies are sent along a chain of nodes, in pieces of this size."""
SPREAD_SLAB = 4 << 20
"""Most bytes of a part of a broadcast in the window: ranks read one part while the next is written."""
SPREAD_SECTIONS = 8
GATHER_SECTIONS = 4
_VALUE, _CHAINED, _IN_WINDOW = b"V", b"C", b"W"
_HEAD = struct.Struct("<BQ6s")
NO_WINDOW = bytes(6)
"""Header if there is no window: the body is chained, or there is no memory for one."""


class Item(NamedTuple):
    """Encoded value: form, meta and buffers of a message."""

    form: int
    meta: bytes
    buffers: Sequence[memoryview]

    def size(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)

    def data(self) -> Bytes:
        """Return the buffers as one array; a copy if there are several."""
        if len(self.buffers) == 1:
            return np.frombuffer(self.buffers[0], np.uint8) if self.buffers[0].nbytes else np.empty(0, np.uint8)
        return np.frombuffer(bytearray().join(self.buffers), np.uint8)


def broadcast(group: Group, call: CollectiveCall, root: int, item: Item | None, target: Bytes | None = None) -> Item:
    """Send the root's item to all ranks within a call. `target`: memory for its body on the other ranks."""
    if group.rank == group.leader(root):
        return _NodeLeader(group, call, root).broadcast(item, target)
    return _receive_from_leader(group, call, root, target)


class _NodeLeader:
    """Carries out a broadcast on the leader of a node."""

    def __init__(self, group: Group, call: CollectiveCall, root: int) -> None:
        self.group, self.call, self.root = group, call, root
        self.previous: int | None = None
        self.following: int | None = None
        self.chained = False

    def broadcast(self, item: Item | None, target: Bytes | None) -> Item:
        group, call = self.group, self.call
        between, inside = group.between(self.root), group.inside(group.rank)
        if item is None:
            assert between.parent is not None
            item = self._first_item(call.receive(between.parent), target)
        elif len(group.nodes) > 1:
            self.chained = item.size() > CHAIN_BYTES
        if self.chained:
            item = Item(item.form, item.meta, (item.data().data,))
            self.previous, self.following = trees.chain(trees.leaders(group.nodes, self.root), self.root, group.rank)
            head = _CHAINED + _HEAD.pack(item.form, item.size(), NO_WINDOW) + item.meta
            for child in between.children:
                call.send(child, head)
        else:
            for child in between.children:
                call.send(child, _VALUE + item.meta, item.buffers, item.form)
        lease = None
        size = item.size()
        if inside.children and group.transport.has_windows and size > INLINE_BYTES:
            slab = _slab(size)
            lease = group.windows.lend(call, min(size, slab * SPREAD_SECTIONS))
        if lease is not None:
            self._write_window(lease, item, inside, slab)
        else:
            self._await_part(item, 0, size)
            for child in inside.children:
                call.send(child, _VALUE + item.meta, item.buffers, item.form)
        return item

    def _first_item(self, message: Received, target: Bytes | None) -> Item:
        """Return the item of the first frame. If the item is chained, its body follows in pieces."""
        meta = message.envelope.meta
        if meta[:1] == _VALUE:
            return _take_item(message, target)
        self.chained = True
        form, size, _ = _HEAD.unpack_from(meta, 1)
        body = room(size) if target is None else target
        return Item(form, meta[1 + _HEAD.size :], (body.data,))

    def _await_part(self, item: Item, start: int, stop: int) -> None:
        """Wait until the part from `start` to `stop` has arrived along the chain, and pass it on."""
        if self.chained:
            body = item.buffers[0]
            for begin, end in trees.pieces(stop - start, CHAIN_BYTES):
                piece = body[start + begin : start + end]
                if self.previous is not None:
                    self.call.receive(self.previous).take_into(piece)
                if self.following is not None:
                    self.call.send(self.following, b"", (piece,))

    def _write_window(self, lease: Lease, item: Item, inside: trees.Branch, slab: int) -> None:
        """Write the body into the window part by part."""
        call, data = self.call, item.data()
        parts = trees.pieces(data.nbytes, slab)
        for number, (start, stop) in enumerate(parts):
            self._await_part(item, start, stop)
            if number >= SPREAD_SECTIONS:
                collect_up(call, inside)
            at = number % SPREAD_SECTIONS * slab
            lease.memory[at : at + stop - start] = data[start:stop]
            head = _IN_WINDOW + _HEAD.pack(item.form, data.nbytes, lease.header) + item.meta if number == 0 else b""
            send_down(call, inside, head)
            if number == 0:
                self.group.windows.introduce(call, lease)
        if lease.needs_answer:
            collect_up(call, inside)
            lease.finish()
            self.group.node_passed = call.number - 1


def _receive_from_leader(group: Group, call: CollectiveCall, root: int, target: Bytes | None) -> Item:
    """Return the item that the leader of this node sends."""
    owner = group.leader(root)
    inside = group.inside(owner)
    assert inside.parent is not None
    message = call.receive(inside.parent)
    meta = message.envelope.meta
    if meta[:1] == _VALUE:
        item = _take_item(message, target)
        for child in inside.children:
            call.send(child, meta, item.buffers, item.form)
        return item
    send_down(call, inside, meta)
    form, size, header = _HEAD.unpack_from(meta, 1)
    lease = group.windows.borrow(call, owner, header)
    body = room(size) if target is None else target
    slab = _slab(size)
    parts = trees.pieces(size, slab)
    for number, (start, stop) in enumerate(parts):
        if number:
            pass_down(call, inside)
        at = number % SPREAD_SECTIONS * slab
        body[start:stop] = lease.memory[at : at + stop - start]
        if number + SPREAD_SECTIONS < len(parts) or (lease.needs_answer and number + 1 == len(parts)):
            collect_up(call, inside)
    return Item(form, meta[1 + _HEAD.size :], (body.data,))


def _take_item(message: Received, target: Bytes | None) -> Item:
    meta = message.envelope.meta[1:]
    if target is None:
        return Item(message.envelope.form, meta, (message.take(),))
    message.take_into(target.data)
    return Item(message.envelope.form, meta, (target.data,))


def _slab(size: int) -> int:
    """Return the size of a body's parts in a window, a multiple of CHAIN_BYTES."""
    pieces = -(-size // (4 * CHAIN_BYTES))
    return min(max(pieces, 1) * CHAIN_BYTES, SPREAD_SLAB)


def send_down(call: CollectiveCall, inside: trees.Branch, meta: bytes = b"") -> None:
    """Send a short frame to the children in the tree."""
    for child in inside.children:
        call.send(child, meta)


def pass_down(call: CollectiveCall, inside: trees.Branch) -> bytes:
    """Wait for the parent's short frame, pass it on to the children, and return it."""
    assert inside.parent is not None
    meta = call.receive(inside.parent).envelope.meta
    send_down(call, inside, meta)
    return meta


def collect_up(call: CollectiveCall, inside: trees.Branch) -> None:
    """Wait for an answer of each child, then answer the parent."""
    for child in reversed(inside.children):
        call.receive(child)
    if inside.parent is not None:
        call.send(inside.parent)


def node_barrier(call: CollectiveCall, inside: trees.Branch) -> None:
    """Wait until all ranks of the node have made this call."""
    collect_up(call, inside)
    if inside.parent is None:
        send_down(call, inside)
    else:
        pass_down(call, inside)


def lease_window(group: Group, call: CollectiveCall, owner: int, size: int) -> Lease | None:
    """Return a lease of one window of `owner` on all ranks of the node; None on all ranks if there is no memory."""
    inside = group.inside(owner)
    if group.rank != owner:
        header = pass_down(call, inside)
        return None if header == NO_WINDOW else group.windows.borrow(call, owner, header)
    lease = group.windows.lend(call, size)
    send_down(call, inside, NO_WINDOW if lease is None else lease.header)
    if lease is not None:
        group.windows.introduce(call, lease)
    return lease


def gather_parts(
    group: Group,
    call: CollectiveCall,
    owner: int,
    section: int,
    count: int,
    write: Callable[[int, Bytes], bool],
    read: Callable[[int, Bytes], None],
) -> bool:
    """Collect parts on `owner`, a rank of this node: the others write each part into a window, and the owner reads it.

    `section`: limit of a part in bytes; `count`: number of parts. `write(part, memory)` writes this rank's data
    of a part and returns whether it has any; `read(part, memory)` is called on the owner when all others have written,
    if any has data. Returns False on all ranks of the node if there is no memory for a window.
    """
    sections = max(1, min(GATHER_SECTIONS, count, WINDOW_BYTES // max(section, 1)))
    lease = lease_window(group, call, owner, sections * section)
    if lease is None:
        return False
    others = [rank for rank in group.node_ranks if rank != owner]
    for part in range(count):
        at = part % sections * section
        memory = lease.memory[at : at + section]
        if group.rank != owner:
            if part >= sections:
                call.receive(owner)
            call.send(owner, b"w" if write(part, memory) else b"")
            continue
        answers = [call.receive(rank).envelope.meta for rank in others]
        if any(answers):
            read(part, memory)
        for rank in others if part + sections < count else ():
            call.send(rank)
    if group.rank == owner:
        lease.finish()
        group.node_passed = call.number - 1
    return True
