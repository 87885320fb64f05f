"""Plugin of pytest that runs tests' programs on real ranks: `mpiexec -n 5 python -m pytest -p under_mpi TESTS`.

Every process runs every test. `in_threads.run_ranks` becomes a call of all processes: as many as the test has ranks run
its program over mpi4py, and all get the results.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import hypothesis
import in_threads
import pytest
from mpi4py import MPI

from slurm_share.spmd.mpi4py_transport import MpiTransport
from slurm_share.spmd.transport import NodePlace

if MPI.COMM_WORLD.Get_rank() > 0:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - all print the same


def run_ranks(size: int, program: Callable[[Any], Any], *, per_node: int | None = None, windows: bool = True) -> Any:
    """Replace `in_threads.run_ranks`; there are no windows."""
    world = MPI.COMM_WORLD
    if size > world.Get_size():
        if hypothesis.currently_in_test_context():
            hypothesis.assume(False)
        pytest.skip(f"{world.Get_size()} ranks were started")
    takes_part = world.Get_rank() < size
    part = world.Split(0 if takes_part else MPI.UNDEFINED)
    outcome: Any = None
    if takes_part:
        transport = MpiTransport(MPI, part)
        count = per_node or size
        firsts = range(0, size, count)
        transport.nodes = tuple(NodePlace(f"n{first}", first, min(count, size - first)) for first in firsts)
        try:
            outcome = program(transport)
        except BaseException as error:  # noqa: BLE001 - also of pytest's own
            if size > 1:  # the others may wait for this rank for ever
                print(f"rank {transport.rank}: {error!r}", file=sys.__stderr__, flush=True)
                world.Abort(1)
            outcome = error
        transport.close()
    outcomes = world.allgather(outcome)[:size]
    if isinstance(outcomes[0], BaseException):
        raise outcomes[0]
    return outcomes


in_threads.run_ranks = run_ranks
