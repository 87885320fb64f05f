"""What a task finds."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_share.actuators import environment
from slurm_share.decide import admit
from slurm_share.records import Gpu, JobContext, MpsOffer, Refusal, ShareRequest
from slurm_share.settings import Settings

GPU = Gpu("GPU-0", 3, 0, "H100", 81920)
JOB = JobContext(7, 2001, 2001, "n1", ("0",), ShareRequest(4))


def variables(gpu=GPU, share=JOB.share, pipes=None):
    """Slot 0's variables, by name."""
    plan = admit.admit(replace(JOB, share=share), (gpu,), ((0,),), MpsOffer(48), Settings(simulated_gpus=True))
    plan = admit.settle_mps(plan, pipes or {}, {})
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
    assert not [name for name in found if name.startswith("CUDA_MPS")]
