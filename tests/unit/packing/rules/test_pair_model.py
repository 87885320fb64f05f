from __future__ import annotations

import random

import pytest

from slurm_share.packing.records import TaskKey
from slurm_share.packing.rules import pair_model
from slurm_share.packing.rules.pair_model import LEAST, MOST, PairModel


def key(exact: str, family: str = "") -> TaskKey:
    return TaskKey(exact=exact, family=family or exact)


def ratio(known: PairModel, task: TaskKey, *neighbours: TaskKey) -> float:
    found = known.factor(task)
    for other in neighbours:
        found *= known.pressure(other) * known.pair(task, other)
    return found


def test_without_measurements_nothing_is_corrected():
    known = PairModel()
    assert ratio(known, key("a"), key("b")) == 1.0
    assert tuple(known.neighbours("a")) == ()


def test_a_pair_that_was_measured_often_is_predicted_as_measured():
    once, often = PairModel(), PairModel()
    once.add(key("a"), [key("b")], 1.5, 1)
    for _ in range(12):
        often.add(key("a"), [key("b")], 1.5, 4)
    assert 1.1 < ratio(once, key("a"), key("b")) < 1.5
    assert ratio(often, key("a"), key("b")) == pytest.approx(1.5, rel=0.03)
    assert tuple(often.neighbours("a")) == ("b",)


def test_the_slowed_and_the_one_that_slows_are_told_apart():
    known = PairModel()
    for other in "cdefgh":
        for _ in range(3):
            known.add(key(other), [key("b")], 1.8, 4)
            known.add(key("b"), [key(other)], 1.0, 4)
    assert known.pressure(key("b")) > 1.2
    assert known.factor(key("b")) < known.factor(key("c"))
    assert ratio(known, key("new"), key("b")) > ratio(known, key("b"), key("new"))


def test_a_pair_that_never_ran_is_predicted_from_what_each_did_beside_others():
    """The measured ratios are products of a sensitivity and a pressure; a third of the pairs is seen."""
    draw = random.Random(7)
    names = [f"t{number}" for number in range(20)]
    touchy = {name: draw.uniform(0.7, 1.4) for name in names}
    presses = {name: draw.uniform(0.7, 1.4) for name in names}
    pairs = [(a, b) for a in names for b in names if a != b]
    draw.shuffle(pairs)
    known = PairModel()
    for a, b in pairs[:120]:
        known.add(key(a), [key(b)], touchy[a] * presses[b], 4)
    errors = [abs(ratio(known, key(a), key(b)) / (touchy[a] * presses[b]) - 1.0) for a, b in pairs[120:]]
    without = [abs(1.0 / (touchy[a] * presses[b]) - 1.0) for a, b in pairs[120:]]
    assert sum(errors) < 0.5 * sum(without)


def test_three_tasks_on_a_gpu_teach_of_pairs():
    draw = random.Random(3)
    names = [f"t{number}" for number in range(8)]
    presses = {name: draw.uniform(0.8, 1.3) for name in names}
    known = PairModel()
    for _ in range(300):
        task, one, two = draw.sample(names, 3)
        known.add(key(task), [key(one), key(two)], presses[one] * presses[two], 4)
    for task, one, two in (draw.sample(names, 3) for _ in range(20)):
        found = ratio(known, key(task), key(one), key(two))
        assert found == pytest.approx(presses[one] * presses[two], rel=0.08)


def test_a_neighbour_of_the_same_command_counts():
    known = PairModel()
    for _ in range(10):
        known.add(key("a"), [key("a"), key("a")], 1.44, 4)
    assert ratio(known, key("a"), key("a"), key("a")) == pytest.approx(1.44, rel=0.05)


def test_a_new_command_of_a_known_family_is_predicted_by_its_family():
    known = PairModel()
    for size in range(6):
        known.add(key(f"x {size}", "x"), [key("y 1", "y")], 1.6, 4)
    assert ratio(known, key("x 99", "x"), key("y 2", "y")) > 1.3
    assert known.families("x", "y") > 1.0
    assert ratio(known, key("z", "z"), key("w", "w")) < ratio(known, key("x 99", "x"), key("y 2", "y"))


def test_neighbours_that_are_not_known_teach_of_the_task_alone():
    known = PairModel()
    for _ in range(8):
        known.add(key("a"), (), 1.5, 4)
    assert known.factor(key("a")) > 1.3
    assert known.pressure(key("a")) == 1.0


def test_what_is_no_number_is_not_learned_and_extremes_are_limited():
    known = PairModel()
    for wrong in (float("inf"), float("nan"), 0.0, -1.0):
        known.add(key("a"), [key("b")], wrong, 4)
    known.add(key("a"), [key("b")], 1.5, 0)
    known.add(key("a"), [key("b")], 1.5, float("nan"))
    assert ratio(known, key("a"), key("b")) == 1.0
    for _ in range(50):
        known.add(key("a"), [key("b")], 1e9, 4)
        known.add(key("c"), [key("d")], 1e-9, 4)
    assert known.factor(key("a")) <= MOST
    assert known.factor(key("c")) >= LEAST


def test_only_the_groups_that_were_measured_last_are_kept(monkeypatch):
    monkeypatch.setattr(pair_model, "ROWS_MOST", 10)
    known = PairModel()
    for number in range(30):
        known.add(key(f"a{number}"), [key("b")], 1.2, 4)
    assert tuple(known.neighbours("a0")) == ()
    assert tuple(known.neighbours("a29")) == ("b",)


def test_later_measurements_outweigh_old_ones():
    known = PairModel()
    for measured in (1.8, 1.0):
        for _ in range(200):
            known.add(key("a"), [key("b")], measured, 4)
    assert ratio(known, key("a"), key("b")) < 1.15


def test_tasks_without_a_name_share_nothing():
    known = PairModel()
    for _ in range(20):
        known.add(TaskKey(exact="", family=""), [TaskKey(exact="", family="")], 1.5, 4)
    assert tuple(known.neighbours("")) == ()
    assert known.pressure(TaskKey(exact="", family="")) == 1.0


def test_with_many_groups_one_more_measurement_waits_for_others_before_all_is_fitted_again():
    model = PairModel()
    keys = [TaskKey(exact=f"e{number}", family=f"f{number}") for number in range(101)]
    seen = []
    for number in range(100):
        model.add(keys[number], [keys[number + 1]], 1.5, 4.0)
        seen.append(model.factor(keys[number]) > model.factor(TaskKey(exact="new", family="new")))
    assert all(seen[:4])
    assert 1 <= seen[60:].count(True) <= 4
