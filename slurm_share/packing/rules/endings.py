"""Classify how an attempt at a task ended: of plain runs, packed runs and ranks.

An exit code alone is not enough: programs catch the memory error and fail later, or end by a neighbour's fault. RAD-RM
takes every exit code except 0 for out of memory, and so retries a task that always fails without end (CARMA).
"""

from __future__ import annotations

import signal

from ...core import names
from ...core.text import gib_text
from ..records import EndFacts, EndKind
from . import log_messages

LITTLE_ROOM = 0.03
"""If less than this part of a GPU is free, messages from earlier in the log count."""
NO_ROOM = 0.02
"""If less than this part of a GPU is free, a failure without a message is suspected to be out of memory."""
NEAR_CAP = 0.95
AT_CAP = 0.98
"""The same limits for the part of its cap that a task has used."""
SUSPICION_S = 5.0
"""Greatest age of the last sample for a suspicion."""
SUSPECT_CODES = (1, 128 + signal.SIGABRT, 128 + signal.SIGSEGV)
"""Exit codes of programs that cannot report a failed allocation: exit code 1, abort, invalid address."""
SUSPECT_SIGNALS = (signal.SIGABRT, signal.SIGSEGV)

WITHOUT_PARTITION = (
    "where the MPS daemon of its GPU has static partitions (sm=static), the process was started without "
    f"{names.ENV_MPS_PARTITION}: was its environment cleared, by sudo, ssh or a container? cuDevSmResourceSplit can "
    "return the same error"
)
"""The probable cause of CUDA error 915, which the error alone does not prove."""

MEMORY_KINDS: tuple[EndKind, ...] = ("gpu memory", "gpu memory likely", "gpu memory suspected")


def classify(facts: EndFacts, cap_ratio: float | None = None, above_mib: int | None = None) -> tuple[EndKind, str]:
    """Return how an attempt ended, judged by its own facts, and the reason in a sentence.

    `cap_ratio`: the part of its cap that it used at its last sample; None: no cap, or no sample. Exit code 0 is
    done: programs that search for the largest batch size print the memory error, catch it and succeed. A task that was
    told to end is unfinished even with exit code 0, because it may have saved its state and exited; after the signal of
    --checkpoint-signal it is saved.

    `above_mib`: its guaranteed memory, if it had more and the driver may end it for that; None: the driver may not.
    """
    how = how_ended(facts.code, facts.signal)
    if not facts.was_started:
        return "not started", how
    if facts.code == names.EXIT_SAVED:
        return "saved", how
    if facts.over_time:
        if facts.code == 0 and facts.is_told_to_save:
            return "saved", f"told to save its state and end, after its time limit of {facts.over_time} ({how})"
        return "time limit", f"ran longer than {facts.over_time} ({how})"
    if facts.is_stopped_by_us:
        return "unfinished", f"told to end, {how}"
    if facts.code == 0:
        return ("saved", f"told to save its state and end ({how})") if facts.is_told_to_save else ("done", "")
    if facts.is_host_memory:
        return "host memory", f"the kernel killed it for memory ({how})"
    if facts.is_device_lost:
        return "device", f"its GPU failed ({how})"
    found = log_messages.find_messages(facts.log_tail)
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
    if found.is_terminated and above_mib is not None:
        # 810 is not an error of the program: the driver needed the memory for a task within its guaranteed part.
        return "above guarantee", f"{guarantee_text(above_mib)} ({how})"
    if found.server:
        return "neighbour's fault", f'its log says "{found.server}" ({how})'
    if not (message or found.excuse or found.fault or found.partition) and _is_suspect(facts, cap_ratio):
        return "gpu memory suspected", f"no message, but its GPU was full ({how})"
    if facts.is_told_to_save:
        return "unfinished", f"told to save its state and end, {how}"
    if found.partition:
        how = f'{how}; its log says "{found.partition}": {WITHOUT_PARTITION}'
    return ("failed" if facts.code is not None else "signal"), how


def guarantee_text(least_mib: int) -> str:
    """Return why the driver ended a task that had more than this guaranteed memory."""
    return f"above its guaranteed {gib_text(least_mib)} when a neighbour needed its own"


def is_fault(facts: EndFacts) -> bool:
    """Return whether the log reports a CUDA fault. One task causes it, and it ends all tasks on the GPU."""
    return bool(log_messages.find_messages(facts.log_tail).fault)


def _is_suspect(facts: EndFacts, cap_ratio: float | None) -> bool:
    if facts.code not in SUSPECT_CODES and facts.signal not in SUSPECT_SIGNALS:
        return False
    if facts.sample_age_s is None or facts.sample_age_s > SUSPICION_S:
        return False
    room = facts.room_ratio
    return (room is not None and room < NO_ROOM) or (cap_ratio is not None and cap_ratio >= AT_CAP)


def may_be_host_memory(code: int | None, signal_number: int | None) -> bool:
    """Return whether a memory kill of the kernel may be the cause: after SIGKILL, or the exit code of a shell."""
    return signal_number == signal.SIGKILL or (code is not None and code != 0)


def has_signal(code: int | None, signal_number: int | None, wanted: int | None) -> bool:
    """Return whether signal `wanted` ended an attempt, or a child of its shell (128 + its number)."""
    return wanted is not None and (signal_number == wanted or code == 128 + wanted)


def how_ended(code: int | None, signal_number: int | None) -> str:
    """Return how a process ended: "exit code 1", "ended by SIGKILL". `code` None: a signal ended it."""
    if code is not None:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(signal_number or 0).name}"
    except ValueError:
        return f"ended by signal {signal_number}"
