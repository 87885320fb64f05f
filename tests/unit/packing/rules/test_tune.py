from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from slurm_share.packing.rules import tune, tuned_text
from slurm_share.packing.rules.tune import Comparison, Tuner
from slurm_share.packing.speed_records import LevelRun, SearchEnd, SearchRun

SEEDS = range(200)


def _bench() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "bench" / "tuning_curves.py"
    spec = importlib.util.spec_from_file_location("tuning_curves", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["tuning_curves"] = found
    spec.loader.exec_module(found)
    return found


curves = _bench()
DAY_S = 86400.0


def levels_of(found: SearchRun) -> list[int]:
    return [one.level for one in found.levels]


@pytest.mark.parametrize(
    ("curve", "most", "gpus", "levels", "best"),
    [
        (curves.PAN_T4, 7, 1, [1, 4, 7], 7),
        (curves.RESNET, 6, 2, [2, 6], 6),
        (lambda level: 5.0, 16, 1, [4, 1, 2], 1),
        (curves.between({1: 1.0, 4: 4.0, 6: 5.5, 8: 3.0}), 16, 1, [1, 4, 16, 8, 6], 6),
    ],
    ids=["Pan", "ResNet", "flat", "a peak between two levels"],
)
def test_without_noise_the_best_level_is_found(curve, most: int, gpus: int, levels: list[int], best: int) -> None:
    found = curves.play(curve, 0.0, 0, most, gpus, 1000)
    assert (levels_of(found)[:5], found.best) == (levels, best)


def test_the_curve_of_lenet_ends_within_a_tenth_of_the_best_and_below_its_bound() -> None:
    found = curves.play(curves.LENET, 0.0, 0, 26, 2, 1000)
    assert sorted(levels_of(found)) == [2, 8, 14, 26]
    assert max(levels_of(found)) <= 26
    assert curves.LENET(found.best) >= 0.9 * curves.top(curves.LENET, 26, 2)


@pytest.mark.parametrize("name", list(curves.CASES))
def test_with_a_tenth_of_noise_nine_of_ten_runs_come_within_a_twentieth_of_the_best(name: str) -> None:
    curve, gpus, hi = curves.CASES[name]
    found = [curves.play(curve, 0.10, seed, hi, gpus, 1000) for seed in SEEDS]
    good = sum(curve(one.best) >= 0.95 * curves.top(curve, hi, gpus) for one in found)
    assert good >= 0.9 * len(found)
    assert max(len(one.levels) for one in found) <= tune.LEVELS_MAX


def test_levels_are_multiples_of_the_gpus() -> None:
    found = curves.play(curves.LENET, 0.1, 3, 25, 3, 1000)
    assert all(level % 3 == 0 for level in levels_of(found))
    assert max(levels_of(found)) <= 24


def close(search: Tuner | Comparison, windows: int, rates: list[float], finished: int) -> None:
    """Close so many equal windows."""
    for _ in range(windows):
        search.window(rates, finished)


def test_a_search_that_is_cut_off_keeps_the_level_that_was_under_trial_for_the_next_run() -> None:
    tuner = Tuner(1, 1000)
    tuner.bound(16)
    close(tuner, 1, [1.0], 1)
    assert (tuner.level, levels_of_tuner(tuner)) == (4, [1])
    tuner.stop("stopped")
    assert (tuner.level, tuner.end, tuner.next, tuner.is_finished) == (1, "stopped", 4, False)


@pytest.mark.parametrize(
    ("waiting", "level", "end"), [(30, 8, None), (5, 8, None), (1, 4, "cost"), (0, 4, "few tasks")]
)
def test_a_trial_is_made_only_if_the_tasks_that_are_left_can_pay_it_back(waiting: int, level: int, end: str) -> None:
    """Four tasks at once do twice as much as one, so eight may do 1.4 times as much as four, or less than four."""
    tuner = Tuner(1, 1000)
    tuner.bound(16)
    tuner.window([1.0], 1, 900)
    for _ in range(3):
        tuner.window([2.0], 4, waiting)
    assert (tuner.level, tuner.end) == (level, end)
    assert tuner.next == (8 if end else 0)


def test_a_middle_level_is_tried_only_if_the_tasks_that_are_left_can_pay_it_back() -> None:
    for waiting, level in ((900, 8), (2, 4)):
        tuner = Tuner(1, 1000)
        tuner.bound(16)
        tuner.window([1.0], 1, 900)
        tuner.window([4.0], 4, 900)
        assert tuner.level == 16
        for _ in range(3):
            tuner.window([1.0], 16, waiting)
        assert tuner.level == level


def test_a_clear_loss_is_left_after_three_rates() -> None:
    tuner = Tuner(1, 1000)
    tuner.bound(16)
    tuner.window([1.0], 1)
    close(tuner, 2, [0.5], 0)
    assert tuner.level == 4
    tuner.window([0.5], 0)
    assert tuner.level < 4


def test_while_the_rate_rises_the_search_goes_on_upwards_as_far_as_there_are_tasks() -> None:
    tuner = Tuner(1, 32)
    tuner.bound(32)
    for level in (1, 4, 16):
        assert tuner.level == level
        tuner.window([float(level)], level)
    assert (tuner.level, tuner.end, tuner.next) == (16, "few tasks", 32)


def test_the_last_tasks_are_started_together_while_the_rate_rises() -> None:
    tuner = Tuner(1, 20)
    tuner.bound(32)
    tuner.window([1.0], 1)
    tuner.window([4.0], 4)
    assert tuner.level == 15


def levels_of_tuner(tuner: Tuner) -> list[int]:
    return [one.level for one in tuner.levels]


def test_nothing_is_decided_before_the_bound_is_known() -> None:
    tuner = Tuner(1, 1000)
    close(tuner, 10, [1.0], 2)
    assert (tuner.level, tuner.levels) == (1, [])
    tuner.bound(8)
    tuner.window([1.0], 2)
    assert tuner.level == 4


def test_two_finished_tasks_a_place_are_waited_for_and_no_longer_than_fifteen_minutes() -> None:
    tuner = Tuner(2, 1000)
    tuner.bound(8)
    tuner.window([1.0], 0)
    close(tuner, 29, [1.02], 0)
    assert tuner.level == 8
    tuner.window([1.02], 0)
    assert tuner.level == 2


def test_a_bound_that_falls_takes_the_level_with_it() -> None:
    tuner = Tuner(1, 1000)
    tuner.bound(16)
    close(tuner, 3, [1.0], 2)
    close(tuner, 3, [2.0], 2)
    assert tuner.level == 4
    tuner.bound(3)
    assert tuner.level == 3


def _known(best: int, per_s: float, when: float = 0.0, end: SearchEnd = "no gain", following: int = 0) -> SearchRun:
    levels = (LevelRun(best // 2, "mps", per_s / 2, 0.0, 3), LevelRun(best, "mps", per_s, 0.0, 3))
    return SearchRun(
        when=when, exact="", family="f", gpu_model="", gpus=1, rate_source="progress", levels=levels, best=best,
        end=end, next=following,
    )  # fmt: skip


def test_a_fresh_result_is_taken_over_where_it_does_as_much() -> None:
    tuner = Tuner(1, 1000, known=_known(8, 10.0), now=29 * DAY_S)
    tuner.bound(16)
    assert tuner.level == 8
    close(tuner, 6, [10.5], 8)
    assert (tuner.end, tuner.level, tuner.is_new) == ("same", 8, False)


def test_a_search_that_was_cut_off_goes_on_upwards_and_compares_with_the_earlier_run() -> None:
    tuner = Tuner(1, 1000, known=_known(2, 2.0, end="cost", following=4), now=DAY_S)
    tuner.bound(16)
    assert tuner.level == 4
    close(tuner, 1, [4.0], 8)
    assert tuner.level == 16
    close(tuner, 3, [4.0], 16)
    assert (tuner.level, tuner.end) == (4, None), "one rate does not tell whether the higher level does more"
    close(tuner, 3, [4.0], 8)
    assert (tuner.level, tuner.end) == (8, None)


def test_a_search_that_goes_on_begins_no_higher_than_there_are_tasks() -> None:
    known = _known(8, 8.0, end="few tasks", following=16)
    assert [Tuner(1, tasks, known=known).level for tasks in (100, 12, 4)] == [16, 12, 8]


def _search(rates: dict[int, float], end: SearchEnd, following: int, when: float) -> SearchRun:
    levels = tuple(LevelRun(level, "mps", rate, 0.0, 3) for level, rate in rates.items())
    return msgspec.structs.replace(_known(2, 2.0, when, end, following), levels=levels, best=max(rates))


@pytest.mark.parametrize(
    ("rates", "end", "following", "when", "is_earlier"),
    [
        ({2: 2.0}, "few tasks", 4, 1.0, True),
        ({2: 9.0}, "few tasks", 4, 1.0, False),
        ({2: 2.0, 4: 4.0}, "stopped", 8, 1.0, True),
        ({2: 2.0, 4: 4.0}, "no room", 0, 1.0, False),
        ({2: 2.0, 4: 4.0, 8: 8.0}, "few tasks", 16, 1.0, False),
        ({2: 2.0}, "few tasks", 4, 40 * DAY_S, False),
    ],
)
def test_the_last_run_to_end_does_not_hide_an_earlier_one_that_knows_more(
    rates: dict[int, float], end: SearchEnd, following: int, when: float, is_earlier: bool
) -> None:
    """Nodes of one run, and runs at the same time, do not know what the others find."""
    earlier, last = _search({2: 2.0, 4: 4.0}, "no room", 0, 0.0), _search(rates, end, following, when)
    assert tune.newest_search([earlier, last], when) is (earlier if is_earlier else last)


def test_a_run_of_as_many_tasks_as_places_ends_for_lack_of_tasks_and_not_of_room() -> None:
    tuner = Tuner(4, 5)
    tuner.bound(5)
    tuner.window([1.0, 1.0], 4, 0)
    tuner.stop("few tasks")
    assert (tuner.level, tuner.end, tuner.next) == (4, "few tasks", 8)


def test_the_next_run_on_several_nodes_may_go_on_with_what_another_one_found() -> None:
    said = tuned_text.best_sentence([LevelRun(2, "mps", 1.0, 0.0, 3)], 2, "few tasks", 4, 2)
    assert said.endswith("next time [2,auto] goes on with 4, or with what another node has found")


def test_levels_that_have_no_room_now_are_not_compared_with_the_best() -> None:
    tuner = Tuner(1, 1000, known=_known(8, 8.0, end="no room"))
    tuner.bound(4)
    close(tuner, 6, [4.0], 4)
    assert (tuner.level, tuner.end, [one.level for one in tuner.known_levels]) == (4, "no room", [4])
    said = tuned_text.best_sentence(tuner.known_levels, 4, "no room", 0, 1)
    assert said.startswith("4 on a node, the most that have room, do most;")


def test_the_sentence_at_the_begin_says_why_the_run_begins_with_its_level() -> None:
    assert [tuned_text.begin_sentence(one, level, 40 * DAY_S) for one, level in (
        (_known(8, 8.0, when=39 * DAY_S), 8),
        (_known(8, 8.0, when=39 * DAY_S, end="few tasks", following=16), 16),
        (_known(8, 8.0, end="few tasks", following=16), 4),
    )] == [
        "an earlier run of this script found 8 tasks at once; this run begins with 8",
        "an earlier run of this script did not finish its search, which goes on with 16 tasks at once",
        "a run of this script found 8 tasks at once, more than 30 days ago; this run searches again, from 4 on",
    ]  # fmt: skip


def test_a_search_that_ended_for_lack_of_room_goes_on_where_there_is_more() -> None:
    for hi, level, end in ((8, 8, "same"), (16, 16, None)):
        tuner = Tuner(1, 1000, known=_known(8, 8.0, end="no room"))
        tuner.bound(hi)
        close(tuner, 6, [8.0], 8)
        assert (tuner.level, tuner.end) == (level, end)


def test_rates_that_do_not_agree_with_the_earlier_run_replace_it() -> None:
    tuner = Tuner(1, 1000, known=_known(4, 10.0, end="cost", following=4))
    tuner.bound(4)
    close(tuner, 6, [100.0], 4)
    assert [one.per_s for one in tuner.pool.values()] == [100.0]


def test_few_rates_are_clear_only_if_they_are_steady_or_the_gain_is_large() -> None:
    one, two = tune.level_run(1, "mps", [1.0, 1.0]), tune.level_run(2, "mps", [1.2, 1.2])
    assert not tune.is_clear_gain(two, one)
    assert tune.is_clear_gain(tune.level_run(2, "mps", [1.6, 1.6]), one)
    assert tune.is_clear_gain(tune.level_run(2, "mps", [1.2] * 3), tune.level_run(1, "mps", [1.0] * 3))


def test_a_fresh_result_that_does_less_now_is_searched_again() -> None:
    found = curves.play(curves.between({1: 1.0, 4: 4.0, 8: 4.0}), 0.0, 0, 16, 1, 1000, known=_known(8, 10.0))
    assert 4 in levels_of(found)
    assert found.best == 4


def test_an_old_result_begins_at_half_of_it() -> None:
    assert Tuner(1, 1000, known=_known(8, 10.0), now=31 * DAY_S).level == 4


def test_what_was_measured_in_this_run_is_not_tried_again() -> None:
    measured = [LevelRun(4, "mps", 2.0, 0.0, 3)]
    compared = Comparison([("exclusive", 2), ("mps", 4)], 1000, measured)
    assert compared.now == ("exclusive", 2)
    close(compared, 3, [1.0], 4)
    assert compared.now is None
    assert compared.best is measured[0]


def test_a_comparison_ends_after_a_quarter_of_the_tasks() -> None:
    compared = Comparison([("exclusive", 2), ("mps", 4)], 8)
    compared.window([1.0], 3)
    assert (compared.now, compared.untried, compared.best) == (None, ["exclusive", "mps"], None)


def test_the_table_and_the_sentence_say_what_was_found() -> None:
    levels = (LevelRun(2, "mps", 0.5, 0.01, 3), LevelRun(4, "mps", 1.0, 0.02, 6))
    assert tuned_text.levels_table(levels, 4, 2, "finished") == [
        "LEVEL  TASKS/GPU  RATE tasks/s  SPREAD  x OF 4",
        "    2          1           0.5    0.01    0.50",
        "    4          2             1    0.02    1.00",
    ]
    assert tuned_text.levels_table(levels[1:], 4, 2, "finished", levels[:1]) == [
        "LEVEL  TASKS/GPU  RATE tasks/s  SPREAD  x OF 4      RUN",
        "    2          1           0.5    0.01    0.50  earlier",
        "    4          2             1    0.02    1.00     this",
    ]
    assert tuned_text.cost_s([("mps", 2, 60.0), ("mps", 4, 90.0)], levels, levels[1]) == 30.0
    assert tuned_text.cost_s([("time-slicing", 4, 60.0)], levels, levels[1]) == 60.0
    runs = (LevelRun(2, "exclusive", 0.5, 0.0, 3), LevelRun(4, "mps", 1.0, 0.0, 3))
    assert tuned_text.methods_table(runs, 2, "progress") == [
        "   METHOD  TASKS/GPU  RATE units/s  x OF ONE AT A TIME",
        "exclusive          1           0.5                1.00",
        "      mps          2             1                2.00",
    ]


@pytest.mark.parametrize(
    ("known", "best", "end", "following", "sentence"),
    [
        ((2, 4, 8), 4, "no gain", 0, "4 on a node is best: 2.0 x of 2; next time [1,4] or [1,auto], which begins "
         "there"),
        ((2, 4, 8), 4, "cost", 6, "4 on a node is best of those tried: 2.0 x of 2; the search is not finished (the "
         "tasks that are left cannot pay back another trial); next time [1,auto] goes on with 6"),
        ((2,), 2, "few tasks", 4, "2 was the only level tried; the search is not finished (too few tasks are left to "
         "try more); next time [1,auto] goes on with 4"),
        ((2, 4), 4, "stopped", 8, "4 on a node, the most that were tried, do most: 2.0 x of 2; the search is not "
         "finished (the run ended); next time [1,auto] goes on with 8"),
        ((2, 4), 4, "no room", 0, "4 on a node, the most that have room, do most: 2.0 x of 2; next time [1,4] or "
         "[1,auto], which begins there"),
        ((2, 4, 8), 4, "same", 0, "4 on a node, as an earlier run found: 2.0 x of 2; next time [1,4] or [1,auto], "
         "which begins there"),
    ],
)  # fmt: skip
def test_only_a_level_with_a_measured_one_above_is_called_best(known, best, end, following, sentence) -> None:
    pool = [LevelRun(level, "mps", level / 2, 0.0, 3) for level in known]
    assert tuned_text.best_sentence(pool, best, end, following, 1) == sentence


def test_a_rate_just_below_a_thousand_is_written_as_a_number():
    levels = [tune.level_run(1, "mps", [999.7])]
    assert tuned_text.levels_table(levels, 1, 1, "progress")[1].split() == ["1", "1", "1000", "0", "1.00"]
