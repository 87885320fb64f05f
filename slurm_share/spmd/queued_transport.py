"""Base class of the transports: received messages wait in queues until a call takes them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from .matching import Queues
from .transport import Envelope, Message, Tag


class QueuedTransport:
    """The part of `transport.Transport` that concerns received messages only."""

    _lock: AbstractContextManager[Any]
    _queues: Queues

    def _poll(self) -> None:
        """Move the messages that have arrived into the queues, with the lock held. Raises UsageError if closed."""
        raise NotImplementedError

    def put_back(self, message: Message) -> None:
        """Put a received message, whose body was not taken, back in its place in the order of arrival."""
        with self._lock:
            self._queues.put_back(message)

    def probe(self, source: int | None, context: int, tag: Tag | None) -> Envelope | None:
        """Return the first message of that source and tag without removing it; None: there is none yet."""
        with self._lock:
            self._poll()
            return self._queues.find(source, context, tag)

    def waiting(self) -> tuple[Envelope, ...]:
        """Return all users' messages that have not been received, in the order of arrival."""
        with self._lock:
            self._poll()
            return tuple(self._queues.waiting())

    def finish(self, context: int) -> None:
        """Finish a collective call. Raises CollectiveMismatch if a message of it is left."""
        with self._lock:
            self._queues.finish(context)

    def call_failed(self) -> None:
        """Note that a collective call has raised an error, so that its remaining messages are no mismatch."""
        self._queues.call_failed()
