"""Messages over mpi4py, between processes of a real mpiexec."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_share.spmd import checks

pytest.importorskip("mpi4py", reason="there is no mpi4py for this machine")
MPIEXEC = Path(sys.executable).parent / "mpiexec"
HEAD = """
import os, sys, threading, time
from slurm_share.spmd import errors, mpi4py_transport as mpi
from slurm_share.spmd.envelope import RAW
from slurm_share.spmd.transport import USER
t = mpi.make_transport()
def made():
    return mpi.MpiTransport(t._mpi, t._mpi.COMM_WORLD.Dup())
def send(dest, tag, *parts, context=USER, form=RAW, meta=b""):
    t.send(dest, context, tag, form, meta, [memoryview(part) for part in parts])
def take(source, tag, context=USER):
    return bytes(t.receive(source, context, tag, "recv", 30).take())
def expect(kind, call, *words):
    try:
        call(*words)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")
others = [rank for rank in range(t.size) if rank != t.rank]
"""


def mpiexec(size: int, program: str, *, code: int = 0, env: dict[str, str] | None = None) -> str:
    """Run HEAD and `program` on `size` ranks; return their output."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "LLSUB", "HYDRA"))
    }
    done = subprocess.run(
        [str(MPIEXEC), "-n", str(size), sys.executable, "-c", HEAD + program],
        env={**clean, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode != 0) == bool(code), done.stdout + done.stderr
    return done.stdout + done.stderr


ORDER = """
right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
for number in range(50):
    send(right, "x", f"{number}".encode())
send(right, 1, b"number")
send(right, "1", b"wo", b"", b"rd", form=2, meta=b"m" * 100)
send(t.rank, -(2**62), b"self")
message = t.receive(left, USER, "1", "recv")
e = message.envelope
assert (e.source, e.tag, e.form, e.meta, e.size) == (left, "1", 2, b"m" * 100, 4), e
t.put_back(message)
assert t.probe(left, USER, "1") == e
assert t.probe(left, USER, "2") is None
memory = t.receive(None, USER, "1", "recv").take()
memory[:2] = b"Wo"
assert bytes(memory) == b"Word"
assert take(left, 1) == b"number"
assert take(None, -(2**62)) == b"self"
assert [envelope.tag for envelope in t.waiting()] == ["x"] * 50
into = bytearray(1)
t.receive(left, USER, None, "recv").take_into(memoryview(into))
assert into == b"0"
assert [take(left, "x") for _ in range(49)] == [str(number).encode() for number in range(1, 50)]
error = expect(errors.ReceiveTimeout, t.receive, left, USER, "never", "recv", 0.05)
assert f"rank {t.rank} has waited 0.05 s in recv for rank {left}, tag 'never'" in str(error)
expect(errors.NoRoom, t.window, 1)
t._comm.Barrier()
t.close()
expect(errors.UsageError, send, 0, 0, b"")
"""
"""Numbers and strings are different tags; the parts of a body arrive as one writable body."""
ALL_BEFORE_ANY = """
big = bytearray(os.urandom(1 << 20))
for rank in others:
    for number in range(10):
        big[:9] = b"%4d %4d" % (t.rank, number)
        send(rank, "big", big)
    for number in range(500):
        send(rank, number, b"%d" % number)
assert t.has_windows is False
for rank in reversed(others):
    for number in reversed(range(500)):
        assert take(rank, number) == b"%d" % number
    for number in range(10):
        body = take(rank, "big")
        assert (len(body), body[:9]) == (1 << 20, b"%4d %4d" % (rank, number)), body[:9]
t.close()
"""
"""A send that waited for its receiver would wait for ever."""
BLOCKS = """
mpi.LARGE, mpi.BLOCK = 1 << 16, 1 << 10
t._block = t._mpi.BYTE.Create_contiguous(mpi.BLOCK).Commit()
body = os.urandom((1 << 18) + 13)
for rank in others:
    send(rank, 0, body[:t.rank - 9])
    send(rank, 0, b"small")
for rank in others:
    assert len(take(rank, 0)) == len(body) - 9 + rank
    assert take(rank, 0) == b"small"
t.close()
"""
"""A message of more bytes than MPI counts: the number of blocks fits 32 bits; padding after the body is dropped."""
OTHER_CALLS = """
context = 1 << 32 | 7
send(1 - t.rank, f"call {t.rank}", b"", context=context)
error = expect(errors.CollectiveMismatch, take, 1 - t.rank, f"call {t.rank}", context)
assert str(error).startswith(f"collective call 7: rank {t.rank} is in call {t.rank}, rank {1 - t.rank} in call"), error
t.call_failed(context)
t.finish(context + 1)
t.close()
"""
"""`transport.Queues` makes the same check as over sockets."""
THREADS = """
got = []
thread = threading.Thread(target=lambda: got.append(take(1 - t.rank, "later")))
thread.start()
time.sleep(0.1)
send(1 - t.rank, "later", b"x")
thread.join(30)
assert got == [b"x"]
t.close()
"""
PLACES = """
assert [(node.first, node.count) for node in t.nodes] == [(0, t.size)], t.nodes
assert t.nodes[0].name == t._mpi.Get_processor_name()
t.close()
t.close()
"""


@pytest.mark.parametrize(
    ("size", "programs"), [(4, (ORDER, ALL_BEFORE_ANY)), (2, (OTHER_CALLS, THREADS, PLACES, BLOCKS)), (1, (PLACES,))]
)
def test_messages_between_ranks_are_right(size: int, programs: tuple[str, ...]) -> None:
    """One start of the ranks for all programs, each of which has a transport of its own.

    Each rank ends with one write of a line: print can write the newline separately, after the text of another rank.
    """
    said = mpiexec(size, "t = made()\n".join(programs) + "os.write(1, b'all are through\\n')")
    assert said == "all are through\n" * size


def test_what_a_rank_keeps_for_its_receivers_has_a_limit() -> None:
    """A send beyond the limit waits until MPI has sent enough; a larger message is refused."""
    program = """
body = bytes(1 << 20)
error = expect(errors.NoRoom, send, 1 - t.rank, 0, bytes(4 << 20))
assert "LLSUB_SEND_LIMIT" in str(error)
if t.rank == 0:
    for number in range(20):
        send(1, number, body)
        assert t._sent_bytes <= 3 << 20
else:
    for number in reversed(range(20)):
        assert take(0, number) == body
t.close()
"""
    mpiexec(2, program, env={"LLSUB_SEND_LIMIT": str(3 << 20)})


def test_who_waits_for_a_rank_that_has_ended_is_told() -> None:
    program = """
if t.rank == 0:
    send(1, "last", b"word")
    t.close()
    sys.exit()
if t.rank == 1:
    assert take(0, "last") == b"word"
    error = expect(errors.PeerEnded, take, 0, "one more")
    assert (error.rank, str(error).endswith("has ended and sends nothing more")) == (0, True), error
    expect(errors.PeerEnded, send, 0, 0, b"")
    send(2, "go", b"")
else:
    assert take(1, "go") == b""
    expect(errors.PeerEnded, take, None, "from anybody")
t.close()
"""
    mpiexec(3, program)


@pytest.mark.parametrize("end", ["t.abort(3, 'enough')", "raise ValueError('enough')"])
def test_an_abort_and_an_uncaught_exception_end_every_rank(end: str) -> None:
    said = mpiexec(3, f"if t.rank == 1: {end}\ntake(1, 'never')\nprint('not reached')", code=1)
    assert "rank 1 ends the run with code" in said
    assert "enough" in said
    assert "not reached" not in said


@pytest.mark.parametrize(
    ("environ", "answer"),
    [
        ({}, False),
        ({"LLSUB_TRANSPORT": "mpi"}, True),
        ({"PPYTHON_USE_MPI4PY": "1"}, True),
        ({"PPYTHON_USE_MPI4PY": "0"}, False),
        ({"PMI_SIZE": "4"}, True),
        ({"PMI_SIZE": "1"}, False),
        ({"PMI_SIZE": "four"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"MV2_COMM_WORLD_SIZE": "2"}, True),
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "2"}, True),
        ({"SLURM_STEP_NUM_TASKS": "2"}, False),
        ({"PMI_SIZE": "4", "LLSUB_TRANSPORT": "own"}, False),
        ({"PPYTHON_USE_MPI4PY": "1", "LLSUB_TRANSPORT": "own"}, False),
        ({"PMI_SIZE": "4", "LLSUB_RENDEZVOUS": "x"}, False),
        ({"LLSUB_RENDEZVOUS": "x", "LLSUB_TRANSPORT": "mpi"}, True),
    ],
)
def test_when_mpi_is_wanted(environ: dict[str, str], answer: bool) -> None:
    """By a variable, or by the environment of an MPI; in our own runs only by a variable."""
    assert checks.uses_mpi(environ) is answer


