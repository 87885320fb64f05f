"""Rates of running tasks: sources, neighbours and pauses, with a fake clock."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET

from slurm_share.core.live import LiveFolder
from slurm_share.packing import Attempt, TaskAsk
from slurm_share.packing.speed_records import Rate
from slurm_share.triples.launcher import rates as module
from slurm_share.triples.launcher.rates import Rates
from slurm_share.triples.rates_file import read_rates
from slurm_share.triples.records import ProcessPlace, Run, Triple, Worker

GPUS = ("GPU-a", "GPU-a", "GPU-b")


class Strategy:
    """Three workers, two of them on one GPU."""

    levels = ()

    def __init__(self) -> None:
        self.paused: frozenset[int] = frozenset()
        self.rates: dict[int, Rate | None] = {}

    def rated(self, task: Attempt, rate: Rate | None) -> None:
        self.rates[task.task] = rate

    def kind_of_work(self, task: Attempt) -> str | None:
        return "a"


class Desk:
    """A launcher's rates; seconds pass when the test says so."""

    def __init__(self, tmp: Path, monkeypatch: pytest.MonkeyPatch, progress: str = "") -> None:
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: 1e9 + self.now, time_ns=time.time_ns)
        monkeypatch.setattr(module, "time", clock)
        self.tmp = tmp
        self.said: list[str] = []
        run = Run(
            name="t", command=("/t",), cwd="/", triple=Triple(1, 3), processes=3, tasks=3, progress=progress,
            rate_window_s=10.0,
        )  # fmt: skip
        workers = [Worker(number, ProcessPlace(number, None, (0,), 1)) for number in range(3)]
        node: Any = SimpleNamespace(live=LiveFolder(tmp, "12"), job="12", name="n1", workers=workers)
        self.rates = Rates(run, node, self.said.append)
        self.strategy = Strategy()
        self.running: dict[int, Attempt] = {}
        self.units = [0.0, 0.0, 0.0]

    def start(self, worker: int) -> Attempt:
        task = Attempt(
            ask=TaskAsk(task=worker), worker=worker, rank=worker, log=str(self.tmp / f"log.{worker}"),
            started=1e9 + self.now, gpus=(GPUS[worker],),
        )  # fmt: skip
        task.clock, task.pid = self.now, worker + 100
        Path(task.log).write_bytes(b"")
        self.rates.before(task)
        self.running[task.pid] = task
        self.rates.began(task.gpus)
        return task

    def end(self, task: Attempt) -> None:
        del self.running[task.pid]
        self.rates.ended(task)

    def say(self, worker: int, text: str) -> None:
        with open(self.tmp / f"log.{worker}", "a") as log:
            log.write(text)
        os.utime(self.tmp / f"log.{worker}", (1e9 + self.now, 1e9 + self.now))

    def work(self, seconds: int, *per_s: float) -> None:
        """Let the workers do so much a second, and look at them each second."""
        for _ in range(seconds):
            self.now += 1
            for worker, rise in enumerate(per_s):
                if rise:
                    self.units[worker] += rise
                    file = Path(self.rates.folder) / str(worker)
                    file.write_text(f"{self.units[worker]}\n")
                    os.utime(file, (1e9 + self.now, 1e9 + self.now))
            self.look()

    def look(self, done: int = 0) -> None:
        self.rates.update(self.running, self.strategy, done)  # type: ignore[arg-type]

    def rate(self, task: int) -> float | None:
        found = self.strategy.rates.get(task)
        return None if found is None else found.per_s


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(tmp_path, monkeypatch)
    yield made
    made.rates.close()


@pytest.mark.parametrize(("source", "speed_ratio"), [(None, UNSET), ("progress", 0.5), ("log", UNSET)])
def test_rate_is_told_when_a_window_closes_and_the_speed_is_that_of_all_its_time(
    desk: Desk, source: Any, speed_ratio: Any
) -> None:
    """`source`: of the rate alone. Rates that count different things give no speed."""
    task = desk.start(0)
    desk.work(11, 5)
    assert desk.rate(0) == pytest.approx(5)
    task.rate_alone = source and Rate(per_s=10, error_per_s=0, windows=2, source=source)
    desk.end(task)
    assert (task.units, task.rate_per_s, task.rate_source, task.speed_ratio) == (55, 5, "progress", speed_ratio)


def test_start_and_end_of_a_neighbour_restart_the_windows_of_that_gpu_alone(desk: Desk) -> None:
    for worker in (0, 2):
        desk.start(worker)
    desk.work(11, 5, 0, 7)
    assert (desk.rate(0), desk.rate(2)) == (5, 7)
    neighbour = desk.start(1)
    desk.work(1, 5, 0, 7)
    assert (desk.rate(0), desk.rate(2)) == (None, 7)
    desk.work(11, 2, 3, 7)
    assert (desk.rate(0), desk.rate(1), desk.rate(2)) == (2, 3, 7)
    desk.end(neighbour)
    desk.work(1, 2, 0, 7)
    assert (desk.rate(0), desk.rate(2)) == (None, 7)
    desk.work(11, 5, 0, 7)
    assert desk.rate(0) == 5


