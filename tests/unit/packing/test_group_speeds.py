from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packing_values import A100, facts, gpu_load, is_replayable
from test_decider import Node

from slurm_share.packing.records import TaskAsk, TaskKey, TaskSample
from slurm_share.packing.speed_records import PairRun, Rate


def key(name: str) -> TaskKey:
    return TaskKey(exact=name, family=f"f-{name}")


def rate(per_s: float, windows: int = 3, error: float = 0.0) -> Rate:
    return Rate(per_s=per_s, error_per_s=error, windows=windows, source="progress")


class SpeedNode(Node):
    """A board of one GPU with the policy `gain`."""

    def __init__(self, folder: Path, **more: Any) -> None:
        super().__init__(folder, gpus=[facts(0, is_mps=True)], policy="gain", **more)

    def start(self, now: float, **tasks: str) -> None:
        """Tasks start: `t3="a"` is task 3 of the command a."""
        for name, command in tasks.items():
            self.board.add(TaskAsk(task=int(name[1:]), gpu_mem_mib=4000, key=key(command)), now)
            assert list(self.starts(now)) == [int(name[1:])]
            self.sample(now)

    def sample(self, now: float, sm: float = 0.5) -> None:
        tasks = [TaskSample(task=task, memory_mib={"GPU-0": 3000}) for task in self.board.running]
        gpu = gpu_load(used_mib=3000 * len(tasks), sm_ratio=sm, dram_ratio=0.1)
        self.board.sampled({"GPU-0": gpu}, tasks, now, now)


@pytest.fixture
def node(tmp_path: Path) -> SpeedNode:
    return SpeedNode(tmp_path)


def test_a_task_that_is_alone_for_two_windows_gives_the_rate_alone(node: SpeedNode) -> None:
    node.start(0.0, t1="a")
    node.board.rate_task(1, rate(5.0, 1))
    assert node.speeds.rate_alone(key("a"), A100) is None
    node.board.rate_task(1, rate(5.0, 2))
    assert node.speeds.rate_alone(key("a"), A100) == rate(5.0, 2)
    assert node.board.view(60.0).running[0].rate_alone == rate(5.0, 2)
    node.end(1, 90.0)
    assert (node.kept[0].rate_alone, node.kept[0].rate_source) == (5.0, "progress")


def test_a_task_with_a_neighbour_gives_no_rate_alone(node: SpeedNode) -> None:
    node.start(0.0, t1="a", t2="b")
    node.board.rate_task(1, rate(5.0, 5))
    assert node.speeds.rate_alone(key("a"), A100) is None


def measured(node: SpeedNode, *, windows: int = 3, error: float = 0.0, together: float = 1.3) -> None:
    """Two tasks that keep a half and four fifths of their speed alone, or less."""
    for name in "ab":
        node.speeds.note_alone(key(name), A100, rate(10.0))
    node.start(0.0, t1="a", t2="b")
    part = together / 1.3
    node.board.rate_task(1, rate(5.0 * part, windows, error))
    node.board.rate_task(2, rate(8.0 * part, windows, error))


def test_two_tasks_with_three_windows_each_teach_and_are_written_down(node: SpeedNode) -> None:
    measured(node, error=0.1)
    (pair,) = node.pairs
    assert (pair.a, pair.b, pair.slowdown_a, pair.slowdown_b, pair.windows) == ("a", "b", 2.0, 1.25, 3)
    assert (pair.stp, pair.gpu_model, pair.sharing, pair.is_refused) == (1.3, A100, "mps", False)
    assert pair.stp_error == pytest.approx((0.016**2 + 0.016**2) ** 0.5, abs=1e-2)
    for windows in (4, 5, 6):
        node.board.rate_task(1, rate(5.0, windows))
        node.board.rate_task(2, rate(8.0, windows))
    assert [one.windows for one in node.pairs] == [3, 6]


