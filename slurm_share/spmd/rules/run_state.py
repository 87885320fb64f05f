"""What node 0 knows about all ranks of a run, and what it tells them: no clock, no socket.

Messages and moments go in; `take` returns what all nodes are to be told. Moments are seconds on any clock that only
goes forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..records import changed
from ..wire import (
    Abort,
    Aborted,
    Ask,
    Bye,
    Control,
    Ended,
    Hello,
    Lost,
    Mismatch,
    Missing,
    Place,
    Waiting,
    Welcome,
    Working,
)
from . import ends

AGAIN_S = 1.0
"""Between the two counts that find ranks waiting for each other."""
BYE_S = 1.0
"""After a rank's goodbye its end is told to the others, if its process has not ended by then."""


@dataclass
class _Rank:
    node: int
    hello: Hello | None = None
    wait: Waiting | None = None
    bye: Bye | None = None
    mismatch: Mismatch | None = None
    """What it has said at its end: its last collective calls differ from another rank's."""
    ended: Ended | None = None
    is_lost: bool = False

    @property
    def is_over(self) -> bool:
        return self.ended is not None or self.is_lost

    def state(self) -> ends.RankState:
        """Return what counts when ranks may wait for each other."""
        if self.is_lost:
            return ends.RankState(True, None, None, None)
        if self.bye is not None:
            return ends.RankState(True, None, self.bye.sent, self.bye.taken)
        if self.ended is not None:
            known = 0 if self.hello is None else None
            return ends.RankState(True, None, known, known)
        if self.wait is not None:
            return ends.RankState(False, self.wait, self.wait.sent, self.wait.taken)
        return ends.RankState(False, None, 0, 0)


@dataclass
class _Node:
    name: str
    ranks: range
    address: str | None = None
    """None: it has not joined."""
    is_gone: bool = False
    """Lost, or left because all its ranks have ended."""


@dataclass
class _Count:
    """One of the two counts: what was known when it began, and which nodes have not answered."""

    number: int
    version: int
    is_second: bool
    missing: set[int] = field(default_factory=set)
    complete_at: float | None = None


