from __future__ import annotations

import pytest
from msgspec.structs import replace
from packing_values import A100, gpu, key, running, starts, view, waiting

from slurm_share.packing.decision_records import Start
from slurm_share.packing.records import EndFacts, PackSettings, TaskAsk
from slurm_share.packing.rules import interference, refusals
from slurm_share.packing.rules.board import Board
from slurm_share.packing.rules.estimate.estimator import Estimator
from slurm_share.packing.rules.interference import speeds_text
from slurm_share.packing.rules.place import decide
from slurm_share.packing.rules.speeds import Speeds
from slurm_share.packing.rules.undo import REPEATS_LEAST, alone_most_s
from slurm_share.packing.speed_records import Load, PairRun, PairView, Rate

MOST_S = alone_most_s(PackSettings())


def on(task, index, mib=4000, name="", *, sm=None, paused=False, **more):
    one = running(
        task, index, mib, memory=mib, is_paused=paused, load=None if sm is None else Load(sm_ratio=sm), **more
    )
    return replace(one, ask=TaskAsk(task=task, key=key(name, f"f-{name}") if name else None))


def waits(task, mib=4000, name="", *, sm=None, **more):
    one = waiting(task, mib, key=key(name, f"f-{name}") if name else None, **more)
    return one if sm is None else replace(one, loads=((A100, Load(sm_ratio=sm)),))


def answer(gpus, tasks, runs, *, pairs=(), **settings):
    seen = view(gpus, tasks, runs, policy="gain", **settings)
    return decide(replace(seen, pairs=pairs))


def reasons(decision):
    return {one.gpu: one.why for one in decision.refused}


HARMFUL = PairView(a="a", b="b", extra_a=1.5, extra_b=1.5, is_refused=True)


# ---- Where a task goes ----


def test_a_task_goes_beside_the_neighbour_that_suits_not_where_most_room_is():
    gpus, runs = [gpu(0), gpu(1)], [on(1, 0, 3000, sm=0.9), on(2, 1, 20000, sm=0.2)]
    assert starts(answer(gpus, [waits(9, sm=0.5)], runs)) == [(9, "GPU-1")]
    assert starts(decide(view(gpus, [waits(9)], runs))) == [(9, "GPU-0")]


def test_an_idle_gpu_is_taken_before_any_neighbour():
    idle = gpu(1, others_mib=30000)
    assert starts(answer([gpu(0), idle], [waits(9, sm=0.01)], [on(1, 0, sm=0.01)])) == [(9, "GPU-1")]


def test_of_gpus_that_gain_the_same_the_roomier_and_then_the_first_is_taken():
    runs = [on(1, 0, 9000, sm=0.3), on(2, 1, 4000, sm=0.3), on(3, 2, 4000, sm=0.3)]
    assert starts(answer([gpu(0), gpu(1), gpu(2)], [waits(9, sm=0.3)], runs)) == [(9, "GPU-1")]


def test_without_measured_loads_the_gpu_with_most_room_is_taken():
    runs = [on(1, 0, 20000), on(2, 1, 4000), on(3, 2, 9000)]
    assert starts(answer([gpu(0), gpu(1), gpu(2)], [waits(9)], runs)) == [(9, "GPU-1")]


def test_room_comes_before_speed():
    runs = [on(1, 0, 39000, sm=0.1), on(2, 1, 4000, sm=0.6)]
    assert starts(answer([gpu(0), gpu(1)], [waits(9, sm=0.3)], runs)) == [(9, "GPU-1")]


def test_no_prediction_makes_a_task_wait():
    runs = [on(task, 0, sm=0.9) for task in range(4)]
    assert starts(answer([gpu(0)], [waits(9, sm=0.9)], runs)) == [(9, "GPU-0")]


def test_measured_pairs_count_before_the_model():
    runs = [on(1, 0, name="a", sm=0.2), on(2, 1, name="b", sm=0.3)]
    task = waits(9, name="c", sm=0.3)
    assert starts(answer([gpu(0), gpu(1)], [task], runs)) == [(9, "GPU-0")]
    assert starts(
        answer([gpu(0), gpu(1)], [task], runs, pairs=(PairView(a="a", b="c", extra_a=0.7, extra_b=0.7),))
    ) == [(9, "GPU-1")]


