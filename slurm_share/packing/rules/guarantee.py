"""The guaranteed part of a task's GPU memory: the first number of `--gpu-mem=8G:20G`, which is booked.

The second number is the most, the task's cap. What is learned of the task's size raises its booking, up to the most.
Where the driver limits the memory of each task (release 615), it holds the guaranteed part: a task within it never ends
for a neighbour, and one above it may be ended when a neighbour needs its own. Elsewhere the numbers are a booking and
a cap, as with the soft guard of tasks whose size was learned.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from ...core.text import gib_from_to_text, gib_text
from ..attempt import Attempt
from ..records import EndKind, Estimate, GpuFacts, TaskAsk, Tries
from .endings import NEAR_CAP
from .reservation import SAFETY, SAFETY_MIB, STEP_MIB

ABOVE: EndKind = "above guarantee"
RISE = 1.25
"""The guaranteed part rises at least by this factor after the driver ended a task above it, so that the number of such
attempts is small: 5 from 8 to 20 GiB."""


def most_of(ask: TaskAsk) -> int | None:
    """Return the most memory of a task that has a guaranteed part, in MiB; None: it has none."""
    return None if ask.gpu_mem_least_mib is None else ask.gpu_mem_mib


def within(found: Estimate, ask: TaskAsk) -> Estimate:
    """Return the estimate of a task between its guaranteed memory and its most. `found`: without the user's numbers.

    Without an estimate it is the guaranteed part, or what a run of its command had that was ended.
    """
    least_mib, most_mib = ask.gpu_mem_least_mib or 0, ask.gpu_mem_mib or 0
    text = f"--gpu-mem of {gib_from_to_text(least_mib, most_mib)}"
    if found.safe_mib is None or found.point_mib is None:
        seen_mib = int(found.floor_mib * SAFETY) + SAFETY_MIB if found.floor_mib else 0
        size_mib = _between(seen_mib, least_mib, most_mib)
        return replace(found, point_mib=size_mib, safe_mib=size_mib, source="user", text=text)
    return replace(
        found,
        point_mib=_between(found.point_mib, least_mib, most_mib),
        safe_mib=_between(found.safe_mib, least_mib, most_mib),
        text=f"{found.text}, within {text}",
    )


def due(due_mib: int, run: Attempt) -> int:
    """Return the reservation that a running task needs now. `due_mib`: without the user's numbers.

    A task's guaranteed part stays booked, and not more than its most or its memory.
    """
    least_mib, most_mib = run.ask.gpu_mem_least_mib, most_of(run.ask)
    if least_mib is None or most_mib is None or run.is_alone:
        return due_mib
    return _between(due_mib, min(least_mib, run.reserved_mib), max(most_mib, run.reserved_mib, run.peak_mib or 0))


def held_mib(run: Attempt, gpu: GpuFacts) -> int | None:
    """Return the memory that the driver guarantees a task from its start on: what is booked for it; None: none."""
    is_held = gpu.has_limits and run.ask.gpu_mem_least_mib is not None and run.cap_mib is not None
    return run.reserved_mib if is_held else None


def above_mib(run: Attempt) -> int | None:
    """Return the guaranteed memory of a task that may have had more; None: the driver has no reason to end it."""
    if run.least_mib is None or (run.peak_mib is not None and run.peak_mib <= run.least_mib):
        return None
    return run.least_mib


def is_below_most(run: Attempt, wanted_mib: int | None, cap_mib: int | None) -> bool:
    """Return whether a task ran out of memory above its guaranteed part and below its most.

    Then its GPU had no more free memory, of which only the guaranteed part is a promise. `wanted_mib`: its memory at
    the last sample plus the failed allocation; None: not known. `cap_mib`: its most, for all its processes.
    """
    if run.least_mib is None or cap_mib is None or run.least_mib >= cap_mib:
        return False
    if wanted_mib is None:
        return (run.memory_mib or 0) < NEAR_CAP * cap_mib
    return wanted_mib <= cap_mib and max(wanted_mib, run.peak_mib or 0) > run.least_mib


def next_mib(shown_mib: int, least_mib: int, most_mib: int | None) -> int:
    """Return the guaranteed memory of a task after it ended above `least_mib`, in MiB.

    It is the most memory that the attempt has shown to need, and at least RISE times as much as before, but not more
    than the task's most. `shown_mib`: 0: it has shown none.
    """
    seen_mib = int(shown_mib * SAFETY) + SAFETY_MIB if shown_mib else 0
    wanted_mib = -(-max(seen_mib, math.ceil(RISE * least_mib)) // STEP_MIB) * STEP_MIB
    return wanted_mib if most_mib is None else min(wanted_mib, most_mib)


def start_text(ask: TaskAsk, tries: Tries) -> str:
    """Return what a start's reason says of a task with a guaranteed part: ", at most 20.0 GiB"; empty: it has none."""
    most_mib = most_of(ask)
    if most_mib is None:
        return ""
    more = ", more than before because the driver ended it above that" if tries.reclaimed else ""
    return f"{more}, at most {gib_text(most_mib)}"


def _between(mib: int, least_mib: int, most_mib: int) -> int:
    return min(max(mib, least_mib), most_mib)
