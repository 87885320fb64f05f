from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packing_values import facts, gpu_load, is_replayable, oom

from slurm_share.core.errors import StateError
from slurm_share.core.live import LiveFolder
from slurm_share.packing import bookings, events
from slurm_share.packing.bookings import Booking, Bookings, read_bookings
from slurm_share.packing.decider import Decider
from slurm_share.packing.decision_records import GiveUp, Start
from slurm_share.packing.history_records import TaskRun
from slurm_share.packing.records import EndFacts, PackSettings, TaskAsk, TaskKey, TaskSample
from slurm_share.packing.rules.board import BLIND_S, LEFT_S, Board
from slurm_share.packing.rules.estimate.estimator import Estimator
from slurm_share.packing.rules.speeds import Speeds
from slurm_share.packing.rules.vacancies import AGAIN_S
from slurm_share.packing.speed_records import PairRun


def booked_by(tmp: Path, job: str) -> Bookings:
    return Bookings(LiveFolder(tmp, job), job, ["GPU-0"])


class Node:
    """A board and its decider without a launcher."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 8,
        gpus: Any = None,
        bookings: Bookings | None = None,
        learns: bool = True,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.speeds = Speeds()
        self.pairs: list[PairRun] = []
        self.said: list[str] = []
        self.kept: list[TaskRun] = []
        self.board = Board(
            gpus or [facts(0, is_mps=True), facts(1, is_mps=True)],
            workers,
            PackSettings(**settings),
            Estimator(),
            self.speeds,
            runs=self.kept if learns else None,
            pairs=self.pairs if learns else None,
        )
        self.decider = Decider(self.board, events.EventLog(folder, "job", 0.0), bookings, self.said.append)

    def add(
        self, task: int, now: float = 0.0, *, mib: int | None = None, exact: str = "e", family: str = "f", gpus: int = 1
    ) -> None:
        key = TaskKey(exact=exact, family=family)
        self.board.add(TaskAsk(task=task, gpus=gpus, gpu_mem_mib=mib, key=key, submitted_s=now), now)

    def starts(self, now: float) -> dict[int, Start]:
        """Return the starts of now; like the launcher, decide until nothing more starts."""
        found: dict[int, Start] = {}
        while actions := self.decider.decide(now):
            new = {one.task: one for one in actions if isinstance(one, Start)}
            if not new:
                break
            found |= new
        return found

    def see(self, now: float, **memory: int) -> None:
        """A sample: task `t3` has so much on its first GPU."""
        used: dict[str, int] = {}
        tasks = []
        for name, mib in memory.items():
            its = self.board.running[int(name[1:])]
            uuid = its.gpus[0]
            used[uuid] = used.get(uuid, 0) + mib
            tasks.append(TaskSample(task=int(name[1:]), memory_mib={uuid: mib}))
        gpus = {uuid: gpu_load(uuid=uuid, used_mib=used.get(uuid, 0), sm_ratio=0.5) for uuid in self.board.facts}
        self.board.sampled(gpus, tasks, now, now)

    def end(self, task: int, now: float, code: int = 0, tail: bytes = b"", **more: Any):
        return self.board.ended(EndFacts(task=task, now_s=now, code=code, log_tail=tail, **more))

    def entries(self) -> list[events.MadeDecision]:
        self.decider.events.flush()
        return list(events.read_decisions((self.folder / events.EVENTS).read_bytes()))


@pytest.fixture
def node(tmp_path: Path) -> Callable[..., Node]:
    return lambda **more: Node(tmp_path, **more)


def test_a_done_tasks_place_is_taken_without_a_decision_of_its_own(node: Callable[..., Node]) -> None:
    made = node(workers=2)
    for task in range(4):
        made.add(task, mib=4000)
    first = made.starts(0.0)
    assert set(first) == {0, 1}
    made.end(0, 0.3)
    (start,) = made.decider.decide(0.3)
    assert isinstance(start, Start)
    assert (start.task, start.gpus, start.reserve_mib, start.cap_mib) == (
        2, first[0].gpus, first[0].reserve_mib, first[0].cap_mib,
    )  # fmt: skip
    assert [one.repeats for one in made.entries()] == [None, 0]
    assert is_replayable(made.entries())


def test_no_place_is_taken_where_fewer_tasks_are_to_run(node: Callable[..., Node]) -> None:
    made = node(workers=4, gpus=[facts(0, is_mps=True)])
    for task in range(5):
        made.add(task, mib=4000)
    made.board.limit(3)
    assert set(made.starts(0.0)) == {0, 1, 2}
    made.board.limit(1)
    made.end(0, 0.3)
    made.end(1, 0.4)
    assert made.starts(0.4) == {}
    made.end(2, 0.5)
    assert set(made.starts(0.5)) == {3}
    made.board.limit(0)
    made.end(3, 0.6)
    assert made.starts(0.6) == {}
    made.board.limit(None)
    assert set(made.starts(0.7)) == {4}
    assert is_replayable(made.entries())


def test_a_task_like_dead_ones_takes_no_place(node: Callable[..., Node]) -> None:
    made = node(workers=1, gpus=[facts(0, is_mps=True)])
    for task, exact in enumerate(("a", "b", "c", "small", "smaller", "a")):
        made.add(task, exact=exact)
    while (task := next(iter(made.starts(0.0)))) < 3:
        made.board.ended(oom(task, 0.0))  # until a GPU to itself was too small
    made.end(3, 0.1)
    (start,) = made.decider.decide(0.1)
    assert (start.task, start.why) == (4, "in the place of task 3")  # type: ignore[union-attr]
    made.end(4, 0.2)
    (end,) = made.decider.decide(0.2)
    assert isinstance(end, GiveUp)
    assert (end.task, end.outcome) == (5, "given up")


def test_after_a_second_the_same_command_is_decided_anew(node: Callable[..., Node]) -> None:
    made = node(workers=1)
    for task in range(3):
        made.add(task, mib=4000)
    assert set(made.starts(0.0)) == {0}
    made.end(0, 2 * AGAIN_S)
    assert set(made.starts(2 * AGAIN_S)) == {1}
    assert [one.repeats for one in made.entries()] == [None, None]


@pytest.mark.parametrize("what", ["another size", "a retry waits", "it failed", "another command"])
def test_no_place_is_taken_unseen_where_the_answer_may_be_another(node: Callable[..., Node], what: str) -> None:
    made = node(workers=2, retries=1)
    made.add(0, mib=4000)
    made.add(1, mib=4000)
    made.starts(0.0)
    made.add(2, 0.1, mib=9000 if what == "another size" else 4000, family="g" if what == "another command" else "f")
    if what == "a retry waits":
        made.end(1, 0.2, code=3)
    made.end(0, 0.3, code=1 if what == "it failed" else 0)
    made.starts(0.3)
    assert all(one.repeats is None for one in made.entries())


def test_what_other_launchers_have_booked_is_room_no_more_and_what_is_started_is_booked(tmp_path: Path) -> None:
    gpus = [facts(0, is_mps=True)]
    other = booked_by(tmp_path, "other")
    with other.section():
        other.write({"GPU-0": Booking(booked_mib=30000, memory_mib=1000, clients=2)})
    mine = booked_by(tmp_path, "mine")
    made = Node(tmp_path, gpus=gpus, bookings=mine)
    made.add(0, mib=12000)
    made.add(1, mib=8000)
    assert set(made.starts(1.0)) == {1}
    with other.section():
        assert other.others()["GPU-0"].booked_mib == 8000
        other.write({"GPU-0": Booking()})
    made.see(2.0, t1=7000)
    assert set(made.starts(2.0)) == {0}
    with other.section():
        seen = other.others()["GPU-0"]
    assert (seen.booked_mib, seen.clients) == (20000, 2)
    made.end(0, 3.0)
    made.end(1, 3.0)
    made.see(4.0)
    made.decider.decide(4.0)
    with other.section():
        assert other.others()["GPU-0"].booked_mib == 0
    mine.close()
    other.close()


@pytest.mark.parametrize("call", ["others", "write"])
def test_a_folder_of_bookings_that_is_gone_is_said_once_and_every_task_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    mine = booked_by(tmp_path, "mine")
    made = Node(tmp_path, gpus=[facts(0)], bookings=mine)
    monkeypatch.setattr(mine, call, _raise)
    made.add(0, mib=1000)
    assert set(made.starts(0.0)) == {0}
    made.add(1, 1.0, mib=1000, family="g")
    assert set(made.starts(1.0)) == {1}
    assert len(made.said) == 1
    mine.close()


def test_a_lock_that_another_launcher_keeps_holds_up_starts_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookings, "PATIENCE_S", 0.05)
    mine, other = (
        booked_by(tmp_path, "mine"),
        booked_by(tmp_path, "other"),
    )
    made = Node(tmp_path, gpus=[facts(0)], bookings=mine)
    made.add(0, mib=1000)
    with other.section():
        assert made.starts(0.0) == {}
    assert set(made.starts(1.0)) == {0}
    assert made.said == []
    mine.close()
    other.close()


def _raise(*_: object) -> Any:
    raise StateError("bookings", "cannot be read")


def test_processes_on_a_gpu_are_counted_and_not_tasks(tmp_path: Path) -> None:
    made = Node(tmp_path, gpus=[facts(0, is_mps=True, clients_max=5)])
    made.add(0, mib=1000)
    assert set(made.starts(0.0)) == {0}
    gpu = gpu_load(used_mib=900)
    made.board.sampled({"GPU-0": gpu}, [TaskSample(task=0, memory_mib={"GPU-0": 900}, clients=5)], 1.0, 1.0)
    made.add(1, 1.0, mib=1000, exact="x", family="g")
    assert made.starts(1.0) == {}
    made.end(0, 2.0)
    assert set(made.starts(2.0)) == {1}


def test_without_samples_the_driver_is_taken_to_hang_and_that_is_said_once(node: Callable[..., Node]) -> None:
    made = node()
    made.add(0, mib=1000)
    made.starts(0.0)
    made.see(1.0, t0=500)
    told: list[bool] = []
    for second in range(2, 40):
        told.append(made.board.check_driver(float(second)))
    assert told.count(True) == 1
    made.add(1, 30.0, mib=1000)
    (start,) = made.starts(30.0).values()
    assert start.gpus == ("GPU-1",)  # where nothing runs
    made.see(41.0, t0=500)
    made.board.check_driver(41.0)
    assert not made.entries()[-1].view.gpus[0].can_measure
    made.add(2, 41.0, mib=1000)
    made.starts(41.0)
    assert made.entries()[-1].view.gpus[0].can_measure
    assert BLIND_S < 30


def test_a_gpu_out_of_service_stays_so_whatever_the_samples_say(node: Callable[..., Node]) -> None:
    made = node()
    made.board.out_of_service("GPU-0", "its MPS daemon is gone", 0.0)
    made.see(1.0)
    for task in range(3):
        made.add(task, 1.0, mib=1000)
    assert {one.gpus for one in made.starts(1.0).values()} == {("GPU-1",)}
    assert made.board.unusable == {"GPU-0"}
    made.end(0, 2.0, code=1, is_device_lost=True)
    assert made.board.unusable == {"GPU-0", "GPU-1"}
    made.see(3.0)
    assert made.starts(3.0) == {}


def test_what_was_seen_goes_to_the_history_and_what_nobody_saw_does_not(node: Callable[..., Node]) -> None:
    made = node()
    for task in range(3):
        made.add(task, mib=4000, exact=f"e{task}")
    made.starts(0.0)
    made.see(1.0, t0=1500)
    made.see(40.0, t0=3000, t1=2000)
    made.end(0, 50.0)
    made.end(1, 50.0, code=1, tail=b"CUDA out of memory. Tried to allocate 2.00 GiB")
    made.end(2, 50.0)
    first, second = made.kept
    assert (first.exact, first.kind, first.peak_mib, first.peak_at_mib, first.reserved_mib) == (
        "e0", "done", 3000, ((30, 1500),), 4000,
    )  # fmt: skip
    assert (second.exact, second.is_censored, second.wanted_mib) == ("e1", True, 2048 + 2000)
    assert made.board.learner.totals.own == 1
    assert made.board.learner.totals.learned == {"e0", "e1"}


def test_an_attempt_that_was_ended_shows_what_it_needs_at_least(node: Callable[..., Node]) -> None:
    made = node()
    for task in range(2):
        made.add(task, mib=4000, exact=f"e{task}")
    made.starts(0.0)
    made.see(1.0, t0=3000)
    for task in range(2):
        made.end(task, 9.0, code=-15, is_stopped_by_us=True)
    assert [(run.exact, run.kind, run.peak_mib) for run in made.kept] == [("e0", "unfinished", 3000)]


def test_figures_while_alone_are_those_without_a_neighbour(node: Callable[..., Node]) -> None:
    made = node(workers=2, gpus=[facts(0)])
    made.add(0, mib=4000)
    made.starts(0.0)
    for second in range(21):
        gpu = gpu_load(used_mib=3000, sm_ratio=0.4 if second <= 10 else 0.9)
        made.board.sampled(
            {"GPU-0": gpu}, [TaskSample(task=0, memory_mib={"GPU-0": 3000})], float(second), float(second)
        )
        if second == 10:
            made.add(1, 10.0, mib=4000, exact="x")
            assert set(made.starts(10.0)) == {1}
    made.end(0, 20.0)
    (run,) = made.kept
    assert (run.alone_seconds, run.sm_ratio, run.energy_j) == (10.0, 0.4, None)


def test_the_sentences_at_the_end_say_what_was_measured_and_nothing_else(node: Callable[..., Node]) -> None:
    made = node()
    made.add(0, mib=4096)
    made.starts(2.0)
    for second in range(2, 13):
        made.see(float(second), t0=2048)
    made.end(0, 12.0)
    said = "\n".join(made.board.learner.totals.sentences("LLSUB.3"))
    assert "GPU memory booked 5 %, used 2 %; GPUs with work 50 % of the time; SM activity 0.50" in said
    assert "out of GPU memory: 0 own, 0 by a neighbour" in said
    assert "waited 2.0 s" in said
    assert "energy" not in said
    assert "learned the size of 1 command;" in said


def test_a_flat_task_is_told_to_the_other_nodes_once(node: Callable[..., Node]) -> None:
    made = node(flat_after_s=5.0)
    made.add(0)
    made.starts(0.0)
    for second in range(1, 20):
        made.see(float(second), t0=2048)
        made.decider.decide(float(second))
    assert [(one.ask.task, one.peak_mib) for one in made.board.sized] == [(0, 2048)]


def test_a_task_larger_than_any_gpu_is_given_up_without_an_attempt(node: Callable[..., Node]) -> None:
    made = node()
    made.add(0, mib=99_000)
    actions = made.decider.decide(0.0)
    assert [type(one) for one in actions] == [GiveUp]
    assert not made.board.waiting


def test_a_task_put_back_waits_again_and_its_booking_is_free(node: Callable[..., Node]) -> None:
    made = node(gpus=[facts(0)])
    made.add(0, mib=30_000)
    made.add(1, mib=30_000)
    assert set(made.starts(0.0)) == {0}
    made.board.put_back(0, 0.1)
    assert set(made.board.waiting) == {0, 1}
    assert len(made.starts(0.2)) == 1


def test_a_task_that_takes_what_it_is_given_is_learned_as_such_at_its_first_run(node: Callable[..., Node]) -> None:
    made = node()
    made.add(1)
    start = made.starts(0.0)[1]
    given = start.cap_mib or start.reserve_mib
    made.see(5.0, t1=round(0.9 * given))
    made.end(1, 600.0)
    (run,) = made.kept
    assert run.is_elastic
    made.add(2, 600.0)
    assert made.starts(600.0)[2].reserve_mib >= given - 1


def test_a_size_from_outside_is_that_of_a_command_of_which_nothing_is_known(node: Callable[..., Node]) -> None:
    made = node()
    key = TaskKey(exact="e", family="f")
    assert made.board.is_unknown(TaskAsk(task=1, key=key))
    assert not made.board.is_unknown(TaskAsk(task=1, key=key, gpu_mem_mib=4096))
    made.board.offered(key, "static", 4000.0)
    assert not made.board.is_unknown(TaskAsk(task=1, key=key))
    made.add(1)
    assert made.starts(0.0)[1].reserve_mib == 5000


def test_a_dry_runs_figure_is_written_beside_what_the_task_used(node: Callable[..., Node]) -> None:
    made = node()
    key = TaskKey(exact="e", family="f")
    made.board.offered(key, "probe", 4000.0)
    made.add(1)
    made.starts(0.0)
    made.see(5.0, t1=6000)
    made.end(1, 60.0)
    (run,) = made.kept
    assert (run.probe_mib, run.peak_mib) == (4000, 6000)


def test_since_when_a_gpu_is_kept_free_is_shown_until_its_task_runs(node: Callable[..., Node], tmp_path: Path) -> None:
    def shown() -> tuple[int | None, float | None]:
        (one,) = read_bookings(tmp_path, os.getuid(), ["GPU-0"])["GPU-0"]
        return one.held_for, one.held_since

    booked = booked_by(tmp_path, "4711")
    made = node(gpus=[facts(0, is_mps=True)], bookings=booked, patience_s=30.0)
    made.add(1, mib=30_000)
    made.starts(0.0)
    made.add(2, 1.0, mib=30_000)
    made.starts(40.0)
    made.board.sized_elsewhere(TaskKey(exact="e", family="f"), "A100", 1, 1.0)
    made.starts(50.0)
    assert shown() == (2, 40.0)
    made.end(1, 60.0)
    assert set(made.starts(60.0)) == {2}
    assert shown() == (None, None)


def test_how_long_tasks_waited_counts_from_the_beginning_of_the_launcher(node: Callable[..., Node]) -> None:
    made = node()
    made.add(0, mib=4000)
    made.starts(0.0)
    made.add(1, 600.0, mib=4000)
    made.starts(600.0)
    assert any("a task waited 5 min for its start" in one for one in made.board.learner.totals.sentences("LLSUB.1"))


def asks(task: int, mib: int) -> TaskAsk:
    return TaskAsk(task=task, gpu_mem_mib=mib, key=TaskKey(exact="e", family="f"))


def test_of_a_shared_list_a_node_takes_what_its_gpus_can_start(tmp_path: Path) -> None:
    """Two tasks of 18 GiB fit on each of two GPUs, although there are places for eight tasks."""
    node = Node(tmp_path)
    taken = []
    for number in range(8):
        if node.board.takes(asks(number, 18_000), 0.0):
            taken.append(number)
            node.add(number, mib=18_000)
            node.starts(0.0)
    assert taken == [0, 1, 2, 3]
    assert set(node.board.running) == {0, 1, 2, 3}
    node.end(1, 10.0)
    assert node.board.takes(asks(4, 18_000), 10.0)


def test_a_task_that_all_nodes_left_in_the_list_waits_at_one_of_them(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for number in range(2):
        node.add(number, mib=30_000)
    node.starts(0.0)
    assert not node.board.takes(asks(2, 30_000), 1.0)
    assert not node.board.takes(asks(2, 30_000), 1.0 + LEFT_S - 0.1)
    assert not node.board.takes(asks(3, 30_000), 1.0 + LEFT_S)  # another node has taken task 2
    assert node.board.takes(asks(3, 30_000), 1.0 + 2 * LEFT_S)


def test_tasks_of_a_shared_list_wait_at_a_node_up_to_the_number_of_its_gpus(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for number in range(4):
        node.add(number, mib=30_000)
    node.starts(0.0)
    assert len(node.board.waiting) == 2
    assert not node.board.takes(asks(4, 30_000), 0.0)
    assert not node.board.takes(asks(4, 30_000), 2 * LEFT_S)
    assert node.board.takes(asks(5, 5_000), 2 * LEFT_S)  # it has room beside the others


def test_a_node_without_tasks_takes_one_that_it_cannot_start(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for uuid in ("GPU-0", "GPU-1"):
        node.board.sample_gpu(uuid, 0.0, used_mib=39_000)
    assert node.board.takes(asks(0, 5_000), 0.0)
    assert node.starts(0.0) == {}


def test_a_node_without_a_gpu_in_service_takes_and_gives_up_no_task_of_a_shared_list(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add(0, mib=5_000)
    for uuid in ("GPU-0", "GPU-1"):
        node.board.out_of_service(uuid, "its MPS daemon is gone", 0.0)
    assert node.board.decide(0.0)[1].actions == ()
    node.board.withdraw(0)
    assert not node.board.takes(asks(1, 5_000), 0.0)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (TaskAsk(task=0, gpus=2), "wants 2 GPUs; this node has 1 GPU"),
        (TaskAsk(task=0, gpu_mem_mib=70_000), "wants 68.4 GiB; the largest GPU of this node has 40.0 GiB"),
    ],
    ids=["two GPUs", "the larger GPU"],
)
def test_a_task_for_which_too_few_gpus_are_left_in_service_is_given_up(tmp_path: Path, ask: TaskAsk, why: str) -> None:
    """It would wait as long as the run lasts."""
    node = Node(tmp_path, gpus=[facts(0, 81_920), facts(1)])
    node.board.add(ask, 0.0)
    node.board.out_of_service("GPU-0", "its MPS daemon is gone", 0.0)
    (end,) = node.board.decide(0.0)[1].actions
    assert end.why == why


def test_after_dead_siblings_sizes_that_the_history_knows_are_tried(tmp_path: Path) -> None:
    """Batches 8 and 16 are known; 128 to 130 die with a whole GPU; 16 and 32 are tried, 60 is not."""
    node = Node(tmp_path, workers=1, gpus=[facts(0, is_mps=True)])

    def add(task: int, batch: int) -> None:
        numbers = (("--batch", float(batch)),)
        key = TaskKey(exact=f"batch {batch}", family="train", numbers=numbers, series="train")
        node.board.add(TaskAsk(task=task, key=key), 0.0)

    for number, batch in enumerate([8, 16]):
        add(number, batch)
        node.starts(number * 100.0)
        node.see(number * 100.0 + 50.0, **{f"t{number}": batch * 700})
        node.end(number, number * 100.0 + 99.0)
    for number, batch in enumerate([128, 129, 130], 2):
        add(number, batch)
        while number in node.starts(1000.0):
            after = node.end(number, 1000.0, code=1, tail=b"CUDA out of memory")
        assert not after.is_retried
    for number, batch in enumerate([16, 128, 60, 32], 5):
        add(number, batch)
    acted: list[Any] = []
    while actions := node.decider.decide(2000.0):
        acted += actions
        for one in actions:
            if isinstance(one, Start):
                node.end(one.task, 2000.0)
    assert {one.task for one in acted if isinstance(one, Start)} == {5, 8}
    assert {one.task: one.outcome for one in acted if isinstance(one, GiveUp)} == {6: "given up", 7: "given up"}
    assert is_replayable(node.entries())
