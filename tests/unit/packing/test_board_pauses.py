from __future__ import annotations

from pathlib import Path
from typing import Any

from packing_values import facts
from test_decider import Node, booked_by

from slurm_share.packing.decision_records import Pause, Resume
from slurm_share.packing.records import PackView
from slurm_share.packing.rules import place


def node_with(tmp_path: Path, monkeypatch: Any, plan: dict[float, list[Any]], **more: Any) -> Node:
    """A board of one GPU whose policy undoes what `plan` says, at those times."""

    def undone(view: PackView) -> list[Any]:
        return plan.pop(view.now_s, [])

    monkeypatch.setattr(place.undo, "actions", undone)
    return Node(tmp_path, policy="gain", undo="pause", gpus=[facts(0, is_mps=True)], **more)


def test_a_paused_tasks_memory_stays_booked_and_its_pause_is_no_part_of_its_duration(
    tmp_path: Path, monkeypatch: Any
) -> None:
    plan = {10.0: [Pause(task=1, gpu="GPU-0", why="")], 110.0: [Resume(task=1, gpu="GPU-0", why="")]}
    store, other = booked_by(tmp_path, "7"), booked_by(tmp_path, "8")
    made = node_with(tmp_path, monkeypatch, plan, bookings=store)
    for task in range(2):
        made.add(task, mib=4000)
    made.starts(0.0)
    made.see(10.0, t0=3000, t1=3000)
    made.decider.decide(10.0)
    assert made.board.running[1].is_paused
    with other.section():
        assert other.others()["GPU-0"].booked_mib == 8000
    made.see(110.0, t0=3000, t1=3000)
    made.decider.decide(110.0)
    made.end(1, 150.0)
    assert made.kept[-1].seconds == 50.0


def test_no_task_takes_the_place_of_a_done_one_beside_a_paused_one(tmp_path: Path, monkeypatch: Any) -> None:
    made = node_with(tmp_path, monkeypatch, {0.2: [Pause(task=1, gpu="GPU-0", why="")]}, workers=2)
    for task in range(3):
        made.add(task, mib=4000)
    assert set(made.starts(0.0)) == {0, 1}
    made.see(0.2, t0=3000, t1=3000)
    made.decider.decide(0.2)
    made.end(0, 0.3)
    assert made.decider.decide(0.3) == ()
