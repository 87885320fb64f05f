from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.packing.history_records import TaskRun
from slurm_share.packing.records import TaskAsk, TaskKey
from slurm_share.packing.rules.speeds import REFUSED_S, Speeds
from slurm_share.packing.speed_records import PairRun, Rate

NOW = 1_795_000_000.0
A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"


def run(exact="e", family="f", *, model=A100, alone_s=100.0, **other):
    fields = {"when": NOW, "kind": "done", "seconds": 100.0, "alone_seconds": alone_s, "sm_ratio": 0.4, **other}
    return TaskRun(exact=exact, family=family, gpu_model=model, **fields)


def key(exact="e", family="f"):
    return TaskKey(exact=exact, family=family)


def ask(exact="e", family="f", **more):
    return TaskAsk(task=0, key=key(exact, family), **more)


def pair(a="e1", b="e2", **other):
    fields = {
        "when": NOW, "a": a, "b": b, "family_a": "f1", "family_b": "f2", "gpu_model": A100, "sharing": "mps",
        "slowdown_a": 1.6, "slowdown_b": 1.6, "stp": 1.25, "stp_error": 0.02, "windows": 4, **other,
    }  # fmt: skip
    return PairRun(**fields)


# ---- Loads ----


def test_no_load_is_known_of_a_command_that_was_not_measured():
    assert Speeds().load(ask(), A100) is Speeds().load(TaskAsk(task=0), A100) is None


def test_a_command_that_was_alone_has_the_median_of_its_measured_loads():
    speeds = Speeds([run(sm_ratio=0.9), *(run(sm_ratio=x, dram_ratio=0.2, util_ratio=0.7) for x in (0.4, 0.42, 0.4))])
    load = speeds.load(ask(), A100)
    assert (load.sm_ratio, load.dram_ratio, load.busy_ratio, load.is_family) == (0.41, 0.2, 0.7, False)


def test_a_task_that_was_hardly_alone_shows_no_load():
    assert Speeds([run(alone_s=20.0)]).load(ask(), A100) is None
    assert Speeds([run(alone_s=60.0)]).load(ask(), A100) is not None


def test_where_only_utilisation_is_known_nine_tenths_of_it_count():
    load = Speeds([run(sm_ratio=0.8, util_ratio=0.8)]).load(ask(), A100)
    assert (load.sm_ratio, load.busy_ratio) == (0.72, 0.8)


def test_a_command_of_a_known_family_has_the_familys_load_on_that_gpu_model_only():
    speeds = Speeds([run("other", sm_ratio=0.3)])
    load = speeds.load(ask(), A100)
    assert (load.sm_ratio, load.is_family) == (0.3, True)
    assert speeds.load(ask(), H100) is None


# ---- Rates ----


def test_the_newest_rate_alone_counts():
    speeds = Speeds([run(rate_alone=5.0, rate_source="log"), run(rate_alone=6.0, rate_source="progress")])
    known = speeds.rate_alone(key(), A100)
    assert known == Rate(per_s=6.0, error_per_s=pytest.approx(0.3), windows=1, source="progress")
    new = Rate(per_s=7.0, error_per_s=0.1, windows=4, source="progress")
    speeds.note_alone(key(), A100, new)
    speeds.learn(run(rate_alone=7.0, rate_source="progress"))  # its task ended: what was measured of it is known better
    assert speeds.rate_alone(key(family="x"), A100) == new
    assert speeds.rate_alone(key(), H100) is None
    assert speeds.rate_alone(key(exact=""), A100) is speeds.rate_alone(None, A100) is None


def test_a_command_is_new_until_its_rate_alone_is_known_or_its_script_was_found_to_show_none():
    speeds = Speeds()
    assert speeds.is_new(ask(), (A100,))
    assert not speeds.is_new(ask(gpus=2), (A100,))
    assert not speeds.is_new(TaskAsk(task=0), (A100,))
    speeds.note_alone(key(), A100, Rate(per_s=7.0, error_per_s=0.1, windows=4, source="progress"))
    assert not speeds.is_new(ask(), (A100,))
    assert speeds.is_new(ask(), (A100, H100))
    speeds.note_silent(key("other"))
    assert not speeds.is_new(ask("third"), (A100,))


# ---- Pairs ----


def test_a_pair_that_did_less_than_one_at_a_time_is_refused_for_thirty_days():
    speeds = Speeds(pairs=[pair(stp=0.8, is_refused=True)], now=NOW + REFUSED_S - 1)
    assert speeds.is_refused(key("e1", "f1"), key("e2", "f2"))
    assert not speeds.is_refused(key("e1", "f1"), key("e3", "f2"))
    assert not speeds.is_refused(key("e1", "f1"), None)
    later = Speeds(pairs=[pair(stp=0.8, is_refused=True)], now=NOW + REFUSED_S + 1)
    assert not later.is_refused(key("e1", "f1"), key("e2", "f2"))


def test_the_delays_of_a_pair_are_those_that_were_measured_and_are_shown_in_both_orders():
    speeds = Speeds(pairs=[pair("e2", "e1", slowdown_a=1.5, slowdown_b=1.25)], now=NOW)
    (view,) = speeds.pairs([key("e2", "f2"), key("e1", "f1"), key("e9", "f2")])
    assert (view.a, view.b, view.extra_a, view.extra_b, view.is_refused) == ("e1", "e2", 0.25, 0.5, False)
    assert view.stp == pytest.approx(0.8 + 1 / 1.5)
    assert speeds.pairs([key("e1", "f1")]) == ()


def test_in_a_group_of_three_what_is_not_known_explains_the_rest():
    """a is delayed by 0.2 beside b; beside b and c it takes 2.2 times as long, so 1.0 is by c."""
    speeds = Speeds()
    a, b, c = (key(name, "f") for name in "abc")
    for _ in range(20):
        speeds.learn_group((a, b), (1.2, 1.3))
    speeds.learn_group((a, b, c), (2.2, 2.3, 4.0))
    found = {(one.a, one.b): one for one in speeds.pairs([a, b, c])}
    assert found["a", "b"].extra_a == pytest.approx(0.2, abs=0.05)
    assert found["a", "c"].extra_a == pytest.approx(1.0, abs=0.05)
    assert found["a", "c"].is_refused
    assert not found["a", "b"].is_refused


# ---- Bounds ----


_anything = st.one_of(st.floats(), st.floats(0.1, 10), st.none())


@given(st.lists(st.tuples(st.sampled_from(["e1", "e2", "e3", ""]), _anything, _anything, _anything), max_size=12))
def test_whatever_is_measured_loads_and_rates_stay_possible(runs):
    speeds = Speeds()
    for name, sm, dram, rate in runs:
        speeds.learn(run(name, sm_ratio=sm, dram_ratio=dram, util_ratio=dram, rate_alone=rate, rate_source="log"))
    for name in ("e1", "e2", "e3", ""):
        load = speeds.load(ask(name), A100)
        if load is not None:
            assert all(0 <= one <= 1 for one in (load.sm_ratio, load.dram_ratio, load.busy_ratio))
        rate = speeds.rate_alone(key(name), A100)
        assert rate is None or 0 < rate.per_s < math.inf
