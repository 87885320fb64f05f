"""Advice from what gets done: rates with fewer and with more tasks decide before load, within the hard bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace
from seen_nodes import job, node, survey

from slurm_share.load.rules.advice import measured
from slurm_share.load.rules.advice.advise import advise, advise_all
from slurm_share.load.rules.own_figures import NO_REPORT
from slurm_share.load.snapshot import JobProgress, LevelRate, TaskProgress

LLSUB = {"comment": "llsub [1,8,5] LLSUB.11"}


def working(per_s, *, spread=0.5, windows=4, source="log", family="f", paused=0, tasks=1, levels=(), **seen):
    """A node whose tasks do so much together."""
    one = node(**{"load": (40, 40), "tasks": tasks, **seen})
    progress = JobProgress(
        source=source, family=family, tasks=tasks, rated=tasks, paused=paused, rate_per_s=per_s,
        spread_per_s=None if per_s is None else spread, windows=windows,
        levels_source=source if levels else "", levels=tuple(levels),
    )  # fmt: skip
    return replace(one, jobs=tuple(replace(load, progress=progress) for load in one.jobs))


def looked(*looks, **submitted):
    """The advice of the last of some looks, one after another."""
    advice = None
    for one in looks:
        advice = advise(job(**{**LLSUB, **submitted}), [one], previous=advice)
    return advice


def level(tasks, per_s, spread=0.5, windows=4, sharing="mps"):
    return LevelRate(level=tasks, per_s=per_s, spread_per_s=spread, windows=windows, sharing=sharing)


FOUR = working(26.0, tasks=4)


# ---- What is said ----


def test_tasks_that_do_nearly_twice_as_much_are_to_go_on():
    advice = looked(FOUR, working(50.0, tasks=8))
    assert (advice.verdict, advice.next, advice.decided_by) == ("more", 16, "rate")
    assert advice.sentence.startswith("measured: 8 tasks do 1.9 x of 4 (50/s against 26/s, log): go on, next 16 with ")
    assert [(one.level, one.per_s) for one in advice.rates] == [(4, 26.0), (8, 50.0)]
    assert "measured on a node, from log: 4 tasks 26/s, 8 tasks 50/s" in advice.evidence
    assert (advice.bounds[-1].resource, advice.bounds[-1].hard) == ("rate", False)


def test_tasks_with_a_rate_that_does_not_fall_do_not_wait_for_storage():
    def look(per_s):
        one = working(per_s, tasks=8, cpu=2.0, load=(20, 20))
        return replace(one, load=(90.0, 90.0, 90.0))

    for steady in (looked(look(24.0)), looked(look(24.0), look(23.5), look(24.0))):
        assert (steady.verdict, steady.next) == ("more", 26), steady.sentence
    slower = looked(look(24.0), look(5.0))
    assert (slower.verdict, slower.decided_by) == ("stay", "storage, locks")
    nothing = looked(look(0.0))
    assert (nothing.verdict, nothing.decided_by) == ("stay", "storage, locks")


def test_tasks_that_do_no_more_are_to_go_back():
    looks = (FOUR, working(50.0, tasks=8), working(51.0, tasks=16))
    advice = looked(*looks)
    assert (advice.verdict, advice.next) == ("fewer", 8)
    no_more = "measured: 16 tasks do no more than 8 (51/s against 50/s, log): "
    assert advice.sentence.startswith(f"{no_more}go back to 8 with ")
    back = looked(*looks, working(50.0, tasks=8))
    assert (back.verdict, back.next) == ("stay", 8)
    assert back.sentence.startswith(f"{no_more}stay; ")
    worse = looked(FOUR, working(20.0, tasks=8))
    assert worse.sentence.startswith("measured: 8 tasks do less than 4 (20/s against 26/s, log): go back to 4 with ")


def test_what_was_better_with_more_is_gone_back_up_to():
    advice = looked(working(50.0, tasks=12), FOUR)
    assert (advice.verdict, advice.next) == ("more", 12)
    assert "12 tasks do 1.9 x of 4" in advice.sentence


# ---- Rates and load ----


@pytest.mark.parametrize(
    ("load", "eight", "by_load", "verdict"),
    [(95, 50.0, "stay", "more"), (20, 25.0, "more", "fewer"), (3, 50.0, "look", "more")],
)
def test_where_rates_and_load_contradict_each_other_rates_decide(load, eight, by_load, verdict):
    then = {"tasks": 8, "load": (load, load)}
    assert advise(job(**LLSUB), [node(**then)]).verdict == by_load
    advice = looked(FOUR, working(eight, **then))
    assert advice.verdict == verdict
    (said,) = [line for line in advice.evidence if "load alone" in line]
    assert f"load alone would say: {by_load}" in said


def test_where_both_say_the_same_load_is_not_spoken_of():
    advice = looked(FOUR, working(50.0, tasks=8, load=(20, 20)))
    assert not any("load alone" in line for line in advice.evidence)


@pytest.mark.parametrize(
    ("seen", "verdict", "next_", "decided_by", "said"),
    [
        ({"peak_gib": 7.5}, "stay", 8, "GPU memory", "4 (50/s against 26/s, log): stay, GPU memory allows no more"),
        ({"peak_gib": 6.0}, "more", 10, "GPU memory", "next 10 with "),
        ({"cores": 9}, "stay", 8, "cores", "stay, cores allow no more"),
        ({"peak_gib": 14.0}, "fewer", 4, "GPU memory", "8 tasks are more than GPU memory allows"),
        ({"kills": 1}, "fewer", 4, "host memory", "the kernel killed 1 process"),
    ],
)
def test_hard_bounds_hold_whatever_gets_done(seen, verdict, next_, decided_by, said):
    advice = looked(replace(FOUR), working(50.0, tasks=8, **seen), cpus=seen.get("cores", 40))
    assert (advice.verdict, advice.next, advice.decided_by) == (verdict, next_, decided_by)
    assert said in advice.sentence


# ---- Noise ----


@pytest.mark.parametrize(
    ("eight", "spread", "verdict"),
    [(28.5, 0.1, "fewer"), (28.7, 0.1, "more"), (30.0, 1.9, "more"), (30.0, 2.1, "stay"), (26.0, 5.0, "fewer")],
)
def test_a_difference_counts_from_a_tenth_and_two_spreads(eight, spread, verdict):
    """26 units a second with 4 tasks; a tenth more is 28.6. What may be noise is no reason to change anything."""
    advice = looked(FOUR, working(eight, tasks=8, spread=spread))
    assert advice.verdict == verdict
    assert ("may be noise" in advice.sentence) == (verdict == "stay")


def test_confidence_is_that_of_the_windows():
    some_windows = looked(FOUR, working(50.0, tasks=8, windows=9))
    many = looked(working(26.0, tasks=4, windows=6), working(50.0, tasks=8, windows=9))
    assert (some_windows.confidence, many.confidence) == ("medium", "high")


# ---- What is no measure ----


@pytest.mark.parametrize(
    "eight", [{"windows": 2}, {"paused": 1}, {"family": "other"}, {"source": "output"}, {"tasks_seen": 7}], ids=str
)
def test_what_cannot_be_compared_decides_nothing(eight):
    """Too few windows, a task that is paused, another command, another count, tasks that do not all run."""
    fields = dict(eight)
    told = fields.pop("tasks_seen", None)
    one = working(25.0, **{"tasks": 8, **fields})
    if told is not None:
        (load,) = one.jobs
        one = replace(one, jobs=(replace(load, progress=replace(load.progress, tasks=told, rated=told)),))
    advice = looked(FOUR, one)
    assert advice.decided_by != "rate"
    assert not advice.sentence.startswith("measured")


def test_another_number_of_gpus_is_another_measure():
    one = looked(working(13.0, tasks=4, gpus=1, load=(40,)), working(50.0, tasks=8))
    assert [each.level for each in one.rates] == [8]


def test_one_rate_alone_says_that_there_is_nothing_to_compare_it_with():
    advice = looked(FOUR)
    said = "measured on a node, from log: 4 tasks 26/s; there is nothing to compare"
    assert advice.decided_by == "growth"
    assert any(line.startswith(said) for line in advice.evidence)


def test_without_rates_the_advice_is_that_of_load_and_says_so_once():
    silent = working(None, tasks=4)
    (load,) = silent.jobs
    silent = replace(silent, jobs=(replace(load, progress=replace(load.progress, rated=0, source="")),))
    plain = advise(job(**LLSUB), [node(tasks=4, load=(40, 40))])
    advice = advise(job(**LLSUB), [silent])
    assert advice == plain
    assert advice.evidence.count(measured.NOT_KNOWN) == 1
    assert advice.rates == ()
    other = advise(job(), [node(tasks=4, load=(40, 40))])
    assert measured.NOT_KNOWN not in other.evidence
    assert (other.bounds, other.verdict) == (advice.bounds, advice.verdict)
    assert other.sentence == advise(job(), [silent]).sentence


def test_a_rate_that_may_not_be_read_is_not_asked_for():
    """The agent of a node may not read reports of users' launchers: that the tasks report none is not known."""
    unread = node(tasks=4, load=(40, 40))
    (load,) = unread.jobs
    advice = advise(job(**LLSUB), [replace(unread, jobs=(replace(load, unknown={"progress": NO_REPORT}),))])
    assert f"the rate of its tasks is not known: {NO_REPORT}" in advice.evidence
    assert measured.NOT_KNOWN not in advice.evidence


