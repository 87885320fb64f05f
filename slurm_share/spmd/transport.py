"""Base class of the transports, which move messages between ranks. Collectives, Comm and Dmat use it.

`sockets.SocketTransport`, `mpi4py_transport.MpiTransport` and `single.SingleTransport` implement it; tests have one of
threads. A transport moves bytes; `codec` converts objects to bytes and back. `Queues` holds the messages that no call
has taken.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .envelope import SYNCHRONOUS, Envelope, Tag
from .errors import CollectiveMismatch, NoRoom, PeerEnded, SpmdError

if TYPE_CHECKING:
    from .bodies import Received  # which needs NumPy

Buffers = Sequence[memoryview]
USER = 0
"""Context of users' messages between all ranks."""
CREATION, ONE_RANK = 1, 2
"""Numbers of communicators: of the messages by which some ranks agree on a new one, and of each rank alone."""


def user_context(communicator: int) -> int:
    """Return the context of users' messages in the communicator of that number; 0: that of all ranks."""
    return communicator << 33


def collective_context(communicator: int, number: int) -> int:
    """Return the context of a communicator's collective call, from 1 on, apart from all others."""
    return communicator << 33 | 1 << 32 | number


def is_collective(context: int) -> bool:
    """Return whether a context is that of a collective call."""
    return bool(context & 1 << 32)


def communicator_of(context: int) -> int:
    """Return the number of a context's communicator."""
    return context >> 33


def name_of(communicator: int, ranks: Sequence[int]) -> str:
    """Return a communicator with its ranks as text for messages: "communicator 4 (ranks 0-2,5 of the run)".

    Communicators of equal number have no common rank, so their texts differ.
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    shown = ",".join("-".join(map(str, run)) for run in runs[:_RUNS_NAMED])
    shown = f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
    more = f",... ({len(ranks)} ranks)" if len(runs) > _RUNS_NAMED else ""
    return f"communicator {communicator} ({shown}{more} of the run)"


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node of the run, with its ranks."""

    name: str
    first: int
    """Lowest rank of the node; its ranks are consecutive."""
    count: int
    address: str = ""
    """IP address; empty in a run of one node."""

    @property
    def ranks(self) -> range:
        """The ranks of the node."""
        return range(self.first, self.first + self.count)


class StraightPath(Protocol):
    """The short way of one communicator's small messages. Each call returns whether it has done its work (`recv`: the
    object, or `envelope.NOTHING`)."""

    def send(self, value: Any, dest: Any, tag: Any) -> bool: ...

    def send_array(self, array: Any, dest: Any, tag: Any) -> bool: ...

    def recv(self, source: Any, tag: Any) -> Any: ...

    def recv_array(self, room: Any, source: Any, tag: Any) -> bool: ...


class Window(Protocol):
    """Memory that this rank shares with others of its node. Only the owner releases it."""

    @property
    def memory(self) -> memoryview:
        """The bytes, at least as many as were requested, uninitialised."""

    def release(self) -> None:
        """Give the memory back. The caller knows that no rank uses it any more."""


class Posted:
    """A receive that was posted, and its message once one has come. `Queues` gives each message to the first one."""

    __slots__ = ("context", "error", "is_dropped", "message", "owner", "places", "source", "tag", "user")

    def __init__(self, owner: Transport, source: int | None, context: int, tag: Tag | None) -> None:
        """`owner`: the transport of all ranks, which waits for the message."""
        self.owner, self.source, self.context, self.tag = owner, source, context, tag
        self.message: Received | None = None
        """The message that the receive has got."""
        self.error: SpmdError | None = None
        """Why no message can come any more."""
        self.is_dropped = False
        """Whether the program has dropped the request, so that nobody will see the message."""
        self.places: dict[int, int] | None = None
        """For a communicator of some ranks, the number of each rank of the run in it."""
        self.user: Transport = owner
        """The communicator's own transport: its messages stay as long as there is a reference to it."""

    @property
    def envelope(self) -> Envelope:
        """The description of the message, with the sender's rank in the communicator."""
        assert self.message is not None
        found = self.message.envelope
        return found if self.places is None else found._replace(source=self.places[found.source])

    @property
    def is_done(self) -> bool:
        """Whether a wait for this receive is over."""
        return self.message is not None or self.error is not None


FINISHED_IT = "no such call, because it has finished that one"
RETURNED = "no call, because it has returned from main"
_NUMBER = (1 << 32) - 1
_COLLECTIVE_PART = (1 << 33) - 1
_CREATED_FROM = 3
"""The lowest number of a communicator that a program makes."""
_RUNS_NAMED = 6
_ANY: Any = object()
_FEW = 8
_SHOWN = 8
_Queue = OrderedDict[int, "Received"]


