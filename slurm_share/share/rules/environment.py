"""The environment variables of a task in a plan's slot."""

from __future__ import annotations

from ...core import names
from ..records import Assignment, Plan, Slot

NO_MPS = f"{names.STATE_ROOT}/{names.NO_MPS_FOLDER}"
"""The pipe directory of a task without MPS: there is no daemon in it, and only root can put one there. A node without
our Prolog lacks the folder, which is as well: CUDA then runs without MPS, too."""


def slot_environment(plan: Plan, slot: Slot) -> tuple[Assignment, ...]:
    """Return the variables of the task in one of the plan's slots, from Slurm's hooks or from the launcher.

    The plugin or the launcher adds those that depend on the step (rank, cores, threads).
    """
    number, slots = (slot.number, len(plan.slots)) if slot.on_gpu is None else (slot.on_gpu, plan.share.per_gpu)
    found = [
        Assignment(names.ENV_VISIBLE_DEVICES, slot.gpu.uuid),
        Assignment(names.ENV_SLOT, str(number)),
        Assignment(names.ENV_SLOTS, str(slots)),
        Assignment(names.ENV_PER_GPU, str(plan.share.per_gpu)),
    ]
    if slot.gpu.is_listed:
        found.append(Assignment(names.ENV_GPU_UUID, slot.gpu.uuid))
        found.append(Assignment(names.ENV_GPU_INDEX, str(slot.gpu.index)))
    if slot.gpu.minor not in (None, slot.gpu.index):
        # A step that Slurm binds to a GPU of its own choice is told which by the device files it may open.
        found.append(Assignment(names.ENV_GPU_MINOR, str(slot.gpu.minor)))
    found += _mps(slot)
    if slot.gpu.simulated:
        found.append(Assignment(names.ENV_SIMULATED, "1"))
    found += _mps_memory(slot)
    found += _frameworks(slot)
    found += slot.variables
    return tuple(found)


def _mps(slot: Slot) -> list[Assignment]:
    """Return where a client of MPS finds its daemon, and its part of the multiprocessors; nothing leads to a daemon of
    the user's own."""
    if slot.mps_directory is None:
        return [Assignment(names.ENV_MPS, names.MPS_OFF), Assignment(names.ENV_MPS_PIPE, NO_MPS)]
    found = [Assignment(names.ENV_MPS, names.MPS_ON), Assignment(names.ENV_MPS_PIPE, slot.mps_directory)]
    if slot.sm_percent is not None:
        found.append(Assignment(names.ENV_MPS_THREADS, f"{slot.sm_percent:g}"))
    return found


def _mps_memory(slot: Slot) -> list[Assignment]:
    """Return the variable of a memory cap that MPS enforces; none without one.

    The task sees one GPU, so that is its ordinal 0: an entry for a GPU that a client cannot see would void the whole
    list of limits (NVIDIA Dynamo, "per-GPU limits with MPS").
    """
    cap_mib = slot.enforced_cap_mib
    return [] if cap_mib is None else [Assignment(names.ENV_MPS_MEMORY, f"0={cap_mib}M")]


def _frameworks(slot: Slot) -> list[Assignment]:
    """Return what frameworks are told of a memory cap; nothing if the GPU's size is not known.

    JAX takes three quarters of the whole GPU at start and TensorFlow all of it, whoever else is there; both are told
    the task's part, unless the user told them something (docs.jax.dev "GPU memory allocation"; tensorflow.org "Use a
    GPU: limiting GPU memory growth").
    """
    if slot.memory_ratio is None:
        return []
    return [
        Assignment(names.ENV_JAX_FRACTION, slot.memory_ratio, unless_set=True),
        Assignment(names.ENV_TF_GROWTH, "true", unless_set=True),
    ]
