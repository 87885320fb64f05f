"""Corrections of predicted slowdowns, from measured pairs."""

from __future__ import annotations

import random

import pytest

from slurm_share.packing.records import TaskKey
from slurm_share.packing.rules import pair_model
from slurm_share.packing.rules.pair_model import PAIRS_MOST, RATIO_MOST, PairModel


def key(exact: str, family: str = "") -> TaskKey:
    """Return a command of a family."""
    return TaskKey(exact=exact, family=family or exact)


def test_without_measurements_nothing_is_corrected():
    """And it is empty."""
    known = PairModel()
    assert not known
    assert known.ratio(key("a"), key("b")) == 1.0
    assert known.weight(key("a"), key("b")) == 0.0


def test_a_pair_that_was_measured_often_is_predicted_as_measured():
    """One measurement moves it in part only."""
    once, often = PairModel(), PairModel()
    once.add(key("a"), key("b"), 1.5)
    for _ in range(12):
        often.add(key("a"), key("b"), 1.5)
    assert 1.1 < once.ratio(key("a"), key("b")) < 1.5
    assert often.ratio(key("a"), key("b")) == pytest.approx(1.5, rel=0.03)
    assert often.weight(key("a"), key("b")) == 12


def test_the_slowed_and_the_one_that_slows_are_told_apart():
    """b slows everyone and is not slowed itself."""
    known = PairModel()
    for other in "cdefgh":
        for _ in range(3):
            known.add(key(other), key("b"), 1.8)
            known.add(key("b"), key(other), 1.0)
    assert known.ratio(key("new"), key("b")) > 1.3
    assert known.ratio(key("b"), key("new")) < 1.2


def test_a_pair_that_never_ran_is_predicted_from_what_each_did_beside_others():
    """The measured ratios are products of a sensitivity and a pressure; a fifth of the pairs is seen."""
    draw = random.Random(7)
    names = [f"t{number}" for number in range(20)]
    touchy = {name: draw.uniform(0.7, 1.4) for name in names}
    presses = {name: draw.uniform(0.7, 1.4) for name in names}
    pairs = [(a, b) for a in names for b in names if a != b]
    draw.shuffle(pairs)
    seen, held = pairs[:120], pairs[120:]
    known = PairModel()
    for a, b in seen:
        known.add(key(a), key(b), touchy[a] * presses[b])
    errors = [abs(known.ratio(key(a), key(b)) / (touchy[a] * presses[b]) - 1.0) for a, b in held]
    without = [abs(1.0 / (touchy[a] * presses[b]) - 1.0) for a, b in held]
    assert sum(errors) < 0.5 * sum(without)


def test_a_new_command_of_a_known_family_is_predicted_by_its_family():
    """Another batch size of the same script."""
    known = PairModel()
    for size in range(6):
        known.add(key(f"x {size}", "x"), key("y 1", "y"), 1.6)
    assert known.ratio(key("x 99", "x"), key("y 2", "y")) > 1.3
    assert known.ratio(key("z 1", "z"), key("w 2", "w")) < known.ratio(key("x 99", "x"), key("y 2", "y"))


def test_what_is_no_number_is_not_learned_and_extremes_are_limited():
    """A rate of 0 gives an infinite slowdown."""
    known = PairModel()
    known.add(key("a"), key("b"), float("inf"))
    known.add(key("a"), key("b"), float("nan"))
    known.add(key("a"), key("b"), 0.0)
    assert not known
    for _ in range(50):
        known.add(key("a"), key("b"), 1e9)
    assert known.ratio(key("a"), key("b")) <= RATIO_MOST


def test_only_the_pairs_that_were_measured_last_are_kept(monkeypatch):
    """A run may have any number of commands."""
    monkeypatch.setattr(pair_model, "PAIRS_MOST", 10)
    known = PairModel()
    for number in range(30):
        known.add(key(f"a{number}"), key("b"), 1.2)
    assert known.weight(key("a0"), key("b")) == 0.0
    assert known.weight(key("a29"), key("b")) == 1.0
    assert PAIRS_MOST > 10


def test_later_measurements_outweigh_old_ones():
    """A program that was changed is known anew after some runs."""
    known = PairModel()
    for _ in range(200):
        known.add(key("a"), key("b"), 2.0)
    for _ in range(200):
        known.add(key("a"), key("b"), 1.0)
    assert known.ratio(key("a"), key("b")) < 1.15
