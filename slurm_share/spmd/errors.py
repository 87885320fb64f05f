"""The errors of this package:

    SpmdError
      UsageError           the program makes an invalid request: a rank that does not exist, an unknown reduction
        MapMismatch        the maps of two arrays differ; the message says to redistribute first
        IndexOutOfRange    an index is outside the array; also an IndexError
        NotContiguous      a buffer has gaps; also a ValueError
        Unsupported        a call of MPI that is left out; also an AttributeError
        RepeatedAxis       a dimension is named twice; also a ValueError
        MessageMismatch    the message does not fit the buffer; it stays and can be received again
        CollectiveMismatch ranks make different collective calls, or the same call with different arguments
      ArrayFileError       a rank cannot write or read its part of a file
      RunEnded             the run as a whole cannot go on
        PeerEnded          a rank has ended, and another one waits for it
        NodeLost           a node no longer answers
        Deadlock           every rank waits, and no message is in transit
        StartTimeout       some ranks have not started in time
        Aborted            a rank called abort()
      TransportError       a connection failed: wrong protocol version, invalid frame, failed authentication
      NoRoom               there is no memory for a message; also a MemoryError
      ReceiveTimeout       timeout_s passed; also a TimeoutError

Errors keep their fields; `__str__` makes the message. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .error_numbers import ERR_ARG, ERR_NO_MEM, ERR_OTHER, ERR_RANK, ERR_ROOT, ERR_TRUNCATE


class SpmdError(Exception):
    """Base class of all errors of this package, with mpi4py's calls for the number and the sentence of an error."""

    error_class = ERR_OTHER
    """Number of the class of errors, one of MPI.ERR_..."""

    @property
    def error_code(self) -> int:
        """Number of the error: that of its class."""
        return self.error_class

    @property
    def error_string(self) -> str:
        """The sentence."""
        return str(self)

    def Get_error_class(self) -> int:
        """Return `error_class`."""
        return self.error_class

    def Get_error_code(self) -> int:
        """Return `error_code`."""
        return self.error_code

    def Get_error_string(self) -> str:
        """Return the sentence."""
        return str(self)


class UsageError(SpmdError):
    """Invalid request of the program."""

    error_class = ERR_ARG


class NoSuchRank(UsageError):
    """Rank that does not exist."""

    error_class = ERR_RANK


class NoSuchRoot(UsageError):
    """Root of a collective call that does not exist."""

    error_class = ERR_ROOT


class MapMismatch(UsageError):
    """Maps of two arrays that differ in an operation that needs equal ones."""


class IndexOutOfRange(UsageError, IndexError):
    """Index outside the array."""


class NotContiguous(UsageError, ValueError):
    """Buffer with gaps, which cannot be sent or received as it lies in memory."""


class Unsupported(UsageError, AttributeError):
    """Call or class of mpi4py that this package leaves out. `hasattr` returns False for it."""

    def __init__(self, name: str, instead: str) -> None:
        super().__init__(name, instead)
        self.name, self.instead = name, instead

    def __str__(self) -> str:
        return f"slurm_share.spmd leaves out {self.name} of mpi4py; {self.instead}"


class RepeatedAxis(UsageError, ValueError):
    """Axes that name one dimension twice."""


class MessageMismatch(UsageError):
    """Message that does not fit the buffer. It stays and can be received again."""

    error_class = ERR_TRUNCATE


HAS_FAILED = " that has failed: "
"""Words of the tag of a collective call that has failed on a rank, before the reason."""


class CollectiveMismatch(UsageError):
    """Ranks that make different collective calls, or the same call with different arguments."""

    def __init__(self, number: int, rank: int, here: str, peer: int, there: str, where: str = "") -> None:
        """`number`: the collective calls of a rank, counted from 1; `here`: this rank's call; `there`: the peer's.

        `where`: the communicator with its ranks (`transport.name_of`); empty: that of all ranks.
        """
        super().__init__(number, rank, here, peer, there, where)
        self.number, self.rank, self.here, self.peer, self.there = number, rank, here, peer, there
        self.where = where

    @property
    def is_failure(self) -> bool:
        """Whether the peer made the same call, in which it has failed."""
        return HAS_FAILED in self.there

    def __str__(self) -> str:
        of, who = (f" of {self.where}", "its ranks") if self.where else ("", "all ranks")
        if self.is_failure:
            call, _words, why = self.there.partition(HAS_FAILED)
            return f"collective call {self.number}{of}: {call} has failed on rank {self.peer}: {why}"
        return (
            f"collective call {self.number}{of}: rank {self.rank} is in {self.here}, rank {self.peer} in {self.there}; "
            f"{who} must make the same collective calls in the same order"
        )


