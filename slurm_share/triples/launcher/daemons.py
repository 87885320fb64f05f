"""Whether the MPS daemons are there whose clients a node's tasks are to be.

A CUDA program with the variables of a daemon that is dead runs on without MPS, without its cap, and says nothing. So no
task starts in a seat whose daemon is gone; the plugin refuses tasks of a step for the same reason (plugins/mps.c).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from ...core.errors import MpsError
from ...core.records import Owner
from ...mps import processes
from ...mps.records import MpsPlace
from ..records import Seat

AGAIN_S = 0.5
"""A look costs some ten microseconds, which a run of short tasks is not to pay for each."""


class Daemons:
    """The daemons of the seats, looked at when a task is about to start and not oftener than every AGAIN_S."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._pipes = [None if seat.gpu_slot is None else seat.gpu_slot.mps_directory for seat in seats]
        self._looked: dict[str, tuple[float, str | None]] = {}

    def why_gone(self, seat: int) -> str | None:
        """What is wrong with the daemon of that seat; None: nothing, or it has none."""
        pipe = self._pipes[seat]
        if pipe is None:
            return None
        looked, why = self._looked.get(pipe, (-AGAIN_S, None))
        now = time.monotonic()
        if now - looked >= AGAIN_S:
            why = _look(pipe)
            self._looked[pipe] = (now, why)
        return why


def _look(pipe: str) -> str | None:
    place = MpsPlace("", pipe, "", Owner(os.getuid(), os.getgid()))
    try:
        holder = processes.lock_holder(place)
    except MpsError as error:
        return str(error)
    if holder is None:
        return f"the MPS daemon in {pipe} is gone"
    if holder.name is not None and not processes.is_daemon(holder, place):
        return f"MPS in {pipe}: {processes.describe_foreign(holder)}"
    return None  # one that the kernel does not show (hidepid) is believed
