"""Requests: sends and receives that have begun and are waited for later, with mpi4py's names.

Every send is buffered, so its request is complete at once, unless it is synchronous. A receive is posted: it gets the
first message that matches, in the order of posting, before any later receive or probe of the communicator. The buffer
of a receive is filled in the call that completes its request (wait, test and their kin).

A call that raises KeyboardInterrupt can be repeated: a request ends only when its result is handed out. A receive whose
message does not fit the buffer ends with MessageMismatch, and the message can be received again. A receive whose
sender has ended ends with PeerEnded or NodeLost, also in a wait for several requests; the others go on.

A receive whose request the program drops before it is complete stays posted, as in MPI: it takes its message, which is
lost. If the message is there already, Python gives a ResourceWarning; for one that comes later, the rank says so at its
end. To leave the message for others, call `cancel` and `wait`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

from . import codec
from .arguments import checked_status
from .bodies import Received
from .buffer_specs import Elements, fill
from .constants import UNDEFINED
from .errors import MessageMismatch, UsageError
from .status import Status
from .transport import Posted

_R = TypeVar("_R", bound="Request")


class Operation:
    """A send that is complete; base class of what a request waits for."""

    posted: Posted | None = None
    """Receive whose message completes the operation; None: it is complete."""
    is_receive = False

    @property
    def is_done(self) -> bool:
        """Whether a wait for the operation is over."""
        return self.posted is None or self.posted.is_done

    def result(self, status: Status | None) -> Any:
        """Return the result of an operation that is done; a second call returns the same. Raises its error."""
        if self.posted is not None and self.posted.error is not None:
            raise self.posted.error
        checked_status(status, "wait")
        if status is not None:
            self.describe(status)
        return None

    def describe(self, status: Status) -> None:
        """Set the status of an operation that is done."""
        status.clear()

    def cancel(self) -> None:
        """End the operation if it can still be ended."""


class SynchronousSend(Operation):
    """A send that is complete when a receive has got its message."""

    def __init__(self, posted: Posted) -> None:
        """`posted`: the receive of the answer."""
        self.posted = posted


class NullReceive(Operation):
    """A receive from PROC_NULL."""

    def describe(self, status: Status) -> None:
        status.nothing()


class Receive(Operation):
    """A posted receive of an object, or of an array into a buffer."""

    is_receive = True

    def __init__(self, posted: Posted, space: Elements | None, *, puts_back: bool = True) -> None:
        """`space`: the buffer; None: an object is received. `puts_back`: a message that does not fit is put back."""
        self.posted = posted
        self._space, self._puts_back = space, puts_back
        self._body: memoryview | None = None
        self._message: Received | None = None
        """The message, once its body is taken."""
        self._is_cancelled = False

    def result(self, status: Status | None) -> Any:
        super().result(status)
        if self._is_cancelled:
            return None
        posted = self.posted
        assert posted is not None
        message = posted.message
        assert message is not None
        if self._message is None:
            try:
                with posted.owner.undivided():
                    if self._space is not None:
                        fill(self._space, message)
                    else:
                        self._body = message.take()
                    self._message = message
            except MessageMismatch:
                if self._puts_back:
                    posted.owner.put_back(message)
                raise
        if self._body is None:
            return None
        envelope = message.envelope
        return codec.decode(envelope.form, envelope.meta, self._body)

    def describe(self, status: Status) -> None:
        if self._is_cancelled or self.posted is None or self.posted.message is None:
            status.clear(cancelled=self._is_cancelled)
        else:
            status.take(self.posted.envelope)

    def cancel(self) -> None:
        if self.posted is not None and not self.posted.is_done and self.posted.owner.unpost(self.posted):
            self.posted, self._is_cancelled = None, True


class Request:
    """A send or receive that has begun. When it is complete it becomes equal to REQUEST_NULL, and false."""

    _operation: Operation | None

    def __init__(self, request: Request | None = None) -> None:
        """`request`: one whose operation this takes over; None: the null request."""
        self._operation = None if request is None else request._operation
        if request is not None:
            request._operation = None

    @classmethod
    def of(cls: type[_R], operation: Operation) -> _R:
        """Return the request of an operation."""
        made = cls()
        made._operation = operation
        return made

    def __bool__(self) -> bool:
        return self._operation is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Request):
            return NotImplemented
        return self is other or not (self or other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        operation = self._operation
        state = "null" if operation is None else "done" if operation.is_done else "waiting"
        return f"<{type(self).__name__}: {state}>"

    def __del__(self) -> None:
        operation = self._operation
        if operation is None or not operation.is_receive or operation.posted is None:
            return
        operation.posted.is_dropped = True
        if operation.posted.message is not None:
            warnings.warn(
                "a receive was dropped before it was waited for, and its message is lost", ResourceWarning, stacklevel=2
            )

    def wait(self, status: Status | None = None) -> Any:
        """Wait until the request is complete, and return the object that `irecv` has received; else None."""
        _wait_for_one((self,), "wait")
        return self._complete(status)

    def Wait(self, status: Status | None = None) -> Literal[True]:
        """Wait until the request is complete. Returns True."""
        self.wait(status)
        return True

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Return whether the request is complete, and its object; without waiting."""
        if not self._is_done():
            return False, None
        return True, self._complete(status)

    def Test(self, status: Status | None = None) -> bool:
        """Return whether the request is complete, without waiting."""
        return self.test(status)[0]

    def Get_status(self, status: Status | None = None) -> bool:
        """Return whether `wait` would return at once; the request stays as it is."""
        if not self._is_done():
            return False
        if status is not None:
            _describe(self._operation, status)
        return True

    get_status = Get_status
    """mpi4py's other name of `Get_status`."""

    def Cancel(self) -> None:
        """Cancel a receive that has got no message; then `wait` returns None. What is complete stays so."""
        if self._operation is not None:
            self._operation.cancel()

    cancel = Cancel
    """mpi4py's other name of `Cancel`."""

    def Free(self) -> None:
        """Give up a request that is complete. Raises UsageError for a receive that is not: wait, or cancel it."""
        operation = self._operation
        if operation is not None and operation.is_receive and operation.posted is not None:
            raise UsageError("Free: this receive is not complete: wait for it, or cancel it and wait")
        self._operation = None

    free = Free
    """mpi4py's other name of `Free`."""

    @staticmethod
    def waitall(requests: Iterable[Request], statuses: Sequence[Status] | None = None) -> list[Any]:
        """Wait until all requests are complete, and return their objects."""
        every = _listed(requests, "waitall")
        for request in every:
            _wait_for_one((request,), "waitall")
        return _complete(every, statuses)

    @staticmethod
    def Waitall(requests: Iterable[Request], statuses: Sequence[Status] | None = None) -> Literal[True]:
        """Wait until all requests are complete. Returns True."""
        Request.waitall(requests, statuses)
        return True

    @staticmethod
    def waitany(requests: Iterable[Request], status: Status | None = None) -> tuple[int, Any]:
        """Wait until a request is complete, and return its place and object; UNDEFINED and None: all are null."""
        every = _listed(requests, "waitany")
        _wait_for_one(every, "waitany")
        return _complete_first(every, status)

    @staticmethod
    def Waitany(requests: Iterable[Request], status: Status | None = None) -> int:
        """Wait until a request is complete, and return its place; UNDEFINED: all are null."""
        return Request.waitany(requests, status)[0]

    @staticmethod
    def waitsome(
        requests: Iterable[Request], statuses: Sequence[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait until at least one request is complete, and return places and objects of all that are.

        Both are None if all are null.
        """
        every = _listed(requests, "waitsome")
        _wait_for_one(every, "waitsome")
        return _complete_some(every, statuses)

    @staticmethod
    def Waitsome(requests: Iterable[Request], statuses: Sequence[Status] | None = None) -> list[int] | None:
        """Wait until at least one request is complete, and return the places of all that are; None: all are null."""
        return Request.waitsome(requests, statuses)[0]

    @staticmethod
    def testall(requests: Iterable[Request], statuses: Sequence[Status] | None = None) -> tuple[bool, list[Any] | None]:
        """Return whether all requests are complete, and then their objects; if not, they stay as they are."""
        every = _listed(requests, "testall")
        _poll(every)
        if not all(request._operation is None or request._operation.is_done for request in every):
            return False, None
        return True, _complete(every, statuses)

    @staticmethod
    def Testall(requests: Iterable[Request], statuses: Sequence[Status] | None = None) -> bool:
        """Return whether all requests are complete; if not, they stay as they are."""
        return Request.testall(requests, statuses)[0]

    @staticmethod
    def testany(requests: Iterable[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        """Return place, True and object of a request that is complete; UNDEFINED, False and None: there is none yet.

        If all are null, return UNDEFINED, True and None.
        """
        every = _listed(requests, "testany")
        _poll(every)
        place, value = _complete_first(every, status)
        return place, place != UNDEFINED or not _active(every), value

    @staticmethod
    def Testany(requests: Iterable[Request], status: Status | None = None) -> tuple[int, bool]:
        """Return place and True of a request that is complete; as `testany`."""
        return Request.testany(requests, status)[:2]

    @staticmethod
    def testsome(
        requests: Iterable[Request], statuses: Sequence[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Return places and objects of all requests that are complete; both are None if all are null."""
        every = _listed(requests, "testsome")
        _poll(every)
        return _complete_some(every, statuses)

    @staticmethod
    def Testsome(requests: Iterable[Request], statuses: Sequence[Status] | None = None) -> list[int] | None:
        """Return the places of all requests that are complete; None: all are null."""
        return Request.testsome(requests, statuses)[0]

    @staticmethod
    def Get_status_all(requests: Iterable[Request], statuses: Sequence[Status] | None = None) -> bool:
        """Return whether all requests are complete; they stay as they are."""
        every = _listed(requests, "Get_status_all")
        _poll(every)
        operations = [request._operation for request in every]
        if not all(one is None or one.is_done for one in operations):
            return False
        for operation, status in zip(operations, _enough(statuses, len(every)), strict=False):
            if status is not None:
                _describe(operation, status)
        return True

    get_status_all = Get_status_all
    """mpi4py's other name of `Get_status_all`."""

    @staticmethod
    def Get_status_any(requests: Iterable[Request], status: Status | None = None) -> tuple[int, bool]:
        """Return place and True of a request that is complete, which stays as it is; else as `testany`."""
        every = _listed(requests, "Get_status_any")
        _poll(every)
        done = _done(every)
        if not done and status is not None and not _active(every):
            status.clear()
        if done and status is not None:
            _describe(every[done[0]]._operation, status)
        return done[0] if done else UNDEFINED, bool(done) or not _active(every)

    get_status_any = Get_status_any
    """mpi4py's other name of `Get_status_any`."""

    @staticmethod
    def Get_status_some(requests: Iterable[Request], statuses: Sequence[Status] | None = None) -> list[int] | None:
        """Return the places of all requests that are complete, which stay as they are; None: all are null."""
        every = _listed(requests, "Get_status_some")
        _poll(every)
        if not _active(every):
            return None
        done = _done(every)
        for place, status in zip(done, _enough(statuses, len(done)), strict=False):
            if status is not None:
                _describe(every[place]._operation, status)
        return done

    get_status_some = Get_status_some
    """mpi4py's other name of `Get_status_some`."""

    def _is_done(self) -> bool:
        _poll((self,))
        return self._operation is None or self._operation.is_done

    def _complete(self, status: Status | None) -> Any:
        """Return the result of a request that is done, and end it."""
        value = self._result(status)
        self._end()
        return value

    def _result(self, status: Status | None) -> Any:
        operation = self._operation
        if operation is None:
            if status is not None:
                status.clear()
            return None
        try:
            return operation.result(status)
        except MessageMismatch:
            self._end()
            raise
        except BaseException as error:
            if operation.posted is not None and operation.posted.error is error:
                self._end()
            raise

    def _end(self) -> None:
        self._operation = None


class Prequest(Request):
    """A persistent request: the same send or receive, begun by each `Start`. It is complete and stays, or is freed."""

    def __init__(self, begin: Callable[[], Operation] | None = None) -> None:
        """`begin` begins the send or receive."""
        super().__init__()
        self._begin = begin

    def __bool__(self) -> bool:
        return self._begin is not None

    def Start(self) -> None:
        """Begin the send or receive. Raises UsageError if it has begun and is not complete."""
        if self._begin is None:
            raise UsageError("Start: this request has been freed")
        if self._operation is not None:
            raise UsageError("Start: this request has been started already: wait for it first")
        self._operation = self._begin()

    @staticmethod
    def Startall(requests: Iterable[Prequest]) -> None:
        """Begin all requests, in their order."""
        for request in _listed(requests, "Startall", Prequest):
            request.Start()

    def Free(self) -> None:
        """Give up the request; as `Request.Free`."""
        super().Free()
        self._begin = None

    free = Free
    """mpi4py's other name of `Free`."""


def _listed(requests: Iterable[_R], call: str, kind: type[Any] = Request) -> list[_R]:
    """Return requests as a list. Raises UsageError for anything else."""
    try:
        found = list(requests)
    except TypeError:
        raise UsageError(f"{call} needs a list of requests, not {requests!r}") from None
    wrong = [one for one in found if not isinstance(one, kind)]
    if wrong:
        raise UsageError(f"{call} needs objects {kind.__name__} of MPI in its list, not {wrong[0]!r}")
    return found


def _done(requests: Sequence[Request]) -> list[int]:
    """Return the places of the requests that are complete and not null."""
    return [
        place for place, request in enumerate(requests) if request._operation is not None and request._operation.is_done
    ]


def _active(requests: Sequence[Request]) -> bool:
    return any(request._operation is not None for request in requests)


def _waited(requests: Sequence[Request]) -> list[Posted] | None:
    """Return the posted receives that are not done; None: a request is done, or all are null."""
    found = []
    for request in requests:
        if request._operation is not None:
            posted = request._operation.posted
            if posted is None or posted.is_done:
                return None
            found.append(posted)
    return found or None


def _wait_for_one(requests: Sequence[Request], call: str) -> None:
    """Wait until a request is done; return at once if all are null."""
    posted = _waited(requests)
    if posted is not None:
        posted[0].owner.wait(posted, call)


def _poll(requests: Iterable[Request]) -> None:
    """Receive what has arrived for the requests, without waiting."""
    posted = [
        request._operation.posted
        for request in requests
        if request._operation is not None and request._operation.posted is not None
    ]
    posted = [one for one in posted if not one.is_done]
    if posted:
        posted[0].owner.poll(posted)


def _describe(operation: Operation | None, status: Status) -> None:
    if operation is None:
        status.clear()
    else:
        operation.describe(status)


def _enough(statuses: Sequence[Status] | None, count: int) -> Sequence[Status | None]:
    """Return `count` statuses, which are added to a list if it is shorter.

    What a tuple has no status for is not told, as in mpi4py. Raises UsageError for anything else.
    """
    if statuses is None:
        return [None] * count
    if not isinstance(statuses, list | tuple):
        raise UsageError(f"statuses are a list or tuple of MPI.Status, or None, not {statuses!r}")
    for status in statuses:
        checked_status(status, "wait")
    if isinstance(statuses, list):
        statuses += [Status() for _ in range(count - len(statuses))]
        return statuses
    return [*statuses, *[None] * (count - len(statuses))]


def _complete(requests: Sequence[Request], statuses: Sequence[Status] | None) -> list[Any]:
    """Return the results of requests that are done, and end them: all, or only those whose error is raised."""
    values = [
        request._result(status) for request, status in zip(requests, _enough(statuses, len(requests)), strict=False)
    ]
    for request in requests:
        request._end()
    return values


def _complete_first(requests: Sequence[Request], status: Status | None) -> tuple[int, Any]:
    for place, request in enumerate(requests):
        if request._operation is not None and request._operation.is_done:
            return place, request._complete(status)
    if status is not None and not _active(requests):
        status.clear()
    return UNDEFINED, None


def _complete_some(
    requests: Sequence[Request], statuses: Sequence[Status] | None
) -> tuple[list[int] | None, list[Any] | None]:
    if not _active(requests):
        return None, None
    done = _done(requests)
    return done, _complete([requests[place] for place in done], statuses)


REQUEST_NULL = Request()
"""The request that is complete and has no result."""
