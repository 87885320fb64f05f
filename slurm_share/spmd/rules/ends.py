"""Which ends of ranks end the run, when ranks wait for each other for ever, and the sentences about it."""

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
"""The bits of a context that number the collective call."""
_SHOWN = 256
"""Ranks in a table of waits: 1,024 would not fit into a line."""
_TEXT = 120
"""Characters of what one rank waits for."""


@dataclass(frozen=True)
class RankState:
    """One rank, as far as its messages are known."""

    is_over: bool
    """It has said goodbye or has ended."""
    wait: Waiting | None
    """None: it computes, or has not said hello."""
    sent: int | None
    taken: int | None
    """None: not known, because it ended without a word."""


def reason(code: int | None, signal: int | None, cause: str = "") -> str:
    """Return the clause behind "rank 5 on n2 ". `cause`: what else is known, such as "out of host memory"."""
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
    """Return whether the rank ended in good order."""
    return ended.code == 0 and ended.signal is None


def wait_text(waiting: Waiting) -> str:
    """Return what a rank waits for, behind "rank 5 waits "."""
    if waiting.context:
        whom = "" if waiting.source is None else f" for rank {waiting.source}"
        text = f"in {waiting.tag} (collective call {waiting.context & _NUMBER}){whom}"
    else:
        source = "any rank" if waiting.source is None else str(waiting.source)
        tag = "any tag" if waiting.tag is None else repr(waiting.tag)
        text = f"in {waiting.call} for ({source}, {tag})"
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."


def nobody_can_go_on(ranks: Iterable[RankState]) -> bool:
    """Return whether every living rank waits and no message is under way.

    True of what was read at different moments too; so it counts once the same was read twice, and nothing came in
    between (Mattern's double counting).
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
    """Return what to tell ranks that wait for each other: different calls of one collective number, or who waits."""
    first: dict[int, tuple[int, str]] = {}
    for rank, wait in sorted(waits.items()):
        if wait.context:
            here = first.setdefault(wait.context, (rank, str(wait.tag)))
            if here[1] != str(wait.tag):
                return Mismatch(wait.context & _NUMBER, here, (rank, str(wait.tag)))
    return Stuck(tuple((rank, wait_text(wait)) for rank, wait in sorted(waits.items())[:_SHOWN]))


def ending(message: Ended | Lost | Stuck | Mismatch | Missing | Aborted, others: int) -> Ending:
    """Return the end of the run for this reason. `others`: ranks that live and are not the reason."""
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
