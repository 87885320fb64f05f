from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.packing.rules.estimate.line import BATCHES, Relevance, Series

BATCH = next(iter(BATCHES))


def series(*runs, names=("x",)):
    """Return a series and what it shows of its numbers. A run: its numbers, then its peak."""
    made, relevance = Series(), Relevance()
    for *xs, peak in runs:
        numbers = dict(zip(names, map(float, xs), strict=True))
        relevance.see(numbers)
        made.learn(numbers, float(peak), relevance)
    return made, relevance


def find(made, *xs, names=("x",)):
    return made[0].find(dict(zip(names, map(float, xs), strict=True)), made[1])


@pytest.mark.parametrize(
    ("x", "how", "point"),
    [
        (32, "same", 4600), (48, "inside", 5400), (128, "near", 9400), (129, "far", 9450), (256, "far", 15800),
        (257, None, None), (16, "near", 3800), (8, "far", 3400), (7.9, "inside", 4600),
    ],
)  # fmt: skip
def test_a_line_through_two_runs_is_used_up_to_four_times_outside(x, how, point):
    """Farther below, the peak of the smaller run is enough in any case."""
    found = find(series((32, 4600), (64, 6200)), x)
    assert (None if found is None else (found.how, found.point_mib)) == (None if how is None else (how, point))


def test_a_task_needs_no_more_than_a_run_with_a_larger_number():
    found = find(series((32, 4600), (64, 6200)), 40)
    assert (found.point_mib, found.most_mib) == (5000, 6200)


def test_memory_that_falls_as_the_number_rises_does_not_fall_further():
    assert find(series((32, 1924), (64, 1784)), 128).point_mib == 1784


def test_a_run_with_a_larger_number_is_no_limit_where_memory_falls_with_it():
    made = series((2, 40_000), (4, 20_000))
    assert find(made, 1).point_mib == 50_000
    assert find(made, 3).point_mib == 30_000
    assert find(made, 0.25) is None


def test_a_batch_has_its_own_errors():
    made = series((32, 4600), (64, 6200), names=(BATCH,))
    assert find(made, 128, names=(BATCH,)).how == "batch"
    assert find(made, 200, names=(BATCH,)).how == "far"


def test_the_ratio_of_numbers_is_enough_with_one_run():
    found = find(series((32, 4600)), 48)
    assert (found.how, found.point_mib) == ("scaled", 6900)


def test_a_running_task_counts_with_the_growth_of_the_youngest():
    made = Series(running={"a": ({"x": 64.0}, 7220.0, 1.05), "b": ({"x": 128.0}, 12_580.0, 1.3)})
    found = made.find({"x": 32.0}, Relevance())
    assert found.point_mib == pytest.approx(4540 * 1.3)


def test_numbers_of_other_flags_are_not_compared():
    assert find(series((32, 4600), (64, 6200)), 48, names=("y",)) is None


@pytest.mark.parametrize(
    ("pairs", "number", "matters"),
    [
        ([], 8.0, True),  # sizes are whole,
        ([], 0.1, False),  # learning rates are not
        ([(8, 5000), (16, 5100)], 8.0, False),
        ([(8, 5000), (16, 5100)], 17.0, True),  # nothing is known above
        ([(8, 5000), (16, 5600)], 8.0, True),
        ([(0.1, 5000), (0.2, 5600)], 0.1, True),
        ([*((8 + n, 5000) for n in range(9)), (99, 6000)], 8.0, False),  # one of many pairs is noise
    ],
)
def test_a_number_matters_unless_runs_that_differ_only_in_it_are_equal(pairs, number, matters):
    _, relevance = series(*pairs)
    relevance.see({"x": number})
    assert ("x" in relevance.relevant({"x": number})) is matters


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(NUMBERS, st.floats(300, 1e7)), max_size=20), NUMBERS)
def test_any_numbers_give_a_size_or_none(points, x):
    found = find(series(*points), x)
    assert found is None or (math.isfinite(found.point_mib) and found.point_mib >= 0)
