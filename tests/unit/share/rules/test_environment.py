"""The variables of a task."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from plans import decided

from slurm_share.core.records import ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.node.records import Gpu
from slurm_share.share import plan as plan_text
from slurm_share.share.backends import registry
from slurm_share.share.records import Assignment
from slurm_share.share.rules import allocation, granted
from slurm_share.slurm.records import JobContext

GPU = Gpu("GPU-0", 3, 0, "H100", 81920)
JOB = JobContext(7, 2001, 2001, "n1", ("0",), ShareRequest(4))


def variables(gpu=GPU, share=JOB.share, directories=None):
    granted_gpus = JOB.granted if gpu.uuid.startswith("GPU-") else (gpu.uuid,)
    job = replace(JOB, share=share, granted=granted_gpus)
    enforces = share.sharing == "time-slicing"  # without a driver that enforces the cap it would be refused
    mps = {"driver": "615.71"} if enforces else None
    plan = decided(job, (gpu,), mps, settings=Settings(simulated_gpus=True), directories=directories)
    return {a.name: a for a in registry.slot_environment(plan, plan.slots[0])}


def test_a_task_sees_its_one_gpu_by_uuid():
    """An ordinal would be renumbered by MPS and by device confinement."""
    found = variables()
    assert found["CUDA_VISIBLE_DEVICES"].value == found["SLURM_SHARE_GPU_UUID"].value == "GPU-0"
    assert found["SLURM_SHARE_GPU_INDEX"].value == "3"
    assert found["SLURM_SHARE_GPU_MINOR"].value == "0"
    assert "SLURM_SHARE_GPU_MINOR" not in variables(replace(GPU, index=0))
    assert (found["SLURM_SHARE_SLOT"].value, found["SLURM_SHARE_SLOTS"].value) == ("0", "4")
    assert not found["CUDA_VISIBLE_DEVICES"].unless_set


def test_greedy_frameworks_are_told_their_part_unless_the_user_did():
    """JAX and TensorFlow take most of the whole GPU otherwise."""
    found = variables()
    assert found["XLA_PYTHON_CLIENT_MEM_FRACTION"].value == "0.243"
    assert found["XLA_PYTHON_CLIENT_MEM_FRACTION"].unless_set
    assert found["TF_FORCE_GPU_ALLOW_GROWTH"].unless_set
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in variables(share=ShareRequest(1))


def test_a_simulated_gpu_says_so_to_the_task():
    assert "SLURM_SHARE_SIMULATED" not in variables()
    assert variables(replace(GPU, simulated=True))["SLURM_SHARE_SIMULATED"].value == "1"


def test_under_mps_a_task_finds_the_directory_and_its_caps():
    """One GPU is visible, so the cap is for ordinal 0."""
    found = variables(share=ShareRequest(4, sm="even"), directories={"GPU-0": "/run/p0"})
    assert found["SLURM_SHARE_MPS"].value == "on"
    assert found["CUDA_MPS_PIPE_DIRECTORY"].value == "/run/p0"
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].value == "0=19942M"
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"].value == "25"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in variables(directories={"GPU-0": "/run/p0"})


def test_without_mps_a_task_finds_none_of_it():
    found = variables()
    assert found["SLURM_SHARE_MPS"].value == "off"
    assert {name: one.value for name, one in found.items() if name.startswith("CUDA_MPS")} == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/slurm-share/no-mps"
    }


def test_a_gpu_that_no_driver_lists_is_named_in_slurms_word():
    job = JobContext(7, 2001, 2001, "n1", (), None)
    plan = decided(job, granted.visible_gpus("3", None), processes=1)
    assert {one.name: one.value for one in registry.slot_environment(plan, plan.slots[0])} == {
        "CUDA_VISIBLE_DEVICES": "3",
        "SLURM_SHARE_SLOT": "0",
        "SLURM_SHARE_SLOTS": "1",
        "SLURM_SHARE_PER_GPU": "1",
        "SLURM_SHARE_MPS": "off",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/slurm-share/no-mps",
        "SLURM_SHARE_SHARING": "exclusive",
        "SLURM_SHARE_MEM_LIMIT": "none",
    }


@pytest.mark.parametrize(
    ("share", "gpu", "directories", "sharing", "limit"),
    [
        (ShareRequest(4), GPU, {"GPU-0": "/run/p0"}, "mps", "mps"),
        (ShareRequest(1, sharing="mps"), GPU, {"GPU-0": "/run/p0"}, "mps", "none"),
        (ShareRequest(4), GPU, None, "time-slicing", "none"),
        (ShareRequest(4, mem_mib=8192, sharing="time-slicing"), GPU, None, "time-slicing", "driver"),
        (ShareRequest(1, sharing="exclusive"), GPU, None, "exclusive", "none"),
        (ShareRequest(1), replace(GPU, uuid="MIG-1"), None, "mig", "none"),
        (ShareRequest(2), replace(GPU, uuid="MIG-1"), None, "time-slicing", "none"),
    ],
)
def test_a_task_is_told_how_it_shares_its_gpu_and_who_enforces_its_cap(share, gpu, directories, sharing, limit):
    found = variables(gpu, share, directories)
    assert (found["SLURM_SHARE_SHARING"].value, found["SLURM_SHARE_MEM_LIMIT"].value) == (sharing, limit)


def test_a_cap_that_the_driver_enforces_is_told():
    plan = decided(JOB, (GPU,))
    found = registry.slot_environment(plan, replace(plan.slots[0], is_cap_of_driver=True))
    assert {one.name: one.value for one in found}["SLURM_SHARE_MEM_LIMIT"] == "driver"


def test_variables_of_the_backend_come_last():
    plan = decided(JOB, (GPU,))
    own = Assignment("OTHER_BACKEND", "1")
    found = registry.slot_environment(plan, replace(plan.slots[0], variables=(own,)))
    assert found == (*registry.slot_environment(plan, plan.slots[0]), own)


# ---- Another cap ----


def slot_of(share=JOB.share, directory="/run/p0", gpu=GPU):
    plan = decided(replace(JOB, share=share), (gpu,), directories={"GPU-0": directory} if directory else {})
    plan = plan_text.parse(plan_text.render(plan))
    return plan, plan.slots[0]


def with_cap(plan, slot, cap_mib):
    other = allocation.with_memory_cap(slot, cap_mib)
    return other, registry.slot_environment(plan, other)


def test_a_slot_with_a_larger_cap():
    plan, slot = slot_of()
    before = registry.slot_environment(plan, slot)
    larger, after = with_cap(plan, slot, 40000)
    assert (slot.enforced_cap_mib, larger.enforced_cap_mib) == (19942, 40000)
    changed = set(after) - set(before)
    assert changed == {
        Assignment("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=40000M"),
        Assignment("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.488", unless_set=True),
    }
    assert [one.name for one in after] == [one.name for one in before]
    assert with_cap(plan, larger, 19942) == (slot, before)


def test_a_slot_without_a_cap():
    plan, slot = slot_of()
    free, after = with_cap(plan, slot, None)
    assert free.enforced_cap_mib is None
    gone = {one.name for one in registry.slot_environment(plan, slot)} - {one.name for one in after}
    assert gone == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "XLA_PYTHON_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH"}
    assert with_cap(plan, free, 100)[0].enforced_cap_mib == 100


def test_a_cap_that_nobody_holds_is_not_promised():
    plan, slot = slot_of(directory=None)
    other, after = with_cap(plan, slot, 40000)
    assert other.enforced_cap_mib is None
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in {one.name for one in after}
    assert Assignment("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.488", unless_set=True) in after


def test_of_a_gpu_of_unknown_size_frameworks_are_told_nothing():
    plan, slot = slot_of(gpu=replace(GPU, memory_total_mib=None))
    other, after = with_cap(plan, slot, 40000)
    assert other.enforced_cap_mib == 40000
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in {one.name for one in after}


# ---- Fewer tasks than the plan was made for ----


@pytest.mark.parametrize("has_mps", [True, False])
@pytest.mark.parametrize("asked", [ShareRequest(4), ShareRequest(4, sm="even"), ShareRequest(4, mem_mib=900, sm=10)])
@pytest.mark.parametrize("per_gpu", [1, 2, 3])
def test_fewer_tasks_have_what_a_plan_for_them_would_give(per_gpu, asked, has_mps):
    def made(share):
        return decided(replace(JOB, share=share), (GPU,), directories={"GPU-0": "/run/p0"} if has_mps else {})

    real = replace(asked, per_gpu=per_gpu)
    fewer, wanted = allocation.with_fewer_tasks(made(asked), real, per_gpu, Settings()), made(real)
    for slot, other in zip(fewer.slots, wanted.slots, strict=True):
        assert registry.slot_environment(fewer, slot) == registry.slot_environment(wanted, other)
