"""Say how an attempt at a task ended.

An exit code alone says little: programs catch the error and go on, fail later of something else, or die of a
neighbour's fault. RAD-RM takes every exit code but 0 for memory, and runs a task that always fails for ever (CARMA).
"""

from __future__ import annotations

import signal

from ..records import EndFacts, EndKind
from . import log_messages

LITTLE_ROOM = 0.03
"""Free part of a GPU below which messages from earlier in the log count."""
NO_ROOM = 0.02
"""Free part of a GPU below which a failure without a message is suspected to be memory."""
NEAR_CAP = 0.95
AT_CAP = 0.98
"""The same of a task that has used that part of its cap."""
SUSPICION_S = 5.0
"""How old the last sample may be for a suspicion."""
SUSPECT_CODES = (1, 128 + signal.SIGABRT, 128 + signal.SIGSEGV)
"""How programs end that cannot report a failed allocation: exit code 1, abort, invalid address."""
SUSPECT_SIGNALS = (signal.SIGABRT, signal.SIGSEGV)

MEMORY_KINDS: tuple[EndKind, ...] = ("gpu memory", "gpu memory likely", "gpu memory suspected")


def classify(facts: EndFacts, cap_ratio: float | None = None) -> tuple[EndKind, str]:
    """Return how an attempt ended as far as its own facts say, and the reason for people.

    `cap_ratio`: the part of its cap that it used at its last sample; None: no cap, or not seen. Exit code 0 is done
    whatever the log says: many programs catch the error, as those do that search for the largest batch size.
    """
    how = how_ended(facts.code, facts.signal)
    if not facts.was_started:
        return "not started", how
    if facts.is_stopped_by_us:
        return "unfinished", f"told to end, {how}"
    if facts.code == 0:
        return "done", ""
    if facts.is_host_memory:
        return "host memory", f"the kernel killed it for memory ({how})"
    if facts.is_device_lost:
        return "device", f"its GPU failed ({how})"
    found = log_messages.find(facts.log_tail)
    if found.device:
        return "device", f'its log says "{found.device}" ({how})'
    if found.certain and found.is_last:
        return "gpu memory", f'its log says "{found.certain}" ({how})'
    room = facts.room_ratio
    message = found.certain or found.likely
    if message and ((room is not None and room < LITTLE_ROOM) or (cap_ratio is not None and cap_ratio >= NEAR_CAP)):
        return "gpu memory likely", f'its log says "{message}", and its GPU was full ({how})'
    if facts.is_daemon_lost:
        return "neighbour's fault", f"the MPS daemon of its GPU ended ({how})"
    if found.server:
        return "neighbour's fault", f'its log says "{found.server}" ({how})'
    if not (message or found.excuse or found.fault) and _is_suspect(facts, cap_ratio):
        return "gpu memory suspected", f"no message, but its GPU was full ({how})"
    return ("failed" if facts.code is not None else "signal"), how


def is_fault(facts: EndFacts) -> bool:
    """Return whether the log tells of a CUDA fault, which ends all tasks on the GPU and is the fault of one of them."""
    return bool(log_messages.find(facts.log_tail).fault)


def _is_suspect(facts: EndFacts, cap_ratio: float | None) -> bool:
    if facts.code not in SUSPECT_CODES and facts.signal not in SUSPECT_SIGNALS:
        return False
    if facts.sample_age_s is None or facts.sample_age_s > SUSPICION_S:
        return False
    room = facts.room_ratio
    return (room is not None and room < NO_ROOM) or (cap_ratio is not None and cap_ratio >= AT_CAP)


def how_ended(code: int | None, signal_number: int | None) -> str:
    """Return how a process ended, for people: "exit code 1", "ended by SIGKILL". `code` None: a signal ended it."""
    if code is not None:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(signal_number or 0).name}"
    except ValueError:
        return f"ended by signal {signal_number}"
