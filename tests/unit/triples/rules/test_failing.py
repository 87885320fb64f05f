"""Slowing down and stopping a run after many failures."""

from __future__ import annotations

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.triples.records import Run
from slurm_share.triples.rules import failing


def test_only_instant_failures_in_a_row_count() -> None:
    count = 0
    for outcome, seconds, then in (
        ("failed", 0.1, 1), ("signal", 0.9, 2), ("unfinished", 0.1, 2), ("not started", 0.0, 2), ("failed", 1.0, 0),
        ("gpu memory", 0.5, 1), ("done", 0.1, 0),
    ):  # fmt: skip
        count = failing.streak(count, outcome, seconds)  # type: ignore[arg-type]
        assert count == then


@pytest.mark.parametrize(
    ("failures", "workers", "pause_s"),
    [(0, 2, 0), (21, 2, 0), (22, 2, 0.5), (24, 2, 1), (26, 2, 2), (28, 2, 4), (30, 2, 5), (10**6, 2, 5), (67, 48, 0),
     (68, 48, 0.5), (21, 1, 0.5)],
)  # fmt: skip
def test_the_pause_grows_to_a_bound(failures: int, workers: int, pause_s: float) -> None:
    assert failing.pause_s(failures, workers) == pause_s


@pytest.mark.parametrize(
    ("text", "tasks", "most"), [("1", 10, 1), ("12", 10, 12), ("1%", 10, 1), ("5%", 1000, 50), ("100%", 7, 7)]
)
def test_a_number_or_a_part_of_the_tasks(text: str, tasks: int, most: int) -> None:
    assert failing.parse_max_failures(text, tasks) == most


@pytest.mark.parametrize("text", ["0", "0%", "101%", "-1", "", "x", "1.5", "5 %", "9" * 20])
def test_anything_else_is_asked_back(text: str) -> None:
    with pytest.raises(UsageError, match="write the number of failed tasks that stops the run"):
        failing.parse_max_failures(text, 10)


def test_the_run_stops_at_that_number() -> None:
    assert [failing.is_too_much(failed, 3) for failed in (2, 3, 4)] == [False, True, True]
    assert not failing.is_too_much(10**6, None)


def test_one_failed_task_is_one() -> None:
    run = Run(name="x", command=("x",), cwd="/", triple=None, processes=1, tasks=300)
    one, three = failing.with_max_failures(run, "1"), failing.with_max_failures(run, "3")
    assert failing.too_much_text(1, one) == "1 task has failed, and --max-failures 1 stops the run"
    assert failing.too_much_text(4, three) == "4 tasks have failed, and --max-failures 3 stops the run"


def test_a_percentage_is_told_as_it_was_written() -> None:
    run = Run(name="x", command=("x",), cwd="/", triple=None, processes=1, tasks=300)
    tenth = failing.with_max_failures(run, "10%")
    assert failing.failure_limit_text(tenth) == "--max-failures 10% (30 of 300 tasks)"
