"""Ends of tasks and failed GPUs, in plain and in packed runs: the launcher outside Slurm on simulated GPUs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from launches import wait_for
from msgspec.structs import replace
from packed_machine import QUICK, Machine, Packed

from slurm_share.packing import PackRequest, TaskSpec
from slurm_share.triples.rules.outcomes import OUTCOMES

TAILS = tomllib.loads((Path(__file__).parents[4] / "tests/data/packing/log_tails.toml").read_text())["tail"]
NEEDS_MORE = {"room", "cap", "host", "stopped"}
"""Tails that need more than a log and an exit code."""
SETTINGS = replace(QUICK, retries=1, keep_going=True)
MODES = pytest.mark.parametrize("pack", [None, PackRequest(settings=SETTINGS)], ids=["plain", "packed"])


def after(run: Any, first: Any) -> set[int]:
    """Return the GPUs of the attempts that started after the end of an attempt."""
    return {one.gpu for one in run.ended() if one.started > first.started + first.seconds + 0.01}


def go_and_lose_all_gpus(machine: Machine, run: Packed, down: Path) -> tuple[int, str]:
    """Start a run, lose both GPUs while its first task runs, then make `down`; return exit code and what was said."""
    process = run.start()
    wait_for(lambda: len(run.logs()) == 1)
    for gpu in ("gpu0", "gpu1"):
        with (machine.state / gpu).open("a") as file:
            file.write("lost=1\n")
    down.touch()
    return run.end(process)


@MODES
def test_an_end_has_the_same_outcome_in_plain_and_packed_runs(machine: Machine, pack: PackRequest | None) -> None:
    tails = [
        tail
        for tail in TAILS
        if not NEEDS_MORE & set(tail) and tail.get("started", True) and tail["kind"] != "device"
    ]  # fmt: skip
    lines = []
    for number, tail in enumerate(tails):
        file = machine.home / f"tail{number}"
        file.write_text(tail["text"] + tail.get("repeat", "") * tail.get("times", 0))
        end = f"kill -{tail['signal']} $$" if "signal" in tail else f"exit {tail['code']}"
        lines += [f"cat {file}; {end}", "true"]  # `true`: many instant failures in a row would be slowed down
    run = machine.run(lines, pack=pack, settings=SETTINGS)
    run.go()
    found = {tails[task // 2]["name"]: tried[0] for task, tried in run.outcomes().items() if task % 2 == 0}
    assert found == {tail["name"]: OUTCOMES[tail["kind"]] for tail in tails}


@MODES
def test_no_task_starts_on_a_gpu_after_a_log_says_that_it_failed(machine: Machine, pack: PackRequest | None) -> None:
    fails = "[ $LLSUB_ATTEMPT = 1 ] && echo CUDA error: uncorrectable ECC error encountered && exit 1; sleep 0.3"
    run = machine.run([fails, *["sleep 0.3"] * 15], pack=pack, settings=SETTINGS, at_once=4)
    said = run.go_well()
    first, second = run.attempts()[0]
    assert (first.outcome, second.outcome) == ("disturbed", "done"), said
    assert after(run, first) == {1 - first.gpu}, said
    assert f"no further task starts on GPU {first.gpu} of " in said


@MODES
def test_tasks_of_a_lost_gpu_are_not_failed_and_the_rest_runs_elsewhere(
    machine: Machine, pack: PackRequest | None
) -> None:
    text = (machine.state / "gpu0").read_text()
    uuid = next(line.partition("=")[2] for line in text.splitlines() if line.startswith("uuid="))
    down = machine.home / "down"
    ends = f"[ -e {down} ] && case $CUDA_VISIBLE_DEVICES in *{uuid}*) exit 1;; esac"
    specs = [] if pack is None else [TaskSpec(gpu_mem_mib=4096)] * 12
    short = f"for i in $(seq 15); do sleep 0.1; {ends}; done; true"
    run = machine.run([short] * 12, pack=pack, settings=SETTINGS, specs=specs)
    process = run.start()
    wait_for(lambda: len(run.logs()) >= 8)
    with (machine.state / "gpu0").open("a") as file:
        file.write("lost=1\n")
    down.touch()
    code, said = run.end(process)
    assert code == 0, said
    outcomes = run.outcomes()
    assert all(tried in (["done"], ["disturbed", "done"]) for tried in outcomes.values()), said
    lost = [one for one in run.ended() if one.outcome == "disturbed"]
    assert {one.gpu for one in lost} == {0}
    assert after(run, min(lost, key=lambda one: one.started + one.seconds)) == {1}
    assert "no further task starts on GPU 0 of " in said


@MODES
def test_a_run_ends_when_all_its_gpus_are_lost_also_one_without_a_task(
    machine: Machine, pack: PackRequest | None
) -> None:
    down = machine.home / "down"
    holds = f"until [ -e {down} ]; do sleep 0.05; done; exit 1"
    run = machine.run([holds, *["true"] * 3], pack=pack, settings=SETTINGS, at_once=1)
    code, said = go_and_lose_all_gpus(machine, run, down)
    assert (code, run.outcomes()) == (1, {0: ["disturbed"]}), said
    assert "no further task starts on GPU 0 of " in said


def test_a_gpu_that_is_lost_before_the_sampler_has_opened_the_driver_costs_no_attempt(machine: Machine) -> None:
    down = machine.home / "down"
    machine.environ["OPENS_DRIVER_AFTER"] = str(down)
    run = machine.run([f"until [ -e {down} ]; do sleep 0.05; done; exit 1"], pack=None, settings=SETTINGS, at_once=1)
    code, said = go_and_lose_all_gpus(machine, run, down)
    assert (code, run.outcomes()) == (1, {0: ["disturbed"]}), said


@MODES
def test_a_program_that_only_prints_that_its_gpu_is_lost_costs_no_gpu(
    machine: Machine, pack: PackRequest | None
) -> None:
    """Its second attempt says the same of another GPU, so none of its attempts is believed from then on."""
    run = machine.run(
        ["echo GPU is lost; exit 1", *["sleep 1.2"] * 9], pack=pack, settings=replace(SETTINGS, retries=2), at_once=4
    )
    code, said = run.go()
    assert code == 1
    outcomes = run.outcomes()
    assert (outcomes[0][0], len(outcomes[0]) > 2, set(outcomes[0][1:])) == ("disturbed", True, {"failed"})
    assert all(outcomes[number] == ["done"] for number in range(1, 10)), said
    again = run.attempts()[0][1].started
    assert {one.gpu for one in run.ended() if one.started > again} == {0, 1}, said
