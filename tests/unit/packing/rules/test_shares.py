from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from slurm_share.packing.rules.shares import FREE, Share, Shares, choose, guess_percent
from slurm_share.packing.speed_records import LevelRun, Load, SearchRun

LOADED = Load(sm_ratio=0.6)
PAN_FREE = 316 / 345 + 144 / 360
PAN_90 = 316 / 344 + 144 / 263
"""Aggregate speed of ResNet-50 and SqueezeNet, each without a limit and with 90 and 10 %: Pan 2021, Table 2. ResNet's
time did not change, so its limit is taken to be what helped."""
Truth = Callable[[str], float]


def score(part: str, stp: float, antt: float) -> LevelRun:
    return LevelRun(2, "mps", stp, 0.0, 3, part, antt)


def run_starts(truth: Truth, noise: float, seed: int, count: int = 40) -> list[Share]:
    rng = random.Random(seed)
    shares, found = Shares(), []
    for number in range(count):
        share = shares.start("resnet", "V100", LOADED, ["squeeze"], count - number)
        found.append(share)
        stp = truth(share.arm) * rng.lognormvariate(0.0, noise)
        shares.ended("resnet", "V100", ["squeeze"], share, score(share.arm, stp, 2.0 / stp))
    return found


@pytest.mark.parametrize(("sm_ratio", "percent"), [(0.6, 90), (0.4, 60), (0.03, 10), (0.9, 100), (0.41, 65)])
def test_the_first_guess_leaves_room_above_the_measured_load(sm_ratio: float, percent: int) -> None:
    assert guess_percent(Load(sm_ratio=sm_ratio)) == percent


def test_nothing_is_guessed_of_an_unknown_load() -> None:
    assert guess_percent(None) == 100


def test_the_share_that_helped_pan_is_found_in_six_starts() -> None:
    found = run_starts({"free": PAN_FREE, "90": PAN_90, "even": 0.9 * PAN_FREE}.__getitem__, 0.0, 0)
    assert [share.is_trial for share in found[:7]] == [True] * 6 + [False]
    assert {share.arm for share in found[6:]} == {"90"}
    assert found[6].percent == 90.0


def test_what_is_chosen_is_never_worse_than_no_limit_by_more_than_a_little() -> None:
    """Knees of three kinds of families; noise of 2 %: the median of many windows."""
    worst = 1.0
    for truth in (
        {"free": 1.4, "90": 1.3, "even": 1.0},
        {"free": 1.4, "90": 1.41, "even": 1.38},
        {"free": 1.2, "90": 1.2, "even": 1.2},
    ):
        for seed in range(100):
            last = run_starts(truth.__getitem__, 0.02, seed)[-1]
            worst = min(worst, truth[last.arm] / truth["free"])
    assert worst >= 0.97


def test_an_even_share_that_wins_is_an_even_part() -> None:
    found = run_starts({"free": 1.0, "90": 1.0, "even": 1.3}.__getitem__, 0.0, 0)
    assert (found[-1].arm, found[-1].percent) == ("even", 50.0)


def test_less_slowdown_at_the_same_speed_wins_too() -> None:
    scores = [score(FREE, 1.0, 1.0), score(FREE, 1.0, 1.0), score("60", 1.01, 0.85), score("60", 1.01, 0.85)]
    assert choose(scores) == "60"
    assert choose([*scores[:2], score("60", 0.9, 0.8), score("60", 0.9, 0.8)]) == FREE
    assert choose(scores[:3]) is None


def test_without_neighbours_or_with_few_tasks_to_go_nothing_is_tried() -> None:
    shares = Shares()
    assert shares.start("f", "V100", LOADED, [], 100) == Share(FREE, None, is_trial=False)
    assert shares.start("f", "V100", LOADED, ["g"], 9) == Share(FREE, None, is_trial=False), "six trials cost more"
    assert shares.start("f", "V100", LOADED, ["g"], 99, may_try=False) == Share(FREE, None, is_trial=False)
    assert shares.start("f", "V100", LOADED, ["g"], 10).is_trial


def test_other_neighbours_are_tried_anew() -> None:
    shares = Shares()
    for _ in range(6):
        share = shares.start("f", "V100", LOADED, ["g"], 100)
        shares.ended("f", "V100", ["g"], share, score(share.arm, 1.5 if share.arm == "90" else 1.0, 1.0))
    assert shares.start("f", "V100", LOADED, ["g"], 100) == Share("90", 90.0, is_trial=False)
    assert shares.start("f", "V100", LOADED, ["h"], 100).is_trial


def test_a_share_that_slows_too_much_is_not_given_again() -> None:
    shares = Shares()
    share = Share("90", 90.0, is_trial=True)
    assert not shares.slowed("f", "V100", ["g"], share, 1.3, 2)
    assert not shares.slowed("f", "V100", ["g"], Share(FREE, None, is_trial=True), 1.3, 3)
    assert shares.slowed("f", "V100", ["g"], share, 1.3, 3)
    assert not shares.slowed("f", "V100", ["g"], share, 1.3, 3)
    arms = {shares.start("f", "V100", LOADED, ["g"], 100).arm for _ in range(9)}
    assert arms == {FREE, "even"}


def test_a_trial_without_a_measurement_is_done_again() -> None:
    shares = Shares()
    for _ in range(9):
        share = shares.start("f", "V100", LOADED, ["g"], 100)
        assert share.arm == FREE
        shares.ended("f", "V100", ["g"], share, None)


def earlier(*found: tuple[str, float]) -> list[SearchRun]:
    """Return results of earlier runs: part, and aggregate speed over the predicted one."""
    return [
        SearchRun(
            when=0.0, family="f", gpu_model="V100", gpus=1, neighbours=("g",), rate_source="stp",
            levels=(score(part, stp, 1.0),), best=2, end="stopped",
        )
        for part, stp in found
    ]  # fmt: skip


def test_earlier_runs_decide_beside_the_same_neighbours() -> None:
    history = earlier(*(("free", 1.0), ("90", 1.2), ("even", 0.9)) * 2)
    assert Shares(history).start("f", "V100", LOADED, ["g"], 2) == Share("90", 90.0, is_trial=False)
    assert Shares(history[:4]).start("f", "V100", LOADED, ["g"], 2).arm == FREE


def test_trials_that_were_cut_off_go_on_and_nothing_is_chosen_before_each_arm_is_tried() -> None:
    shares = Shares(earlier(*(("free", 1.0), ("90", 1.2)) * 2))
    for chosen in (None, "even"):
        share = shares.start("f", "V100", LOADED, ["g"], 10)
        assert (share.arm, share.is_trial) == ("even", True)
        assert shares.ended("f", "V100", ["g"], share, score(share.arm, 1.4, 0.9)) == chosen
    assert shares.start("f", "V100", LOADED, ["g"], 10) == Share("even", 50.0, is_trial=False)
    assert shares.start("f", "V100", LOADED, ["g"], 10, may_try=False).arm == "even"
