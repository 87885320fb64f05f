"""Connection of a rank to its rendezvous process, and the ends of other ranks that it reports."""

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


class ControlConnection:
    """Non-blocking connection to the node's rendezvous process."""

    def __init__(self, sock: socket.socket, rest: bytes) -> None:
        """`rest`: bytes that were read after Welcome."""
        self.sock = sock
        self.lost = False
        """Whether the process has ended, which alone is no error."""
        self._rest = rest
        self._unsent = b""

    def read(self) -> list[wire.Control]:
        """Return the records that have arrived."""
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
        """Send a record; keep what the kernel does not accept for later calls."""
        self._unsent += wire.encode(record)
        self.send_rest()

    def send_rest(self) -> bool:
        """Send as much of the output as the kernel accepts; return whether nothing is left."""
        try:
            while self._unsent and not self.lost:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.lost = True
        return self.lost or not self._unsent


class Ends:
    """Ends of ranks and of the whole run. Does no I/O."""

    def __init__(self, rank: int, nodes: Sequence[NodePlace]) -> None:
        self._rank = rank
        self._size = sum(node.count for node in nodes)
        self._nodes = nodes
        self.fatal: SpmdError | None = None
        """Error that every later call raises; None: the run goes on."""
        self.stuck: SpmdError | None = None
        """Error that the waiting call raises; None: some rank can go on."""
        self._errors: dict[int, SpmdError] = {}
        """Per ended rank, the error of a call that waits for it."""
        self.first: RunEnded | None = None
        """The first end that was not orderly."""

    def take(self, record: wire.Control) -> None:
        """Note a record of the rendezvous process."""
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
        """Note that a rank has closed its connections, if no rendezvous process reports the reason."""
        if rank not in self._errors:
            why = "has ended and sends nothing more" if in_good_order else "has closed its connections"
            self._ended(wire.Ended(rank, self.node_of(rank), 0 if in_good_order else None, None, why))

    def failed(self, rank: int, error: SpmdError) -> None:
        """Note that the messages of a rank can no longer be read."""
        self._errors.setdefault(rank, error)

    def has_ended(self, rank: int) -> bool:
        return rank in self._errors

    def is_orderly(self, rank: int) -> bool:
        """Return whether a rank has ended with code 0."""
        error = self._errors.get(rank)
        return isinstance(error, PeerEnded) and error.code == 0 and error.signal is None

    @property
    def quiet(self) -> bool:
        """Whether no rank has ended and nothing stops the run."""
        return not self._errors and self.fatal is None and self.stuck is None

    def error_for_receive(self, source: int | None, context: int) -> SpmdError | None:
        """Return why no message of that source (None: of any) can come any more; None: one can."""
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
        """Return why a rank accepts no message any more; None: it does.

        In a collective call this is the first end that was not orderly, because a rank that caught that error may have
        ended with code 0.
        """
        error = self.error_of(dest)
        return self.first if error is not None and context != USER and self.first is not None else error

    def error_of(self, rank: int) -> SpmdError | None:
        """Return the end of a rank; None: it is running.

        A rank that ends with code 1 after the end of another rank has most likely failed because of that one, so the
        first end is returned.
        """
        error = self._errors.get(rank)
        if isinstance(error, PeerEnded) and error.code == 1 and self.first is not None:
            return self.first
        return error

    def node_of(self, rank: int) -> str:
        """Return the name of a rank's node."""
        return next((node.name for node in self._nodes if rank in node.ranks), "?")

    def _ended(self, record: wire.Ended) -> None:
        if record.rank == self._rank:
            return
        good = record.code == 0 and record.signal is None
        why = "has ended and sends nothing more" if good else record.why
        error = PeerEnded(record.rank, record.node, record.code, record.signal, why)
        if record.rank not in self._errors or not good:  # the first report may be Bye, a later one has the code
            self._errors[record.rank] = error
        if not good:
            self.first = self.first or error
