"""pPython's message calls do what programs for pPython rely on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ppython_ranks import on_ranks

from slurm_share.spmd.errors import UsageError
from slurm_share.spmd.ppython import messages as m
from slurm_share.spmd.ppython.world import world


def test_messages_of_one_tag_arrive_in_the_order_of_their_sending() -> None:
    def program(rank: int) -> Any:
        if rank == 0:
            m.SendMsg(1, 7, "first")
            m.SendMsg(1, 7, "second")
            return None
        return [m.RecvMsg(0, 7), m.RecvMsg(0, 7)]

    assert on_ranks(2, program)[1] == [("first",), ("second",)]


def test_a_number_and_its_digits_are_one_tag_and_others_are_not() -> None:
    def program(rank: int) -> Any:
        if rank == 0:
            for tag in ("07", 7, "x", -3, 8.0):
                m.SendMsg(1, tag, tag)
            return None
        return [m.RecvMsg(0, tag)[0] for tag in ("-3", "7", "x", "8.0", "07")]

    assert on_ranks(2, program)[1] == [-3, 7, "x", 8.0, "07"]


def test_a_sequence_of_one_rank_gets_the_message_and_the_sender_itself_is_left_out() -> None:
    def program(rank: int) -> Any:
        if rank == 0:
            m.SendMsg([1], 1, np.arange(3), "a")
            m.SendMsg(range(3), 2, "to all")
            return m.ProbeMsg("*", "*")
        got = [m.RecvMsg(0, 1)] if rank == 1 else []
        return [*got, m.RecvMsg(0, 2)]

    first, second, third = on_ranks(3, program)
    assert first == ([], [])
    assert second[0][0].tolist() == [0, 1, 2]
    assert second[0][1:] == ("a",)
    assert second[1] == third[0] == ("to all",)


def test_what_SendMsg_sent_is_one_tuple_for_MPI_Recv_and_values_of_MPI_Send_are_the_tuple() -> None:
    def program(rank: int) -> Any:
        comm = world().describe()
        if rank == 0:
            m.SendMsg(1, 1, "a", "b")
            m.MPI_Send(1, 2, comm, "c", "d")
            m.MPI_Send(1, 3, comm, "e")
            return None
        return m.MPI_Recv(0, 1, comm), m.MPI_Recv(0, 2, comm), m.RecvMsg(0, 3)

    assert on_ranks(2, program)[1] == ((("a", "b"),), ("c", "d"), "e")


def test_a_received_array_is_the_receivers_own_and_the_senders_may_change() -> None:
    def program(rank: int) -> Any:
        if rank == 0:
            sent = np.zeros(4)
            m.SendMsg(1, 1, sent)
            sent[:] = 9
            return None
        (got,) = m.RecvMsg(0, 1)
        got += 1
        return got.tolist()

    assert on_ranks(2, program)[1] == [1.0] * 4


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_broadcast_returns_the_sources_values_on_every_rank(size: int) -> None:
    def program(rank: int) -> Any:
        source = size - 1
        comm = world().describe()
        one = m.BcastMsg(source, 4, rank, "x")
        return one, m.MPI_Bcast(source, "t", comm, rank), m.MPI_Bcast(source, "t", comm, (rank, rank))

    last = size - 1
    assert on_ranks(size, program) == [((last, "x"), (last,), ((last, last),))] * size


def test_a_broadcast_with_another_tag_is_refused() -> None:
    with pytest.raises(UsageError, match="tag 6, rank 0 in one with tag 5"):
        on_ranks(2, lambda rank: m.BcastMsg(0, 5 + rank, "x"))


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_multicasts_of_any_source_reach_their_destinations_only(size: int) -> None:
    def program(rank: int) -> Any:
        comm = world().describe()
        others = [other for other in range(size) if other != 1]
        first = m.multicast([1], others, np.full(2, rank))
        second = m.multicast(np.array([0]), [], rank)
        tree = m.MPI_Tcast(0, range(size), "t", comm, rank, "y")
        star = m.MPI_Mcast(0, range(size), 3, comm, rank)
        return first.tolist(), second, tree, star

    assert on_ranks(size, program) == [([1, 1], rank, (0, "y"), (0,)) for rank in range(size)]


def test_a_multicast_to_its_own_source_is_refused() -> None:
    with pytest.raises(UsageError, match="rank 0 is source and destination"):
        on_ranks(2, lambda rank: m.multicast([0], [0, 1], rank))


def test_a_probe_lists_numeric_tags_and_takes_patterns() -> None:
    def program(rank: int) -> Any:
        if rank == 1:
            for tag in (12, "a1", 3):
                m.SendMsg(0, tag, tag)
        world().comm.barrier()
        if rank == 1:
            return None
        asked = [m.ProbeMsg("*", "*", 3), m.ProbeMsg(1, "1*"), m.ProbeMsg(0, "*"), m.MPI_Probe("*", 3, None)]
        m.RecvMsg(1, 12)
        return [*asked, m.ProbeMsg(1, "*")]

    assert on_ranks(2, program)[0] == [
        ([1, 1], [12, 3], ["12", "a1", "3"]),
        ([1], [12]),
        ([], []),
        ([1], [3]),
        ([1], [3]),
    ]


def test_saved_messages_can_be_received_again_and_a_later_one_takes_their_place() -> None:
    def program(rank: int) -> Any:
        if rank == 0:
            m.SendMsg(1, 1, [1, 2])
            world().comm.barrier()
            m.SendMsg(1, 1, "later")
            world().comm.barrier()
            return None
        comm = m.pyMPI_Save_messages(world().describe(), 1)
        (first,) = m.RecvMsg(0, 1)
        first.append(3)
        again = m.RecvMsg(0, 1)
        probed = m.ProbeMsg(0, 1)
        world().comm.barrier()
        world().comm.barrier()
        later = [m.RecvMsg(0, 1), m.RecvMsg(0, 1)]
        m.pyMPI_Save_messages(comm, 0)
        return again, probed, later, world().saved

    assert on_ranks(2, program)[1] == (([1, 2],), ([0], [1]), [("later",), ("later",)], {})


@pytest.mark.parametrize(("ops", "expected"), [("+", 10), ("sum", 10), ("min", 1), ("max", 4)])
def test_gagg_combines_numbers_and_arrays(ops: str, expected: int) -> None:
    def program(rank: int) -> Any:
        return m.gagg(rank + 1, 2, ops), m.gagg(np.full(2, rank + 1), 2, ops)

    results = on_ranks(4, program)
    assert results[2][0] == expected
    assert results[2][1].tolist() == [expected] * 2
    assert [results[rank][0] for rank in (0, 1, 3)] == [1, 2, 4]


def test_gagg_of_a_subset_joins_lists_from_the_destination_on() -> None:
    def program(rank: int) -> Any:
        return m.gagg([rank], 3, "+", [1, 3, 4])

    assert on_ranks(5, program) == [[0], [1], [2], [3, 4, 1], [4]]


def test_gagg_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="no operation 'mean'"):
        on_ranks(2, lambda rank: m.gagg(rank, 0, "mean"))
    with pytest.raises(UsageError, match="rank 1, which gets the result"):
        on_ranks(2, lambda rank: m.gagg(rank, 1, "+", [0]))


def test_finalize_ends_every_rank_but_the_first() -> None:
    def program(rank: int) -> Any:
        try:
            m.MPI_Finalize()
        except SystemExit as ended:
            return ended.code
        return "goes on"

    assert on_ranks(2, program) == ["goes on", 0]


def test_the_communicator_tells_rank_size_and_nodes() -> None:
    def program(rank: int) -> Any:
        comm = world().describe()
        return m.MPI_Comm_rank(comm), m.MPI_Comm_size(comm), comm["machine_id"], comm["machine_db"]["n_machine"]

    assert on_ranks(2, program) == [(0, 2, [0, 0], 1), (1, 2, [0, 0], 1)]
