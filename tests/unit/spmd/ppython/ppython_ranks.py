"""Run programs with pPython's names: on ranks that are threads, or in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from in_threads import run_ranks

from slurm_share.spmd.comm import Comm
from slurm_share.spmd.ppython.world import choose

ROOT = Path(__file__).parents[4]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process outside of any run, which finds our package."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLSUB_", "PYTHON"))}
    return kept | {"PYTHONPATH": str(ROOT)} | more


def run_program(folder: Path, name: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a folder as a single rank."""
    command = [sys.executable, "-m", "slurm_share.spmd", name]
    return subprocess.run(command, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=120)


def on_ranks(size: int, program: Callable[[int], Any]) -> list[Any]:
    """Return what `program(rank)` returned on each rank."""

    def one(transport: Any) -> Any:
        choose(Comm(transport))
        return program(transport.rank)

    return run_ranks(size, one)
