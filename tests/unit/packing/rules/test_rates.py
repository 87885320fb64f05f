from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.packing.rules.rates import OUTPUT_WINDOWS, WINDOWS_KEPT, RateMeter
from slurm_share.packing.speed_records import Rate

NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.integers(0, 10**6).map(float)


def rate_of(meter: RateMeter) -> Rate:
    rate = meter.rate()
    assert rate is not None
    return rate


@given(st.lists(st.tuples(st.floats(0, 100), NUMBERS, st.sampled_from(["add", "add", "add", "restart"]))))
def test_rate_is_never_negative_and_always_a_number(steps: list[tuple[float, float, str]]) -> None:
    meter, now = RateMeter("progress", 1.0), 0.0
    for pause, units, what in steps:
        now += pause
        if what == "add":
            meter.add(now, units)
        else:
            meter.restart(now)
        rate = meter.rate()
        for value in (meter.units, meter.mean_per_s, rate and rate.per_s, rate and rate.error_per_s):
            assert value is None or (value >= 0 and not math.isnan(value))


@given(st.floats(0.001, 1e6), st.floats(0.1, 10), st.floats(1, 100))
def test_steady_counter_gives_its_rate_without_an_error(per_s: float, every_s: float, window_s: float) -> None:
    meter = RateMeter("progress", window_s)
    for turn in range(1, 2 + 3 * math.ceil(window_s / every_s + 1)):
        meter.add(turn * every_s, turn * every_s * per_s)
    rate = rate_of(meter)
    assert rate.windows >= 3
    assert rate.per_s == pytest.approx(per_s, rel=1e-6)
    assert rate.error_per_s == pytest.approx(0, abs=1e-4 * per_s)
    assert meter.mean_per_s == pytest.approx(per_s, rel=1e-6)


@given(st.floats(1, 1000), st.floats(5, 500))
def test_time_before_a_restart_counts_in_no_window(per_s: float, pause_s: float) -> None:
    meter = RateMeter("progress", 10.0)
    for second in range(60):
        meter.add(second, second * per_s)
    meter.restart(60.0)
    assert meter.rate() is None
    meter.restart(60.0 + pause_s)
    for second in range(60):
        meter.add(60 + pause_s + second, (60 + second) * per_s)
    assert rate_of(meter).per_s == pytest.approx(per_s)
    assert meter.mean_per_s == pytest.approx(per_s)
    assert meter.units == pytest.approx(119 * per_s)


def test_epoch_counter_that_rises_every_five_minutes_has_a_window_for_each_rise() -> None:
    meter = RateMeter("log", 30.0)
    for second in range(3001):
        meter.add(second, second // 300)
    rate = rate_of(meter)
    assert (rate.windows, rate.source) == (10, "log")
    assert rate.per_s == pytest.approx(1 / 300)
    assert rate.error_per_s == 0


def test_one_window_says_nothing_of_the_error() -> None:
    meter = RateMeter("progress", 2.0)
    for second in range(3):
        meter.add(second, second * 5)
    rate = rate_of(meter)
    assert (rate.per_s, rate.error_per_s, rate.windows) == (5, 5, 1)


def test_counter_that_falls_after_each_epoch_keeps_its_rate() -> None:
    meter = RateMeter("log", 30.0)
    for tenth in range(1, 3000):
        meter.add(tenth / 10, tenth % 100 + 1)
    assert rate_of(meter).per_s == pytest.approx(10, rel=0.01)
    assert meter.units == pytest.approx(2999, rel=0.01)


def test_program_that_goes_back_to_a_saved_state_has_not_done_all_of_it_in_a_moment() -> None:
    meter = RateMeter("progress", 10.0)
    for second in range(100):
        meter.add(second, 1000 + second)
    for second in range(100, 200):
        meter.add(second, 950 + second - 100)
    assert rate_of(meter).per_s == pytest.approx(1.0, rel=0.01)


def test_task_that_stands_still_does_not_keep_its_rate() -> None:
    meter = RateMeter("progress", 10.0)
    for second in range(101):
        meter.add(second, second)
    for second in range(101, 201):
        meter.add(second, 100)
    assert rate_of(meter).per_s < 0.8
    for second in range(201, 2001):
        meter.add(second, 100)
    assert rate_of(meter).per_s == 0


def test_only_the_newest_windows_count() -> None:
    meter = RateMeter("progress", 1.0)
    for second in range(100):
        meter.add(second, second)
    for second in range(WINDOWS_KEPT + 1):
        meter.add(100 + second, 100 + 5 * second)
    assert rate_of(meter).per_s == pytest.approx(5)


def test_output_counts_only_where_it_comes_evenly() -> None:
    even, uneven = RateMeter("output", 10.0), RateMeter("output", 10.0)
    lines = 0
    for second in range(10 * OUTPUT_WINDOWS + 1):
        even.add(second, 4 * second)
        lines += 1 + 9 * (second // 10 % 2)
        uneven.add(second, lines)
        if second < 10 * OUTPUT_WINDOWS:
            assert even.rate() is None
    rate = rate_of(even)
    assert (rate.per_s, rate.windows) == (4, OUTPUT_WINDOWS)
    assert uneven.rate() is None


def test_number_that_is_none_and_time_that_runs_back_are_left_out() -> None:
    meter = RateMeter("progress", 1.0)
    meter.add(0, 0)
    meter.add(1, 10)
    for second, units in ((0.5, 500), (2, math.nan), (2, math.inf), (2, -5)):
        meter.add(second, units)
    meter.add(2, 20)
    assert rate_of(meter).per_s == 10


def test_windows_that_are_no_longer_kept_are_still_counted() -> None:
    """The tests of harmful pairs are due after 48 windows, too."""
    meter = RateMeter("progress", 1.0)
    for turn in range(WINDOWS_KEPT + 6):
        meter.add(float(turn), float(turn))
    assert rate_of(meter).windows == WINDOWS_KEPT + 5
    meter.restart(100.0)
    for turn in range(4):
        meter.add(100.0 + turn, 100.0 + turn)
    assert rate_of(meter).windows == 3
