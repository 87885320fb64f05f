from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.packing.rules.estimate import line


def test_two_points_give_the_line_through_them():
    found = line.fit([(32, 4600), (64, 6200)])
    assert found is not None
    assert found.at(128) == pytest.approx(9400)


def test_one_strange_run_does_not_turn_the_line_through_many():
    points = [(x, 2000 + 40 * x) for x in (8, 16, 24, 32, 40, 48, 56, 64, 72)] + [(80, 15_600)]
    found = line.fit(points)
    assert found is not None
    assert found.at(96) == pytest.approx(2000 + 40 * 96, rel=0.02)


def test_memory_that_falls_as_the_number_rises_is_taken_for_noise():
    found = line.fit([(32, 1824), (64, 1784)])
    assert found is not None
    assert found.slope_mib == 0
    assert found.at(128) == 1804


@pytest.mark.parametrize(
    ("x", "is_used"), [(128, True), (256, True), (257, False), (8, True), (7.9, False), (0, False)]
)
def test_a_line_is_used_up_to_four_times_outside_what_was_seen(x, is_used):
    found = line.fit([(32, 4600), (64, 6200)])
    assert found is not None
    assert (found.at(x) is not None) is is_used


@pytest.mark.parametrize("points", [[], [(32, 4600)], [(32, 4600), (32, 4700)]])
def test_fewer_than_two_numbers_are_no_line(points):
    assert line.fit(points) is None


@given(st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.floats(300, 1e7)), max_size=40))
def test_any_numbers_give_a_line_or_none(points):
    found = line.fit(points)
    assert found is None or not found.slope_mib < 0
