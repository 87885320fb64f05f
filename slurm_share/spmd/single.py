"""Transport of a process outside a run: rank 0 of 1, which can send messages to itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from . import threads
from .bodies import Received, join_buffers
from .envelope import RAW, Envelope, Tag
from .errors import Deadlock, ReceiveTimeout, UsageError
from .transport import Buffers, NodePlace, Posted, Queues, Transport, Window, wanted_text

_CHECK_S = 0.5
_NONE: tuple[int, object] = 0, ()


class SingleTransport(Transport):
    """The only rank of a run."""

    rank, size, has_windows = 0, 1, False

    def __init__(self) -> None:
        self.nodes: tuple[NodePlace, ...] = (NodePlace(os.uname().nodename.split(".")[0], 0, 1),)
        self._queues = Queues(0)
        self._lock = self._changed = threading.Condition()
        self._closed = False

    def send(
        self, dest: int, context: int, tag: Tag, form: int, meta: bytes, buffers: Buffers, window: Window | None = None
    ) -> None:
        self._poll()
        body = join_buffers(buffers, sum(buffer.nbytes for buffer in buffers))
        envelope = Envelope(0, context, tag, form, body.nbytes, meta)
        with self._changed:
            self._queues.put(Received(envelope, [body]))
            self._answer()
            self._changed.notify_all()

    def receive(
        self, source: int | None, context: int, tag: Tag | None, call: str, timeout_s: float | None = None
    ) -> Received:
        """Return the first message that matches. Raises Deadlock if no other thread could send one."""
        self._poll()
        what = f"({'any' if source is None else source}, {'any' if tag is None else tag!r})"
        until = None if timeout_s is None else time.monotonic() + timeout_s
        others: tuple[int, object] = 1, ()
        with self._changed:
            while True:
                message = self._queues.take(source, context, tag)
                if message is not None:
                    return message
                left = _CHECK_S if until is None else until - time.monotonic()
                if left <= 0:
                    raise ReceiveTimeout(f"rank 0 has waited {timeout_s:g} s in {call} for {what}")
                before, others = others, threads.at_rest(None) if threading.active_count() > 1 else _NONE
                if until is None and not others[0] and others in (_NONE, before):
                    raise Deadlock(((0, f"in {call} for {what}, and there is no other rank"),))
                self._changed.wait(min(left, _CHECK_S))

    def wait(self, posted: Sequence[Posted], call: str, timeout_s: float | None = None) -> None:
        """Wait until a posted receive is done. Raises Deadlock if no other thread could send its message."""
        self._poll()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not any(one.is_done for one in posted):
                left = _CHECK_S if until is None else until - time.monotonic()
                if left <= 0:
                    raise ReceiveTimeout(f"rank 0 has waited {timeout_s:g} s in {call} for {wanted_text(posted)}")
                if until is None and threading.active_count() == 1:
                    raise Deadlock(((0, f"in {call} for {wanted_text(posted)}, and there is no other rank"),))
                self._changed.wait(min(left, _CHECK_S))

    def _send_answer(self, dest: int, context: int, tag: Tag) -> None:
        self._queues.put(Received(Envelope(dest, context, tag, RAW, 0), [memoryview(bytearray())]))

    def abort(self, code: int, why: str) -> None:
        """Do nothing: the caller exits, and there is no other rank."""

    def close(self) -> None:
        """Make later calls raise UsageError."""
        self._closed = True

    def _poll(self) -> None:
        if self._closed:
            raise UsageError("messages cannot be sent or received any more: the transport is closed")
