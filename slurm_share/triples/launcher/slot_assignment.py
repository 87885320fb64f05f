"""Assign a GPU to each process of a node, from the Prolog's plan or by the launcher.

If the Prolog has made a plan, its slots are leased, as slurmstepd does for other steps. Otherwise the GPUs of the job
(outside Slurm: the GPUs that CUDA would use) are assigned in turn, and prepared by a backend for this launcher only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...core import names, own_folders
from ...core.errors import LaunchError
from ...core.paths import Paths
from ...core.process import Deadline
from ...core.records import Owner, ShareRequest
from ...core.settings import Settings
from ...core.text import counted
from ...node.records import Driver, Gpu
from ...share import (
    BACKEND_TIME_SLICING,
    Host,
    Leases,
    Leftovers,
    Limits,
    Plan,
    PreparedGpus,
    Refusal,
    Slot,
    allocation,
    driver_caps,
    ledger_file,
    memory_limits,
    registry,
    visible_gpus,
)
from ...slurm.records import JobContext
from ..records import Run

START_S = 60.0
"""Most seconds to start daemons. A server wakes its GPU, which takes seconds on a node with eight GPUs and without
persistence mode; static partitions need ten commands, which take as long on a busy node. Only the run's own tasks wait:
no time limit of Slurm's ends a launcher meanwhile."""

STOP_S = 10.0
"""Most seconds to stop all daemons with their clients and servers."""
LAST_STOP_S = 4.0
"""The same where the job is to end: after the tasks' GRACE_S (loop.py) less than Slurm's KillWait (30 s) is left."""


class LauncherJob(Struct, frozen=True, kw_only=True):
    """The node and the job in which a launcher runs."""

    node: str
    index: int
    """Number of the node in the run, from 0."""
    count: int
    job: str
    """Job as in `records.Ended`."""
    job_id: int | None = None
    """None: outside Slurm."""
    step: int = 0


class BackendGpus(Struct, frozen=True):
    """GPUs that a backend prepared for a launcher without a plan."""

    backend: str
    host: Host
    gpus: tuple[str, ...]


class SlotAssignment(Struct, frozen=True, kw_only=True):
    """The GPUs and slots of a node's processes; all fields are empty without GPUs."""

    gpus: tuple[Gpu | None, ...] = ()
    """The GPU of each process; None: the driver does not describe it."""
    positions: tuple[int, ...] = ()
    """For each process, the position of its GPU among the node's GPUs."""
    slots: tuple[int, ...] = ()
    """For each process, the number of its slot in the Prolog's plan; empty without such a plan."""
    plan: Plan | None = None
    """The plan of the Prolog, or of the launcher itself."""
    gpu_slots: tuple[Slot, ...] = ()
    """For each process, its slot in `plan`."""
    notes: tuple[str, ...] = ()
    own: BackendGpus | None = None
    leases: Leases | None = None
    limits_socket: str = ""
    """Socket of the job's keeper of memory limits; empty: the driver enforces no caps."""


# ---- With a plan ----


def read_plan(paths: Paths, here: LauncherJob) -> Plan | None:
    """Return the job's plan; None: the node has no Prolog of slurm-share, or the job no share.

    Raises LaunchError for a refusal or another user's plan, StateError for a damaged file.
    """
    plan = None if here.job_id is None else ledger_file.read_plan(paths, here.job_id)
    if plan is None:
        return None
    if (plan.job_id, plan.uid) != (here.job_id, os.getuid()):
        raise cannot_run(here, f"its plan belongs to job {plan.job_id} of uid {plan.uid}, not to this job")
    if isinstance(plan, Refusal):
        raise LaunchError(plan.sentence)
    return plan if isinstance(plan, Plan) else None


