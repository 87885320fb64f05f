"""The environment variables of a task in a plan's slot."""

from __future__ import annotations

from collections.abc import Iterable

from ...core import names
from ..records import Assignment, Plan, Slot

NO_MPS = f"{names.STATE_ROOT}/{names.NO_MPS_FOLDER}"
"""The pipe directory of a task without MPS: there is no daemon in it, and only root can put one there. A node without
our Prolog lacks the folder, which is as well: CUDA then runs without MPS, too."""


WITHOUT_MPS = (Assignment(names.ENV_MPS, names.MPS_OFF), Assignment(names.ENV_MPS_PIPE, NO_MPS))
"""The variables that keep a task away from any MPS daemon."""


def slot_environment(plan: Plan, slot: Slot, of_backend: Iterable[Assignment]) -> tuple[Assignment, ...]:
    """Return the variables of the task in one of the plan's slots, from Slurm's hooks or from the launcher.

    of_backend: those that the slot's backend makes of it (`registry.slot_environment` asks it). The plugin or the
    launcher adds those that depend on the step (rank, cores, threads).
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
    found += of_backend
    if slot.gpu.simulated:
        found.append(Assignment(names.ENV_SIMULATED, "1"))
    found += _frameworks(slot)
    found += slot.variables
    return tuple(found)


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
