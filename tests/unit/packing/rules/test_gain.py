from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from packing_values import A100, gpu, key, running, starts, view, waiting

from slurm_share.packing.records import PackSettings, TaskAsk, TaskKey
from slurm_share.packing.rules import interference, refusals
from slurm_share.packing.rules.board import Board
from slurm_share.packing.rules.estimate.estimator import Estimator
from slurm_share.packing.rules.place import decide
from slurm_share.packing.rules.predicted_speeds import GroupTask, Pairs, PredictedGroup, speeds_text
from slurm_share.packing.rules.speeds import Speeds
from slurm_share.packing.speed_records import Belief, PairView, Rate


def believed(**belief):
    return Belief(**{"source": "alone" if belief else "default", **belief})


def on(task, index, mib=4000, name="", *, rate=None, rate_alone=None, paused=False, **belief):
    one = running(task, index, mib, memory=mib)
    ask = TaskAsk(task=task, key=key(name, f"f-{name}") if name else None)
    return replace(
        one, ask=ask, belief=believed(**belief), rate=rate, rate_alone=rate_alone, is_paused=paused
    )  # fmt: skip


def waits(task, mib=4000, name="", **belief):
    one = waiting(task, mib, key=key(name, f"f-{name}") if name else None)
    return replace(one, beliefs=((A100, believed(**belief)),))


def answer(gpus, tasks, runs, *, pairs=(), **settings):
    seen = view(gpus, tasks, runs, policy="gain", **settings)
    return decide(replace(seen, pairs=pairs))


def reasons(decision):
    return {one.gpu: one.why for one in decision.refused}


# ---- The model ----

_beliefs = st.builds(
    Belief,
    sm_ratio=st.floats(0, 1), dram_ratio=st.floats(0, 1), pcie_ratio=st.floats(0, 1),
    busy_ratio=st.floats(0, 1), factor=st.floats(0.5, 2), pressure=st.floats(0.5, 2),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.lists(_beliefs, min_size=1, max_size=6),
    st.sampled_from(["mps", "time-slicing"]),
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 5)), st.floats(0.5, 2), max_size=8),
)
def test_the_fast_prediction_is_that_of_the_model(beliefs, sharing, corrections):
    corrections = {pair: x for pair, x in corrections.items() if pair[0] != pair[1]}
    names = [f"e{number}" for number in range(6)]
    views = []
    for a in range(6):
        for b in range(a + 1, 6):
            views.append(
                PairView(
                    a=names[a], b=names[b], factor_a=corrections.get((a, b), 1.0), factor_b=corrections.get((b, a), 1.0)
                )
            )
    pairs = Pairs(views)
    group = PredictedGroup(sharing, interference.EXPONENT, pairs)
    parts = [
        GroupTask(TaskAsk(task=n, key=TaskKey(exact=names[n], family="")), one, interference.EXPONENT, pairs)
        for n, one in enumerate(beliefs)
    ]
    for part in parts[:-1]:
        group.add(part)
    expected = [1 / slow for slow in interference.slowdowns(beliefs, sharing, corrections)]
    assert group.speeds(parts[-1]) == pytest.approx(expected)
    group.add(parts[-1])
    assert group.speeds() == pytest.approx(expected)
    assert group.stp == pytest.approx(sum(expected))


# ---- Where a task goes ----


def test_a_task_goes_beside_the_neighbour_that_suits_not_where_most_room_is():
    decision = answer(
        [gpu(0), gpu(1)], [waits(9, sm_ratio=0.5)], [on(1, 0, 3000, sm_ratio=0.9), on(2, 1, 20000, sm_ratio=0.2)]
    )
    assert starts(decision) == [(9, "GPU-1")]
    assert starts(decide(replace(view([gpu(0), gpu(1)], [waits(9)], [on(1, 0, 3000), on(2, 1, 20000)])))) == [
        (9, "GPU-0")
    ]


def test_an_idle_gpu_is_taken_before_any_neighbour():
    idle = gpu(1, others_mib=30000)
    assert starts(answer([gpu(0), idle], [waits(9, sm_ratio=0.01)], [on(1, 0, sm_ratio=0.01)])) == [(9, "GPU-1")]


