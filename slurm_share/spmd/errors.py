"""What can go wrong between ranks.

SpmdError
  UsageError           the program asks for something that cannot be: a rank that is not there, an unknown reduction
    MapMismatch        arrays whose maps differ; the sentence says to redistribute first
    IndexOutOfRange    an index that is not within the array; also an IndexError
    NotContiguous      a buffer has gaps; also a ValueError
    MessageMismatch    the message does not fit the buffer; it stays and can be received again
    CollectiveMismatch ranks are in different collective calls, or in one with different arguments
  ArrayFileError       a rank cannot write or read its part of a file
  RunEnded             the run as a whole cannot go on
    PeerEnded          a rank has ended that somebody waits for
    NodeLost           a node does not answer any more
    Deadlock           every rank waits, and no message is under way
    StartTimeout       ranks have not started in time
    Aborted            a rank called abort()
  TransportError       a connection failed in itself: other version, broken frame, refused proof
  NoRoom               no memory for a message; also a MemoryError
  ReceiveTimeout       timeout_s passed; also a TimeoutError

Errors keep their fields; the sentence is made in `__str__`. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence


class SpmdError(Exception):
    """Base of all errors of this package."""


class UsageError(SpmdError):
    """The program asks for something that cannot be."""


class MapMismatch(UsageError):
    """Arrays whose maps differ."""


class IndexOutOfRange(UsageError, IndexError):
    """An index that is not within the array."""


class NotContiguous(UsageError, ValueError):
    """A buffer has gaps, so that it cannot be sent or received as it lies in memory."""


class MessageMismatch(UsageError):
    """The message does not fit the buffer. It stays and can be received again."""


class CollectiveMismatch(UsageError):
    """Ranks are in different collective calls, or in one with different arguments."""

    def __init__(self, number: int, rank: int, here: str, peer: int, there: str) -> None:
        """`number` counts the collective calls of a rank from 1; `here` is this rank's call, `there` the peer's."""
        super().__init__(number, rank, here, peer, there)
        self.number, self.rank, self.here, self.peer, self.there = number, rank, here, peer, there

    def __str__(self) -> str:
        return (
            f"collective call {self.number}: rank {self.rank} is in {self.here}, rank {self.peer} in {self.there}; "
            "all ranks must make the same collective calls in the same order"
        )


class ArrayFileError(SpmdError):
    """A rank cannot write or read its part of a file; raised on all ranks."""


class RunEnded(SpmdError):
    """The run as a whole cannot go on."""


class PeerEnded(RunEnded):
    """A rank has ended that somebody waits for."""

    def __init__(self, rank: int, node: str, code: int | None, signal: int | None, why: str) -> None:
        """`why` is a clause such as "was killed (out of host memory)" or "has ended and sends nothing more"."""
        super().__init__(rank, node, code, signal, why)
        self.rank, self.node, self.code, self.signal, self.why = rank, node, code, signal, why

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node} {self.why}"


class NodeLost(RunEnded):
    """A node does not answer any more."""

    def __init__(self, node: str, ranks: Sequence[int]) -> None:
        super().__init__(node, tuple(ranks))
        self.node, self.ranks = node, tuple(ranks)

    def __str__(self) -> str:
        ranks = f"ranks {self.ranks[0]} to {self.ranks[-1]}" if len(self.ranks) > 1 else f"rank {self.ranks[0]}"
        return f"node {self.node} with {ranks} does not answer any more"


class Deadlock(RunEnded):
    """Every rank waits, and no message is under way."""

    def __init__(self, waits: Sequence[tuple[int, str]]) -> None:
        """`waits`: each rank, and what it waits for, such as "in recv for (3, 'x')"."""
        super().__init__(tuple(waits))
        self.waits = tuple(waits)

    def __str__(self) -> str:
        shown = "; ".join(f"rank {rank} waits {what}" for rank, what in self.waits[:16])
        more = f"; and {len(self.waits) - 16} more" if len(self.waits) > 16 else ""
        return f"all ranks wait for each other and no message is under way: {shown}{more}"


class StartTimeout(RunEnded):
    """Ranks have not started in time."""

    def __init__(self, missing: Sequence[int], after_s: float) -> None:
        super().__init__(tuple(missing), after_s)
        self.missing, self.after_s = tuple(missing), after_s

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.missing[:16])) + (" ..." if len(self.missing) > 16 else "")
        return (
            f"{'1 rank has' if len(self.missing) == 1 else f'{len(self.missing)} ranks have'} not started within "
            f"{self.after_s:g} s: {shown}; where programs take "
            "longer until they use messages, set LLSUB_START_S"
        )


class Aborted(RunEnded):
    """A rank called abort()."""

    def __init__(self, rank: int, code: int, why: str = "") -> None:
        super().__init__(rank, code, why)
        self.rank, self.code, self.why = rank, code, why

    def __str__(self) -> str:
        return f"rank {self.rank} ended the run with code {self.code}" + (f": {self.why}" if self.why else "")


class TransportError(SpmdError):
    """A connection failed in itself: other version, broken frame, refused proof."""


class NoRoom(SpmdError, MemoryError):
    """No memory for a message."""


class ReceiveTimeout(SpmdError, TimeoutError):
    """The time that a call may wait has passed."""