def lease(run: Run, plan: Plan, processes: int, here: LauncherJob, paths: Paths, settings: Settings) -> SlotAssignment:
    """Lease a slot of the plan for each process, on the GPUs in turn as far as other steps leave slots free.

    A packed run leases all other free slots too, since it books the memory of whole GPUs. In other runs, if the number
    of tasks per GPU was computed for a node that may have fewer GPUs than this one, the caps follow the number that a
    GPU really has. Else the other free slots are leased too: a task that ran out of memory gets that of several slots
    when it runs again.

    Raises LaunchError if there are too few slots, StateError if the slots' folder is damaged. No slot is held then.
    """
    gpu_of_slot = [slot.gpu.uuid for slot in plan.slots]
    if processes > len(plan.slots):
        raise cannot_run(here, _why_too_many(plan, processes))
    plan, limits_socket, why_no_limits = _with_limits(plan, here, paths)
    leases = Leases(paths.slots(plan.job_id), gpu_of_slot, here.step)
    try:
        chosen = leases.take(processes)
        if len(chosen) < processes:
            others = len(plan.slots) - len(chosen)
            raise cannot_run(
                here,
                f"{processes} processes need a slot each, but other steps of the job have {others} of its "
                f"{len(plan.slots)} slots; wait until these steps have ended"
                + (f", or write a triple with {len(chosen)} on a node" if chosen else ""),
            )
        gpus = tuple(plan.slots[slot].gpu for slot in chosen)
        is_packed = run.pack is not None
        share = _real_share(plan, chosen, gpus) if run.is_share_computed and not is_packed else None
        if is_packed or (share is None and not run.together):
            leases.take(len(plan.slots))
    except BaseException:
        leases.close()
        raise
    positions = list(dict.fromkeys(gpu_of_slot))
    notes = [] if here.index == 0 else [*plan.notes]  # the batch shell has printed them on the first node
    notes += why_no_limits
    carried_out = plan
    if share is not None:
        carried_out = allocation.with_fewer_tasks(plan, share, processes, settings)
        notes.append(
            f"{here.node} has {len(plan.gpus)} GPUs, more than --{names.OPTION}={plan.share.per_gpu} was computed for: "
            f"{share.per_gpu} process{'' if share.per_gpu == 1 else 'es'} on a GPU, with caps for as many"
        )
    elif not is_packed and len(plan.slots) > processes and here.index == 0:
        left = len(plan.slots) - processes
        notes.append(
            f"{left} of the {len(plan.slots)} slots of {here.node} {'is' if left == 1 else 'are'} not used: a triple "
            f"with {len(plan.slots)} processes per node would use all"
        )
    return SlotAssignment(
        gpus=gpus,
        positions=tuple(positions.index(gpu_of_slot[slot]) for slot in chosen),
        slots=chosen,
        plan=carried_out,
        gpu_slots=tuple(carried_out.slots[slot] for slot in chosen),
        notes=tuple(notes),
        leases=leases,
        limits_socket=limits_socket,
    )


def _with_limits(plan: Plan, here: LauncherJob, paths: Paths) -> tuple[Plan, str, list[str]]:
    """Return the plan as its tasks can have it here, the socket of the keeper of memory limits if the driver enforces
    their caps, and notes. Raises LaunchError if it does not, and a task may not run without."""
    capped = [slot for slot in plan.slots if slot.is_cap_of_driver]
    if not capped:
        return plan, "", []
    limits_socket = str(paths.job(plan.job_id) / names.LIMITS_SOCKET)
    why = memory_limits.ask(limits_socket, "check")
    if not why:
        return plan, limits_socket, []
    if plan.share.mem_mib is not None and any(slot.mps_directory is None for slot in capped):
        raise cannot_run(here, f"the driver does not limit their memory to {capped[0].memory_cap_mib} MiB ({why})")
    effect = "MPS alone enforces their caps" if capped[0].mps_directory is not None else driver_caps.NO_CAP
    note = f"the driver does not limit the memory of tasks on {here.node} ({why}): {effect}"
    return driver_caps.without(plan), "", [note]


def held_slots(assigned: SlotAssignment) -> Counter[str]:
    """Return the number of leased slots on each GPU (UUID); empty without a plan of the Prolog."""
    plan, leases = assigned.plan, assigned.leases
    if plan is None or leases is None:
        return Counter()
    return Counter(plan.slots[slot].gpu.uuid for slot in leases.slots)


def _real_share(plan: Plan, chosen: Sequence[int], gpus: Sequence[Gpu]) -> ShareRequest | None:
    """Return the share with the number of tasks that a GPU of this node really has; None: keep the plan's share.

    The plan's share is also kept if other steps of the job have slots, if the job has a part of a GPU, or if the sizes
    of the GPUs are not known.
    """
    per_gpu = max(Counter(gpu.uuid for gpu in gpus).values())
    if per_gpu >= plan.share.per_gpu or len(plan.slots) < plan.share.per_gpu * len(plan.gpus):
        return None
    if tuple(chosen) != tuple(range(len(chosen))) or any(gpu.memory_total_mib is None for gpu in gpus):
        return None
    return replace(plan.share, per_gpu=per_gpu)


def _why_too_many(plan: Plan, processes: int) -> str:
    per_gpu = len(plan.slots) // len(plan.gpus)
    if plan.share.per_gpu > per_gpu:
        return (
            f"the job has one of {plan.share.per_gpu} parts of a GPU, for one process; ask for {processes} tasks (-n)"
        )
    lost = f"GPU {','.join(plan.lost)} of the job does not answer, and " if plan.lost else ""
    way_out = f"; or leave the node out (--options=--exclude={plan.node})" if plan.lost else ""
    return f"{lost}{allocation.too_many(processes, per_gpu, len(plan.gpus))}{way_out}"


# ---- Without a plan ----


