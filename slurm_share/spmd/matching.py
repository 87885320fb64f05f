"""Messages that have come and wait for their receive call: queues by context, source and tag.

Values only. Not for several threads: the transport has the lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from .errors import CollectiveMismatch
from .transport import USER, Envelope, Message, Tag

_NUMBER = (1 << 32) - 1
_ANY: Any = object()
_FEW = 8
_Queue = OrderedDict[int, Message]


class _Context:
    """The messages of one context by number of arrival; where they are many, also by source and tag."""

    def __init__(self) -> None:
        self.all: _Queue = OrderedDict()
        self._named: dict[tuple[Any, Any], _Queue] | None = None
        """None: few messages are looked through one by one, which is quicker."""

    def add(self, number: int, message: Message) -> None:
        """Add a message as the last, or with a number below zero as the first."""
        _add(self.all, number, message)
        if self._named is not None:
            self._name(self._named, number, message)
        elif len(self.all) > _FEW:
            self._named = {}
            for one in self.all.items():
                self._name(self._named, *one)

    def first(self, source: int | None, tag: Tag | None) -> tuple[int, Message] | None:
        """Return the first message that fits, and its number."""
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
        """Remove a message."""
        message = self.all.pop(number)
        named = self._named
        if named is not None:
            for key in _keys(message.envelope):
                queue = named[key]
                del queue[number]
                if not queue:
                    del named[key]

    def with_another_tag(self, tag: Tag | None) -> Envelope | None:
        """Return the first message with another tag than the collective call's."""
        if self._named is not None and len(self._named.get((_ANY, (type(tag), tag)), ())) == len(self.all):
            return None
        return next((one.envelope for one in self.all.values() if not _fits(one.envelope, None, tag)), None)

    def _name(self, named: dict[tuple[Any, Any], _Queue], number: int, message: Message) -> None:
        for key in _keys(message.envelope):
            queue = named.get(key)
            if queue is None:
                queue = named[key] = OrderedDict()
            _add(queue, number, message)


class Queues:
    """What one rank has received and not yet taken. A receive call gets what came first of what fits."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._by_context: dict[int, _Context] = {}
        self._finished = 0
        """The highest context that is finished."""
        self._late: CollectiveMismatch | None = None
        self._is_late_told = False
        self._first = 0
        """Number of the message that was put back last: below zero."""
        self.taken = 0
        """Messages that ever came; with the sum of what was sent it tells whether one is under way."""

    def put(self, message: Message) -> None:
        """Add a message that has come."""
        self.taken += 1
        envelope = message.envelope
        if USER < envelope.context <= self._finished:
            self._late = self._late or self._none_any_more(envelope)
            return
        self._of(envelope.context).add(self.taken, message)

    @property
    def late(self) -> CollectiveMismatch | None:
        """What no call has raised: a message of a collective call that this rank has finished or has never made."""
        if self._is_late_told:
            return None
        left = min((context for context in self._by_context if context != USER), default=None)
        if self._late is not None or left is None:
            return self._late
        return self._none_any_more(next(iter(self._by_context[left].all.values())).envelope)

    def call_failed(self) -> None:
        """Note that a collective call has raised an error. What its messages leave behind is no news at the end."""
        self._is_late_told = True

    def put_back(self, message: Message) -> None:
        """Make a message that was not taken the first again."""
        self._first -= 1
        self._of(message.envelope.context).add(self._first, message)

    def take(self, source: int | None, context: int, tag: Tag | None) -> Message | None:
        """Return and remove the first message that fits; None: there is none yet.

        Raises CollectiveMismatch where a message of the same collective call bears another tag, or one has come for a
        collective call that is finished.
        """
        messages = self._checked(context, tag)
        if messages is None:
            return None
        found = messages.first(source, tag)
        if found is None:
            return None
        if len(messages.all) == 1:
            del self._by_context[context]
        else:
            messages.remove(found[0])
        return found[1]

    def find(self, source: int | None, context: int, tag: Tag | None) -> Envelope | None:
        """Return the first message that fits, which stays; None: there is none."""
        messages = self._checked(context, tag)
        found = messages.first(source, tag) if messages is not None else None
        return found[1].envelope if found is not None else None

    def waiting(self) -> Iterator[Envelope]:
        """Yield the users' messages in the order in which they came."""
        messages = self._by_context.get(USER)
        return (message.envelope for message in (messages.all.values() if messages else ()))

    def finish(self, context: int) -> None:
        """Close a collective call. Raises CollectiveMismatch where a message of it is left."""
        self._finished = max(self._finished, context)
        left = self._by_context.pop(context, None)
        if left:
            raise self._none_any_more(next(iter(left.all.values())).envelope)

    def _none_any_more(self, envelope: Envelope) -> CollectiveMismatch:
        """Return the error about a message of a collective call in which this rank is not, and will not be."""
        return CollectiveMismatch(
            envelope.context & _NUMBER, self._rank, "none any more", envelope.source, str(envelope.tag)
        )

    def _of(self, context: int) -> _Context:
        found = self._by_context.get(context)
        if found is None:
            found = self._by_context[context] = _Context()
        return found

    def _checked(self, context: int, tag: Tag | None) -> _Context | None:
        if self._late is not None:
            self._is_late_told = True
            raise self._late
        messages = self._by_context.get(context)
        if messages is not None and context != USER:
            other = messages.with_another_tag(tag)
            if other is not None:
                raise CollectiveMismatch(context & _NUMBER, self._rank, str(tag), other.source, str(other.tag))
        return messages


def _add(queue: _Queue, number: int, message: Message) -> None:
    queue[number] = message
    if number < 0:
        queue.move_to_end(number, last=False)


def _fits(envelope: Envelope, source: int | None, tag: Tag | None) -> bool:
    return (source is None or envelope.source == source) and (
        tag is None or (envelope.tag == tag and type(envelope.tag) is type(tag))
    )


def _keys(envelope: Envelope) -> tuple[tuple[Any, Any], ...]:
    tag = (type(envelope.tag), envelope.tag)
    return (envelope.source, tag), (envelope.source, _ANY), (_ANY, tag)
