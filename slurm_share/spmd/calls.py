"""Collective calls of a group of ranks: their numbers and tags, sending and receiving.

All ranks make the same calls in the same order. The frames of a call have a context made of its number, and one tag,
which names the call and the arguments that must agree. So the first frame reveals a rank that makes another call
(`matching.Queues`); without a frame, the rendezvous process finds it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from . import codec
from .errors import RunEnded
from .names import TAG_BYTES
from .rules import trees
from .transport import RAW, Message, Transport, Window
from .windows import Windows

STAR_RANKS = 16
"""Number of ranks of a node up to which its leader sends directly to all of them; more form a tree."""
_COMMUNICATOR = 1 << 32


class Group:
    """All ranks of a run, from the view of one of them."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.rank, self.size, self.nodes = transport.rank, transport.size, transport.nodes
        self.node = trees.node_of(self.nodes, self.rank)
        self.node_ranks = self.nodes[self.node].ranks
        self.number = 0
        """Number of the last collective call."""
        self.passed = [0] * self.size
        """For each rank, the highest call that it is known to have finished, from its frames in later calls."""
        self.node_passed = 0
        """The highest call that all ranks of the node are known to have finished, because all have made a later one."""
        self.windows = Windows(self)
        self._inside: dict[int, trees.Branch] = {}
        self._between: dict[int, trees.Branch] = {}

    def call(self, name: str) -> Call:
        """Begin the next collective call. `name`: the call and the arguments that must agree, such as "bcast(root=0)".

        Use it with `with`: the end of the block finishes the call, unless the block raises.
        """
        self.number += 1
        return Call(self, self.number, name)

    def has_passed(self, rank: int, number: int) -> bool:
        """Return whether a rank of this node is known to have finished that call."""
        return number <= self.node_passed or number <= self.passed[rank]

    def inside(self, leader: int) -> trees.Branch:
        """Return this rank's position in the tree of its node, whose root is `leader`.

        That is a star of few ranks, or without windows a binomial tree, because then whole bodies go along it.
        """
        found = self._inside.get(leader)
        if found is None:
            most = STAR_RANKS if self.transport.has_windows else 2
            found = self._inside[leader] = trees.fan(self.node_ranks, leader, self.rank, most)
        return found

    def between(self, root: int) -> trees.Branch:
        """Return this rank's position in the tree of node leaders; it must be one."""
        found = self._between.get(root)
        if found is None:
            found = self._between[root] = trees.binomial(trees.leaders(self.nodes, root), root, self.rank)
        return found

    def leader(self, root: int | None = None) -> int:
        """Return the leader of this node: `root` if it is on this node, else the first rank."""
        return root if root is not None and root in self.node_ranks else self.node_ranks[0]


class Call:
    """One collective call of this rank."""

    __slots__ = ("_group", "_transport", "context", "name", "number", "tag")

    def __init__(self, group: Group, number: int, name: str) -> None:
        self._group, self._transport = group, group.transport
        self.number, self.context = number, _COMMUNICATOR | number
        self.tag = tag_of_name(name)
        self.name = name.partition("(")[0]

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._transport.finish(self.context)
        else:
            self._transport.call_failed()

    def send(
        self,
        dest: int,
        meta: bytes = b"",
        buffers: Sequence[memoryview] = (),
        form: int = RAW,
        window: Window | None = None,
    ) -> None:
        """Send a frame of this call; see `Transport.send`."""
        self._transport.send(dest, self.context, self.tag, form, meta, buffers, window)

    def fail(self, why: str) -> None:
        """Make this call raise on all other ranks, or their next call if they have finished this one."""
        tag = tag_of_name(f"{self.name} that has failed: {why}")
        for rank in range(self._group.size):
            if rank != self._group.rank:
                with contextlib.suppress(RunEnded):
                    self._transport.send(rank, self.context, tag, RAW, b"", ())

    def receive(self, source: int) -> Message:
        """Wait for the next frame of a rank in this call."""
        message = self._transport.receive(source, self.context, self.tag, self.name)
        # A rank makes its calls one after the other.
        if self._group.passed[source] < self.number - 1:
            self._group.passed[source] = self.number - 1
        return message

    def send_object(self, dest: int, value: Any) -> None:
        """Send any object in this call."""
        form, meta, buffers = codec.encode(value)
        self._transport.send(dest, self.context, self.tag, form, meta, buffers)

    def receive_object(self, source: int) -> Any:
        """Wait for the next object of a rank in this call."""
        return decode_message(self.receive(source))


def decode_message(message: Message) -> Any:
    """Return the object of a message."""
    return codec.decode(message.envelope.form, message.envelope.meta, message.take())


def tag_of_name(name: str) -> str:
    """Return the name of a call as a tag; a digest replaces the end of one that is too long."""
    if len(name.encode()) <= TAG_BYTES:
        return name
    digest = _sha256(name)[:16]
    return name.encode()[: TAG_BYTES - 24].decode(errors="ignore") + "... " + digest


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return a unique name of a dtype: "float64", or a digest of the fields of a structured one."""
    if dtype.names is None and dtype.subdtype is None:
        return dtype.str if dtype.kind in "mMSUV" or not dtype.isnative else dtype.name
    fields = _sha256(repr(dtype))[:8]
    return f"{dtype.itemsize}-byte fields {fields}"


def _sha256(text: str) -> str:
    import hashlib  # few programs need it, and it loads OpenSSL in 2 ms

    return hashlib.sha256(text.encode()).hexdigest()
