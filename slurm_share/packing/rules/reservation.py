"""Compute the memory that a task reserves, from its start on, and the cap with which it starts.

MPS applies the cap to each process, and cannot change it while the process runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ..records import Estimate, Guard, Source

LEAST_MIB = 300
"""Least reservation and least cap: a CUDA context alone takes this much. Assumed, not measured."""
SAFETY = 1.02
SAFETY_MIB = 64
"""A reservation is at least the task's peak times SAFETY plus SAFETY_MIB, because samples are a second apart."""
UNKNOWN_GROWTH = 1.5
"""A task of unknown size reserves at least this many times its peak until its memory is flat."""
FLAT_RATIO = 0.01
FLAT_MIB = 64
"""Memory is flat when its peak rose by less than the larger of the two within `PackSettings.flat_after_s`."""
SHRINKING: frozenset[Source] = frozenset({"unknown", "family", "probe", "line", "static", "other-gpu", "sibling"})
"""Sources whose reservation may shrink to the seen memory once that is flat. A user's number stays, and so does the
history of the same command, which includes late peaks (validation, a checkpoint)."""
STEP_MIB = 64
"""Reservations that follow a peak are rounded up to a multiple of this, so that slow growth does not change them at
every sample. They do not shrink by less."""
ROOMIER_MIB = 5120
ROOMIER_RATIO = 0.20
"""After a task ran out of memory, its next GPU needs more room than the last one had, by the lesser of the two.
Yousefzadeh 2025, 7.2, proposes 5 GB for such a retry."""
SOFT_RATIO = 1.25
SOFT_MIB = 1024
"""With the soft guard, the cap exceeds the reservation by the larger of the two, if the GPU has room."""


def at_start(estimate: Estimate | None, floor_mib: int, usable_mib: int, probe_ratio: float) -> int:
    """Return the reservation of a task at its start, in MiB. `floor_mib`: its least need, from earlier attempts.

    A task of unknown size reserves a part of the GPU, and at least what a run of its command had that was ended. In
    simulations of the thesis' traces, half of it comes within 1 to 2 points of the make-span with known sizes; the
    whole GPU and a quarter do worse.
    """
    safe = None if estimate is None else estimate.safe_mib
    if safe is None:
        seen_mib = 0 if estimate is None else estimate.floor_mib
        safe = max(int(usable_mib * probe_ratio), min(int(seen_mib * SAFETY) + SAFETY_MIB, usable_mib))
    return max(safe, floor_mib, LEAST_MIB)


def cap_at_start(
    estimate: Estimate | None,
    reserve_mib: int,
    room_mib: int,
    *,
    guard: Guard,
    is_mps: bool,
    is_alone: bool,
    most_mib: int | None = None,
) -> int | None:
    """Return the cap for each process of a task, in MiB; None: no cap.

    `room_mib`: what can be booked on its GPU before its start. A task that has the GPU to itself has no cap, and a task
    without MPS has none. The user's own number is the exact cap, and so is the reservation of an elastic task.

    A task of unknown size may take all that is free, because its reservation is a guess. With that guess as the cap,
    each first task that needs more than half of a GPU would run out of memory on an empty one: three times as many
    failed attempts in simulations of the thesis' traces.

    `most_mib`: the most that the user allows a task whose reservation is its guaranteed part; None: it has none.
    """
    if not is_mps or is_alone:
        return None
    if most_mib is not None:
        cap = max(most_mib, reserve_mib)
    elif guard == "hard" or (estimate is not None and (estimate.source == "user" or estimate.is_elastic)):
        cap = reserve_mib
    elif estimate is None or estimate.source == "unknown":
        cap = max(room_mib, reserve_mib)
    else:
        cap = max(min(room_mib, max(int(SOFT_RATIO * reserve_mib), reserve_mib + SOFT_MIB)), reserve_mib)
    processes = 1 if estimate is None else max(estimate.processes, 1)
    return max(cap // processes, LEAST_MIB)


def roomier_mib(had_room_mib: int) -> int:
    """Return the room that the next GPU needs after a task ran out of memory with `had_room_mib`, in MiB."""
    return had_room_mib + int(min(ROOMIER_MIB, ROOMIER_RATIO * had_room_mib))


def is_flat(peaks: Sequence[tuple[float, int]], age_s: float, now_s: float, flat_after_s: float) -> bool:
    """Return whether the memory of a task has stopped rising; False while no memory was seen.

    `peaks`: (time, MiB) of each new peak, oldest first.
    """
    if age_s < flat_after_s or not peaks:
        return False
    before = bisect_right(peaks, now_s - flat_after_s, key=lambda seen: seen[0]) - 1
    if before < 0:
        return False
    peak = peaks[-1][1]
    return peak - peaks[before][1] < max(FLAT_RATIO * peak, FLAT_MIB)


def due(
    *,
    source: Source,
    reserved_mib: int,
    peak_mib: int,
    is_flat: bool,
    is_elastic: bool,
    is_alone: bool,
    growth: float,
    guard: Guard,
    floor_mib: int = 0,
) -> int:
    """Return the reservation that a running task needs now, in MiB.

    `growth`: factor by which a peak that is flat at this age may still grow. `floor_mib`: memory that was too small in
    earlier attempts. A task that has a GPU to itself keeps all of it. A user's number stays, unless it was too small.
    """
    if is_alone:
        return reserved_mib
    if guard == "hard" or is_elastic:
        return max(reserved_mib, peak_mib)
    least = int(peak_mib * SAFETY) + SAFETY_MIB
    if source == "user" and not floor_mib:
        return max(reserved_mib, least) if peak_mib > reserved_mib else reserved_mib
    may_shrink = is_flat and (source in SHRINKING or source == "user")
    if may_shrink:
        wanted = max(int(peak_mib * growth), least)
    elif source == "unknown":
        wanted = max(int(peak_mib * UNKNOWN_GROWTH), least)
    else:
        wanted = least
    wanted = -(-max(wanted, LEAST_MIB) // STEP_MIB) * STEP_MIB
    if wanted > reserved_mib:
        return wanted
    wanted = max(wanted, min(floor_mib, reserved_mib))
    return wanted if may_shrink and reserved_mib - wanted >= STEP_MIB else reserved_mib
