"""Decide which GPU, memory and slot each task on a node gets (a Plan), or why it gets none (a Refusal).

Slurm's hooks and the launcher use the same functions. `grant` determines what a job has on the node and its backend.
The caller prepares that backend. Then `decide` makes the plan. A hook begins with `admit`, for a job that was submitted
with --share-gpu. A launcher begins with `grant`, for its own processes, if the node has no plan for the job: on a
cluster without our Prolog, or outside Slurm.
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
from ..records import BACKEND_TIME_SLICING, Assignment, DriverCaps, Grant, Limits, Plan, PreparedGpus, Refusal, Slot
from . import drain, driver_caps, granted, limits, mps, static_partitions
from .granted import INDEX_UNDER_MPS

NO_DRIVER_CAPS = DriverCaps()

# ---- What a job has ----


def admit(job: JobContext, gpus: Sequence[Gpu], offers: Iterable[Limits], settings: Settings) -> Grant | Refusal | None:
    """Return what a job has on a node with `gpus`; None: an ordinary job.

    offers: the limits of the backends that may serve the job, in order of preference. Only those needed are read.
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
            "Slurm granted the job no GPU here; ask for GPUs (--gres=gpu:1), or for a partition that has some. If it "
            "asked for some, submit it again: jobs get no GPUs on a node that has not registered since slurmctld was "
            "started",
        )
    if unknown:
        return refusal(
            job,
            f"Slurm granted GPU {', '.join(unknown)}, but the driver lists only {_listed(gpus)}; "
            "an administrator must compare gres.conf with nvidia-smi -L on this node",
            cause=drain.NO_SUCH_GPU,
        )
    lost = tuple((device, gpu) for device, gpu in zip(job.granted, found, strict=True) if gpu.problem is not None)
    found = tuple(gpu for gpu in found if gpu.problem is None)
    if not found:
        return refusal(
            job,
            f"Slurm granted it only {lost_sentence(gpu for _, gpu in lost)}; submit it without this node (sbatch "
            f"--exclude={job.node}); {_SEE_TO_IT}",
            cause=drain.GPU_LOST,
        )
    offers = iter(offers)
    preferred = next(offers)
    if preferred.client_limit is not None and share.per_gpu > preferred.client_limit:
        return refusal(
            job,
            f"{_too_many_clients(share.per_gpu, preferred)}; ask for --share-gpu={preferred.client_limit} or less, or "
            f"add {option.RENOUNCING}",
        )
    return grant(job, found, chain((preferred,), offers), settings, lost=lost)


def grant(
    job: JobContext,
    gpus: Sequence[Gpu],
    offers: Iterable[Limits],
    settings: Settings,
    *,
    processes: int | None = None,
    lost: tuple[tuple[str, Gpu], ...] = (),
) -> Grant | Refusal:
    """Return how a job shares its `gpus`: among how many tasks, and through which backend.

    lost: the job's GPUs that do not answer, each with Slurm's name for it. They get no slots.

    processes: the number of a launcher's processes, each of which gets a slot; None: N slots on each GPU, or one slot
    for a job that has a part of a GPU. If a launcher's job has no share, nothing is capped. Even parts are computed
    from the actual number of processes.
    """
    asked = job.share
    parent = next((gpu for gpu in gpus if gpu.mig_parent), None)
    if parent is not None:
        why = f"GPU {parent.index} is in MIG mode: work runs on its instances, which gres.conf lists; ask for those"
        return refusal(job, why)
    if any(gpu.simulated for gpu in gpus) and not settings.simulated_gpus:
        return refusal(job, "its GPUs are simulated, and simulated_gpus is not set in the configuration")
    if asked is not None and not gpus:
        way = "ask for some (-g 1)" if job.job_id else f"leave --{names.OPTION} away, or use a machine with GPUs"
        return refusal(job, f"it asked to share its GPUs, but has none for this run; {way}")
    if asked is not None and processes is not None and processes > asked.per_gpu * len(gpus):
        return refusal(job, too_many(processes, asked.per_gpu, len(gpus)))
    is_part = processes is None and granted.is_part(job)
    share = _in_force(asked, processes, len(gpus))
    too_much = limits.why_guaranteed_is_too_much(gpus, share, settings)
    if too_much is not None:
        return refusal(job, too_much)
    count = 1 if is_part else share.per_gpu * len(gpus) if processes is None else processes if gpus else 0
    plain = Grant(job, share, tuple(gpus), count, is_part, BACKEND_TIME_SLICING, lost=lost)
    return _through_backend(plain, iter(offers), settings) if _gains(plain, settings) else plain


