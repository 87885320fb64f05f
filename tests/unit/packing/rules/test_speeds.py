from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_share.packing.history_records import TaskRun
from slurm_share.packing.records import TaskAsk, TaskKey
from slurm_share.packing.rules import interference
from slurm_share.packing.rules.loads import Load, scale, strength
from slurm_share.packing.rules.pair_model import MOST
from slurm_share.packing.rules.speeds import BAN_S, Constants, Group, Member, Speeds
from slurm_share.packing.speed_records import Belief, PairRun, Rate

NOW = 1_795_000_000.0
A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"


def run(exact="e", family="f", *, model=A100, alone_s=100.0, **other):
    fields = {"when": NOW, "kind": "done", "seconds": 100.0, "alone_seconds": alone_s, "sm_ratio": 0.4, **other}
    return TaskRun(exact=exact, family=family, gpu_model=model, **fields)


def ask(exact="e", family="f", task=0):
    return TaskAsk(task=task, key=TaskKey(exact=exact, family=family))


def pair(**other):
    """Return a pair that was measured: each took 1.5 times as long as predicted."""
    fields = {
        "when": NOW, "a": "e1", "b": "e2", "family_a": "f1", "family_b": "f2", "gpu_model": A100, "sharing": "mps",
        "slowdown_a": 1.8, "slowdown_b": 1.8, "predicted_a": 1.2, "predicted_b": 1.2, "stp": 1.1, "stp_error": 0.02,
        "windows": 4, **other,
    }  # fmt: skip
    return PairRun(**fields)


# ---- Beliefs ----


def test_nothing_known_is_the_default():
    assert Speeds().belief(ask(), A100) == Speeds().belief(TaskAsk(task=0), A100) == Belief()


def test_a_command_that_was_alone_is_believed_to_take_what_was_measured():
    speeds = Speeds([run(sm_ratio=0.9), *(run(sm_ratio=x, dram_ratio=0.2, util_ratio=0.7) for x in (0.4, 0.42, 0.4))])
    belief = speeds.belief(ask(), A100)
    assert (belief.sm_ratio, belief.dram_ratio, belief.busy_ratio) == (0.41, 0.2, 0.7)
    assert (belief.source, belief.is_from_util) == ("alone", False)


def test_a_task_that_was_hardly_alone_teaches_nothing():
    assert Speeds([run(alone_s=20.0)]).belief(ask(), A100) == Belief()
    assert Speeds([run(alone_s=60.0)]).belief(ask(), A100).source == "alone"


def test_where_only_utilisation_is_known_nine_tenths_of_it_count_and_it_is_marked():
    belief = Speeds([run(sm_ratio=0.8, util_ratio=0.8)]).belief(ask(), A100)
    assert (belief.sm_ratio, belief.busy_ratio, belief.is_from_util) == (0.72, 0.8, True)


def test_a_command_of_a_known_family_is_believed_to_be_as_the_family():
    belief = Speeds([run("other", sm_ratio=0.3)]).belief(ask(), A100)
    assert (belief.sm_ratio, belief.source) == (0.3, "family")


def test_a_load_of_another_gpu_model_is_scaled_where_both_are_known():
    """108 multiprocessors at 1410 MHz against 132 at 1980; an unknown model as it is."""
    speeds = Speeds([run(sm_ratio=0.8)])
    belief = speeds.belief(ask(), H100)
    assert belief.sm_ratio == pytest.approx(0.8 * 108 * 1410 / (132 * 1980), abs=0.01)
    assert speeds.belief(ask(), "new").sm_ratio == 0.8


def test_a_running_task_that_was_measured_by_the_step_it_made_is_believed():
    speeds = Speeds()
    speeds.note_load(TaskKey(exact="e", family="f"), A100, Load(sm_ratio=0.2, source="step"))
    assert speeds.belief(ask(), A100).source == "step"
    speeds.learn(run())
    assert speeds.belief(ask(), A100).source == "alone"


