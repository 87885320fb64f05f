from __future__ import annotations

import math
import random
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from packing_values import gpu, key, running, view

from slurm_share.packing.decision_records import Move, Pause, Resume
from slurm_share.packing.records import TaskAsk, Tries
from slurm_share.packing.rules import undo
from slurm_share.packing.rules.rates import WINDOWS_KEPT
from slurm_share.packing.speed_records import Rate


def rate(per_s, error=0.005, windows=3, source="progress"):
    return Rate(per_s=per_s, error_per_s=error, windows=windows, source=source)


def task(number, speed=None, *, on=0, windows=3, error=0.005, family=None, age=500.0, flat=True, **fields):
    """A task whose rate alone is 1 unit a second."""
    found = running(
        number, on, 1000, memory=900, is_flat=flat, started=1000.0 - age,
        rate=None if speed is None else rate(speed, error, windows),
        rate_alone=rate(1.0, 0.001, 20),
        **fields,
    )  # fmt: skip
    name = family or f"f{number}"
    return replace(found, ask=TaskAsk(task=number, key=key(f"e-{name}", name)))


def decided(*tasks, gpus=1, now=1000.0, mode="pause"):
    return undo.actions(view([gpu(index) for index in range(gpus)], (), tasks, now=now, policy="gain", undo=mode))


def kinds(found):
    return [type(one) for one in found]


OLD, YOUNG = 900.0, 200.0


def harmful(windows=3, stp=0.7, **more):
    """Tasks 7 (older) and 12 (younger) on GPU 0."""
    return task(7, stp / 2, windows=windows, age=OLD), task(12, stp / 2, windows=windows, age=YOUNG, **more)


def test_a_very_harmful_pair_is_undone_at_the_first_test_and_named_with_its_figures():
    (pause,) = decided(*harmful(stp=0.6))
    assert isinstance(pause, Pause)
    assert (pause.task, pause.gpu) == (12, "GPU-0")
    assert pause.why == "GPU 0: task 12 is paused, since 7 and 12 together do 0.60 +- 0.01 of one at a time"
    assert decided(*harmful(stp=0.6), mode="off") == []


@pytest.mark.parametrize(
    "change",
    [
        {"rate": None}, {"rate": rate(0.35, source="log")}, {"rate": rate(0.35, windows=2)},
        {"rate": rate(0.35, error=math.inf)}, {"rate": rate(0.35, error=1e200)}, {"rate_alone": None},
        {"rate_alone": rate(1e-290)}, {"is_flat": False}, {"is_moving": True},
    ],
)  # fmt: skip
def test_what_is_not_known_of_one_of_them_undoes_nothing(change):
    one, other = harmful()
    assert decided(one, replace(other, **change)) == []


def test_a_pair_that_pays_and_one_within_the_error_are_left_alone():
    assert decided(*harmful(stp=1.3)) == []
    assert decided(task(7, 0.48, error=0.05), task(12, 0.48, error=0.05)) == []


def test_a_pair_that_does_little_harm_is_undone_three_windows_later():
    assert decided(*harmful(3, 0.93)) == []
    (pause,) = decided(*harmful(6, 0.93))
    assert "task 12 is paused, since 7 and 12 together do 0.93" in pause.why


def test_between_two_tests_nothing_is_tested():
    assert [bool(decided(*harmful(windows))) for windows in range(3, 14)] == [
        True, True, False, True, True, True, False, False, False, True, True,
    ]  # fmt: skip


def test_a_pair_is_tested_after_more_windows_than_a_rate_is_the_mean_of():
    assert decided(*harmful(2 * WINDOWS_KEPT - 1)) == []
    assert kinds(decided(*harmful(2 * WINDOWS_KEPT))) == [Pause]


def test_of_three_the_youngest_is_paused():
    tasks = [task(1, 0.3, age=900), task(2, 0.1, age=800), task(3, 0.3, age=200)]
    (pause,) = decided(*tasks)
    assert pause.task == 3
    assert "1, 2 and 3 together do 0.70" in pause.why


def test_a_paused_task_goes_on_when_nothing_else_runs_there():
    found = decided(task(7, on=1), task(12, is_paused=True, pause_s=990.0), gpus=2)
    assert [(type(one), one.task) for one in found] == [(Resume, 12)]


def test_a_paused_task_goes_on_after_its_time_and_the_other_is_paused_instead():
    tasks = task(7, 1.0), task(12, is_paused=True, pause_s=100.0)
    assert decided(*tasks, now=999.0) == []
    found = decided(*tasks, now=1000.0)
    assert [(type(one), one.task) for one in found] == [(Pause, 7), (Resume, 12)]


def test_a_task_of_which_nothing_was_measured_goes_on_too():
    found = decided(replace(task(12, is_paused=True, pause_s=1.0), rate_alone=None))
    assert [(type(one), one.task) for one in found] == [(Resume, 12)]


def test_one_of_two_paused_tasks_goes_on_at_a_time():
    tasks = task(7, is_paused=True, pause_s=50.0), task(12, is_paused=True, pause_s=40.0)
    assert [one.task for one in decided(*tasks, now=60.0)] == [12]


