"""Rates of tasks through the real launcher, with tasks on simulated GPUs and with plain programs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from launches import PATIENCE_S, alive, wait_for
from msgspec import UNSET
from msgspec.structs import replace
from packed_machine import TASK, Machine, Packed

from slurm_share.packing import ProgressReader
from slurm_share.triples.rates_file import read_rates

MACHINE = (2, 40960, False)
WINDOW_S = 1.0


def make(machine: Machine, lines: list[str], *, is_packed: bool = True, **more: Any) -> Packed:
    made = machine.run(lines, rate_window_s=WINDOW_S, **more)
    if not is_packed:
        made.write(replace(made.run, pack=None))
    return made


def my_rates(machine: Machine) -> tuple[Any, ...]:
    return read_rates(machine.tmp, frozenset({os.getuid()})).get(os.getuid(), ())


def work(seconds: float, *more: str) -> str:
    """A simulated task that does so much work, and says so ten times a second."""
    return " ".join([TASK, "--memory", "1G", "--work", str(seconds), "--load", "30", "--progress", "0.1", *more])


@pytest.mark.parametrize("is_packed", [True, False])
def test_task_that_writes_its_progress_has_units_and_a_rate(machine: Machine, is_packed: bool) -> None:
    run = make(machine, [work(4), work(4)], at_once=2, is_packed=is_packed)
    said = run.go_well()
    for one in run.ended():
        assert one.rate_source == "progress"
        assert one.units == pytest.approx(4, abs=0.3)
        assert one.rate_per_s == pytest.approx(1, rel=0.15)
        assert one.speed_ratio is UNSET
    assert "units/s, by LLSUB_PROGRESS: tasks " in said
    assert "RATE" in said
    shown = ProgressReader(run.folder / run.run.log_folder).read()
    assert [one.ended for one in shown] == [True]


def test_rates_of_running_tasks_are_in_a_file_until_the_run_ends(machine: Machine) -> None:
    run = make(machine, [work(9)])
    process = run.start()

    def measured() -> Any:
        return next((one for one in my_rates(machine) if any(task.rate for task in one.tasks)), None)

    found = wait_for(measured)
    assert found.source == "progress"
    [task] = found.tasks
    assert task.task == 0
    assert task.rate.per_s == pytest.approx(1, rel=0.2)
    assert task.family  # by which llload adds up what counts the same
    assert len(task.gpus) == 1
    assert Path(f"/proc/{task.pid}").exists()
    [shown] = ProgressReader(run.folder / run.run.log_folder).read()
    assert shown.work is not None
    assert (shown.work.tasks, shown.work.source) == (1, "progress")
    assert shown.began < shown.at
    assert process.wait(60) == 0
    assert [str(path) for path in machine.tmp.glob("slurm-share-*/live/*.*")] == []


def test_number_in_the_log_counts_where_there_is_no_progress_file(machine: Machine) -> None:
    lines = [f"unset LLSUB_PROGRESS; exec {work(4)}"]
    run = make(machine, lines, progress=r"^work ([\d.]+) of")
    run.go_well()
    [one] = run.ended()
    assert one.rate_source == "log"
    assert one.units == pytest.approx(4, abs=0.3)
    assert one.rate_per_s == pytest.approx(1, rel=0.15)


def test_next_task_of_a_worker_does_not_inherit_the_number(machine: Machine) -> None:
    lines = ["echo 500 >$LLSUB_PROGRESS", "sleep 0.1", "echo 7 >$LLSUB_PROGRESS; sleep 0.1"]
    run = make(machine, lines, at_once=1)
    run.go_well()
    assert {one.task: one.units for one in run.ended()} == {0: 500, 1: UNSET, 2: 7}


def test_expression_that_takes_for_ever_is_left_aside_with_a_sentence(machine: Machine) -> None:
    lines = ["echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!; sleep 4", "echo a 5; sleep 1", "true"]
    run = make(machine, lines, progress="^(?:a+)+ ([0-9]+)$")
    process = run.start()
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        for pid in alive(str(machine.home), "environ"):  # without the limit the launcher never ends
            os.kill(pid, signal.SIGKILL)
    assert process.returncode == 0, said
    assert said.count("takes more than 0.2 s") == 1


def test_hostile_progress_files_count_nothing(machine: Machine) -> None:
    lines = [
        "mkfifo $LLSUB_PROGRESS; sleep 1.5",
        "ln -s /etc/hostname $LLSUB_PROGRESS; sleep 1.5",
        "mkdir $LLSUB_PROGRESS; sleep 1.5",
        "head -c 100000 /dev/urandom >$LLSUB_PROGRESS; sleep 1.5",
        "echo nan >$LLSUB_PROGRESS; sleep 1.5",
        "echo -3 >$LLSUB_PROGRESS; sleep 1.5",
    ]
    run = make(machine, lines, at_once=2)
    run.go_well()
    assert {(one.units, one.rate_per_s, one.rate_source, one.speed_ratio) for one in run.ended()} == {(UNSET,) * 4}
    assert b"rate_per_s" not in (run.node / "results.jsonl").read_bytes()


def test_folder_that_cannot_be_used_is_said(machine: Machine) -> None:
    folder = machine.tmp / f"slurm-share-{os.getuid()}"
    folder.mkdir(mode=0o700)
    (folder / "live").touch()
    run = make(machine, ['echo "[$LLSUB_PROGRESS]"; echo 5 >"${LLSUB_PROGRESS:-/dev/null}"'], is_packed=False)
    said = run.go_well()
    assert "have no LLSUB_PROGRESS" in said
    assert run.log(0) == "[]\n"


def test_folder_of_a_killed_loop_is_removed_by_its_guard(machine: Machine) -> None:
    run = make(machine, [work(60)])
    process = run.start()
    [node] = wait_for(lambda: my_rates(machine))
    stat = Path(f"/proc/{node.tasks[0].pid}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    assert process.wait(60) == 1
    assert my_rates(machine) == ()
    assert [str(path) for path in machine.tmp.glob("slurm-share-*/live/*.*")] == []
