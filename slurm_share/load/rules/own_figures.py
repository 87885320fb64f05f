"""Add what only a user may read to a snapshot that lacks it, and say of it where it is missing that it is not known.

The environments of tasks, and the rates and bookings of launchers, can be read by their user and by root. The agent is
neither. So the user's own step adds them to what the agent answers, and the agent marks them as unknown for everybody
else. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ...mps.records import MPS_NAME
from ...node.readings import HostNow, ProcessNow
from ..snapshot import GpuBooking, GpuLoad, JobLoad, ProcessLoad, Snapshot
from . import rates
from .sums import add_up, first_known, uuids, whole

OF_PROCESS = ("slot", "cap_mib", "connections", "in_advance", "task", "progress")
OF_JOB = ("share", "slots", "sharing", "progress")
"""Fields that come from environments and from files of launchers; of a GPU `booked_mib` and `bookings`."""
NO_REPORT = "only its user and root can read what its launcher of llsub reports"
NO_BOOKINGS = "only their users and root can read what packed runs have booked"
OTHERS_IN_JOB = "only its user's environment tells that some of these processes are the job's"


def closed(snapshot: Snapshot, reader: int) -> Snapshot:
    """Return the snapshot with the reason for each report and booking that its reader, a user id, may not read. Root
    may read all."""
    if reader == 0:
        return snapshot
    return replace(
        snapshot,
        gpus=tuple(_marked(gpu, "booked_mib", NO_BOOKINGS) for gpu in snapshot.gpus),
        processes=tuple(
            one if one.uid == reader else _marked(one, "progress", NO_REPORT) for one in snapshot.processes
        ),
        jobs=tuple(job if job.uid == reader else _marked(job, "progress", NO_REPORT) for job in snapshot.jobs),
    )


_Marked = TypeVar("_Marked", GpuLoad, JobLoad, ProcessLoad)


def _marked(record: _Marked, field: str, why: str) -> _Marked:
    if getattr(record, field) is not None or field in record.unknown:
        return record
    return replace(record, unknown={**record.unknown, field: why})


def with_own(seen: Snapshot, read: HostNow) -> Snapshot:
    """Return a user's part of another reader's snapshot with all that the user may read. `read`: the user's own reading
    of these processes and GPUs. A process that has ended since has no more than it had."""
    told = {(one.pid, one.start_ticks): one for one in read.processes}
    owners = {job.job: job.uid for job in seen.jobs}
    pairs = [(one, told.get((one.pid, one.start_ticks or -1))) for one in seen.processes]
    added = [(one, _process(one, said, owners), said) for one, said in pairs]
    jobs = [_job(job, [each for each in added if each[1].job == job.job]) for job in seen.jobs]
    return replace(
        seen,
        gpus=tuple(_booked(gpu, tuple(read.bookings.get(gpu.uuid, ()))) for gpu in seen.gpus),
        processes=tuple(process for _, process, _ in added),
        jobs=rates.with_progress(jobs, read.runs),
    )


_Added = tuple[ProcessLoad, ProcessLoad, ProcessNow | None]
"""A process as it was, with what its user may read, and the user's own reading of it."""


def _process(one: ProcessLoad, said: ProcessNow | None, owners: Mapping[int, int]) -> ProcessLoad:
    if said is None:
        return one
    # As in `fold`: the environment's word counts for a job of the same user on this node.
    job, step = one.job, one.step
    if job is None and said.job is not None and owners.get(said.job) == one.uid:
        job, step = said.job, said.step
    unknown = {field: why for field, why in one.unknown.items() if field not in OF_PROCESS}
    unknown.update((field, said.unknown[field]) for field in OF_PROCESS if field in said.unknown)
    return replace(
        one,
        job=job,
        step=step,
        task=said.task if job == said.job else one.task,
        slot=said.slot,
        cap_mib=said.cap_mib,
        connections=said.connections,
        in_advance=said.in_advance,
        progress=said.progress,
        unknown=unknown,
    )