class _Context:
    """The messages of one context in the order of arrival; if there are many, also by source and tag."""

    def __init__(self) -> None:
        self.all: _Queue = OrderedDict()
        self.posted: dict[Posted, None] = {}
        """Receives that wait for a message, in the order of posting. No message in `all` matches one."""
        self._named: dict[tuple[Any, Any], _Queue] | None = None
        """None: few messages, for which a linear search is quicker."""

    def add(self, number: int, message: Received) -> None:
        """Add a message at its place in the order of arrival."""
        _insert(self.all, number, message)
        if self._named is not None:
            self._name(self._named, number, message)
        elif len(self.all) > _FEW:
            self._named = {}
            for one in self.all.items():
                self._name(self._named, *one)

    def first(self, source: int | None, tag: Tag | None) -> tuple[int, Received] | None:
        """Return the first message that matches, and its number."""
        if source is None and tag is None:
            return next(iter(self.all.items()), None)
        if self._named is None:
            for found in self.all.items():
                if _fits(found[1].envelope, source, tag):
                    return found
            return None
        queue = self._named.get((_ANY if source is None else source, _ANY if tag is None else (type(tag), tag)))
        return next(iter(queue.items())) if queue else None

    def remove(self, number: int) -> None:
        """Remove the message of that number."""
        message = self.all.pop(number)
        named = self._named
        if named is not None:
            for key in _keys(message.envelope):
                queue = named[key]
                del queue[number]
                if not queue:
                    del named[key]

    def with_another_tag(self, tag: Tag | None) -> Envelope | None:
        """Return the first message whose tag is not that of the collective call; None: there is none."""
        if self._named is not None and len(self._named.get((_ANY, (type(tag), tag)), ())) == len(self.all):
            return None
        return next((one.envelope for one in self.all.values() if not _fits(one.envelope, None, tag)), None)

    def _name(self, named: dict[tuple[Any, Any], _Queue], number: int, message: Received) -> None:
        for key in _keys(message.envelope):
            queue = named.get(key)
            if queue is None:
                queue = named[key] = OrderedDict()
            _insert(queue, number, message)


