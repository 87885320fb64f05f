"""Messages that `mprobe` has taken out of the queue and that only their holder can receive, with mpi4py's names."""

from __future__ import annotations

import warnings
from typing import Any

from .buffer_specs import writable
from .constants import ANY_SOURCE, ANY_TAG
from .errors import UsageError
from .requests import NullReceive, Operation, Receive, Request
from .status import Status
from .transport import Posted


class Message:
    """A message that was found and not yet received. Afterwards it is equal to MESSAGE_NULL, and false."""

    def __init__(self, message: Message | None = None) -> None:
        """`message`: one that this takes over; None: the null message."""
        self._posted: Posted | None = None if message is None else message._posted
        self._is_nothing: bool = False if message is None else message._is_nothing
        if message is not None and not message._is_nothing:
            message._posted = None

    @classmethod
    def of(cls, posted: Posted | None) -> Message:
        """Return the message of a receive that has got it; None: one from PROC_NULL."""
        made = cls()
        made._posted, made._is_nothing = posted, posted is None
        return made

    def __bool__(self) -> bool:
        return self._posted is not None or self._is_nothing

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self._posted is other._posted and self._is_nothing == other._is_nothing

    __hash__ = None  # type: ignore[assignment]

    def __del__(self) -> None:
        if self._posted is not None:
            warnings.warn("a message of mprobe was never received, and is lost", ResourceWarning, stacklevel=2)

    @staticmethod
    def probe(comm: Any, source: int = ANY_SOURCE, tag: Any = ANY_TAG, status: Status | None = None) -> Message:
        """Wait for a message and take it out of the queue; as `comm.mprobe`."""
        found: Message = comm.mprobe(source, tag, status)
        return found

    @staticmethod
    def iprobe(comm: Any, source: int = ANY_SOURCE, tag: Any = ANY_TAG, status: Status | None = None) -> Message | None:
        """Take a message out of the queue, or return None; as `comm.improbe`."""
        found: Message | None = comm.improbe(source, tag, status)
        return found

    Probe = probe
    """mpi4py's name of `probe`."""
    Iprobe = iprobe
    """mpi4py's name of `iprobe`."""

    def recv(self, status: Status | None = None) -> Any:
        """Return the object of the message."""
        operation = self._operation("recv")
        value = operation.result(status)
        self._received()
        return value

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        """Copy the array of the message into `buf`. Raises MessageMismatch if it does not fit; then it stays here."""
        operation = self._operation("Recv", buf, puts_back=False)
        operation.result(status)
        self._received()

    def irecv(self) -> Request:
        """Return the request of a receive of the message's object."""
        operation = self._operation("irecv")
        self._received()
        return Request.of(operation)

    def Irecv(self, buf: Any) -> Request:
        """Return the request of a receive of the message's array into `buf`."""
        operation = self._operation("Irecv", buf)
        self._received()
        return Request.of(operation)

    def _operation(self, call: str, *buf: Any, puts_back: bool = True) -> Operation:
        if self._is_nothing:
            return NullReceive()
        if self._posted is None:
            raise UsageError(f"{call}: this message has been received already, or is MESSAGE_NULL")
        return Receive(self._posted, writable(buf[0], call) if buf else None, puts_back=puts_back)

    def _received(self) -> None:
        self._posted = None
        self._is_nothing = self is MESSAGE_NO_PROC


MESSAGE_NULL = Message()
"""The message that has been received."""
MESSAGE_NO_PROC = Message.of(None)
"""The message from PROC_NULL."""
