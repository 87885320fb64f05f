"""Harmful pairs, found by the progress of real tasks on a simulated GPU: kept apart, paused, and known to later runs.

Two kinds of tasks take several times as long beside each other, for a reason that no load tells (--clash). SIMULATED:
the slowdown is that of the simulated GPU, no program's.
"""

from __future__ import annotations

from itertools import combinations

from launches import alive
from msgspec.structs import replace
from packed_machine import QUICK, TASK, Machine, Packed

from slurm_share.packing import TaskSpec

MACHINE = (2, 40960, True)
SETTINGS = replace(QUICK, policy="gain")
WINDOW_S = 0.5
"""Half of the launcher's tick, so that each tick closes a window also where the task's last number is a bit older."""
WORK_S = 4
RUN = f"{TASK} --load 10 --util 30 --progress 0.05 --clash cache:3"
KINDS = {
    "a": f"{RUN} --memory 1G --work {WORK_S}",
    "b": f"{RUN} --memory 2G --work {WORK_S}",
}
MEMORY_MIB = {"a": 2048, "b": 3072}


def run_of(
    machine: Machine, kinds: str, *, gpus: str = "0", at_once: int = 4, **settings: object
) -> tuple[Packed, str]:
    """Run tasks of these kinds to a good end; return the run and the launcher's output."""
    machine.environ["CUDA_VISIBLE_DEVICES"] = gpus
    specs = [TaskSpec(gpu_mem_mib=MEMORY_MIB[kind], name=kind) for kind in kinds]
    run = machine.run(
        [KINDS[kind] for kind in kinds],
        specs=specs,
        settings=replace(SETTINGS, **settings),
        at_once=at_once,
        rate_window_s=WINDOW_S,
    )
    said = run.go_well()
    assert all(tried == ["done"] for tried in run.outcomes().values()), said
    assert not alive(f"LLSUB_DIR={run.folder}", "environ")
    return run, said


def measure_alone(machine: Machine) -> None:
    """Let the history learn the rate of each kind alone, on a GPU of its own."""
    run, _ = run_of(machine, "ab", gpus="0,1", max_per_gpu=1)
    assert {one.gpu for one in run.ended()} == {0, 1}
    assert sum(one.get("rate_alone", 0) > 0 for one in machine.history("task")) == 2  # else no harm can be found


def together(run: Packed) -> list[tuple[int, int]]:
    """Return the pairs of tasks that ran on one GPU at the same time for more than half a second."""
    spans = sorted((one.task, one.started, one.started + one.seconds, one.gpu) for one in run.ended())
    return [(a[0], b[0]) for a, b in combinations(spans, 2) if a[3] == b[3] and min(a[2], b[2]) - max(a[1], b[1]) > 0.5]


def test_a_list_at_once_without_history_finds_a_harmful_pair_and_keeps_it_apart(machine: Machine) -> None:
    """One task is left alone, so the rate alone is known of the pair that starts on the other GPU."""
    run, said = run_of(machine, "aaaaaaa", gpus="0,1", at_once=5, max_per_gpu=2)
    assert "together do 0." in said, said
    assert "of one at a time; --pack places no such pair again" in said
    first = min(run.ended(), key=lambda one: one.task)
    assert all(one.started > first.started + 2 * WINDOW_S for one in run.ended() if one.gpu == first.gpu and one.task)
    assert len(together(run)) <= 2
    later, said = run_of(machine, "aa", at_once=2)
    assert together(later) == []
    assert "together do" not in said


def test_one_of_a_harmful_pair_is_paused_and_goes_on_after_the_other(machine: Machine) -> None:
    measure_alone(machine)
    run, said = run_of(machine, "ab", undo="pause")
    assert "GPU 0: task 1 is paused, since 0 and 1 together do 0." in said
    assert "GPU 0: task 1 goes on; no other task runs there" in said
    first, second = sorted(run.ended(), key=lambda one: one.task)
    assert second.started + second.seconds > first.started + first.seconds
