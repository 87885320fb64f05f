from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_share.packing.history_records import SiteFamily, TaskRun
from slurm_share.packing.records import TaskAsk, TaskKey
from slurm_share.packing.rules.estimate import estimator as rules
from slurm_share.packing.rules.estimate.estimator import Estimator

GPU = "NVIDIA A100"
TOTAL = 40_960
NOW = 2e9
KEY = TaskKey("exact", "family", (("--batch-size", 128.0),), "series")
ASK = TaskAsk(task=1, key=KEY)


def done(peak, *, batch=128.0, exact="exact", when=NOW - 3600, **other):
    fields = {
        "family": "family", "series": "series", "numbers": (("--batch-size", batch),), "gpu_model": GPU,
        "kind": "done", "seconds": 600.0, **other,
    }  # fmt: skip
    return TaskRun(when=when, exact=exact, peak_mib=peak, **fields)


OTHER = [done(5000, exact=f"other {n}", series=f"{n}") for n in range(3)]
LINE = [done(4000, batch=32.0, exact="b32"), done(5000, batch=64.0, exact="b64")]
TWIN = TaskKey("another", "family", KEY.numbers, "another series")
ELSEWHERE = [done(6000, gpu_model="NVIDIA H100")]


def say_all(estimator):
    estimator.offer(KEY, GPU, "static", 3000)
    estimator.offer(KEY, GPU, "probe", 2000)
    estimator.sibling(TWIN, GPU, 4500, 60)


@pytest.mark.parametrize(
    ("ask", "runs", "prepare", "source", "point"),
    [
        (TaskAsk(task=1, key=KEY, gpu_mem_mib=9216), [*ELSEWHERE, *OTHER, *LINE, done(8000)], say_all, "user", 9216),
        (ASK, [*ELSEWHERE, *OTHER, *LINE, done(7000), done(8000), done(7500)], say_all, "exact", 8000),
        (ASK, [*ELSEWHERE, *OTHER, *LINE], lambda e: e.sibling(KEY, GPU, 6900, 60), "sibling", 6900),
        (ASK, [*ELSEWHERE, *OTHER, *LINE], say_all, "line", 7000),
        (ASK, [*ELSEWHERE, *OTHER], say_all, "family", 5000),
        (ASK, [*ELSEWHERE, *OTHER[:2]], say_all, "other-gpu", 6300),
        (ASK, OTHER[:2], say_all, "static", 3000),
        (ASK, [], lambda e: e.offer(KEY, GPU, "probe", 2000), "probe", 4390),
        (ASK, OTHER[:2], lambda e: e.sibling(TWIN, GPU, 4500, 60), "sibling", 4500),
        (ASK, [done(5000, exact="x", family="y", series="z")], lambda e: None, "unknown", None),
        (TaskAsk(task=1), [*OTHER, done(8000)], lambda e: None, "unknown", None),
    ],
    ids=[
        "user", "exact", "running task of the command", "line", "family", "other GPU", "static", "probe",
        "running task of the script", "nothing", "no key",
    ],
)  # fmt: skip
def test_the_first_source_with_enough_evidence_decides(ask, runs, prepare, source, point):
    estimator = Estimator(runs, now=NOW)
    prepare(estimator)
    found = estimator.estimate(ask, GPU, TOTAL)
    assert (found.source, found.point_mib) == (source, point)
    assert found.text
    if point is not None and source != "user":
        assert found.safe_mib >= point + 128


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([done(8000)], "one run of this command, +10 %"),
        ([done(8000)] * 3, "largest of 3 runs of this command, +10 %"),
        ([done(8000)] * 31, "largest of the last 10 of 31 runs of this command, +2 %"),
        (LINE, "line through --batch-size, 2 runs, +25 %"),
        (LINE[1:], "1 run with other numbers, +40 %"),
        ([done(5000, batch=129.0, exact="larger")], "1 run with other numbers, +5 %"),
        (OTHER, "3 runs of this script, nine in ten need less, +25 %"),
        (ELSEWHERE, "1 run of this command on NVIDIA H100, +10 %"),
        ([], "first of a kind"),
    ],
)
def test_an_estimate_says_what_it_rests_on(runs, words):
    assert Estimator(runs, now=NOW).estimate(ASK, GPU, TOTAL).text == words


