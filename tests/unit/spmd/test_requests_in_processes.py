"""Requests between processes: over sockets, and over mpi4py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from in_processes import run_command

MPIEXEC = Path(sys.executable).parent / "mpiexec"

MANY = """
import time
import numpy as np
from slurm_share.spmd import MPI
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size
sizes = [0, 1, 1000, 20_000, 300_000, 5]
rooms = [np.full(count + 1, -1.0) for count in sizes]
receives = [comm.Irecv(room, left, 3) for room in rooms]
objects = [comm.irecv(source=left, tag="o") for _ in range(50)]
sends = [comm.Issend(np.full(count, number + rank / 8), right, 3) for number, count in enumerate(sizes)]
sends += [comm.issend(("o", rank, number), right, "o") for number in range(50)]
assert comm.allreduce(1) == size
MPI.Request.Waitall(receives[::-1] + sends)
for number, (room, count) in enumerate(zip(rooms, sizes)):
    assert (room[:count] == number + left / 8).all() and room[count] == -1, number
assert MPI.Request.waitall(objects) == [("o", left, number) for number in range(50)]
for turn in range(200):
    pair = [comm.irecv(source=left, tag=turn), comm.isend(turn, right, turn)]
    assert MPI.Request.waitall(pair) == [turn, None]
request = comm.irecv(source=left, tag="s")
if rank == 0 and size > 1:
    time.sleep(0.3)
    comm.ssend("while the receiver is in a barrier", right, "s")
comm.barrier()
if rank != 1:
    request.cancel()
assert request.wait() == ("while the receiver is in a barrier" if rank == 1 else None)
if rank % 2:
    comm.ssend("matched", right, 7)
if left % 2:
    assert comm.mprobe(left, 7).recv() == "matched"
comm.barrier()
assert not comm.iprobe()
"""
STUCK = """
from slurm_share.spmd import MPI
comm = MPI.COMM_WORLD
other = 1 - comm.rank
requests = [comm.irecv(source=other, tag=1), comm.irecv(source=other, tag="x")]
MPI.Request.waitany(requests)
"""
ENDED = """
import os, time
from slurm_share.spmd import MPI
from slurm_share.spmd.errors import PeerEnded
comm = MPI.COMM_WORLD
if comm.rank == 1:
    comm.send("last", 0)
elif comm.rank == 2:
    comm.recv(source=0)
    comm.send("late", 0)
else:
    first, second, third = comm.irecv(source=1), comm.irecv(source=1), comm.irecv(source=2)
    both = [first, second, third]
    assert MPI.Request.waitany(both) == (0, "last")
    try:
        MPI.Request.waitany(both)
        raise AssertionError("the end of rank 1 was not told")
    except PeerEnded as error:
        assert error.rank == 1
    assert [bool(one) for one in both] == [False, False, True]
    comm.send("go", 2)
    assert MPI.Request.waitany(both) == (2, "late")
    print("all right")
"""
INTERRUPTED = """
import os, signal, threading, time
import numpy as np
from slurm_share.spmd import MPI
comm = MPI.COMM_WORLD
if comm.rank == 0:
    times = 0
    for number in range(60):
        room = np.zeros(1 + number % 3 * 4000)
        pair = [comm.irecv(source=1, tag=1), comm.Irecv(room, 1, 1)]
        comm.send(number, 1)
        signal.setitimer(signal.ITIMER_REAL, 0.0003 * (number % 5 + 1))
        while True:
            try:
                values = MPI.Request.waitall(pair)
                break
            except KeyboardInterrupt:
                times += 1
        while signal.getitimer(signal.ITIMER_REAL)[0]:
            try:
                time.sleep(0.01)
            except KeyboardInterrupt:
                pass
        assert values == [number, None] and (room == number).all(), (number, values, room)
    assert not comm.iprobe()
    comm.send(None, 1)
    print("interrupted", times > 5)
else:
    while (number := comm.recv(source=0)) is not None:
        time.sleep(0.001 * (number % 3))
        comm.send(number, 0, 1)
        comm.Send(np.full(1 + number % 3 * 4000, float(number)), 0, 1)
"""
INTERRUPTED = "import signal\nsignal.signal(signal.SIGALRM, signal.default_int_handler)\n" + INTERRUPTED
IDLE = """
import os, time
from slurm_share.spmd import MPI
comm = MPI.COMM_WORLD
if comm.rank == 1:
    time.sleep(1.5)
    comm.send(1, 0, 1)
elif comm.rank == 0:
    requests = [comm.irecv(source=1, tag=1), comm.irecv(source=1, tag=2)]
    before = sum(os.times()[:2])
    assert MPI.Request.waitany(requests) == (0, 1)
    print("idle", sum(os.times()[:2]) - before < 0.2)
    requests[1].cancel()
"""


def on_ranks(folder: Path, size: int, program: str) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(program)
    return run_command("-n", size, file)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_many_requests_of_all_sizes(tmp_path: Path, size: int) -> None:
    done = on_ranks(tmp_path, size, MANY)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("size", [1, 3])
def test_many_requests_over_mpi4py(tmp_path: Path, size: int) -> None:
    pytest.importorskip("mpi4py", reason="there is no mpi4py for this machine")
    from test_mpi4py_programs import environ

    programs = [MANY, IDLE.replace("1.5", "0.1").replace("< 0.2", "< 9")]
    for number, program in enumerate(programs[: min(size, 2)]):
        (tmp_path / f"{number}.py").write_text(program)
        argv = [str(MPIEXEC), "-n", str(size), sys.executable, str(tmp_path / f"{number}.py")]
        env = environ(PYTHONPATH=str(Path(__file__).parents[3]), LLSUB_TRANSPORT="mpi")
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")


def test_ranks_that_wait_for_one_of_several_and_get_none_are_told(tmp_path: Path) -> None:
    done = on_ranks(tmp_path, 2, STUCK)
    assert done.returncode == 1
    assert "all ranks wait for each other and no message is under way: rank 0 waits in waitany for (1, any tag)" in (
        done.stderr
    )


def test_the_end_of_a_rank_ends_only_the_request_that_waits_for_it(tmp_path: Path) -> None:
    done = on_ranks(tmp_path, 3, ENDED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all right\n", "")


def test_interrupted_waits_can_be_repeated(tmp_path: Path) -> None:
    done = on_ranks(tmp_path, 2, INTERRUPTED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted True\n", "")


def test_a_wait_for_several_takes_no_cpu(tmp_path: Path) -> None:
    assert on_ranks(tmp_path, 2, IDLE).stdout == "idle True\n"