def test_a_launcher_that_starts_no_mpi_is_named() -> None:
    """Each of its ranks would be alone in an MPI of its own."""
    code = "from slurm_share.spmd import COMM_WORLD as comm; comm.barrier()"
    environ = {**os.environ, "LLSUB_TRANSPORT": "mpi", "LLSUB_RENDEZVOUS": "x", "LLSUB_SIZE": "4"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 1
    assert "neither llsub --spmd nor -n starts an MPI: use mpiexec or `srun --mpi=`" in done.stderr


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ("sys.modules['mpi4py'] = None", "messages are to go over MPI (OMPI_COMM_WORLD_SIZE=4), and mpi4py cannot"),
        ("", "4 processes were started (OMPI_COMM_WORLD_SIZE), and the MPI of mpi4py (MPICH"),
    ],
)
def test_an_mpi_that_cannot_be_had_is_a_sentence(before: str, says: str) -> None:
    """Otherwise each of four ranks would do the whole work alone."""
    program = f"""
import os, sys
{before}
from slurm_share.spmd import errors, mpi4py_transport as mpi
try:
    mpi.make_transport()
except errors.TransportError as error:
    print(error)
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "LLSUB"))}
    environ = {**clean, "OMPI_COMM_WORLD_SIZE": "4"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environ)
    assert says in done.stdout, done.stderr


LEFT_OUT = (
    "another_call", "sentence_names", "mismatch", "window", "by_messages",
    "connects", "connected", "know_their_nodes", "abort",
)  # fmt: skip
"""Words in the names of tests: of calls in which all ranks wait for each other, which nobody tells them over MPI, of
memory that ranks share, and of other transports."""


FILES = ("array_functions", "collectives", "comm", "dmat", "gathering", "redistribute")


@pytest.mark.weekly
@pytest.mark.timeout(1800)
def test_collective_calls_and_arrays_are_right_over_mpi() -> None:
    """The tests of the other transports, with processes as ranks.

    Without tests of deadlocks, which MPI does not report, and of memory that ranks share.
    """
    here = Path(__file__).parent
    argv = [str(MPIEXEC), "-n", "5", sys.executable, "-m", "pytest", "-q", "-p", "under_mpi", "-p", "no:cacheprovider"]
    argv += ["--examples", "15"]  # waiting ranks poll, and there are more of them than cores
    argv += ["-p", "no:xdist", "-k", " and ".join(f"not {word}" for word in LEFT_OUT)]
    argv += [str(here / f"test_{name}.py") for name in FILES]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "PYTEST", "LLSUB"))}
    environ = {**clean, "PYTHONPATH": str(here)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1700, env=environ, cwd=here.parents[2])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