def test_unlike_tasks_have_rates_that_are_not_added():
    mixed = working(None, tasks=4)
    assert any("count different units" in line for line in looked(mixed).evidence)


# ---- Trials of a run itself, several nodes, arrays ----


def test_trials_of_the_run_itself_are_evidence_at_the_first_look():
    tried = [level(4, 26.0), level(8, 50.0), level(16, 51.0)]
    advice = looked(working(None, tasks=16, levels=tried))
    assert (advice.verdict, advice.next) == ("fewer", 8)
    assert looked(working(None, tasks=8, levels=tried)).verdict == "stay"


def test_ways_of_sharing_are_not_mixed():
    tried = [level(4, 49.0, sharing="time-slicing"), level(4, 26.0), level(8, 50.0)]
    for order in (tried, tried[::-1]):
        assert looked(working(None, tasks=8, levels=order)).verdict == "more"


def test_what_each_way_of_sharing_gave_is_said():
    tried = [
        level(2, 10.0, sharing="exclusive"), level(8, 12.0, sharing="time-slicing"), level(4, 15.0), level(8, 19.0)
    ]  # fmt: skip
    said = [one for one in looked(working(None, tasks=8, levels=tried)).evidence if "ways of sharing" in one]
    assert said == [
        "ways of sharing that its run tried on a node: mps 1.9 x of exclusive with 8 tasks, time-slicing 1.2 x of "
        "exclusive with 8 tasks, exclusive 10/s with 2 tasks"
    ]
    only = looked(working(None, tasks=8, levels=[level(4, 15.0), level(8, 19.0)])).evidence
    assert not any("ways of sharing" in one for one in only)