# ---- The decision ----


def decide(
    grant: Grant,
    prepared: PreparedGpus,
    settings: Settings,
    *,
    cores: tuple[tuple[int, ...], ...] = (),
    on_gpu: int | None = None,
    caps: DriverCaps = NO_DRIVER_CAPS,
) -> Plan | Refusal:
    """Return the plan of a grant whose backend was prepared.

    If the backend failed on a GPU, refuse a share that insists on it; else add a note to the plan.

    on_gpu: the number of the job's part of its GPU (reconcile.free_part), if it has one.
    """
    job, failures = grant.job, prepared.failures
    if (why := driver_caps.why_refused(grant, caps)) is not None:
        return refusal(job, why)
    if grant.gpus and all(gpu.uuid in caps.gpus for gpu in grant.gpus):
        grant = replace(grant, why_no_limits=None)
    elif grant.why_no_limits is None:
        grant = replace(grant, why_no_limits=f"cannot be held here: {caps.why_not}")
    if failures and option.insists(grant.share):
        uuid, why = next(iter(failures.items()))
        why = f"it asked for {option.insisting(grant.share)}, and {grant.title} did not start on {uuid}: {why}"
        return refusal(job, why, cause=drain.MPS_FAILED)
    undivided = tuple(static_partitions.undivided(grant, prepared.undivided))
    if undivided and static_partitions.is_asked(job.share):
        why = f"it asked for {static_partitions.OPTION}, and {undivided[0]}"
        return refusal(job, static_partitions.refused(why))
    slots = tuple(_slot(number, grant, prepared, settings, on_gpu, caps) for number in range(grant.slots))
    plan = Plan(
        job.job_id,
        job.uid,
        job.node,
        grant.share,
        grant.gpus,
        slots,
        cores,
        (
            *lost_notes(grant),
            *_notes(grant, settings, caps),
            *_failed(grant, failures, caps),
            *static_partitions.notes(grant, prepared),
            *map(static_partitions.fallback, undivided),
        ),
        tuple(device for device, _ in grant.lost),
    )
    return replace(plan, notes=(*plan.notes, *driver_caps.notes(plan)))


def _in_force(asked: ShareRequest | None, processes: int | None, gpus: int) -> ShareRequest:
    """Return the share with the actual number of tasks on each GPU."""
    if asked is not None and processes is None:
        return asked
    per_gpu = limits.tasks_per_gpu(processes or 0, gpus) if gpus else 0
    return ShareRequest(per_gpu) if asked is None else replace(asked, per_gpu=per_gpu)


def _slot(
    number: int, grant: Grant, prepared: PreparedGpus, settings: Settings, on_gpu: int | None, caps: DriverCaps
) -> Slot:
    """Return one slot. Slot i is on GPU i mod G, so that each of a job's first G tasks gets an empty GPU."""
    share, is_capped = grant.share, grant.job.share is not None
    turn, place = divmod(number, len(grant.gpus))
    gpu = grant.gpus[place]
    cap_mib = limits.memory_cap_mib(gpu, share, settings) if is_capped else None
    served = prepared.served.get(gpu.uuid)
    divided = None if served is None else served.partitions
    partition = static_partitions.name_of(divided, turn if on_gpu is None else on_gpu)
    return Slot(
        number=number,
        gpu=gpu,
        # Tasks of one GPU get adjacent cores: GPUs and cores are both numbered along the sockets.
        part=place * share.per_gpu + turn,
        memory_cap_mib=cap_mib,
        memory_ratio=limits.memory_ratio(gpu, cap_mib),
        memory_least_mib=share.mem_least_mib if is_capped else None,
        sm_percent=limits.sm_percent(share, settings) if is_capped and partition is None else None,
        mps_directory=None if served is None else served.mps_directory,
        backend=BACKEND_TIME_SLICING if served is None else grant.backend,
        on_gpu=on_gpu,
        variables=() if served is None else (*served.variables, *_number(settings)),
        partition=partition,
        sm_count=None if partition is None or divided is None else divided.sm_count,
        is_cap_of_driver=cap_mib is not None and gpu.uuid in caps.gpus,
        mps_namespace=mps.namespace_of(turn if on_gpu is None else on_gpu)
        if served is not None and served.has_namespaces
        else None,
    )