def test_of_gpus_that_gain_the_same_the_roomier_and_then_the_first_is_taken():
    runs = [on(1, 0, 9000, sm_ratio=0.3), on(2, 1, 4000, sm_ratio=0.3), on(3, 2, 4000, sm_ratio=0.3)]
    assert starts(answer([gpu(0), gpu(1), gpu(2)], [waits(9, sm_ratio=0.3)], runs)) == [(9, "GPU-1")]


def test_room_comes_before_speed():
    runs = [on(1, 0, 39000, sm_ratio=0.1), on(2, 1, 4000, sm_ratio=0.6)]
    assert starts(answer([gpu(0), gpu(1)], [waits(9, sm_ratio=0.3)], runs)) == [(9, "GPU-1")]


def test_a_task_that_would_add_little_waits_and_says_so():
    runs = [on(task, 0, sm_ratio=0.9) for task in range(4)]
    decision = answer([gpu(0)], [waits(9, sm_ratio=0.9)], runs, min_speed=0.1)
    assert starts(decision) == []
    assert reasons(decision)["GPU-0"].startswith("would add only 0.0")
    assert starts(answer([gpu(0)], [waits(9, sm_ratio=0.9)], runs, min_speed=0.1, min_gain=0.001)) == [(9, "GPU-0")]


@pytest.mark.parametrize("known", [{}, {"sm_ratio": 0.9}])
def test_a_task_waits_only_for_loads_that_were_measured(known):
    runs = [on(task, 0, sm_ratio=0.9) for task in range(3)] + [on(3, 0, **({} if known else {"sm_ratio": 0.9}))]
    assert starts(answer([gpu(0)], [waits(9, **known)], runs)) == [(9, "GPU-0")]


def test_nobody_keeps_less_than_the_least_speed():
    runs = [on(7, 0, sm_ratio=0.2, factor=2.0), on(8, 0, sm_ratio=0.6), on(6, 0, sm_ratio=0.6)]
    why = reasons(answer([gpu(0)], [waits(9, sm_ratio=0.7, busy_ratio=0.2)], runs))["GPU-0"]
    assert why.startswith("task 7 would keep 0.2")
    why = reasons(answer([gpu(0)], [waits(9, sm_ratio=0.1, factor=2.0)], runs[1:]))["GPU-0"]
    assert why.startswith("it would keep 0.3")


def test_a_banned_pair_never_shares_a_gpu():
    ban = PairView(a="f-a", b="f-b", is_banned=True)
    for task, beside in (("a", "b"), ("b", "a")):
        runs = [on(1, 0, 1000, beside, sm_ratio=0.1)]
        decision = answer([gpu(0)], [waits(9, 1000, task, sm_ratio=0.1)], runs, pairs=(ban,))
        assert reasons(decision) == {"GPU-0": refusals.BANNED}
    assert starts(answer([gpu(0)], [waits(9, name="a")], [], pairs=(ban,))) == [(9, "GPU-0")]


def test_two_of_a_banned_pair_do_not_start_together():
    ban = PairView(a="f-a", b="f-b", is_banned=True)
    tasks = [waits(8, 1000, "a", sm_ratio=0.1), waits(9, 1000, "b", sm_ratio=0.1)]
    assert starts(answer([gpu(0)], tasks, [], pairs=(ban,))) == [(8, "GPU-0")]
    assert starts(answer([gpu(0)], tasks, [])) == [(8, "GPU-0"), (9, "GPU-0")]


def test_nothing_starts_beside_two_that_do_less_than_one_at_a_time():
    runs = [on(1, 0, name="a", sm_ratio=0.1), on(2, 0, name="b", sm_ratio=0.1)]
    decision = answer([gpu(0)], [waits(9, name="c", sm_ratio=0.1)], runs)
    assert starts(decision) == [(9, "GPU-0")]
    ban = PairView(a="f-a", b="f-b", is_banned=True)
    decision = answer([gpu(0)], [waits(9, name="c", sm_ratio=0.1)], runs, pairs=(ban,))
    assert [one.why for one in decision.refused] == [refusals.HARMFUL]


