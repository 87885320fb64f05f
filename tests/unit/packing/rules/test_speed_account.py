from __future__ import annotations

from slurm_share.packing.rules.speed_account import GroupResult, group_text, sentences


def group(tasks=(1, 2), seconds=100.0, stp=1.6, slowdowns=(1.25, 1.25), **more):
    fields = {"gpu": 0, "from_s": 0.0, "windows": 3, "error": 0.02, "delta": None, **more}
    return GroupResult(tasks=tasks, seconds=seconds, stp=stp, slowdowns=slowdowns, **fields)


def test_nothing_measured_is_nothing_said():
    assert sentences([]) == sentences([group(seconds=0.0)]) == []


def test_means_are_over_tasks_and_over_time():
    """Task 1 was in both groups: 1.25 for 300 s and 2.25 for 100 s, so 1.5; tasks 2 and 3 took 1.25 and 1.75 times."""
    groups = [group(seconds=300.0), group(tasks=(1, 3), slowdowns=(2.25, 1.75), stp=0.8)]
    first, *rest = sentences(groups)
    assert first == (
        "together, a task took 1.5 x its time alone (ANTT), GPUs did 1.4 x (STP); measured of 3 tasks in 2 groups"
    )
    assert rest == [group_text(one) for one in groups]


def test_only_the_groups_that_ran_longest_are_listed():
    groups = [group(seconds=float(number)) for number in range(1, 20)]
    assert sentences(groups)[1:] == [group_text(one) for one in groups[:-4:-1]]


def test_many_tasks_of_a_group_are_not_all_listed():
    text = group_text(group(tasks=tuple(range(12)), slowdowns=(1.5,) * 12))
    assert text.startswith("GPU 0, tasks 0 1 2 3 4 5 6 7 and 4 more: 1.60 +- 0.02 of one at a time for ")
