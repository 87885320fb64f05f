"""State of a run on node 0: messages of the ranks and times go in, `take` returns the messages to all nodes.

Times are seconds on any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..transport import NodePlace
from ..wire import (
    Bye,
    CallMismatch,
    DrainQuestion,
    Hello,
    NodeLoss,
    Note,
    RankEnded,
    RanksMissing,
    RankWaiting,
    RankWorking,
    Record,
    RunAborted,
    Welcome,
)
from . import ends

AGAIN_S = 1.0
"""Seconds between the two counts that prove a deadlock."""
BYE_S = 1.0
"""Seconds after Bye of a rank until its end is reported, if its process has not ended earlier."""


@dataclass
class _Rank:
    node: int
    hello: Hello | None = None
    wait: RankWaiting | None = None
    bye: Bye | None = None
    mismatch: CallMismatch | None = None
    """Its report at its end: its last collective calls differ from another rank's."""
    ended: RankEnded | None = None
    is_lost: bool = False

    @property
    def is_over(self) -> bool:
        return self.ended is not None or self.is_lost

    def counts(self) -> tuple[int, int] | None:
        """Return the messages that a waiting or ended rank has sent and received; None: unknown, it gave no Bye."""
        said = self.bye or self.wait
        if said is not None and not self.is_lost:
            return said.sent, said.taken
        return (0, 0) if self.ended is not None and self.hello is None else None


@dataclass
class _RunNode:
    name: str
    ranks: range
    address: str | None = None
    """None: it has not joined."""
    is_gone: bool = False
    """Whether it is lost, or has left because all its ranks have ended."""


@dataclass
class _Count:
    """One of the two counts: the version at its begin, and the nodes that have not answered."""

    number: int
    version: int
    is_second: bool
    missing: set[int] = field(default_factory=set)
    complete_at: float | None = None


