"""Which tasks are given up after others of their script ran out of memory with a whole GPU."""

import pytest
from packing_values import A100, estimate, key, waiting

from slurm_share.packing.records import TaskAsk
from slurm_share.packing.rules.queue import DeadTasks

HAD = 40_000


def dead(sizes, *, count=3, word=None):
    """Return three dead tasks of one script: numbers 0 to 2, commands d0 to d2, with estimates of the same source."""
    found = DeadTasks()
    for number in range(count):
        ask = TaskAsk(task=number, key=key(f"d{number}"), gpu_mem_mib=word)
        found.died(ask, sizes or estimate(), HAD)
    return found


def line(mib, **fields):
    return estimate(mib, "line", **fields)


@pytest.mark.parametrize(
    ("task", "is_hopeless"),
    [
        (waiting(9, key=key("d1")), True),  # the command of a dead task
        (waiting(9, key=key("d1", "other")), False),  # another script
        (waiting(9, key=key("new")), False),  # nothing is known of it
        (waiting(9, key=key("new"), size=line(30_000)), True),
        (waiting(9, key=key("new"), size=line(29_999)), False),
        (waiting(9, key=key("new"), size=line(50_000)), True),
        (waiting(9, key=key("new"), word=30_000), True),
        (waiting(9, key=key("new"), word=29_999), False),
        (waiting(9, key=key("new"), size=estimate(50_000, "family")), False),  # the same for all tasks of the script
        (waiting(9, key=key("new"), size=estimate(50_000, "sibling")), False),
        (waiting(9, key=key("new"), size=line(50_000, is_elastic=True)), False),
        (waiting(9, key=key("d1"), size=line(50_000, was_done=True)), False),
        (waiting(9), False),
    ],
)
def test_only_a_task_that_is_at_least_as_large_as_a_dead_one_is_given_up(task, is_hopeless):
    assert bool(dead(line(30_000)).why_hopeless(task)) == is_hopeless


def test_two_dead_tasks_are_not_enough():
    assert dead(line(30_000), count=2).why_hopeless(waiting(9, key=key("d1"))) == ""


def test_a_dead_task_without_a_size_counts_with_the_memory_that_it_had():
    found = dead(None)
    assert found.why_hopeless(waiting(9, key=key("new"), size=line(HAD - 1))) == ""
    assert found.why_hopeless(waiting(9, key=key("new"), size=line(HAD))).endswith(
        "and task 0 of the same script, with 39.1 GiB, ran out of GPU memory with a GPU to itself (39.1 GiB)"
    )


def test_a_command_that_was_done_in_this_run_is_tried():
    found = dead(line(30_000))
    found.done(TaskAsk(task=8, key=key("d1")), estimate())
    assert found.why_hopeless(waiting(9, key=key("d1"))) == ""
    assert found.why_hopeless(waiting(9, key=key("d0"))) == (
        "task 0, the same command, ran out of GPU memory with a GPU to itself (39.1 GiB)"
    )


def test_one_number_for_all_tasks_gives_up_none_after_one_was_done_with_it():
    found = dead(None, word=10_000)
    task = waiting(9, key=key("new"), word=10_000)
    assert found.why_hopeless(task).startswith("its --gpu-mem is 9.8 GiB, and task 0 of the same script, with 9.8 GiB")
    found.done(TaskAsk(task=8, key=key("small"), gpu_mem_mib=10_000), estimate(10_000, "user"))
    assert found.why_hopeless(task) == ""
    assert A100 in dict(task.estimates)
