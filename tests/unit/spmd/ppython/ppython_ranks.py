"""Run a program with pPython's names on ranks that are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from in_threads import run_ranks

from slurm_share.spmd.comm import Comm
from slurm_share.spmd.ppython.world import choose


def on_ranks(size: int, program: Callable[[int], Any]) -> list[Any]:
    """Return what `program(rank)` returned on each rank."""

    def one(transport: Any) -> Any:
        choose(Comm(transport))
        return program(transport.rank)

    return run_ranks(size, one)