SHORT = [done(None, seconds=0.2, exact=f"{n}", series=f"{n}") for n in range(20)]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([done(9000)] + [done(3000)] * 9, {"point_mib": 9000}),
        ([done(9000)] + [done(3000)] * 10, {"point_mib": 3000}),  # the last ten count
        ([done(40)], {"point_mib": 300, "safe_mib": 428}),  # a context
        ([done(None)], {"point_mib": 300}),  # it never used the GPU
        ([done(0)], {"point_mib": 300}),
        ([done(40_000)], {"safe_mib": TOTAL}),
        ([done(5000, clients=4)], {"processes": 4}),
        ([done(6000, kind="gpu memory", is_censored=True)], {"source": "unknown", "floor_mib": 6000}),
        # What an attempt had that was ended by something else, it needs at least.
        *(
            ([done(5000, kind=kind)], {"source": "unknown", "floor_mib": 5000})
            for kind in ("failed", "signal", "unfinished", "neighbour's memory", "device", "not started")
        ),
        ([done(5000, when=NOW - 181 * 86400)], {"source": "family"}),
        ([done(5000, software="other")], {"source": "family"}),
        ([done(5000, software="")], {"source": "exact"}),
        ([done(9000, software="other"), done(5000, software="mine")], {"source": "exact", "point_mib": 5000}),
        (SHORT[:19], {"source": "unknown"}),
        (SHORT, {"source": "family", "point_mib": 300, "seconds": 0.2}),  # too short to be seen by a sample
        (SHORT * 50 + [done(5120, exact="long", series="long")], {"source": "unknown"}),
        # Two models of one script: the difference of their sizes is not due to the batch size.
        ([done(4000, batch=8.0, exact="a"), done(20_000, exact="b", series="another model")], {"source": "unknown"}),
        (
            [done(9500, exact="x", is_elastic=True, cap_mib=10_000)],
            {"source": "family", "point_mib": 10_000, "is_elastic": True},
        ),
        # JAX is told its reservation, and has a context beside it; vLLM takes a part of all that it can see.
        (
            [done(20_500, is_elastic=True, reserved_mib=20_070, cap_mib=40_141)],
            {"safe_mib": 20_070, "is_elastic": True},
        ),
        (
            [done(36_000, is_elastic=True, reserved_mib=20_070, cap_mib=40_141)],
            {"safe_mib": 40_141, "is_elastic": True},
        ),
    ],
)
def test_fields_of_an_estimate(runs, expected):
    found = Estimator(runs, now=NOW, software="mine").estimate(ASK, GPU, TOTAL)
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_command_that_grew_threefold_is_known_after_one_run():
    estimator = Estimator([done(3000)] * 30, now=NOW)
    estimator.learn(done(9000))
    assert estimator.estimate(ASK, GPU, TOTAL).point_mib == 9000


def test_alpha_of_a_script_falls_with_a_miss_and_recovers_with_hits():
    estimator = Estimator(now=NOW)
    estimator.learn(done(9000, source="exact", safe_mib=3100, estimate_mib=3000))
    assert estimator.estimate(ASK, GPU, TOTAL).alpha == 0.005
    for _ in range(12):
        estimator.learn(done(3000, source="exact", safe_mib=3100, estimate_mib=3000))
    assert estimator.estimate(ASK, GPU, TOTAL).alpha == pytest.approx(0.053)


