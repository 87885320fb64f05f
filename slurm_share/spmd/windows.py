"""Windows that the ranks of a node share in collective calls, kept from one call to the next.

New shared memory is slower than a socket, so the leader of a node keeps its windows. It passes a window to the others
once; later a number is enough. A window that others may still read is not written again. Their frames in later calls
show which calls they have finished (`Group.passed`); if that would be too late, the call asks them for an answer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import NoRoom
from .names import SEGMENT_IDLE, SEGMENT_MIN
from .transport import Message, Transport, Window

Bytes = NDArray[np.uint8]

WINDOW_BYTES = 256 << 20
"""Size of the largest window. Larger bodies go through it in parts."""
_TWO_OF = 32 << 20
"""Windows of up to this size alternate in pairs, so that ranks seldom have to answer."""
_HEADER = struct.Struct("<IBB")
_NUMBER = struct.Struct("<I")


class Group(Protocol):
    """The attributes of `calls.Group` that windows use."""

    transport: Transport
    rank: int
    node_ranks: range

    def has_passed(self, rank: int, number: int) -> bool:
        """Return whether a rank of this node is known to have finished that call."""
        ...


class Call(Protocol):
    """The attributes of `calls.Call` that windows use."""

    number: int

    def send(self, dest: int, meta: bytes = b"", *, window: Window | None = None) -> None:
        """Send a frame of this call."""
        ...

    def receive(self, source: int) -> Message:
        """Wait for the next frame of a rank in this call."""
        ...


@dataclass(eq=False)
class _Kept:
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
    owner: int
    header: bytes
    """Data that the owner sends to the others, which call `borrow` with it."""
    needs_answer: bool
    """Whether the others must report when they have finished reading."""
    kept: _Kept | None = None
    """None: this rank is not the owner."""

    def finish(self) -> None:
        """Note that no rank reads the window any more."""
        if self.kept is not None:
            self.kept.used = 0


class Windows:
    """The windows of one rank, and those that it got from others of its node."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._own: list[_Kept] = []
        self._others: dict[tuple[int, int], Bytes] = {}
        self._made = 0
        self._retired: list[int] = []
        """Numbers of released windows that the other ranks still have."""

    def lend(self, call: Call, size: int) -> Lease | None:
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
        return Lease(kept.memory, self._group.rank, header, busy >= most, kept)

    def introduce(self, call: Call, lease: Lease) -> None:
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

    def borrow(self, call: Call, owner: int, header: bytes) -> Lease:
        """Return the use of a window of another rank of this node."""
        number, new, answer = _HEADER.unpack(header)
        if new:
            message = call.receive(owner)
            for (retired,) in _NUMBER.iter_unpack(message.envelope.meta):
                self._others.pop((owner, retired), None)
            memory = message.window
            assert memory is not None
            self._others[owner, number] = np.frombuffer(memory, np.uint8)
        return Lease(self._others[owner, number], owner, header, bool(answer))

    def _is_free(self, kept: _Kept) -> bool:
        group = self._group
        return not kept.used or all(
            rank == group.rank or group.has_passed(rank, kept.used) for rank in group.node_ranks
        )

    def _make(self, size: int) -> _Kept | None:
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
        made = _Kept(self._made, window, np.frombuffer(window.memory, np.uint8), size)
        self._own.append(made)
        return made


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
