"""The choice of the next task: every task once, and failed tasks again."""

import pytest

from slurm_share.packing.records import Tries
from slurm_share.packing.rules.slots import RetryNeed, need_of
from slurm_share.triples.launcher.claims import Claims
from slurm_share.triples.launcher.feeder import Feeder, known_needs
from slurm_share.triples.records import Ended, Run
from slurm_share.triples.rules import deal


def a_run(tasks, processes, **more):
    return Run(name="x", command=("/bin/true",), cwd="/", triple=None, processes=processes, tasks=tasks, **more)


def always(one):
    return True


def shown(one):
    return one.task, one.attempt, one.after, need_of(one)


def everything(feeder, ranks, may_run=always):
    """Ask for each rank in turn until nobody gets anything: (rank, task) pairs."""
    found, before = [], -1
    while len(found) != before:
        before = len(found)
        for rank in ranks:
            one = feeder.next(rank, may_run)
            if one is not None:
                found.append((rank, one.task))
    return found


@pytest.mark.parametrize("distribution", ["block", "cyclic"])
def test_each_process_gets_what_was_dealt_to_it(distribution):
    run = a_run(16, 4, distribution=distribution)
    found = everything(Feeder(run, range(2, 4), {5, 6, 9}, None), range(2, 4))
    expected = {(rank, task) for rank in (2, 3) for task in deal.tasks_of(run, rank) if task not in {5, 6, 9}}
    assert set(found) == expected
    assert len(found) == len(expected)


def test_two_nodes_share_a_queue_and_no_task(tmp_path):
    run = a_run(100, 4, distribution="dynamic")
    chunks = deal.chunks(100, 4)
    feeders = [Feeder(run, range(2 * n, 2 * n + 2), {7, 50}, Claims(tmp_path, f"n{n}", chunks)) for n in range(2)]
    found = []
    while turns := [one for feeder in feeders for _ in range(3) if (one := feeder.next(0, always))]:
        found += [one.task for one in turns]
    assert sorted(found) == [task for task in range(100) if task not in (7, 50)]


def test_a_failed_attempt_comes_again():
    feeder = Feeder(a_run(1, 1, retries=2), range(1), set(), None)
    one = feeder.next(0, always)
    assert feeder.again(one, "failed", RetryNeed())
    assert shown(feeder.next(0, always)) == (0, 2, "failed", RetryNeed())
    assert feeder.next(0, always) is None


def test_waiting_for_memory_is_no_attempt():
    feeder = Feeder(a_run(2, 1, retries=1), range(1), set(), None)
    one = feeder.next(0, always)
    assert feeder.again(one, "gpu memory", RetryNeed(Tries(own_memory=1), 2400))

    def no_room(one):
        return one.after != "gpu memory"

    assert feeder.next(0, no_room).task == 1
    for _ in range(10):
        assert feeder.next(0, no_room) is None
    assert feeder.waiting == 1
    assert shown(feeder.next(0, always)) == (0, 2, "gpu memory", RetryNeed(Tries(own_memory=1), 2400))


def test_what_ran_out_of_memory_in_an_earlier_job_is_known():
    known = {1: RetryNeed(Tries(own_memory=1), 6646)}
    feeder = Feeder(a_run(3, 1), range(1), set(), None, known)

    def no_room(one):
        return one.tries.own_memory == 0

    found = [feeder.next(0, no_room) for _ in range(4)]
    assert [None if one is None else one.task for one in found] == [0, None, 2, None]
    assert (feeder.waiting, feeder.memory_failures, feeder.left()) == (1, 1, 0)
    assert shown(feeder.next(0, always)) == (1, 1, "gpu memory", RetryNeed(Tries(own_memory=1), 6646))


def test_nothing_starts_after_closing():
    feeder = Feeder(a_run(4, 1, retries=5), range(1), set(), None)
    one = feeder.next(0, always)
    assert feeder.again(one, "failed", RetryNeed())
    feeder.closed = True
    assert feeder.next(0, always) is None
    assert feeder.waiting == 0
    assert not feeder.again(one, "failed", RetryNeed())


def test_what_is_left_is_counted():
    feeder = Feeder(a_run(10, 2), range(2), {0}, None)
    assert feeder.left() == 9
    feeder.next(0, always)
    assert feeder.left() == 8


def test_a_look_at_the_next_task_of_a_shared_queue_claims_nothing(tmp_path):
    run = a_run(6, 4, distribution="dynamic")
    first, second = (Feeder(run, range(2), {0, 1}, Claims(tmp_path, f"n{n}", deal.chunks(6, 4))) for n in range(2))
    assert (first.peek(), second.peek(), first.peek()) == (2, 2, 2)
    assert (second.take(), first.peek(), first.take(), second.peek()) == (2, 3, 3, 4)
    assert [first.take(), first.take(), first.take(), first.peek(), second.peek()] == [4, 5, None, None, None]


def test_tasks_that_ran_out_of_memory_in_earlier_jobs_are_known():
    last = {
        task: Ended(task=task, rank=0, attempt=1, outcome=outcome, node="n1", job="7", started=1.0, seconds=1.0, **more)
        for task, outcome, more in [
            (0, "done", {}),
            (1, "gpu memory", {"gpu_cap_mib": 3323, "peak_gpu_mib": 3000}),
            (2, "failed", {}),
            (3, "gpu memory", {}),
        ]
    }
    found = known_needs(last)
    assert {task: (one.failures, one.floor_mib) for task, one in found.items()} == {1: (1, 6646), 3: (1, 1)}
