"""Node-hours by load, added up from samples."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurm_share.core.errors import UsageError
from slurm_share.history.records import ALL, Sample
from slurm_share.history.rules import report

WEEK = report.week("2026-W47", 0.0)
NOW = float(WEEK.until)


def sample(quarter=0, user="alice", node="n1", **more):
    return Sample(time=WEEK.since + 900 * quarter, node=node, user=user, **{"jobs": 1, "cpus": 40, **more})


def made(*samples, now=NOW, user=None):
    return report.report(sorted(samples, key=lambda one: one.time), WEEK, now, user)


# ---- Which time ----


@pytest.mark.parametrize(
    ("word", "now", "name", "since"),
    [
        ("2026-W47", 0, "2026-W47", 1794787200),
        ("2026W47", 0, "2026-W47", 1794787200),
        ("2026-W53", 0, "2026-W53", 1798416000),
        ("", 1795219200, "2026-W46", 1794182400),
        ("", 1795391999, "2026-W46", 1794182400),
        ("", 1795392000, "2026-W47", 1794787200),
    ],
)
def test_a_week_is_from_monday_to_sunday(word, now, name, since):
    week = report.week(word, now)
    assert (week.name, week.since, week.until) == (name, since, since + 7 * 86400)


@pytest.mark.parametrize(
    "word", ["47", "9999-W52", "2026-W54", "2025-W53", "2026-W00", "last", "2026-11-16", "W" * 500]
)
def test_what_is_no_week_is_said(word):
    with pytest.raises(UsageError, match="2026-W47"):
        report.week(word, 0)


def test_days_are_both_with_it():
    days = report.days("2026-11-20", "2026-11-21", 0)
    assert (days.since, days.until) == (1795132800, 1795132800 + 2 * 86400)
    assert report.days("2026-11-20", None, 1795219300).until == 1795305600
    for first, last in (("2026-11-22", "2026-11-21"), ("yesterday", None), (None, "2026-13-01")):
        with pytest.raises(UsageError):
            report.days(first, last, 1795219300)


# ---- What counts ----


@pytest.mark.parametrize(
    ("cpu", "gpu", "cpu_level", "gpu_level"),
    [
        (19.9, 0.99, "low", "low"),
        (20.0, 1.0, "good", "good"),
        (60.0, 2.0, "good", "good"),
        (60.1, 2.01, "high", "high"),
        (None, None, "unknown", "unknown"),
        (0.0, 0.0, "low", "low"),
    ],
)
def test_the_bands_are_llscs(cpu, gpu, cpu_level, gpu_level):
    (use,) = made(sample(cpu_load=cpu, gpus=2, gpu_load=gpu)).users
    assert getattr(use.cpu, cpu_level) == 0.25
    assert getattr(use.gpu, gpu_level) == 0.25


def test_a_node_without_gpus_has_no_gpu_hours():
    (use,) = made(
        sample(gpus=0, cpu_load=1.0), sample(1, gpus=None, cpu_load=1.0), sample(2, gpus=2, cpu_load=1.0)
    ).users
    assert (use.hours, use.gpu_hours, use.gpu.unknown, use.cpu.low) == (0.75, 0.25, 0.25, 0.75)
    assert use.bad == 0.5


def test_a_gap_is_no_load():
    found = made(sample(0, cpu_load=30.0), sample(24, cpu_load=30.0))
    assert (found.users[0].hours, found.covered_h, found.elapsed_h) == (0.5, 0.5, 168.0)


def test_a_look_without_jobs_is_covered_all_the_same():
    found = made(*(Sample(time=WEEK.since + 900 * n, node=ALL, user=ALL, jobs=0) for n in range(4)))
    assert (found.users, found.covered_h, found.total.hours) == ((), 1.0, 0.0)


def test_samples_nearer_than_their_interval_share_it():
    close = [sample(cpu_load=1.0), sample(cpu_load=9.0), *(
        Sample(time=WEEK.since + 300 * n, node="n1", user="alice", jobs=1, interval_s=300) for n in range(1, 4)
    )]  # fmt: skip
    found = made(*close)
    assert (found.users[0].hours, found.covered_h) == (round(20 / 60, 4), round(20 / 60, 4))


def test_a_period_that_goes_on_has_elapsed_until_now():
    assert made(sample(), now=WEEK.since + 43200).elapsed_h == 12.0
    assert made(sample(), now=WEEK.since - 1).elapsed_h == 0.0


def test_the_worst_is_first():
    low = [sample(n, "carol", gpus=2, gpu_load=0.1, cpu_load=0.1) for n in range(3)]
    high = [sample(n, "bob", node="n2", gpus=0, cpu_load=90.0) for n in range(5)]
    good = [sample(n, "alice", node="n3", gpus=2, gpu_load=1.5, cpu_load=0.1) for n in range(9)]
    found = made(*low, *high, *good)
    assert [(use.user, use.bad, use.hours) for use in found.users] == [
        ("bob", 1.25, 1.25), ("carol", 0.75, 0.75), ("alice", 0.0, 2.25),
    ]  # fmt: skip
    assert (found.total.hours, found.total.bad) == (4.25, 2.0)
    assert [use.user for use in report.to_write_to(found)] == ["bob"]
    assert [use.user for use in made(*low, *high, user="carol").users] == ["carol"]


def test_means_are_of_what_was_had():
    (use,) = made(sample(gpus=2, gpu_load=1.0, cpu_load=4.0), sample(1, gpus=4, gpu_load=4.0)).users
    assert (use.gpu_percent, use.cpu_percent) == (83.3, 10.0)


def test_the_advice_of_most_hours_is_told():
    (use,) = made(
        sample(0, gpus=2, nppn=1, advised=4, decided_by="GPU load"),
        sample(1, gpus=2, nppn=1, advised=4, decided_by="GPU load"),
        sample(2, gpus=2, nppn=1, advised=2, decided_by="doubling"),
        *(sample(n, gpus=2, nppn=8, advised=8, decided_by="GPU load") for n in range(3, 9)),
    ).users
    assert use.advised == report.AdviceHours(1, 4, "GPU load", 0.5)


SAMPLES = some.lists(
    some.builds(
        sample,
        quarter=some.integers(0, 671),
        user=some.sampled_from(["alice", "bob"]),
        node=some.sampled_from(["n1", "n2"]),
        cpu_load=some.none() | some.floats(0, 100),
        gpus=some.sampled_from([None, 0, 2]),
        gpu_load=some.none() | some.floats(0, 2),
        interval_s=some.sampled_from([300, 900, 3600]),
    )
)


@given(SAMPLES)
def test_hours_add_up_and_are_never_more_than_there_were(samples):
    found = made(*samples)
    assert found == made(*samples)
    assert found == made(*itertools.chain.from_iterable((one, one) for one in samples))
    assert found.covered_h <= found.elapsed_h
    for use in (*found.users, found.total):
        assert use.cpu.known + use.cpu.unknown == pytest.approx(use.hours, abs=0.001)
        assert use.gpu.known + use.gpu.unknown == pytest.approx(use.gpu_hours, abs=0.001)
    for use in found.users:
        assert use.hours <= found.covered_h * 2 + 0.001  # two nodes
    assert sum(use.hours for use in found.users) == pytest.approx(found.total.hours, abs=0.01)


def test_what_is_still_to_come_has_not_been_used():
    found = made(sample(0, gpus=2, gpu_load=0.2), sample(1, gpus=2, gpu_load=0.2), now=WEEK.since + 1200.0)
    assert (found.total.hours, found.covered_h, found.elapsed_h) == (0.3333, 0.3333, 0.3333)
