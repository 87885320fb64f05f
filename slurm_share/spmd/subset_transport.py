"""Transport of some ranks of a run, which it presents as ranks 0 to n-1. Communicators that programs make use it.

Messages go through the run's own transport, in the contexts of the communicator. Ranks and envelopes have the numbers
of the communicator, nodes are those of its ranks, and windows stay possible between ranks of one node. Errors name
ranks of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

from .bodies import Received
from .envelope import Envelope, Tag
from .errors import PeerEnded
from .rules import trees
from .transport import USER, Buffers, NodePlace, Posted, Transport, Window, name_of, user_context


class SubsetTransport(Transport):
    """One of some ranks of a run."""

    def __init__(self, run: Transport, members: Sequence[int], communicator: int) -> None:
        """`members`: ranks of the run in their new order, among them this one. `communicator`: its number."""
        self._run, self._members, self.communicator = run, tuple(members), communicator
        self._places = {member: rank for rank, member in enumerate(self._members)}
        self.rank, self.size = self._places[run.rank], len(self._members)
        self.nodes = _nodes(run.nodes, self._members)
        self.has_windows = run.has_windows
        run.open(communicator, self._members)

    def __del__(self) -> None:
        if "_places" in vars(self):
            self._run.forget(self.communicator)

    @property
    def run(self) -> Transport:
        return self._run

    @property
    def members(self) -> Sequence[int]:
        return self._members

    def send(
        self, dest: int, context: int, tag: Tag, form: int, meta: bytes, buffers: Buffers, window: Window | None = None
    ) -> None:
        try:
            self._run.send(self._members[dest], context, tag, form, meta, buffers, window)
        except PeerEnded as error:
            raise error.seen_from(self._places) from None

    def receive(
        self, source: int | None, context: int, tag: Tag | None, call: str, timeout_s: float | None = None
    ) -> Received:
        member = None if source is None else self._members[source]
        try:
            message = self._run.receive(member, context, tag, call, timeout_s)
        except PeerEnded as error:
            raise error.seen_from(self._places) from None
        message.member = message.envelope.source  # first, for an interrupt between the two statements
        message.envelope = self._translated(message.envelope)
        return message

    def put_back(self, message: Received) -> None:
        self._run.put_back(message.of_run())

    def post(self, source: int | None, context: int, tag: Tag | None) -> Posted:
        posted = self._run.post(None if source is None else self._members[source], context, tag)
        posted.places, posted.user = self._places, self
        return posted

    def unpost(self, posted: Posted) -> bool:
        return self._run.unpost(posted)

    def poll(self, posted: Sequence[Posted]) -> None:
        self._run.poll(posted)

    def wait(self, posted: Sequence[Posted], call: str, timeout_s: float | None = None) -> None:
        self._run.wait(posted, call, timeout_s)

    def undivided(self) -> AbstractContextManager[Any]:
        return self._run.undivided()

    def probe(self, source: int | None, context: int, tag: Tag | None) -> Envelope | None:
        try:
            found = self._run.probe(None if source is None else self._members[source], context, tag)
        except PeerEnded as error:
            raise error.seen_from(self._places) from None
        return None if found is None else self._translated(found)

    def waiting(self, context: int = USER) -> tuple[Envelope, ...]:
        found = self._run.waiting(context or user_context(self.communicator))
        return tuple(map(self._translated, found))

    def finish(self, context: int) -> None:
        self._run.finish(context)

    def call_failed(self, context: int) -> None:
        self._run.call_failed(context)

    def await_end(self, rank: int) -> None:
        self._run.await_end(rank)

    def window(self, size: int) -> Window:
        return self._run.window(size)

    def new_number(self) -> int:
        return self._run.new_number()

    def open(self, communicator: int, members: tuple[int, ...]) -> None:
        self._run.open(communicator, members)

    def forget(self, communicator: int) -> None:
        self._run.forget(communicator)

    def abort(self, code: int, why: str) -> None:
        """End the run, with all its ranks."""
        where = f"called on {name_of(self.communicator, self._members)}"
        self._run.abort(code, f"{why} ({where})" if why else where)

    def close(self) -> None:
        """Do nothing: the run's own transport is closed at exit."""

    def _poll(self) -> None:
        self._run._poll()

    def _send_answer(self, dest: int, context: int, tag: Tag) -> None:
        self._run._send_answer(self._members[dest], context, tag)

    def _translated(self, envelope: Envelope) -> Envelope:
        return envelope._replace(source=self._places[envelope.source])


def _nodes(nodes: Sequence[NodePlace], members: Sequence[int]) -> tuple[NodePlace, ...]:
    """Return the nodes of some ranks: each run of consecutive ones on one node counts as a node of its name."""
    found: list[NodePlace] = []
    first = 0
    for number, alike in groupby(trees.node_of(nodes, member) for member in members):
        count = len(list(alike))
        found.append(NodePlace(nodes[number].name, first, count, nodes[number].address))
        first += count
    return tuple(found)