@pytest.mark.parametrize(
    "change",
    [
        {"source": "user"}, {"source": "unknown"}, {"source": "sibling"}, {"safe_mib": None}, {"is_elastic": True},
        {"kind": "failed"}, {"kind": "neighbour's memory"},
    ],
)  # fmt: skip
def test_what_had_no_bound_of_the_history_does_not_move_alpha(change):
    estimator = Estimator(now=NOW)
    estimator.learn(done(9000, **{"source": "exact", "safe_mib": 3100, "estimate_mib": 3000, **change}))
    estimator.learn(done(9000))
    assert estimator.estimate(ASK, GPU, TOTAL).alpha == 0.05


def test_a_run_out_of_memory_is_a_miss_and_raises_the_floor_until_a_run_is_done():
    dead = done(6000, kind="gpu memory", is_censored=True, wanted_mib=9500, source="exact", safe_mib=6000)
    estimator = Estimator([done(5000)] * 5, now=NOW)
    estimator.learn(dead)
    found = estimator.estimate(ASK, GPU, TOTAL)
    assert (found.point_mib, found.floor_mib) == (9500, 9500)
    assert found.alpha < 0.05
    estimator.learn(done(9800))
    assert estimator.estimate(ASK, GPU, TOTAL).floor_mib == 0


# ---- Figures that no task can have ----


@pytest.mark.parametrize("point", [math.nan, math.inf, -math.inf, 0, -5.0, 4 * TOTAL + 1, 10**400])
def test_a_figure_that_no_task_can_have_is_passed_over_and_named_once(point):
    estimator = Estimator(now=NOW)
    estimator.offer(KEY, GPU, "static", point)
    estimator.offer(KEY, GPU, "probe", 2000)
    for _ in range(3):
        assert estimator.estimate(ASK, GPU, TOTAL).source == "probe"
    assert len(estimator.take_notes()) == 1
    assert estimator.take_notes() == []


def test_runs_with_impossible_figures_are_passed_over():
    runs = [done(-5), done(1 << 40), done(5000, seconds=-1.0), done(5000, batch=math.inf)]
    assert Estimator(runs, now=NOW).estimate(ASK, GPU, TOTAL).source == "unknown"


# ---- Lines ----


def test_a_number_that_does_not_matter_does_not_hide_the_one_that_does():
    runs = [
        done(2000 + 40 * int(batch), exact=f"{batch} {rate}", numbers=(("--batch-size", batch), ("--lr", rate)))
        for batch, rate in ((32.0, 0.1), (32.0, 0.2), (64.0, 0.3), (64.0, 0.4))
    ]
    ask = TaskAsk(task=1, key=TaskKey("new", "f", (("--batch-size", 128.0), ("--lr", 0.77)), "series"))
    found = Estimator(runs, now=NOW).estimate(ask, GPU, TOTAL)
    assert (found.source, found.point_mib) == ("line", 2000 + 40 * 128)
    assert found.text.startswith("line through --batch-size, 2 runs")


def test_a_number_is_irrelevant_once_two_runs_that_differ_only_in_it_are_equal():
    """The run of the same batch then decides, and not a line that was drawn through other batches."""

    def run(batch, steps, peak):
        numbers = (("--batch-size", batch), ("--steps", steps))
        return done(peak, exact=f"{batch} {steps}", numbers=numbers)

    runs = [run(32.0, 100.0, 3280), run(32.0, 500.0, 3280), run(64.0, 300.0, 9000)]
    ask = TaskAsk(task=1, key=TaskKey("new", "family", (("--batch-size", 64.0), ("--steps", 400.0)), "series"))
    found = Estimator(runs, now=NOW).estimate(ask, GPU, TOTAL)
    assert (found.source, found.point_mib, found.safe_mib) == ("line", 9000, 9900)
    assert found.text == "largest of 1 run with other numbers that do not matter, +10 %"
    # A small batch hides behind the context: that says nothing about a large one.
    ask = TaskAsk(task=1, key=TaskKey("new", "family", (("--batch-size", 64.0), ("--steps", 900.0)), "series"))
    assert Estimator(runs, now=NOW).estimate(ask, GPU, TOTAL).point_mib > 9000


