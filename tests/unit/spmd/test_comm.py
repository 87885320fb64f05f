"""Comm: messages between ranks under mpi4py's names, and messages of errors."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from in_threads import on_ranks, run, run_ranks

from slurm_share.spmd import MPI
from slurm_share.spmd.comm import ANY_SOURCE, ANY_TAG, COMM_WORLD, Comm, Status
from slurm_share.spmd.errors import MessageMismatch, NotContiguous, ReceiveTimeout, UsageError

TIMEOUT_S = 0.05


def test_a_comm_connects_at_its_first_use() -> None:
    made = []

    def program(transport: Any) -> None:
        comm = Comm(lambda: made.append(1) or transport)
        assert repr(comm) == "<Comm, not connected yet>"
        assert not made
        assert (comm.rank, comm.size) == (comm.Get_rank(), comm.Get_size()) == (0, 1)
        assert repr(comm) == "<Comm: rank 0 of 1 on n1>"

    run_ranks(1, program)
    assert made == [1]


def test_the_world_is_not_connected_by_an_import() -> None:
    import slurm_share.spmd

    assert slurm_share.spmd.COMM_WORLD is COMM_WORLD
    program = "from slurm_share.spmd import COMM_WORLD as comm; print(repr(comm), comm.rank, comm)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "<Comm, not connected yet> 0 <Comm: rank 0 of 1 on " + os.uname().nodename + ">\n"


def test_ranks_know_their_nodes() -> None:
    def program(comm: Comm) -> tuple[Any, ...]:
        return comm.rank, comm.size, comm.node, comm.nodes, comm.node_rank, comm.node_size

    assert run(5, program, per_node=3) == [
        (rank, 5, "n1" if rank < 3 else "n2", ("n1", "n2"), rank % 3, 3 if rank < 3 else 2) for rank in range(5)
    ]


@on_ranks(2)
def test_objects_arrays_and_tags(comm: Comm) -> None:
    if comm.rank == 0:
        comm.send({"a": [1, None]}, 1)
        comm.send(np.arange(3.0), 1, "name")
        comm.send("third", 1, tag=np.int64(7))
        comm.Send(np.arange(4, dtype="i4"), 1, 8)
        comm.send(b"bytes", dest=1, tag="é" * 127)
    else:
        status = Status()
        assert comm.recv(source=0, tag=7, status=status) == "third"
        assert (status.Get_source(), status.Get_tag()) == (status.source, status.tag) == (0, 7)
        assert np.array_equal(comm.recv(tag="name"), np.arange(3.0))
        room = np.full(6, -1, "i4")
        comm.Recv(room, ANY_SOURCE, 8, status=status)
        assert room.tolist() == [0, 1, 2, 3, -1, -1]
        assert (status.Get_count(), status.Get_count("i4")) == (16, 4)
        assert comm.recv(ANY_SOURCE, ANY_TAG) == {"a": [1, None]}
        assert comm.recv(0, "é" * 127) == b"bytes"


@on_ranks(2)
def test_sendrecv(comm: Comm) -> None:
    other = 1 - comm.rank
    assert comm.sendrecv(comm.rank, other, 3, source=other, recvtag=3) == other
    room = np.zeros(2)
    comm.Sendrecv(np.full(2, comm.rank + 1.0), other, 4, room, other, 4)
    assert (room == other + 1).all()


@on_ranks(2)
def test_probes_leave_the_message(comm: Comm) -> None:
    if comm.rank == 0:
        assert comm.recv(1) == "go"
        comm.send([1, 2], 1, "list")
        comm.send("later", 1, "list")
        return
    status = Status()
    assert not comm.iprobe()
    comm.send("go", 0)
    assert comm.probe(0, "list", status)
    assert (status.source, status.tag) == (0, "list")
    assert comm.iprobe(status=status)
    assert not comm.iprobe(tag="other")
    assert [envelope.tag for envelope in comm.waiting()][:1] == ["list"]
    assert comm.recv(status.source, status.tag) == [1, 2]
    assert comm.recv() == "later"


@pytest.mark.parametrize(
    ("room", "sentence"),
    [
        (np.zeros(2), "the message of rank 0 with tag 5 has 3 elements, the buffer has room for 2"),
        (np.zeros(9, "f4"), "is an array of float64[3], the buffer has elements of float32"),
        (np.zeros(9, "i8"), "is an array of float64[3], the buffer has elements of int64"),
    ],
)
@on_ranks(2)
def test_a_message_that_does_not_fit_stays(comm: Comm, room: np.ndarray, sentence: str) -> None:
    if comm.rank == 0:
        comm.Send(np.arange(3.0), 1, 5)
        comm.send("second", 1, 5)
        return
    with pytest.raises(MessageMismatch) as caught:
        comm.Recv(room, 0, 5)
    assert sentence in str(caught.value)
    assert not room.any()
    right = np.empty(3)
    comm.Recv(right, 0, 5)
    assert right.tolist() == [0, 1, 2]
    assert comm.recv(0, 5) == "second"


@on_ranks(1)
def test_what_is_no_array_stays_for_recv(comm: Comm) -> None:
    comm.send([1, 2], 0)
    with pytest.raises(MessageMismatch, match=r"is no array but another object; receive it with recv\(\)"):
        comm.Recv(np.zeros(2))
    assert comm.recv() == [1, 2]


@on_ranks(1)
def test_buffers_that_cannot_be_sent(comm: Comm) -> None:
    gaps = np.zeros((4, 4))[:, :2]
    for call in (lambda: comm.Send(gaps, 0), lambda: comm.Recv(gaps), lambda: comm.Bcast(gaps)):
        with pytest.raises(NotContiguous, match="needs a contiguous array; this one, of shape \\(4, 2\\)") as caught:
            call()
        assert isinstance(caught.value, ValueError)
    with pytest.raises(UsageError, match=r"Send cannot send an array of Python objects \(object\); use send\(\)"):
        comm.Send(np.array([{}]), 0)
    with pytest.raises(UsageError, match=r"Bcast needs an array .*, not int; bcast\(\) takes any object"):
        comm.Bcast(3)
    with pytest.raises(UsageError, match="Send: the array has elements of float64, and the type MPI_INT has"):
        comm.Send([np.zeros(2), MPI.INT], 0)
    with pytest.raises(UsageError, match="Recv cannot write into a read-only bytes"):
        comm.Recv(b"abc")
    room = bytearray(3)
    comm.Send(b"abc", 0)
    comm.Recv(room)
    assert room == b"abc"
    columns = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    got = np.zeros((2, 3), order="F")
    comm.Send(columns, 0)
    comm.Recv(got)
    assert np.array_equal(got, columns)


@pytest.mark.parametrize("rank", [2, -1, "1", None, 1.0, True])
@on_ranks(2)
def test_ranks_that_are_not_there(comm: Comm, rank: Any) -> None:
    with pytest.raises(UsageError, match=r"send: there is no rank .*; the run has ranks 0 to 1"):
        comm.send(1, rank)
    with pytest.raises(UsageError, match="bcast: there is no rank"):
        comm.bcast(1, rank)
    if rank not in (-1, None):
        with pytest.raises(UsageError, match=r"recv: (there is no rank|the first argument is)"):
            comm.recv(rank)


@pytest.mark.parametrize(("tag", "sentence"), [("x" * 256, "has 256 bytes; tags have at most 255"), (1.5, "is no tag")])
@on_ranks(1)
def test_tags_that_cannot_be(comm: Comm, tag: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        comm.send(1, 0, tag)
    with pytest.raises(UsageError, match=sentence):
        comm.recv(tag=tag)


@on_ranks(1)
def test_a_receive_ends_after_its_time(comm: Comm) -> None:
    with pytest.raises(ReceiveTimeout):
        comm.recv(timeout_s=TIMEOUT_S)
    with pytest.raises(TimeoutError):
        comm.Recv(np.zeros(1), timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("timeout_s", [float("nan"), "soon", [1]])
@on_ranks(1)
def test_a_time_that_is_no_number_is_refused(comm: Comm, timeout_s: Any) -> None:
    for call in (comm.recv, lambda **time: comm.Recv(np.zeros(1), **time)):
        with pytest.raises(UsageError, match="timeout_s is a number of seconds or None, not"):
            call(timeout_s=timeout_s)


@pytest.mark.parametrize("kind", [np.memmap, np.matrix, np.recarray])
@on_ranks(1)
def test_upper_case_calls_take_subclasses_of_arrays(comm: Comm, kind: type[np.ndarray]) -> None:
    given, room = (np.zeros((1, 2), "i4,f4" if kind is np.recarray else "i4").view(kind) for _ in range(2))
    given.view("i4")[...] = 7
    comm.Send(given, 0)
    comm.Recv(room, 0)
    assert (np.asarray(room) == np.asarray(given)).all()


@on_ranks(1)
def test_an_undecodable_file_name_can_be_a_tag(comm: Comm) -> None:
    comm.send("content", 0, os.fsdecode(b"caf\xe9"))
    assert comm.recv(0, "caf\udce9") == "content"


def test_abort_ends_a_process_whose_output_nobody_reads() -> None:
    """The exit code is that of abort(), also if a stream is closed."""
    program = (
        "import os, sys; from slurm_share.spmd.comm import COMM_WORLD\n"
        "try:\n    sys.stdout.close(); COMM_WORLD.abort(7)\n"
        "except Exception:\n    os._exit(1)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7
