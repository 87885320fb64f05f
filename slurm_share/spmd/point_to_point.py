"""Messages from rank to rank, with mpi4py's names and order of arguments.

Lower-case calls take any object, upper-case calls arrays and other buffers. Every send is buffered: it returns without
waiting for the receiver, but for synchronous ones. Tags are integers or strings. A message to PROC_NULL vanishes; one
from it is empty and there at once.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from . import codec
from .arguments import checked_status, is_any_tag, seconds, tag_of, whole
from .buffer_specs import Elements, fill, readable, writable
from .comm_base import CommBase
from .constants import ANY_SOURCE, ANY_TAG, PROC_NULL
from .envelope import NOTHING, RAW, SYNCHRONOUS, Envelope, Tag
from .errors import RunEnded, UsageError
from .interrupts import puts_back
from .status import Status
from .transport import Posted, answer_context, answer_of, plain, synchronous, user_context

if TYPE_CHECKING:  # few programs need them, so their modules are imported by the calls
    from .matched import Message
    from .requests import Operation, Prequest, Request

_synchronous_sends = itertools.count()


class PointToPoint(CommBase):
    """The calls of a communicator that send, receive and look for messages."""

    def send(self, obj: Any, dest: int, tag: Tag = 0) -> None:
        """Send any object without waiting for the receiver. Raises RunEnded if the receiver has ended."""
        straight = self._straight
        if straight is not None and straight.send(obj, dest, tag):
            return
        rank, known = self._peer(dest, "send"), tag_of(tag)
        if rank >= 0:
            self.transport.send(rank, user_context(self.group.communicator), known, *codec.encode(obj))

    bsend = send
    """mpi4py's name of a buffered `send`, which every send is."""

    def ssend(self, obj: Any, dest: int, tag: Tag = 0) -> None:
        """Send any object, and wait until a receive has got it."""
        self.issend(obj, dest, tag).wait()

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
            source, tag = _source_first(buf, source, tag, "recv")
        straight = self._straight
        if straight is not None and status is None and timeout_s is None:
            value = straight.recv(source, tag)
            if value is not NOTHING:
                return value
        checked_status(status, "recv")
        if whole(source) == PROC_NULL:
            return _nothing(status)
        return self._recv(source, tag, status, timeout_s)

    @puts_back
    def _recv(self, source: Any, tag: Any, status: Status | None, timeout_s: float | None) -> Any:
        message = self.transport.receive(*self._wanted(source, tag), "recv", seconds(timeout_s))
        envelope = message.envelope
        if envelope.form & SYNCHRONOUS:
            envelope = self._answer(envelope)
        if status is not None:
            status.take(envelope)
        return codec.decode(envelope.form, envelope.meta, message.take())

    def Send(self, buf: Any, dest: int, tag: Tag = 0) -> None:
        """Send an array as it lies in memory. Raises ValueError if it is not contiguous."""
        straight = self._straight
        if straight is not None and straight.send_array(buf, dest, tag):
            return
        rank, known = self._peer(dest, "Send"), tag_of(tag)
        if rank >= 0:
            context = user_context(self.group.communicator)
            self.transport.send(rank, context, known, *codec.encode(readable(buf, "Send").array))

    Bsend = Send
    """mpi4py's name of a buffered `Send`, which every send is."""
    Rsend = Send
    """mpi4py's name of a `Send` whose receive has been posted, which makes no difference here."""

    def Ssend(self, buf: Any, dest: int, tag: Tag = 0) -> None:
        """Send an array, and wait until a receive has got it."""
        self.Issend(buf, dest, tag).Wait()

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
        checked_status(status, "Recv")
        if whole(source) == PROC_NULL:
            _nothing(status)
        else:
            self._recv_into(writable(buf, "Recv"), source, tag, status, timeout_s)

    @puts_back
    def _recv_into(
        self, space: Elements, source: Any, tag: Any, status: Status | None, timeout_s: float | None
    ) -> None:
        message = self.transport.receive(*self._wanted(source, tag), "Recv", seconds(timeout_s))
        synchronous_one = None
        if message.envelope.form & SYNCHRONOUS:
            synchronous_one, message.envelope = message.envelope, plain(message.envelope)
        try:
            fill(space, message)
        except UsageError:
            message.envelope = synchronous_one or message.envelope
            self.transport.put_back(message)
            raise
        if synchronous_one is not None:
            self._answer(synchronous_one)
        if status is not None:
            status.take(message.envelope)

    def isend(self, obj: Any, dest: int, tag: Tag = 0) -> Request:
        """Send any object, and return a request that is complete: every send is buffered."""
        self.send(obj, dest, tag)
        return _complete_request()

    ibsend = isend
    """mpi4py's name of a buffered `isend`."""

    def issend(self, obj: Any, dest: int, tag: Tag = 0) -> Request:
        """Send any object; the request is complete when a receive has got it."""
        rank, known = self._peer(dest, "issend"), tag_of(tag)
        return self._send_synchronously(rank, known, codec.encode(obj))

    def Isend(self, buf: Any, dest: int, tag: Tag = 0) -> Request:
        """Send an array, and return a request that is complete: the buffer may change at once."""
        self.Send(buf, dest, tag)
        return _complete_request()

    Ibsend = Isend
    """mpi4py's name of a buffered `Isend`."""
    Irsend = Isend
    """mpi4py's name of an `Isend` whose receive has been posted."""

    def Issend(self, buf: Any, dest: int, tag: Tag = 0) -> Request:
        """Send an array; the request is complete when a receive has got it. The buffer may change at once."""
        rank, known = self._peer(dest, "Issend"), tag_of(tag)
        if rank < 0:
            return _complete_request()
        return self._send_synchronously(rank, known, codec.encode(readable(buf, "Issend").array))

    def irecv(self, buf: Any = None, source: Any = ANY_SOURCE, tag: Any = ANY_TAG) -> Request:
        """Post a receive of an object, which `wait` of the request returns.

        It gets the first message that matches, in the order of posting, before any later receive or probe. `buf` is
        unused: it is mpi4py's buffer, or the number of its bytes, which programs for mpi4py give for long messages. A
        request that is dropped stays posted; its message is lost (`requests`).
        """
        if buf is not None and whole(buf) is None:
            _source_first(buf, source, tag, "irecv")
        return self._post(source, tag, None)

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: Any = ANY_TAG) -> Request:
        """Post a receive of an array into `buf`, which the call that completes the request fills; as `irecv`."""
        return self._post(source, tag, None if whole(source) == PROC_NULL else writable(buf, "Irecv"))

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
        checked_status(status, "sendrecv")
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
        if recvbuf is None and whole(source) == PROC_NULL:
            recvbuf = bytearray()
        checked_status(status, "Sendrecv")
        writable(recvbuf, "Sendrecv")
        self.Send(sendbuf, dest, sendtag)
        self.Recv(recvbuf, source, recvtag, status=status)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: Tag = 0,
        source: int = ANY_SOURCE,
        recvtag: Any = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send an array, then receive another into the same buffer."""
        checked_status(status, "Sendrecv_replace")
        if buf is None and whole(dest) == whole(source) == PROC_NULL:
            buf = bytearray()
        writable(buf, "Sendrecv_replace")
        self.Send(buf, dest, sendtag)
        self.Recv(buf, source, recvtag, status=status)

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: Tag = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: Any = ANY_TAG,
    ) -> Request:
        """Send one array, and post a receive of another into `recvbuf`; return the request of the receive."""
        if recvbuf is None and whole(source) == PROC_NULL:
            recvbuf = bytearray()
        space = writable(recvbuf, "Isendrecv")
        self.Send(sendbuf, dest, sendtag)
        return self._post(source, recvtag, space)

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: Tag = 0, source: int = ANY_SOURCE, recvtag: Any = ANY_TAG
    ) -> Request:
        """Send an array, and post a receive into the same buffer; return the request of the receive."""
        return self.Isendrecv(buf, dest, sendtag, buf, source, recvtag)

    def Send_init(self, buf: Any, dest: int, tag: Tag = 0) -> Prequest:
        """Return a request whose every `Start` sends the array as it is then."""
        if self._peer(dest, "Send_init") >= 0:
            readable(buf, "Send_init")
        return self._persistent(lambda: _operation_of(self.Isend(buf, dest, tag)))

    Bsend_init = Send_init
    """mpi4py's name of a buffered `Send_init`."""
    Rsend_init = Send_init
    """mpi4py's name of a `Send_init` whose receives have been posted."""

    def Ssend_init(self, buf: Any, dest: int, tag: Tag = 0) -> Prequest:
        """Return a request whose every `Start` sends the array; it is complete when a receive has got it."""
        if self._peer(dest, "Ssend_init") >= 0:
            readable(buf, "Ssend_init")
        return self._persistent(lambda: _operation_of(self.Issend(buf, dest, tag)))

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: Any = ANY_TAG) -> Prequest:
        """Return a request whose every `Start` posts a receive into `buf`."""
        if whole(source) != PROC_NULL:
            writable(buf, "Recv_init")
            self._wanted(source, tag)
        return self._persistent(lambda: _operation_of(self.Irecv(buf, source, tag)))

    def probe(self, source: int = ANY_SOURCE, tag: Any = ANY_TAG, status: Status | None = None) -> Literal[True]:
        """Wait for a message of that source and tag without removing it. Returns True."""
        checked_status(status, "probe")
        if whole(source) == PROC_NULL:
            _nothing(status)
            return True
        message = self.transport.receive(*self._wanted(source, tag), "probe")
        self.transport.put_back(message)
        if status is not None:
            status.take(message.envelope)
        return True

    def iprobe(self, source: int = ANY_SOURCE, tag: Any = ANY_TAG, status: Status | None = None) -> bool:
        """Return whether there is a message of that source and tag, without removing it."""
        checked_status(status, "iprobe")
        if whole(source) == PROC_NULL:
            _nothing(status)
            return True
        envelope = self.transport.probe(*self._wanted(source, tag))
        if envelope is not None and status is not None:
            status.take(envelope)
        return envelope is not None

    Probe = probe
    """mpi4py's name of `probe`."""
    Iprobe = iprobe
    """mpi4py's name of `iprobe`."""

    def mprobe(self, source: int = ANY_SOURCE, tag: Any = ANY_TAG, status: Status | None = None) -> Message:
        """Wait for a message and take it out of the queue: only the Message that is returned can receive it."""
        from .matched import Message

        checked_status(status, "mprobe")
        if whole(source) == PROC_NULL:
            _nothing(status)
            return Message.of(None)
        posted = self.transport.post(*self._wanted(source, tag))
        try:
            if not posted.is_done:
                posted.owner.wait((posted,), "mprobe")
            return _matched(posted, status)
        except BaseException:
            _withdraw(posted)
            raise

    def improbe(self, source: int = ANY_SOURCE, tag: Any = ANY_TAG, status: Status | None = None) -> Message | None:
        """Take a message out of the queue as `mprobe`, or return None: there is none yet."""
        from .matched import Message

        checked_status(status, "improbe")
        if whole(source) == PROC_NULL:
            _nothing(status)
            return Message.of(None)
        posted = self.transport.post(*self._wanted(source, tag))
        try:
            if not posted.is_done:
                posted.owner.poll((posted,))
            if not posted.is_done and posted.owner.unpost(posted):
                return None
            return _matched(posted, status)
        except BaseException:
            _withdraw(posted)
            raise

    Mprobe = mprobe
    """mpi4py's name of `mprobe`."""
    Improbe = improbe
    """mpi4py's name of `improbe`."""

    def waiting(self) -> tuple[Envelope, ...]:
        """Return the descriptions of all messages that have not been received, in the order of arrival."""
        return self.transport.waiting()

    def _peer(self, dest: Any, call: str) -> int:
        """Return the rank of a receiver, or PROC_NULL. Raises UsageError."""
        number = whole(dest)  # which is None for an array: it compares as an array
        return PROC_NULL if number == PROC_NULL else self._rank(dest, call)

    def _post(self, source: Any, tag: Any, space: Elements | None) -> Request:
        from .requests import NullReceive, Receive, Request

        if whole(source) == PROC_NULL:
            return Request.of(NullReceive())
        return Request.of(Receive(self.transport.post(*self._wanted(source, tag)), space))

    def _send_synchronously(self, rank: int, tag: Tag, encoded: tuple[int, bytes, Sequence[memoryview]]) -> Request:
        from .requests import Request, SynchronousSend

        if rank < 0:
            return _complete_request()
        form, meta, buffers = encoded
        number = next(_synchronous_sends)
        context = user_context(self.group.communicator)
        posted = self.transport.post(rank, answer_context(context), number)
        try:
            self.transport.send(rank, context, tag, *synchronous(form, meta, number), buffers)
        except BaseException:
            posted.owner.unpost(posted)
            raise
        return Request.of(SynchronousSend(posted))

    def _answer(self, envelope: Envelope) -> Envelope:
        """Answer the sender of a synchronous message; return the description of a plain one."""
        dest, context, tag = answer_of(envelope)
        with contextlib.suppress(RunEnded):
            self.transport.send(dest, context, tag, RAW, b"", ())
        return plain(envelope)

    def _persistent(self, begin: Callable[[], Operation]) -> Prequest:
        from .requests import Prequest

        return Prequest(begin)


