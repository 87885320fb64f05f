"""Choose the cap on GPU memory with which a task starts.

MPS applies the cap to each process, and cannot change it while the process runs.
"""

from __future__ import annotations

from ..records import Estimate, Guard
from .reservation import LEAST_MIB

SOFT_RATIO = 1.25
SOFT_MIB = 1024
"""With the soft guard, the cap exceeds the reservation by the larger of the two, if the GPU has room."""


def at_start(
    estimate: Estimate | None, reserve_mib: int, room_mib: int, *, guard: Guard, is_mps: bool, is_alone: bool
) -> int | None:
    """Return the cap for each process of a task, in MiB; None: no cap.

    `room_mib`: what can be booked on its GPU before its start. A task that has the GPU to itself has no cap, and a task
    without MPS has none. The user's own number is the exact cap, and so is the reservation of an elastic task.

    A task of unknown size may take all that is free, because its reservation is a guess. With that guess as the cap,
    each first task that needs more than half of a GPU would run out of memory on an empty one: three times as many
    failed attempts in simulations of the thesis' traces.
    """
    if not is_mps or is_alone:
        return None
    if guard == "hard" or (estimate is not None and (estimate.source == "user" or estimate.is_elastic)):
        cap = reserve_mib
    elif estimate is None or estimate.source == "unknown":
        cap = max(room_mib, reserve_mib)
    else:
        cap = max(min(room_mib, max(int(SOFT_RATIO * reserve_mib), reserve_mib + SOFT_MIB)), reserve_mib)
    processes = 1 if estimate is None else max(estimate.processes, 1)
    return max(cap // processes, LEAST_MIB)
