"""What a task finds in its environment, as the plan's slot lines say it."""

from __future__ import annotations

from .. import names
from ..records import Assignment, Plan, PlanFile, PlanSlot, Refusal, Slot


def plan_file(decision: Plan | Refusal) -> PlanFile:
    """The decision as the plugin and the launcher will read it."""
    job = decision.job
    if isinstance(decision, Refusal):
        return PlanFile(job.job_id, job.uid, job.node, refused=decision.sentence)
    return PlanFile(
        job_id=job.job_id,
        uid=job.uid,
        node=job.node,
        share=decision.share,
        gpus=len(decision.gpus),
        cores=decision.cores,
        notes=decision.notes,
        slots=tuple(PlanSlot(slot.number, slot.part, task_environment(decision, slot)) for slot in decision.slots),
    )


def task_environment(plan: Plan, slot: Slot) -> tuple[Assignment, ...]:
    """The variables of a plan's slot. What depends on the step (rank, cores, threads) the plugin adds."""
    number, slots = (slot.number, len(plan.slots)) if slot.on_gpu is None else (slot.on_gpu, plan.share.per_gpu)
    return slot_environment(slot, number, slots, plan.share.per_gpu)


def slot_environment(slot: Slot, number: int, slots: int, per_gpu: int) -> tuple[Assignment, ...]:
    """The variables of the task in `slot`, which is number `number` of `slots`, `per_gpu` of them on a GPU.

    JAX takes three quarters of the whole GPU at start and TensorFlow all of it, whoever else is there; both are told
    the task's part, unless the user told them something (docs.jax.dev "GPU memory allocation"; tensorflow.org "Use a
    GPU: limiting GPU memory growth").
    """
    found = [
        Assignment(names.ENV_VISIBLE_DEVICES, slot.gpu.uuid),
        Assignment(names.ENV_SLOT, str(number)),
        Assignment(names.ENV_SLOTS, str(slots)),
        Assignment(names.ENV_PER_GPU, str(per_gpu)),
        Assignment(names.ENV_GPU_UUID, slot.gpu.uuid),
        Assignment(names.ENV_GPU_INDEX, str(slot.gpu.index)),
    ]
    if slot.gpu.minor not in (None, slot.gpu.index):
        # A step that Slurm binds to a GPU of its own choice is told which by the device files it may open.
        found.append(Assignment(names.ENV_GPU_MINOR, str(slot.gpu.minor)))
    found += _mps_environment(slot)
    if slot.gpu.simulated:
        found.append(Assignment(names.ENV_SIMULATED, "1"))
    if slot.memory_fraction is not None:
        found.append(Assignment(names.ENV_JAX_FRACTION, slot.memory_fraction, unless_set=True))
        found.append(Assignment(names.ENV_TF_GROWTH, "true", unless_set=True))
    return tuple(found)


def _mps_environment(slot: Slot) -> list[Assignment]:
    """The task's way to its GPU's MPS daemon, and its caps. The task sees one GPU, so that is its ordinal 0: an entry
    for a GPU that a client cannot see would void the whole list of limits (NVIDIA Dynamo, "per-GPU limits with MPS").
    """
    if slot.pipe is None:
        return [Assignment(names.ENV_MPS, names.MPS_OFF)]
    found = [Assignment(names.ENV_MPS, names.MPS_ON), Assignment(names.ENV_MPS_PIPE, slot.pipe)]
    if slot.memory_cap_mib is not None:
        found.append(Assignment(names.ENV_MPS_MEMORY, f"0={slot.memory_cap_mib}M"))
    if slot.thread_percent is not None:
        found.append(Assignment(names.ENV_MPS_THREADS, f"{slot.thread_percent:g}"))
    return found