class Queues:
    """Messages that one rank has received and not taken. A receive call gets the earliest one that matches."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.by_context: dict[int, _Context] = {}
        self._finished: dict[int, int] = {}
        """The highest finished context of each communicator, by all but its lowest 32 bits."""
        self._late: CollectiveMismatch | None = None
        self._is_late_told = False
        self.lost = 0
        """Number of messages that dropped receives have got."""
        self.to_answer: deque[Envelope] = deque()
        """Synchronous messages that posted receives have got, whose senders wait for an answer (`answer_of`)."""
        self._failed: set[int] = set()
        """Contexts of collective calls that have raised an error on this rank."""
        self.taken = 0
        """Number of messages that have arrived. Compared with the number sent, it shows whether one is in transit."""
        self.members: dict[int, tuple[int, ...]] = {}
        """The ranks of each communicator of some ranks, by its number."""
        self.unused: deque[int] = deque()
        """Communicators that are not used any more. Their last references can end in any thread, at any moment, so
        `open` forgets them later."""
        self._made = itertools.count()

    def new_number(self, size: int) -> int:
        """Return a number for a communicator that no rank has used. `size`: number of ranks of the run."""
        return _CREATED_FROM + next(self._made) * size + self._rank

    def open(self, communicator: int, members: tuple[int, ...]) -> None:
        """Note the ranks of a communicator, and forget those that are not used any more."""
        while self.unused:
            number = self.unused.popleft()
            self.members.pop(number, None)
            self.by_context.pop(user_context(number), None)
            self.by_context.pop(answer_context(user_context(number)), None)
            self._finished.pop(collective_context(number, 0) >> 32, None)
        self.members[communicator] = members

    def where(self, context: int) -> str:
        """Return the communicator of a context with its ranks as text; empty: that of all ranks."""
        members = self.members.get(communicator_of(context))
        return name_of(communicator_of(context), members) if members is not None else ""

    def put(self, message: Received) -> None:
        """Add a message that has arrived."""
        self.taken += 1
        message.arrival = self.taken
        envelope = message.envelope
        if envelope.context in self._failed:
            return
        if is_collective(envelope.context) and envelope.context <= self._finished.get(envelope.context >> 32, 0):
            self._late = self._late or self._none_any_more(envelope)
            return
        messages = self._of(envelope.context)
        if not (messages.posted and self._give(messages, message)):
            messages.add(self.taken, message)

    @property
    def late(self) -> CollectiveMismatch | None:
        """Error that no call has raised yet: a message of a collective call that this rank has ended or never made."""
        if self._is_late_told:
            return None
        left = min(filter(is_collective, self.by_context), default=None)
        late = self._late
        if late is not None:
            return CollectiveMismatch(late.number, late.rank, RETURNED, late.peer, late.there, late.where)
        if left is None:
            return None
        return self._none_any_more(next(iter(self.by_context[left].all.values())).envelope, RETURNED)

    def call_failed(self, context: int) -> None:
        """Note that a collective call has raised an error, so that its remaining messages are no mismatch."""
        self._is_late_told = True
        self._failed.add(context)
        self.by_context.pop(context, None)

    def put_back(self, message: Received) -> None:
        """Put a message back in its place in the order of arrival, or give it to the first posted receive."""
        messages = self._of(message.envelope.context)
        if not (messages.posted and self._give(messages, message)):
            messages.add(message.arrival, message)

    def post(self, posted: Posted) -> None:
        """Give a receive the first message that matches, or keep it for the first one that comes."""
        message = self.take(posted.source, posted.context, posted.tag)
        if message is None:
            self._of(posted.context).posted[posted] = None
        else:
            self._match(posted, message)

    def unpost(self, posted: Posted) -> None:
        """End a receive that has no message."""
        messages = self.by_context.get(posted.context)
        if messages is not None:
            messages.posted.pop(posted, None)
            if not (messages.posted or messages.all):
                del self.by_context[posted.context]

    def _give(self, messages: _Context, message: Received) -> bool:
        """Give a message to the first posted receive that matches; return whether there is one."""
        for posted in messages.posted:
            if _fits(message.envelope, posted.source, posted.tag):
                del messages.posted[posted]
                if not (messages.posted or messages.all):
                    del self.by_context[posted.context]
                self._match(posted, message)
                return True
        return False

    def _match(self, posted: Posted, message: Received) -> None:
        posted.message = message
        self.lost += posted.is_dropped
        if message.envelope.form & SYNCHRONOUS:
            self.to_answer.append(message.envelope)
            message.envelope = plain(message.envelope)

    def take(self, source: int | None, context: int, tag: Tag | None) -> Received | None:
        """Remove and return the first message that matches; None: there is none yet.

        Raises CollectiveMismatch if a message of the same collective call has another tag, or if one has arrived for a
        finished collective call.
        """
        messages = self._checked(context, tag, is_taken=True)
        if messages is None:
            return None
        found = messages.first(source, tag)
        if found is None:
            return None
        if len(messages.all) == 1 and not messages.posted:
            del self.by_context[context]
        else:
            messages.remove(found[0])
        return found[1]

    def find(self, source: int | None, context: int, tag: Tag | None) -> Envelope | None:
        """Return the first message that matches without removing it; None: there is none."""
        messages = self._checked(context, tag)
        found = messages.first(source, tag) if messages is not None else None
        return found[1].envelope if found is not None else None

    def waiting(self, context: int = USER) -> Iterator[Envelope]:
        """Return the messages of users in the order of arrival."""
        messages = self.by_context.get(context)
        return (message.envelope for message in (messages.all.values() if messages else ()))

    def finish(self, context: int) -> None:
        """Finish a collective call. Raises CollectiveMismatch if a message of it is left or an earlier one failed."""
        self._finished[context >> 32] = max(self._finished.get(context >> 32, 0), context)
        left = self.by_context.pop(context, None)
        if left:
            raise self._none_any_more(next(iter(left.all.values())).envelope)
        if self._late is not None and self._late.is_failure:
            raise self._told_late()

    def _none_any_more(self, envelope: Envelope, why: str = FINISHED_IT) -> CollectiveMismatch:
        """Return the error about a message of a collective call in which this rank is not, and will not be."""
        number, tag, where = envelope.context & _NUMBER, str(envelope.tag), self.where(envelope.context)
        return CollectiveMismatch(number, self._rank, why, envelope.source, tag, where)

    def _of(self, context: int) -> _Context:
        found = self.by_context.get(context)
        if found is None:
            found = self.by_context[context] = _Context()
        return found

    def _told_late(self) -> CollectiveMismatch:
        """Return the error `_late`. A failure of another rank is raised once, because all make the same calls."""
        late = self._late
        assert late is not None
        self._is_late_told = True
        if late.is_failure:
            self._late = None
        return late

    def _checked(self, context: int, tag: Tag | None, is_taken: bool = False) -> _Context | None:
        """Return the messages of a context. A failed call of another rank ends a collective call not before its end,
        because the others could wait for this rank; `is_taken`: such a call takes a message."""
        if self._late is not None and not (is_taken and self._late.is_failure and is_collective(context)):
            self._is_late_told = True
            raise self._told_late() if is_taken else self._late
        messages = self.by_context.get(context)
        if messages is not None and is_collective(context):
            other = messages.with_another_tag(tag)
            if other is not None:
                number, where = context & _NUMBER, self.where(context)
                raise CollectiveMismatch(number, self._rank, str(tag), other.source, str(other.tag), where)
        return messages


def wanted_text(posted: Sequence[Posted]) -> str:
    """Return the sources and tags of posted receives as text for messages."""
    shown = [
        f"({'any' if one.source is None else one.source}, {'any' if one.tag is None else repr(one.tag)})"
        for one in posted[:_SHOWN]
    ]
    more = f" or one of {len(posted) - _SHOWN} more" if len(posted) > _SHOWN else ""
    return " or ".join(shown) + more


def synchronous(form: int, meta: bytes, number: int) -> tuple[int, bytes]:
    """Return form and meta of a message whose sender waits for an answer; `number` tells its answers apart."""
    return form | SYNCHRONOUS, meta + number.to_bytes(8, "little")


def plain(envelope: Envelope) -> Envelope:
    """Return the description of a synchronous message as that of a plain one."""
    return envelope._replace(form=envelope.form & ~SYNCHRONOUS, meta=envelope.meta[:-8])


def answer_of(envelope: Envelope) -> tuple[int, int, int]:
    """Return receiver, context and tag of the answer to a synchronous message."""
    return envelope.source, answer_context(envelope.context), int.from_bytes(envelope.meta[-8:], "little")


def answer_context(context: int) -> int:
    """Return the context of the answers to synchronous messages of a context."""
    return context | 1


def is_answer(context: int) -> bool:
    """Return whether a context is that of answers to synchronous messages."""
    return context & _COLLECTIVE_PART == 1


def _insert(queue: _Queue, number: int, message: Received) -> None:
    """Insert a message by its number: mostly the last; the first or one between if it was put back."""
    if not queue or number > next(reversed(queue)):
        queue[number] = message
        return
    is_first = number < next(iter(queue))
    queue[number] = message
    if is_first:
        queue.move_to_end(number, last=False)
    else:
        for later in [one for one in queue if one > number]:
            queue.move_to_end(later)


def _fits(envelope: Envelope, source: int | None, tag: Tag | None) -> bool:
    return (source is None or envelope.source == source) and (
        tag is None or (envelope.tag == tag and type(envelope.tag) is type(tag))
    )


def _keys(envelope: Envelope) -> tuple[tuple[Any, Any], ...]:
    tag = (type(envelope.tag), envelope.tag)
    return (envelope.source, tag), (envelope.source, _ANY), (_ANY, tag)


class Transport(ABC):
    """Messages between the ranks of a run. Several threads may call it; their calls take turns.

    Received messages wait in `_queues` until a call takes them.
    """

    rank: int
    size: int
    nodes: tuple[NodePlace, ...]
    has_windows: bool
    communicator = 0
    """Number of the communicator whose ranks these are; 0: all ranks of the run."""
    _lock: AbstractContextManager[Any]
    _queues: Queues

    @abstractmethod
    def send(
        self, dest: int, context: int, tag: Tag, form: int, meta: bytes, buffers: Buffers, window: Window | None = None
    ) -> None:
        """Send a message, also to this rank, without waiting for the receiver.

        `buffers`, contiguous bytes, may change after the return. Messages of one sender to one receiver arrive in the
        order of sending. `window` is passed as shared memory, only to ranks of the same node. Raises RunEnded if the
        receiver has ended or its node is lost, NoRoom if there is no memory to keep the message.
        """

    @abstractmethod
    def receive(
        self, source: int | None, context: int, tag: Tag | None, call: str, timeout_s: float | None = None
    ) -> Received:
        """Wait for the first message of that source and tag (None: of any), and return it.

        `call`: name of the waiting call in messages to users, such as "recv" or "bcast". In the context of a
        collective call all messages have the same tag, which names the call and its arguments. Another tag there, or a
        message of a collective call that this rank has finished, raises CollectiveMismatch. Raises RunEnded if no rank
        is left that could send the message, ReceiveTimeout after `timeout_s` seconds.
        """

    @abstractmethod
    def _poll(self) -> None:
        """Move the messages that have arrived into the queues, with the lock held. Raises UsageError if closed."""

    def put_back(self, message: Received) -> None:
        """Put a received message, whose body was not taken, back in its place in the order of arrival."""
        with self._lock:
            self._queues.put_back(message)

    def post(self, source: int | None, context: int, tag: Tag | None) -> Posted:
        """Post a receive: it gets the first message that matches, before any later receive or probe."""
        posted = Posted(self, source, context, tag)
        with self._lock:
            self._poll()
            self._queues.post(posted)
            self._answer()
        return posted

    def unpost(self, posted: Posted) -> bool:
        """End a posted receive; return False if it has a message already."""
        with self._lock:
            if posted.message is None:
                self._queues.unpost(posted)
            return posted.message is None

    def poll(self, posted: Sequence[Posted]) -> None:
        """Receive what has arrived, without waiting, and note errors of posted receives that can get no message."""
        with self._lock:
            self._poll()
            self._answer()
            self._note_ends([one for one in posted if not one.is_done])

    @abstractmethod
    def wait(self, posted: Sequence[Posted], call: str, timeout_s: float | None = None) -> None:
        """Wait until at least one of the posted receives is done: it has its message, or its error.

        Its error is RunEnded if no rank is left that could send the message. Raises what ends the whole run, and
        ReceiveTimeout after `timeout_s` seconds; then all receives stay posted.
        """

    def undivided(self) -> AbstractContextManager[Any]:
        """Return a context in which no signal handler runs and no other thread sends or receives. Keep it short."""
        return self._lock

    def _note_ends(self, posted: Sequence[Posted]) -> None:  # noqa: B027 - a single rank has no peers
        """Set the errors of posted receives that can get no message, with the lock held."""

    def _fail(self, posted: Posted, error: SpmdError) -> None:
        self._queues.unpost(posted)
        if posted.places is not None and isinstance(error, PeerEnded):
            error = error.seen_from(posted.places)
        posted.error = error

    def _answer(self) -> None:
        """Answer the senders of synchronous messages that posted receives have got, with the lock held."""
        while self._queues.to_answer:
            self._send_answer(*answer_of(self._queues.to_answer.popleft()))

    @abstractmethod
    def _send_answer(self, dest: int, context: int, tag: Tag) -> None:
        """Send an empty message with the lock held, without waiting. A receiver that has ended gets none."""

    def probe(self, source: int | None, context: int, tag: Tag | None) -> Envelope | None:
        """Return the first message of that source and tag without removing it or waiting; None: there is none yet."""
        with self._lock:
            self._poll()
            return self._queues.find(source, context, tag)

    def waiting(self, context: int = USER) -> tuple[Envelope, ...]:
        """Return all users' messages that have not been received, in the order of arrival. Does not wait."""
        with self._lock:
            self._poll()
            return tuple(self._queues.waiting(context))

    @property
    def run(self) -> Transport:
        """The transport of all ranks of the run."""
        return self

    @property
    def members(self) -> Sequence[int]:
        """The rank in the run of each rank."""
        return range(self.size)

    def new_number(self) -> int:
        """Return a number for a communicator that no rank of the run has used; `members` of it learn it from here."""
        return self._queues.new_number(self.size)

    def open(self, communicator: int, members: tuple[int, ...]) -> None:
        """Note the ranks of the run that form a communicator. This rank is one of them."""
        with self._lock:
            self._queues.open(communicator, members)

    def forget(self, communicator: int) -> None:
        """Note that this rank uses a communicator no more. Any thread may call it at any moment, with the lock too."""
        self._queues.unused.append(communicator)

    def finish(self, context: int) -> None:
        """Finish a collective call. Raises CollectiveMismatch if a message of it is left."""
        with self._lock:
            self._queues.finish(context)

    def call_failed(self, context: int) -> None:
        """Note that a collective call has raised an error, so that its remaining messages are no mismatch."""
        with self._lock:
            self._queues.call_failed(context)

    def await_end(self, rank: int) -> None:  # noqa: B027 - a transport without news of ends does nothing
        """Wait a moment for the end of a rank that has failed, so that the run is said to have ended because of it."""

    def straight(self, context: int) -> StraightPath | None:
        """Return the short way of small messages in that context; None: there is none."""
        return None

    def window(self, size: int) -> Window:
        """Return memory to share with ranks of this node. Raises NoRoom, always unless `has_windows`."""
        raise NoRoom(f"{type(self).__name__} shares no memory between ranks")

    @abstractmethod
    def abort(self, code: int, why: str) -> None:
        """End the run: the current or next call of every rank raises Aborted. Returns; the caller exits."""

    @abstractmethod
    def close(self) -> None:
        """Deliver all sent messages and close. Called once at exit; later calls raise UsageError."""
