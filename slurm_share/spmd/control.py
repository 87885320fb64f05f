"""This rank's end of the rendezvous process: its connection, and what is known of the ends of other ranks."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from . import wire
from .errors import (
    Aborted,
    CollectiveMismatch,
    Deadlock,
    NodeLost,
    PeerEnded,
    RunEnded,
    SpmdError,
    StartTimeout,
    TransportError,
)
from .names import CONTROL_BYTES
from .transport import USER, NodePlace


class Control:
    """The connection to the node's rendezvous process. Nothing here waits."""

    def __init__(self, sock: socket.socket, rest: bytes) -> None:
        """`rest`: bytes that came behind Welcome, and were read with it."""
        self.sock = sock
        self.lost = False
        """The process has gone. That is no error in itself."""
        self._rest = rest
        self._unsent = b""

    def read(self) -> list[wire.Control]:
        """Return the records that have come."""
        try:
            data = self.sock.recv(CONTROL_BYTES)
            self.lost = not data
        except (BlockingIOError, InterruptedError):
            data = b""
        except OSError:
            data, self.lost = b"", True
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [wire.decode(line) for line in lines]

    def say(self, record: wire.Control) -> None:
        """Send a record; keep what the kernel does not take, behind which later calls come."""
        self._unsent += wire.encode(record)
        self.send_rest()

    def send_rest(self) -> bool:
        """Send what the kernel takes now of what was left; return whether nothing is left."""
        try:
            while self._unsent and not self.lost:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.lost = True
        return self.lost or not self._unsent


class Ends:
    """Which ranks have ended, and what stops the whole run. Values only."""

    def __init__(self, rank: int, nodes: Sequence[NodePlace]) -> None:
        self._rank = rank
        self._size = sum(node.count for node in nodes)
        self._nodes = nodes
        self.fatal: SpmdError | None = None
        """What every later call raises; None: the run goes on."""
        self.stuck: SpmdError | None = None
        """What the call that waits raises; None: some rank can go on."""
        self._errors: dict[int, SpmdError] = {}
        """Rank -> what a call raises that waits for it."""
        self.first: RunEnded | None = None
        """The first end that was not in good order."""

    def take(self, record: wire.Control) -> None:
        """Take note of a record of the rendezvous process."""
        if isinstance(record, wire.Ended):
            self._ended(record)
        elif isinstance(record, wire.Lost):
            lost = NodeLost(record.node, record.ranks)
            self.first = self.first or lost
            self._errors.update(dict.fromkeys(record.ranks, lost))
        elif isinstance(record, wire.Stuck):
            self.stuck = Deadlock(record.waits)
        elif isinstance(record, wire.Mismatch):
            (here, call), (there, other) = sorted((record.here, record.there), key=lambda one: one[0] != self._rank)
            self.stuck = CollectiveMismatch(record.number, here, call, there, other)
        elif isinstance(record, wire.Aborted):
            self.fatal = self.fatal or Aborted(record.rank, record.code, record.why)
        elif isinstance(record, wire.Missing):
            self.fatal = StartTimeout(record.ranks, record.after_s)
        elif isinstance(record, wire.Refused):
            self.fatal = TransportError(f"the rendezvous process refused this rank: {record.why}")

    def closed(self, rank: int, in_good_order: bool) -> None:
        """Take note of a rank that has closed its connections while there is no rendezvous process that says why."""
        if rank not in self._errors:
            why = "has ended and sends nothing more" if in_good_order else "has closed its connections"
            self._ended(wire.Ended(rank, self.node_of(rank), 0 if in_good_order else None, None, why))

    def failed(self, rank: int, error: SpmdError) -> None:
        """Take note of a rank whose messages cannot be read any more."""
        self._errors.setdefault(rank, error)

    def has_ended(self, rank: int) -> bool:
        return rank in self._errors

    def in_good_order(self, rank: int) -> bool:
        """Whether a rank has ended with code 0."""
        error = self._errors.get(rank)
        return isinstance(error, PeerEnded) and error.code == 0 and error.signal is None

    @property
    def quiet(self) -> bool:
        """Whether nobody has ended and nothing stops the run."""
        return not self._errors and self.fatal is None and self.stuck is None

    def error_for_receive(self, source: int | None, context: int) -> SpmdError | None:
        """Return why no message of that source can come any more; None: one can."""
        if self.fatal is not None or self.stuck is not None:
            return self.fatal or self.stuck
        if context != USER and self.first is not None:
            return self.first
        if source is not None:
            return self.error_of(source)
        if self._size > 1 and len(self._errors) == self._size - 1:
            return self.first or next(reversed(self._errors.values()))
        return None

    def error_for_send(self, dest: int, context: int) -> SpmdError | None:
        """Return why a rank takes no message any more; None: it does.

        In a collective call the first end that was not in good order is named: a rank that caught it may have ended
        with code 0.
        """
        error = self.error_of(dest)
        return self.first if error is not None and context != USER and self.first is not None else error

    def error_of(self, rank: int) -> SpmdError | None:
        """Return the end of a rank; None: it lives.

        A program that ends with 1 after another rank's end has most likely met that end itself: the first one is named.
        """
        error = self._errors.get(rank)
        if isinstance(error, PeerEnded) and error.code == 1 and self.first is not None:
            return self.first
        return error

    def node_of(self, rank: int) -> str:
        """Return the name of a rank's node."""
        return next((node.name for node in self._nodes if node.first <= rank < node.first + node.count), "?")

    def _ended(self, record: wire.Ended) -> None:
        if record.rank == self._rank:
            return
        good = record.code == 0 and record.signal is None
        why = "has ended and sends nothing more" if good else record.why
        error = PeerEnded(record.rank, record.node, record.code, record.signal, why)
        if record.rank not in self._errors or not good:  # first that it has finished with messages, later its code
            self._errors[record.rank] = error
        if not good:
            self.first = self.first or error
