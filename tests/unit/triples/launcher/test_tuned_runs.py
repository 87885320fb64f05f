"""Runs of equal tasks whose number is found by trials: the launcher, with real programs on simulated GPUs."""

from __future__ import annotations

import os
import re
from typing import Any

import packed_machine
import pytest
from msgspec.structs import replace
from packed_machine import QUICK, TASK, Machine, Packed

from slurm_share.node import topology
from slurm_share.packing import PackRequest, TaskSpec
from slurm_share.packing.rules.place import decide

MACHINE = (1, 7 * 1024, True)
SIZED = TaskSpec(gpu_mem_mib=1600)
"""Four of them have memory on the GPU."""
TUNED = PackRequest(settings=QUICK, is_tuned=True, spec=SIZED)
COMPARED = PackRequest(settings=QUICK, is_compared=True, spec=SIZED)


def work(seconds: float = 1.2, memory: str = "1500M", load: int = 40) -> str:
    return f"{TASK} --work {seconds} --memory {memory} --load {load} --util 100"


def go_until(run: Packed, pattern: str) -> str:
    """Run until a line has the pattern, and tell the launcher to end; return what it said."""
    process, said = run.start(), ""
    for line in process.stdout:
        said += line
        if re.search(pattern, line):
            return said + run.stop(process)
    raise AssertionError(said)