def _job(job: JobLoad, processes: Sequence[_Added]) -> JobLoad:
    """Return the job with share and slots from its tasks' environments, and its tasks told apart by these."""
    share = first_known(said.share for _, _, said in processes if said is not None)
    slots = first_known(said.slots for _, _, said in processes if said is not None)
    sharing = first_known(said.sharing for _, _, said in processes if said is not None)
    job = job.with_share(
        job.share if share is None else share,
        job.slots if slots is None else slots,
        job.sharing if sharing is None else sharing,
    )
    job = replace(job, unknown={field: why for field, why in job.unknown.items() if field != "progress"})
    tasks = [said for _, one, said in processes if not one.name.startswith(MPS_NAME)]
    keys = {said.task_key or f"pid {said.pid}" for said in tasks if said is not None}
    if None not in tasks:
        job = replace(job, tasks=len(keys))
    if all(before.job is not None for before, _, _ in processes):
        return job
    own = [one for _, one, _ in processes]
    return replace(
        job,
        gpus=uuids(own),
        gpu_memory_mib=whole(add_up(on.memory_mib for one in own for on in one.gpus)),
        gpu_load=None,
        unknown={**job.unknown, "gpu_load": OTHERS_IN_JOB},
    )


def _booked(gpu: GpuLoad, bookings: tuple[GpuBooking, ...]) -> GpuLoad:
    return replace(
        gpu,
        booked_mib=sum(one.booked_mib for one in bookings) if bookings else None,
        bookings=bookings,
        unknown={field: why for field, why in gpu.unknown.items() if field != "booked_mib"},
    )


# ---- Several steps of one user on a node ----


def joined(newest: Snapshot, others: Sequence[Snapshot]) -> Snapshot:
    """Return the newest of a user's snapshots of one node with what only the others' steps could read: if jobs have a
    /tmp of their own (job_container.conf), a step reads the files of its own job's launchers only."""
    if not others:
        return newest
    processes = [{(one.pid, one.start_ticks): one for one in snapshot.processes} for snapshot in others]
    jobs = [{one.job: one for one in snapshot.jobs} for snapshot in others]
    gpus = [{one.uuid: one for one in snapshot.gpus} for snapshot in others]
    return replace(
        newest,
        gpus=tuple(_all_booked([gpu, *_same(gpus, gpu.uuid)]) for gpu in newest.gpus),
        processes=tuple(
            _known([one, *_same(processes, (one.pid, one.start_ticks))], OF_PROCESS) for one in newest.processes
        ),
        jobs=tuple(_known([job, *_same(jobs, job.job)], OF_JOB) for job in newest.jobs),
    )


_Key = TypeVar("_Key")
_Record = TypeVar("_Record", bound=Struct)


def _same(found: Iterable[Mapping[_Key, _Record]], key: _Key) -> list[_Record]:
    return [each[key] for each in found if key in each]


_Own = TypeVar("_Own", JobLoad, ProcessLoad)


def _known(records: Sequence[_Own], fields: Iterable[str]) -> _Own:
    """Return the first record with the fields that it lacks and a later one has."""
    first, *others = records
    missing = {}
    for field in fields:
        values = [getattr(one, field) for one in others]
        known = next((value for value in values if value is not None), None)
        if getattr(first, field) is None and known is not None:
            missing[field] = known
    if not missing:
        return first
    unknown = {field: why for field, why in first.unknown.items() if field not in missing}
    return replace(first, **missing, unknown=unknown)


def _all_booked(gpus: Sequence[GpuLoad]) -> GpuLoad:
    """Return the first record with the bookings of all: those of a job as in the first record that has any of it."""
    first = gpus[0]
    found: dict[tuple[int, int | None], tuple[GpuBooking, ...]] = {}
    for gpu in gpus:
        of_jobs: dict[tuple[int, int | None], tuple[GpuBooking, ...]] = {}
        for one in gpu.bookings:
            of_jobs[one.uid, one.job] = (*of_jobs.get((one.uid, one.job), ()), one)
        found = {**of_jobs, **found}
    bookings = tuple(one for of_job in found.values() for one in of_job)
    return first if len(bookings) == len(first.bookings) else _booked(first, bookings)
