"""Tasks that ask for more cores or host memory than their process has, in a launcher outside Slurm."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from launches import PATIENCE_S, QUIET, Launched

from slurm_share.node.memory import HostMemory
from slurm_share.packing import TaskSpec
from slurm_share.triples.records import Ended, Run, Triple

LAUNCH = [sys.executable, "-m", "slurm_share.cli.main", "launch"]
CPUS = sorted(os.sched_getaffinity(0))

needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="NOT TESTED: this machine has one CPU")


def launch(folder: Path, tasks: list[tuple[str, TaskSpec]]) -> tuple[str, Launched]:
    """Run commands in a process for each CPU; return the output and the run."""
    run = Run(
        name="tasks", command=(), cwd=str(folder), triple=Triple(1, len(CPUS)), processes=len(CPUS), tasks=len(tasks),
        task_kind="command", distribution="dynamic",
    )  # fmt: skip
    launched = Launched(folder / "LLSUB.1", run, [line for line, _ in tasks], [spec for _, spec in tasks])
    text, _ = launched.launch([*LAUNCH, str(launched.folder)], QUIET).communicate(timeout=PATIENCE_S)
    return text, launched


def overlap(one: Ended, other: Ended) -> bool:
    """Return whether two attempts ran at the same time, for longer than the rounding of their times."""
    return min(one.started + one.seconds, other.started + other.seconds) - max(one.started, other.started) > 0.05


@needs_two_cpus
def test_a_task_of_all_cores_runs_alone_on_all_of_them_and_small_ones_go_on(tmp_path: Path) -> None:
    small = ("sleep 0.2; taskset -cp $$ | grep -o '[^ ]*$'", TaskSpec())
    every = TaskSpec(cpus=len(CPUS))
    big = ("echo $OMP_NUM_THREADS $SLURM_SHARE_CORES; grep Cpus_allowed_list /proc/self/status; sleep 0.2", every)
    text, launched = launch(tmp_path, [small, big, small, small, big, small])
    assert "6 of 6 tasks done" in text
    found = launched.results()
    for task in (1, 4):
        assert not any(overlap(found[task], other) for other in found.values() if other.task != task)
        threads, cores, *_, allowed = launched.log(task).split()
        assert (threads, cores) == (str(len(CPUS)), allowed)
        assert found[task].cpus == allowed


@needs_two_cpus
def test_what_can_never_fit_is_given_up_with_a_sentence(tmp_path: Path) -> None:
    limit = HostMemory().limit()
    assert limit is not None
    more = TaskSpec(cpus=len(CPUS) + 1)
    text, launched = launch(tmp_path, [("true", more), ("true", TaskSpec(mem_mib=limit.mib + 1)), ("true", TaskSpec())])
    assert launched.result_outcomes() == {0: "not started", 1: "not started", 2: "done"}
    assert f"it needs {len(CPUS) + 1} CPUs, and the job has {len(CPUS)} on" in text
    assert f"it needs {limit.mib + 1} MiB of memory, and the job has {limit.mib} MiB on" in text


@needs_two_cpus
def test_tasks_book_host_memory_and_wait_for_each_other(tmp_path: Path) -> None:
    limit = HostMemory().limit()
    assert limit is not None
    much = ("sleep 0.3", TaskSpec(mem_mib=int(limit.mib * 0.6)))
    text, launched = launch(tmp_path, [much, much, much])
    assert "3 of 3 tasks done" in text
    found = launched.results()
    assert not any(overlap(found[one], found[other]) for one, other in ((0, 1), (1, 2), (0, 2)))
