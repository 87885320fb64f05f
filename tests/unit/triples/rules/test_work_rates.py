"""Rates of a run's tasks, added up."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_share.core.text import amount
from slurm_share.packing import WorkRate
from slurm_share.triples.records import Ended
from slurm_share.triples.rules.progress import WorkTally, add_up, rate_text, usual_source


def rate(per_s: float, kind: str | None, source: Any = "progress") -> WorkRate:
    return WorkRate(per_s=per_s, tasks=1, source=source, kind=kind)


def ended(task: int, started: float, seconds: float, **more: Any) -> Ended:
    common = {"rank": 0, "attempt": 1, "outcome": "done", "node": "n1", "job": "1"}
    return Ended(**{**common, "task": task, "started": started, "seconds": seconds, **more})


def measured(task: int, started: float, seconds: float, per_s: float, **more: Any) -> Ended:
    return ended(task, started, seconds, rate_per_s=per_s, rate_source="progress", **more)


def tally(*attempts: Ended, is_alike: bool = True) -> str:
    made = WorkTally(is_alike=is_alike)
    passed = list(made.passed_on(enumerate(attempts)))
    assert passed == list(enumerate(attempts))
    return made.sentence()


def test_rates_of_one_kind_and_source_are_added_up() -> None:
    assert add_up([rate(10, "a"), rate(5, "a")]) == WorkRate(per_s=15, tasks=2, source="progress", kind="a")
    assert add_up([rate(10, None)]) == rate(10, None)


@pytest.mark.parametrize(
    "rates",
    [
        [],
        [rate(10, "a"), rate(5, "b")],
        [rate(10, "a"), rate(5, "a", "log")],
        [rate(1, None), rate(1, None)],
    ],
)
def test_rates_of_different_or_unknown_kinds_are_not(rates: list[WorkRate]) -> None:
    assert add_up(rates) is None


def test_amounts_have_three_digits() -> None:
    assert [amount(one) for one in (41234.4, 412.3, 51.25, 1, 0.00314159)] == ["41234", "412", "51.2", "1", "0.00314"]
    assert amount(6.23762e28) == "6.24e+28"


def test_work_rate_text() -> None:
    work = WorkRate(per_s=412, tasks=8, source="progress", kind="a")
    assert rate_text(work) == "412 units/s, 8 tasks 51.5 each (LLSUB_PROGRESS)"
    assert usual_source(["log", "output", "log"]) == "log"
    assert usual_source([]) is None


def test_nothing_measured_says_nothing() -> None:
    assert tally(ended(0, 0, 10)) == ""
    assert tally() == ""


def test_rate_of_slot_gpu_and_node_is_over_the_time_from_first_to_last() -> None:
    """Two slots on one GPU, each with two tasks of 10 s at 5 units/s and a gap of 5 s."""
    attempts = [
        measured(number, 100 + 15 * (number // 2), 10, 5, slot=number % 2, gpu_uuid="GPU-a") for number in range(4)
    ]
    assert tally(*attempts) == "units/s, by LLSUB_PROGRESS: a task 5, a slot 4, a GPU 8, a node 8"


def test_nodes_are_added_up_and_unmeasured_attempts_are_told() -> None:
    attempts = [measured(0, 100, 10, 5), measured(1, 100, 10, 15, node="n2", speed_ratio=0.8), ended(2, 100, 10)]
    said = "units/s, by LLSUB_PROGRESS (2 of 3 attempts): a task 10 (5 to 15), a node 10, 2 nodes 20"
    assert tally(*attempts) == f"{said}; 0.80 of the speed without neighbours"


def test_units_of_different_commands_or_sources_are_not_added_up() -> None:
    attempts = [measured(0, 100, 10, 5), measured(1, 100, 10, 150)]
    assert tally(*attempts, is_alike=False) == "units/s, by LLSUB_PROGRESS: tasks 5 to 150 each"
    assert tally(*attempts[:1], is_alike=False) == "units/s, by LLSUB_PROGRESS: tasks 5 each"
    other = ended(2, 100, 10, rate_per_s=3.0, rate_source="output")
    assert tally(*attempts, other).startswith("work was measured from different sources")
