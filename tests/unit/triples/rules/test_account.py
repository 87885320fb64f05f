"""A run's attempts, counted one by one as from a stream."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from slurm_share.triples.records import Ended, Outcome
from slurm_share.triples.rules.account import Tally

TASKS = 4
ATTEMPT = some.tuples(
    some.integers(0, TASKS - 1),
    some.integers(0, 2),
    some.sampled_from(["done", "failed", "signal", "saved", "unfinished"]),
    some.sampled_from(["GPU-a", "GPU-b", None]),
)


@given(some.lists(ATTEMPT, max_size=12), some.randoms(use_true_random=False))
def test_the_stream_gives_what_all_attempts_side_by_side_give(attempts, chance) -> None:
    made = [
        Ended(task=task, rank=0, attempt=1, outcome=outcome, node=f"n{file}", job="1", started=100.0 + number,
              seconds=1.0, gpu_uuid=gpu and f"{gpu}-{file}")
        for number, (task, file, outcome, gpu) in enumerate(attempts)
    ]  # fmt: skip
    files = [[one for one in made if one.node == f"n{file}"] for file in (0, 1, 2)]
    chance.shuffle(files)
    tally, placed = Tally("x", TASKS), {}
    for number, file in enumerate(files):
        some_more = list(enumerate(file, len(placed)))
        placed.update(some_more)
        tally.add(number, some_more)
    found = tally.account()

    tried = defaultdict(list)
    for one in made:
        tried[one.task].append(one)
    counts = {task: next((one for one in ends if one.outcome == "done"), ends[-1]) for task, ends in tried.items()}
    assert {task: placed[place] for task, place in enumerate(found.places) if place >= 0} == counts
    assert found.done == sum(one.outcome == "done" for one in counts.values())
    assert list(found.failed) == sorted(t for t, one in counts.items() if one.outcome in ("failed", "signal"))
    assert list(found.saved) == sorted(t for t, one in counts.items() if one.outcome == "saved")
    assert list(found.unfinished) == [
        task for task in range(TASKS) if task not in counts or counts[task].outcome == "unfinished"
    ]
    assert found.exit_code == (0 if found.done == TASKS else 75 if found.saved and not found.failed else 1)
    assert list(found.tried_again) == sorted(task for task in tried if len(tried[task]) > 1)
    assert [found.tries[task] for task in range(TASKS)] == [len(tried[task]) for task in range(TASKS)]
    assert list(found.moved) == sorted(
        task
        for task, one in counts.items()
        if one.outcome == "done" and None not in (gpus := {one.gpu_uuid, tried[task][0].gpu_uuid}) and len(gpus) == 2
    )
    assert found.seconds == (float(len(made)) if made else None)


def one(task: int, outcome: Outcome, started: float) -> Ended:
    return Ended(task=task, rank=0, attempt=1, outcome=outcome, node="n", job="1", started=started, seconds=1.0)


def test_the_time_between_the_jobs_of_a_run_is_not_counted() -> None:
    """The second job of node 0 runs beside that of node 1; a requeue is a start of its own."""
    tally = Tally("x", 5)
    jobs = [("7", 100.0), ("9", 5000.0), ("9.1", 8000.0)]
    tally.add(0, [(place, replace(one(place, "done", at), job=job)) for place, (job, at) in enumerate(jobs)])
    tally.add(1, [(3, replace(one(3, "done", 5002.0), job="9")), (4, replace(one(4, "done", 98.0), job="7"))])
    assert (tally.account().seconds, tally.account().starts) == (3.0 + 3.0 + 1.0, 3)


def test_in_one_file_the_order_counts_and_not_the_clock() -> None:
    tally = Tally("x", 1)
    tally.add(0, [(0, one(0, "failed", 50.0)), (1, one(0, "signal", 40.0))])
    assert tally.account().places[0] == 1


def test_a_table_of_a_large_run_has_what_is_not_done() -> None:
    tally = Tally("x", 10)
    tally.add(0, [(100 + task, one(task, "failed" if task % 2 else "done", 1.0)) for task in range(9)])
    found = tally.account()
    assert found.shown(9) == list(range(100, 109))
    assert found.shown(3) == [101, 103, 105]
    assert list(found.by_outcome) == ["failed"]