def _number(settings: Settings) -> tuple[Assignment, ...]:
    """Return the number of a GPU in place of its UUID, for a task whose GPU has an MPS daemon of its own.

    The daemon sees that GPU alone, so for its clients it is number 0, with any device cgroup and CUDA_DEVICE_ORDER (MPS
    documentation: the daemon's CUDA_VISIBLE_DEVICES renumbers the devices of its clients).
    """
    return (Assignment(names.ENV_VISIBLE_DEVICES, INDEX_UNDER_MPS),) if settings.gpu_ids == "index" else ()


def lost_notes(grant: Grant) -> Iterator[str]:
    """Yield which of the job's GPUs do not answer, and how many slots it has without them."""
    if grant.lost:
        job, per_gpu, gpus = grant.job, grant.share.per_gpu, len(grant.gpus)
        yield (
            f"on {job.node} the job has {lost_sentence(gpu for _, gpu in grant.lost)}: its tasks there use the other "
            f"{gpus} GPU{'' if gpus == 1 else 's'}, with {gpus} x {per_gpu} = {grant.slots} slot"
            f"{'' if grant.slots == 1 else 's'} instead of {per_gpu * (gpus + len(grant.lost))}; --exclude={job.node} "
            f"leaves the node out; {_SEE_TO_IT}"
        )


def _notes(grant: Grant, settings: Settings, caps: DriverCaps) -> tuple[str, ...]:
    share, gpus = grant.share, grant.gpus
    notes = []
    if any(gpu.simulated for gpu in gpus):
        notes.append("the GPUs of this node are simulated: nothing is computed on them")
    over = [
        g for g in gpus if share.mem_mib and g.memory_total_mib and share.mem_mib * share.per_gpu > g.memory_total_mib
    ]
    if share.mem_least_mib is not None:
        notes += _guarantee_notes(grant)
    elif share.mem_mib and over:
        notes.append(
            f"{share.per_gpu} x {share.mem_mib} MiB is more than GPU {over[0].index} has "
            f"({over[0].memory_total_mib} MiB): tasks that fill their share will run out of memory"
        )
    if grant.job.share is not None and grant.backend != BACKEND_TIME_SLICING:  # which enforces no cap, and says so
        notes += size_notes(share, gpus, settings)
    if grant.note is not None:
        notes.append(grant.note)
    is_enforced = grant.job.share is not None and all(gpu.uuid in caps.gpus for gpu in gpus)
    return tuple(note.replace(driver_caps.NO_CAP, driver_caps.CAP_BY_DRIVER) if is_enforced else note for note in notes)


def _guarantee_notes(grant: Grant) -> Iterator[str]:
    """Yield why the driver does not hold the guaranteed part of the tasks' memory, and what takes its place.

    The plugin refuses tasks of such a share with this note, which it knows by its first word (NOTE_OF_GUARANTEE). A
    launcher books the guaranteed part instead.
    """
    share = grant.share
    if grant.why_no_limits is None:
        return
    least, most = f"{share.mem_least_mib}M", f"{share.mem_mib}M"
    said = f"{names.NOTE_OF_GUARANTEE}{least}:{most} {grant.why_no_limits}"
    if grant.job.granted:
        yield (
            f"{said}: llsub books {least} of GPU memory for each task and takes {most} as its cap; srun's tasks are "
            f"refused, and run with mem={most} or mem={least}"
        )
    else:
        yield (
            f"{said}: {least} of GPU memory are booked for each task and {most} are its cap, so a task above its "
            "booking can make another one run out of memory"
        )


