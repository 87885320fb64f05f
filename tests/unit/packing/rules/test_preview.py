from __future__ import annotations

import pytest

from slurm_share.packing.history_records import TaskRun
from slurm_share.packing.records import GpuFacts, PackSettings, TaskAsk, TaskKey
from slurm_share.packing.rules import explain
from slurm_share.packing.rules.estimate.estimator import Estimator
from slurm_share.packing.rules.explain import SizeGroup, preview_run
from slurm_share.packing.rules.speeds import Speeds
from slurm_share.packing.speed_records import Load

GPUS = tuple(
    GpuFacts(uuid=f"GPU-{index}", index=index, model="A100", total_mib=40_960, reserve_mib=1_000, is_mps=True)
    for index in range(4)
)
UNKNOWN = "first of a kind: half of a GPU is booked until its memory is flat"


def ask(task: int, mib: int | None = None, gpus: int = 1, kind: str = "") -> TaskAsk:
    key = TaskKey(exact=kind, family=f"family of {kind}") if kind else None
    return TaskAsk(task=task, gpus=gpus, gpu_mem_mib=mib, key=key)


def test_groups_of_unknown_size_come_last_and_tasks_of_several_gpus_are_named() -> None:
    asks = [*(ask(task, kind=str(task)) for task in range(3)), ask(3, 2048), ask(4, 6144, gpus=2)]
    found = preview_run(asks, GPUS, 8, PackSettings(), Estimator())
    assert found.groups == (SizeGroup(2, 2048, 6144, "--gpu-mem"), SizeGroup(3, None, None, UNKNOWN))
    assert found.whole == ((4, 2),)


def test_first_placements_are_those_of_the_policy_on_idle_gpus() -> None:
    asks = [ask(number, 30_000) for number in range(6)]
    found = preview_run(asks, GPUS, 8, PackSettings(), Estimator())
    assert found.placements == ((0, (0,)), (1, (1,)), (2, (2,)), (3, (3,)))
    small = [ask(number, 10_000) for number in range(20)]
    found = preview_run(small, GPUS[:1], 8, PackSettings(), Estimator())
    assert found.placements == ((0, (0, 1, 2)),)


def test_no_more_start_than_there_are_seats() -> None:
    found = preview_run([ask(number, 1_000) for number in range(9)], GPUS, 2, PackSettings(), Estimator())
    assert sum(len(tasks) for _, tasks in found.placements) == 2


def test_a_task_larger_than_every_gpu_is_given_up_with_a_reason() -> None:
    found = preview_run([ask(0, 90_000), ask(1, 1_000)], GPUS, 8, PackSettings(), Estimator())
    assert [task for task, _ in found.given_up] == [0]
    assert found.placements[0] == (0, (1,))


def test_policies_without_booking_book_nothing_for_an_unknown_task() -> None:
    found = preview_run([ask(0)], (), 8, PackSettings(policy="lug"), Estimator())
    assert found.groups == (SizeGroup(1, None, None, "first of a kind"),)
    booked = preview_run([ask(0)], (), 8, PackSettings(policy="lug", uses_booking=True), Estimator())
    assert booked.groups == (SizeGroup(1, None, None, UNKNOWN),)


@pytest.mark.parametrize("kinds", [20, 60])
def test_many_sources_are_put_together(kinds: int) -> None:
    runs = [
        TaskRun(when=1.0, exact=str(kind), family="f", gpu_model="A100", kind="done", seconds=60, peak_mib=1000 + kind)
        for kind in range(kinds)
        for _ in range(kind + 1)
    ]
    asks = [ask(number, kind=str(number)) for number in range(kinds)] + [ask(kinds)]
    found = preview_run(asks, (), 8, PackSettings(), Estimator(runs))
    assert sum(group.tasks for group in found.groups) == kinds + 1
    assert len(found.groups) <= explain.ROWS
    assert found.groups[-1].least_mib is None


@pytest.mark.parametrize(
    ("loads", "text"),
    [
        ([None], "unknown"),
        ([Load(sm_ratio=0.41)] * 3, "0.41 measured"),
        ([Load(sm_ratio=0.3), Load(sm_ratio=0.52)], "0.30-0.52 measured"),
        ([Load(sm_ratio=0.38, is_family=True), None], "0.38 family, some unknown"),
        ([Load(sm_ratio=0.3, is_family=True), Load(sm_ratio=0.5)], "0.30-0.50 measured, some family"),
    ],
)
def test_the_load_of_a_group_is_shown_with_what_it_rests_on(loads: list[Load | None], text: str) -> None:
    assert explain.sm_text(loads) == text


def test_loads_are_shown_with_gain_only() -> None:
    runs = [
        TaskRun(
            when=1.0, exact="a", family="f", gpu_model="A100", kind="done", seconds=100.0, alone_seconds=100.0,
            peak_mib=1000, sm_ratio=1.0, dram_ratio=0.9, util_ratio=1.0,
        )
    ]  # fmt: skip
    for policy, shown in (("gain", "1.00 measured"), ("booked", "")):
        settings = PackSettings(policy=policy)
        found = preview_run([ask(0, 1_000, kind="a")], GPUS[:1], 8, settings, Estimator(runs), Speeds(runs))
        assert found.groups[0].sm == shown
