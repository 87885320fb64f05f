from __future__ import annotations

import pytest

from slurm_share.packing.rules.estimate.elastic import Sizes, takes_everything

AT = {
    "source": "unknown", "memory_mib": 20_300, "start_mib": 20_000, "total_mib": 40_960, "age_s": 10.0,
    "peak_mib": 20_300, "cap_mib": 40_000, "is_flat": False,
}  # fmt: skip
LATE = {"age_s": 600.0, "peak_mib": 39_000}
CASES = {
    "what it was told, at once": ({}, True),
    "what it had when it was ended": ({"floor_mib": 19_500}, False),
    "later": ({"age_s": 60.0}, False),
    "less than it was told": ({"memory_mib": 15_000}, False),
    "more than it was told": ({"memory_mib": 25_000}, False),
    "75 % of the GPU, as JAX takes": ({"memory_mib": 30_720}, True),
    "the GPU's size is not known": ({"memory_mib": 30_720, "total_mib": None}, False),
    "all of its cap, flat": ({**LATE, "is_flat": True}, True),
    "all of its cap, still rising": (LATE, False),
    "less than its cap": ({**LATE, "peak_mib": 30_000, "is_flat": True}, False),
    "no cap": ({**LATE, "is_flat": True, "cap_mib": None}, False),
    "near the user's own number": ({"source": "user"}, False),
    "near its history": ({"source": "exact", "memory_mib": 30_720}, False),
    "flat near its cap, which rests on a line": ({**LATE, "source": "line", "is_flat": True}, False),
}


@pytest.mark.parametrize(("change", "expected"), CASES.values(), ids=CASES)
def test_a_task_is_elastic_if_it_takes_what_it_is_told_or_all_there_is(change, expected):
    assert takes_everything(**{**AT, **change}) is expected


def test_the_first_size_that_was_enough_is_tried_with_a_fifth_less_by_one_task_in_five():
    sizes = Sizes()
    assert sizes.next_mib(0) is None
    sizes.note(10_000, is_done=True)
    assert [sizes.next_mib(task) for task in range(6)] == [8000, 10_000, 10_000, 10_000, 10_000, 8000]


def test_after_a_try_four_runs_go_by_before_the_next():
    sizes = Sizes()
    sizes.note(10_000, is_done=True)
    sizes.note(8000, is_done=True)
    for _ in range(4):
        assert sizes.next_mib(0) == 8000
        sizes.note(8000, is_done=True)
    assert sizes.next_mib(0) == 6400


def test_no_try_comes_near_a_size_that_was_too_small():
    sizes = Sizes()
    sizes.note(7000, is_done=False)
    sizes.note(10_000, is_done=True)
    for _ in range(6):
        sizes.note(10_000, is_done=True)
    assert sizes.next_mib(0) == 8750


def test_a_size_that_was_enough_and_is_no_more_is_forgotten():
    sizes = Sizes()
    sizes.note(8000, is_done=True)
    sizes.note(8000, is_done=False)
    assert sizes.next_mib(0) is None