def size_notes(share: ShareRequest, gpus: Iterable[Gpu], settings: Settings) -> Iterator[str]:
    """Yield why tasks that would have an even part of their GPU's memory have no cap."""
    if share.mem_mib is not None or share.per_gpu == 1:
        return
    gpus = tuple(dict.fromkeys(gpus))
    unknown = [gpu for gpu in gpus if gpu.is_listed and not gpu.memory_total_mib]
    if unknown:
        yield (
            f"the driver does not say how much memory GPU {_numbers(unknown)} has: its tasks have no memory cap, and "
            f"one that takes all of it makes the others fail; --share-gpu={share.per_gpu},mem=SIZE sets a cap"
        )
    reserved = [
        gpu
        for gpu in gpus
        if gpu.memory_total_mib and not gpu.is_host_memory and limits.memory_cap_mib(gpu, share, settings) is None
    ]
    if reserved:
        yield (
            f"mps_server_memory_mib = {settings.mps_server_memory_mib} and memory_reserve_percent = "
            f"{settings.memory_reserve_percent:g} in the configuration leave the {share.per_gpu} tasks on GPU "
            f"{_numbers(reserved)} nothing of its {reserved[0].memory_total_mib} MiB: they have no memory cap; an "
            f"administrator must correct that; --share-gpu={share.per_gpu},mem=SIZE sets a cap"
        )
    unified = [gpu for gpu in gpus if gpu.is_host_memory and gpu.memory_total_mib]
    if unified:
        yield (
            f"GPU {_numbers(unified)} has no memory of its own and uses the node's ({unified[0].memory_total_mib} MiB, "
            "MemTotal): its tasks have no memory cap, and share the node's memory with all its programs"
        )


def _numbers(gpus: Iterable[Gpu]) -> str:
    return ",".join(str(gpu.index) for gpu in gpus)


def _failed(grant: Grant, failures: Mapping[str, str], caps: DriverCaps) -> list[str]:
    way_out = "" if grant.job.share is None else f"; with {option.INSISTING} the job would be refused instead"
    return [
        f"GPU {gpu.index} is shared without {grant.title}: {failures[gpu.uuid].rstrip('.')}; its tasks take turns, and "
        f"{driver_caps.CAP_BY_DRIVER if gpu.uuid in caps.gpus else driver_caps.NO_CAP}{way_out}"
        for gpu in dict.fromkeys(grant.gpus)
        if gpu.uuid in failures
    ]


def with_fewer_tasks(plan: Plan, share: ShareRequest, slots: int, settings: Settings) -> Plan:
    """Return the plan with its first `slots` slots only, and the caps of a plan for `share`, which has fewer tasks on a
    GPU."""
    percent = limits.sm_percent(share, settings)
    kept = (with_memory_cap(one, limits.memory_cap_mib(one.gpu, share, settings)) for one in plan.slots[:slots])
    capped = tuple(slot if slot.partition is not None else with_sm_percent(slot, percent) for slot in kept)
    return replace(plan, share=share, slots=capped)


def with_memory_cap(slot: Slot, cap_mib: int | None, least_mib: int | None = None) -> Slot:
    """Return the slot with another memory cap, in MiB, and its guaranteed part; None: no cap, the slot's own part."""
    return replace(
        slot,
        memory_cap_mib=cap_mib,
        memory_ratio=limits.memory_ratio(slot.gpu, cap_mib),
        memory_least_mib=None if cap_mib is None else least_mib or slot.memory_least_mib,
        is_cap_of_driver=slot.is_cap_of_driver and cap_mib is not None,
        mps_namespace=slot.mps_namespace if cap_mib == slot.memory_cap_mib else mps.uncapped(slot.mps_namespace),
    )


def with_sm_percent(slot: Slot, percent: float | None) -> Slot:
    """Return the slot with another cap on multiprocessors; None: no cap."""
    namespace = slot.mps_namespace if percent == slot.sm_percent else mps.uncapped(slot.mps_namespace)
    return replace(slot, sm_percent=percent, mps_namespace=namespace)