def test_models_are_known_by_whole_words():
    """An A10 is no A100, an L4 no L40S; a slice of a GPU is none of them."""
    assert strength("NVIDIA A10") != strength("NVIDIA A100 80GB PCIe")
    assert strength("NVIDIA H100 PCIe") != strength(H100)
    assert strength("NVIDIA A100-SXM4-40GB MIG 1g.5gb") is None
    assert scale("x", A100) == 1.0


# ---- Rates ----


def test_the_newest_rate_alone_counts():
    speeds = Speeds([run(rate_alone=5.0, rate_source="log"), run(rate_alone=6.0, rate_source="progress")])
    known = speeds.rate_alone(TaskKey(exact="e", family="f"), A100)
    assert known == Rate(per_s=6.0, error_per_s=pytest.approx(0.3), windows=1, source="progress")
    new = Rate(per_s=7.0, error_per_s=0.1, windows=4, source="progress")
    speeds.note_alone(TaskKey(exact="e", family="f"), A100, new)
    speeds.learn(run(rate_alone=7.0, rate_source="progress"))  # its task ended: what was measured of it is known better
    assert speeds.rate_alone(TaskKey(exact="e", family="x"), A100) == new
    assert speeds.rate_alone(TaskKey(exact="e", family="f"), H100) is None
    assert speeds.rate_alone(TaskKey(exact="", family="f"), A100) is speeds.rate_alone(None, A100) is None


# ---- Groups ----


def learned(speeds, slowdowns, windows=4, names=("e1", "e2")):
    members = [
        Member(ask=ask(name, f"f{name[1:]}"), slowdown=slow, windows=windows)
        for name, slow in zip(names, slowdowns, strict=True)
    ]
    return speeds.learn_group(members, A100, "mps", when=NOW)


def test_a_task_that_suffers_more_than_predicted_is_corrected_and_its_neighbour_presses_more():
    speeds = Speeds()
    said = interference.slowdowns([Belief(), Belief()])[0]
    (line,) = learned(speeds, (said * 1.5, said))
    assert (line.slowdown_a, line.predicted_a, line.windows) == (round(said * 1.5, 4), round(said, 4), 4)
    assert line.stp == pytest.approx(1 / (1.5 * said) + 1 / said, abs=1e-3)
    one, two = speeds.belief(ask("e1", "f1"), A100), speeds.belief(ask("e2", "f2"), A100)
    assert one.factor > 1.05
    assert two.pressure > 1.05
    assert one.pressure == pytest.approx(1.0, abs=0.03)
    views = {(view.a, view.b): view for view in speeds.pairs([ask("e1", "f1").key, ask("e2", "f2").key])}
    view = views["e1", "e2"]
    assert one.factor * two.pressure * view.factor_a == pytest.approx(1.5**0.85, rel=0.1)
    assert view.factor_b == pytest.approx(1.0, abs=0.05)
    assert ("f1", "f2") in views


def test_corrections_converge_to_what_is_measured_and_stay_bounded():
    """After many windows the prediction is the measurement; a ratio of 50 is taken to be 2 x 2."""
    speeds = Speeds()
    said = interference.slowdowns([Belief(), Belief()])[0]
    for _ in range(10):
        learned(speeds, (said * 1.5, said * 0.9), windows=10)
    one, two = speeds.belief(ask("e1", "f1"), A100), speeds.belief(ask("e2", "f2"), A100)
    views = {(view.a, view.b): view for view in speeds.pairs([ask("e1", "f1").key, ask("e2", "f2").key])}
    view = views.get(("e1", "e2"))
    found = interference.slowdowns(
        [one, two], "mps", {} if view is None else {(0, 1): view.factor_a, (1, 0): view.factor_b}
    )
    assert found == [pytest.approx(said * 1.5, rel=0.03), pytest.approx(said * 0.9, rel=0.03)]
    for _ in range(50):
        learned(speeds, (said * 50, said), windows=10)
    assert speeds.belief(ask("e1", "f1"), A100).factor == MOST


