"""Collective calls that fail on one rank: every rank raises an error with the rank and its reason."""

from __future__ import annotations

import re
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


WRONG = """
import sys
import numpy as np
from slurm_share.spmd import COMM_WORLD as comm

name, who = sys.argv[1], int(sys.argv[2])
wrong = comm.rank == who
a, b = np.ones(4), np.zeros(4)
many, whole = np.ones(4 * comm.size), np.zeros(4 * comm.size)
fixed = np.zeros(4)
fixed.flags.writeable = False
gaps = np.ones(8)[::2]
CALLS = {
    "Bcast": lambda: comm.Bcast(gaps if wrong else a, root=0),
    "Gather": lambda: comm.Gather(gaps if wrong else a, whole, root=0),
    "Allgather": lambda: comm.Allgather(a, b if wrong else whole),
    "Scatter": lambda: comm.Scatter(many, fixed if wrong else b, root=0),
    "Alltoall": lambda: comm.Alltoall(many.astype("f4") if wrong else many, whole),
    "Reduce": lambda: comm.Reduce(np.array(["x"] * 4) if wrong else a, b, root=0),
    "Allreduce": lambda: comm.Allreduce(a, fixed if wrong else b),
    "Gatherv": lambda: comm.Gatherv([a, -1] if wrong else a, whole, root=0),
    "Allgatherv": lambda: comm.Allgatherv(a, [whole, [1]] if wrong else whole),
    "Scatterv": lambda: comm.Scatterv(many, fixed if wrong else b, root=0),
    "Alltoallv": lambda: comm.Alltoallv(many, None if wrong else whole),
    "Scan": lambda: comm.Scan(a, fixed if wrong else b),
    "Reduce_scatter_block": lambda: comm.Reduce_scatter_block(a[:1] if wrong else many, b),
    "bcast": lambda: comm.bcast(1, root=comm.size if wrong else 0),
    "allreduce": lambda: comm.allreduce(1, 5 if wrong else max),
}
if name == "each":
    for one, call in CALLS.items():
        try:
            call()
        except Exception as error:
            sys.stdout.write(f"{one}: rank {comm.rank}: {error}\\n")
        try:
            comm.alltoall([one] * comm.size)  # a message from every rank, behind the one about its failure
        except Exception as error:
            sys.stdout.write(f"{one}: rank {comm.rank} a call later: {error}\\n")
else:
    CALLS[name]()
    comm.barrier()
"""


@pytest.mark.parametrize("who", [0, 2])
def test_a_wrong_argument_on_one_rank_raises_on_every_rank_and_the_next_calls_go_on(tmp_path: Path, who: int) -> None:
    program = tmp_path / "prog.py"
    program.write_text(WRONG)
    done = run_command("-n", 3, program, "each", who, timeout=60)
    assert done.returncode == 0, done.stderr
    for call in re.findall(r'^    "(\w+)": lambda', WRONG, re.MULTILINE):
        assert done.stdout.count(f"{call} has failed on rank {who}: ") == 2, (call, done.stdout)


@pytest.mark.parametrize("call", ["Bcast", "Allreduce", "Alltoallv"])
def test_the_last_line_blames_the_rank_with_a_wrong_argument(tmp_path: Path, call: str) -> None:
    program = tmp_path / "prog.py"
    program.write_text(WRONG)
    done = run_command("-n", 3, program, call, 1, timeout=60)
    assert done.returncode == 1
    assert "slurm_share.spmd: rank 1 on " in done.stderr.splitlines()[-1]


ARRAYS = """
import sys
import numpy as np
from slurm_share import spmd
from slurm_share.spmd import COMM_WORLD as comm, Map, fft, from_local, zeros

wrong = comm.rank == 1
rows, columns = Map((comm.size, 1), "b"), Map((1, comm.size), "b")
halved = Map((comm.size, 1), "b", overlap=(1, 0))
X, Y = zeros(6, 6, map=rows), zeros(6, 6, map=halved)
words = from_local(np.full((2, 6), "a") if wrong else np.zeros((2, 6)), rows, (6, 6))
alone = Map((1, 1), "b", [1])
text = from_local(np.full((6, 6), "a") if wrong else np.zeros((0, 0)), alone, (6, 6))


def full(*_arguments):
    raise MemoryError("no memory")


def without_memory(operation):
    from slurm_share.spmd import host
    kept = host.empty_like, host.to_host
    try:
        if wrong:
            host.empty_like = host.to_host = full
        return operation()
    finally:
        host.empty_like, host.to_host = kept


OPERATIONS = {
    "product of words": lambda: text @ text,
    "fft of words": lambda: fft(words, axis=1),
    "redistribute to no map": lambda: X.redistribute("b" if wrong else columns),
    "redistribute without memory": lambda: without_memory(lambda: X.redistribute(columns)),
    "gather to no rank": lambda: X.gather(99 if wrong else 0),
    "gather without memory": lambda: without_memory(lambda: X.gather()),
    "getitem": lambda: X[9 if wrong else 1],
    "setitem": lambda: X.__setitem__("x" if wrong else slice(0, 2), zeros(2, 6, map=columns)),
    "halo without memory": lambda: without_memory(lambda: Y.halo()),
    "sum over no axis": lambda: X.sum(axis=7 if wrong else 0),
}
for one, operation in OPERATIONS.items():
    try:
        operation()
        sys.stdout.write(f"{one}: rank {comm.rank} returns\\n")
    except Exception as error:
        sys.stdout.write(f"{one}: rank {comm.rank} {type(error).__name__}: {error}\\n")
    try:
        comm.alltoall([one] * comm.size)
    except Exception as error:
        sys.stdout.write(f"{one}: rank {comm.rank} a call later: {error}\\n")
"""


def test_an_array_operation_that_fails_on_one_rank_raises_on_every_rank_and_the_next_ones_go_on(tmp_path: Path) -> None:
    program = tmp_path / "prog.py"
    program.write_text(ARRAYS)
    done = run_command("-n", 3, program, timeout=60)
    assert done.returncode == 0, done.stderr
    for operation, word, why in (
        ("redistribute to no map", "redistribute", "UsageError: an array is distributed by a Map"),
        ("redistribute without memory", "redistribute", "MemoryError: no memory"),
        ("gather to no rank", "gather", "UsageError: there is no rank 99"),
        ("gather without memory", "gather", "MemoryError: no memory"),
        ("getitem", "X[...]", "IndexOutOfRange: index 9"),
        ("setitem", "assignment", "UsageError: a distributed array is indexed by"),
        ("halo without memory", "halo", "MemoryError: no memory"),
    ):
        told = [one for one in done.stdout.splitlines() if f"{operation}: " in one]
        assert sum(f"{word} has failed on rank 1: {why}" in one for one in told) == 2, told
    for operation, error in (
        ("product of words", "UFuncTypeError"),
        ("fft of words", "TypeError|DTypePromotionError"),
        ("sum over no axis", "CollectiveMismatch"),
    ):
        assert len(re.findall(rf"{operation}: rank \d (?:{error}): ", done.stdout)) == 3, done.stdout