@pytest.fixture
def _few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 6 windows instead of 30 measure a level whose tasks do not end."""
    few = "from slurm_share.packing.rules import level_runs\nlevel_runs.WINDOWS_MAX = 6\n"
    monkeypatch.setattr(packed_machine, "LAUNCH", few + packed_machine.LAUNCH)


def most_at_once(entries: list[Any]) -> int:
    return max(len(one.view.running) for one in entries)


def test_the_number_at_once_rises_to_the_bound_of_memory_and_is_remembered(machine: Machine) -> None:
    run = machine.run([work(load=20)] * 200, pack=TUNED, rate_window_s=1.0)
    said = go_until(run, "tasks? at once from now on")
    assert "4 tasks at once from now on: no more tasks have room" in said
    assert "tasks at once on" in said
    assert "(simulated GPUs):" in said
    rows = re.findall(r"^.*?(\d+) +(\d+) +[\d.]+ +[\d.]+ +([\d.]+)$", said, re.MULTILINE)
    assert [row[0] for row in rows] == ["1", "4"]
    assert re.search(
        r"4 on a node, the most that have room, do most: \d\.\d x of 1; next time \[1,4\] or \[1,auto\]", said
    )
    entries = run.decisions()
    assert most_at_once(entries) <= 4
    # A launcher that is killed has kept what it has found so far.
    kept = machine.history("search")
    assert [(one["best"], one["end"], one.get("next")) for one in kept] == [
        (1, "stopped", 4), (4, "no room", None)
    ]  # fmt: skip
    assert {one.view.settings.max_per_gpu for one in entries} == {1, 4}
    assert all(decide(one.view).actions == one.actions for one in entries if one.repeats is None)
    assert not machine.bookings()

    again = machine.run([work(load=20)] * 200, pack=TUNED, rate_window_s=1.0)
    said = go_until(again, "tasks? at once from now on")
    assert "an earlier run of this script found 4 tasks at once; this run begins with 4" in said
    # A busy machine may do less than in the first run; then the search is repeated.
    assert re.search("4 tasks at once from now on: (it does as much as it did|no more tasks have room)", said), said


def test_a_search_that_ends_for_lack_of_tasks_goes_on_in_the_next_run(machine: Machine) -> None:
    said = machine.run([work(0.8)] * 3, pack=TUNED, rate_window_s=1.0).go_well()
    assert "is best;" not in said, said
    assert "trials cost" not in said, said
    found = re.search(r"the search is not finished \(.*\); next time \[1,auto\] goes on with (\d)", said)
    assert found, said
    again = machine.run([work(0.8)] * 100, pack=TUNED, rate_window_s=1.0)
    assert f"which goes on with {found[1]} task" in go_until(again, "an earlier run of this script")


def test_ways_of_sharing_are_compared_and_the_best_goes_on(machine: Machine) -> None:
    run = machine.run(
        [f"echo $CUDA_MPS_PIPE_DIRECTORY; {work(0.8)}"] * 200, pack=COMPARED, rate_window_s=1.0, at_once=3
    )
    said = go_until(run, "from now on, .* it is fastest")
    assert "mps from now on, 3 tasks at once: it is fastest" in said
    assert "ways of sharing on" in said
    rows = re.findall(r"(exclusive|time-slicing|mps) +(\d) +[\d.]+ +([\d.]+)$", said, re.MULTILINE)
    assert [row[:2] for row in rows] == [("exclusive", "1"), ("time-slicing", "3"), ("mps", "3")]
    assert float(rows[2][2]) > 1.2
    spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for one in run.ended():
        log = run.log(one.task)
        if not log:
            continue  # it was ended with the run before it wrote anything
        has_mps = str(machine.tmp) in log.splitlines()[0]
        spans[has_mps].append((one.started, one.started + one.seconds))
    assert max(end for _, end in spans[False]) <= min(start for start, _ in spans[True])
    kept = [one for one in machine.history("search") if one["kind"] == "sharing"]
    assert [(len(one["levels"]), one["end"]) for one in kept] == [(1, "stopped"), (2, "stopped"), (3, "all tried")]

    again = machine.run(
        [f"echo $CUDA_MPS_PIPE_DIRECTORY; {work(0.8)}"] * 200, pack=COMPARED, rate_window_s=1.0, at_once=3
    )
    said = go_until(again, "from now on, ")
    assert "an earlier run of this script compared ways of sharing; this run begins with mps" in said
    # A busy machine may do less than in the first run; then the others are tried again.
    assert re.search("mps from now on, 3 tasks at once: it (does as much as it did|is fastest)", said), said


@pytest.mark.weekly
def test_one_method_that_was_measured_is_not_called_the_best(machine: Machine) -> None:
    """How many methods are measured depends on the speed of the machine."""
    run = machine.run([work(0.5)] * 40, pack=COMPARED, rate_window_s=1.0, at_once=3)
    said = run.go_well()
    measured = re.findall(r"launch: +(exclusive|time-slicing|mps) +\d +[\d.]+ +[\d.]+$", said, re.MULTILINE)
    has_ended = "from now on" in said  # on a busy machine the tasks may end before
    assert ("it is fastest" in said) == (has_ended and len(measured) == 3), said
    assert ("it is the fastest of those compared" in said) == (has_ended and len(measured) == 2), said
    assert ("mps from now on, 3 tasks at once, as without a comparison" in said) == (has_ended and len(measured) == 1)
    assert ("not compared: " in said) == (has_ended and len(measured) < 3)


@pytest.mark.parametrize("machine", [(1, 7 * 1024, False)], indirect=True)
def test_without_mps_it_is_said_and_not_tried(machine: Machine) -> None:
    run = machine.run([work(0.5)] * 100, pack=COMPARED, rate_window_s=1.0, at_once=2)
    said = go_until(run, "from now on, .* it is fastest")
    assert "MPS is not tried: there is none on the GPUs of" in said
    assert re.findall(r"launch: +(\S+) +\d +[\d.]+ +[\d.]+$", said, re.MULTILINE) == ["exclusive", "time-slicing"]


@pytest.mark.weekly
def test_a_search_that_is_told_to_end_says_so(machine: Machine) -> None:
    run = machine.run([work(1.0)] * 50, pack=TUNED, rate_window_s=1.0)
    said = go_until(run, "task 0 ")
    assert re.search("no number of tasks at once was measured: (no task was done|the run was too short)", said)
    assert "unfinished:" in said


@pytest.mark.weekly
def test_a_start_without_a_written_number_of_threads_has_the_cores_of_its_level(machine: Machine) -> None:
    run = machine.run(["echo threads $OMP_NUM_THREADS; sleep 0.1"] * 5, pack=TUNED, rate_window_s=1.0)
    run.go_well()
    cores = len(topology.read_machine(os.sched_getaffinity(0)))
    assert run.log(0) == f"threads {cores}\n"


@pytest.mark.usefixtures("_few_windows")
def test_progress_is_enough_where_tasks_are_too_long_to_finish(machine: Machine) -> None:
    line = f"{work(3000.0)} --progress 0.2"
    run = machine.run([line] * 12, pack=replace(TUNED, spec=TaskSpec(gpu_mem_mib=3000)), rate_window_s=0.5)
    said = go_until(run, "tasks? at once from now on")
    assert "2 tasks at once from now on: no more tasks have room" in said
    assert "RATE units/s" in said


@pytest.mark.usefixtures("_few_windows")
@pytest.mark.weekly
def test_tasks_that_show_nothing_and_never_end_stay_at_one_on_a_gpu(machine: Machine) -> None:
    run = machine.run([work(3000.0)] * 12, pack=TUNED, rate_window_s=0.3)
    said = go_until(run, "tasks? at once from now on")
    assert "1 task at once from now on: no task shows progress, and none was done" in said


def test_shares_are_tried_and_measured_against_the_prediction(machine: Machine) -> None:
    line = f"echo percent $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE.; {work(5.0, load=50)} --progress 0.2"
    alone = machine.run([line] * 2, at_once=1, pack=PackRequest(settings=QUICK, spec=SIZED), rate_window_s=0.5)
    alone.go_well()
    pack = PackRequest(settings=QUICK, spec=SIZED, is_sm_tried=True)
    run = machine.run([line] * 20, at_once=2, pack=pack, rate_window_s=0.5)
    go_until(run, "parts of the multiprocessors: ")
    percents = {run.log(one.task).splitlines()[0] for one in run.ended()}
    assert {"percent .", "percent 50."} <= percents, percents
    assert sum(one["rate_source"] == "stp" for one in machine.history("search")) >= 4