def test_measured_pairs_count_before_the_model():
    runs = [on(1, 0, name="a", sm_ratio=0.2), on(2, 1, name="b", sm_ratio=0.3)]
    task = waits(9, name="c", sm_ratio=0.3)
    assert starts(answer([gpu(0), gpu(1)], [task], runs)) == [(9, "GPU-0")]
    pair = PairView(a="a", b="c", factor_a=1.5, factor_b=1.5)
    assert starts(answer([gpu(0), gpu(1)], [task], runs, pairs=(pair,))) == [(9, "GPU-1")]


def test_without_mps_tasks_take_turns():
    sliced = gpu(0, is_mps=False)
    full = answer([sliced], [waits(9, sm_ratio=0.1)], [on(1, 0, sm_ratio=0.1)])
    assert "would add only" in reasons(full)["GPU-0"]
    half = answer([sliced], [waits(9, sm_ratio=0.1, busy_ratio=0.5)], [on(1, 0, sm_ratio=0.1, busy_ratio=0.5)])
    assert starts(half) == [(9, "GPU-0")]


def test_what_is_decided_counts_for_the_next_task_of_the_same_decision():
    runs = [on(1, 0, 4000, sm_ratio=0.1), on(2, 1, 4000, sm_ratio=0.2)]
    tasks = [waits(8, sm_ratio=0.6), waits(9, sm_ratio=0.6)]
    assert starts(answer([gpu(0), gpu(1)], tasks, runs)) == [(8, "GPU-0"), (9, "GPU-1")]


def test_a_task_behind_one_that_waits_for_its_neighbours_goes_on():
    runs = [on(task, 0, sm_ratio=0.9) for task in range(3)]
    tasks = [waits(8, sm_ratio=0.9), waits(9, sm_ratio=0.05, busy_ratio=0.3)]
    assert starts(answer([gpu(0)], tasks, runs, min_speed=0.2)) == [(9, "GPU-0")]


def test_behind_many_tasks_that_suit_no_neighbours_a_gpu_without_tasks_is_still_taken():
    runs = [on(task, 0, 1000, sm_ratio=0.9) for task in range(3)]
    tasks = [waits(10 + n, 1000 + n, sm_ratio=0.9) for n in range(20)]
    decision = answer([gpu(0)], tasks, runs, min_speed=0.3)
    assert [one.why for one in decision.refused].count(refusals.TRIED) == 8
    small = gpu(1, 12000)
    tasks = [*(waits(10 + n, 15000 + n, sm_ratio=0.9) for n in range(20)), waits(30, 2000, sm_ratio=0.9)]
    assert starts(answer([gpu(0), small], tasks, runs, min_speed=0.3)) == [(30, "GPU-1")]


def test_an_old_task_that_nobody_suits_gets_a_gpu_kept_free():
    runs = [on(task, 0, sm_ratio=0.9) for task in range(3)]
    decision = answer([gpu(0)], [waits(9, sm_ratio=0.9)], runs, now=10_000.0)
    assert [one.task for one in decision.actions] == [9]
    assert "kept free" in decision.actions[0].why


@pytest.mark.parametrize(
    ("rate", "alone", "seconds", "now", "starts_now"),
    [
        (None, None, None, 100.0, True),
        (1, None, None, 100.0, False),
        (2, None, None, 100.0, True),
        (1, 1, None, 100.0, True),
        (1, None, 300.0, 100.0, True),
        (1, None, 900.0, 100.0, False),
        (1, None, None, 121.0, True),
    ],
)
def test_a_long_task_that_shows_a_first_rate_is_left_alone_for_the_second(rate, alone, seconds, now, starts_now):
    one = on(1, 0, 1000, sm_ratio=0.1)
    known = {n: Rate(per_s=1.0, error_per_s=0.1, windows=n, source="progress") for n in (1, 2)}
    one = replace(
        one, rate=known.get(rate), rate_alone=known.get(alone), estimate=replace(one.estimate, seconds=seconds)
    )
    decision = answer([gpu(0)], [waits(9, 1000, sm_ratio=0.1)], [one], now=now)
    assert starts(decision) == [(9, "GPU-0")] * starts_now
    if not starts_now:
        assert reasons(decision) == {"GPU-0": refusals.MEASURED}