def test_a_task_waits_where_by_measured_pairs_it_would_add_little():
    pairs = [PairView(a=a, b=b, extra_a=extra, extra_b=extra) for a, b, extra in (("a", "b", 0.6), ("a", "c", 0.9))]
    runs = [on(1, 0, name="a"), on(2, 0, name="b")]
    whole = (*pairs, PairView(a="b", b="c", extra_a=0.9, extra_b=0.9))
    decision = answer([gpu(0)], [waits(9, name="c")], runs, pairs=whole)
    assert starts(decision) == []
    assert reasons(decision)["GPU-0"] == "by what was measured it would add only -0.09 to what the GPU does"
    assert starts(answer([gpu(0)], [waits(9, name="c")], runs, pairs=tuple(pairs))) == [(9, "GPU-0")]


def test_what_is_decided_counts_for_the_next_task_of_the_same_decision():
    runs = [on(1, 0, 4000, sm=0.1), on(2, 1, 4000, sm=0.2)]
    tasks = [waits(8, sm=0.6), waits(9, sm=0.6)]
    assert starts(answer([gpu(0), gpu(1)], tasks, runs)) == [(8, "GPU-0"), (9, "GPU-1")]


# ---- Pairs that did less than one at a time ----


@pytest.mark.parametrize(("task", "beside"), [("a", "b"), ("b", "a")])
def test_a_refused_pair_never_shares_a_gpu_whatever_its_loads_promise(task, beside):
    decision = answer([gpu(0)], [waits(9, 1000, task, sm=0.1)], [on(1, 0, 1000, beside, sm=0.1)], pairs=(HARMFUL,))
    assert reasons(decision) == {"GPU-0": refusals.REFUSED}
    assert starts(decision) == []


def test_two_of_a_refused_pair_do_not_start_together_and_the_task_behind_goes_on():
    tasks = [waits(8, 1000, "a"), waits(9, 1000, "b"), waits(10, 1000, "c")]
    assert starts(answer([gpu(0)], tasks, [], pairs=(HARMFUL,))) == [(8, "GPU-0"), (10, "GPU-0")]
    assert starts(answer([gpu(0)], tasks, [])) == [(8, "GPU-0"), (9, "GPU-0"), (10, "GPU-0")]


def test_an_old_task_whose_only_neighbour_is_refused_gets_a_gpu_kept_free():
    decision = answer([gpu(0)], [waits(9, name="b")], [on(1, 0, name="a")], pairs=(HARMFUL,), now=10_000.0)
    assert [one.task for one in decision.actions] == [9]
    assert "kept free" in decision.actions[0].why


# ---- Left alone to be measured ----


def alone(task=1, index=0, name="a", since=0.0, **more):
    return on(task, index, 1000, name, alone_since_s=since, is_new=True, **more)


def others(count, first=20):
    return [waits(first + number, 1000, f"w{number}") for number in range(count)]


def repeats(count=REPEATS_LEAST, name="a", first=60, **more):
    """Tasks of a new command that have no room now."""
    return [waits(first + number, 39_950, name, is_new=True, **more) for number in range(count)]


def started(decision):
    return [one for one in starts(decision) if one[0] < 60]


def test_a_task_of_a_new_command_is_left_alone_where_another_gpu_is_free_for_the_rest():
    tasks = [waits(1, 1000, "a", is_new=True), *others(3), *repeats()]
    found = started(answer([gpu(0), gpu(1)], tasks, []))
    assert found == [(1, "GPU-0"), (20, "GPU-1"), (21, "GPU-1"), (22, "GPU-1")]
    tasks = [*others(2), *repeats()]
    assert started(answer([gpu(0), gpu(1)], tasks, [alone(), on(2, 1, 30000)])) == [(20, "GPU-1"), (21, "GPU-1")]


def test_a_task_of_a_command_that_few_others_have_is_not_left_alone():
    for count in (REPEATS_LEAST - 1, REPEATS_LEAST):
        decision = answer([gpu(0), gpu(1)], [*others(1), *repeats(count)], [alone(), on(2, 1, 39900)])
        assert (started(decision) == []) == (count == REPEATS_LEAST)


def test_all_gpus_measure_where_many_tasks_wait_and_one_alone_only_then():
    runs, same = [alone(), alone(2, 1, "b")], [*repeats(), *repeats(name="b", first=70)]
    assert started(answer([gpu(0), gpu(1)], [*others(3), *same], runs)) == []
    assert started(answer([gpu(0)], [*others(3), *repeats()], [alone()])) == []
    four, runs = [gpu(index) for index in range(4)], [*runs, alone(3, 2, "c"), on(4, 3, 39_950)]
    found = started(answer(four, [*others(1), *same, *repeats(name="c", first=80)], runs))
    assert {one[1] for one in found} == {"GPU-2"}


