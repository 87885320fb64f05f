"""Which GPU, memory and slot each task on a node gets, or why it gets none: a Plan, or a Refusal with its sentence.

Slurm's hooks and the launcher go the same way. `grant` says what a job has on the node and which backend is wanted
and possible. The caller prepares that backend. Then `decide` makes the plan, once. A hook begins with `admit`, for a
job that was submitted with --share-gpu; a launcher begins with `grant`, for its own processes where the node has no
plan for the job: a triple without the administrators' half, or outside Slurm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from ...core import names
from ...core.records import ShareRequest
from ...core.settings import Settings
from ...node.records import Gpu
from ...slurm.records import JobContext
from .. import option
from ..records import (
    BACKEND_TIME_SLICING,
    Grant,
    Limits,
    Plan,
    Prepared,
    Refusal,
    Slot,
)
from . import drain, granted, limits

# ---- What a job has ----


def admit(job: JobContext, gpus: Sequence[Gpu], offers: Iterable[Limits], settings: Settings) -> Grant | Refusal | None:
    """Return what a job has that comes to a node with `gpus`; None: an ordinary job.

    offers: of the backends that may serve the job, in order of preference. No more of them are read than are needed.
    """
    if job.share is None:
        return None
    share = job.share
    if share.per_gpu > settings.max_share:
        return refusal(job, f"this site shares a GPU among at most {settings.max_share} tasks (max_share)")
    found, unknown = granted.granted_gpus(job.granted, gpus)
    if unknown and not job.has_sure_gpus:
        return unsure_refusal(job)
    if not job.granted:
        return refusal(
            job,
            "Slurm granted the job no GPU here; ask for some (--gres=gpu:1) or for a partition that has. If it asked "
            "for some, submit it again: a node's jobs get none until it has registered with a slurmctld just started",
        )
    if unknown:
        return refusal(
            job,
            f"Slurm granted GPU {', '.join(unknown)}, but the driver lists only {_listed(gpus)}; "
            "an administrator must compare gres.conf with nvidia-smi -L on this node",
            cause=drain.NO_SUCH_GPU,
        )
    offers = iter(offers)
    preferred = next(offers)
    if preferred.client_limit is not None and share.per_gpu > preferred.client_limit:
        return refusal(
            job,
            f"{_too_many_clients(share.per_gpu, preferred)}; ask for --share-gpu={preferred.client_limit} or less, or "
            f"add {option.RENOUNCING}",
        )
    return grant(job, found, chain((preferred,), offers), settings)


def grant(
    job: JobContext, gpus: Sequence[Gpu], offers: Iterable[Limits], settings: Settings, *, processes: int | None = None
) -> Grant | Refusal:
    """Return how a job shares its `gpus`, among how many tasks, and through which backend.

    processes: of a launcher, which get a slot each; None: the N slots on each GPU of the job's share, or the one slot
    of a job that has a part of a GPU. A launcher's job may have no share: then nothing is capped, and each process
    takes what it finds, as at LLSC. An even part is that of the processes there are, not of those that were allowed.
    """
    asked = job.share
    parent = next((gpu for gpu in gpus if gpu.mig_parent), None)
    if parent is not None:
        why = f"GPU {parent.index} is in MIG mode: work runs on its instances, which gres.conf lists; ask for those"
        return refusal(job, why)
    if any(gpu.simulated for gpu in gpus) and not settings.simulated_gpus:
        return refusal(job, "its GPUs are simulated, and simulated_gpus is not set in the configuration")
    if asked is not None and not gpus:
        return refusal(job, "a share of its GPUs was asked, and it has none for this run; ask for some (-g 1)")
    if asked is not None and processes is not None and processes > asked.per_gpu * len(gpus):
        return refusal(job, too_many(processes, asked.per_gpu, len(gpus)))
    is_part = processes is None and granted.is_part(job)
    share = _in_force(asked, processes, len(gpus))
    count = 1 if is_part else share.per_gpu * len(gpus) if processes is None else processes if gpus else 0
    plain = Grant(job, share, tuple(gpus), count, is_part, BACKEND_TIME_SLICING)
    return _through_backend(plain, iter(offers)) if _gains(plain, settings) else plain


# ---- The decision ----


def decide(
    grant: Grant,
    prepared: Prepared,
    settings: Settings,
    *,
    cores: tuple[tuple[int, ...], ...] = (),
    on_gpu: int | None = None,
) -> Plan | Refusal:
    """Decide which GPU, memory and slot each task gets, with what was prepared for the grant.

    A share that insists on its backend is refused if that fails on a GPU; any other goes on, and is told.

    on_gpu: of a job that has a part of a GPU, its number among the parts (reconcile.free_part).
    """
    job, failures = grant.job, prepared.failures
    if failures and option.insists(grant.share):
        uuid, why = next(iter(failures.items()))
        why = f"{option.INSISTING} was asked, and {grant.title} did not start on {uuid}: {why}"
        return refusal(job, why, cause=drain.MPS_FAILED)
    slots = tuple(_slot(number, grant, prepared, settings, on_gpu) for number in range(grant.slots))
    return Plan(
        job.job_id,
        job.uid,
        job.node,
        grant.share,
        grant.gpus,
        slots,
        cores,
        (*_notes(grant), *_failed(grant, failures)),
    )


def _in_force(asked: ShareRequest | None, processes: int | None, gpus: int) -> ShareRequest:
    """Return the share with the number of tasks that a GPU really has."""
    if asked is not None and processes is None:
        return asked
    per_gpu = limits.tasks_per_gpu(processes or 0, gpus) if gpus else 0
    return ShareRequest(per_gpu) if asked is None else replace(asked, per_gpu=per_gpu)


def _slot(number: int, grant: Grant, prepared: Prepared, settings: Settings, on_gpu: int | None) -> Slot:
    """Return a slot. Slot i is on GPU i mod G, so that each of the first G tasks of a job finds an empty GPU."""
    share, is_capped = grant.share, grant.job.share is not None
    turn, place = divmod(number, len(grant.gpus))
    gpu = grant.gpus[place]
    cap_mib = limits.memory_cap_mib(gpu, share, settings) if is_capped else None
    served = prepared.served.get(gpu.uuid)
    return Slot(
        number=number,
        gpu=gpu,
        # Tasks of one GPU get neighbouring cores: GPUs and cores are both numbered along the sockets.
        part=place * share.per_gpu + turn,
        memory_cap_mib=cap_mib,
        memory_ratio=limits.memory_ratio(gpu, cap_mib),
        sm_percent=limits.sm_percent(share, settings) if is_capped else None,
        mps_directory=None if served is None else served.mps_directory,
        backend=BACKEND_TIME_SLICING if served is None else grant.backend,
        on_gpu=on_gpu,
        variables=() if served is None else served.variables,
    )


def _notes(grant: Grant) -> tuple[str, ...]:
    share, gpus = grant.share, grant.gpus
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
    return (*notes, grant.note) if grant.note is not None else tuple(notes)


def _failed(grant: Grant, failures: Mapping[str, str]) -> list[str]:
    return [
        f"GPU {gpu.index} is shared without {grant.title}: {failures[gpu.uuid]}; its tasks take turns, and no cap is "
        "enforced"
        for gpu in dict.fromkeys(grant.gpus)
        if gpu.uuid in failures
    ]


def with_fewer_tasks(plan: Plan, share: ShareRequest, slots: int, settings: Settings) -> Plan:
    """Return the plan of a job that has fewer tasks on a GPU than the plan was made for.

    share: with the number of tasks that a GPU has. slots: that the job uses on the node. The caps are those of a plan
    for that share.
    """
    return replace(
        plan, share=share, slots=tuple(_of_fewer_tasks(slot, share, settings) for slot in plan.slots[:slots])
    )


def _of_fewer_tasks(slot: Slot, share: ShareRequest, settings: Settings) -> Slot:
    found = with_memory_cap(slot, limits.memory_cap_mib(slot.gpu, share, settings))
    return replace(found, sm_percent=limits.sm_percent(share, settings))


def with_memory_cap(slot: Slot, cap_mib: int | None) -> Slot:
    """Return the slot with another memory cap, in MiB; None: no cap."""
    return replace(slot, memory_cap_mib=cap_mib, memory_ratio=limits.memory_ratio(slot.gpu, cap_mib))


def too_many(processes: int, per_gpu: int, gpus: int) -> str:
    """Return why so many processes do not fit on GPUs of which each takes `per_gpu`, and what to write."""
    fits, slots = limits.tasks_per_gpu(processes, gpus), gpus * per_gpu
    larger = f"--share-gpu={fits}, or " if fits <= names.SHARE_MAX else ""
    return (
        f"{processes} processes are more than {gpus} GPU{'' if gpus == 1 else 's'} x {per_gpu} = {slots} slot"
        f"{'' if slots == 1 else 's'}; write {larger}a triple with at most {slots} on a node"
    )


# ---- The backend ----


def _gains(grant: Grant, settings: Settings) -> bool:
    """Return whether the tasks need a backend. One task alone on a GPU without a cap gains nothing from any."""
    share = grant.share
    has_sm_cap = grant.job.share is not None and limits.sm_percent(share, settings) is not None
    has_cap = share.mem_mib is not None or has_sm_cap
    return grant.slots > 0 and (share.per_gpu > 1 or has_cap or option.insists(share))


def _through_backend(plain: Grant, offers: Iterator[Limits]) -> Grant | Refusal:
    """Return the grant with the first backend that can serve it, and a note on the one that should have."""
    preferred = next(offers)
    why_not = _why_not(preferred, plain)
    if why_not is None:
        return replace(plain, backend=preferred.backend, title=preferred.title)
    chosen = next((offer for offer in offers if _why_not(offer, plain) is None), None)
    if chosen is None:
        insisted = f"{option.INSISTING} was asked, and " if option.insists(plain.share) else ""
        return refusal(plain.job, f"{insisted}{why_not}")
    if preferred.required_by and preferred.is_missing:
        return refusal(
            plain.job,
            f"this site requires {preferred.title} ({preferred.required_by}), and {why_not}; an administrator must "
            "look at this node",
            cause=drain.NO_MPS_PROGRAM,
        )
    note = f"the GPUs are shared without {preferred.title}: {why_not}; {chosen.effect}"
    return replace(plain, backend=chosen.backend, title=chosen.title, note=note)


def _why_not(offer: Limits, grant: Grant) -> str | None:
    """Return why a backend cannot serve the grant here; None: it can."""
    if not offer.serves_mig and any(gpu.uuid.startswith("MIG-") for gpu in grant.gpus):
        return f"a MIG instance is a GPU of its own and takes no {offer.title} here"
    if offer.why_not is None and offer.client_limit is not None and grant.share.per_gpu > offer.client_limit:
        return _too_many_clients(grant.share.per_gpu, offer)
    return offer.why_not


def _too_many_clients(per_gpu: int, offer: Limits) -> str:
    return (
        f"{per_gpu} tasks on a GPU are more than the {offer.client_limit} clients that {offer.title} takes with this "
        "driver"
    )


# ---- Refusals ----


def refusal(job: JobContext, why: str, *, cause: str = drain.JOB) -> Refusal:
    """Return the Refusal for a job whose share, or whose launcher's processes, this node does not take."""
    if job.share is None or not job.job_id:
        return Refusal(job.job_id, job.uid, job.node, f"{job.node} cannot run its processes: {why}", cause)
    share = option.render(job.share)
    sentence = f"job {job.job_id} cannot have --share-gpu={share} on {job.node}: {why}"
    return Refusal(job.job_id, job.uid, job.node, sentence, cause)


