"""Ends of ranks and of the run, deadlocks, and the sentences about both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from signal import Signals

from .. import errors
from ..names import GOOD_CODES
from ..transport import NodePlace, communicator_of, is_answer, is_collective
from ..wire import (
    CallMismatch,
    NodeLoss,
    RankEnded,
    RankRefused,
    RanksMissing,
    RanksStuck,
    RankWaiting,
    Record,
    RunAborted,
    RunEnding,
)

NOTHING_MORE = "has ended and sends nothing more"
SAVED = "has ended with exit code 75 (its state is saved) and sends nothing more"
FINISHED = "has finished with messages and sends nothing more"
NEVER_SAID_HELLO = "has ended without using messages, and the others wait for it"
_NUMBER = (1 << 32) - 1
"""Bits of a context with the number of the collective call."""
_SHOWN = 256
"""Limit of ranks in Stuck: 1,024 would not fit into a line."""
_TEXT = 120
"""Limit of characters in the text about one rank's wait."""


def reason(code: int | None, signal: int | None, cause: str = "") -> str:
    """Return the clause that continues "rank 5 on n2 ". `cause`: more details, such as "out of host memory"."""
    if signal is not None:
        try:
            name = Signals(signal).name
        except ValueError:  # a real-time signal
            name = f"signal {signal}"
        return f"was killed ({cause})" if cause else f"was killed by {name}"
    if code in GOOD_CODES:
        return NOTHING_MORE if code == 0 else SAVED
    return f"ended with code {code}" + (f" ({cause})" if cause else "")


def is_good(ended: RankEnded) -> bool:
    """Return whether the rank is done or has saved its state."""
    return ended.code in GOOD_CODES and ended.signal is None


def wait_text(waiting: RankWaiting) -> str:
    """Return the text that continues "rank 5 waits "."""
    of = f" of {waiting.where}" if waiting.where else ""
    if is_collective(waiting.context):
        whom = "" if waiting.source is None else f" for rank {waiting.source}"
        text = f"in {waiting.tag} (collective call {waiting.context & _NUMBER}{of}){whom}"
    elif is_answer(waiting.context):
        text = f"in {waiting.call} until rank {waiting.source} receives its synchronous message{of}"
    else:
        source = "any rank" if waiting.source is None else str(waiting.source)
        tag = "any tag" if waiting.tag is None else repr(waiting.tag)
        text = f"in {waiting.call} for ({source}, {tag}){of}"
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."


def judge(waits: Mapping[int, RankWaiting]) -> RanksStuck | CallMismatch:
    """Return the message to deadlocked ranks: Mismatch if collective calls of one number differ, else Stuck."""
    first: dict[tuple[int, str], tuple[int, str]] = {}
    for rank, wait in sorted(waits.items()):
        if is_collective(wait.context):  # parts of the ranks can have communicators of one number
            here = first.setdefault((wait.context, wait.where), (rank, str(wait.tag)))
            if here[1] != str(wait.tag):
                return CallMismatch(wait.context & _NUMBER, here, (rank, str(wait.tag)), wait.where)
    return RanksStuck(tuple((rank, wait_text(wait)) for rank, wait in sorted(waits.items())[:_SHOWN]))


def doubt(waits: Mapping[int, RankWaiting]) -> str:
    """Return the sentence about a deadlock that other threads of ranks could still resolve."""
    stuck = str(errors.Deadlock(tuple((rank, wait_text(wait)) for rank, wait in sorted(waits.items())[:_SHOWN])))
    with_threads = [rank for rank, wait in sorted(waits.items()) if wait.threads]
    if len(with_threads) == 1:
        who = f"another thread of rank {with_threads[0]}"
    else:
        who = f"other threads of {len(with_threads)} ranks"
    return f"{stuck}; the run goes on, because {who} could still send a message"


def ending(
    message: RankEnded | NodeLoss | RanksStuck | CallMismatch | RanksMissing | RunAborted, others: int
) -> RunEnding:
    """Return Ending for this reason. `others`: number of running ranks that are not the reason."""
    if isinstance(message, RankEnded):
        text = f"rank {message.rank} on {message.node} {message.why}"
        return RunEnding(1, text + _were_ended(others), (message.rank,))
    if isinstance(message, NodeLoss):
        text = str(errors.NodeLost(message.node, message.ranks))
        return RunEnding(1, text + _were_ended(others), message.ranks)
    if isinstance(message, RunAborted):
        text = f"rank {message.rank} called abort({message.code})" + (f": {message.why}" if message.why else "")
        return RunEnding(message.code, text + _were_ended(others), (message.rank,))
    if isinstance(message, RanksMissing):
        return RunEnding(1, str(errors.StartTimeout(message.ranks, message.after_s)), message.ranks)
    if isinstance(message, CallMismatch):
        told = errors.CollectiveMismatch(message.number, *message.here, *message.there, message.where)
        return RunEnding(1, str(told), ())
    return RunEnding(1, str(errors.Deadlock(message.waits)), ())


def _were_ended(count: int) -> str:
    if not count:
        return ""
    return "; the other one was ended" if count == 1 else f"; the other {count} were ended"


