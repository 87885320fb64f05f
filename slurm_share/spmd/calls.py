"""Collective calls of a group of ranks: their numbers and tags, sending and receiving, and shared windows.

All ranks make the same calls in the same order. The frames of a call have a context made of its number, and one tag,
which names the call and the arguments that must agree. So the first frame reveals a rank that makes another call
(`transport.Queues`); without a frame, the rendezvous process finds it.

New shared memory is slower than a socket, so the leader of a node keeps its windows from one call to the next. It
passes a window to the others once; later a number is enough. A window that others may still read is not written again.
Their frames in later calls show which calls they have finished (`Group.passed`); if that would be too late, the call
asks them for an answer.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import codec
from .bodies import Received
from .envelope import RAW
from .errors import HAS_FAILED, CollectiveMismatch, Deadlock, NoRoom, PeerEnded, RunEnded, SpmdError
from .groups import RankGroup
from .names import SEGMENT_IDLE, SEGMENT_MIN, TAG_BYTES
from .rules import trees
from .transport import Buffers, Transport, Window, collective_context

Bytes = NDArray[np.uint8]
_Method = TypeVar("_Method", bound=Callable[..., Any])

STAR_RANKS = 16
"""Number of ranks of a node up to which its leader sends directly to all of them; more form a tree."""
WINDOW_BYTES = 256 << 20
"""Size of the largest window. Larger bodies go through it in parts."""
_TWO_OF = 32 << 20
"""Windows of up to this size alternate in pairs, so that ranks seldom have to answer."""
FAILURE_RANKS = 256
"""Largest run in which a rank tells all others that a call has failed on it. Each is sent a message, and a mistake that
all ranks make at once would open a connection between any two. In a larger run they see the end of that rank."""
_HEADER = struct.Struct("<IBB")
_NUMBER = struct.Struct("<I")


class Group(RankGroup):
    """The ranks of a communicator, from the view of one of them, and the state of its collective calls."""

    def __init__(self, transport: Transport) -> None:
        self.transport, self.communicator = transport, transport.communicator
        self.rank, self.size, self.nodes = transport.rank, transport.size, transport.nodes
        self.node = trees.node_of(self.nodes, self.rank)
        self.node_ranks = self.nodes[self.node].ranks
        self.number = 0
        """Number of the last collective call."""
        self.failed = 0
        """Number of the last call that has raised an error on this rank, which the other ranks are told."""
        self.passed = [0] * self.size
        """For each rank, the highest call that it is known to have finished, from its frames in later calls."""
        self.node_passed = 0
        """The highest call that all ranks of the node are known to have finished, because all have made a later one."""
        self.windows = Windows(self)
        self.lent: list[tuple[Window, int, list[int]]] = []
        """Windows that `redistribute` has lent, each with the call and its readers, until they have finished it."""
        self._inside: dict[int, trees.Branch] = {}
        self._between: dict[int, trees.Branch] = {}

    @property
    def members(self) -> Sequence[int]:
        return self.transport.members

    @property
    def _own(self) -> int:
        return self.transport.run.rank

    def call(self, name: str) -> CollectiveCall:
        """Begin the next collective call. `name`: the call and the arguments that must agree, such as "bcast(root=0)".

        Use it with `with`: the end of the block finishes the call, unless the block raises.
        """
        self.number += 1
        return CollectiveCall(self, self.number, name)

    def refuse(self, name: str, error: Exception) -> None:
        """Make the next collective call, which this rank does not begin because of `error`, raise on the others."""
        if isinstance(error, RunEnded | CollectiveMismatch):
            return
        call = self.call(name)
        self.transport.call_failed(call.context)
        self.failed = call.number
        call.fail(f"{type(error).__name__}: {error}")

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


class CollectiveCall:
    """One collective call of this rank."""

    __slots__ = ("_group", "_is_failure_told", "_transport", "context", "name", "number", "tag")

    def __init__(self, group: Group, number: int, name: str) -> None:
        self._group, self._transport = group, group.transport
        self.number, self.context = number, collective_context(group.communicator, number)
        self.tag = tag_of_name(name)
        self.name = name.partition("(")[0]
        self._is_failure_told = False

    def __enter__(self) -> CollectiveCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self._transport.finish(self.context)
            except CollectiveMismatch as mismatch:
                if mismatch.is_failure:
                    self._transport.await_end(mismatch.peer)
                raise
            return
        self._group.failed = self.number
        told = self._failure_elsewhere() if isinstance(error, PeerEnded | Deadlock) else None
        self._transport.call_failed(self.context)
        if told is not None:
            self._transport.await_end(told.peer)
            raise told from None
        if isinstance(error, CollectiveMismatch) and error.is_failure:
            self._transport.await_end(error.peer)
        elif isinstance(error, Exception) and not isinstance(error, RunEnded | CollectiveMismatch):
            self.fail(f"{type(error).__name__}: {error}")

    def send(
        self, dest: int, meta: bytes = b"", buffers: Buffers = (), form: int = RAW, window: Window | None = None
    ) -> None:
        """Send a frame of this call; see `Transport.send`."""
        self._transport.send(dest, self.context, self.tag, form, meta, buffers, window)

    def _failure_elsewhere(self) -> CollectiveMismatch | None:
        """Return the error of a rank that has ended because this call has failed on it; None: it has told none."""
        try:
            self._transport.probe(None, self.context, self.tag)
        except CollectiveMismatch as error:
            return error if error.is_failure else None
        except SpmdError:
            pass
        return None

    def fail(self, why: str) -> None:
        """Make this call raise on all other ranks, or their next call if they have finished this one."""
        if self._is_failure_told or self._group.size > FAILURE_RANKS:
            return
        self._is_failure_told = True
        tag = tag_of_name(self.name + HAS_FAILED + why)
        for rank in range(self._group.size):
            if rank != self._group.rank:
                with contextlib.suppress(SpmdError):
                    self._transport.send(rank, self.context, tag, RAW, b"", ())

    def receive(self, source: int) -> Received:
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


@dataclass(eq=False)
class _OwnWindow:
    """One window that this rank owns."""

    number: int
    window: Window
    memory: Bytes
    size: int
    is_passed: bool = False
    """Whether the other ranks of the node have it."""
    used: int = 0
    """Number of the last call in which others read it; 0: no rank reads it."""


@dataclass(eq=False)
class Lease:
    """Use of a window in one call."""

    memory: Bytes
    header: bytes
    """Data that the owner sends to the others, which call `borrow` with it."""
    needs_answer: bool
    """Whether the others must report when they have finished reading."""
    kept: _OwnWindow | None = None
    """None: this rank is not the owner."""

    def finish(self) -> None:
        """Note that no rank reads the window any more."""
        if self.kept is not None:
            self.kept.used = 0


class Windows:
    """The windows of one rank, and those that it got from others of its node."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._own: list[_OwnWindow] = []
        self._others: dict[tuple[int, int], Bytes] = {}
        self._made = 0
        self._retired: list[int] = []
        """Numbers of released windows that the other ranks still have."""

    def lend(self, call: CollectiveCall, size: int) -> Lease | None:
        """Return the use of a window of at least that size that no rank reads; None: there is no memory.

        The caller sends its header to the others, and then calls `introduce`.
        """
        size = 1 << (max(size, SEGMENT_MIN) - 1).bit_length()
        alike = [kept for kept in self._own if kept.size == size]
        kept = next((kept for kept in alike if self._is_free(kept)), None) or self._make(size)
        if kept is None:
            return None
        kept.used = call.number
        most = 2 if size <= _TWO_OF else 1
        busy = sum(not self._is_free(other) for other in alike if other is not kept) + 1
        header = _HEADER.pack(kept.number, not kept.is_passed, busy >= most)
        return Lease(kept.memory, header, busy >= most, kept)

    def introduce(self, call: CollectiveCall, lease: Lease) -> None:
        """Pass the window to the other ranks of the node, unless they have it."""
        kept = lease.kept
        if kept is None or kept.is_passed:
            return
        retired = b"".join(map(_NUMBER.pack, self._retired))
        for rank in self._group.node_ranks:
            if rank != self._group.rank:
                call.send(rank, retired, window=kept.window)
        self._retired.clear()
        kept.is_passed = True

    def borrow(self, call: CollectiveCall, owner: int, header: bytes) -> Lease:
        """Return the use of a window of another rank of this node."""
        number, new, answer = _HEADER.unpack(header)
        if new:
            message = call.receive(owner)
            for (retired,) in _NUMBER.iter_unpack(message.envelope.meta):
                self._others.pop((owner, retired), None)
            memory = message.window
            assert memory is not None
            self._others[owner, number] = np.frombuffer(memory, np.uint8)
        return Lease(self._others[owner, number], header, bool(answer))

    def _is_free(self, kept: _OwnWindow) -> bool:
        group = self._group
        return not kept.used or all(
            rank == group.rank or group.has_passed(rank, kept.used) for rank in group.node_ranks
        )

    def _make(self, size: int) -> _OwnWindow | None:
        """Return a new window; None: there is no memory. Releases free windows if there are too many bytes."""
        kept_bytes = sum(kept.size for kept in self._own)
        for kept in list(self._own):
            if kept_bytes + size > SEGMENT_IDLE and self._is_free(kept):
                kept_bytes -= kept.size
                self._own.remove(kept)
                if kept.is_passed:
                    self._retired.append(kept.number)
                kept.window.release()
        try:
            window = self._group.transport.window(size)
        except NoRoom:
            return None
        self._made += 1
        made = _OwnWindow(self._made, window, np.frombuffer(window.memory, np.uint8), size)
        self._own.append(made)
        return made