def test_two_numbers_that_both_matter_are_no_line_but_a_ratio():
    runs = [
        done(1000 * depth + 40 * int(batch), exact=f"{batch} {depth}", numbers=(("-b", batch), ("--depth", depth)))
        for batch, depth in ((32.0, 2), (32.0, 4), (64.0, 3), (64.0, 5))
    ]

    def estimate(batch, depth):
        ask = TaskAsk(task=1, key=TaskKey("new", "other", (("-b", batch), ("--depth", depth)), "series"))
        return Estimator(runs, now=NOW).estimate(ask, GPU, TOTAL)

    assert estimate(32.0, 3.0).point_mib == 4280  # between two that differ in depth only
    assert estimate(48.0, 2.0).point_mib == 3280 * 1.5
    assert estimate(24.0, 2.0).point_mib == 3280
    assert estimate(512.0, 9.0).source == "unknown"


def test_a_positional_number_is_named_by_its_place():
    runs = [done(4000, numbers=(("2", 32.0),), exact="a"), done(5000, numbers=(("2", 64.0),), exact="b")]
    ask = TaskAsk(task=1, key=TaskKey("new", "family", (("2", 48.0),), "series"))
    assert "line through argument 2" in Estimator(runs, now=NOW).estimate(ask, GPU, TOTAL).text


# ---- Running tasks ----


def test_the_siblings_of_a_running_task_are_sized_by_its_peak_and_growth():
    estimator = Estimator(now=NOW)
    estimator.sibling(TWIN, GPU, 6000, 60)
    found = estimator.estimate(ASK, GPU, TOTAL)
    assert (found.source, found.point_mib, found.safe_mib, found.runs) == ("sibling", 6000, 7800, 1)
    estimator.sibling(TWIN, GPU, 6000, 900)
    assert estimator.estimate(ASK, GPU, TOTAL).safe_mib == 6300


@pytest.mark.parametrize(
    ("number", "source", "point"), [(32.0, "sibling", 6000), (64.0, "unknown", None), (16.0, "unknown", None)]
)
def test_a_sibling_sizes_only_tasks_with_the_same_numbers(number, source, point):
    """Small short tasks end first: as sizes of large ones they are out-of-memory ends."""
    estimator = Estimator(now=NOW)
    estimator.sibling(TaskKey("first", "family", (("--batch-size", 32.0),), "a"), GPU, 6000, 60)
    ask = TaskAsk(task=1, key=TaskKey("second", "family", (("--batch-size", number),), "b"))
    found = estimator.estimate(ask, GPU, TOTAL)
    assert (found.source, found.point_mib) == (source, point)


def test_a_learning_rate_does_not_make_a_sibling_another_size():
    estimator = Estimator(now=NOW)
    estimator.learn(done(6000, exact="first", series="a", numbers=(("--lr", 0.001),)))
    found = estimator.estimate(TaskAsk(task=1, key=TaskKey("second", "family", (("--lr", 0.1),), "b")), GPU, TOTAL)
    assert (found.source, found.point_mib) == ("sibling", 6000)


@pytest.mark.parametrize(("peaks", "safe"), [((4000, 5000, 6000), 15_000), ((6000, 6000, 6000), 7500)])
def test_a_family_whose_peaks_differ_gives_more_to_a_larger_number(peaks, safe):
    runs = [
        done(peak, exact=f"e{n}", series=f"s{n}", numbers=(("--batch-size", 2.0 ** (n + 3)),))
        for n, peak in enumerate(peaks)
    ]
    ask = TaskAsk(task=1, key=TaskKey("new", "family", (("--batch-size", 64.0),), "other"))
    found = Estimator(runs, now=NOW).estimate(ask, GPU, TOTAL)
    assert (found.source, found.safe_mib) == ("family", safe)


