"""Whether the daemons are there whose clients a node's tasks are to be.

A CUDA program with the variables of a daemon that is dead runs on without MPS, without its cap, and says nothing. So no
task starts in a seat whose daemon is gone; the plugin refuses tasks of a step for the same reason (plugins/mps.c).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...share.backends import registry
from ...share.backends.base import Host
from ...share.records import Slot
from ..records import Seat

AGAIN_S = 0.5
"""A look costs some ten microseconds, which a run of short tasks is not to pay for each."""


class Daemons:
    """The daemons of the seats, looked at when a task is about to start and not oftener than every AGAIN_S."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._slots = [seat.gpu_slot for seat in seats]
        self._looked: dict[str, tuple[float, str | None]] = {}

    def why_gone(self, seat: int) -> str | None:
        """What is wrong with the daemon of that seat; None: nothing, or it has none."""
        slot = self._slots[seat]
        if slot is None or slot.mps_directory is None:
            return None
        looked, why = self._looked.get(slot.mps_directory, (-AGAIN_S, None))
        now = time.monotonic()
        if now - looked >= AGAIN_S:
            why = _look(slot, slot.mps_directory)
            self._looked[slot.mps_directory] = (now, why)
        return why


def _look(slot: Slot, folder: str) -> str | None:
    daemons = registry.get(slot.backend).health(Host(), folders=(folder,)).daemons
    return next((one.why for one in daemons if not one.lives), None)