def test_a_pair_that_does_less_than_one_at_a_time_is_said_and_refused_at_once(node: SpeedNode) -> None:
    measured(node, together=0.8)
    (pair,) = node.pairs
    assert (pair.stp, pair.is_refused) == (0.8, True)
    assert node.board.notes == [
        "GPU 0: 1 and 2 together do 0.80 +- 0.01 of one at a time; --pack places no such pair again"
    ]
    node.board.add(TaskAsk(task=3, gpu_mem_mib=4000, key=key("a")), 101.0)
    (found,) = node.board.view(101.0).pairs
    assert found.is_refused
    assert list(node.starts(101.0)) == []
    node.board.rate_task(1, rate(4.0, 6))
    node.board.rate_task(2, rate(4.0, 6))
    assert [one.windows for one in node.pairs] == [3, 6]
    assert len(node.board.notes) == 1


@pytest.mark.parametrize("missing", ["windows", "rate alone", "rate", "source"])
def test_a_group_teaches_nothing_before_all_of_it_is_measured(node: SpeedNode, missing: str) -> None:
    node.speeds.note_alone(key("a"), A100, rate(10.0))
    if missing != "rate alone":
        source = "log" if missing == "source" else "progress"
        node.speeds.note_alone(
            key("b"), A100, Rate(per_s=10.0, error_per_s=0.0, windows=3, source=source)
        )  # fmt: skip
    node.start(0.0, t1="a", t2="b")
    node.board.rate_task(1, rate(5.0))
    node.board.rate_task(2, None if missing == "rate" else rate(8.0, 2 if missing == "windows" else 3))
    assert node.pairs == []


def test_a_pair_that_does_less_than_its_best_rates_allow_is_refused_without_a_rate_alone(node: SpeedNode) -> None:
    node.start(0.0, t1="a", t2="c")
    node.board.rate_task(1, rate(8.0))
    node.board.rate_task(2, rate(8.0))
    node.end(2, 110.0)
    node.start(110.0, t3="b")
    node.speeds.note_alone(key("b"), A100, rate(10.0))
    node.board.rate_task(3, rate(4.0))
    node.board.rate_task(1, rate(6.0))
    assert node.pairs == []  # at most 1.15: it may be useful
    node.board.rate_task(1, rate(2.0, 6))
    node.board.rate_task(3, rate(4.0, 6))
    assert {(pair.a, pair.b, pair.stp, pair.is_refused) for pair in node.pairs} == {("a", "b", 0.65, True)}
    assert node.board.notes == [
        "GPU 0: 1 and 3 together do at most 0.65 +- 0.01 of one at a time; --pack places no such pair again"
    ]
    assert node.board.learner.groups.finish(400.0) == []  # no speed is known exactly


def test_rates_from_before_a_third_task_came_say_nothing_of_the_three(tmp_path: Path) -> None:
    node = SpeedNode(tmp_path)
    node.speeds.note_alone(key("c"), A100, rate(10.0))
    measured(node)
    node.start(101.0, t3="c")
    assert [one.rate for one in node.board.view(101.0).running] == [None, None, None]
    node.board.rate_task(3, rate(9.0))
    assert len(node.pairs) == 1
    node.end(3, 201.0)
    assert [group.tasks for group in node.board.learner.groups.results] == [(1, 2)]
    assert [one.rate for one in node.board.view(201.0).running] == [None, None]


