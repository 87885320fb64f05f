"""Run a program for pPython, and keep what rank 0 gathers: python -m slurm_share.spmd -n N ppython_recorder.py PROG

Seeds NumPy alike on every rank. Writes recorded.npz, the arrays that `agg` returned to the program on rank 0.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import numpy as np

from slurm_share.spmd.ppython import functions
from slurm_share.spmd.ppython.world import world

recorded: list[Any] = []
gathered = functions.agg


def agg(d: Any, leader: int | None = None) -> Any:
    """Return the result of pPython's `agg`, and record it."""
    whole = gathered(d, leader)
    recorded.append(np.array(whole))
    return whole


functions.agg = agg
np.random.seed(1)
sys.argv = sys.argv[1:]
sys.path.insert(0, ".")
runpy.run_path(sys.argv[0], run_name="__main__")
if world().comm.rank == 0:
    np.savez("recorded.npz", *recorded)