class ArrayFileError(SpmdError):
    """Failure of one rank to write or read its part of a file; raised on all ranks."""


class RunEnded(SpmdError):
    """End of the whole run."""


class PeerEnded(RunEnded):
    """End of a rank for which another one waits."""

    def __init__(self, rank: int, node: str, code: int | None, signal: int | None, why: str, member: str = "") -> None:
        """`why` is a clause such as "was killed (out of host memory)" or "has ended and sends nothing more".

        `member`: the rank's place in the communicator of some ranks whose call raises this, such as "rank 1 of this
        communicator"; empty in a call among all ranks.
        """
        super().__init__(rank, node, code, signal, why, member)
        self.rank, self.node, self.code, self.signal, self.why = rank, node, code, signal, why
        self.member = member

    def seen_from(self, places: Mapping[int, int]) -> PeerEnded:
        """Return the error for a communicator of some ranks. `places`: the number in it of each rank of the run."""
        place = places.get(self.rank)
        member = "not in this communicator" if place is None else f"rank {place} of this communicator"
        return type(self)(self.rank, self.node, self.code, self.signal, self.why, member)

    def __str__(self) -> str:
        of = f" of the run ({self.member})" if self.member else ""
        return f"rank {self.rank}{of} on {self.node} {self.why}"


class NodeLost(RunEnded):
    """A node does not answer any more."""

    def __init__(self, node: str, ranks: Sequence[int]) -> None:
        super().__init__(node, tuple(ranks))
        self.node, self.ranks = node, tuple(ranks)

    def __str__(self) -> str:
        ranks = f"ranks {self.ranks[0]} to {self.ranks[-1]}" if len(self.ranks) > 1 else f"rank {self.ranks[0]}"
        return f"node {self.node} with {ranks} does not answer any more"


class Deadlock(RunEnded):
    """State in which every rank waits and no message is in transit."""

    def __init__(self, waits: Sequence[tuple[int, str]]) -> None:
        """`waits`: each rank and what it waits for, such as "in recv for (3, 'x')"."""
        super().__init__(tuple(waits))
        self.waits = tuple(waits)

    def __str__(self) -> str:
        shown = "; ".join(f"rank {rank} waits {what}" for rank, what in self.waits[:16])
        more = f"; and {len(self.waits) - 16} more" if len(self.waits) > 16 else ""
        return f"all ranks wait for each other and no message is under way: {shown}{more}"


class StartTimeout(RunEnded):
    """Ranks that have not started in time."""

    def __init__(self, missing: Sequence[int], after_s: float) -> None:
        super().__init__(tuple(missing), after_s)
        self.missing, self.after_s = tuple(missing), after_s

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.missing[:16])) + (" ..." if len(self.missing) > 16 else "")
        who = "1 rank has" if len(self.missing) == 1 else f"{len(self.missing)} ranks have"
        return (
            f"{who} not started within {self.after_s:g} s: {shown}; "
            "where programs take longer until they use messages, set LLSUB_START_S"
        )


class Aborted(RunEnded):
    """End of the run by a rank that called abort()."""

    def __init__(self, rank: int, code: int, why: str = "") -> None:
        super().__init__(rank, code, why)
        self.rank, self.code, self.why = rank, code, why

    def __str__(self) -> str:
        return f"rank {self.rank} ended the run with code {self.code}" + (f": {self.why}" if self.why else "")


class TransportError(SpmdError):
    """Failed connection: wrong protocol version, invalid frame, failed authentication."""


class NoRoom(SpmdError, MemoryError):
    """Lack of memory for a message."""

    error_class = ERR_NO_MEM


class ReceiveTimeout(SpmdError, TimeoutError):
    """End of the time that a call may wait."""