class Ends:
    """Ends of ranks and of the whole run, as one rank knows them."""

    def __init__(
        self, rank: int, nodes: Sequence[NodePlace], members: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        """`members`: the ranks of each communicator of some ranks, by its number."""
        self._rank, self._members = rank, {} if members is None else members
        self._size = sum(node.count for node in nodes)
        self._nodes = nodes
        self.fatal: errors.SpmdError | None = None
        """Error that every later call raises; None: the run goes on."""
        self.stuck: errors.SpmdError | None = None
        """Error that the waiting call raises; None: some rank can go on."""
        self._errors: dict[int, errors.SpmdError] = {}
        """Per ended rank, the error of a call that waits for it."""
        self.first: errors.RunEnded | None = None
        """The first end that was not orderly."""
        self.is_disturbed = False
        """Whether anything was ever noted. False: a call needs no further question."""

    def take(self, record: Record) -> None:
        """Note a record of the rendezvous process."""
        self.is_disturbed = True
        if isinstance(record, RankEnded):
            self._ended(record)
        elif isinstance(record, NodeLoss):
            lost = errors.NodeLost(record.node, record.ranks)
            self.first = self.first or lost
            self._errors.update(dict.fromkeys(record.ranks, lost))
        elif isinstance(record, RanksStuck):
            self.stuck = errors.Deadlock(record.waits)
        elif isinstance(record, CallMismatch):
            (here, call), (there, other) = sorted((record.here, record.there), key=lambda one: one[0] != self._rank)
            self.stuck = errors.CollectiveMismatch(record.number, here, call, there, other, record.where)
        elif isinstance(record, RunAborted):
            self.fatal = self.fatal or errors.Aborted(record.rank, record.code, record.why)
        elif isinstance(record, RanksMissing):
            self.fatal = errors.StartTimeout(record.ranks, record.after_s)
        elif isinstance(record, RankRefused):
            self.fatal = errors.TransportError(f"the rendezvous process refused this rank: {record.why}")

    def closed(self, rank: int, in_good_order: bool) -> None:
        """Note that a rank has closed its connections, if no rendezvous process reports the reason."""
        self.is_disturbed = True
        if rank not in self._errors:
            why = NOTHING_MORE if in_good_order else "has closed its connections"
            self._ended(RankEnded(rank, self.node_of(rank), 0 if in_good_order else None, None, why))

    def failed(self, rank: int, error: errors.SpmdError) -> None:
        """Note that the messages of a rank can no longer be read."""
        self.is_disturbed = True
        self._errors.setdefault(rank, error)

    def has_ended(self, rank: int) -> bool:
        return rank in self._errors

    def is_orderly(self, rank: int) -> bool:
        """Return whether a rank is done or has saved its state."""
        error = self._errors.get(rank)
        return isinstance(error, errors.PeerEnded) and error.code in GOOD_CODES and error.signal is None

    @property
    def quiet(self) -> bool:
        """Whether no rank has ended and nothing stops the run."""
        return not self._errors and self.fatal is None and self.stuck is None

    def error_for_receive(self, source: int | None, context: int) -> errors.SpmdError | None:
        """Return why no message of that source (None: of any) can come any more; None: one can."""
        if self.fatal is not None or self.stuck is not None:
            return self.fatal or self.stuck
        members = self._members.get(communicator_of(context))
        if is_collective(context) and self.first is not None:
            if members is None:
                return self.first
            for rank in members:
                if rank in self._errors and not self.is_orderly(rank):
                    return self.error_of(rank)
        if source is not None:
            return self.error_of(source)
        if members is not None:
            others = [rank for rank in members if rank != self._rank]
            if not others or not all(rank in self._errors for rank in others):
                return None
            return self.error_of(next((rank for rank in others if not self.is_orderly(rank)), others[-1]))
        if self._size > 1 and len(self._errors) == self._size - 1:
            return self.first or next(reversed(self._errors.values()))
        return None

    def error_for_send(self, dest: int, context: int) -> errors.SpmdError | None:
        """Return why a rank accepts no message any more; None: it does.

        In a collective call this is the first end that was not orderly, because a rank that caught that error may have
        ended with code 0.
        """
        error = self.error_of(dest)
        return self.first if error is not None and is_collective(context) and self.first is not None else error

    def error_of(self, rank: int) -> errors.SpmdError | None:
        """Return the end of a rank; None: it is running.

        A rank that ends with code 1 after the end of another rank has most likely failed because of that one, so the
        first end is returned.
        """
        error = self._errors.get(rank)
        if isinstance(error, errors.PeerEnded) and error.code == 1 and self.first is not None:
            return self.first
        return error

    def node_of(self, rank: int) -> str:
        """Return the name of a rank's node."""
        return next((node.name for node in self._nodes if rank in node.ranks), "?")

    def _ended(self, record: RankEnded) -> None:
        if record.rank == self._rank:
            return
        good = is_good(record)
        why = NOTHING_MORE if record.code == 0 and good else record.why
        error = errors.PeerEnded(record.rank, record.node, record.code, record.signal, why)
        if record.rank not in self._errors or not good:  # the first report may be Bye, a later one has the code
            self._errors[record.rank] = error
        if not good:
            self.first = self.first or error
