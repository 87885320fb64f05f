"""Say how much memory a task reserves, from its start on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ..records import Estimate, Guard, Source

LEAST_MIB = 300
"""The least reservation and the least cap: a CUDA context alone takes that much. Ours, until it is measured."""
SAFETY = 1.02
SAFETY_MIB = 64
"""A reservation is never below its task's peak by this factor plus this much: samples are a second apart."""
UNKNOWN_GROWTH = 1.5
"""A task of unknown size reserves at least this many times its peak until its memory is flat."""
FLAT_RATIO = 0.01
FLAT_MIB = 64
"""Memory is flat when its peak rose by less than the larger of the two within `PackSettings.flat_after_s`."""
SHRINKING: frozenset[Source] = frozenset(
    {"unknown", "family", "probe", "line", "static", "learned", "other-gpu", "sibling"}
)
"""Sources whose reservation follows what was seen once memory is flat. A user's number does not, and neither does the
history of the same command, which knows of a late peak (validation, a checkpoint)."""
STEP_MIB = 64
"""Reservations that follow a peak are rounded up to this, so that a task that grows slowly does not change it at every
sample, and one that shrinks by less keeps it."""
ROOMIER_MIB = 5120
ROOMIER_RATIO = 0.20
"""After a task ran out of memory, its next GPU has more room than the last one had, by the lesser of the two.
Yousefzadeh 2025, 7.2, proposes 5 GB for such a retry."""


def at_start(estimate: Estimate | None, floor_mib: int, usable_mib: int, probe_ratio: float) -> int:
    """Return what a task reserves at its start, in MiB. `floor_mib`: it is known to need more than the estimate says.

    Unknown tasks reserve a part of the GPU: half of it comes within 1 to 2 points of the make-span of known sizes in
    simulations of the thesis' traces, the whole and a quarter do worse.
    """
    safe = None if estimate is None else estimate.safe_mib
    if safe is None:
        safe = int(usable_mib * probe_ratio)
    return max(safe, floor_mib, LEAST_MIB)


def roomier_mib(had_room_mib: int) -> int:
    """Return the room that the next GPU of a task has to have, in MiB, that ran out of memory with `had_room_mib`."""
    return had_room_mib + int(min(ROOMIER_MIB, ROOMIER_RATIO * had_room_mib))


def is_flat(peaks: Sequence[tuple[float, int]], age_s: float, now_s: float, flat_after_s: float) -> bool:
    """Return whether a task's memory has stopped rising.

    `peaks`: when the peak rose and to what (MiB), oldest first. Nothing seen is not flat.
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
    """Return what a running task has to reserve now, in MiB.

    `growth`: by which factor a peak that is flat at this age may still grow. `floor_mib`: it ran out of memory with
    less. A task that has a GPU to itself keeps all of it.
    """
    if is_alone:
        return reserved_mib
    if guard == "hard" or is_elastic:
        return max(reserved_mib, peak_mib)
    least = int(peak_mib * SAFETY) + SAFETY_MIB
    if source == "user":
        return max(reserved_mib, least) if peak_mib > reserved_mib else reserved_mib
    may_shrink = is_flat and source in SHRINKING
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
