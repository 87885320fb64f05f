"""What becomes of a job on this node: a Plan, a Refusal with the sentence for its user, or nothing for us to do."""

from __future__ import annotations

from collections.abc import Sequence

from .. import share_option
from ..records import Gpu, JobContext, Plan, Refusal, ShareRequest
from ..settings import Settings
from . import place


def admit(
    job: JobContext, gpus: Sequence[Gpu], cores: tuple[tuple[int, ...], ...], settings: Settings
) -> Plan | Refusal | None:
    """The decision about `job` on a node that has `gpus` and `cores`; None for an ordinary job."""
    if job.share is None:
        return None
    share = job.share
    if share.per_gpu > settings.max_share:
        return _refusal(job, f"this site shares a GPU among at most {settings.max_share} tasks (max_share)")
    if not job.granted:
        return _refusal(
            job, "Slurm granted the job no GPU here; ask for some (--gres=gpu:1) or for a partition that has"
        )
    granted, unknown = place.granted_gpus(job.granted, gpus)
    if unknown:
        return _refusal(
            job,
            f"Slurm granted GPU {', '.join(unknown)}, but the driver lists only {_listed(gpus)}; "
            "an administrator must compare gres.conf with nvidia-smi -L on this node",
        )
    if any(gpu.mig_parent for gpu in granted):
        return _refusal(job, "a granted GPU is in MIG mode: work runs on its instances; ask for those in gres.conf")
    if any(gpu.simulated for gpu in granted) and not settings.simulated_gpus:
        return _refusal(job, "its GPUs are simulated, and simulated_gpus is not set in the configuration")
    slots = place.slots(granted, share, settings)
    return Plan(job, share, granted, slots, cores, _notes(share, granted))


def driver_refusal(job: JobContext, reason: str) -> Refusal:
    """The Refusal for a node whose GPUs cannot be read."""
    return _refusal(job, f"{reason}; an administrator must look at this node")


def _refusal(job: JobContext, why: str) -> Refusal:
    share = share_option.render(job.share)
    return Refusal(job, f"job {job.job_id} cannot have --share-gpu={share} on {job.node}: {why}")


def _listed(gpus: Sequence[Gpu]) -> str:
    """NVML's devices in the words a gres.conf would use."""
    return ", ".join(str(g.minor if g.minor is not None else g.index) for g in gpus) or "none"


def _notes(share: ShareRequest, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    notes = []
    if any(gpu.simulated for gpu in gpus):
        notes.append("the GPUs of this node are simulated: nothing is computed on them")
    if share.per_gpu > 1:
        notes.append("shared without MPS: the tasks of a GPU take turns on it, and no memory cap is enforced")
    over = [
        g for g in gpus if share.mem_mib and g.memory_total_mib and share.mem_mib * share.per_gpu > g.memory_total_mib
    ]
    if share.mem_mib and over:
        notes.append(
            f"{share.per_gpu} x {share.mem_mib} MiB is more than GPU {over[0].index} has "
            f"({over[0].memory_total_mib} MiB): tasks that fill their share will run out of memory"
        )
    return tuple(notes)
