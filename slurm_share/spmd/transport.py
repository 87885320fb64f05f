"""Interface of the transports, which move messages between ranks. Collectives, Comm and Dmat use it.

`sockets.SocketTransport`, `mpi.MpiTransport` and `single.SingleTransport` implement it; tests have one of threads. A
transport moves bytes; `codec` converts objects to bytes and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Tag = int | str
USER = 0
"""Context of users' messages. A collective call has the context (1 << 32 | its number), apart from all others."""
RAW, ARRAY, PICKLE5 = 0, 1, 2
"""Forms of a body: bytes; an array with dtype and shape in the meta; pickle protocol 5, followed by its buffers."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node of the run, with its ranks."""

    name: str
    first: int
    """Lowest rank of the node; its ranks are consecutive."""
    count: int

    @property
    def ranks(self) -> range:
        """The ranks of the node."""
        return range(self.first, self.first + self.count)


@dataclass(frozen=True, slots=True)
class Envelope:
    """Description of a message, without its body."""

    source: int
    context: int
    tag: Tag
    form: int
    size: int
    """Size of the body in bytes."""
    meta: bytes = b""


class Window(Protocol):
    """Memory that this rank shares with others of its node. Only the owner releases it."""

    @property
    def memory(self) -> memoryview:
        """The bytes, at least as many as were requested, uninitialised."""
        ...

    def release(self) -> None:
        """Give the memory back. The caller knows that no rank uses it any more."""
        ...


class Message(Protocol):
    """Received message. Its body can be taken once."""

    arrival: int
    """Number in the order of arrival at this rank; `matching.Queues` sets it."""

    @property
    def envelope(self) -> Envelope: ...

    @property
    def window(self) -> memoryview | None:
        """The sender's window, if the message had one: shared memory that both read and write as they agreed."""
        ...

    def take(self) -> memoryview:
        """Return the body as writable bytes that belong to the caller."""
        ...

    def take_into(self, buffer: memoryview) -> None:
        """Copy the body into `buffer`, contiguous bytes of the same size."""
        ...


class Transport(Protocol):
    """Messages between the ranks of a run. Several threads may call it; their calls take turns."""

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
        """Send a message, also to this rank, without waiting for the receiver.

        `buffers`, contiguous bytes, may change after the return. Messages of one sender to one receiver arrive in the
        order of sending. `window` is passed as shared memory, only to ranks of the same node. Raises RunEnded if the
        receiver has ended or its node is lost, NoRoom if there is no memory to keep the message.
        """
        ...

    def receive(
        self, source: int | None, context: int, tag: Tag | None, call: str, timeout_s: float | None = None
    ) -> Message:
        """Wait for the first message of that source and tag (None: of any), and return it.

        `call`: name of the waiting call in messages to users, such as "recv" or "bcast". In a context other than USER
        all messages have the same tag, which names the collective call and its arguments. Another tag there, or a
        message of a collective call that this rank has finished, raises CollectiveMismatch. Raises RunEnded if no rank
        is left that could send the message, ReceiveTimeout after `timeout_s` seconds.
        """
        ...

    def put_back(self, message: Message) -> None:
        """Put a received message, whose body was not taken, back in its place in the order of arrival."""
        ...

    def probe(self, source: int | None, context: int, tag: Tag | None) -> Envelope | None:
        """Return the first message of that source and tag without removing it or waiting; None: there is none yet."""
        ...

    def waiting(self) -> tuple[Envelope, ...]:
        """Return all users' messages that have not been received, in the order of arrival. Does not wait."""
        ...

    def finish(self, context: int) -> None:
        """Finish a collective call. Raises CollectiveMismatch if a message of it is left."""
        ...

    def call_failed(self) -> None:
        """Note that a collective call has raised an error: then messages that are left at the end are no news."""
        ...

    def window(self, size: int) -> Window:
        """Return memory to share with ranks of this node. Only if `has_windows`. Raises NoRoom."""
        ...

    def abort(self, code: int, why: str) -> None:
        """End the run: the current or next call of every rank raises Aborted. Returns; the caller exits."""
        ...

    def close(self) -> None:
        """Deliver all sent messages and close. Called once at exit; later calls raise UsageError."""
        ...
