"""Means over the last minutes, against sums done by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.node import windows
from slurm_share.node.windows import WindowSeries


def walk(values: list[float | None], dt: float = 5.0, start: float = 100.0) -> tuple[WindowSeries, float]:
    series, now = WindowSeries(), start
    for value in values:
        now += dt
        series = windows.add(series, now, dt, value)
    return series, now


def test_before_anything_was_measured_there_is_no_mean() -> None:
    assert windows.means(WindowSeries(), 100.0) is None
    assert windows.means(*walk([None, None])) is None


def test_a_young_figure_is_the_same_for_all_windows() -> None:
    found = windows.means(*walk([10.0, 20.0]))
    assert (found.m1, found.m5, found.m15, found.over_s) == (15.0, 15.0, 15.0, 10.0)


def test_windows_forget() -> None:
    """15 minutes of 100, then 2 of 0: the last minute is 0, the last five are 60, the last fifteen 86.7."""
    found = windows.means(*walk([100.0] * 180 + [0.0] * 24))
    assert found.m1 == pytest.approx(0.0)
    assert found.m5 == pytest.approx(60.0)
    assert found.m15 == pytest.approx(100 * 13 / 15)
    assert found.over_s == pytest.approx(900.0)


@given(st.lists(st.floats(0.1, 70), min_size=1, max_size=60), st.lists(st.floats(0.1, 70), max_size=60))
def test_a_cut_window_holds_nothing_from_before_the_cut(before: list[float], after: list[float]) -> None:
    """However the readings fall: 90 before it and 10 after it is 10, over no more than the time since."""
    series, now = WindowSeries(), 0.0
    for dt in before:
        now += dt
        series = windows.add(series, now, dt, 90.0)
    since = now
    for dt in after:
        now += dt
        series = windows.add(series, now, dt, 10.0)
    found = windows.means(series, now, since)
    if found is None:
        assert now - since <= 2 * windows.GRAIN_S or not after
    else:
        assert (found.m1, found.m5, found.m15) == pytest.approx((10.0, 10.0, 10.0))
        assert found.over_s <= now - since + 1e-6


def test_what_was_not_known_does_not_count_as_0() -> None:
    found = windows.means(*walk([50.0, None] * 40))
    assert found.m5 == pytest.approx(50.0)
    assert found.over_s == pytest.approx(200.0)


def test_a_reading_stands_for_its_own_time_and_not_for_the_gap_before_it() -> None:
    """Ten minutes of silence after 40, then 30 s of 80: the last minute knows 30 s, and they are 80."""
    series, now = walk([40.0] * 10)
    series = windows.add(series, now + 630, 30.0, 80.0)
    found = windows.means(series, now + 630)
    assert (found.m1, found.m5) == (80.0, 80.0)
    assert found.m15 == pytest.approx((50 * 40 + 30 * 80) / 80)


def test_a_silent_last_minute_is_told_by_the_longer_window() -> None:
    series, now = walk([40.0] * 10)
    found = windows.means(series, now + 100)
    assert (found.m1, found.over_s) == (40.0, pytest.approx(50.0))


def test_after_15_silent_minutes_nothing_is_known() -> None:
    series, now = walk([40.0] * 10)
    assert not windows.is_over(series, now + 899)
    assert windows.is_over(series, now + 901)
    assert windows.means(series, now + 951) is None


def test_a_clock_that_goes_back_begins_anew() -> None:
    series, now = walk([10.0] * 5)
    series = windows.add(series, now - 60, 5.0, 70.0)
    found = windows.means(series, now - 60)
    assert (found.m1, found.over_s) == (70.0, 5.0)


@given(st.lists(st.tuples(st.floats(0.02, 70.0), st.floats(0, 100) | st.none()), min_size=1, max_size=400))
def test_means_are_means_and_memory_is_bounded(steps: list[tuple[float, float | None]]) -> None:
    series, now = WindowSeries(), 1000.0
    seen: list[tuple[float, float, float]] = []
    for dt, value in steps:
        now += dt
        series = windows.add(series, now, dt, value)
        if value is not None:
            seen.append((now, dt, value))
    found = windows.means(series, now)
    assert len(series.at) <= 2 * windows.KEPT_S / windows.GRAIN_S + 4
    parts = [(min(dt, max(0.0, at - (now - 900.0))), value) for at, dt, value in seen]
    covered = sum(dt for dt, _ in parts)
    if found is None:
        assert covered <= 0
        return
    low, high = min(value for _, _, value in seen), max(value for _, _, value in seen)
    for mean in (found.m1, found.m5, found.m15):
        assert low - 1e-6 <= mean <= high + 1e-6
    assert found.over_s <= min(900.0, now - 1000.0) + 1e-6
    # Readings closer than a grain are one point, so that the window's far end may lie within one.
    assert found.over_s == pytest.approx(covered, abs=2 * windows.GRAIN_S + 1e-6)


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        ([80.0] * 8, None),
        ([80.0] * 9, 80.0),
        ([80.0] * 10 + [0.0] * 9, 8.0),
        ([0.0] * 5 + [None] * 2 + [0.0] * 8, None),
        ([0.0] * 5 + [None] + [0.0] * 9, 0.0),
    ],
)
def test_the_mean_of_ten_minutes_is_told_where_nine_were_measured(minutes, expected) -> None:
    found = windows.means(*walk([value for value in minutes for _ in range(12)]))
    assert found.m10 == (None if expected is None else pytest.approx(expected))
