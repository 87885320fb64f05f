"""Check that the MPS daemons of a node's tasks are alive.

A CUDA program with the variables of a dead daemon runs without MPS and without its cap, and prints nothing. So no task
starts in a worker if its daemon has ended. The plugin refuses tasks of a step for the same reason (plugins/mps.c).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ...share import Host, Slot, registry

AGAIN_S = 0.5
"""Seconds between two checks of a daemon. A check takes about 10 us: too much for each start of a short task."""


class Daemons:
    """Check the daemons of slots before a task starts, at most once every AGAIN_S seconds."""

    def __init__(self, slots: Mapping[str, Slot | None]) -> None:
        """`slots`: GPU (UUID) -> one of its slots; None: its tasks need no daemon."""
        self._slots = slots
        self._checked: dict[str, tuple[float, str | None]] = {}

    def clear(self) -> None:
        """Drop the cached results, because a task has failed and its daemon may have ended."""
        self._checked.clear()

    def why_gone(self, gpu: str) -> str | None:
        """Return why the daemon of a GPU is not alive; None: it is, or there is no daemon."""
        slot = self._slots[gpu]
        if slot is None or slot.mps_directory is None:
            return None
        checked, why = self._checked.get(slot.mps_directory, (-AGAIN_S, None))
        now = time.monotonic()
        if now - checked >= AGAIN_S:
            daemons = registry.get(slot.backend).health(Host(), folders=(slot.mps_directory,)).daemons
            why = next((one.why for one in daemons if not one.lives), None)
            self._checked[slot.mps_directory] = (now, why)
        return why
