from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from slurm_share.packing.rules import level_runs, search, tuned_text
from slurm_share.packing.rules.level_runs import Level
from slurm_share.packing.rules.search import FREE, Search, guess_percent, part_levels
from slurm_share.packing.speed_records import LevelRun, Load, SearchEnd, SearchRun

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


def numbers(gpus: int, tasks: int, **known: Any) -> Search:
    return Search("tasks", [Level(gpus, "mps")], tasks, gpus=gpus, **known)


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
    assert max(len(one.levels) for one in found) <= search.LEVELS_MAX


def test_levels_are_multiples_of_the_gpus() -> None:
    found = curves.play(curves.LENET, 0.1, 3, 25, 3, 1000)
    assert all(level % 3 == 0 for level in levels_of(found))
    assert max(levels_of(found)) <= 24


def close(search: Search, windows: int, rates: list[float], finished: int) -> None:
    """Close so many equal windows."""
    for _ in range(windows):
        search.window(rates, finished)


def test_a_search_that_is_cut_off_keeps_the_level_that_was_under_trial_for_the_next_run() -> None:
    tuner = numbers(1, 1000)
    tuner.bound(16)
    close(tuner, 1, [1.0], 1)
    assert (tuner.level.tasks, levels_of_tuner(tuner)) == (4, [1])
    tuner.stop("stopped")
    assert (tuner.level.tasks, tuner.end, tuner.next, tuner.is_finished) == (1, "stopped", 4, False)


@pytest.mark.parametrize(
    ("waiting", "level", "end"), [(30, 8, None), (5, 8, None), (1, 4, "cost"), (0, 4, "few tasks")]
)
def test_a_trial_is_made_only_if_the_tasks_that_are_left_can_pay_it_back(waiting: int, level: int, end: str) -> None:
    """Four tasks at once do twice as much as one, so eight may do 1.4 times as much as four, or less than four."""
    tuner = numbers(1, 1000)
    tuner.bound(16)
    tuner.window([1.0], 1, 900)
    for _ in range(3):
        tuner.window([2.0], 4, waiting)
    assert (tuner.level.tasks, tuner.end) == (level, end)
    assert tuner.next == (8 if end else 0)


def test_a_middle_level_is_tried_only_if_the_tasks_that_are_left_can_pay_it_back() -> None:
    for waiting, level in ((900, 8), (2, 4)):
        tuner = numbers(1, 1000)
        tuner.bound(16)
        tuner.window([1.0], 1, 900)
        tuner.window([4.0], 4, 900)
        assert tuner.level.tasks == 16
        for _ in range(3):
            tuner.window([1.0], 16, waiting)
        assert tuner.level.tasks == level


def test_a_clear_loss_is_left_after_three_rates() -> None:
    tuner = numbers(1, 1000)
    tuner.bound(16)
    tuner.window([1.0], 1)
    close(tuner, 2, [0.5], 0)
    assert tuner.level.tasks == 4
    tuner.window([0.5], 0)
    assert tuner.level.tasks < 4


def test_while_the_rate_rises_the_search_goes_on_upwards_as_far_as_there_are_tasks() -> None:
    tuner = numbers(1, 32)
    tuner.bound(32)
    for level in (1, 4, 16):
        assert tuner.level.tasks == level
        tuner.window([float(level)], level)
    assert (tuner.level.tasks, tuner.end, tuner.next) == (16, "few tasks", 32)


def test_the_last_tasks_are_started_together_while_the_rate_rises() -> None:
    tuner = numbers(1, 20)
    tuner.bound(32)
    tuner.window([1.0], 1)
    tuner.window([4.0], 4)
    assert tuner.level.tasks == 15


def levels_of_tuner(tuner: Search) -> list[int]:
    return [one.level for one in tuner.levels]


def test_nothing_is_decided_before_the_bound_is_known() -> None:
    tuner = numbers(1, 1000)
    close(tuner, 10, [1.0], 2)
    assert (tuner.level.tasks, tuner.levels) == (1, [])
    tuner.bound(8)
    tuner.window([1.0], 2)
    assert tuner.level.tasks == 4


