"""Messages that have come and wait for their receive call: queues by context, source and tag.

Values only. Not for several threads: the transport has the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .errors import CollectiveMismatch
from .transport import USER, Envelope, Message, Tag

_NUMBER = (1 << 32) - 1


class Queues:
    """What one rank has received and not yet taken. A receive call gets what came first of what fits."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._by_context: dict[int, deque[Message]] = {}
        self._finished = 0
        """The highest context that is finished."""
        self._late: CollectiveMismatch | None = None
        self.taken = 0
        """Messages that ever came; with the sum of what was sent it tells whether one is under way."""

    def put(self, message: Message) -> None:
        """Add a message that has come."""
        self.taken += 1
        envelope = message.envelope
        if USER < envelope.context <= self._finished and self._late is None:
            self._late = CollectiveMismatch(
                envelope.context & _NUMBER, self._rank, "none any more", envelope.source, str(envelope.tag)
            )
            return
        self._by_context.setdefault(envelope.context, deque()).append(message)

    def put_back(self, message: Message) -> None:
        """Make a message that was not taken the first again."""
        self._by_context.setdefault(message.envelope.context, deque()).appendleft(message)

    def take(self, source: int | None, context: int, tag: Tag | None) -> Message | None:
        """Return and remove the first message that fits; None: there is none yet.

        Raises CollectiveMismatch where a message of the same collective call bears another tag, or one has come for a
        collective call that is finished.
        """
        queue = self._checked(context, tag)
        if queue is not None:
            for place, message in enumerate(queue):
                if _fits(message.envelope, source, tag):
                    del queue[place]
                    if not queue:
                        del self._by_context[context]
                    return message
        return None

    def find(self, source: int | None, context: int, tag: Tag | None) -> Envelope | None:
        """Return the first message that fits, which stays; None: there is none."""
        queue = self._checked(context, tag) or ()
        return next((one.envelope for one in queue if _fits(one.envelope, source, tag)), None)

    def waiting(self) -> Iterator[Envelope]:
        """Yield the users' messages in the order in which they came."""
        return (message.envelope for message in self._by_context.get(USER, ()))

    def finish(self, context: int) -> None:
        """Close a collective call. Raises CollectiveMismatch where a message of it is left."""
        self._finished = max(self._finished, context)
        left = self._by_context.pop(context, None)
        if left:
            first = left[0].envelope
            raise CollectiveMismatch(context & _NUMBER, self._rank, "none any more", first.source, str(first.tag))

    def _checked(self, context: int, tag: Tag | None) -> deque[Message] | None:
        if self._late is not None:
            raise self._late
        queue = self._by_context.get(context)
        if queue is not None and context != USER:
            for message in queue:
                other = message.envelope
                if other.tag != tag:
                    raise CollectiveMismatch(context & _NUMBER, self._rank, str(tag), other.source, str(other.tag))
        return queue


def _fits(envelope: Envelope, source: int | None, tag: Tag | None) -> bool:
    return (source is None or envelope.source == source) and (
        tag is None or (envelope.tag == tag and type(envelope.tag) is type(tag))
    )