def too_many(processes: int, per_gpu: int, gpus: int) -> str:
    """Return the sentence that so many processes do not fit on the GPUs, and what to write instead."""
    fits, slots = limits.tasks_per_gpu(processes, gpus), gpus * per_gpu
    larger = f"--share-gpu={fits}, or " if fits <= names.SHARE_MAX else ""
    return (
        f"{processes} processes are more than {gpus} GPU{'' if gpus == 1 else 's'} x {per_gpu} = {slots} slot"
        f"{'' if slots == 1 else 's'}; write {larger}a triple with at most {slots} on a node"
    )


# ---- The backend ----


def _gains(grant: Grant, settings: Settings) -> bool:
    """Return whether the tasks need a backend: a GPU has several, or there is a cap, or the user insists."""
    share = grant.share
    has_sm_cap = grant.job.share is not None and limits.sm_percent(share, settings) is not None
    has_cap = share.mem_mib is not None or has_sm_cap or static_partitions.is_asked(share)
    return grant.slots > 0 and (share.per_gpu > 1 or has_cap or option.insists(share))


def _through_backend(plain: Grant, offers: Iterator[Limits], settings: Settings) -> Grant | Refusal:
    """Return the grant with the first backend that can serve it, and a note if that is not the preferred one."""
    preferred = next(offers)
    why_not = _why_not(preferred, plain)
    if why_not is None:
        served = replace(
            plain,
            backend=preferred.backend,
            title=preferred.title,
            why_no_limits=preferred.why_no_limits,
            mps_protocol=preferred.mps_protocol,
            why_protocol=preferred.why_protocol,
        )
        return _divided(served, preferred, settings)
    chosen = next((offer for offer in offers if _why_not(offer, plain) is None), None)
    if chosen is None:
        insisted = f"it asked for {option.insisting(plain.share)}, and " if option.insists(plain.share) else ""
        return refusal(plain.job, f"{insisted}{why_not}")
    if preferred.required_by and preferred.is_missing:
        return refusal(
            plain.job,
            f"this site requires {preferred.title} ({preferred.required_by}), and {why_not}; an administrator must "
            "check this node",
            cause=drain.NO_MPS_PROGRAM,
        )
    note = f"the GPUs are shared without {preferred.title}: {why_not}; {chosen.effect}"
    return replace(plain, backend=chosen.backend, title=chosen.title, note=note, why_no_limits=chosen.why_no_limits)


def _divided(grant: Grant, offer: Limits, settings: Settings) -> Grant | Refusal:
    """Return the grant with static partitions if its tasks are to have them and can; a Refusal if their user asked."""
    job, share = grant.job, grant.share
    if job.share is None or not static_partitions.is_wanted(share, settings):
        return grant
    if grant.backend == BACKEND_TIME_SLICING and not static_partitions.is_asked(share):
        return grant  # who chose turns does not expect the site's default of MPS
    why_not = static_partitions.why_not(grant.gpus, share, offer, settings)
    if why_not is None:
        return replace(grant, partitions=share.per_gpu, has_own_faults=offer.has_own_faults)
    if static_partitions.is_asked(share):
        return refusal(job, static_partitions.refused(why_not))
    return replace(grant, note=static_partitions.fallback(why_not))


def _why_not(offer: Limits, grant: Grant) -> str | None:
    """Return why a backend cannot serve the grant here; None: it can."""
    if not offer.serves_mig and any(gpu.uuid.startswith("MIG-") for gpu in grant.gpus):
        return f"{offer.title} is not used on MIG instances here"
    if offer.why_not is None and offer.client_limit is not None and grant.share.per_gpu > offer.client_limit:
        return _too_many_clients(grant.share.per_gpu, offer)
    return offer.why_not


def _too_many_clients(per_gpu: int, offer: Limits) -> str:
    return (
        f"{per_gpu} tasks on a GPU are more than the {offer.client_limit} clients that {offer.title} supports with "
        "this driver"
    )


# ---- Refusals ----


def refusal(job: JobContext, why: str, *, cause: str = drain.JOB) -> Refusal:
    """Return the Refusal of a job's share, or of a launcher's processes, on this node."""
    if job.share is None or not job.job_id:
        return Refusal(job.job_id, job.uid, job.node, f"{job.node} cannot run its processes: {why}", cause)
    share = option.render(job.share)
    sentence = f"job {job.job_id} cannot have --share-gpu={share} on {job.node}: {why}"
    return Refusal(job.job_id, job.uid, job.node, sentence, cause)


