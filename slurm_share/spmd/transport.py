"""What moves messages between ranks: the interface that collectives, Comm and Dmat are written against.

Two transports offer it: `sockets.SocketTransport` (ours) and `mpi.MpiTransport`; tests have a third one, of threads.
A transport knows bytes only. `codec` makes them of objects and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Tag = int | str
USER = 0
"""Context of users' messages. A collective call has (1 << 32 | its number), so that its messages never meet theirs."""
RAW, ARRAY, PICKLE5 = 0, 1, 2
"""Forms of a body: bytes; an array, whose dtype and shape are the meta; pickle protocol 5, whose buffers follow it."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node of the run."""

    name: str
    first: int
    """Its lowest rank; its ranks follow each other."""
    count: int


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is known of a message before it is taken."""

    source: int
    context: int
    tag: Tag
    form: int
    size: int
    """Bytes of the body."""
    meta: bytes = b""


class Window(Protocol):
    """Memory that this rank shares with others of its node. Only its owner releases it."""

    @property
    def memory(self) -> memoryview:
        """The bytes, at least as many as were asked for; what they hold at first is not known."""
        ...

    def release(self) -> None:
        """Let it be used for something else. The caller knows that nobody reads or writes it any more."""
        ...


class Message(Protocol):
    """One message that was received. Its body is taken once."""

    @property
    def envelope(self) -> Envelope: ...

    @property
    def window(self) -> memoryview | None:
        """The sender's window, if it sent one along: shared memory, to be read or written as the two agreed."""
        ...

    def take(self) -> memoryview:
        """Return the body as bytes that are the caller's own and can be written to."""
        ...

    def take_into(self, buffer: memoryview) -> None:
        """Copy the body into `buffer`, contiguous bytes of exactly its size."""
        ...


class Transport(Protocol):
    """Messages between the ranks of a run. One call at a time: calls of several threads are served in turn."""

    rank: int
    size: int
    nodes: tuple[NodePlace, ...]
    has_windows: bool

    def send(
        self,
        dest: int,
        context: int,
        tag: Tag,
        form: int,
        meta: bytes,
        buffers: Sequence[memoryview],
        window: Window | None = None,
    ) -> None:
        """Send a message; never waits for its receiver. `buffers`, contiguous bytes, may change once it returns.

        To itself too. Messages of one sender to one receiver come in the order in which they were sent. `window` goes
        along as memory, for ranks of the same node only. Raises RunEnded where the receiver has ended or its node is
        lost, NoRoom where there is no memory to keep the message.
        """
        ...

    def receive(
        self, source: int | None, context: int, tag: Tag | None, call: str, timeout_s: float | None = None
    ) -> Message:
        """Wait for the first message of that source and tag, and return it. None: of any.

        `call` is what a person reads who asks what this rank waits for: "recv", "bcast". In a context other than USER
        all messages bear the same tag, which names the collective call and its arguments; another one there, or one of
        a collective call that this rank has finished, raises CollectiveMismatch. Raises RunEnded where nobody is left
        who could send it, ReceiveTimeout after `timeout_s` seconds.
        """
        ...

    def put_back(self, message: Message) -> None:
        """Make a message that was not taken the first of its source and tag again."""
        ...

    def probe(self, source: int | None, context: int, tag: Tag | None) -> Envelope | None:
        """Return the first message of that source and tag, which stays; None: there is none yet. Does not wait."""
        ...

    def waiting(self) -> tuple[Envelope, ...]:
        """Return all of the users' messages that wait here, in the order in which they came. Does not wait."""
        ...

    def finish(self, context: int) -> None:
        """This rank has finished that collective call: raise CollectiveMismatch if a message of it is left."""
        ...

    def call_failed(self) -> None:
        """Note that a collective call has raised an error: then messages that are left at the end are no news."""
        ...

    def window(self, size: int) -> Window:
        """Return memory to share with ranks of this node. Raises NoRoom; only where `has_windows`."""
        ...

    def abort(self, code: int, why: str) -> None:
        """End the run: every rank's next or present call raises Aborted. Returns; the caller exits."""
        ...

    def close(self) -> None:
        """Deliver what was sent, say goodbye, close. Called once at exit; later calls raise UsageError."""
        ...