def test_a_line_through_running_tasks_of_unlike_age_is_not_turned_by_their_growth():
    """The older one may grow by 5 %, the younger by 30 %: with these in the points, 32 would be far too small."""
    estimator = Estimator(now=NOW)
    estimator.sibling(TaskKey("a", "family", (("--batch-size", 64.0),), "series"), GPU, 7220, 900)
    estimator.sibling(TaskKey("b", "family", (("--batch-size", 128.0),), "series"), GPU, 12_580, 60)
    ask = TaskAsk(task=1, key=TaskKey("c", "family", (("--batch-size", 32.0),), "series"))
    found = estimator.estimate(ask, GPU, TOTAL)
    assert found.source == "line"
    assert found.point_mib == round(4540 * 1.30)


def test_siblings_of_another_gpu_model_are_not_sized_by_it():
    estimator = Estimator(now=NOW)
    estimator.sibling(TWIN, "NVIDIA H100", 6000, 60)
    assert estimator.estimate(ASK, GPU, TOTAL).source == "unknown"


def test_a_finished_sibling_still_sizes_the_others():
    estimator = Estimator(now=NOW)
    estimator.learn(done(6000, exact="first", series="x"))
    assert estimator.estimate(ASK, GPU, TOTAL).source == "sibling"


# ---- Growth ----


@pytest.mark.parametrize(
    ("age", "factor"), [(0, 1.5), (59, 1.5), (60, 1.3), (119, 1.3), (120, 1.2), (300, 1.1), (900, 1.05), (1e6, 1.05)]
)
def test_growth_without_a_history_is_the_table(age, factor):
    assert Estimator(now=NOW).growth(None, GPU, age) == factor


def test_growth_is_the_quantile_of_what_was_seen():
    runs = [done(6000, peak_at_mib=((60, 3000), (300, 6000)))] * 19
    estimator = Estimator(runs, now=NOW)
    assert estimator.growth(KEY, GPU, 60) == 2
    assert estimator.growth(None, GPU, 60) == 2
    assert estimator.growth(KEY, GPU, 300) == 1
    assert estimator.growth(KEY, GPU, 900) == 1.05


# ---- Elastic tasks ----


def test_an_elastic_command_gets_the_smallest_size_that_was_enough():
    runs = [done(9500, is_elastic=True, cap_mib=10_000)] * 3
    found = Estimator(runs, now=NOW).estimate(ASK, GPU, TOTAL)
    assert (found.source, found.point_mib, found.safe_mib, found.is_elastic) == ("exact", 10_000, 10_000, True)
    tried = Estimator(runs, now=NOW).estimate(TaskAsk(task=5, key=KEY), GPU, TOTAL)
    assert tried.safe_mib == 8000


# ---- The user's own number ----


@pytest.mark.parametrize(
    ("run", "notes", "said"),
    [
        (done(5000, reserved_mib=5120), [1, 0], "4.9G of its --gpu-mem=5.0G: --gpu-mem=6.5G would leave it room"),
        (done(2000, reserved_mib=30_720), [0, 0, 1], "2.0G of its --gpu-mem=30.0G: --gpu-mem=2.5G would be enough"),
        (
            done(5000, kind="gpu memory", is_censored=True, reserved_mib=8192),
            [1, 0],
            "a task ran out of its --gpu-mem=8.0G: try --gpu-mem=17G",
        ),
        (
            done(5000, kind="gpu memory", is_censored=True, reserved_mib=8192, wanted_mib=30_720),
            [1],
            "a task ran out of its --gpu-mem=8.0G: try --gpu-mem=37.5G",
        ),
        # Without a cap the reservation follows the task, and is not what its user wrote.
        (done(10_240, reserved_mib=10_560, estimate_mib=4096), [1], "10.0G of its --gpu-mem=4.0G: --gpu-mem=12.5G"),
    ],
)
def test_a_number_of_the_users_that_does_not_suit_is_said_once(run, notes, said):
    run = replace(run, source="user")
    assert Estimator([run] * 3, now=NOW).take_notes() == []  # an earlier run has said it
    estimator = Estimator(now=NOW)
    for count in notes:
        estimator.learn(run)
        found = estimator.take_notes()
        assert len(found) == count
        assert all(said in note for note in found)


