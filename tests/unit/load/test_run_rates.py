"""The task rates that launchers write, from their files to the snapshot."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_share.load.collectors import NodeReader, RunRates, read_run_rates
from slurm_share.load.rules.rates import MAD_OF_NORMAL, of_runs, total_per_s, with_progress
from slurm_share.load.sampler import NodeSampler
from slurm_share.load.snapshot import JobLoad, Snapshot, parse_snapshot, render
from slurm_share.node.gpus.load import NvmlSession
from slurm_share.node.progress_figures import RunProgress, TaskProgress
from slurm_share.packing.speed_records import LevelRun, NodeRates, Rate, TaskRate
from slurm_share.testing import FakeBinding, FakeGpu

NOW = 1e9
ME = os.getuid()


def rates(*tasks: TaskRate, **other: object) -> NodeRates:
    fields: dict[str, object] = {"job": "4711", "run": "sweep", "unix_s": NOW, "source": "log", "tasks": tasks}
    return NodeRates(**{**fields, **other})  # type: ignore[arg-type]


def rate(per_s: float, error: float = 0.5, windows: int = 4) -> Rate:
    return Rate(per_s=per_s, error_per_s=error, windows=windows, source="log")


def read(*found: NodeRates) -> RunRates:
    return read_run_rates(lambda tmp, uids: {7: found}, Path("/"), frozenset({7}), NOW)


def sampled(pids: list[int], found: dict[int, tuple[NodeRates, ...]]) -> Snapshot:
    driver = FakeBinding(FakeGpu("GPU-a", compute=dict.fromkeys(pids, 50)))
    kernel = NodeReader("n1", clock=lambda: 1000.0, wall_clock=lambda: NOW, rates=lambda tmp, uids: found)
    return NodeSampler("n1", kernel=kernel, driver=NvmlSession(driver, lambda: 1000.0)).sample()


@pytest.fixture
def leader() -> Iterator[tuple[int, int, int]]:
    """A task in a session of its own, a child of it, and one that has made yet another session."""
    script = (
        "import subprocess, sys, time\n"
        "wait = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "child = subprocess.Popen(wait)\n"
        "other = subprocess.Popen(wait, start_new_session=True)\n"
        "print(child.pid, other.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    task = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True)
    child, other = map(int, task.stdout.readline().split())
    yield task.pid, child, other
    for pid in (child, other, task.pid):
        os.kill(pid, 9)
    task.wait()
    task.stdout.close()


def test_a_process_has_the_rate_of_its_task(leader: tuple[int, int, int]) -> None:
    task = TaskRate(task=12, pid=leader[0], family="f", rate=rate(51.0), speed_ratio=0.8, units=900.0)
    seen = sampled([*leader, os.getpid()], {ME: (rates(task),)})
    by_pid = {one.pid: one.progress for one in seen.processes}
    assert len(by_pid) == 4
    for pid in leader:
        progress = by_pid[pid]
        assert (progress.task, progress.run, progress.rate_per_s, progress.rate_source) == (12, "sweep", 51.0, "log")
        assert (progress.speed_ratio, progress.units, progress.is_paused) == (0.8, 900.0, False)
    assert by_pid[os.getpid()] is None
    assert parse_snapshot(render(seen), "a test") == seen


def test_nobody_tells_of_another_users_processes(leader: tuple[int, int, int]) -> None:
    task = TaskRate(task=1, pid=leader[0], rate=rate(51.0))
    seen = sampled([leader[0]], {ME + 1: (rates(task),)})
    assert seen.processes[0].progress is None


def test_a_launcher_that_hangs_says_nothing() -> None:
    """Its file is older than a minute; one from the future is no better, nor a time that is no number."""
    for unix_s in (NOW - 61, NOW + 61, math.nan):
        assert read(rates(unix_s=unix_s)).runs == ()
    assert len(read(rates()).runs) == 1


def test_what_no_figure_can_be_is_left_out() -> None:
    strange = (math.inf, -1.0, math.nan, 1e300)
    tasks = [
        TaskRate(task=at, pid=10 + at, family="f" * 999, rate=rate(value, value, -3), speed_ratio=value)
        for at, value in enumerate(strange)
    ]
    tasks.append(TaskRate(task=-1, pid=99))
    levels = tuple(LevelRun(level, "mps", 1.0, 0.0, 3) for level in (-1, 0, 4))
    wrong = rates(*tasks, job="x" * 500, finished_per_h=math.inf, levels=levels)
    (run,) = read(wrong).runs
    assert (run.job, run.finished_per_h, [one.level for one in run.levels]) == (None, None, [4])
    found = [(one.rate_per_s, one.rate_source, one.speed_ratio, one.rate_windows) for one in run.tasks]
    assert found == [(None, "", None, 0)] * 4
    assert max(len(one.family) for one in run.tasks) == 64


def test_a_requeued_job_has_the_rate_of_its_present_start() -> None:
    (run,) = read(rates(TaskRate(task=0, pid=10, rate=rate(51.0)), job="46.1")).runs
    (job,) = with_progress([JobLoad(job=46, uid=7, user="u")], [run])
    assert job.progress is not None
    assert job.progress.rate_per_s == 51.0


def test_long_names_that_differ_at_their_end_stay_apart() -> None:
    tasks = [TaskRate(task=at, pid=10 + at, family=f"/{'a' * 90}/{name}") for at, name in enumerate(("x", "y", "x"))]
    (run,) = read(rates(*tasks)).runs
    first, second, third = (each.family for each in run.tasks)
    assert first == third != second
    assert len(first) == 64


def test_without_progress_trials_count_tasks_that_are_done() -> None:
    tried = rates(source=None, levels=(LevelRun(4, "mps", 0.01, 0.0, 3),))
    (run,) = read(tried).runs
    found = of_runs([run])
    assert (found.levels_source, [each.level for each in found.levels]) == ("finished", [4])
    assert of_runs([run, run]).levels == ()


def run_of(*tasks: TaskProgress, uid: int = 7, job: int | None = 5, **other: object) -> RunProgress:
    return RunProgress(uid=uid, job=job, tasks=tasks, **other)  # type: ignore[arg-type]


def one(task: int, per_s: float | None = 10.0, family: str = "f", source: str = "log", **other: object) -> TaskProgress:
    fields = {"rate_error_per_s": 0.5, "rate_windows": 4, **other}
    return TaskProgress(task=task, family=family, rate_per_s=per_s, rate_source=source, **fields)  # type: ignore[arg-type]


def test_rates_are_added_where_all_tasks_count_the_same() -> None:
    assert total_per_s([one(1), one(2, 5.0)]) == 15.0
    assert total_per_s([one(1), one(2, 5.0, family="other")]) is None
    assert total_per_s([one(1), one(2, 5.0, source="progress")]) is None
    assert total_per_s([one(1, family=""), one(2, family="")]) is None
    assert total_per_s([one(1), one(2, None)]) is None
    assert total_per_s([one(1, family="")]) == 10.0
    assert total_per_s([]) is None
    assert total_per_s([one(1), one(2, is_paused=True)]) == 10.0


def test_a_job_has_what_its_tasks_do_together() -> None:
    """Its own user's launchers only; the spread is that of the windows, from each task's error of the mean."""
    jobs = (JobLoad(job=5, uid=7, user="u"), JobLoad(job=6, uid=7, user="u"), JobLoad(job=5, uid=8, user="v"))
    found = with_progress(jobs, [run_of(one(1, speed_ratio=0.5), one(2, rate_windows=3), finished_per_h=6.0)])
    first = found[0].progress
    assert (first.tasks, first.rated, first.rate_per_s, first.windows, first.source) == (2, 2, 20.0, 3, "log")
    assert (first.speed_ratio, first.finished_per_h) == (0.5, 6.0)
    assert first.spread_per_s == pytest.approx(MAD_OF_NORMAL * math.sqrt(0.25 * 4 + 0.25 * 3))
    assert (found[1].progress, found[2].progress) == (None, None)
    assert with_progress(jobs, []) == jobs
    mixed = of_runs([run_of(one(1)), run_of(one(2, family="other"))])
    assert (mixed.rate_per_s, mixed.spread_per_s, mixed.rated, mixed.family) == (None, None, 2, "")