def checked_first(method: _Method) -> _Method:
    """Make an error that a communicator's call raises before it begins, for a wrong argument, raise on all ranks."""

    @functools.wraps(method)
    def told(self: Any, *args: Any, **options: Any) -> Any:
        group = self.group
        number = group.number
        try:
            return method(self, *args, **options)
        except Exception as error:
            if group.number == number:
                group.refuse(method.__name__, error)
            raise

    return told  # type: ignore[return-value]


def decode_message(message: Received) -> Any:
    """Return the object of a message."""
    return codec.decode(message.envelope.form, message.envelope.meta, message.take())


def tag_of_name(name: str) -> str:
    """Return the name of a call as a tag; a digest replaces the end of one that is too long."""
    if len(name.encode()) <= TAG_BYTES:
        return name
    digest = _sha256(name)[:16]
    return name.encode()[: TAG_BYTES - 24].decode(errors="ignore") + "... " + digest


@functools.lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return a unique name of a dtype: "float64", or a digest of the fields of a structured one."""
    if dtype.names is None and dtype.subdtype is None:
        return dtype.str if dtype.kind in "mMSUV" or not dtype.isnative else dtype.name
    fields = _sha256(repr(dtype))[:8]
    return f"{dtype.itemsize}-byte fields {fields}"


def _sha256(text: str) -> str:
    import hashlib  # few programs need it, and it loads OpenSSL in 2 ms

    return hashlib.sha256(text.encode()).hexdigest()


def as_bytes(array: NDArray[Any]) -> Bytes:
    """Return a flat contiguous array as bytes."""
    return array.view(np.uint8) if array.nbytes else np.empty(0, np.uint8)


def room(shape: int | tuple[int, ...], dtype: Any = np.uint8) -> NDArray[Any]:
    """Return an uninitialised array. Raises NoRoom."""
    try:
        made: NDArray[Any] = np.empty(shape, dtype)
    except MemoryError:
        raise NoRoom(f"no memory for an array of shape {shape} and type {np.dtype(dtype)}") from None
    return made