# ---- What is said ----


def test_the_start_says_what_is_expected():
    decision = answer([gpu(0)], [waits(9, sm_ratio=0.4)], [on(1, 0, sm_ratio=0.4)])
    (start,) = decision.actions
    assert start.why == "GPU 0 beside 1: 3.9 of 35.3 GiB free booked; both keep ~0.87, together 1.7 of one"
    (start,) = answer([gpu(0)], [waits(9, sm_ratio=0.4)], []).actions
    assert "keep" not in start.why


@pytest.mark.parametrize(
    ("there", "new", "text"),
    [
        ({}, {}, "; their loads are not known"),
        ({"sm_ratio": 0.4}, {}, "; some of their loads are not known"),
        ({}, {"sm_ratio": 0.4}, "; some of their loads are not known"),
    ],
)
def test_the_start_predicts_nothing_from_loads_that_are_not_known(there, new, text):
    (start,) = answer([gpu(0)], [waits(9, **new)], [on(1, 0, **there)]).actions
    assert start.why == "GPU 0 beside 1: 3.9 of 35.3 GiB free booked" + text


@pytest.mark.parametrize(
    ("speeds", "text"),
    [
        ([1.0], ""),
        ([0.84, 0.86], "both keep ~0.85, together 1.7 of one"),
        ([0.5, 0.9], "they keep 0.5 to 0.9, together 1.4 of one"),
        ([0.71, 0.8, 0.9], "they keep 0.7 to 0.9, together 2.4 of one"),
        ([0.7, 0.7, 0.7], "they keep ~0.7, together 2.1 of one"),
    ],
)
def test_speeds_in_words(speeds, text):
    assert speeds_text(speeds) == text


# ---- The board's views ----


def board(policy="gain", speeds=None):
    return Board([gpu(0).facts], 8, PackSettings(policy=policy), Estimator(), speeds)


def test_views_have_beliefs_pairs_and_rates_alone_with_gain_only():
    for policy in ("gain", "booked"):
        speeds = Speeds()
        one = board(policy, speeds)
        for task, name in enumerate("ab"):
            one.add(TaskAsk(task=task, gpu_mem_mib=1000, key=key(name, f"f-{name}")), 0.0)
        one.decide(0.0)
        rate = Rate(per_s=2.0, error_per_s=0.1, windows=3, source="log")
        speeds.note_alone(key("a", "f-a"), A100, rate)
        speeds.ban(key("a", "f-a"), key("b", "f-b"))
        one.add(TaskAsk(task=9, gpu_mem_mib=1000, key=key("b", "f-b")), 1.0)
        seen = one.view(1.0)
        by_task = {run.ask.task: run for run in seen.running}
        assert by_task[0].rate_alone == (rate if policy == "gain" else None)
        assert by_task[0].belief == (Belief() if policy == "gain" else None)
        assert [pair.is_banned for pair in seen.pairs] == [True] * (policy == "gain")
        assert reasons(decide(seen)).get("GPU-0") == (refusals.BANNED if policy == "gain" else None)


def test_a_gpu_that_is_measured_alone_is_decided_again_in_time():
    one = board()
    one.add(TaskAsk(task=0, gpu_mem_mib=1000, key=key("a")), 0.0)
    one.decide(0.0)
    one.sample_task(0, {"GPU-0": 900}, 1, 1.0)
    one.rate_task(0, Rate(per_s=2.0, error_per_s=0.1, windows=1, source="log"), 40.0)
    one.add(TaskAsk(task=1, gpu_mem_mib=1000, key=key("b")), 41.0)
    assert starts(one.decide(41.0)[1]) == []
    now = 41.0
    while (following := one.next_s(now)) is not None and following < 500:
        now = following
        if starts(one.decide(now)[1]):
            break
    assert now == 120.0
