"""Tasks that run longer than --task-time, in a launcher outside Slurm."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from launches import PATIENCE_S, QUIET, Launched, alive
from msgspec.structs import replace

from slurm_share.packing import TaskSpec
from slurm_share.triples.launcher import time_limits
from slurm_share.triples.records import Ended, Run, Triple

SHORT = """
import sys
from slurm_share.triples.rules import time_limit
time_limit.GRACE_S = time_limit.SAVE_S = 0.5
from slurm_share.cli.main import main
sys.exit(main(["launch", *sys.argv[1:]]))
"""
"""A launcher that gives tasks half a second to end."""


def launch(
    folder: Path, *commands: str, timeout_s: float = 0.2, **more: object
) -> tuple[int, str, dict[int, list[Ended]]]:
    """Run commands, one after the other; return the exit code, the output, and the results of each task."""
    run = Run(
        name="tasks", command=(), cwd=str(folder), triple=Triple(1, 1), processes=1, tasks=len(commands),
        task_kind="command", distribution="dynamic", spec=TaskSpec(timeout_s=timeout_s), **more,
    )  # fmt: skip
    launched = Launched(folder / "LLSUB.1", run, commands)
    process = launched.launch([sys.executable, "-c", SHORT, str(launched.folder)], QUIET)
    text, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, text, launched.attempts()


def test_a_task_over_its_time_is_ended_with_its_processes_and_tried_again(tmp_path: Path) -> None:
    code, text, ends = launch(tmp_path, "sleep 98761 & wait", "true", retries=1)
    assert code == 1
    assert [one.outcome for one in ends[0]] == ["time limit", "time limit"]
    assert ends[0][0].why == "ran longer than 0.2s (ended by SIGTERM)"
    assert [one.outcome for one in ends[1]] == ["done"]
    assert "over the time limit, told to end: 0" in text
    assert "over the time limit: 0\n" in text
    assert not alive("98761")


def test_what_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    code, text, ends = launch(tmp_path, "trap '' TERM; sleep 98762; sleep 98762; sleep 98762")
    assert code == 1
    assert ends[0][0].outcome == "time limit"
    assert ends[0][0].signal == signal.SIGKILL
    assert "over the time limit and did not end, killed: 0" in text
    assert not alive("98762")


def test_a_task_that_ends_with_0_when_its_time_is_over_is_not_done(tmp_path: Path) -> None:
    ready = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    code, _, ends = launch(tmp_path, ready, timeout_s=2.0)
    assert code == 1
    assert [(one.outcome, one.code) for one in ends[0]] == [("time limit", 0)]


def test_a_task_that_saves_on_the_checkpoint_signal_is_saved(tmp_path: Path) -> None:
    saves = "trap 'exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    code, _, ends = launch(tmp_path, saves, "sleep 98763", timeout_s=2.0, checkpoint_signal=signal.SIGUSR1, retries=1)
    assert code == 1
    assert [one.outcome for one in ends[0]] == ["saved"]
    assert [one.outcome for one in ends[1]] == ["time limit", "time limit"]


def test_many_failures_stop_the_run(tmp_path: Path) -> None:
    code, text, ends = launch(tmp_path, "sleep 98764", "true", max_failures=1)
    assert code == 1
    assert list(ends) == [0]
    assert "no further task starts" in text


def test_the_limit_with_which_a_run_is_resumed_is_for_all_its_tasks(tmp_path: Path) -> None:
    code, _, ends = launch(tmp_path, "sleep 0.5", resumed_time="none")
    assert (code, [one.outcome for one in ends[0]]) == (0, ["done"])
    run = Run(name="t", command=(), cwd="/", triple=None, processes=1, tasks=2, resumed_time="1m")
    specs = [TaskSpec(timeout_s=5), TaskSpec()]
    assert [time_limits.limit_s(run, specs, task) for task in range(2)] == [60, 60]
    as_submitted = replace(run, resumed_time="")
    assert [time_limits.limit_s(as_submitted, specs, task) for task in range(2)] == [5, None]
    assert time_limits.has_limits(as_submitted, specs)
    assert not time_limits.has_limits(as_submitted, specs[1:])