class RunState:
    """All ranks of a run, as node 0 knows them."""

    def __init__(
        self, run: str, nodes: Sequence[tuple[str, int]], start_s: float, *, is_going_on: bool = False
    ) -> None:
        """`nodes`: name and number of ranks of each. `is_going_on`: an end with a code does not end the run."""
        self._run, self._start_s, self._is_going_on = run, start_s, is_going_on
        self._nodes: list[_Node] = []
        first = 0
        for name, count in nodes:
            self._nodes.append(_Node(name, range(first, first + count)))
            first += count
        self._ranks = [_Rank(number) for number, node in enumerate(self._nodes) for _rank in node.ranks]
        self._outgoing: list[Control] = []
        """What all nodes are to be told, since the last `take`."""
        self._living = set(range(first))
        """Ranks that have neither said goodbye nor ended."""
        self._waiting: set[int] = set()
        self._byes: dict[int, float] = {}
        """Ranks whose goodbye is told to the others at that moment, if they have not ended by then."""
        self._version = 0
        """Counts what was heard, so that a second count is seen to be of the same state."""
        self._counted = (-1, False)
        """A version, and whether nobody could go on then."""
        self._numbers = 0
        self._count: _Count | None = None
        self._start_until: float | None = None
        self.has_begun = False
        """All ranks have been welcomed."""
        self.is_ending = False
        """The run has to end, and all nodes have been told."""

    @property
    def is_over(self) -> bool:
        """Whether no rank is left."""
        return not self._living and all(rank.is_over for rank in self._ranks)

    def take(self) -> list[Control]:
        """Return what all nodes are to be told since the last call, in order."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def joined(self, node: int, address: str) -> None:
        """Note that a node takes part, and that its ranks listen at this address."""
        self._nodes[node].address = address
        self._begin()

    def left(self, node: int) -> None:
        """Note that all ranks of a node have ended, and its rendezvous process too."""
        self._nodes[node].is_gone = True
        self._answered_by(node)

    def lost(self, node: int) -> None:
        """Note that a node does not answer any more, or has not joined in time."""
        place = self._nodes[node]
        if place.is_gone:
            return
        place.is_gone = True
        gone = tuple(rank for rank in place.ranks if not self._ranks[rank].is_over)
        for rank in gone:
            self._ranks[rank].is_lost = True
            self._living.discard(rank)
            self._waiting.discard(rank)
        self._version += 1
        self._answered_by(node)
        if gone:
            self._end(Lost(place.name, gone) if place.address is not None else Missing(gone, self._start_s))

    def hear(self, rank: int, message: Control, now: float) -> None:
        """Take in a message of a rank, or Ended, by which the parent on its node tells of its end."""
        its = self._ranks[rank]
        if its.is_over:
            return
        self._version += 1
        self._waiting.discard(rank)
        if isinstance(message, Hello):
            its.hello = message
            if self._start_until is None:
                self._start_until = now + self._start_s
            self._begin()
            self._end_if_absent()
        elif isinstance(message, Waiting):
            its.wait = message
            self._waiting.add(rank)
        elif isinstance(message, Working):
            its.wait = None
        elif isinstance(message, Bye):
            its.bye, its.wait = message, None
            self._byes[rank] = now + BYE_S
            self._living.discard(rank)
        elif isinstance(message, Abort):
            self._end(Aborted(rank, message.code, message.why))
        elif isinstance(message, Mismatch):
            its.mismatch = message  # a code other than 0 says more of why it has made fewer calls
        elif isinstance(message, Ended):
            self._heard_end(rank, message)

    def answered(self, node: int, number: int, now: float) -> None:
        """Note that a node has passed on all that its ranks said before it read the question (Ask) of that number."""
        count = self._count
        if count is not None and count.number == number:
            count.missing.discard(node)
            if not count.missing and count.complete_at is None:
                count.complete_at = now

    def tick(self, now: float) -> None:
        """Tell of ends, of ranks that are missing and of deadlocks, as far as they are due at this moment."""
        for number in [number for number, moment in self._byes.items() if now >= moment]:
            del self._byes[number]
            self._outgoing.append(Ended(number, self._nodes[self._ranks[number].node].name, 0, None, ends.FINISHED))
        if not self.has_begun and not self.is_ending and self._start_until is not None and now >= self._start_until:
            absent = tuple(number for number, rank in enumerate(self._ranks) if rank.hello is None)
            self._end(Missing(absent or self._ranks_of_absent_nodes(), self._start_s))
        self._check_deadlock(now)

    def due_at(self) -> float | None:
        """Return the moment at which `tick` has something to do; None: not before something is heard."""
        moments = list(self._byes.values())
        if self._start_until is not None and not self.has_begun and not self.is_ending:
            moments.append(self._start_until)
        if self._count is not None and self._count.complete_at is not None:
            moments.append(self._count.complete_at + (0 if self._count.is_second else AGAIN_S))
        return min(moments, default=None)

    def _begin(self) -> None:
        if self.has_begun or self.is_ending or any(rank.hello is None for rank in self._ranks):
            return
        if any(node.address is None for node in self._nodes):
            return
        self.has_begun = True
        places = tuple(Place(one.name, one.ranks.start, len(one.ranks), one.address or "") for one in self._nodes)
        ports = tuple(rank.hello.port if rank.hello else 0 for rank in self._ranks)
        self._outgoing.append(Welcome(len(self._ranks), places, ports, sockets="", key="", run=self._run))

    def _ranks_of_absent_nodes(self) -> tuple[int, ...]:
        return tuple(rank for node in self._nodes if node.address is None for rank in node.ranks)

    def _heard_end(self, number: int, ended: Ended) -> None:
        rank = self._ranks[number]
        is_known = rank.bye is not None and number not in self._byes
        rank.ended, rank.wait = ended, None
        self._byes.pop(number, None)
        self._living.discard(number)
        if not ends.is_good(ended):
            if self._is_going_on:
                self._outgoing.append(ended)
            else:
                self._end(ended)
        elif rank.mismatch is not None:
            self._end(rank.mismatch)
        elif rank.hello is not None and not is_known:
            self._outgoing.append(ended)
        self._end_if_absent()

    def _end_if_absent(self) -> None:
        """End a run that cannot begin: a rank has ended before it said hello, and another one waits for it."""
        if self.has_begun or self.is_ending or self._start_until is None:
            return
        for rank in self._ranks:
            if rank.ended is not None and rank.hello is None:
                # Without a code: its own was 0, but those that wait for it cannot go on.
                never = changed(rank.ended, code=None, why=ends.NEVER_SAID_HELLO)
                self._end(never if ends.is_good(rank.ended) else rank.ended)
                return

    def _end(self, message: Ended | Lost | Missing | Aborted | Mismatch) -> None:
        self._outgoing.append(message)
        if self.is_ending:
            return
        self.is_ending = True
        self._count = None
        reasons: set[int] = set()
        if isinstance(message, Ended | Aborted):
            reasons = {message.rank}
        elif isinstance(message, Lost | Missing):
            reasons = set(message.ranks)
        others = sum(not rank.is_over and number not in reasons for number, rank in enumerate(self._ranks))
        self._outgoing.append(ends.ending(message, others))

    def _check_deadlock(self, now: float) -> None:
        if self.is_ending or not self._waiting or self._waiting != self._living or not self._nobody_can_go_on():
            self._count = None
            return
        count = self._count
        if count is None or count.version != self._version:
            self._ask(is_second=False, now=now)
        elif count.complete_at is not None:
            if count.is_second:
                self._tell_deadlock()
            elif now >= count.complete_at + AGAIN_S:
                self._ask(is_second=True, now=now)

    def _nobody_can_go_on(self) -> bool:
        if self._counted[0] != self._version:
            self._counted = self._version, ends.nobody_can_go_on(rank.state() for rank in self._ranks)
        return self._counted[1]

    def _ask(self, *, is_second: bool, now: float) -> None:
        self._numbers += 1
        nodes = {number for number, node in enumerate(self._nodes) if not node.is_gone}
        self._count = _Count(self._numbers, self._version, is_second, nodes)
        self._outgoing.append(Ask(self._numbers))

    def _tell_deadlock(self) -> None:
        told = ends.judge({number: rank.wait for number, rank in enumerate(self._ranks) if rank.wait is not None})
        self.is_ending = True
        self._count = None
        self._outgoing += [told, ends.ending(told, 0)]

    def _answered_by(self, node: int) -> None:
        if self._count is not None:
            self._count.missing.discard(node)
