"""Runs outside Slurm whose tasks have static partitions of their GPU: the launcher's own daemons, simulated."""

from __future__ import annotations

import re
import subprocess

import pytest
from msgspec.structs import replace
from packed_machine import HOME, QUICK, TASK, Machine, Packed

from slurm_share.core.records import ShareRequest
from slurm_share.packing import TaskSpec

STATIC = ShareRequest(3, sm="static")
SHOW = 'echo "partition ${CUDA_MPS_SM_PARTITION-none} sms ${SLURM_SHARE_SMS-none} mps $SLURM_SHARE_MPS"; exec '
MACHINE = (2, 40960, True)


def driver(machine: Machine, release: int, cc: str = "9.0") -> None:
    words = [HOME / "simgpu-init", "2", "--memory-mib", "40960", "--driver", str(release), "--cc", cc, "--replace"]
    subprocess.run(words, env=machine.environ, check=True, stdout=subprocess.DEVNULL)


def task(memory: str, seconds: float = 1.0, *more: str) -> str:
    return " ".join([SHOW, TASK, "--memory", memory, "--seconds", str(seconds), *more])


def shown(run: Packed, number: int) -> tuple[str, str, str]:
    """Return the partition, its SM and SLURM_SHARE_MPS of a task's last attempt."""
    found = re.findall(r"partition (\S+) sms (\S+) mps (\S+)", run.log(number))
    return found[-1]


def test_tasks_of_a_packed_run_have_one_partition_each_and_no_more_run_than_there_are(machine: Machine) -> None:
    driver(machine, 610)
    specs = [TaskSpec(gpu_mem_mib=2048)] * 10
    run = machine.run([task("1G", 1.5)] * 10, specs=specs, at_once=6, share=STATIC)
    said = run.go_well()
    assert "static: 3 tasks on GPU 0,1 with 40 SM each; 12 of 132 SM are in nobody's partition" in said
    assert run.outcomes() == {number: ["done"] for number in range(10)}
    for number in range(10):
        partition, sms, _ = shown(run, number)
        assert partition.startswith("GPU-"), run.log(number)
        assert sms == "40"
        assert "static partition of 40 SMs" in run.log(number)
    ended = run.ended()
    for one in ended:
        beside = [
            other
            for other in ended
            # On a loaded machine the launcher notes the end of a task a moment after it has begun the next one.
            if other.gpu == one.gpu and other.started <= one.started < other.started + other.seconds - 0.5
        ]
        assert len(beside) <= 3
        assert len({shown(run, other.task)[0] for other in beside}) == len(beside)


def test_a_task_with_whole_gpus_has_all_of_them_without_mps(machine: Machine) -> None:
    driver(machine, 610)
    specs = [TaskSpec(gpus=2), TaskSpec(gpu_mem_mib=2048)]
    run = machine.run([task("1G", 1)] * 2, specs=specs, at_once=4, share=ShareRequest(2, sm="static"))
    run.go_well()
    assert shown(run, 0) == ("none", "none", "off")
    assert shown(run, 1)[1:] == ("56", "on")


def test_a_task_that_needs_a_gpu_alone_after_it_ran_out_of_memory_is_in_no_partition(machine: Machine) -> None:
    driver(machine, 610)
    settings = replace(QUICK, guard="hard")
    specs = [TaskSpec(gpu_mem_mib=30000)]
    run = machine.run([task("39G", 1)], specs=specs, settings=settings, at_once=4, share=ShareRequest(2, sm="static"))
    run.go_well()
    assert run.outcomes()[0][-1] == "done"
    assert shown(run, 0) == ("none", "none", "off")


@pytest.mark.parametrize(("release", "others"), [(610, "done"), (595, "disturbed")])
def test_a_fault_ends_only_its_task_from_driver_610_on(machine: Machine, release: int, others: str) -> None:
    driver(machine, release)
    lines = [task("1G", 30, "--fault", "2"), task("1G", 6), task("1G", 6)]
    specs = [TaskSpec(gpu_mem_mib=2048)] * 3
    machine.environ["CUDA_VISIBLE_DEVICES"] = "0"
    run = machine.run(lines, specs=specs, at_once=3, share=STATIC)
    code, said = run.go()
    assert code == 1, said
    first = {number: outcomes[0] for number, outcomes in run.outcomes().items()}
    assert first[1] == first[2] == others
    assert ("a fault of a task ends only that task" in said) is (release == 610)


@pytest.mark.parametrize(
    ("release", "cc", "share", "why"),
    [
        (580, "9.0", STATIC, "sm=static needs driver 590 or newer, and this node has 580"),
        (595, "7.0", STATIC, "needs compute capability 8.0 (Ampere) or newer, and GPU 0"),
        (595, "9.0", ShareRequest(16, sm="static"), "it can have 15 at most (--share-gpu=15 or less); ask for sm=even"),
    ],
)
def test_where_there_are_no_partitions_nothing_runs(
    machine: Machine, release: int, cc: str, share: ShareRequest, why: str
) -> None:
    driver(machine, release, cc)
    run = machine.run([task("1G")] * 32, at_once=2 * share.per_gpu, share=share, pack=None)
    code, said = run.go()
    assert code != 0
    assert why in said
    assert "Traceback" not in said


def test_each_process_of_a_plain_run_has_its_partition(machine: Machine) -> None:
    driver(machine, 595)
    run = machine.run([task("1G", 1)] * 6, at_once=6, share=STATIC, pack=None)
    said = run.go_well()
    assert len({shown(run, number)[0] for number in range(6)}) == 6
    assert "ends only" not in said