def deal(
    run: Run,
    visible: str | None,
    driver: Driver | None,
    processes: int,
    why_no_driver: str,
    here: LauncherJob,
    paths: Paths,
    settings: Settings,
) -> SlotAssignment:
    """Assign the GPUs of CUDA_VISIBLE_DEVICES (`visible`) to the processes in turn, prepared by a backend if possible.

    A process of a packed run gets its GPU only when a task starts, and all processes may share one. Each GPU is then
    prepared for at least two tasks, within the backend's limit.

    Raises LaunchError if the processes cannot have GPUs, or if sharing=mps was requested without MPS. Nothing runs
    then.
    """
    try:
        gpus = visible_gpus(visible, None if driver is None else driver.gpus)
    except ValueError as error:
        raise cannot_run(here, str(error)) from error
    gpus, lost = without_lost(gpus, here)
    host, share, is_packed = own_host(paths, settings, here), run.share, run.pack is not None
    if not gpus and here.job_id is None and run.is_share_computed:
        share = (
            None  # computed for the nodes of a job; `llsub --resume --local` runs the rest on a machine without GPUs
        )
    job = JobContext(here.job_id or 0, os.getuid(), os.getgid(), here.node, (), share)
    offers = _offers(driver, why_no_driver, share, host)
    slots = _packed_slots(processes, len(gpus), offers, share) if is_packed and gpus else processes
    grant = allocation.grant(job, gpus, offers, settings, processes=slots)
    if isinstance(grant, Refusal):
        raise LaunchError(grant.sentence)
    own: BackendGpus | None = None
    prepared = PreparedGpus()
    if grant.backend != BACKEND_TIME_SLICING:
        used = tuple(dict.fromkeys(grant.gpus[: grant.slots]))
        owner = Owner(job.uid, job.gid)
        until, partitions = Deadline.after(START_S), grant.partitions
        prepared = registry.get(grant.backend).prepare(host, owner, used, (), until, partitions=partitions)
        own = BackendGpus(grant.backend, host, tuple(prepared.served)) if prepared.served else None
    plan = allocation.decide(grant, prepared, settings)
    if isinstance(plan, Refusal):
        release(own)
        raise LaunchError(plan.sentence)
    given = plan.slots
    if is_packed and given:
        given = tuple(given[number % len(given)] for number in range(processes))
    return SlotAssignment(
        gpus=tuple(slot.gpu if slot.gpu.is_listed else None for slot in given),
        positions=tuple(slot.number % len(plan.gpus) for slot in given),
        plan=plan,
        gpu_slots=given,
        notes=(*lost, *plan.notes),
        own=own,
    )


def without_lost(gpus: Sequence[Gpu], here: LauncherJob) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Return the GPUs that answer, and notes about the others. Raises LaunchError if none answers."""
    lost = [gpu for gpu in gpus if gpu.problem is not None]
    if not lost:
        return tuple(gpus), ()
    answering = tuple(gpu for gpu in gpus if gpu.problem is None)
    said = f"{here.node} has {allocation.lost_sentence(lost)}"
    if not answering:
        raise cannot_run(here, f"{said}, and no other GPU for this run; tell your administrators")
    return answering, (f"{said}: the processes use the other {counted(len(answering), 'GPU')}",)


def _packed_slots(processes: int, gpus: int, offers: Sequence[Limits], share: ShareRequest | None) -> int:
    """Return the number of slots to prepare on all GPUs together, the same number on each."""
    limits = [one.client_limit for one in offers if one.why_not is None and one.client_limit is not None]
    most = min(limits, default=processes)
    if share is not None:
        most = min(most, share.per_gpu)
    return gpus * max(min(-(-processes // gpus), most), min(2, most))


def cannot_run(here: LauncherJob, why: str) -> LaunchError:
    return LaunchError(f"{here.node} cannot run its processes: {why}")


def _offers(driver: Driver | None, why_no_driver: str, share: ShareRequest | None, host: Host) -> tuple[Limits, ...]:
    """Return the limits of the backends that may serve the processes, in order of preference."""
    if driver is not None:
        return tuple(one.limits(driver.version, host) for one in registry.wanted(share, host.settings))
    return tuple(
        one.limits(None) if one.needs_no_driver else replace(one.limits(None), why_not=why_no_driver)
        for one in registry.wanted(share, host.settings)
    )


def own_host(paths: Paths, settings: Settings, here: LauncherJob) -> Host:
    """Return the host with a folder in /tmp for this launcher's daemons.

    Not in $TMPDIR, which may be on a shared disk or have a path too long for a socket. The name is random, so that no
    other user can make it first.
    """
    job = "local" if here.job_id is None else here.job
    name = f"{own_folders.user_folder(os.getuid())}-{job}{own_folders.random_suffix()}"
    return Host(paths=paths, settings=settings, own_folder=paths.tmp / name)


def release(own: BackendGpus | None, within_s: float = STOP_S) -> tuple[str, ...]:
    """End the daemons of this launcher; return the problems as sentences."""
    if own is None:
        return ()
    leftovers = Leftovers(known=frozenset((os.getuid(), gpu) for gpu in own.gpus))
    return registry.get(own.backend).clean_up(own.host, leftovers, Deadline.after(within_s)).problems
