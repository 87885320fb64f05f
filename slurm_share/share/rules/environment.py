"""Compute the environment variables of the task in a plan's slot."""

from __future__ import annotations

from collections.abc import Iterable

from ...core import names
from ...core.records import SharingMethod
from ..records import Assignment, Plan, Slot

NO_MPS = f"{names.STATE_ROOT}/{names.NO_MPS_FOLDER}"
"""The pipe directory of a task without MPS: no daemon is in it, and only root can start one there. If the folder is
missing, CUDA runs without MPS, too."""
WITHOUT_MPS = (Assignment(names.ENV_MPS, names.MPS_OFF), Assignment(names.ENV_MPS_PIPE, NO_MPS))
"""The variables that keep a task away from any MPS daemon."""


def slot_environment(plan: Plan, slot: Slot, of_backend: Iterable[Assignment]) -> tuple[Assignment, ...]:
    """Return the variables of the task in one of the plan's slots.

    of_backend: the variables of the slot's backend; `registry.slot_environment` adds them. The plugin or the launcher
    adds the variables that depend on the step (rank, cores, threads).
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
        # A task that Slurm binds to one GPU recognizes it by the device file that it can open.
        found.append(Assignment(names.ENV_GPU_MINOR, str(slot.gpu.minor)))
    found += of_backend
    found.append(Assignment(names.ENV_SHARING, sharing_method(slot, plan.share.per_gpu)))
    found.append(Assignment(names.ENV_MEM_LIMIT, _memory_limit(slot)))
    if slot.gpu.simulated:
        found.append(Assignment(names.ENV_SIMULATED, "1"))
    found += _frameworks(slot)
    found += slot.variables
    return tuple(found)


def sharing_method(slot: Slot, per_gpu: int) -> SharingMethod:
    """Return how the task in a slot shares its GPU with the other slots there."""
    if slot.mps_directory is not None:
        return "mps"
    if per_gpu > 1:
        return "time-slicing"
    return "mig" if slot.gpu.uuid.startswith("MIG-") else "exclusive"


def _memory_limit(slot: Slot) -> str:
    """Return who enforces the memory cap of the task in the slot."""
    if slot.enforced_cap_mib is None:
        return names.MEM_LIMIT_NONE
    return names.MEM_LIMIT_DRIVER if slot.is_cap_of_driver else names.MEM_LIMIT_MPS


def _frameworks(slot: Slot) -> list[Assignment]:
    """Return the variables that tell frameworks a memory cap; empty if the GPU's size is not known.

    At start JAX allocates three quarters of the GPU's memory and TensorFlow all of it. The variables limit them, unless
    the user set them (docs.jax.dev "GPU memory allocation"; tensorflow.org "Use a GPU: limiting GPU memory growth").
    JAX's fraction is of the total that the driver reports: the whole GPU's under MPS, and the cap where the driver
    enforces that. There the default, 0.75, leaves a quarter of the cap for the CUDA context and libraries.
    """
    if slot.memory_ratio is None:
        return []
    fraction = Assignment(names.ENV_JAX_FRACTION, slot.memory_ratio, unless_set=True)
    return [
        *(() if slot.is_cap_of_driver else (fraction,)),
        Assignment(names.ENV_TF_GROWTH, "true", unless_set=True),
    ]
