"""Hold the newest snapshot, and the answers made from it, each made once per sample."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from .. import snapshot as snapshots
from ..rules import visible
from ..snapshot import Snapshot
from .callers import Caller

NO_DETAILS = "left out, as requested"


class NewestSnapshot:
    """The newest snapshot and its answers. Used only in the thread of the event loop."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._made: dict[object, bytes] = {}
        self._since = time.monotonic()

    def put(self, snapshot: Snapshot) -> None:
        """Set the newest snapshot and drop the answers made from the last one."""
        self._snapshot = msgspec.structs.replace(snapshot, source="agent")
        self._made = {}
        self._since = time.monotonic()

    @property
    def node(self) -> str:
        """Return the node's name; empty before the first snapshot."""
        return "" if self._snapshot is None else self._snapshot.node

    @property
    def age_s(self) -> float:
        """Return the seconds since the last snapshot arrived, or since the start if there is none."""
        return time.monotonic() - self._since

    def add_problem(self, sentence: str) -> None:
        """Add a problem to the current snapshot until the next one comes."""
        if self._snapshot is not None and sentence not in self._snapshot.problems:
            problems = (*self._snapshot.problems, sentence)
            self._snapshot, self._made = msgspec.structs.replace(self._snapshot, problems=problems), {}

    def of_user(self, caller: Caller) -> bytes | None:
        """Return the JSON of the caller's own part; None before the first sample."""
        return self.derived(
            caller.uid, lambda snapshot: snapshots.render(visible.for_user(snapshot, caller.uid, caller.user))
        )

    def of_all_users(self) -> bytes | None:
        """Return the JSON of the whole snapshot; None before the first sample."""
        return self.derived("all", snapshots.render)

    def of_node(self) -> bytes | None:
        """Return the JSON of the node with the sums over its GPUs, a fiftieth of the whole."""
        return self.derived("node", lambda snapshot: snapshots.render(without_details(snapshot)))

    def derived(self, key: object, make: Callable[[Snapshot], bytes]) -> bytes | None:
        """Return `make(snapshot)`, called once per snapshot and key; None before the first sample."""
        if self._snapshot is None:
            return None
        if key not in self._made:
            self._made[key] = make(self._snapshot)
        return self._made[key]


def without_details(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with sums over its GPUs, and without GPUs, processes, jobs and users."""
    unknown = {**snapshot.unknown, **dict.fromkeys(("gpus", "processes", "jobs", "users"), NO_DETAILS)}
    return msgspec.structs.replace(
        snapshot, gpus=(), processes=(), jobs=(), users=(), gpu_sums=snapshot.sums, unknown=unknown
    )