def unsure_refusal(job: JobContext) -> Refusal:
    """Return the Refusal for a job that seems to have other GPUs than it can have here: they are another node's."""
    return refusal(
        job,
        f"its first step here is on some of its {job.nodes} nodes, and of such a step Slurm tells a node the GPUs that "
        f"the job has on another one; submit it again, and begin with a step on all nodes (srun -N{job.nodes} "
        f"-n{job.nodes} true)",
    )


def driver_refusal(job: JobContext, reason: str) -> Refusal:
    """Return the Refusal for a node whose GPUs cannot be read."""
    return refusal(job, f"{reason}; an administrator must look at this node", cause=drain.NO_DRIVER)


def state_refusal(job: JobContext, why: str) -> Refusal:
    """Return the Refusal for a node on which the job could not be written down."""
    return refusal(job, f"the node could not enter it: {why}; tell your administrators, and submit the job again")


def no_room_refusal(job: JobContext, folder: str) -> Refusal:
    """Return the Refusal for a node on which users' files fill the file system that the job's slots would be on."""
    return refusal(
        job,
        f"{folder} is full on this node: what other jobs of yours wrote there goes when they end; submit this one "
        "again then, and if you have no other job there, tell your administrators",
        cause=drain.STATE_FULL,
    )


def crowd_refusal(grant: Grant) -> Refusal:
    """Return the Refusal for a job that Slurm gave a GPU on which jobs that are alive have all there is.

    They are of the same user, who alone has the damage, and may have brought it about: no reason to take the node out
    of service.
    """
    return refusal(
        grant.job,
        f"Slurm gave it GPU {grant.gpus[0].index}, of which other jobs of yours have all the parts; an administrator "
        "must compare shards_per_gpu in the configuration with the shards of gres.conf on this node",
        cause=drain.CROWDED,
    )


def _listed(gpus: Sequence[Gpu]) -> str:
    """Return NVML's devices as gres.conf numbers them."""
    return ", ".join(str(g.minor if g.minor is not None else g.index) for g in gpus) or "none"