@pytest.mark.parametrize(
    ("change", "is_left"),
    [
        ({}, True),
        ({"is_new": False}, False),
        ({"alone_since_s": None}, False),
        ({"alone_since_s": 100.0 - MOST_S}, False),
        ({"alone_since_s": 100.1 - MOST_S}, True),
    ],
)
def test_a_task_is_left_alone_for_a_limited_time_until_its_rate_is_known(change, is_left):
    runs = [replace(alone(), **change), on(2, 1, 39900)]
    assert started(answer([gpu(0), gpu(1)], [*others(1), *repeats()], runs)) == ([] if is_left else [(20, "GPU-0")])


@pytest.mark.parametrize(
    ("median_s", "seconds", "is_left"), [(5.0, None, False), (5.0, 900.0, True), (900.0, 5.0, False)]
)
def test_a_short_task_is_not_left_alone(median_s, seconds, is_left):
    one = alone()
    runs = [replace(one, estimate=replace(one.estimate, seconds=seconds)), on(2, 1, 39900)]
    decision = answer([gpu(0), gpu(1)], [*others(8), *repeats()], runs, median_s=median_s)
    assert ("GPU-0" in {found[1] for found in started(decision)}) != is_left


def test_near_its_end_a_list_measures_no_task_alone():
    for median_s, count, is_left in ((None, 3, True), (900.0, 3, False), (900.0, 8, True)):
        tasks = [*others(count), *repeats()]
        decision = answer([gpu(0), gpu(1)], tasks, [alone(), on(2, 1, 39900)], median_s=median_s)
        assert (started(decision) == []) == is_left


def test_one_task_of_a_command_is_left_alone_at_a_time():
    runs = [alone(1, 0), alone(2, 1), on(3, 2, 39900), on(4, 3, 39900)]
    four = [gpu(index) for index in range(4)]
    assert started(answer(four, [*others(1), *repeats()], runs)) == [(20, "GPU-1")]


def test_a_gpu_is_emptied_for_a_new_command_of_a_long_list_of_long_tasks():
    runs = [on(1, 0, 1000, "a"), on(2, 1, 1000, "b"), on(3, 1, 1000, "b")]
    new = [waits(30 + number, 1000, "n", is_new=True) for number in range(REPEATS_LEAST + 1)]
    decision = answer([gpu(0), gpu(1)], [*new, *others(3)], runs, median_s=900.0)
    (hold, *rest) = decision.actions
    assert (hold.task, hold.gpu, hold.why) == (30, "GPU-0", "GPU 0 is kept free for task 30, to measure it alone")
    assert {one.gpus for one in rest} == {("GPU-1",)}
    further = [waits(50, 1000, "m", is_new=True)]
    for tasks, median_s in (
        ([*new[1:], *others(5)], 900.0),
        ([*new, *others(2)], 900.0),
        ([*new, *others(3)], 200.0),
        ([*new, *others(3), *further], 900.0),
    ):
        assert all(isinstance(one, Start) for one in answer([gpu(0), gpu(1)], tasks, runs, median_s=median_s).actions)
    held = answer([gpu(0, held_for=30), gpu(1)], [*new, *others(3)], runs[1:], median_s=900.0)
    assert (30, "GPU-0") in starts(held)


def test_a_gpu_on_which_a_task_is_left_alone_is_decided_again_in_time():
    one = Board([gpu(index).facts for index in range(2)], 8, PackSettings(policy="gain"), Estimator())
    one.add(TaskAsk(task=0, gpu_mem_mib=1000, key=key("a")), 0.0)
    one.add(TaskAsk(task=1, gpu_mem_mib=39000, key=key("b")), 0.0)
    for task in range(10, 10 + REPEATS_LEAST):
        one.add(TaskAsk(task=task, gpu_mem_mib=39_950, key=key("a")), 0.0)
    one.decide(0.0)
    one.add(TaskAsk(task=2, gpu_mem_mib=20000, key=key("c")), 1.0)
    now = 1.0
    assert starts(one.decide(now)[1]) == []
    while (following := one.next_s(now)) is not None and following < 500:
        now = following
        if starts(one.decide(now)[1]):
            break
    assert now == MOST_S
    assert not one.speeds.is_new(TaskAsk(task=3, key=key("a")), (A100,))  # it has shown no progress


def test_a_task_whose_last_neighbour_has_ended_is_alone_from_then_on():
    one = Board([gpu(0).facts], 8, PackSettings(policy="gain"), Estimator())
    for task in range(2):
        one.add(TaskAsk(task=task, gpu_mem_mib=1000, key=key(f"e{task}")), 0.0)
    one.decide(0.0)
    assert [run.alone_since_s for run in one.view(1.0).running] == [None, None]
    one.put_back(0, 30.0)
    one.withdraw(0)
    assert [run.alone_since_s for run in one.view(31.0).running] == [30.0]


