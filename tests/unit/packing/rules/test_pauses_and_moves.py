from __future__ import annotations

import pytest
from packing_values import Known, board, key, oom, starts

from slurm_share.packing.decision_records import Move, Pause, Resume
from slurm_share.packing.records import EndFacts, TaskAsk
from slurm_share.packing.rules import refusals
from slurm_share.packing.rules.board import Board
from slurm_share.packing.speed_records import Rate

NOW = 10.0


def started(gpus: int = 1, *, tasks: int = 2, can_move: bool = False, **settings):
    """Tasks of 4 GiB that run on GPU 0."""
    known = Known({"e": 4096, "other": 4096}, seconds={"e": 500.0})
    made = board(gpus, estimator=known, policy="gain", undo="pause", **settings)
    if can_move:
        made = Board([gpu.facts for gpu in made.view(0.0).gpus], 64, made.settings, known, can_move=True)
    for task in range(tasks):
        made.add(TaskAsk(task=task, key=key("e", "f")), 0.0)
    made.decide(0.0)
    for task in range(tasks):
        made.rate_task(task, Rate(per_s=1.0, error_per_s=0.1, windows=4, source="progress"))
    return made


def views(made, now=NOW):
    return {one.ask.task: one for one in made.view(now).running}


def test_a_paused_task_is_seen_as_paused_keeps_its_memory_and_rates_begin_anew():
    made = started()
    made.apply([Pause(task=1, gpu="GPU-0", why="")], NOW)
    seen = views(made)
    assert (seen[1].is_paused, seen[1].pause_s, seen[1].reserved_mib) == (True, NOW, 4096)
    assert not seen[0].is_paused
    assert (seen[0].rate, seen[1].rate) == (None, None)
    made.apply([Resume(task=1, gpu="GPU-0", why="")], 30.0)
    assert (views(made)[1].is_paused, views(made)[1].pause_s) == (False, 30.0)
    assert views(made)[1].ends_s == views(made)[0].ends_s + 20


def test_nothing_starts_beside_a_paused_task_and_the_reason_is_said():
    made = started()
    made.apply([Pause(task=1, gpu="GPU-0", why="")], NOW)
    made.add(TaskAsk(task=2, key=key("other", "g")), NOW)
    _, decision = made.decide(NOW)
    assert starts(decision) == []
    assert [one.why for one in decision.refused] == [refusals.PAUSED]
    made.apply([Resume(task=1, gpu="GPU-0", why="")], 30.0)
    assert starts(made.decide(30.0)[1]) == [(2, "GPU-0")]


def test_the_end_of_a_pause_is_a_time_to_decide():
    made = started(pause_max_s=900.0)
    assert made.next_s(NOW) is None
    made.apply([Pause(task=1, gpu="GPU-0", why="")], NOW)
    assert made.next_s(NOW) == 910.0
    _, decision = made.decide(910.0)
    assert [(type(one), one.task) for one in decision.actions] == [(Pause, 0), (Resume, 1)]
    made.ended(EndFacts(task=1, now_s=920.0, code=0))
    assert [(type(one), one.task) for one in made.decide(920.0)[1].actions] == [(Resume, 0)]


@pytest.mark.parametrize("how", [{"code": 0}, {"code": 1}, {"code": 75}, {"code": None, "signal": 10}])
def test_a_task_that_was_told_to_move_runs_again_elsewhere_and_no_try_is_counted(how):
    made = started(2, tasks=1, can_move=True)
    assert views(made)[0].can_move
    made.apply([Move(task=0, gpu="GPU-0", why="")], NOW)
    assert views(made)[0].is_moving
    made.add(TaskAsk(task=5, key=key("other", "g"), gpu_mem_mib=39000), NOW)
    made.decide(NOW)
    after = made.ended(EndFacts(task=0, now_s=20.0, **how))
    assert (after.kind, after.is_retried) == ("unfinished", True)
    assert after.why == "moved away from GPU 0; it runs again"
    (waiting,) = made.view(20.0).waiting
    assert (waiting.tries.failed, waiting.tries.moved, waiting.attempt, waiting.not_on) == (0, 1, 2, ("GPU-0",))


def test_a_moved_task_does_not_go_back_to_its_neighbour():
    made = started(1, tasks=2, can_move=True)
    made.apply([Move(task=1, gpu="GPU-0", why="")], NOW)
    made.ended(EndFacts(task=1, now_s=20.0, code=0))
    _, decision = made.decide(20.0)
    assert starts(decision) == []
    assert [one.why for one in decision.refused] == [refusals.LEFT]
    made.ended(EndFacts(task=0, now_s=30.0, code=0))
    assert starts(made.decide(30.0)[1]) == [(1, "GPU-0")]


def test_a_move_at_the_end_of_the_job_is_no_move_and_out_of_memory_stays_that():
    made = started(1, tasks=2, can_move=True)
    for task in range(2):
        made.apply([Move(task=task, gpu="GPU-0", why="")], NOW)
    assert not made.ended(EndFacts(task=0, now_s=20.0, code=0, is_stopped_by_us=True)).is_retried
    assert made.ended(oom(1, 20.0)).kind == "gpu memory"


def test_a_task_that_moves_when_the_job_is_to_end_has_saved_its_state():
    made = started(1, tasks=1, can_move=True)
    made.apply([Move(task=0, gpu="GPU-0", why="")], NOW)
    after = made.ended(EndFacts(task=0, now_s=20.0, code=0, is_told_to_save=True))
    assert (after.kind, after.is_retried) == ("saved", False)
