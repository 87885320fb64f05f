"""The transport of a process that is alone: messages to itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .bodies import Received, joined, new_bytes
from .errors import Deadlock, ReceiveTimeout, UsageError
from .matching import Queues
from .transport import Envelope, Message, NodePlace, Tag, Window

_CHECK_S = 0.5


@dataclass(eq=False)
class OwnWindow:
    """Memory of this process."""

    memory: memoryview

    def release(self) -> None:
        """Do nothing: it goes with its last user."""


class SingleTransport:
    """A run of one rank."""

    rank, size, has_windows = 0, 1, True

    def __init__(self) -> None:
        self.nodes: tuple[NodePlace, ...] = (NodePlace(os.uname().nodename.split(".")[0], 0, 1),)
        self._queues = Queues(0)
        self._changed = threading.Condition()
        self._closed = False

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
        """Send a message to this process itself."""
        self._check(dest)
        body = joined(buffers, sum(buffer.nbytes for buffer in buffers))
        envelope = Envelope(0, context, tag, form, body.nbytes, meta)
        memory = window.memory if window is not None else None
        with self._changed:
            self._queues.put(Received(envelope, [body], memory, lambda _lent: None))
            self._changed.notify_all()

    def receive(
        self, source: int | None, context: int, tag: Tag | None, call: str, timeout_s: float | None = None
    ) -> Message:
        """Return the first message that fits. Raises Deadlock where no other thread could send one any more."""
        self._check(source)
        what = f"({'any' if source is None else source}, {'any' if tag is None else tag!r})"
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while True:
                message = self._queues.take(source, context, tag)
                if message is not None:
                    return message
                left = _CHECK_S if until is None else until - time.monotonic()
                if left <= 0:
                    raise ReceiveTimeout(f"rank 0 has waited {timeout_s:g} s in {call} for {what}")
                if until is None and threading.active_count() == 1:
                    raise Deadlock(((0, f"in {call} for {what}, and there is no other rank"),))
                self._changed.wait(min(left, _CHECK_S))

    def put_back(self, message: Message) -> None:
        """Make a message that was not taken the first of its tag again."""
        with self._changed:
            self._queues.put_back(message)

    def probe(self, source: int | None, context: int, tag: Tag | None) -> Envelope | None:
        """Return the first message that fits, which stays; None: there is none."""
        self._check(source)
        with self._changed:
            return self._queues.find(source, context, tag)

    def waiting(self) -> tuple[Envelope, ...]:
        """Return all of the users' messages that wait here."""
        with self._changed:
            return tuple(self._queues.waiting())

    def finish(self, context: int) -> None:
        """Close a collective call: raise CollectiveMismatch if a message of it is left."""
        with self._changed:
            self._queues.finish(context)

    def call_failed(self) -> None:
        """Do nothing: there is no other rank."""

    def window(self, size: int) -> OwnWindow:
        """Return memory. Raises NoRoom."""
        return OwnWindow(new_bytes(max(size, 1)))

    def abort(self, code: int, why: str) -> None:
        """Do nothing: the caller exits, and there is nobody else."""

    def close(self) -> None:
        """Refuse later calls."""
        self._closed = True

    def _check(self, rank: int | None) -> None:
        if self._closed:
            raise UsageError("messages cannot be sent or received any more: the transport is closed")
        if rank not in (None, 0):
            raise UsageError(f"there is no rank {rank}; this process is alone, it is rank 0 of 1")