# ---- A guess stays a guess ----


def test_short_tasks_of_unknown_load_start_as_with_booked():
    """A thousand tasks of 5 s took 319 s instead of 135, because measured slowdowns made guessed loads count."""
    ends = {}
    for policy in ("booked", "gain"):
        speeds = Speeds()
        one = Board([gpu(index).facts for index in range(2)], 64, PackSettings(policy=policy), Estimator(), speeds)
        for task in range(200):
            one.add(TaskAsk(task=task, gpu_mem_mib=9000, key=key(f"e{task % 3}", "f")), 0.0)
        now, left = 0.0, 200
        while left:
            one.decide(now)
            for run in one.running_views() if now % 5 == 4 else ():
                one.ended(EndFacts(task=run.ask.task, now_s=now, code=0))
                left -= 1
            now += 1.0
        ends[policy] = now
    assert ends["gain"] <= ends["booked"] + 5


# ---- What is said ----


def test_the_start_says_what_is_expected():
    (start,) = answer([gpu(0)], [waits(9, sm=0.4)], [on(1, 0, sm=0.4)]).actions
    assert start.why == "GPU 0 beside 1: 3.9 of 35.3 GiB free booked; both keep ~0.87, together 1.7 of one"
    (start,) = answer([gpu(0)], [waits(9, sm=0.4)], []).actions
    assert "keep" not in start.why


@pytest.mark.parametrize(("there", "new"), [(None, None), (0.4, None), (None, 0.4)])
def test_the_start_predicts_nothing_unless_all_loads_were_measured(there, new):
    (start,) = answer([gpu(0)], [waits(9, sm=new)], [on(1, 0, sm=there)]).actions
    assert start.why == "GPU 0 beside 1: 3.9 of 35.3 GiB free booked; loads not known"


@pytest.mark.parametrize(
    ("speeds", "text"),
    [
        ([0.84, 0.86], "both keep ~0.85, together 1.7 of one"),
        ([0.5, 0.9], "they keep 0.5 to 0.9, together 1.4 of one"),
        ([0.71, 0.8, 0.9], "they keep 0.7 to 0.9, together 2.4 of one"),
        ([0.7, 0.7, 0.7], "they keep ~0.7, together 2.1 of one"),
    ],
)
def test_speeds_in_words(speeds, text):
    assert speeds_text(speeds) == text


def test_tasks_without_mps_take_turns():
    always, half = Load(sm_ratio=0.1), Load(sm_ratio=0.1, busy_ratio=0.5)
    assert interference.slowdowns([always, always], "time-slicing") == [2.0, 2.0]
    assert interference.slowdowns([half, half], "time-slicing") == [1.0, 1.0]
    assert interference.stp(interference.slowdowns([always, always])) > 1.9


# ---- The board's views ----


def test_views_have_loads_pairs_and_rates_alone_with_gain_only():
    for policy in ("gain", "booked"):
        speeds = Speeds()
        one = Board([gpu(0).facts], 8, PackSettings(policy=policy), Estimator(), speeds)
        for task, name in enumerate("ab"):
            one.add(TaskAsk(task=task, gpu_mem_mib=1000, key=key(name, f"f-{name}")), 0.0)
        one.decide(0.0)
        rate = Rate(per_s=2.0, error_per_s=0.1, windows=3, source="log")
        speeds.note_alone(key("a", "f-a"), A100, rate)
        speeds.note_load(key("a", "f-a"), A100, Load(sm_ratio=0.3))
        pair = PairRun(
            when=0.0, a="a", b="b", family_a="f-a", family_b="f-b", gpu_model=A100, sharing="mps", slowdown_a=2.5,
            slowdown_b=2.5, stp=0.8, stp_error=0.0, windows=3, is_refused=True,
        )  # fmt: skip
        speeds.learn_pair(pair, 0.0)
        one.add(TaskAsk(task=9, gpu_mem_mib=1000, key=key("b", "f-b")), 1.0)
        seen = one.view(1.0)
        by_task = {run.ask.task: run for run in seen.running}
        is_gain = policy == "gain"
        assert by_task[0].rate_alone == (rate if is_gain else None)
        assert by_task[0].load == (Load(sm_ratio=0.3) if is_gain else None)
        assert seen.pairs == ((HARMFUL,) if is_gain else ())
        assert (by_task[1].is_new, seen.waiting[0].is_new) == (is_gain, is_gain)
        assert reasons(decide(seen)).get("GPU-0") == (refusals.REFUSED if is_gain else None)