def test_of_three_tasks_each_neighbour_has_its_part_and_nothing_is_written():
    speeds = Speeds()
    assert learned(speeds, (3.0, 2.0, 2.0), names=("e1", "e2", "e3")) == ()
    views = {(view.a, view.b) for view in speeds.pairs([ask(f"e{n}", f"f{n}").key for n in (1, 2, 3)])}
    assert {("e1", "e2"), ("e1", "e3")} <= views


def test_pairs_of_the_history_correct_and_those_of_others_are_not_shown():
    speeds = Speeds([], [pair(), pair(a="e3", family_a="f3")], now=NOW)
    keys = [TaskKey(exact="e1", family="f1"), TaskKey(exact="e2", family="f2")]
    views = speeds.pairs(keys)
    assert [(view.a, view.b) for view in views] == [("e1", "e2"), ("f1", "f2")]
    assert views == speeds.pairs(reversed(keys))
    assert speeds.pairs(keys[:1]) == ()


def test_commands_that_are_not_known_are_found_by_their_families():
    speeds = Speeds()
    speeds.ban(TaskKey(exact="", family="f1"), TaskKey(exact="", family="f2"))
    keys = [TaskKey(exact="", family=f"f{number}") for number in (1, 2, 3)]
    assert [(view.a, view.b) for view in speeds.pairs(keys)] == [("f1", "f2")]


@pytest.mark.parametrize(("age_s", "is_banned"), [(BAN_S - 1, True), (BAN_S + 1, False)])
def test_a_ban_counts_for_30_days(age_s, is_banned):
    speeds = Speeds([], [pair(is_banned=True, windows=0)], now=NOW + age_s)
    keys = [TaskKey(exact="e1", family="f1"), TaskKey(exact="e2", family="f2")]
    assert [(view.a, view.b) for view in speeds.pairs(keys) if view.is_banned] == [("e1", "e2")] * is_banned
    others = [TaskKey(exact="new", family="f1"), TaskKey(exact="newer", family="f2")]
    assert not any(view.is_banned for view in speeds.pairs(others))


def test_a_ban_of_this_run_holds_and_a_command_can_be_banned_from_itself():
    speeds = Speeds()
    speeds.ban(TaskKey(exact="e1", family="f"), TaskKey(exact="e1", family="f"))
    assert [view.is_banned for view in speeds.pairs([TaskKey(exact="e1", family="f")])] == [True]
    assert not Speeds().pairs([TaskKey(exact="", family="")])


def is_family_banned(speeds):
    return speeds.is_banned(TaskKey(exact="new", family="f1"), TaskKey(exact="newer", family="f2"))


def test_two_families_are_banned_after_two_pairs_of_commands():
    speeds = Speeds()
    speeds.ban(TaskKey(exact="e1", family="f1"), TaskKey(exact="e2", family="f2"))
    speeds.ban(TaskKey(exact="e2", family="f2"), TaskKey(exact="e1", family="f1"))
    assert not is_family_banned(speeds)
    speeds.ban(TaskKey(exact="e3", family="f1"), TaskKey(exact="e2", family="f2"))
    assert is_family_banned(speeds)


def test_families_with_more_pairs_that_suit_are_not_banned():
    suit = [pair(a=f"s{number}", windows=3) for number in range(3)]
    bans = [pair(a=f"h{number}", is_banned=True, windows=0) for number in range(2)]
    assert not is_family_banned(Speeds([], [*suit, *bans], now=NOW))
    assert not is_family_banned(Speeds([], [*bans, *suit], now=NOW))
    assert is_family_banned(Speeds([], [*bans, *suit[:2]], now=NOW))


def test_a_finished_task_without_rates_teaches_a_little():
    speeds = Speeds([run()])
    speeds.learn(run(seconds=200.0, alone_s=0.0), predicted=1.2)
    once = speeds.belief(ask(), A100)
    assert 1.02 < once.factor < 1.2
    assert once.pressure == 1.0
    for _ in range(60):
        speeds.learn(run(seconds=200.0, alone_s=0.0), predicted=1.2)
    assert speeds.belief(ask(), A100).factor == pytest.approx(2 / 1.2, rel=0.1)