def test_nothing_is_written_where_the_user_does_not_want_it(tmp_path: Path) -> None:
    node = SpeedNode(tmp_path, learns=False)
    measured(node)
    assert node.pairs == []
    assert node.speeds.pairs([key("a"), key("b")]) != ()


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_place_of_an_ended_task_is_not_taken_beside_one_that_its_kind_harms(
    node: SpeedNode, is_refused: bool
) -> None:
    node.speeds.note_alone(key("a"), A100, rate(10.0))  # else a decision would be needed for other reasons
    node.start(0.0, t1="a", t2="b")
    node.board.add(TaskAsk(task=3, gpu_mem_mib=4000, key=key("a")), 0.1)
    if is_refused:
        pair = PairRun(
            when=0.0, a="a", b="b", family_a="f-a", family_b="f-b", gpu_model=A100, sharing="mps", slowdown_a=2.5,
            slowdown_b=2.5, stp=0.8, stp_error=0.0, windows=3, is_refused=True,
        )  # fmt: skip
        node.speeds.learn_pair(pair, 0.0)
    node.end(1, 0.2)
    assert list(node.starts(0.3)) == ([] if is_refused else [3])
    if is_refused:
        node.end(2, 0.4)
        assert list(node.starts(0.5)) == [3]


@pytest.mark.parametrize(("seconds", "decides"), [(2.0, False), (3000.0, True)])
def test_only_a_task_known_to_be_short_takes_a_place_on_a_gpu_where_it_may_be_alone(
    tmp_path: Path, seconds: float, decides: bool
) -> None:
    node, now = SpeedNode(tmp_path, workers=1), 0.0
    for task in range(1, 12):
        node.board.add(TaskAsk(task=task, gpu_mem_mib=4000, key=key("a")), now)
    for _ in range(4):  # then the duration of the command is known
        (task,) = node.starts(now)
        now += seconds
        node.end(task, now)
    (task,) = node.starts(now)
    assert node.board.running[task].estimate.seconds == pytest.approx(seconds, rel=0.1)
    node.end(task, now + 0.5)
    assert (node.board.repeat(now + 0.5) is None) is decides


def test_groups_are_kept_for_the_end_of_the_run(node: SpeedNode) -> None:
    measured(node, error=0.1)
    node.end(1, 130.0)
    node.board.rate_task(2, rate(10.0))
    (group,) = node.board.learner.groups.finish(200.0)
    assert (group.gpu, group.tasks, group.seconds, group.windows, group.stp) == (0, (1, 2), 130.0, 3, 1.3)
    assert group.delta is None


def test_a_task_that_is_alone_shows_its_load_while_it_runs(node: SpeedNode) -> None:
    node.start(0.0, t1="a")
    for now in range(1, 62):
        node.sample(float(now), 0.05)
        node.decider.decide(float(now))
    assert node.speeds.load(TaskAsk(task=9, key=key("a")), A100) is None
    for now in range(62, 140):
        node.sample(float(now), 0.4)
        node.decider.decide(float(now))
    load = node.speeds.load(TaskAsk(task=9, key=key("a")), A100)
    assert load is not None
    assert (load.is_family, load.sm_ratio) == (False, pytest.approx(0.4, abs=0.05))


def test_the_journal_of_all_this_is_decided_again_byte_for_byte(node: SpeedNode) -> None:
    measured(node)
    node.decider.decide(101.0)
    node.board.add(TaskAsk(task=3, gpu_mem_mib=4000, key=key("a")), 102.0)
    node.decider.decide(102.0)
    node.end(1, 150.0)
    node.decider.decide(151.0)
    node.sample(152.0)
    node.decider.decide(152.0)
    assert any(entry.view.pairs for entry in node.entries())
    assert is_replayable(node.entries())


def test_the_end_of_the_run_says_what_was_measured(node: SpeedNode) -> None:
    assert not any("STP" in one for one in node.board.learner.sentences("LLSUB.3", 0.0))
    measured(node)
    node.sample(50.0)
    node.sample(60.0)
    node.end(1, 130.0)
    node.end(2, 130.0)
    said = node.board.learner.sentences("LLSUB.3", 200.0)
    assert (
        "together, a task took 1.6 x its time alone (ANTT), GPUs did 1.3 x (STP); measured of 2 tasks in 1 group"
        in said
    )
    assert "slurm-share pack explain LLSUB.3 lists every group of tasks that was measured" in said
