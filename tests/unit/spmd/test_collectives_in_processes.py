"""Collective calls of processes with shared memory: results, mismatches, and a killed rank."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import in_processes
import pytest

from slurm_share.spmd.errors import PeerEnded

ROUNDS = int(os.environ.get("LLSUB_TEST_ROUNDS", "9"))
"""Rounds of the slow test, each of about a second: by default one for each of KINDS. Acceptance takes 200."""

RESULTS = """
import numpy as np
from slurm_share.spmd import COMM_WORLD as comm, MAX
from slurm_share.spmd.gathering import gather_blocks
me, size = comm.rank, comm.size
for number in (0, 3):
    for count in (3, 5_000, 40_000, 700_000):
        root = number % size
        array = np.arange(count) + number if me == root else np.zeros(count, int)
        comm.Bcast(array, root)
        assert np.array_equal(array, np.arange(count) + number)
        assert np.array_equal(comm.bcast(array if me == root else None, root), array)
        total = np.empty(count, int)
        comm.Allreduce(array * (me + 1), total)
        assert np.array_equal(total, array * (size * (size + 1) // 2))
        assert np.array_equal(comm.allreduce(array + me, MAX), array + size - 1)
        room = np.empty((size, count), int)
        comm.Allgather(array + me, room)
        assert np.array_equal(room, array + np.arange(size)[:, None])
        got = gather_blocks(comm.group, (size, count), int, (array + me)[None], [slice(me, me + 1, 1)] * 1
                            + [slice(0, count, 1)], root)
        assert (got is None) == (me != root)
        assert got is None or np.array_equal(got, room)
        got = gather_blocks(comm.group, (count, size), int, (array + me)[:, None], [slice(0, count, 1),
                            slice(me, me + 1, 1)], root)
        assert got is None or np.array_equal(got, room.T)
print("right")
"""

MISMATCH = """
from slurm_share.spmd import COMM_WORLD as comm
comm.gather(1, root=comm.rank)
"""

DEATH = """
import json, os, signal, sys, threading, time
import numpy as np
from slurm_share.spmd import COMM_WORLD as comm
from slurm_share.spmd.gathering import gather_blocks
from slurm_share.spmd.errors import PeerEnded
folder, kind, victim, delay_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
me, size = comm.rank, comm.size
count = 100_000
array, room, where = np.ones(count), np.empty((size, count)), [slice(me * count, (me + 1) * count, 1)]
calls = {
    "bcast": lambda: comm.bcast(array if me == 0 else None),
    "Bcast": lambda: comm.Bcast(array, 1),
    "barrier": comm.barrier,
    "gather": lambda: (comm.gather(array), comm.barrier()),
    "gather_blocks": lambda: gather_blocks(comm.group, (size * count,), float, array, where),
    "Allreduce": lambda: comm.Allreduce(array, np.empty(count)),
    "Allgather": lambda: comm.Allgather(array, room),
    "alltoall": lambda: comm.alltoall([array] * size),
    "scatter": lambda: comm.scatter([array] * size),
}
def note(**what):
    with open(f"{folder}/{me}", "w") as stream:
        json.dump({"pid": os.getpid(), **what}, stream)
def die():
    time.sleep(delay_s)
    note()
    os.kill(os.getpid(), signal.SIGKILL)
comm.barrier()
if me == victim:
    threading.Thread(target=die).start()
try:
    while True:
        calls[kind]()
except PeerEnded as error:
    note(rank=error.rank, signal=error.signal, sentence=str(error))
    time.sleep(float(sys.argv[5]) if len(sys.argv) > 5 else 0)
    raise
"""
KINDS = ["bcast", "Bcast", "barrier", "gather", "gather_blocks", "Allreduce", "Allgather", "alltoall", "scatter"]


def started(folder: Path, text: str, size: int, *args: object) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(text)
    return in_processes.run_command("-n", size, folder / "program.py", *args)


@pytest.mark.parametrize("size", [1, 4])
def test_results(tmp_path: Path, size: int) -> None:
    done = started(tmp_path, RESULTS, size)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == size


def test_results_over_nodes(tmp_path: Path) -> None:
    """Ranks 0 and 1, 2 and 3, and 4 are on pretended nodes."""
    (tmp_path / "program.py").write_text(RESULTS)
    in_processes.run_ranks(5, "run_file", str(tmp_path / "program.py"), per_node=2)


def test_ranks_that_wait_in_different_calls_are_told(tmp_path: Path) -> None:
    """No frame is sent here; the rendezvous process compares the waits of both ranks."""
    done = started(tmp_path, MISMATCH, 2)
    assert done.returncode == 1
    assert "CollectiveMismatch: collective call 1: rank 0 is in gather(root=0), rank 1 in gather(root=1)" in done.stderr


@pytest.mark.parametrize(("kind", "victim"), [("Bcast", 3), ("Allreduce", 0)])
def test_ranks_of_other_nodes_raise_with_its_name_too(tmp_path: Path, kind: str, victim: int) -> None:
    (tmp_path / "program.py").write_text(DEATH)
    # Ranks stay a second: here they end with code 0, and that would be what others hear of them.
    args = [str(tmp_path / "program.py"), str(tmp_path), kind, str(victim), "0.1", "1"]
    with in_processes.Run(4, "run_file", *args, per_node=2) as run:
        results = run.results()
    for rank, error in enumerate(results):
        if rank != victim:
            assert isinstance(error, PeerEnded)
            assert (error.rank, error.signal) == (victim, 9)


@pytest.mark.slow
@pytest.mark.timeout(60 + 100 * ROUNDS)
@pytest.mark.weekly
def test_when_a_rank_is_killed_all_others_raise_with_its_name(tmp_path: Path) -> None:
    """Each kind of call in turn, at a random time."""
    for number in range(ROUNDS):
        kind, victim = KINDS[number % len(KINDS)], random.randrange(4)
        done = started(tmp_path, DEATH, 4, tmp_path, kind, victim, random.uniform(0, 0.5))
        assert done.returncode == 1, done.stderr
        notes = {rank: json.loads((tmp_path / str(rank)).read_text()) for rank in range(4)}
        for rank, note in notes.items():
            assert not Path(f"/proc/{note['pid']}").exists()
            if rank != victim:
                assert (note["rank"], note["signal"]) == (victim, 9), (rank, note)
                (tmp_path / str(rank)).unlink()
