"""Say what follows from the end of an attempt: whether it is tried again, and where.

A task that ran out of memory goes to a GPU with more room than it had, then to a GPU of its own, then it ends. What it
is known to need rises strictly, so that this comes to an end.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ...core.text import gib_text
from ..records import BOOKING, EndKind, PackSettings, Tries
from .endings import MEMORY_KINDS
from .reservation import roomier_mib
from .room import UNKNOWN_MIB

MOVED_KINDS: frozenset[EndKind] = frozenset({"done", "failed", "signal", "host memory", "unfinished"})
"""So may an attempt end that was told to save its state and end; other ends say something about memory or a GPU."""
FREE_TRIES = 3
"""How often a task is tried again for each reason that is not its own."""
FAMILY_DEAD = 3
"""So many tasks of one family that ran out of memory with a GPU to themselves end the rest of the family untried."""
FLOOR_RESERVED = 1.5
FLOOR_SILENT = 2.1
FLOOR_PEAK_MIB = 1024
FLOOR_RISE = 1.25
"""What a task is known to need after it ran out of memory: the largest of what its log says, its reservation by the
first, its peak and FLOOR_PEAK_MIB, what was known before by FLOOR_RISE. Where its log does not say how much it asked
for, its reservation by the second: a size is most often too small by half, and then one more try is enough."""


class Had(Struct, frozen=True, kw_only=True):
    """What an attempt had, that has ended."""

    reserved_mib: int
    cap_mib: int | None
    """The limit of all its processes together; None: none."""
    peak_mib: int | None
    room_mib: int
    """What it could have had on its GPU: its cap, or its reservation and what was not booked."""
    is_alone: bool
    by_user: bool
    """Its reservation was the user's own number."""
    wanted_mib: int | None = None
    """What it had and asked for in vain, as its log says."""
    is_suspect: bool = False
    """A CUDA fault ended it first of all tasks on its GPU: the fault may be its own."""


class Next(Struct, frozen=True, kw_only=True):
    """What follows for a task."""

    is_retried: bool
    why: str
    tries: Tries
    floor_mib: int = 0
    had_room_mib: int = 0
    wants_alone: bool = False
    is_dead_alone: bool = False
    """It ran out of memory with a GPU to itself, and ends."""


def floor(had: Had, before_mib: int) -> int:
    """Return what a task is known to need after it ran out of memory, in MiB; always more than before."""
    factor = FLOOR_SILENT if had.wanted_mib is None else FLOOR_RESERVED
    found = [int(factor * had.reserved_mib), int(FLOOR_RISE * before_mib), before_mib + 1]
    if had.wanted_mib is not None:
        found.append(had.wanted_mib)
    if had.peak_mib is not None:
        found.append(had.peak_mib + FLOOR_PEAK_MIB)
    return max(found)


def after(
    kind: EndKind,
    reason: str,
    had: Had,
    tries: Tries,
    floor_mib: int,
    settings: PackSettings,
    largest_mib: int,
) -> Next:
    """Return what follows from the end of an attempt.

    `tries`, `floor_mib`: before this attempt. `largest_mib`: what the largest GPU of the node gives to a task alone.
    """
    if kind in MEMORY_KINDS:
        return _after_memory(kind, reason, had, tries, floor_mib, settings, largest_mib)
    if kind in ("neighbour's memory", "neighbour's fault", "device"):
        return _after_others(kind, reason, had, tries, floor_mib, settings, largest_mib)
    if kind in ("failed", "signal", "host memory", "not started"):
        counted = replace(tries, failed=tries.failed + 1)
        is_retried = counted.failed <= settings.retries
        return Next(is_retried=is_retried, why=reason, tries=counted, floor_mib=floor_mib)
    return Next(is_retried=False, why=reason, tries=tries, floor_mib=floor_mib)


def after_move(index: int, tries: Tries, floor_mib: int) -> Next:
    """Return what follows for a task that has ended to start on another GPU. `index`: of the one that it left."""
    why = f"moved away from GPU {index}; it runs again"
    return Next(is_retried=True, why=why, tries=replace(tries, moved=tries.moved + 1), floor_mib=floor_mib)


def _after_memory(
    kind: EndKind,
    reason: str,
    had: Had,
    tries: Tries,
    floor_mib: int,
    settings: PackSettings,
    largest_mib: int,
) -> Next:
    is_suspected = kind == "gpu memory suspected"
    if is_suspected and tries.suspected:
        return after("failed", reason, had, tries, floor_mib, settings, largest_mib)
    needs = floor(had, floor_mib)
    counted = replace(
        tries,
        own_memory=tries.own_memory + 1,
        suspected=tries.suspected + is_suspected,
        was_alone=tries.was_alone or had.is_alone,
    )
    if had.is_alone:
        is_sized = had.room_mib < UNKNOWN_MIB
        said = "out of GPU memory with a GPU to itself" + (f" ({gib_text(had.room_mib)})" if is_sized else "")
        # A second GPU is tried only where it is larger, and only once: `was_alone` says that it has been.
        is_retried = not tries.was_alone and UNKNOWN_MIB > largest_mib > had.room_mib and settings.oom_retries > 0
        if is_retried:
            why = f"{said}; again on a larger GPU ({gib_text(largest_mib)})"
        elif is_sized:
            why = f"{said}; the largest GPU of this node gives {gib_text(largest_mib)}"
        else:
            why = said
        return Next(
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
    if counted.own_memory > settings.oom_retries:
        return Next(
            is_retried=False, why=f"{said}; --oom-retries={settings.oom_retries}", tries=counted, floor_mib=needs
        )
    roomier = max(needs, roomier_mib(had.room_mib))
    is_last = counted.own_memory >= settings.oom_retries
    wants_alone = is_last or settings.recovery == "exclusive" or settings.policy not in BOOKING or roomier > largest_mib
    where = "with a GPU to itself" if wants_alone else f"on a GPU with {gib_text(roomier)}"
    return Next(
        is_retried=True,
        why=f"{said}; again {where}",
        tries=counted,
        floor_mib=needs,
        had_room_mib=had.room_mib,
        wants_alone=wants_alone,
    )


def _after_others(
    kind: EndKind,
    reason: str,
    had: Had,
    tries: Tries,
    floor_mib: int,
    settings: PackSettings,
    largest_mib: int,
) -> Next:
    """Return what follows where a neighbour or the device ended it: tried again uncounted, a few times."""
    wants_alone = False
    if kind == "neighbour's memory":
        if tries.neighbour_memory >= FREE_TRIES:
            return _after_memory("gpu memory", reason, had, tries, floor_mib, settings, largest_mib)
        counted = replace(tries, neighbour_memory=tries.neighbour_memory + 1)
    elif kind == "neighbour's fault":
        if tries.neighbour_fault >= FREE_TRIES:
            return after("failed", reason, had, tries, floor_mib, settings, largest_mib)
        counted = replace(tries, neighbour_fault=tries.neighbour_fault + 1)
        # Alone, a fault is its own. Whoever is ended twice may sit beside the cause, or be it.
        wants_alone = had.is_suspect or tries.neighbour_fault > 0
    else:
        if tries.device >= FREE_TRIES:
            return after("failed", reason, had, tries, floor_mib, settings, largest_mib)
        counted = replace(tries, device=tries.device + 1)
    again = "runs again with a GPU to itself" if wants_alone else "runs again"
    return Next(is_retried=True, why=f"{reason}; {again}", tries=counted, floor_mib=floor_mib, wants_alone=wants_alone)