class RunState:
    """The ranks and nodes of a run, as node 0 knows them."""

    def __init__(self, run: str, nodes: Sequence[tuple[str, int]], start_s: float, *, keep_going: bool = False) -> None:
        """`nodes`: name and number of ranks of each. `keep_going`: the failure of a rank does not end the run."""
        self._run, self._start_s, self._keep_going = run, start_s, keep_going
        self._nodes: list[_RunNode] = []
        first = 0
        for name, count in nodes:
            self._nodes.append(_RunNode(name, range(first, first + count)))
            first += count
        self._ranks = [_Rank(number) for number, node in enumerate(self._nodes) for _rank in node.ranks]
        self._outgoing: list[Record] = []
        """Messages to all nodes since the last `take`."""
        self._living = set(range(first))
        """Ranks that have neither sent Bye nor ended."""
        self._waiting: set[int] = set()
        self._byes: dict[int, float] = {}
        """Ranks that have sent Bye, with the time at which their end is reported."""
        self._version = 0
        """Number of changes; two counts with the same version have seen the same state."""
        self._counted = (-1, False)
        """A version, and whether it was a deadlock."""
        self._is_doubt_told = False
        self._numbers = 0
        self._count: _Count | None = None
        self._start_until: float | None = None
        self.has_begun = False
        """Whether Welcome has been sent."""
        self.is_ending = False
        """Whether Ending has been sent."""

    def take(self) -> list[Record]:
        """Return the messages to all nodes since the last call, in order."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def joined(self, node: int, address: str) -> None:
        """Note that a node takes part, and the address on which its ranks listen."""
        self._nodes[node].address = address
        self._begin()

    def left(self, node: int) -> None:
        """Note that a node has left: all its ranks and its rendezvous process have ended."""
        self._nodes[node].is_gone = True
        self._no_answer_from(node)

    def lost(self, node: int) -> None:
        """Note that a node no longer answers, or has not joined in time."""
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
        self._no_answer_from(node)
        if gone:
            self._end(NodeLoss(place.name, gone) if place.address is not None else RanksMissing(gone, self._start_s))

    def hear(self, rank: int, message: Record, now: float) -> None:
        """Note a message of a rank, or Ended from the parent on its node."""
        state = self._ranks[rank]
        if state.is_over:
            return
        self._version += 1
        self._waiting.discard(rank)
        if isinstance(message, Hello):
            state.hello = message
            if self._start_until is None:
                self._start_until = now + self._start_s
            self._begin()
            self._end_if_absent()
        elif isinstance(message, RankWaiting):
            state.wait = message
            self._waiting.add(rank)
        elif isinstance(message, RankWorking):
            state.wait = None
        elif isinstance(message, Bye):
            state.bye, state.wait = message, None
            self._byes[rank] = now + BYE_S
            self._living.discard(rank)
        elif isinstance(message, RunAborted):
            self._end(message.changed(rank=rank))
        elif isinstance(message, CallMismatch):
            state.mismatch = message  # an exit code other than 0 explains better why it has made fewer calls
        elif isinstance(message, RankEnded):
            self._note_end(rank, message)

    def answered(self, node: int, number: int, now: float) -> None:
        """Note Answer of a node to Ask of that number."""
        count = self._count
        if count is not None and count.number == number:
            count.missing.discard(node)
            if not count.missing and count.complete_at is None:
                count.complete_at = now

    def tick(self, now: float) -> None:
        """Report ends, missing ranks and deadlocks that are due."""
        for number in [number for number, moment in self._byes.items() if now >= moment]:
            del self._byes[number]
            self._outgoing.append(RankEnded(number, self._nodes[self._ranks[number].node].name, 0, None, ends.FINISHED))
        if not self.has_begun and not self.is_ending and self._start_until is not None and now >= self._start_until:
            absent = tuple(number for number, rank in enumerate(self._ranks) if rank.hello is None)
            if not absent:
                absent = tuple(rank for node in self._nodes if node.address is None for rank in node.ranks)
            self._end(RanksMissing(absent, self._start_s))
        self._check_deadlock(now)

    def due_at(self) -> float | None:
        """Return the time at which `tick` has work; None: not before the next message."""
        moments = list(self._byes.values())
        if self._start_until is not None and not self.has_begun and not self.is_ending:
            moments.append(self._start_until)
        count = self._count
        is_in_doubt = count is not None and count.is_second and self._is_doubt_told and self._has_threads()
        if count is not None and count.complete_at is not None and not is_in_doubt:
            moments.append(count.complete_at + (0 if count.is_second else AGAIN_S))
        return min(moments, default=None)

    def _begin(self) -> None:
        if self.has_begun or self.is_ending or any(rank.hello is None for rank in self._ranks):
            return
        if any(node.address is None for node in self._nodes):
            return
        self.has_begun = True
        places = tuple(NodePlace(one.name, one.ranks.start, len(one.ranks), one.address or "") for one in self._nodes)
        ports = tuple(rank.hello.port if rank.hello else 0 for rank in self._ranks)
        self._outgoing.append(Welcome(len(self._ranks), places, ports, sockets="", key="", run=self._run))

    def _note_end(self, number: int, ended: RankEnded) -> None:
        rank = self._ranks[number]
        is_known = rank.bye is not None and number not in self._byes
        rank.ended, rank.wait = ended, None
        self._byes.pop(number, None)
        self._living.discard(number)
        if not ends.is_good(ended):
            if self._keep_going:
                self._outgoing.append(ended)
            else:
                self._end(ended)
        elif rank.mismatch is not None:
            self._end(rank.mismatch)
        elif rank.hello is not None and not is_known:
            self._outgoing.append(ended)
        self._end_if_absent()

    def _end_if_absent(self) -> None:
        """End a run that cannot begin: a rank has ended without Hello, and another one waits for it."""
        if self.has_begun or self.is_ending or self._start_until is None:
            return
        for rank in self._ranks:
            if rank.ended is not None and rank.hello is None:
                # Without a code: it ended with 0, but the ranks that wait for it cannot go on.
                never = rank.ended.changed(code=None, why=ends.NEVER_SAID_HELLO)
                self._end(never if ends.is_good(rank.ended) else rank.ended)
                return

    def _end(self, message: RankEnded | NodeLoss | RanksMissing | RunAborted | CallMismatch) -> None:
        self._outgoing.append(message)
        if self.is_ending:
            return
        self.is_ending = True
        self._count = None
        reasons: set[int] = set()
        if isinstance(message, RankEnded | RunAborted):
            reasons = {message.rank}
        elif isinstance(message, NodeLoss | RanksMissing):
            reasons = set(message.ranks)
        others = sum(not rank.is_over and number not in reasons for number, rank in enumerate(self._ranks))
        self._outgoing.append(ends.ending(message, others))

    def _check_deadlock(self, now: float) -> None:
        if self.is_ending or not self._waiting or self._waiting != self._living or not self._is_deadlock():
            self._count = None
            return
        count = self._count
        if count is None or count.version != self._version:
            self._ask(is_second=False, now=now)
        elif count.complete_at is not None:
            if count.is_second and self._has_threads():
                if not self._is_doubt_told:
                    self._is_doubt_told = True
                    self._outgoing.append(Note(ends.doubt(self._waits())))
            elif count.is_second:
                told = ends.judge(self._waits())
                self.is_ending = True
                self._count = None
                self._outgoing += [told, ends.ending(told, 0)]
            elif now >= count.complete_at + AGAIN_S:
                self._ask(is_second=True, now=now)

    def _waits(self) -> dict[int, RankWaiting]:
        return {number: rank.wait for number, rank in enumerate(self._ranks) if rank.wait is not None}

    def _has_threads(self) -> bool:
        """Return whether another thread of a waiting rank could still send a message."""
        return any(wait.threads for wait in self._waits().values())

    def _is_deadlock(self) -> bool:
        """Return whether no message is in transit while every running rank waits.

        The counts are from different moments, so one positive answer proves nothing. Two equal ones without a message
        in between do (Mattern's double counting).
        """
        if self._counted[0] != self._version:
            counts = [rank.counts() for rank in self._ranks]
            known = [one for one in counts if one is not None]
            balanced = sum(sent for sent, _taken in known) == sum(taken for _sent, taken in known)
            self._counted = self._version, len(known) == len(counts) and balanced
        return self._counted[1]

    def _ask(self, *, is_second: bool, now: float) -> None:
        self._numbers += 1
        nodes = {number for number, node in enumerate(self._nodes) if not node.is_gone}
        self._count = _Count(self._numbers, self._version, is_second, nodes)
        self._outgoing.append(DrainQuestion(self._numbers))

    def _no_answer_from(self, node: int) -> None:
        if self._count is not None:
            self._count.missing.discard(node)
