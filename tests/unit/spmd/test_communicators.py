"""Communicators of some ranks: Split, Dup, Create, groups, and what their errors say."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest
from in_threads import on_ranks, run, run_ranks

from slurm_share.spmd import MPI
from slurm_share.spmd.comm import COMM_NULL, COMM_SELF, COMM_WORLD, Comm
from slurm_share.spmd.errors import CollectiveMismatch, Deadlock, ReceiveTimeout, UsageError

SHORT_S = 0.05


@on_ranks(6)
def test_split_makes_parts_in_the_order_of_their_keys(comm: Comm) -> None:
    part = comm.Split(comm.rank % 2, -comm.rank)
    assert (part.size, part.rank) == (3, 2 - comm.rank // 2)
    assert part.allgather(comm.rank) == sorted(range(comm.rank % 2, 6, 2), reverse=True)
    assert part.bcast(comm.rank, 1) == 2 + comm.rank % 2
    assert comm.allreduce(1) == 6


@on_ranks(5)
def test_ranks_of_equal_keys_keep_their_order(comm: Comm) -> None:
    assert comm.Split(0, 7).rank == comm.rank


@on_ranks(4)
def test_a_rank_of_no_colour_gets_no_communicator(comm: Comm) -> None:
    part = comm.Split(MPI.UNDEFINED if comm.rank == 2 else 0)
    assert (part == MPI.COMM_NULL) == (comm.rank == 2) == (not part)
    if comm.rank == 2:
        with pytest.raises(UsageError, match="COMM_NULL"):
            part.barrier()
    else:
        assert part.allgather(comm.rank) == [0, 1, 3]


@on_ranks(2)
@pytest.mark.parametrize(("color", "key"), [(-1, 0), ("a", 0), (0, 1.5)])
def test_colours_and_keys_are_checked(comm: Comm, color: Any, key: Any) -> None:
    with pytest.raises(UsageError, match="Split: a "):
        comm.Split(color, key)


@on_ranks(2)
def test_messages_of_two_communicators_are_apart(comm: Comm) -> None:
    other, twin = 1 - comm.rank, comm.Dup()
    third = twin.Dup()
    for number, one in enumerate((third, comm, twin)):
        one.send(number, other, 5)
    assert [one.recv(source=other, tag=5) for one in (comm, twin, third)] == [1, 2, 0]
    comm.send("left", other)
    with pytest.raises(ReceiveTimeout):
        twin.recv(timeout_s=SHORT_S)
    assert not twin.iprobe()
    assert comm.recv() == "left"


@on_ranks(4)
def test_a_part_has_its_own_numbers_of_ranks_in_messages(comm: Comm) -> None:
    part = comm.Split(comm.rank % 2)
    if part.rank == 1:
        part.send("x", 0, 3)
    else:
        status = MPI.Status()
        part.probe(status=status)
        assert status.source == 1
        assert [(one.source, one.tag) for one in part.waiting()] == [(1, 3)]
        room = np.zeros(1)
        with pytest.raises(UsageError):
            part.Recv(room)
        assert part.recv(source=1, status=status) == "x"
        assert status.source == 1
        with pytest.raises(UsageError, match="this communicator has ranks 0 to 1"):
            part.send("x", 2)


@on_ranks(4)
def test_requests_and_matched_messages_have_ranks_of_the_part(comm: Comm) -> None:
    part = comm.Split(comm.rank % 2)
    other, status = 1 - part.rank, MPI.Status()
    room = np.zeros(3)
    requests = [part.Irecv(room, other, 1), part.irecv(source=MPI.ANY_SOURCE, tag=2)]
    comm.send("apart", (comm.rank + 2) % 4, 2)
    part.Send(np.full(3, float(comm.rank)), other, 1)
    part.ssend("x", other, 2) if part.rank else part.isend("x", other, 2)
    assert requests[1].wait(status) == "x"
    assert (status.source, status.tag) == (other, 2)
    requests[0].wait(status)
    assert status.source == other
    assert room.tolist() == [(comm.rank + 2) % 4] * 3
    part.send("matched", other, 5)
    assert part.mprobe(tag=5, status=status).recv() == "matched"
    assert status.source == other
    assert comm.recv(tag=2) == "apart"


@on_ranks(6, per_node=2)
def test_a_communicator_of_each_node(comm: Comm) -> None:
    near = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert (near.size, near.rank, near.nodes) == (2, comm.rank % 2, (comm.node,))
    assert not comm.Split_type(MPI.UNDEFINED)
    with pytest.raises(UsageError, match="COMM_TYPE_SHARED"):
        comm.Split_type(77)
    heads = comm.Split(0 if near.rank == 0 else MPI.UNDEFINED)
    if heads:
        assert heads.nodes == ("n1", "n2", "n3")


@on_ranks(4, per_node=2)
def test_ranks_of_a_node_that_are_not_consecutive_are_counted(comm: Comm) -> None:
    mixed = comm.Split(0, comm.rank % 2)
    assert mixed.allgather(comm.rank) == [0, 2, 1, 3]
    assert (mixed.nodes, mixed.node_size, mixed.node_rank) == (("n1", "n2"), 2, comm.rank % 2)
    assert mixed.Split_type(MPI.COMM_TYPE_SHARED).size == 2


@on_ranks(5)
def test_a_communicator_of_a_group(comm: Comm) -> None:
    group = comm.Get_group().Incl([3, 1])
    made = comm.Create(group)
    assert bool(made) == (comm.rank in (1, 3))
    if made:
        assert made.allgather(comm.rank) == [3, 1]
        assert made.Get_group().Compare(group) == MPI.IDENT
    disjoint = comm.Create(comm.group.Incl([0, 1] if comm.rank < 2 else [2, 3, 4]))
    assert disjoint.size == (2 if comm.rank < 2 else 3)


@on_ranks(3)
def test_members_that_give_different_groups_are_refused_on_all_ranks(comm: Comm) -> None:
    with pytest.raises(UsageError, match=r"rank 0 gives the group of ranks \(0, 1\), rank 1 \(1, 2\)"):
        comm.Create(comm.group.Incl([0, 1] if comm.rank == 0 else [1, 2]))


@on_ranks(4)
def test_only_the_members_make_a_communicator_of_a_group(comm: Comm) -> None:
    if comm.rank == 3:
        return
    made = comm.Create_group(comm.group.Incl([2, 0, 1]), tag=4)
    assert made.allgather(comm.rank) == [2, 0, 1]
    nested = made.Create_group(made.group.Excl([1]))
    assert bool(nested) == (comm.rank != 0)
    if nested:
        assert nested.allgather(comm.rank) == [2, 1]


@on_ranks(4)
def test_a_group_with_a_rank_from_outside_is_refused(comm: Comm) -> None:
    part = comm.Split(comm.rank // 2)
    with pytest.raises(UsageError, match=r"rank \d of the run is in the group, and not in this communicator"):
        part.Create(comm.Get_group())


@on_ranks(5)
def test_groups(comm: Comm) -> None:
    world = comm.Get_group()
    assert (world.rank, world.size, comm.group.size, comm.group.Get_rank()) == (comm.rank, 5, 5, comm.rank)
    even, odd = world.Incl([0, 2, 4]), world.Excl([0, 2, 4])
    assert even.rank == (comm.rank // 2 if comm.rank % 2 == 0 else MPI.UNDEFINED)
    assert list(MPI.Group.Union(odd, even).members) == [1, 3, 0, 2, 4]
    assert list(MPI.Group.Intersection(world, odd).members) == [1, 3]
    assert MPI.Group.Difference(odd, odd) == MPI.GROUP_EMPTY
    assert MPI.Group.Compare(world, comm.group) == MPI.IDENT
    assert MPI.Group.Compare(world, world.Incl([4, 3, 2, 1, 0])) == MPI.SIMILAR
    assert world.Compare(odd) == MPI.UNEQUAL
    assert list(world.Range_incl([(4, 0, -2), (1, 1, 1)]).members) == [4, 2, 0, 1]
    assert list(world.Range_excl([(0, 4, 2)]).members) == [1, 3]
    assert world.Translate_ranks([1, 2, MPI.PROC_NULL], odd) == [0, MPI.UNDEFINED, MPI.PROC_NULL]
    assert MPI.Group.Translate_ranks(odd, [0, 1], world) == [1, 3]
    assert odd.Translate_ranks() == [1, 3]
    assert not MPI.GROUP_NULL
    assert MPI.GROUP_EMPTY
    assert isinstance(comm.group, MPI.Group)
    for wrong in ([5], [-1], [0, 0]):
        with pytest.raises(UsageError):
            world.Incl(wrong)
    with pytest.raises(UsageError, match="step"):
        world.Range_incl([(0, 1, 0)])
    with pytest.raises(UsageError, match="pickled"):
        pickle.dumps(world)


@on_ranks(3)
def test_comparisons_of_communicators(comm: Comm) -> None:
    twin = comm.Dup()
    assert comm.Compare(comm) == MPI.IDENT == MPI.Comm.Compare(comm, Comm(comm))
    assert comm.Compare(twin) == MPI.CONGRUENT
    assert comm.Compare(comm.Split(0, -comm.rank)) == MPI.SIMILAR
    assert comm.Compare(comm.Split(comm.rank)) == MPI.UNEQUAL
    assert comm == Comm(comm) != twin
    assert len({comm, Comm(comm), twin}) == 2
    assert comm != 3
    assert Comm(comm).allgather(1) == [1, 1, 1]
    assert Comm(comm).group is comm.group


@on_ranks(2)
def test_a_freed_communicator_has_no_calls_and_equals_none(comm: Comm) -> None:
    twin = comm.Dup()
    twin.Free()
    assert twin == MPI.COMM_NULL
    assert not twin
    with pytest.raises(UsageError, match="has been freed"):
        twin.barrier()
    with pytest.raises(UsageError, match="cannot be freed"):
        twin.Free()
    with pytest.raises(UsageError, match="MPI_COMM_WORLD cannot be freed"):
        MPI.COMM_WORLD.Free()


@on_ranks(2)
def test_names_and_copies(comm: Comm) -> None:
    names = [one.name for one in (COMM_WORLD, COMM_SELF, COMM_NULL)]
    assert names == ["MPI_COMM_WORLD", "MPI_COMM_SELF", "MPI_COMM_NULL"]
    twin = comm.Dup()
    assert twin.name == ""
    twin.name = "rows"
    assert twin.Get_name() == "rows"
    assert repr(twin) == f"<Comm rows: rank {comm.rank} of 2 on n1>"
    assert copy.copy(twin) is copy.deepcopy(twin) is twin
    assert pickle.loads(pickle.dumps(COMM_WORLD)) is COMM_WORLD
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(twin)
    assert (comm.Is_inter(), comm.is_inter, comm.is_intra, comm.Get_topology()) == (False, False, True, MPI.UNDEFINED)
    assert comm.Get_parent() == MPI.COMM_NULL
    assert isinstance(twin, MPI.Intracomm)


def test_the_communicator_of_one_rank_is_used_without_others() -> None:
    assert COMM_SELF.size == 1
    assert COMM_SELF.allgather(5) == [5]
    COMM_SELF.send("x", 0)
    assert COMM_SELF.recv() == "x"
    with pytest.raises(Deadlock, match="there is no other rank"):
        COMM_SELF.recv()
    assert COMM_WORLD.Dup().allreduce(2) == 2


def test_communicators_without_references_and_their_messages_are_forgotten() -> None:
    def program(transport: Any) -> None:
        comm = Comm(transport)
        for number in range(30):
            twin = comm.Dup()
            twin.send(number, 1 - comm.rank)
            twin.barrier()
            del twin
        comm.barrier()
        if comm.rank == 0:  # two threads cannot collect at the same time
            gc.collect()
        comm.barrier()
        last = comm.Dup()
        queues = transport._queues
        assert list(queues.members) == [last.group.communicator]
        assert len(queues.by_context) == 0
        assert len(queues._finished) <= 2
        assert queues.late is None

    run_ranks(2, program)


@on_ranks(4)
def test_parts_that_make_different_calls_do_not_disturb_each_other(comm: Comm) -> None:
    part = comm.Split(comm.rank // 2)
    if comm.rank < 2:
        assert part.allreduce(comm.rank) == 1
    else:
        part.barrier()
        assert part.gather(comm.rank) == ([2, 3] if comm.rank == 2 else None)
    assert comm.allreduce(1) == 4


def test_a_mismatch_in_a_part_names_the_communicator_and_ranks_of_the_run() -> None:
    def program(comm: Comm) -> None:
        part = comm.Split(comm.rank % 2)
        if comm.rank == 3:
            part.barrier()
        else:
            part.bcast(1)

    with pytest.raises(CollectiveMismatch) as raised:
        run(4, program)
    assert {raised.value.rank, raised.value.peer} == {1, 3}
    assert "of communicator 3 (ranks 1,3 of the run): rank " in str(raised.value)
    assert "its ranks must make" in str(raised.value)


def test_a_deadlock_in_a_part_is_no_mismatch_and_names_the_communicator() -> None:
    def program(comm: Comm) -> None:
        part = comm.Split(comm.rank % 2)
        if comm.rank == 0:
            part.barrier()
        elif comm.rank == 1:
            part.bcast(None, 1)
        else:
            part.recv(source=0, tag=9)

    with pytest.raises(Deadlock) as raised:
        run(4, program)
    assert "(collective call 1 of communicator 3 (ranks 0,2 of the run)) for rank 2" in str(raised.value)
    assert "rank 3 waits in recv for (1, 9) of communicator 3 (ranks 1,3 of the run)" in str(raised.value)


@pytest.mark.parametrize("per_node", [8, 3])
@pytest.mark.parametrize("size", range(1, 9))
def test_random_nested_communicators_compute_what_a_model_does(size: int, per_node: int) -> None:
    def program(comm: Comm) -> None:
        from communicator_cases import run_nested

        run_nested(comm, seed=size * 10 + per_node, steps=40)

    run(size, program, per_node=per_node)


@on_ranks(4, windows=True)
def test_large_bodies_in_parts(comm: Comm) -> None:
    part = comm.Split(comm.rank % 2, comm.rank > 7)
    body = np.full(1 << 17, float(comm.rank))
    total = np.empty_like(body)
    part.Allreduce(body, total)
    assert (total == 2 + 2 * (comm.rank % 2)).all()
    assert [int(one[0]) for one in part.allgather(body)] == [comm.rank % 2, comm.rank % 2 + 2]