def _nothing(status: Status | None) -> None:
    """Describe a receive from PROC_NULL."""
    if status is not None:
        status.nothing()


def _complete_request() -> Request:
    from .requests import Operation, Request

    return Request.of(Operation())


def _operation_of(request: Request) -> Operation:
    """Return the operation of a new request, for a persistent one."""
    operation, request._operation = request._operation, None
    assert operation is not None
    return operation


def _matched(posted: Posted, status: Status | None) -> Message:
    from .matched import Message

    if posted.error is not None:
        raise posted.error
    assert posted.message is not None
    if status is not None:
        status.take(posted.envelope)
    return Message.of(posted)


def _withdraw(posted: Posted) -> None:
    """End a receive, and put its message back."""
    if not posted.owner.unpost(posted) and posted.message is not None:
        posted.owner.put_back(posted.message)


def _source_first(buf: Any, source: Any, tag: Any, call: str) -> tuple[Any, Any]:
    """Return source and tag of a `recv` whose first argument is not None. Raises UsageError."""
    if whole(buf) is None:
        try:
            memoryview(buf)
        except TypeError:
            raise UsageError(f"{call}: the first argument is None, a buffer or the source, not {buf!r}") from None
        return source, tag
    if whole(source) != ANY_SOURCE and not is_any_tag(tag):
        raise UsageError(f"{call}: the first argument is None or a buffer, as in mpi4py, not {buf!r}")
    return buf, tag if whole(source) == ANY_SOURCE else source
