"""What a task finds."""

from __future__ import annotations

from dataclasses import replace

from slurm_share.actuators import environment
from slurm_share.decide import admit
from slurm_share.records import Gpu, JobContext, Refusal, ShareRequest
from slurm_share.settings import Settings

GPU = Gpu("GPU-0", 3, 0, "H100", 81920)
JOB = JobContext(7, 2001, 2001, "n1", ("0",), ShareRequest(4))


def variables(gpu=GPU, share=JOB.share):
    """Slot 0's variables, by name."""
    plan = admit.admit(replace(JOB, share=share), (gpu,), ((0,),), Settings(simulated_gpus=True))
    return {a.name: a for a in environment.plan_file(plan).slots[0].environment}


def test_a_task_sees_its_one_gpu_by_uuid():
    """An ordinal would be renumbered by MPS and by device confinement."""
    found = variables()
    assert found["CUDA_VISIBLE_DEVICES"].value == found["SLURM_SHARE_GPU_UUID"].value == "GPU-0"
    assert found["SLURM_SHARE_GPU_INDEX"].value == "3"
    assert (found["SLURM_SHARE_SLOT"].value, found["SLURM_SHARE_SLOTS"].value) == ("0", "4")
    assert not found["CUDA_VISIBLE_DEVICES"].unless_set


def test_greedy_frameworks_are_told_their_part_unless_the_user_did():
    """JAX and TensorFlow take most of the whole GPU otherwise."""
    found = variables()
    assert found["XLA_PYTHON_CLIENT_MEM_FRACTION"].value == "0.244"
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
