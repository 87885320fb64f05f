"""Messages from rank to rank, with mpi4py's names and order of arguments.

Lower-case calls take any object, upper-case calls arrays and other buffers. Every send is buffered: it returns without
waiting for the receiver. Tags are integers or strings.
"""

from __future__ import annotations

from typing import Any

from . import buffer_specs, codec
from .arguments import seconds, tag_of, whole
from .comm_base import CommBase
from .constants import ANY_SOURCE, ANY_TAG
from .envelope import NOTHING, Envelope, Tag
from .errors import UsageError
from .interrupts import puts_back
from .status import Status
from .transport import user_context


class PointToPoint(CommBase):
    """The calls of a communicator that send, receive and look for messages."""

    def send(self, obj: Any, dest: int, tag: Tag = 0) -> None:
        """Send any object without waiting for the receiver. Raises RunEnded if the receiver has ended."""
        straight = self._straight
        if straight is not None and straight.send(obj, dest, tag):
            return
        rank, known = self._rank(dest, "send"), tag_of(tag)
        self.transport.send(rank, user_context(self.group.communicator), known, *codec.encode(obj))

    @puts_back
    def recv(
        self,
        buf: Any = None,
        source: Any = ANY_SOURCE,
        tag: Any = ANY_TAG,
        status: Status | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Wait for the first message of that source and tag, and return its object.

        `buf` is unused: it is mpi4py's first argument. As an integer cannot be a buffer, `recv(1, "b")` means source 1
        and tag "b". Raises ReceiveTimeout after `timeout_s` seconds, RunEnded if no rank is left that could send it.
        """
        if buf is not None:
            source, tag = _source_first(buf, source, tag)
        straight = self._straight
        if straight is not None and status is None and timeout_s is None:
            value = straight.recv(source, tag)
            if value is not NOTHING:
                return value
        message = self.transport.receive(*self._wanted(source, tag), "recv", seconds(timeout_s))
        envelope = message.envelope
        if status is not None:
            status.take(envelope)
        return codec.decode(envelope.form, envelope.meta, message.take())

    def Send(self, buf: Any, dest: int, tag: Tag = 0) -> None:
        """Send an array as it lies in memory. Raises ValueError if it is not contiguous."""
        straight = self._straight
        if straight is not None and straight.send_array(buf, dest, tag):
            return
        rank, known = self._rank(dest, "Send"), tag_of(tag)
        context = user_context(self.group.communicator)
        self.transport.send(rank, context, known, *codec.encode(buffer_specs.readable(buf, "Send").array))

    @puts_back
    def Recv(
        self,
        buf: Any,
        source: int = ANY_SOURCE,
        tag: Any = ANY_TAG,
        status: Status | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Wait for the first message of that source and tag, and copy its array to the start of `buf`.

        Raises MessageMismatch if it is no array, is longer, or has another type; then the message stays. Raises
        ValueError if `buf` is not contiguous; ReceiveTimeout and RunEnded as `recv`.
        """
        straight = self._straight
        if straight is not None and status is None and timeout_s is None and straight.recv_array(buf, source, tag):
            return
        space = buffer_specs.writable(buf, "Recv")
        message = self.transport.receive(*self._wanted(source, tag), "Recv", seconds(timeout_s))
        try:
            buffer_specs.fill(space, message)
        except UsageError:
            self.transport.put_back(message)
            raise
        if status is not None:
            status.take(message.envelope)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: Tag = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: Any = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Send one object, then receive and return another. `recvbuf` is unused: it is mpi4py's fourth argument."""
        self.send(sendobj, dest, sendtag)
        return self.recv(None, source, recvtag, status)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: Tag = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: Any = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send one array, then receive another into `recvbuf`."""
        buffer_specs.writable(recvbuf, "Sendrecv")
        self.Send(sendbuf, dest, sendtag)
        self.Recv(recvbuf, source, recvtag, status=status)

    def probe(self, source: int = ANY_SOURCE, tag: Any = ANY_TAG, status: Status | None = None) -> bool:
        """Wait for a message of that source and tag without removing it. Returns True."""
        message = self.transport.receive(*self._wanted(source, tag), "probe")
        self.transport.put_back(message)
        if status is not None:
            status.take(message.envelope)
        return True

    def iprobe(self, source: int = ANY_SOURCE, tag: Any = ANY_TAG, status: Status | None = None) -> bool:
        """Return whether there is a message of that source and tag, without removing it."""
        envelope = self.transport.probe(*self._wanted(source, tag))
        if envelope is not None and status is not None:
            status.take(envelope)
        return envelope is not None

    Probe = probe
    """mpi4py's name of `probe`."""
    Iprobe = iprobe
    """mpi4py's name of `iprobe`."""

    def waiting(self) -> tuple[Envelope, ...]:
        """Return the descriptions of all messages that have not been received, in the order of arrival."""
        return self.transport.waiting()


def _source_first(buf: Any, source: Any, tag: Any) -> tuple[Any, Any]:
    """Return source and tag of a `recv` whose first argument is not None. Raises UsageError."""
    if whole(buf) is None:
        try:
            memoryview(buf)
        except TypeError:
            raise UsageError(f"recv: the first argument is None, a buffer or the source, not {buf!r}") from None
        return source, tag
    if source != ANY_SOURCE and tag != ANY_TAG:
        raise UsageError(f"recv: the first argument is None or a buffer, as in mpi4py, not {buf!r}")
    return buf, tag if source == ANY_SOURCE else source
