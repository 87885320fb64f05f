"""The next task of the list: every task once."""

import pytest

from slurm_share.triples.launcher.claims import Claims
from slurm_share.triples.launcher.feeder import Feeder
from slurm_share.triples.records import Run
from slurm_share.triples.rules import deal


def a_run(tasks, processes, **more):
    return Run(name="x", command=("/bin/true",), cwd="/", triple=None, processes=processes, tasks=tasks, **more)


def everything(feeder, ranks):
    """Ask for each rank in turn until nobody gets anything: (rank, task) pairs."""
    found, before = [], -1
    while len(found) != before:
        before = len(found)
        for rank in ranks:
            task = feeder.take(rank)
            if task is not None:
                found.append((rank, task))
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
    while turns := [task for feeder in feeders for _ in range(3) if (task := feeder.take(0)) is not None]:
        found += turns
    assert sorted(found) == [task for task in range(100) if task not in (7, 50)]


def test_nothing_starts_after_closing():
    feeder = Feeder(a_run(4, 1), range(1), set(), None)
    assert feeder.take(0) == 0
    feeder.closed = True
    assert feeder.take(0) is None
    assert feeder.take() is None


def test_what_is_left_is_counted():
    feeder = Feeder(a_run(10, 2), range(2), {0}, None)
    assert feeder.left() == 9
    feeder.take(0)
    assert feeder.left() == 8


def test_a_look_at_the_next_task_of_a_shared_queue_claims_nothing(tmp_path):
    run = a_run(6, 4, distribution="dynamic")
    first, second = (Feeder(run, range(2), {0, 1}, Claims(tmp_path, f"n{n}", deal.chunks(6, 4))) for n in range(2))
    assert (first.peek(), second.peek(), first.peek()) == (2, 2, 2)
    assert (second.take(), first.peek(), first.take(), second.peek()) == (2, 3, 3, 4)
    assert [first.take(), first.take(), first.take(), first.peek(), second.peek()] == [4, 5, None, None, None]