def test_two_finished_tasks_a_place_are_waited_for_and_no_longer_than_fifteen_minutes() -> None:
    tuner = numbers(2, 1000)
    tuner.bound(8)
    tuner.window([1.0], 0)
    close(tuner, 29, [1.02], 0)
    assert tuner.level.tasks == 8
    tuner.window([1.02], 0)
    assert tuner.level.tasks == 2


def test_a_bound_that_falls_takes_the_level_with_it() -> None:
    tuner = numbers(1, 1000)
    tuner.bound(16)
    close(tuner, 3, [1.0], 2)
    close(tuner, 3, [2.0], 2)
    assert tuner.level.tasks == 4
    tuner.bound(3)
    assert tuner.level.tasks == 3


def _known(best: int, per_s: float, when: float = 0.0, end: SearchEnd = "no gain", following: int = 0) -> SearchRun:
    levels = (LevelRun(best // 2, "mps", per_s / 2, 0.0, 3), LevelRun(best, "mps", per_s, 0.0, 3))
    return SearchRun(
        kind="tasks", when=when, family="f", gpu_model="", gpus=1, rate_source="progress", levels=levels, best=best,
        end=end, next=following,
    )  # fmt: skip


def test_a_fresh_result_is_taken_over_where_it_does_as_much() -> None:
    tuner = numbers(1, 1000, known=_known(8, 10.0), now=29 * DAY_S)
    tuner.bound(16)
    assert tuner.level.tasks == 8
    close(tuner, 6, [10.5], 8)
    assert (tuner.end, tuner.level.tasks, tuner.is_new) == ("same", 8, False)


def test_a_search_that_was_cut_off_goes_on_upwards_and_compares_with_the_earlier_run() -> None:
    tuner = numbers(1, 1000, known=_known(2, 2.0, end="cost", following=4), now=DAY_S)
    tuner.bound(16)
    assert tuner.level.tasks == 4
    close(tuner, 1, [4.0], 8)
    assert tuner.level.tasks == 16
    close(tuner, 3, [4.0], 16)
    assert (tuner.level.tasks, tuner.end) == (4, None), "one rate does not tell whether the higher level does more"
    close(tuner, 3, [4.0], 8)
    assert (tuner.level.tasks, tuner.end) == (8, None)


def test_a_search_that_goes_on_begins_no_higher_than_there_are_tasks() -> None:
    known = _known(8, 8.0, end="few tasks", following=16)
    assert [numbers(1, tasks, known=known).level.tasks for tasks in (100, 12, 4)] == [16, 12, 8]


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
    assert level_runs.newest_search([earlier, last], when) is (earlier if is_earlier else last)


def test_a_run_of_as_many_tasks_as_places_ends_for_lack_of_tasks_and_not_of_room() -> None:
    tuner = numbers(4, 5)
    tuner.bound(5)
    tuner.window([1.0, 1.0], 4, 0)
    tuner.stop("few tasks")
    assert (tuner.level.tasks, tuner.end, tuner.next) == (4, "few tasks", 8)


def test_levels_that_have_no_room_now_are_not_compared_with_the_best() -> None:
    tuner = numbers(1, 1000, known=_known(8, 8.0, end="no room"))
    tuner.bound(4)
    close(tuner, 6, [4.0], 4)
    assert (tuner.level.tasks, tuner.end, [one.level for one in tuner.known_levels]) == (4, "no room", [4])


def test_a_search_that_ended_for_lack_of_room_goes_on_where_there_is_more() -> None:
    for hi, level, end in ((8, 8, "same"), (16, 16, None)):
        tuner = numbers(1, 1000, known=_known(8, 8.0, end="no room"))
        tuner.bound(hi)
        close(tuner, 6, [8.0], 8)
        assert (tuner.level.tasks, tuner.end) == (level, end)


def test_rates_that_do_not_agree_with_the_earlier_run_replace_it() -> None:
    tuner = numbers(1, 1000, known=_known(4, 10.0, end="cost", following=4))
    tuner.bound(4)
    close(tuner, 6, [100.0], 4)
    assert [one.per_s for one in tuner.pool.values()] == [100.0]


def test_few_rates_are_clear_only_if_they_are_steady_or_the_gain_is_large() -> None:
    one, two = level_runs.level_run(Level(1, "mps"), [1.0, 1.0]), level_runs.level_run(Level(2, "mps"), [1.2, 1.2])
    assert not level_runs.is_clear_gain(two, one)
    assert level_runs.is_clear_gain(level_runs.level_run(Level(2, "mps"), [1.6, 1.6]), one)
    assert level_runs.is_clear_gain(
        level_runs.level_run(Level(2, "mps"), [1.2] * 3), level_runs.level_run(Level(1, "mps"), [1.0] * 3)
    )


def test_a_fresh_result_that_does_less_now_is_searched_again() -> None:
    found = curves.play(curves.between({1: 1.0, 4: 4.0, 8: 4.0}), 0.0, 0, 16, 1, 1000, known=_known(8, 10.0))
    assert 4 in levels_of(found)
    assert found.best == 4


def test_an_old_result_begins_at_half_of_it() -> None:
    assert numbers(1, 1000, known=_known(8, 10.0), now=31 * DAY_S).level.tasks == 4


# ---- Sharing methods ----


WAYS = [Level(2, "exclusive"), Level(4, "time-slicing"), Level(4, "mps")]


def ways(tasks: int = 1000, **known: Any) -> Search:
    return Search("sharing", WAYS, tasks, gpus=2, default=WAYS[-1], **known)


def compared(rates: dict[int, float], following: int = 0, when: float = 0.0) -> SearchRun:
    """Return the comparison of an earlier run. rates: place in WAYS -> rate."""
    levels = tuple(LevelRun(*WAYS[place][:2], rate, 0.0, 3) for place, rate in rates.items())
    return SearchRun(
        kind="sharing", when=when, family="f", gpu_model="", gpus=2, rate_source="progress", levels=levels,
        best=levels[0].level, end="all tried", next=following,
    )  # fmt: skip


def test_each_way_of_sharing_is_measured_and_the_fastest_goes_on() -> None:
    found = ways()
    for rate in (1.0, 3.0, 2.0):
        close(found, 3, [rate], 4)
    assert (found.level, found.end, found.is_finished) == (WAYS[1], "all tried", True)


def test_a_way_that_was_measured_in_this_run_is_not_tried_again() -> None:
    found = ways(measured=[LevelRun(4, "mps", 2.0, 0.0, 3)])
    close(found, 3, [1.0], 4)
    close(found, 3, [1.0], 4)
    assert (found.level, found.end) == (WAYS[2], "all tried")


def test_no_way_is_tried_that_the_tasks_that_are_left_cannot_pay_back() -> None:
    """Ten places do a task each, and may lose half of it; each task that is left may gain a tenth."""
    assert [ways(tasks).end for tasks in (49, 50)] == ["cost", None]
    found = ways()
    found.window([1.0], 2, 900)
    found.window([1.0], 2, 900)
    found.window([1.0], 2, 39)
    assert (found.level, found.end, found.next, found.untried) == (WAYS[2], "cost", 4, WAYS[1:])


def test_a_finished_comparison_is_taken_over_where_its_best_does_as_much() -> None:
    known = compared({0: 1.0, 1: 1.5, 2: 3.0})
    found = ways(known=known, now=DAY_S)
    assert found.level == WAYS[2]
    close(found, 3, [3.1], 4)
    assert (found.level, found.end, found.is_new) == (WAYS[2], "same", False)
    other = ways(known=known, now=DAY_S)
    close(other, 3, [0.5], 4)
    assert (other.level, other.end, other.untried) == (WAYS[0], None, WAYS[:2])


def test_a_comparison_that_was_cut_off_goes_on_and_an_old_one_begins_again() -> None:
    known = compared({0: 1.0, 1: 1.5}, following=4)
    found = ways(known=known, now=DAY_S)
    assert found.level == WAYS[2]
    close(found, 3, [1.2], 4)
    assert (found.level, found.end, found.is_new) == (WAYS[1], "all tried", True)
    assert ways(known=known, now=31 * DAY_S).level == WAYS[0]


# ---- Parts of the multiprocessors ----


LOADED = Load(sm_ratio=0.6)
PAN_FREE = 316 / 345 + 144 / 360
PAN_90 = 316 / 344 + 144 / 263
"""Aggregate speed of ResNet-50 and SqueezeNet, each without a limit and with 90 and 10 %: Pan 2021, Table 2. ResNet's
time did not change, so its limit is taken to be what helped."""
Truth = Callable[[str], float]


def score(part: str, stp: float, antt: float) -> LevelRun:
    return LevelRun(1, "mps", stp, 0.0, 3, part, antt)


def parts(*known: LevelRun, load: Load | None = LOADED) -> Search:
    found = Search("part", part_levels(load, 2), 0)
    for one in known:
        found.add(one)
    return found


def begin(search: Search, left: int, *, may_try: bool = True) -> tuple[str, bool]:
    level, is_trial = search.begin_task(part_levels(LOADED, 2, search.pool), left, may_try=may_try)
    return level.part, is_trial


def end(search: Search, part: str, stp: float, antt: float) -> None:
    search.end_task(Level(1, "mps", part), score(part, stp, antt))


def run_starts(truth: Truth, noise: float, seed: int, count: int = 40) -> list[tuple[str, bool]]:
    rng = random.Random(seed)
    found = []
    search = parts()
    for number in range(count):
        found.append(begin(search, count - number))
        part, is_trial = found[-1]
        if is_trial:
            stp = truth(part) * rng.lognormvariate(0.0, noise)
            end(search, part, stp, 2.0 / stp)
    return found


@pytest.mark.parametrize(("sm_ratio", "percent"), [(0.6, 90), (0.4, 60), (0.03, 10), (0.9, 100), (0.41, 65)])
def test_the_first_guess_leaves_room_above_the_measured_load(sm_ratio: float, percent: int) -> None:
    assert guess_percent(Load(sm_ratio=sm_ratio)) == percent


def test_nothing_is_guessed_of_an_unknown_load() -> None:
    assert guess_percent(None) == 100


def test_the_share_that_helped_pan_is_found_in_six_starts() -> None:
    found = run_starts({"free": PAN_FREE, "90": PAN_90, "even": 0.9 * PAN_FREE}.__getitem__, 0.0, 0)
    assert [is_trial for _, is_trial in found[:7]] == [True] * 6 + [False]
    assert {part for part, _ in found[6:]} == {"90"}


def test_what_is_chosen_is_never_worse_than_no_limit_by_more_than_a_little() -> None:
    """Knees of three kinds of families; noise of 2 %: the median of many windows."""
    worst = 1.0
    for truth in (
        {"free": 1.4, "90": 1.3, "even": 1.0},
        {"free": 1.4, "90": 1.41, "even": 1.38},
        {"free": 1.2, "90": 1.2, "even": 1.2},
    ):
        for seed in range(100):
            part, _ = run_starts(truth.__getitem__, 0.02, seed)[-1]
            worst = min(worst, truth[part] / truth["free"])
    assert worst >= 0.97


def test_less_slowdown_at_the_same_speed_wins_too() -> None:
    known = [score(FREE, 1.0, 1.0), score("even", 0.9, 1.0)] * 2
    for stp, antt, best in ((1.01, 0.85, "90"), (0.9, 0.8, FREE)):
        assert begin(parts(*known, score("90", stp, antt), score("90", stp, antt)), 2) == (best, False)


def test_with_few_tasks_to_go_or_a_neighbour_under_trial_nothing_is_tried() -> None:
    assert begin(parts(), 9) == (FREE, False), "six trials cost more"
    assert begin(parts(), 99, may_try=False) == (FREE, False)
    assert begin(parts(), 10) == (FREE, True)


def test_a_part_that_slows_too_much_is_not_given_again() -> None:
    search, level = parts(), Level(1, "mps", "90")
    slowed = [(level, 1.3, 2), (Level(1, "mps", FREE), 1.3, 3), (level, 1.3, 3), (level, 1.3, 3)]
    assert [search.refuse(*one) for one in slowed] == [False, False, True, False]
    assert {begin(search, 100)[0] for _ in range(9)} == {FREE, "even"}


def test_a_trial_without_a_measurement_is_done_again() -> None:
    search = parts()
    for _ in range(9):
        assert begin(search, 100) == (FREE, True)
        search.end_task(Level(1, "mps", FREE))


def test_trials_of_earlier_runs_count_and_nothing_is_chosen_before_each_part_is_tried() -> None:
    search = parts(*(score(FREE, 1.0, 1.0), score("90", 1.2, 1.0)) * 2)
    for _ in range(2):
        assert begin(search, 10) == ("even", True)
        end(search, "even", 1.4, 0.9)
    assert begin(search, 2) == ("even", False)
    assert begin(search, 2, may_try=False) == ("even", False)


def test_a_percentage_that_was_tried_stays_when_the_load_changes() -> None:
    tried = [Level(1, "mps", "60")]
    assert [one.part for one in part_levels(LOADED, 2, tried)] == [FREE, "60", "even"]
    assert [[one.part for one in part_levels(load, 2)] for load in (None, Load(sm_ratio=0.3))] == [
        [FREE, "even"], [FREE, "45", "even"],
    ]  # fmt: skip
    assert [one.part for one in part_levels(Load(sm_ratio=0.33), 2)] == [FREE, "50"]


# ---- Sentences ----


def _run(level: int, per_s: float, sharing: Any = "mps") -> LevelRun:
    return LevelRun(level, sharing, per_s, 0.01, 3)


def test_the_tables_and_sentences_of_searches(golden) -> None:
    lines = [
        tuned_text.begin_sentence(known, Level(level, "mps"), 40 * DAY_S)
        for known, level in (
            (_known(8, 8.0, when=39 * DAY_S), 8),
            (_known(8, 8.0, when=39 * DAY_S, end="few tasks", following=16), 16),
            (_known(8, 8.0, end="few tasks", following=16), 4),
            (compared({0: 1.0}, when=39 * DAY_S), 8),
            (compared({0: 1.0}, following=4, when=39 * DAY_S), 8),
            (compared({0: 1.0}), 8),
        )
    ]
    for known, best, end_, following in (
        ((2, 4, 8), 4, "no gain", 0), ((2, 4, 8), 4, "cost", 6), ((2,), 2, "few tasks", 4), ((2, 4), 4, "stopped", 8),
        ((2, 4), 4, "no room", 0), ((2, 4, 8), 4, "same", 0),
    ):  # fmt: skip
        pool = [_run(level, level / 2) for level in known]
        lines += [tuned_text.best_sentence(pool, best, end_, following, nodes) for nodes in (1, 2)]
    numbers_ = numbers(2, 100, measured=[_run(2, 0.5), _run(4, 999.7)])
    earlier = numbers(2, 100, measured=[_run(4, 1.0)], known=msgspec.structs.replace(_known(4, 1.0), gpus=2))
    methods = ways(measured=[_run(2, 0.5, "exclusive"), _run(4, 0.0, "time-slicing"), _run(4, 1.0)])
    partly = ways(measured=[_run(2, 0.5, "exclusive"), _run(4, 1.0)])
    for found in (numbers_, earlier, methods, partly, ways(10), numbers(2, 100), ways()):
        found.stop("few tasks")
        lines += tuned_text.end_sentences(found)
        lines += tuned_text.result_lines(found, "n1", "finished", 1, is_idle=False)
    golden("searches.txt", "".join(f"{line}\n" for line in lines))


def test_the_cost_of_trials_is_the_time_that_they_do_less_than_the_best() -> None:
    runs = [_run(2, 0.5), _run(4, 1.0)]
    spent = [(Level(2, "mps"), 60.0), (Level(4, "mps"), 90.0), (Level(4, "time-slicing"), 60.0)]
    assert tuned_text.cost_s(spent, runs, runs[1]) == 90.0
