"""Fair turns: who gives way, and what it costs."""

from __future__ import annotations

import signal

import pytest
from msgspec import UNSET

from slurm_share.core.errors import UsageError
from slurm_share.triples.records import Ended
from slurm_share.triples.rules import turns
from slurm_share.triples.rules.checkpoint import Checkpoint
from slurm_share.triples.rules.turns import RunningTask


@pytest.mark.parametrize(
    ("running", "waiting", "told"),
    [
        ([(0, 9.0), (1, 12.0), (2, 11.0)], 1, [1]),
        ([(0, 9.0), (1, 12.0), (2, 11.0)], 5, [1, 2]),
        ([(0, 9.0), (1, 12.0), (2, 11.0)], 0, []),
        ([(0, 9.9), (1, 9.9)], 3, []),
        ([(0, 20.0, True), (1, 12.0)], 1, []),
        ([(0, 20.0, True), (1, 12.0)], 2, [1]),
        ([(0, 20.0, False, True), (1, 12.0)], 2, [1]),
    ],
)
def test_the_longest_running_tasks_give_way_as_far_as_others_wait(running: list, waiting: int, told: list[int]) -> None:
    assert turns.choose([RunningTask(*one) for one in running], waiting, 10.0) == told


def test_turns_need_a_signal_on_which_tasks_save() -> None:
    with pytest.raises(UsageError, match="--slot needs --checkpoint-signal"):
        turns.check(60.0, None)
    turns.check(60.0, Checkpoint(signal.SIGUSR1))
    turns.check(None, None)


@pytest.mark.parametrize("text", ["0", "-1h", "soon", "", "none"])
def test_a_turn_has_a_length(text: str) -> None:
    with pytest.raises(UsageError, match="--slot is a time"):
        turns.parse(text)


def ended(task: int, started: float, seconds: float, turn_over: float | None = None) -> tuple[int, Ended]:
    return task, Ended(
        task=task, rank=0, attempt=1, outcome="saved", node="n1", job="1", started=started, seconds=seconds,
        turn_over=UNSET if turn_over is None else turn_over,
    )  # fmt: skip


def test_the_cost_of_turns_is_saving_and_waiting() -> None:
    tally = turns.TurnTally(2)
    made = [ended(0, 100.0, 12.0, 110.0), ended(1, 112.0, 11.0, 122.0), ended(0, 123.0, 5.0), ended(1, 128.0, 2.0)]
    assert [place for place, _ in tally.passed_on(made)] == [0, 1, 0, 1]
    sums = tally.sums()
    assert (sums.turns, sums.saving_s, sums.waiting_s, sums.task_s) == (2, 3.0, 16.0, (17.0, 13.0))
    first, second = turns.sentences(sums)
    assert "tasks gave way 2 times; saving took 3 s, and waiting for the next turn 16 s" in first
    assert second == "share of the running time by task: 0: 56.7 %, 1: 43.3 %"
