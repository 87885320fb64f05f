"""Decide what follows from the end of an attempt: whether the task is retried, and where.

A task that ran out of memory goes to a GPU with more room, then to a GPU of its own, then it ends. Its known need rises
strictly, so the retries come to an end.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from ...core.text import gib_text
from ..records import BOOKING, EndKind, Growth, PackSettings, Tries
from . import guarantee
from .endings import MEMORY_KINDS
from .reservation import roomier_mib
from .room import UNKNOWN_MIB

MOVED_KINDS: frozenset[EndKind] = frozenset({"done", "failed", "signal", "host memory", "saved", "unfinished"})
"""Ends of an attempt that was told to save its state and end. All other ends show a problem of memory or of a GPU."""
FREE_TRIES = 3
"""Number of retries for each reason that is not the task's own."""
_FREE_COUNTERS = {
    "neighbour's memory": "neighbour_memory", "neighbour's fault": "neighbour_fault", "device": "device"
}  # fmt: skip
"""End with free retries -> field of `Tries`."""
BOOKED_MOST = 0.95
"""The part of the largest GPU that a task books at most if only a factor makes its known need larger."""
LARGER = 1.05
"""A GPU counts as larger if it gives so many times the memory. A few MiB of an MPS server make none larger."""


class AttemptMemory(Struct, frozen=True, kw_only=True):
    """The memory that an ended attempt had."""

    reserved_mib: int
    cap_mib: int | None
    """The cap of all its processes together; None: no cap."""
    peak_mib: int | None
    room_mib: int
    """Most memory that it could have had on its GPU: its cap, or its reservation and the room that was left."""
    is_alone: bool
    by_user: bool
    """Its reservation was the user's own number."""
    wanted_mib: int | None = None
    """Memory in use plus the failed allocation, from its log."""
    is_suspect: bool = False
    """It was the first task on its GPU that a CUDA fault ended, so it may be the cause."""
    least_mib: int | None = None
    """Memory that the driver guaranteed it; None: none."""
    most_mib: int | None = None
    """The most that the guaranteed memory may become."""


class AttemptEnd(Struct, frozen=True):
    """The end of an attempt."""

    kind: EndKind
    reason: str
    had: AttemptMemory
    tries: Tries
    """Before this attempt, as `floor_mib`."""
    floor_mib: int
    settings: PackSettings
    largest_mib: int
    """Memory that the largest GPU of the node gives to one task."""


class RetryDecision(Struct, frozen=True, kw_only=True):
    """The consequences of an attempt's end."""

    is_retried: bool
    why: str
    tries: Tries
    floor_mib: int = 0
    had_room_mib: int = 0
    wants_alone: bool = False
    is_dead_alone: bool = False
    """It ran out of memory with a GPU to itself, and ends."""


_GROWTH = Growth()


def floor(had: AttemptMemory, before_mib: int, growth: Growth = _GROWTH) -> int:
    """Return the known need of a task that ran out of memory, in MiB; always more than `before_mib`."""
    factor = growth.silent if had.wanted_mib is None or had.by_user else growth.sized
    found = [int(factor * had.reserved_mib), int(growth.known * before_mib), before_mib + 1]
    if had.wanted_mib is not None:
        found.append(math.ceil(growth.wanted * had.wanted_mib))
    if had.peak_mib is not None:
        found.append(had.peak_mib + growth.peak_mib)
    return max(found)


def _booking(needs_mib: int, end: AttemptEnd) -> int:
    """Return the known need, or nearly all of the largest GPU if only a factor makes it larger.

    A task that books so much gives back what it does not use; one with a GPU to itself keeps it. It does not book all:
    then a few MiB of another process, such as the MPS server, would keep it waiting for as long as that process runs.
    """
    had, most_mib = end.had, int(BOOKED_MOST * end.largest_mib)
    shown_mib = max(had.room_mib, had.wanted_mib or 0, had.peak_mib or 0) * end.settings.growth.known
    is_shown = had.is_alone or max(shown_mib, end.floor_mib + 1) > most_mib
    return needs_mib if is_shown else min(needs_mib, most_mib)


def recover(end: AttemptEnd) -> RetryDecision:
    """Return whether a task is tried again after the end of an attempt, with how much memory, and why."""
    if end.kind in MEMORY_KINDS:
        return _after_memory(end)
    if end.kind in _FREE_COUNTERS:
        return _after_others(end)
    if end.kind == guarantee.ABOVE:
        return _after_reclaim(end)
    if end.kind in ("failed", "signal", "host memory", "time limit", "not started"):
        return _after_failure(end)
    return RetryDecision(is_retried=False, why=end.reason, tries=end.tries, floor_mib=end.floor_mib)


def after_move(index: int, tries: Tries, floor_mib: int) -> RetryDecision:
    """Return what follows for a task that has ended to start on another GPU. `index`: of the GPU that it left."""
    why = f"moved away from GPU {index}; it runs again"
    return RetryDecision(is_retried=True, why=why, tries=replace(tries, moved=tries.moved + 1), floor_mib=floor_mib)


def after_turn(reason: str, tries: Tries, floor_mib: int, *, has_saved: bool) -> RetryDecision:
    """Return what follows for a task that has ended because its turn was over: no retry pays for it."""
    more = "" if has_saved else ", without having saved its state, so no turn of it ends again"
    why = f"its turn was over{more}; it runs again ({reason})"
    return RetryDecision(is_retried=True, why=why, tries=tries, floor_mib=floor_mib)


