"""The environment variables of a task in a plan's slot, with the slot's caps or with other ones."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ...core import names
from ...core.records import ShareRequest
from ...core.settings import Settings
from ...node.records import Gpu
from ..records import (
    Assignment,
    Plan,
    PlanFile,
    PlanSlot,
    Refusal,
    Slot,
)
from . import limits

NO_MPS = f"{names.STATE_ROOT}/{names.NO_MPS_FOLDER}"
"""The pipe directory of a task without MPS: there is no daemon in it, and only root can put one there. A node without
our Prolog lacks the folder, which is as well: CUDA then runs without MPS, too."""
_DIGITS = 9
"""The most digits of a cap in MiB; names.MEM_MAX_MIB has eight."""
_OF_MEMORY = (names.ENV_MPS_MEMORY, names.ENV_JAX_FRACTION, names.ENV_TF_GROWTH)


def plan_file(decision: Plan | Refusal) -> PlanFile:
    """Return the decision as the plugin and the launcher read it."""
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
        slots=tuple(PlanSlot(slot.number, slot.part, slot_environment(decision, slot)) for slot in decision.slots),
    )


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
    if slot.pipe is None:
        found.append(Assignment(names.ENV_MPS, names.MPS_OFF))
        found.append(Assignment(names.ENV_MPS_PIPE, NO_MPS))
    else:
        found.append(Assignment(names.ENV_MPS, names.MPS_ON))
        found.append(Assignment(names.ENV_MPS_PIPE, slot.pipe))
        found += _threads(slot.thread_percent)
    if slot.gpu.simulated:
        found.append(Assignment(names.ENV_SIMULATED, "1"))
    found += _memory(slot.memory_cap_mib, slot.memory_fraction, has_mps=slot.pipe is not None)
    return tuple(found)


def _threads(percent: float | None) -> list[Assignment]:
    return [] if percent is None else [Assignment(names.ENV_MPS_THREADS, f"{percent:g}")]


def _memory(cap_mib: int | None, fraction: str | None, *, has_mps: bool) -> list[Assignment]:
    """Return the variables of a memory cap; none without one.

    The task sees one GPU, so that is its ordinal 0: an entry for a GPU that a client cannot see would void the whole
    list of limits (NVIDIA Dynamo, "per-GPU limits with MPS").

    JAX takes three quarters of the whole GPU at start and TensorFlow all of it, whoever else is there; both are told
    the task's part, unless the user told them something (docs.jax.dev "GPU memory allocation"; tensorflow.org "Use a
    GPU: limiting GPU memory growth").
    """
    found = []
    if has_mps and cap_mib is not None:
        found.append(Assignment(names.ENV_MPS_MEMORY, f"0={cap_mib}M"))
    if fraction is not None:
        found.append(Assignment(names.ENV_JAX_FRACTION, fraction, unless_set=True))
        found.append(Assignment(names.ENV_TF_GROWTH, "true", unless_set=True))
    return found


def with_memory_cap(environment: Iterable[Assignment], gpu: Gpu | None, cap_mib: int | None) -> tuple[Assignment, ...]:
    """Return a slot's variables, of `slot_environment` or of a plan's PlanSlot, with another memory cap on its `gpu`.

    cap_mib: in MiB; None: no cap. Without MPS nothing enforces a cap, so only the variables of JAX and TensorFlow
    change. They are left out if the size of the GPU is not known.
    """
    rest = tuple(one for one in environment if one.name not in _OF_MEMORY)
    fraction = None if gpu is None else limits.memory_fraction(gpu, cap_mib)
    has_mps = Assignment(names.ENV_MPS, names.MPS_ON) in rest
    return (*rest, *_memory(cap_mib, fraction, has_mps=has_mps))


def with_fewer_tasks(
    environment: Iterable[Assignment], gpu: Gpu, share: ShareRequest, slots: int, settings: Settings
) -> tuple[Assignment, ...]:
    """Return a slot's variables where the job has fewer tasks on its `gpu` than the plan was made for.

    share: with the number of tasks that the GPU has. slots: that the job uses on the node. Caps and numbers are those
    of a plan for that share.
    """
    numbers = {names.ENV_PER_GPU: str(share.per_gpu), names.ENV_SLOTS: str(slots)}
    found = []
    for one in environment:
        if one.name != names.ENV_MPS_THREADS:
            found.append(replace(one, value=numbers.get(one.name, one.value)))
        if one.name == names.ENV_MPS_PIPE and one.value != NO_MPS:
            found += _threads(limits.thread_percent(share, settings))
    return with_memory_cap(found, gpu, limits.memory_cap_mib(gpu, share, settings))


def mps_pipe_of(environment: Iterable[Assignment]) -> str | None:
    """Return the pipe directory of the daemon that serves the task of these variables; None: it has no MPS."""
    pipe = next((one.value for one in environment if one.name == names.ENV_MPS_PIPE), None)
    return None if pipe == NO_MPS else pipe


def memory_cap_of(environment: Iterable[Assignment]) -> int | None:
    """Return the memory cap in MiB that MPS holds the task of these variables to; None: it has none."""
    value = next((one.value for one in environment if one.name == names.ENV_MPS_MEMORY), "")
    digits = value.removeprefix("0=").removesuffix("M")
    is_cap = value == f"0={digits}M" and digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS
    return int(digits) if is_cap else None
