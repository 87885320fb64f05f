"""Harmful pairs, found by the progress of real tasks on a simulated GPU: banned, paused, and known to later runs.

Two kinds of tasks take four times as long beside each other, for a reason that no load tells (--clash). SIMULATED: the
slowdown is that of the simulated GPU, no program's.
"""

from __future__ import annotations

from launches import alive
from msgspec.structs import replace
from packed_machine import TASK, Machine, Packed

from slurm_share.packing import PackSettings, TaskSpec
from slurm_share.triples.records import Ended

MACHINE = (1, 40960, True)
SETTINGS = PackSettings(policy="gain", flat_after_s=2.0, settle_s=0.5, settle_max_s=3.0)
WORK_S = 6
RUN = f"{TASK} --load 10 --util 30 --progress 0.05 --work {WORK_S}"
KINDS = {"a": f"{RUN} --memory 1G --clash cache:4", "b": f"{RUN} --memory 2G --clash cache:4"}
MEMORY_MIB = {"a": 2048, "b": 3072}


def run_of(machine: Machine, kinds: str, undo: str = "ban", at_once: int = 4) -> tuple[Packed, str]:
    """A run of tasks of these kinds that has ended well, and what it said."""
    specs = [TaskSpec(gpu_mem_mib=MEMORY_MIB[kind], name=kind) for kind in kinds]
    settings = replace(SETTINGS, undo=undo)
    run = machine.run(
        [KINDS[kind] for kind in kinds], specs=specs, settings=settings, at_once=at_once, rate_window_s=1.0
    )
    said = run.go_well()
    assert all(tried == ["done"] for tried in run.outcomes().values()), said
    assert not alive(f"LLSUB_DIR={run.folder}", "environ")
    return run, said


def together(run: Packed) -> set[tuple[int, int]]:
    """The pairs of tasks that ran at the same time for more than half a second."""

    def overlap_s(one: Ended, other: Ended) -> float:
        return min(one.started + one.seconds, other.started + other.seconds) - max(one.started, other.started)

    ended = sorted(run.ended(), key=lambda one: one.task)
    return {(a.task, b.task) for a in ended for b in ended if a.task < b.task and overlap_s(a, b) > 0.5}


def test_a_harmful_pair_is_banned_in_this_run_and_in_the_next(machine: Machine) -> None:
    alone, _ = run_of(machine, "ab", at_once=1)
    assert together(alone) == set()
    run, said = run_of(machine, "abab", at_once=2)
    assert "GPU 0: 0 and 1 together do 0." in said, said
    assert "of one at a time; no such pair again" in said
    kinds = [{"abab"[one] for one in pair} for pair in together(run)]
    assert kinds.count({"a", "b"}) == 1
    later, said = run_of(machine, "ab")
    assert together(later) == set()
    assert "together do" not in said


def test_one_of_a_harmful_pair_is_paused_and_goes_on_and_both_are_done_sooner(machine: Machine) -> None:
    run_of(machine, "ab", at_once=1)
    run, said = run_of(machine, "ab", undo="pause")
    assert "GPU 0: task 1 is paused, since 0 and 1 together do 0." in said
    assert "GPU 0: task 1 goes on; no other task runs there" in said
    first, second = sorted(run.ended(), key=lambda one: one.task)
    assert second.started + second.seconds > first.started + first.seconds
    assert second.started + second.seconds - first.started < 4 * WORK_S