def test_a_rate_of_now_is_newer_than_that_of_a_trial():
    tried = [level(4, 26.0), level(8, 50.0)]
    advice = looked(working(25.0, tasks=8, levels=tried))
    assert advice.verdict == "fewer"


def test_on_several_nodes_the_mean_of_a_node_is_judged():
    nodes = ("n1", "n2")
    two = {"nodes": "n[1-2]", "node_count": 2, "gpus": 4, "cpus": 80}
    before = advise(job(**LLSUB, **two), [working(26.0, tasks=4, name=name) for name in nodes])
    then = [working(per_s, tasks=8, name=name) for name, per_s in zip(nodes, (40.0, 60.0), strict=True)]
    advice = advise(job(**LLSUB, **two), then, previous=before)
    assert (advice.verdict, advice.rates[-1].per_s) == ("more", 50.0)
    half = advise(job(**LLSUB, **two), [then[0], node(tasks=8, name="n2", load=(40, 40))], previous=before)
    assert half.decided_by != "rate"


def test_an_array_is_compared_with_the_look_before():
    def look(numbers, per_s, previous=()):
        shards = {"gpus": 0, "share": "4", "cpus": 10, "has_shards": True}
        jobs = [job(job_id=number, array=9, **shards) for number in numbers]
        one = working(per_s, tasks=2, jobs=tuple((number, None) for number in numbers), load=(40, 40))
        return advise_all(survey([one], jobs), previous=previous)

    first = look((11, 12), 10.0)
    (advice,) = look((11, 12, 13, 14), 10.0, first)
    assert [(one.level, one.per_s) for one in advice.rates] == [(4, 20.0), (8, 40.0)]
    assert (advice.verdict, advice.decided_by) == ("more", "rate")


