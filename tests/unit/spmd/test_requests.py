"""Requests, matched messages and statuses between ranks in threads."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import numpy as np
import pytest
from in_threads import on_ranks, run

from slurm_share.spmd import MPI
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.errors import Deadlock, MessageMismatch, PeerEnded, UsageError

TIMEOUT_S = 0.05


@on_ranks(2)
def test_posted_receives_get_messages_in_the_order_of_posting(comm: Comm) -> None:
    if comm.rank == 0:
        comm.recv(source=1)
        for number in range(4):
            comm.isend(number, 1, 5).wait()
        return
    requests = [comm.irecv(source=0, tag=5), comm.irecv(tag=5), comm.irecv()]
    comm.send("go", 0)
    assert comm.recv(source=0) == 3
    assert requests[1].wait() == 1
    assert MPI.Request.waitall(requests) == [0, None, 2]
    assert requests == [MPI.REQUEST_NULL] * 3
    assert not any(requests)


@on_ranks(2)
def test_a_posted_receive_gets_what_has_arrived_already(comm: Comm) -> None:
    if comm.rank == 0:
        comm.send("a", 1, 1)
        comm.send("b", 1, 2)
        return
    comm.probe(0, 2)
    assert comm.irecv(tag=2).test() == (True, "b")
    assert not comm.iprobe(tag=2)
    assert comm.irecv(None, 0).wait() == "a"


@on_ranks(2)
def test_an_array_fills_its_buffer_and_one_that_does_not_fit_stays(comm: Comm) -> None:
    if comm.rank == 0:
        comm.Isend(np.arange(3.0), 1, 1).Wait()
        comm.Isend(np.arange(3.0), 1, 1)
        return
    small, right, status = np.zeros(2), np.full(4, 9.0), MPI.Status()
    first = comm.Irecv(small, 0, 1)
    second = comm.Irecv(right, 0, 1)
    with pytest.raises(MessageMismatch, match="has 3 elements, the buffer has room for 2"):
        first.Wait()
    assert first == MPI.REQUEST_NULL
    assert not small.any()
    assert second.Wait(status) is True
    assert right.tolist() == [0, 1, 2, 9]
    assert (status.source, status.tag, status.Get_count("f8"), status.Get_elements("f4")) == (0, 1, 3, 6)
    comm.Recv(right[1:], 0, 1)
    assert right.tolist() == [0, 0, 1, 2]


@on_ranks(1)
def test_a_message_that_is_put_back_goes_to_the_next_posted_receive_that_matches(comm: Comm) -> None:
    small, right = comm.Irecv(np.zeros(1), 0), np.zeros(2)
    comm.Send(np.ones(2), 0)
    later = comm.Irecv(right, 0)
    with pytest.raises(MessageMismatch):
        small.wait()
    assert later.Test()
    assert right.tolist() == [1, 1]


@on_ranks(3)
def test_waits_for_one_of_several(comm: Comm) -> None:
    if comm.rank:
        comm.recv(source=0)
        comm.send(comm.rank, 0)
        comm.recv(source=0)
        comm.send(-comm.rank, 0)
        return
    requests = [comm.irecv(source=1), comm.irecv(source=2)]
    statuses: list[MPI.Status] = []
    assert MPI.Request.testany(requests) == (MPI.UNDEFINED, False, None)
    assert MPI.Request.testsome(requests) == ([], [])
    assert MPI.Request.testall(requests) == (False, None)
    comm.send("go", 2)
    assert MPI.Request.waitany(requests) == (1, 2)
    assert MPI.Request.Testall(requests) is False
    comm.send("go", 1)
    assert MPI.Request.waitsome(requests, statuses) == ([0], [1])
    assert [status.source for status in statuses] == [1]
    for null in (requests, [], iter(())):
        assert MPI.Request.waitany(null) == (MPI.UNDEFINED, None)
    assert MPI.Request.waitsome(requests) == MPI.Request.testsome(requests) == (None, None)
    assert MPI.Request.testany(requests) == (MPI.UNDEFINED, True, None)
    assert MPI.Request.testall(requests) == (True, [None, None])
    more = {1: comm.irecv(source=1), 2: comm.irecv(source=2)}
    comm.send("go", 1)
    comm.send("go", 2)
    assert MPI.Request.Waitall(more.values(), statuses) is True
    assert [status.source for status in statuses] == [1, 2]


@on_ranks(2)
def test_a_cancelled_receive_takes_no_message(comm: Comm) -> None:
    if comm.rank == 0:
        comm.recv()
        comm.send("a", 1)
        return
    status = MPI.Status()
    first, second = comm.irecv(), comm.irecv()
    first.cancel()
    assert first.wait(status) is None
    assert status.Is_cancelled()
    comm.send("go", 0)
    assert second.wait(status) == "a"
    assert not status.cancelled
    done = comm.irecv(source=1)
    comm.send("own", 1)
    done.Cancel()
    assert done.wait() == "own"
    sent = comm.isend("x", 1)
    sent.Cancel()
    assert sent.test(status) == (True, None)
    assert comm.recv() == "x"


@on_ranks(1)
def test_the_status_of_a_request_can_be_asked_before_it_ends(comm: Comm) -> None:
    request, status = comm.irecv(), MPI.Status()
    assert not request.Get_status(status)
    with pytest.raises(UsageError, match="this receive is not complete: wait for it, or cancel it"):
        request.Free()
    comm.send(b"abc", 0, 7)
    assert request.get_status(status)
    assert MPI.Request.Get_status_all([request])
    assert (status.Get_source(), status.Get_tag(), status.Get_count()) == (0, 7, 3)
    assert request.wait() == b"abc"
    request.Free()
    assert request.Get_status()


@on_ranks(1)
def test_a_dropped_receive_takes_its_message_and_is_warned_about(comm: Comm) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        comm.irecv()
        gc.collect()
        assert not told
        comm.send("lost", 0)
        comm.send("lost too", 0)
        comm.irecv()
        gc.collect()
    assert [one.category for one in told] == [ResourceWarning]
    comm.send("third", 0)
    assert comm.recv() == "third"
    assert comm.transport._queues.lost == 1


@on_ranks(2)
def test_a_synchronous_send_is_complete_when_a_receive_has_got_it(comm: Comm) -> None:
    """Also one whose receive is posted, while its rank is in another call."""
    other = 1 - comm.rank
    if comm.rank == 0:
        request = comm.issend("a", 1, 3)
        assert not request.test()[0]
        comm.send("go", 1)
        assert request.wait() is None
        comm.ssend("b", 1, 3)
        comm.Ssend(np.arange(2), 1, 4)
        comm.ssend("c", 1, 5)
        return
    comm.recv(source=0, tag=0)
    status = MPI.Status()
    assert comm.iprobe(tag=3, status=status)
    assert comm.recv(None, 0, 3, status) == "a"
    assert comm.recv(source=other) == "b"
    room = np.zeros(1, int)
    with pytest.raises(MessageMismatch):
        comm.Recv(room, other)
    with pytest.raises(MessageMismatch):
        comm.Recv(room, other)
    room = np.zeros(2, int)
    comm.Recv(room, other, status=status)
    assert status.Get_count(int) == 2
    assert room.tolist() == [0, 1]
    assert comm.mprobe().recv() == "c"


@pytest.mark.parametrize("call", ["barrier", "recv", "ssend", "probe"])
def test_ranks_in_another_call_answer_synchronous_messages(call: str) -> None:
    def program(comm: Comm) -> Any:
        other = 1 - comm.rank
        request = comm.irecv(source=other, tag=1)
        if comm.rank == 0 or call == "ssend":
            comm.ssend(comm.rank, other, 1)
            if call in ("recv", "probe"):
                comm.send("after", other)
        elif call in ("recv", "probe"):
            getattr(comm, call)(source=other, tag=0)
        comm.barrier()
        if comm.rank == 1 or call == "ssend":
            return request.wait()
        request.cancel()
        return request.wait()

    assert run(2, program) == [1 if call == "ssend" else None, 0]


def test_a_deadlock_in_a_wait_for_several_is_told() -> None:
    def program(comm: Comm) -> None:
        requests = [comm.irecv(source=1 - comm.rank, tag=1), comm.irecv(source=1 - comm.rank, tag="x")]
        MPI.Request.waitany(requests)

    with pytest.raises(Deadlock, match="in waitany for"):
        run(2, program)

    with pytest.raises(Deadlock, match="rank 0 waits in wait until rank 1 receives its synchronous message"):
        run(2, lambda comm: comm.ssend(1, 1 - comm.rank))


@on_ranks(2)
def test_messages_from_and_to_no_rank(comm: Comm) -> None:
    nowhere, room, status = MPI.PROC_NULL, np.full(2, 7.0), MPI.Status()

    def expect_nothing(value: Any) -> None:
        assert (value, status.source, status.tag, status.count) == (None, nowhere, MPI.ANY_TAG, 0)
        assert room.tolist() == [7, 7]
        status.source = 5

    for call in (comm.send, comm.ssend, comm.bsend, comm.Send, comm.Ssend, comm.Rsend):
        assert call(room, nowhere, 3) is None  # type: ignore[func-returns-value]
    for begin in (comm.isend, comm.issend, comm.Isend, comm.Issend, comm.Irsend):
        assert begin(room, nowhere, 3).wait() is None
    expect_nothing(comm.recv(None, nowhere, 3, status))
    expect_nothing(comm.Recv(room, nowhere, 3, status))  # type: ignore[func-returns-value]
    expect_nothing(comm.irecv(source=nowhere).wait(status))
    expect_nothing(comm.Irecv(room, nowhere).wait(status))
    expect_nothing(comm.sendrecv(1, nowhere, 0, None, nowhere, 0, status))
    expect_nothing(comm.Sendrecv(room, nowhere, 0, room, nowhere, 0, status))  # type: ignore[func-returns-value]
    expect_nothing(comm.Sendrecv(room, nowhere, source=nowhere, status=status))  # type: ignore[func-returns-value]
    expect_nothing(comm.Sendrecv_replace(room, nowhere, 0, nowhere, 0, status))  # type: ignore[func-returns-value]
    assert comm.probe(nowhere, status=status)
    expect_nothing(None)
    assert comm.iprobe(nowhere, status=status)
    expect_nothing(None)
    message = comm.mprobe(nowhere)
    assert message == MPI.MESSAGE_NO_PROC
    expect_nothing(message.recv(status))
    assert message == MPI.MESSAGE_NULL
    persistent = comm.Recv_init(room, nowhere)
    persistent.Start()
    expect_nothing(persistent.wait(status))
    comm.barrier()
    assert not comm.waiting()


@on_ranks(2)
def test_a_matched_message_is_received_by_its_holder_only(comm: Comm) -> None:
    if comm.rank == 0:
        comm.send("a", 1, 1)
        comm.send("b", 1, 1)
        comm.Send(np.arange(3), 1, 2)
        comm.Send(np.arange(3), 1, 2)
        comm.send("last", 1, 3)
        return
    status = MPI.Status()
    message = comm.mprobe(0, 1, status)
    assert (status.source, status.tag) == (0, 1)
    assert comm.recv(source=0, tag=1) == "b"
    assert message
    assert message.recv() == "a"
    assert message == MPI.MESSAGE_NULL
    assert not message
    with pytest.raises(UsageError, match="has been received already"):
        message.recv()
    comm.probe(tag=3)
    found = MPI.Message.iprobe(comm, 0, 2)
    assert found is not None
    room = np.zeros(3, int)
    with pytest.raises(MessageMismatch):
        found.Recv(room[:2])
    found.Recv(room, status)
    assert (room.tolist(), status.Get_count(room.dtype)) == ([0, 1, 2], 3)
    again = np.zeros(3, int)
    MPI.Message.Probe(comm, 0, 2).Irecv(again).Wait()
    assert again.tolist() == [0, 1, 2]
    assert comm.improbe(tag=9) is None
    assert MPI.Message.probe(comm).irecv().wait() == "last"


@on_ranks(2)
def test_persistent_requests_are_started_again_and_again(comm: Comm) -> None:
    other = 1 - comm.rank
    mine, theirs = np.zeros(2), np.zeros(2)
    pair = [comm.Recv_init(theirs, other, 4), comm.Send_init(mine, other, 4)]
    assert MPI.Request.waitany(pair) == (MPI.UNDEFINED, None)
    for number in range(3):
        mine[:] = 10 * number + comm.rank
        MPI.Prequest.Startall(pair)
        mine[:] = -1
        MPI.Request.Waitall(pair)
        assert theirs.tolist() == [10 * number + other] * 2
        assert all(pair)
    pair[0].Start()
    with pytest.raises(UsageError, match="started already"):
        pair[0].Start()
    pair[0].Cancel()
    pair[0].Wait()
    pair[0].Free()
    assert pair[0] == MPI.REQUEST_NULL
    with pytest.raises(UsageError, match="has been freed"):
        pair[0].Start()
    comm.barrier()
    synchronous = comm.Ssend_init(mine, other)
    synchronous.Start()
    comm.Recv(theirs, other)
    synchronous.Wait()


@on_ranks(2)
def test_replacing_and_combined_calls(comm: Comm) -> None:
    other = 1 - comm.rank
    room = np.full(2, comm.rank)
    comm.Sendrecv_replace(room, other, 1, other, 1)
    assert room.tolist() == [other] * 2
    comm.Isendrecv_replace(room, other, 1, other, 1).Wait()
    assert room.tolist() == [comm.rank] * 2


@on_ranks(1)
def test_other_calls_are_not_disturbed_by_posted_receives(comm: Comm) -> None:
    request = comm.irecv(tag="never")
    comm.send(1, 0, 1)
    assert comm.recv(tag=1) == 1
    with pytest.raises(TimeoutError):
        comm.recv(timeout_s=TIMEOUT_S)
    assert comm.allreduce(2) == 2
    comm.send(2, 0, "never")
    assert request.wait() == 2
    assert not comm.transport._queues.by_context


def test_the_end_of_a_sender_belongs_to_the_request_that_waits_for_it() -> None:
    def program(comm: Comm) -> Any:
        if comm.rank == 0:
            request = comm.irecv(source=1)
            with pytest.raises(PeerEnded):
                request.wait()
        return None

    run(2, program)


@on_ranks(4)
def test_requests_of_a_communicator_of_some_ranks_have_its_ranks(comm: Comm) -> None:
    """They go on when the program has dropped the communicator."""
    half = comm.Split(comm.rank % 2, -comm.rank)
    other, status = 1 - half.rank, MPI.Status()
    elsewhere = comm.irecv()
    requests = [half.irecv(source=other, tag=1), half.irecv(), half.issend("a", other, 1), half.isend("b", other, 2)]
    statuses = [MPI.Status() for _ in requests]
    matched, unmatched = half.issend("m", other, 3), half.improbe(source=other, tag=4)
    assert half.mprobe(other, 3, status).recv() == "m"
    assert unmatched is None
    assert status.source == other
    matched.wait()
    half.ssend("probed", other, 5) if half.rank else None
    if not half.rank:
        assert half.recv(source=1, tag=5) == "probed"
    del half
    gc.collect()
    comm.Dup()
    assert MPI.Request.waitall(requests, statuses) == ["a", "b", None, None]
    assert [one.source for one in statuses[:2]] == [other] * 2
    assert not elsewhere.test()[0]
    elsewhere.cancel()


def test_a_status_can_be_changed_and_copied() -> None:
    status = MPI.Status()
    assert (status.source, status.tag, status.count, status.error) == (MPI.ANY_SOURCE, MPI.ANY_TAG, 0, 0)
    status.Set_source(2)
    status.Set_tag(3)
    status.Set_error(0)
    status.Set_elements("i4", 5)
    status.Set_cancelled(True)
    copy = MPI.Status(status)
    assert copy == status
    assert (copy.source, copy.tag, copy.count, copy.Is_cancelled(), copy.Get_error()) == (2, 3, 20, True, 0)
    assert copy.Get_count(np.float64) == MPI.UNDEFINED
    assert copy.Get_count(np.dtype("f4")) == 5
    with pytest.raises(UsageError, match="is no type of elements"):
        copy.Get_count(object())


def test_a_status_that_a_tuple_lacks_is_not_told() -> None:
    """A list grows, as in mpi4py; a tuple keeps its length."""
    comm = MPI.COMM_SELF
    for call in (MPI.Request.Waitall, MPI.Request.Testall, MPI.Request.Get_status_all):
        requests = [comm.Irecv(np.zeros(1), 0, tag) for tag in range(3)]
        for tag in range(3):
            comm.Send(np.ones(1), 0, tag)
        statuses = (MPI.Status(), MPI.Status())
        assert call(requests, statuses)
        assert [status.tag for status in statuses] == [0, 1]
        MPI.Request.Waitall(requests, ())


def test_states_of_several_requests_can_be_asked_before_they_end() -> None:
    comm = MPI.COMM_SELF
    requests = [comm.irecv(source=0, tag=tag) for tag in range(3)]
    status, statuses = MPI.Status(), [MPI.Status()]
    assert MPI.Request.Get_status_any(requests, status) == (MPI.UNDEFINED, False)
    assert MPI.Request.Get_status_some(requests) == []
    comm.send("b", 0, 1)
    comm.send("c", 0, 2)
    assert MPI.Request.Get_status_any(requests, status) == (1, True)
    assert MPI.Request.Get_status_some(requests, statuses) == [1, 2]
    assert [status.tag, *(one.tag for one in statuses)] == [1, 1, 2]
    comm.send("a", 0, 0)
    assert MPI.Request.waitall(requests) == ["a", "b", "c"]
    assert MPI.Request.get_status_any(requests, status) == (MPI.UNDEFINED, True)
    assert (status.tag, MPI.Request.get_status_some(requests)) == (MPI.ANY_TAG, None)


def test_no_buffer_is_needed_for_messages_from_and_to_no_rank() -> None:
    comm, nowhere = MPI.COMM_SELF, MPI.PROC_NULL
    comm.Sendrecv_replace(None, nowhere, 0, nowhere, 0)
    comm.Recv(None, nowhere)
    comm.Irecv(None, nowhere).Wait()
    for begin in (comm.Send_init, comm.Ssend_init, comm.Bsend_init, comm.Rsend_init, comm.Recv_init):
        request = begin(None, nowhere)
        request.Start()
        assert request.Wait()
        with pytest.raises(UsageError, match="not None"):
            begin(None, 0)
    with pytest.raises(UsageError, match="not None"):
        comm.Sendrecv_replace(None, 0, 0, nowhere, 0)


def test_the_size_of_a_buffer_that_programs_give_to_irecv_is_no_source() -> None:
    comm = MPI.COMM_SELF
    request = comm.irecv(1 << 20, 0, 5)
    comm.send("long", 0, 5)
    assert request.wait() == "long"
    assert comm.irecv(0, MPI.PROC_NULL).wait() is None


def test_a_rank_or_root_that_does_not_exist_has_mpi4py_s_number() -> None:
    for call, number in (
        (lambda: MPI.COMM_SELF.send(1, 3), MPI.ERR_RANK),
        (lambda: MPI.COMM_SELF.bcast(1, root=3), MPI.ERR_ROOT),
        (lambda: MPI.COMM_SELF.Reduce(np.ones(1), np.ones(1), root=-1), MPI.ERR_ROOT),
    ):
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == number


def test_a_group_that_is_freed_is_equal_to_the_null_group() -> None:
    group, other = MPI.COMM_SELF.Get_group(), MPI.COMM_SELF.Get_group()
    group.Free()
    assert group == MPI.GROUP_NULL != other
    assert not group
    assert other
    with pytest.raises(UsageError, match="has been freed"):
        group.Incl([0])
    assert MPI.COMM_SELF.allreduce(2) == 2
