"""Collective calls that fail on one rank: every rank raises an error with the rank and its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_processes import run_command

PROGRAM = """
import sys, threading
from slurm_share.spmd import COMM_WORLD as comm

bad = threading.Lock()
first, last = comm.rank == 0, comm.rank == comm.size - 1


def divide(one, other):
    return one + other if comm.rank else one / 0


CALLS = {
    "bcast": lambda: comm.bcast(bad if first else None),
    "scatter": lambda: comm.scatter([bad] * comm.size if first else None),
    "too few": lambda: comm.scatter([1] if first else None),
    "allgather": lambda: comm.allgather(bad if last else 1),
    "alltoall": lambda: comm.alltoall([bad if last else 1] * comm.size),
    "allreduce": lambda: comm.allreduce(1.0, divide),
}
if sys.argv[1] == "each":
    for name, call in CALLS.items():
        try:
            call()
        except Exception as error:
            sys.stdout.write(f"{name}: rank {comm.rank}: {error}\\n")
        assert comm.allgather(comm.rank) == list(range(comm.size))
else:
    CALLS[sys.argv[1]]()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "prog.py"
    path.write_text(PROGRAM)
    return path


def test_a_call_that_fails_on_one_rank_raises_on_every_rank_and_the_next_calls_go_on(program: Path) -> None:
    done = run_command("-n", 3, program, "each")
    assert done.returncode == 0, done.stderr
    said = done.stdout
    for call, rank, why in (
        ("bcast", 0, "TypeError: cannot pickle"),
        ("scatter", 0, "TypeError: cannot pickle"),
        ("scatter", 0, "UsageError: scatter needs a sequence with one value for each of the 3 ranks, not 1 values"),
        ("allgather", 2, "TypeError: cannot pickle"),
        ("alltoall", 2, "TypeError: cannot pickle"),
        ("allreduce", 0, "ZeroDivisionError"),
    ):
        assert said.count(f"{call} has failed on rank {rank}: {why}") == 2, said


@pytest.mark.parametrize(("call", "rank"), [("bcast", 0), ("alltoall", 2)])
def test_the_last_line_blames_the_rank_on_which_a_call_has_failed(program: Path, call: str, rank: int) -> None:
    done = run_command("-n", 3, program, call)
    assert done.returncode == 1
    assert f"slurm_share.spmd: rank {rank} on " in done.stderr.splitlines()[-1]
    assert done.stderr.count(f"{call} has failed on rank {rank}: TypeError: cannot pickle") >= 2


def test_a_rank_that_has_returned_from_main_is_named_so(tmp_path: Path) -> None:
    program = tmp_path / "prog.py"
    program.write_text(
        "from slurm_share.spmd import COMM_WORLD as comm\n"
        "comm.barrier()\n"
        "if comm.rank == 0:\n"
        "    comm.bcast(1)\n"
        "    comm.send(None, 1)\n"
        "else:\n"
        "    comm.recv(None, 0)\n"
    )
    done = run_command("-n", 2, program)
    assert done.returncode == 1
    told = "rank 1 is in no call, because it has returned from main, rank 0 in bcast(root=0)"
    assert told in done.stderr.splitlines()[-1]
