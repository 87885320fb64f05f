"""What becomes of a job on this node: a Plan, a Refusal with the sentence for its user, or nothing for us to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from .. import share_option
from ..records import Gpu, JobContext, MpsOffer, Plan, Refusal, ShareRequest
from ..settings import Settings
from . import place


def admit(
    job: JobContext, gpus: Sequence[Gpu], cores: tuple[tuple[int, ...], ...], offer: MpsOffer, settings: Settings
) -> Plan | Refusal | None:
    """The decision about `job` on a node that has `gpus`, `cores` and MPS as on `offer`; None for an ordinary job.

    A plan that wants MPS is not finished: `settle_mps` says what became of it.
    """
    if job.share is None:
        return None
    share = job.share
    if share.per_gpu > settings.max_share:
        return _refusal(job, f"this site shares a GPU among at most {settings.max_share} tasks (max_share)")
    if not job.granted:
        return _refusal(
            job,
            "Slurm granted the job no GPU here; ask for some (--gres=gpu:1) or for a partition that has. If it asked "
            "for some, submit it again: a node's jobs get none until it has registered with a slurmctld just started",
        )
    granted, unknown = place.granted_gpus(job.granted, gpus)
    if unknown:
        return _refusal(
            job,
            f"Slurm granted GPU {', '.join(unknown)}, but the driver lists only {_listed(gpus)}; "
            "an administrator must compare gres.conf with nvidia-smi -L on this node",
            blames_node=True,
        )
    if any(gpu.mig_parent for gpu in granted):
        return _refusal(job, "a granted GPU is in MIG mode: work runs on its instances; ask for those in gres.conf")
    if any(gpu.simulated for gpu in granted) and not settings.simulated_gpus:
        return _refusal(job, "its GPUs are simulated, and simulated_gpus is not set in the configuration")
    if share.per_gpu > offer.client_limit and share.mps is not False:
        return _refusal(
            job,
            f"{share.per_gpu} tasks on a GPU are more than the {offer.client_limit} clients that MPS takes with this "
            f"driver; ask for --share-gpu={offer.client_limit} or less, or add mps=off",
        )
    why_not = _why_no_mps(share, granted, offer)
    if why_not is not None and share.mps:
        return _refusal(job, f"mps=on was asked, and {why_not}")
    is_part = place.is_part(job)
    slots = place.slots(granted, share, settings, is_part=is_part)
    plan = Plan(job, share, granted, slots, cores, _notes(share, granted), is_part=is_part)
    if why_not is not None:
        return without_mps(plan, why_not)
    return replace(plan, wants_mps=_needs_mps(plan))


def without_mps(plan: Plan, why: str) -> Plan:
    """The plan as it is carried out where there is no MPS; said in the job's output only where that matters."""
    if not _needs_mps(plan) or plan.share.mps is False:
        return replace(plan, wants_mps=False)
    note = f"shared without MPS: {why}; the tasks of a GPU take turns on it, and no cap is enforced"
    return replace(plan, wants_mps=False, notes=(*plan.notes, note))


def settle_mps(plan: Plan, pipes: Mapping[str, str], failures: Mapping[str, str]) -> Plan | Refusal:
    """The plan with the daemons that came up (`pipes`: GPU UUID -> pipe directory) and those that did not (`failures`:
    UUID -> why). A share that insisted on MPS is refused without it; any other goes on, and says so."""
    if failures and plan.share.mps:
        uuid, why = next(iter(failures.items()))
        return _refusal(plan.job, f"mps=on was asked, and MPS did not start on {uuid}: {why}")
    slots = tuple(replace(slot, pipe=pipes.get(slot.gpu.uuid)) for slot in plan.slots)
    notes = [
        f"GPU {gpu.index} is shared without MPS: {failures[gpu.uuid]}; its tasks take turns, and no cap is enforced"
        for gpu in plan.gpus
        if gpu.uuid in failures
    ]
    return replace(plan, slots=slots, notes=(*plan.notes, *notes))


def _needs_mps(plan: Plan) -> bool:
    """One task alone on a GPU without a cap gains nothing from a server between them."""
    has_cap = plan.share.mem_mib is not None or any(slot.thread_percent is not None for slot in plan.slots)
    return plan.share.per_gpu > 1 or has_cap or plan.share.mps is True


def _why_no_mps(share: ShareRequest, gpus: Sequence[Gpu], offer: MpsOffer) -> str | None:
    if share.mps is False:
        return "mps=off was asked"
    if any(gpu.uuid.startswith("MIG-") for gpu in gpus):
        return "a MIG instance is a GPU of its own and takes no MPS here"
    return offer.why_not


def driver_refusal(job: JobContext, reason: str) -> Refusal:
    """The Refusal for a node whose GPUs cannot be read."""
    return _refusal(job, f"{reason}; an administrator must look at this node", blames_node=True)


def crowd_refusal(plan: Plan) -> Refusal:
    """The Refusal for a job that Slurm gave a GPU on which jobs that are alive have all there is. They are of the same
    user, who alone has the damage, and may have brought it about: no reason to take the node out of service."""
    return _refusal(
        plan.job,
        f"Slurm gave it GPU {plan.gpus[0].index}, of which other jobs of yours have all the parts; an administrator "
        "must compare shards_per_gpu in the configuration with the shards of gres.conf on this node",
    )


def _refusal(job: JobContext, why: str, *, blames_node: bool = False) -> Refusal:
    share = share_option.render(job.share)
    return Refusal(job, f"job {job.job_id} cannot have --share-gpu={share} on {job.node}: {why}", blames_node)


def _listed(gpus: Sequence[Gpu]) -> str:
    """NVML's devices in the words a gres.conf would use."""
    return ", ".join(str(g.minor if g.minor is not None else g.index) for g in gpus) or "none"


def _notes(share: ShareRequest, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    notes = []
    if any(gpu.simulated for gpu in gpus):
        notes.append("the GPUs of this node are simulated: nothing is computed on them")
    over = [
        g for g in gpus if share.mem_mib and g.memory_total_mib and share.mem_mib * share.per_gpu > g.memory_total_mib
    ]
    if share.mem_mib and over:
        notes.append(
            f"{share.per_gpu} x {share.mem_mib} MiB is more than GPU {over[0].index} has "
            f"({over[0].memory_total_mib} MiB): tasks that fill their share will run out of memory"
        )
    return tuple(notes)