def test_a_task_that_can_save_its_state_moves_to_an_idle_gpu():
    """0.6 of one at a time: 1000 s take 667 s longer, and a start takes 30."""
    tasks = harmful(3, 0.6, can_move=True, ends_s=2000.0)
    assert kinds(decided(*tasks, gpus=2)) == [Move]
    for less in (
        {"ends_s": 1030.0},
        {"ends_s": None},
        {"can_move": False},
        {"tries": Tries(moved=3)},
        {"reserved_mib": 50000},
    ):
        assert kinds(decided(tasks[0], replace(tasks[1], **less), gpus=2)) == [Pause], less
    assert kinds(decided(*tasks, gpus=1)) == [Pause]
    assert kinds(decided(*tasks, task(20, on=1), gpus=2)) == [Pause]


def test_one_task_at_a_time_moves():
    tasks = [task(number, 0.3, on=number // 2, age=900 - number, can_move=True, ends_s=3000.0) for number in range(4)]
    assert kinds(decided(*tasks, gpus=3)) == [Move, Pause]
    tasks[1] = replace(tasks[1], is_moving=True)
    assert kinds(decided(*tasks, gpus=3)) == [Pause]


def test_a_task_that_has_just_begun_moves_without_saving():
    tasks = task(7, 0.3, age=OLD), task(12, 0.3, age=50.0, ends_s=2000.0)
    assert kinds(decided(*tasks, gpus=2)) == [Move]


def test_students_quantiles_are_those_of_the_tables():
    for normal, freedom, exact in [(1.96, 4, 2.776), (1.96, 10, 2.228), (2.326, 4, 3.747), (2.326, 30, 2.457)]:
        assert undo.student(normal, freedom) == pytest.approx(exact, rel=0.04)


# ---- Whatever the state ----

_rates = st.none() | st.builds(
    Rate,
    per_s=st.floats(0, 2), error_per_s=st.floats(0, 0.5) | st.just(math.nan), windows=st.integers(1, 30),
    source=st.sampled_from(["progress", "log"]),
)  # fmt: skip


@st.composite
def nodes(draw):
    tasks = []
    for number in range(draw(st.integers(1, 7))):
        one = task(number, on=draw(st.integers(0, 2)), family=draw(st.sampled_from("abc")))
        one = replace(
            one,
            rate=draw(_rates), rate_alone=draw(_rates), started_s=draw(st.floats(0, 1000)),
            is_paused=draw(st.booleans()), pause_s=draw(st.floats(0, 1000)), is_flat=draw(st.booleans()),
            is_moving=draw(st.sampled_from([False, False, True])), can_move=draw(st.booleans()),
            ends_s=draw(st.none() | st.floats(0, 9000)),
        )  # fmt: skip
        tasks.append(one)
    return tasks, draw(st.sampled_from(["off", "pause"]))


@given(nodes())
def test_whatever_the_state_no_gpu_stands_still_and_each_action_makes_sense(node):
    tasks, mode = node
    found = decided(*tasks, gpus=3, mode=mode)
    before = {one.ask.task: one for one in tasks}
    assert len({one.task for one in found}) == len(found)
    assert sum(isinstance(one, Move) for one in found) <= 1
    paused = {number: one.is_paused for number, one in before.items()}
    for one in found:
        its = before[one.task]
        assert one.gpu in its.gpus
        assert its.is_paused == isinstance(one, Resume)
        assert not its.is_moving
        paused[one.task] = isinstance(one, Pause)
    if mode == "off":
        assert found == []
        return
    for index in range(3):
        here = [number for number, one in before.items() if f"GPU-{index}" in one.gpus and not one.is_moving]
        moved = {one.task for one in found if isinstance(one, Move)}
        assert not here or any(not paused[number] and number not in moved for number in here)


# ---- How often it errs ----

NOISE = 0.10


def first_found(chance, stp, *, windows=48, noise=NOISE):
    """After how many windows of that noise a pair is found to do harm; None: never. Alone, it was measured for ten
    windows with the same noise."""
    speeds = [chance.uniform(0.3, 0.7)]
    speeds = [stp * speeds[0], stp * (1 - speeds[0])]
    alone = [measured([chance.gauss(1, noise) for _ in range(10)]) for _ in range(2)]
    seen = [[], []]
    for count in range(1, windows + 1):
        for own, speed in zip(seen, speeds, strict=True):
            own.append(speed * chance.gauss(1, noise))
        if count < undo.WINDOWS_LEAST:
            continue
        found = undo.measure([(measured(own), its) for own, its in zip(seen, alone, strict=True)])
        if found is not None and found.is_harmful:
            return count
    return None


def measured(values):
    mean = sum(values) / len(values)
    return Rate(per_s=mean, error_per_s=stdev(values) / math.sqrt(len(values)), windows=len(values), source="progress")


def test_few_pairs_that_pay_are_found_to_do_harm():
    chance = random.Random(20)
    wrong = {stp: sum(first_found(chance, stp) is not None for _ in range(200)) for stp in (1.0, 1.05, 1.1)}
    assert wrong[1.1] <= 0.02 * 200
    assert wrong[1.05] <= 0.05 * 200
    assert wrong[1.0] <= 0.12 * 200  # the errors of the rates alone stay the same in all tests


def test_harmful_pairs_are_found_in_few_windows():
    chance = random.Random(21)
    for stp, ratio, most in [(0.6, 0.9, 3), (0.7, 0.9, 6), (0.8, 0.9, 12), (0.9, 0.5, 12)]:
        found = sorted(first_found(chance, stp, windows=24) or 999 for _ in range(100))
        assert found[int(100 * ratio)] <= most, (stp, found)
