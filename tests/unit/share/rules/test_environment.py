"""What a task finds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.core.records import ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.node.records import Gpu
from slurm_share.share import plan as share_plan
from slurm_share.share.records import Assignment, MpsOffer, Refusal
from slurm_share.share.rules import allocation, environment, granted
from slurm_share.slurm.records import JobContext

GPU = Gpu("GPU-0", 3, 0, "H100", 81920)
JOB = JobContext(7, 2001, 2001, "n1", ("0",), ShareRequest(4))


def variables(gpu=GPU, share=JOB.share, pipes=None):
    """Slot 0's variables, by name."""
    plan = allocation.admit(replace(JOB, share=share), (gpu,), ((0,),), MpsOffer(48), Settings(simulated_gpus=True))
    plan = allocation.settle_mps(plan, pipes or {}, {})
    return {a.name: a for a in environment.plan_file(plan).slots[0].environment}


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
    """And a real one says nothing."""
    assert "SLURM_SHARE_SIMULATED" not in variables()
    assert variables(replace(GPU, simulated=True))["SLURM_SHARE_SIMULATED"].value == "1"


def test_a_refusal_is_a_plan_that_refuses():
    """The sentence travels the same way."""
    assert environment.plan_file(Refusal(JOB, "no")).refused == "no"


def test_under_mps_a_task_finds_the_pipe_and_its_caps():
    """One GPU is visible, so the cap is for ordinal 0."""
    found = variables(share=ShareRequest(4, sm="even"), pipes={"GPU-0": "/run/p0"})
    assert found["SLURM_SHARE_MPS"].value == "on"
    assert found["CUDA_MPS_PIPE_DIRECTORY"].value == "/run/p0"
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].value == "0=19942M"
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"].value == "25"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in variables(pipes={"GPU-0": "/run/p0"})


def test_without_mps_a_task_finds_none_of_it():
    """A cap that nobody holds would be a promise."""
    found = variables()
    assert found["SLURM_SHARE_MPS"].value == "off"
    assert {name: one.value for name, one in found.items() if name.startswith("CUDA_MPS")} == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/slurm-share/no-mps"
    }
    assert environment.mps_pipe_of(found.values()) is None
    with_mps = variables(pipes={"GPU-0": "/run/p0"})
    assert environment.mps_pipe_of(with_mps.values()) == "/run/p0"


def test_a_gpu_that_no_driver_lists_is_named_in_slurms_word():
    """Nothing else of it is known."""
    job = JobContext(7, 2001, 2001, "n1", (), None)
    plan = allocation.allocate(job, granted.visible_gpus("3", None), MpsOffer(48), Settings(), processes=1)
    assert {one.name: one.value for one in environment.slot_environment(plan, plan.slots[0])} == {
        "CUDA_VISIBLE_DEVICES": "3",
        "SLURM_SHARE_SLOT": "0",
        "SLURM_SHARE_SLOTS": "1",
        "SLURM_SHARE_PER_GPU": "1",
        "SLURM_SHARE_MPS": "off",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/slurm-share/no-mps",
    }


# ---- Another cap ----


def slot_of(share=JOB.share, pipe="/run/p0"):
    """Slot 0's variables as a plan's reader has them."""
    plan = allocation.admit(replace(JOB, share=share), (GPU,), ((0,),), MpsOffer(48), Settings())
    plan = allocation.settle_mps(plan, {"GPU-0": pipe} if pipe else {}, {})
    text = share_plan.render(environment.plan_file(plan))
    return share_plan.parse(text).slots[0].environment


def test_a_slot_with_a_larger_cap():
    """What MPS holds, and what JAX is told; all else stays."""
    before = slot_of()
    after = environment.with_memory_cap(before, GPU, 40000)
    assert environment.memory_cap_of(before) == 19942
    assert environment.memory_cap_of(after) == 40000
    changed = set(after) - set(before)
    assert changed == {
        Assignment("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=40000M"),
        Assignment("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.488", unless_set=True),
    }
    assert {one.name for one in after} == {one.name for one in before}
    assert environment.with_memory_cap(after, GPU, 19942) == environment.with_memory_cap(before, GPU, 19942)


def test_a_slot_without_a_cap():
    """As of a task that has the GPU to itself."""
    after = environment.with_memory_cap(slot_of(), GPU, None)
    assert environment.memory_cap_of(after) is None
    gone = {one.name for one in slot_of()} - {one.name for one in after}
    assert gone == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "XLA_PYTHON_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH"}
    assert environment.memory_cap_of(environment.with_memory_cap(after, GPU, 100)) == 100


def test_a_cap_that_nobody_holds_is_not_promised():
    """Without MPS only the frameworks are told."""
    after = environment.with_memory_cap(slot_of(pipe=None), GPU, 40000)
    assert environment.memory_cap_of(after) is None
    assert Assignment("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.488", unless_set=True) in after


def test_of_a_gpu_of_unknown_size_frameworks_are_told_nothing():
    """A fraction of what."""
    after = environment.with_memory_cap(slot_of(), None, 40000)
    assert environment.memory_cap_of(after) == 40000
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in {one.name for one in after}


@pytest.mark.parametrize("value", ["", "0=8G", "1=8M", "0=M", "0=-1M", "0=1M,1=2M", "0=9999999999M"])
def test_a_cap_in_other_words_is_not_ours(value):
    """A plan file is its user's to read, and only root's to write; still no traceback."""
    assert environment.memory_cap_of((Assignment("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", value),)) is None


# ---- Fewer tasks than the plan was made for ----


@pytest.mark.parametrize("has_mps", [True, False])
@pytest.mark.parametrize("asked", [ShareRequest(4), ShareRequest(4, sm="even"), ShareRequest(4, mem_mib=900, sm=10)])
@pytest.mark.parametrize("per_gpu", [1, 2, 3])
def test_fewer_tasks_have_what_a_plan_for_them_would_give(per_gpu, asked, has_mps):
    """Caps and numbers; nothing of the larger N is left."""

    def made(share):
        plan = allocation.admit(replace(JOB, share=share), (GPU,), ((0,),), MpsOffer(48), Settings())
        plan = allocation.settle_mps(plan, {"GPU-0": "/run/p0"} if has_mps else {}, {})
        return environment.plan_file(plan).slots[0].environment

    real = replace(asked, per_gpu=per_gpu)
    found = environment.with_fewer_tasks(made(asked), GPU, real, per_gpu, Settings())
    assert sorted(found, key=lambda one: one.name) == sorted(made(real), key=lambda one: one.name)
