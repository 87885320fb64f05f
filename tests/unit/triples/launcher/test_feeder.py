"""The next task of the list: every task once."""

import pytest

from slurm_share.packing import TaskSpec
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


def test_waiting_tasks_are_counted_without_done_ones_and_up_to_a_number(tmp_path):
    feeder = Feeder(a_run(8, 2, distribution="dynamic"), range(2), {1, 7}, Claims(tmp_path, "n", deal.chunks(8, 2)))
    assert (feeder.count_waiting(100), feeder.count_waiting(2)) == (6, 2)
    assert feeder.take() == 0
    assert feeder.count_waiting(100) == 5
    while feeder.take() is not None:
        pass
    assert feeder.count_waiting(100) == 0
    assert Feeder(a_run(10, 2), range(2), {0}, None).count_waiting(100) == 9


def test_a_look_at_the_next_task_of_a_shared_queue_claims_nothing(tmp_path):
    run = a_run(6, 4, distribution="dynamic")
    first, second = (Feeder(run, range(2), {0, 1}, Claims(tmp_path, f"n{n}", deal.chunks(6, 4))) for n in range(2))
    assert (first.peek(), second.peek(), first.peek()) == (2, 2, 2)
    assert (second.take(), first.peek(), first.take(), second.peek()) == (2, 3, 3, 4)
    assert [first.take(), first.take(), first.take(), first.peek(), second.peek()] == [4, 5, None, None, None]


# ---- Order and priority ----


def specs_of(*priorities):
    return [TaskSpec(priority=priority) for priority in priorities]


def rest(feeder):
    found = []
    while (task := feeder.take()) is not None:
        found.append(task)
    return found


def queued(run, folder, specs=(), name="n0"):
    return Feeder(run, range(run.processes), {2}, Claims(folder, name, deal.chunks_of(run, specs)), specs)


def test_higher_priorities_begin_first_and_equal_ones_as_written_or_as_the_order_says(tmp_path):
    specs = specs_of(0, 5, 9, -1, 5, 0)
    assert rest(queued(a_run(6, 2, distribution="dynamic"), tmp_path / "a", specs)) == [1, 4, 0, 5, 3]
    reverse = a_run(6, 2, distribution="dynamic", order="reversed")
    assert rest(queued(reverse, tmp_path / "b", specs)) == [4, 1, 5, 0, 3]
    assert rest(queued(reverse, tmp_path / "c")) == [5, 4, 3, 1, 0]
    cyclic = a_run(6, 2, distribution="cyclic")
    assert everything(Feeder(cyclic, range(2), set(), None, specs), [0]) == [(0, 2), (0, 4), (0, 0)]


def test_every_launcher_has_the_same_random_order_and_another_seed_another_one(tmp_path):
    run = a_run(200, 4, distribution="dynamic", order="random:7")
    nodes = [queued(run, tmp_path / "q", name=f"n{n}") for n in range(2)]
    found = []
    while turn := [task for one in nodes if (task := one.take()) is not None]:
        found += turn
    assert sorted(found) == [task for task in range(200) if task != 2]
    orders = [list(deal.order_of(a_run(200, 4, order=f"random:{seed}"), (), 0, 200)) for seed in (7, 7, 8)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(200))


def test_nodes_begin_with_the_highest_priorities_whoever_of_them_comes_first(tmp_path):
    run = a_run(64, 2, distribution="dynamic")
    specs = specs_of(*range(64))
    nodes = [queued(run, tmp_path / "q", specs, f"n{n}") for n in range(2)]
    first = [one.take() for one in nodes for _ in range(8)]
    assert set(first) == set(range(48, 64))


def test_added_tasks_of_a_higher_priority_go_before_what_no_node_has_taken(tmp_path):
    run = a_run(40, 2, distribution="dynamic")
    specs = []
    feeder = queued(run, tmp_path / "q", specs)
    begun = [feeder.take() for _ in range(2)]
    specs += [TaskSpec()] * 40 + specs_of(0, 3, 7)
    feeder.extend(deal.added_chunks(run, 40, 3, specs), lambda: None)
    found = begun + rest(feeder)
    assert sorted(found) == [task for task in range(43) if task != 2]
    assert found.index(42) < found.index(41) < found.index(39) < found.index(40)