# ---- Which task ----


def numbered(one, *, first=12):
    """The node with tasks that their launcher knows by number."""
    known = [replace(each, progress=TaskProgress(task=first + at)) for at, each in enumerate(one.processes)]
    return replace(one, processes=tuple(known))


def test_the_largest_task_is_named_where_its_number_is_known():
    at_cap = numbered(node(tasks=2, load=(20, 20), cap_mib=round(2.35 * 1024)))
    advice = advise(job(), [at_cap])
    assert any(line.startswith("task 12's peak is at its cap") for line in advice.evidence)
    assert any("of the largest, task 12" in one.why for one in advice.bounds)
    ahead = advise(job(), [numbered(node(tasks=2, load=(20, 20), peak_gib=24.0))])
    assert "task 12 holds 24.0 GiB" in ahead.sentence
    assert any(line.startswith("task 12 holds most of") for line in ahead.evidence)
    wide = numbered(node(tasks=1, load=(20, 20)))
    on = wide.processes[0].gpus[0]
    both = replace(wide, processes=(replace(wide.processes[0], gpus=(on, replace(on, uuid="GPU-1"))),))
    assert "task 12 of it works on 2 GPUs at once" in advise(job(), [both]).sentence


# ---- Never ----

LEVELS = some.dictionaries(
    some.integers(1, 64), some.tuples(some.floats(0, 1e6), some.floats(0, 1e5)), min_size=1, max_size=6
)


def test_a_noisy_level_hides_no_loss():
    """Three tasks do more than one, and so do two, but with much noise: three that do next to nothing are no gain."""
    levels = (level(1, 0.0, 0.0), level(2, 43314.0, 21657.0), level(3, 1.0, 0.0))
    said = measured.judged(measured.MeasuredRates(source="log", levels=levels), 2)
    assert (said.verdict, said.level) == ("stay", 2)


@given(found=LEVELS, data=some.data())
def test_it_never_goes_to_what_was_measured_as_worse(found, data):
    levels = tuple(level(tasks, *found[tasks]) for tasks in sorted(found))
    now = data.draw(some.sampled_from(sorted(found)))
    said = measured.judged(measured.MeasuredRates(source="log", levels=levels), now)
    here = next(one for one in levels if one.level == now)
    if said is None:
        assert len(levels) == 1
    if said is None or said.level in (None, now):
        return
    chosen = next(one for one in levels if one.level == said.level)
    assert (said.verdict == "more") == (said.level > now)
    if said.verdict == "more":
        assert chosen.per_s >= 1.0999 * here.per_s
    else:
        assert here.per_s <= 1.1001 * chosen.per_s