def unsure_refusal(job: JobContext) -> Refusal:
    """Return the Refusal for a job whose GPUs, as slurmd names them, are those of another node."""
    return refusal(
        job,
        f"its first step here runs on only some of its {job.nodes} nodes, and for such a step Slurm tells a node the "
        f"job's GPUs on another node; submit it again, and begin with a step on all nodes (srun -N{job.nodes} "
        f"-n{job.nodes} true)",
    )


def types_refusal(job: JobContext, why: str) -> Refusal:
    """Return the Refusal for a job on a node with GPUs of several types, if it is not certain which of them it has."""
    return refusal(
        job,
        f"{job.node} has GPUs of several types, of which slurmd names the Prolog those of one type "
        f"({', '.join(job.granted)}), and {why}; submit it again; if it happens again, tell your administrators",
    )


def driver_refusal(job: JobContext, reason: str) -> Refusal:
    """Return the Refusal for a node whose GPUs cannot be read."""
    return refusal(job, f"{reason}; an administrator must check this node", cause=drain.NO_DRIVER)


def plugin_refusal(job: JobContext, why: str) -> Refusal:
    """Return the Refusal for a node that does not load the SPANK plugin, so that tasks would run unshared."""
    return refusal(
        job,
        f"Slurm does not load the plugin of slurm-share there, and without it the job would run unshared: {why}; submit"
        f" it again without this node (sbatch --exclude={job.node}), and tell your administrators (slurm-share doctor"
        f" on {job.node})",
        cause=drain.NO_PLUGIN,
    )


def task_prolog_refusal(job: JobContext, script: str, variables: Sequence[str]) -> Refusal:
    """Return the Refusal for a node whose TaskProlog replaces variables of the share in every task."""
    return refusal(
        job,
        f"TaskProlog in slurm.conf is {script}, which sets {' and '.join(variables)} in every task after slurm-share "
        "did, so tasks would leave their GPU, daemon or limits; an administrator must take that out of the script, or "
        f"make it depend on {names.ENV_SLOT} not being set (slurm-share doctor --explain task-prolog)",
    )


_SEE_TO_IT = "an administrator must see to that GPU (nvidia-smi, dmesg | grep -i nvrm)"


def lost_sentence(gpus: Iterable[Gpu]) -> str:
    """Return words for GPUs that do not answer, with the driver's reason."""
    return " and ".join(f"GPU {gpu.index}, which does not answer (the driver: {gpu.problem})" for gpu in gpus)


def state_refusal(job: JobContext, why: str) -> Refusal:
    """Return the Refusal for a node that could not enter the job in its ledger."""
    return refusal(job, f"the node could not enter it: {why}; tell your administrators, and submit the job again")


def no_room_refusal(job: JobContext, folder: str, is_own: bool) -> Refusal:
    """Return the Refusal for a node on which the file system of the job's slots is full.

    is_own: it is the user's own, and nobody else can have filled it.
    """
    if is_own:
        why = (
            "only your own processes fill it: files that your other jobs wrote there are removed when they end, and "
            "others when no process of yours on the node holds them open any more"
        )
    else:
        why = (
            "files that your other jobs wrote there are removed when they end; submit this job again then; if you have "
            "no other job there, tell your administrators"
        )
    return refusal(job, f"{folder} is full on this node: {why}", cause=drain.STATE_FULL)


def crowd_refusal(grant: Grant) -> Refusal:
    """Return the Refusal for a job on a GPU that is full of parts of live jobs.

    They belong to the same user, who may have caused it and alone is affected: the node stays in service.
    """
    return refusal(
        grant.job,
        f"Slurm gave it GPU {grant.gpus[0].index}, all parts of which your other jobs have; an administrator must "
        "compare shards_per_gpu in the configuration with the shards of gres.conf on this node",
        cause=drain.CROWDED,
    )


def _listed(gpus: Sequence[Gpu]) -> str:
    """Return the GPUs' numbers as gres.conf has them."""
    return ", ".join(str(g.minor if g.minor is not None else g.index) for g in gpus) or "none"
