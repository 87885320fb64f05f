"""State that pPython keeps in module variables: kept messages, and the dictionary `GPC.comm`."""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ..comm import Comm
from ..envelope import Tag


@dataclass(eq=False)
class World:
    """State of pPython's names on one rank."""

    comm: Comm
    saved: dict[tuple[int, Tag], Any] = field(default_factory=dict)
    """The last message of each source and tag, while messages are kept."""
    described: dict[str, Any] | None = None

    def describe(self) -> dict[str, Any]:
        """Return the dictionary `GPC.comm`, one per process, which programs may change."""
        if self.described is None:
            self.described = _describe(self.comm)
        return self.described


_CHOSEN: ContextVar[World | None] = ContextVar("slurm_share_ppython_world", default=None)
_of_process: World | None = None


def world() -> World:
    """Return this thread's world, or that of the process if `choose` was not called."""
    global _of_process
    chosen = _CHOSEN.get()
    if chosen is not None:
        return chosen
    if _of_process is None:
        from .. import comm

        _of_process = World(comm.COMM_WORLD)
    return _of_process


def choose(comm: Comm) -> World:
    """Make pPython's names use `comm` in this thread, and return its world."""
    made = World(comm)
    _CHOSEN.set(made)
    return made


def _describe(comm: Comm) -> dict[str, Any]:
    nodes = comm.nodes
    return {
        "rank": comm.rank,
        "size": comm.size,
        "save_message_flag": 0,
        "host_rank": 0,
        "host_name": nodes[0],
        "group": list(range(comm.size)),
        "machine_id": [number for number, place in enumerate(comm.transport.nodes) for _ in place.ranks],
        "machine_db": {
            "n_machine": len(nodes),
            "machine": dict(enumerate(nodes)),
            "type": dict.fromkeys(range(len(nodes)), "unix"),
            "dir": dict.fromkeys(range(len(nodes)), "."),
        },
        "tmpdir": dict.fromkeys(range(len(nodes)), os.environ.get("TMPDIR") or "/tmp"),
        "grid_config": {
            "islocal": int(len(nodes) == 1),
            "local_fs": 0,
            "mixed_fs": 0,
            "grid_job": False,
            "interactive": 0,
            "EPPAC": False,
            "IMPLICIT_EPPAC": False,
            "LAUNCH_TIMING": False,
            "PPYTHON_MANYCORE": "",
            "manycore_implicit": 0,
        },
    }
