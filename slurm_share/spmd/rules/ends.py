"""Ends of ranks and of the run, the check for deadlock, and the sentences about both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from signal import Signals

from ..errors import CollectiveMismatch, Deadlock, NodeLost, StartTimeout
from ..wire import Aborted, Ended, Ending, Lost, Mismatch, Missing, Stuck, Waiting

NOTHING_MORE = "has ended and sends nothing more"
FINISHED = "has finished with messages and sends nothing more"
NEVER_SAID_HELLO = "has ended without using messages, and the others wait for it"
_NUMBER = (1 << 32) - 1
"""Bits of a context with the number of the collective call."""
_SHOWN = 256
"""Limit of ranks in Stuck: 1,024 would not fit into a line."""
_TEXT = 120
"""Limit of characters in the text about one rank's wait."""


@dataclass(frozen=True)
class RankState:
    """State of one rank for the deadlock check."""

    is_over: bool
    """Whether it has sent Bye or has ended."""
    wait: Waiting | None
    """None: it computes, or has not sent Hello."""
    sent: int | None
    taken: int | None
    """None: unknown, because it ended without Bye."""


def reason(code: int | None, signal: int | None, cause: str = "") -> str:
    """Return the clause that continues "rank 5 on n2 ". `cause`: more details, such as "out of host memory"."""
    if signal is not None:
        try:
            name = Signals(signal).name
        except ValueError:  # a real-time signal
            name = f"signal {signal}"
        return f"was killed ({cause})" if cause else f"was killed by {name}"
    if code == 0:
        return NOTHING_MORE
    return f"ended with code {code}" + (f" ({cause})" if cause else "")


def is_good(ended: Ended) -> bool:
    """Return whether the rank ended with code 0 and without a signal."""
    return ended.code == 0 and ended.signal is None


def wait_text(waiting: Waiting) -> str:
    """Return the text that continues "rank 5 waits "."""
    if waiting.context:
        whom = "" if waiting.source is None else f" for rank {waiting.source}"
        text = f"in {waiting.tag} (collective call {waiting.context & _NUMBER}){whom}"
    else:
        source = "any rank" if waiting.source is None else str(waiting.source)
        tag = "any tag" if waiting.tag is None else repr(waiting.tag)
        text = f"in {waiting.call} for ({source}, {tag})"
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."


def is_deadlock(ranks: Iterable[RankState]) -> bool:
    """Return whether every running rank waits and no message is in transit.

    The states are from different moments, so one positive answer proves nothing. Two equal ones without a message in
    between do (Mattern's double counting).
    """
    sent = taken = waits = 0
    for rank in ranks:
        if rank.sent is None or rank.taken is None or not (rank.is_over or rank.wait):
            return False
        sent += rank.sent
        taken += rank.taken
        waits += not rank.is_over
    return waits > 0 and sent == taken


def judge(waits: Mapping[int, Waiting]) -> Stuck | Mismatch:
    """Return the message to deadlocked ranks: Mismatch if collective calls of one number differ, else Stuck."""
    first: dict[int, tuple[int, str]] = {}
    for rank, wait in sorted(waits.items()):
        if wait.context:
            here = first.setdefault(wait.context, (rank, str(wait.tag)))
            if here[1] != str(wait.tag):
                return Mismatch(wait.context & _NUMBER, here, (rank, str(wait.tag)))
    return Stuck(tuple((rank, wait_text(wait)) for rank, wait in sorted(waits.items())[:_SHOWN]))


def ending(message: Ended | Lost | Stuck | Mismatch | Missing | Aborted, others: int) -> Ending:
    """Return Ending for this reason. `others`: number of running ranks that are not the reason."""
    if isinstance(message, Ended):
        text = f"rank {message.rank} on {message.node} {message.why}"
        return Ending(1, text + _were_ended(others), (message.rank,))
    if isinstance(message, Lost):
        text = str(NodeLost(message.node, message.ranks))
        return Ending(1, text + _were_ended(others), message.ranks)
    if isinstance(message, Aborted):
        text = f"rank {message.rank} called abort({message.code})" + (f": {message.why}" if message.why else "")
        return Ending(message.code, text + _were_ended(others), (message.rank,))
    if isinstance(message, Missing):
        return Ending(1, str(StartTimeout(message.ranks, message.after_s)), message.ranks)
    if isinstance(message, Mismatch):
        return Ending(1, str(CollectiveMismatch(message.number, *message.here, *message.there)), ())
    return Ending(1, str(Deadlock(message.waits)), ())


def _were_ended(count: int) -> str:
    if not count:
        return ""
    return "; the other one was ended" if count == 1 else f"; the other {count} were ended"