def _after_failure(end: AttemptEnd) -> RetryDecision:
    counted = replace(end.tries, failed=end.tries.failed + 1)
    is_retried = _is_paid(end, counted, counted.failed, end.settings.retries)
    return RetryDecision(is_retried=is_retried, why=end.reason, tries=counted, floor_mib=end.floor_mib)


def _is_paid(end: AttemptEnd, counted: Tries, used: int, limit: int) -> bool:
    """Return whether a further attempt is paid: by `limit` for this reason, or by --retries for all reasons."""
    if end.settings.pays == "retries":
        used = counted.failed + counted.own_memory + counted.neighbour_memory + counted.neighbour_fault + counted.device
        limit = end.settings.retries
    return used <= limit


def _after_memory(end: AttemptEnd) -> RetryDecision:
    had, tries, settings, largest_mib = end.had, end.tries, end.settings, end.largest_mib
    is_suspected = end.kind == "gpu memory suspected"
    if is_suspected and tries.suspected:
        return _after_failure(end)
    needs = _booking(floor(had, end.floor_mib, settings.growth), end)
    counted = replace(
        tries,
        own_memory=tries.own_memory + 1,
        suspected=tries.suspected + is_suspected,
        was_alone=tries.was_alone or had.is_alone,
    )
    if had.is_alone or (settings.policy == "slots" and had.room_mib >= largest_mib):
        is_sized = had.room_mib < UNKNOWN_MIB
        said = "out of GPU memory with a GPU to itself" + (f" ({gib_text(had.room_mib)})" if is_sized else "")
        # Only one larger GPU is tried: `was_alone` shows that this was done.
        has_larger = not tries.was_alone and UNKNOWN_MIB > largest_mib > LARGER * had.room_mib
        is_retried = has_larger and _is_paid(end, counted, 1, settings.oom_retries)
        if is_retried:
            why = f"{said}; again on a larger GPU ({gib_text(largest_mib)})"
        elif is_sized:
            why = f"{said}; the largest GPU of this node gives {gib_text(largest_mib)}"
        else:
            why = said
        return RetryDecision(
            is_retried=is_retried,
            why=why,
            tries=counted,
            floor_mib=needs,
            had_room_mib=had.room_mib,
            wants_alone=True,
            is_dead_alone=not is_retried,
        )
    said = f"out of GPU memory (needed > {gib_text(max(had.peak_mib or 0, had.cap_mib or had.reserved_mib))}"
    said += f", had {had.reserved_mib / 1024:.1f} reserved)"
    if had.by_user:
        said += f"; --gpu-mem={had.reserved_mib}M is too small"
    if not _is_paid(end, counted, counted.own_memory, settings.oom_retries):
        limit = settings.retries if settings.pays == "retries" else settings.oom_retries
        return RetryDecision(is_retried=False, why=f"{said}; --{settings.pays}={limit}", tries=counted, floor_mib=needs)
    roomier = max(needs, roomier_mib(had.room_mib))
    is_last = counted.own_memory >= settings.oom_retries
    wants_alone = is_last or settings.recovery == "exclusive" or settings.policy not in BOOKING or roomier > largest_mib
    where = "with a GPU to itself" if wants_alone else f"on a GPU with {gib_text(roomier)}"
    return RetryDecision(
        is_retried=True,
        why=f"{said}; again {where}",
        tries=counted,
        floor_mib=needs,
        had_room_mib=had.room_mib,
        wants_alone=wants_alone,
    )


def _after_reclaim(end: AttemptEnd) -> RetryDecision:
    """Return what follows if the attempt ended above its guaranteed memory: a free retry with more of it.

    The guaranteed part rises until it is the most. Then the driver has no reason to end the task, so this ends.
    """
    had, counted = end.had, replace(end.tries, reclaimed=end.tries.reclaimed + 1)
    shown_mib = max(had.peak_mib or 0, had.wanted_mib or 0)
    least_mib = guarantee.next_mib(shown_mib, had.least_mib or had.reserved_mib, had.most_mib)
    why = f"{end.reason}; again with {gib_text(least_mib)} guaranteed"
    return RetryDecision(is_retried=True, why=why, tries=counted, floor_mib=max(least_mib, end.floor_mib))


def _after_others(end: AttemptEnd) -> RetryDecision:
    """Return what follows if a neighbour or the device ended the attempt: a few free retries."""
    name = _FREE_COUNTERS[end.kind]
    count = getattr(end.tries, name)
    counted = replace(end.tries, **{name: count + 1})
    if end.settings.pays == "retries":
        is_retried = _is_paid(end, counted, 0, 0)
        return RetryDecision(is_retried=is_retried, why=end.reason, tries=counted, floor_mib=end.floor_mib)
    if count >= FREE_TRIES:
        is_memory = end.kind == "neighbour's memory"
        return _after_memory(replace(end, kind="gpu memory")) if is_memory else _after_failure(end)
    # Alone, a fault is the task's own. A task that faults ended twice may be the cause.
    wants_alone = end.kind == "neighbour's fault" and (end.had.is_suspect or count > 0)
    why = f"{end.reason}; runs again" + (" with a GPU to itself" if wants_alone else "")
    return RetryDecision(is_retried=True, why=why, tries=counted, floor_mib=end.floor_mib, wants_alone=wants_alone)
