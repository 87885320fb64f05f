"""The figures of LLSC's paper on GPU sharing, and what is advised for each: 40 cores, 384 GB, two V100 of 32 GB."""

from __future__ import annotations

import pytest
from seen_nodes import job, node

from slurm_share.load.rules.advice.advise import advise

LENET = 0.35
"""GPU load of one LeNet-4 on MNIST, batch 64."""


def lenet(tasks, peak_gib=2.35, total_mib=32510, **more):
    """Return the evidence of this many LeNet jobs, whose load grows evenly until a GPU is full."""
    loads = [min(100.0, 100 * LENET * (tasks // 2 + (tasks % 2 > gpu))) for gpu in range(2)]
    return node(tasks=tasks, load=loads, peak_gib=peak_gib, total_mib=total_mib, cpu=0.02 * tasks, **more)


def test_lenet_goes_from_1_to_4_to_8_as_its_load_is_read_again():
    climb, now = [1], 1
    while True:
        advice = advise(job(tasks=now), [lenet(now)])
        if advice.verdict == "stay":
            break
        assert advice.verdict == "more"
        now = advice.next
        climb.append(now)
    assert climb == [1, 4, 8]
    assert (advice.decided_by, advice.work) == ("GPU load", "well-used")


@pytest.mark.parametrize(
    ("total_mib", "peak_gib", "allows"),
    [
        (32510, 2.3, (26, 26)),
        (32510, 2.4, (24, 26)),
        (32768, 2.3, (26, 26)),
        (32768, 2.4, (26, 26)),
        (32510, 4.0, (14, 14)),
    ],
)
def test_memory_allows_24_to_26_lenets(total_mib, peak_gib, allows):
    assert advise(job(), [lenet(1, peak_gib, total_mib)]).memory_allows == allows


def test_48_lenets_are_never_advised():
    """21 of 48 died of CUDA out-of-memory in the paper. Neither doubling from 24 nor a small load leads there."""
    doubled = advise(job(tasks=24), [node(tasks=24, load=(30.0, 30.0), peak_gib=2.4)])
    assert (doubled.verdict, doubled.next, doubled.decided_by) == ("stay", 24, "GPU memory")
    light = advise(job(), [node(tasks=8, load=(8.0, 8.0), peak_gib=2.35)])
    assert (light.next, light.decided_by) == (26, "GPU memory")


def test_48_lenets_are_told_to_be_fewer():
    advice = advise(job(tasks=48), [lenet(27, peak_gib=2.4)], memory_failures=21)
    assert (advice.verdict, advice.next, advice.decided_by) == ("fewer", 24, "GPU memory")
    assert advice.change[0] == "--share-gpu=12 -n24"


@pytest.mark.parametrize(("peak_gib", "allows"), [(10.3, 6), (10.7, 4)])
@pytest.mark.parametrize("total_mib", [32510, 32768])
def test_resnet_18_fits_three_times_on_a_gpu_or_twice(peak_gib, allows, total_mib):
    one = node(tasks=2, load=(60.0, 60.0), peak_gib=peak_gib, total_mib=total_mib)
    assert advise(job(tasks=2), [one]).memory_allows[0] == allows


@pytest.mark.parametrize("peak_gib", [10.3, 10.7])
@pytest.mark.parametrize("tasks", [1, 2, 4, 6])
@pytest.mark.parametrize("load", [8.0, 40.0, 79.0])
def test_8_resnets_are_never_advised(peak_gib, tasks, load):
    advice = advise(job(tasks=tasks), [node(tasks=tasks, load=(load, load), peak_gib=peak_gib)])
    assert advice.next <= (6 if peak_gib == 10.3 else 4)


def test_a_resnet_alone_is_given_the_second_gpu():
    advice = advise(job(), [node(load=(98.0, 0.0), peak_gib=10.3)])
    assert (advice.next, advice.decided_by, advice.change[0]) == (2, "GPU load", "--share-gpu=1")


@pytest.mark.parametrize("tasks", [2, 4, 6])
@pytest.mark.parametrize("sm", [True, False])
def test_full_load_alone_says_stay(tasks, sm):
    advice = advise(job(tasks=tasks), [node(tasks=tasks, load=(100.0, 100.0), peak_gib=10.3, sm=sm)])
    assert (advice.verdict, advice.next, advice.change) == ("stay", tasks, ())
    assert ("upper bound of SM activity" in advice.sentence) is not sm


def test_the_cap_of_three_resnets_has_room_for_one():
    one = node(tasks=2, load=(30.0, 30.0), peak_gib=10.3, total_mib=32768)
    assert advise(job(), [one]).change[0] == "--share-gpu=2"
    four = node(tasks=4, load=(50.0, 50.0), peak_gib=10.3, total_mib=32768)
    assert advise(job(), [four]).change == ("--share-gpu=3,mem=10704M", "llsub [1,6,6] --share-gpu=mem=10704M")


def test_the_sentence_of_the_design():
    assert advise(job(), [lenet(1, peak_gib=2.4)]).sentence == (
        "1 task, GPU load 0.35 of 2, peak 2.4 GiB: memory allows 24-26, load at least 4, decided by GPU load; "
        "next 4 with --share-gpu=2, then look again"
    )