# ---- The constants ----


@pytest.mark.parametrize("exponent", [4.0, interference.EXPONENT])
def test_the_exponent_is_fitted_where_another_is_better_on_groups_that_were_held_out(exponent):
    constants = Constants()
    changed = False
    for count in range(200):
        beliefs = (Belief(sm_ratio=0.3 + 0.002 * count), Belief(sm_ratio=0.5))
        slow = interference.slowdowns(beliefs, exponent=exponent)
        changed = constants.add(Group(beliefs, tuple(slow), "mps")) or changed
    assert (constants.exponent, changed) == (exponent, exponent != interference.EXPONENT)


def test_the_part_of_the_utilisation_is_fitted_too():
    constants = Constants()
    for count in range(300):
        util = 0.4 + 0.002 * count
        truth = (Belief(sm_ratio=0.6 * util), Belief(sm_ratio=0.6 * 0.7))
        believed = tuple(Belief(sm_ratio=0.9 * x, is_from_util=True) for x in (util, 0.7))
        constants.add(Group(believed, tuple(interference.slowdowns(truth)), "mps"))
    assert constants.util_factor == pytest.approx(0.6, abs=0.11)


# ---- Bounds ----


_anything = st.one_of(st.floats(), st.floats(0.1, 10), st.none())


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["e1", "e2", "e3", ""]), _anything, _anything, _anything), max_size=12),
    st.lists(st.lists(st.tuples(st.sampled_from(["e1", "e2", ""]), st.floats()), max_size=4), max_size=8),
)
def test_whatever_is_measured_what_is_believed_stays_possible_and_is_the_same_again(runs, groups):
    found = []
    for _ in range(2):
        speeds = Speeds()
        for name, sm, dram, rate in runs:
            speeds.learn(run(name, sm_ratio=sm, dram_ratio=dram, util_ratio=dram, rate_alone=rate, rate_source="log"))
        for group in groups:
            members = [Member(ask=ask(name), slowdown=slow, windows=3) for name, slow in group]
            speeds.learn_group(members, A100, "mps", when=NOW)
        keys = [TaskKey(exact=name, family="f") for name in ("e1", "e2", "e3", "")]
        for key in keys:
            belief = speeds.belief(TaskAsk(task=0, key=key), A100)
            for ratio in (belief.sm_ratio, belief.dram_ratio, belief.busy_ratio):
                assert 0 <= ratio <= 1
            assert 0.5 <= belief.factor <= 2
            assert 0.5 <= belief.pressure <= 2
            rate = speeds.rate_alone(key, A100)
            assert rate is None or 0 < rate.per_s < math.inf
        for view in speeds.pairs(keys):
            assert 0.5 <= view.factor_a <= 2
            assert 0.5 <= view.factor_b <= 2
        found.append((speeds.pairs(keys), [speeds.belief(TaskAsk(task=0, key=key), A100) for key in keys]))
    assert found[0] == found[1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcd"), st.sampled_from((0.6, 1.5, 3.0)))))
def test_answers_that_are_kept_are_those_of_the_newest_measurements(steps):
    speeds = Speeds()
    keys = [TaskKey(exact=name, family=name.upper()) for name in "abcd"]
    for one, two, slow in steps:
        members = [Member(ask=TaskAsk(task=0, key=keys["abcd".index(x)]), slowdown=slow, windows=4) for x in (one, two)]
        speeds.learn_group(members, A100, "mps", when=NOW)
        speeds.note_load(keys[0], A100, Load(sm_ratio=slow / 4))
        kept = speeds.pairs(keys), [speeds.belief(TaskAsk(task=0, key=key), A100) for key in keys]
        for answers in (speeds._factors, speeds._corrected, speeds._pair_views, speeds._loads._summed_up):
            answers.clear()
        assert kept == (speeds.pairs(keys), [speeds.belief(TaskAsk(task=0, key=key), A100) for key in keys])