def test_a_smaller_number_is_not_advised_where_it_has_failed():
    dead = done(2000, kind="gpu memory", is_censored=True, reserved_mib=2560, source="user")
    large = done(2000, reserved_mib=30_720, source="user")
    estimator = Estimator([dead], now=NOW)
    for _ in range(9):
        estimator.learn(large)
    assert estimator.take_notes() == []


# ---- The site's figures ----


def test_the_sites_figures_stand_behind_the_users_own():
    site = [SiteFamily(family="family", gpu_model=GPU, runs=400, p90_mib=7000, ratio=1.1)]
    found = Estimator(OTHER[:2], now=NOW, site=site).estimate(ASK, GPU, TOTAL)
    assert (found.source, found.point_mib, found.safe_mib, found.runs) == ("family", 7000, 7700, 400)
    assert Estimator(OTHER, now=NOW, site=site).estimate(ASK, GPU, TOTAL).point_mib == 5000


# ---- Anything at all ----

SIZES = st.none() | st.integers(-10, 1 << 50)
RUNS = st.builds(
    TaskRun,
    when=st.floats(0, 4e9),
    exact=st.sampled_from(["exact", "b", ""]),
    family=st.sampled_from(["family", ""]),
    series=st.sampled_from(["series", ""]),
    numbers=st.lists(st.tuples(st.sampled_from(["--batch-size", "-b"]), st.floats()), max_size=2).map(tuple),
    gpu_model=st.sampled_from([GPU, "B"]),
    kind=st.sampled_from(["done", "gpu memory", "failed"]),
    seconds=st.floats(),
    peak_mib=SIZES,
    cap_mib=SIZES,
    wanted_mib=SIZES,
    peak_at_mib=st.lists(st.tuples(st.sampled_from([30, 60]), st.integers(-5, 9000)), max_size=2).map(tuple),
    is_elastic=st.booleans(),
    source=st.sampled_from(["exact", "user", "probe", "unknown"]),
    safe_mib=SIZES,
    estimate_mib=SIZES,
    reserved_mib=SIZES,
)


@given(st.lists(RUNS, max_size=30), st.sampled_from([None, TOTAL, 0]))
def test_whatever_the_history_says_an_estimate_is_a_size_or_none(runs, total):
    estimator = Estimator(runs[:20], now=NOW)
    for run in runs[20:]:
        estimator.learn(run)
    found = estimator.estimate(ASK, GPU, total)
    if found.point_mib is None:
        assert found.safe_mib is None
    else:
        assert found.point_mib >= rules.CONTEXT_MIB
        assert found.safe_mib is not None
        assert found.safe_mib >= found.point_mib or found.safe_mib == total
    assert 1 <= estimator.growth(KEY, GPU, 60) <= rules.GROWTH_MAX


def test_runs_with_a_formula_tell_how_far_it_is_off():
    estimator = Estimator(now=NOW)
    estimator.offer(KEY, GPU, "static", 4000)
    assert estimator.estimate(ASK, GPU, TOTAL).safe_mib == 5000
    runs = [
        done(4400, exact=f"x{n}", family=f"f{n}", series=f"s{n}", source="static", estimate_mib=4000)
        for n in range(200)
    ]
    estimator = Estimator(runs, now=NOW)
    estimator.offer(KEY, GPU, "static", 4000)
    assert estimator.estimate(ASK, GPU, TOTAL).safe_mib == 4400