def test_neighbour_that_is_over_between_two_looks_restarts_the_windows_too(desk: Desk) -> None:
    desk.start(0)
    desk.work(11, 5)
    desk.end(desk.start(1))
    desk.work(1, 5)
    assert desk.rate(0) is None


def test_pause_restarts_the_windows_and_counts_in_none(desk: Desk) -> None:
    first = desk.start(0)
    desk.start(1)
    desk.work(12, 5, 3)
    assert (desk.rate(0), desk.rate(1)) == (5, 3)
    desk.strategy.paused = frozenset({0})
    desk.work(1, 0, 6)
    assert (desk.rate(0), desk.rate(1)) == (None, None)
    desk.work(30, 0, 6)
    assert (desk.rate(0), desk.rate(1)) == (None, 6)
    [node] = read_rates(desk.tmp, frozenset({os.getuid()}))[os.getuid()]
    assert [one.is_paused for one in node.tasks] == [True, False]
    desk.strategy.paused = frozenset()
    desk.work(12, 5, 3)
    assert (desk.rate(0), desk.rate(1)) == (5, 3)
    desk.end(first)
    assert first.rate_per_s == 5


def test_clock_that_is_set_back_changes_no_rate(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.start(0)
    module.time.time = lambda: 1e9 + desk.now - 3600  # type: ignore[assignment]
    desk.work(23, 5)
    assert desk.rate(0) == pytest.approx(5)


def test_better_source_takes_the_place_of_a_worse_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, monkeypatch, r"step (\d+)")
    task = desk.start(0)
    for second in range(60):
        desk.say(0, f"x\nx {second}\n")
        desk.work(1, 0)
    assert desk.strategy.rates[0] == Rate(per_s=2.0, error_per_s=0.0, windows=5, source="output")
    for second in range(12):
        desk.say(0, f"step {second * 3}\n")
        desk.work(1, 0)
    assert desk.strategy.rates[0] == Rate(per_s=3.0, error_per_s=3.0, windows=1, source="log")
    desk.work(12, 4)
    assert desk.strategy.rates[0] == Rate(per_s=4.0, error_per_s=4.0, windows=1, source="progress")
    desk.end(task)
    assert (task.units, task.rate_per_s, task.rate_source) == (48, 4, "progress")
    desk.rates.close()


@pytest.mark.parametrize(("every", "expected"), [(1, (UNSET, 2.0, "output")), (15, (UNSET, UNSET, UNSET))])
def test_even_output_alone_gives_an_ended_task_a_rate_and_no_units(
    desk: Desk, every: int, expected: tuple[object, ...]
) -> None:
    task = desk.start(0)
    for second in range(60):
        desk.say(0, "x\nx\n" if second % every == 0 else "")
        desk.work(1, 0)
    desk.end(task)
    assert (task.units, task.rate_per_s, task.rate_source) == expected


def test_output_of_a_rank_counts_from_where_its_task_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, monkeypatch, r"step (\d+)")
    task = desk.start(0)
    desk.say(0, "--- task 0\nstep 500\n")
    task.log_start = Path(task.log).stat().st_size
    desk.say(0, "step 7\nstep 8")
    desk.end(task)
    assert (task.units, task.rate_source, task.rate_per_s) == (8, "log", UNSET)
    desk.rates.close()


def test_more_output_than_is_read_at_once_is_searched_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path, monkeypatch, r"step (\d+)")
    task = desk.start(0)
    for second in range(60):
        desk.say(0, "x\n" * module.LOG_BYTES + f"step {second * 3}\n")
        desk.work(1, 0)
    assert desk.rate(0) == pytest.approx(3)
    desk.end(task)
    assert task.units == 177
    desk.rates.close()


def test_log_that_is_emptied_or_gone_is_no_error(desk: Desk) -> None:
    task = desk.start(0)
    desk.say(0, "x\n" * 10)
    desk.work(1, 0)
    os.truncate(task.log, 0)
    desk.work(1, 0)
    Path(task.log).unlink()
    desk.work(1, 0)
    desk.end(task)
    assert task.rate_source is UNSET


def test_finished_tasks_an_hour_are_of_the_last_minutes(desk: Desk) -> None:
    desk.start(0)
    assert desk.rates.finished_per_h is None
    for second in range(1, 1201):
        desk.now += 1
        desk.look(done=second // 10)
    assert desk.rates.finished_per_h == pytest.approx(360, rel=0.02)
    [node] = read_rates(desk.tmp, frozenset({os.getuid()}))[os.getuid()]
    assert node.finished_per_h == pytest.approx(360, rel=0.02)
    for _ in range(1200):
        desk.now += 1
        desk.look(done=120)
    assert desk.rates.finished_per_h is None


def test_nothing_measured_writes_no_file(desk: Desk) -> None:
    desk.start(0)
    desk.work(30, 0)
    assert read_rates(desk.tmp, frozenset({os.getuid()})) == {}


def test_all_tasks_together_do_the_sum(desk: Desk) -> None:
    for worker in range(3):
        desk.start(worker)
    assert desk.rates.work_rate(desk.strategy) is None  # type: ignore[arg-type]
    desk.work(12, 5, 5, 10)
    work = desk.rates.work_rate(desk.strategy)  # type: ignore[arg-type]
    assert work is not None
    assert (work.per_s, work.tasks, work.source) == (20, 3, "progress")
