"""Decide how the ledger changes when a job comes, goes, or has ended without an Epilog (a crash, a reboot, a kill)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from ...core.records import ProcessIdentity
from ...slurm.records import JobContext
from .. import option
from ..records import (
    Grant,
    Leaving,
    Ledger,
    LedgerJob,
    ModeBefore,
    Plan,
)


def enter(
    ledger: Ledger,
    job: JobContext,
    grant: Grant | None,
    now: float,
    clean_up: tuple[str, ...] = (),
    on_gpu: int | None = None,
) -> Ledger:
    """Return the ledger with the job in it, and what it has of the node if it is shared; an earlier entry of that job
    (a requeue, a second Prolog) gives way.

    on_gpu: of a job that has a part of a GPU, its number among the parts (`free_part`).
    """
    entry = LedgerJob(
        job_id=job.job_id,
        uid=job.uid,
        share="" if grant is None else option.render(grant.share),
        gpus=() if grant is None else tuple(gpu.uuid for gpu in grant.gpus),
        slots=0 if grant is None else grant.slots,
        since=now,
        restart_count=job.restart_count,
        user=job.user,
        partition=job.partition,
        sluid=job.sluid,
        on_gpu=on_gpu,
        clean_up=clean_up,
    )
    before = leave(ledger, job.job_id)
    return replace(before, jobs=(*before.jobs, entry))


def leave(ledger: Ledger, job_id: int) -> Ledger:
    """Return the ledger without the job; the same ledger if the job was not in it."""
    return replace(ledger, jobs=tuple(entry for entry in ledger.jobs if entry.job_id != job_id))


def begin_leaving(ledger: Ledger, over: Iterable[LedgerJob], hook: ProcessIdentity) -> Ledger:
    """Return the ledger in which these jobs are no longer here, and `hook` cleans up after them. Jobs that an
    earlier hook was cleaning up after are `hook`'s from now on."""
    over = tuple(over)
    return replace(
        ledger,
        jobs=tuple(entry for entry in ledger.jobs if entry not in over),
        leaving=(
            *(one for one in ledger.leaving if one.job not in over),
            *(Leaving(entry, hook, asides_of(ledger, (entry,))) for entry in over),
        ),
    )


def asides_of(ledger: Ledger, over: Collection[LedgerJob]) -> tuple[str, ...]:
    """Return the folders in which something of these jobs waits to be removed."""
    return tuple(aside for one in ledger.leaving if one.job in over for aside in one.asides)


def name_aside(ledger: Ledger, entry: LedgerJob, aside: str) -> Ledger:
    """Return the ledger that knows of one more such folder."""
    leaving = [replace(one, asides=(*one.asides, aside)) if one.job == entry else one for one in ledger.leaving]
    return replace(ledger, leaving=tuple(leaving))


def end_leaving(ledger: Ledger, over: Iterable[LedgerJob]) -> Ledger:
    """Return the ledger without these jobs that were being cleaned up after: nothing of them is left."""
    over = tuple(over)
    return replace(
        ledger,
        jobs=tuple(entry for entry in ledger.jobs if entry not in over),
        leaving=tuple(one for one in ledger.leaving if one.job not in over),
    )


def abandoned(ledger: Ledger, living: Collection[ProcessIdentity]) -> tuple[LedgerJob, ...]:
    """Return the jobs whose clean-up was begun by a hook that is not among the `living`: it was killed, or had no
    time."""
    return tuple(one.job for one in ledger.leaving if one.hook not in living)


def find(ledger: Ledger, job_id: int) -> LedgerJob | None:
    """Return the job's entry; None if there is none."""
    return next((entry for entry in ledger.jobs if entry.job_id == job_id), None)


def is_late(entry: LedgerJob | None, job: JobContext) -> bool:
    """Return whether an Epilog is about an earlier run of a job that has been requeued and is here again."""
    return (
        entry is not None
        and entry.restart_count is not None
        and job.restart_count is not None
        and job.restart_count < entry.restart_count
    )


def stale(
    ledger: Ledger,
    job: JobContext,
    grant: Grant | None,
    granted: Collection[str],
    live_jobs: Collection[int],
    now: float,
) -> tuple[LedgerJob, ...]:
    """Return the entries whose Epilog never came (a power cut of slurmd, another script's failure before ours), as
    far as the arrival of `job` proves them over.

    Slurm gives a whole node, a user's node, or a GPU to a new job only when the one before has ended. Jobs of one user
    can have parts of a GPU at the same time: then an arrival only proves that there is room for it, so the oldest
    entries that leave it no room are over. A job without a share may have a GPU as gres/shard, too, of which a hook is
    not told. An entry whose job has a step here is kept in any case, and so is one with a part that has just begun.
    """
    rest = [entry for entry in ledger.jobs if not _is_same(entry, job) and entry.job_id not in live_jobs]
    over = [
        entry
        for entry in rest
        if entry.job_id == job.job_id
        or job.exclusive == "node"
        or (job.exclusive == "user" and entry.uid != job.uid)
        or (
            any(uuid in granted for uuid in entry.gpus)
            and (entry.uid != job.uid or len(granted) > 1 or len(entry.gpus) > 1)
        )
    ]
    if grant is not None:
        settled = [one for one in rest if one not in over and not (grant.is_part and is_starting(one, now))]
        parts = _in_the_way(without(ledger, over), grant, settled)
        over += parts
    return tuple(over)


def _is_same(entry: LedgerJob, job: JobContext) -> bool:
    """Return whether the entry is of that job. The same number with another user was given again by a controller
    that lost its state."""
    return entry.job_id == job.job_id and entry.uid == job.uid


STARTING_S = 30.0
"""A job whose Prolog has begun has no step yet: the Prolog may take its 13 s, and then slurmd gives the job no more
than BatchStartTimeout, 10 s by default, to get one."""


def is_starting(entry: LedgerJob, now: float) -> bool:
    """Return whether the job's Prolog was here a moment ago."""
    return 0 <= now - entry.since < STARTING_S


def with_unix_time(entry: LedgerJob, uptime_s: float, unix_s: float) -> LedgerJob:
    """Return the entry with Unix time in `since`, for people.

    uptime_s, unix_s: the same moment, now, on both clocks. A time that is not over yet was written by a release that
    noted Unix time.
    """
    return entry if entry.since > uptime_s else replace(entry, since=unix_s - uptime_s + entry.since)


def _in_the_way(ledger: Ledger, grant: Grant, removable: Collection[LedgerJob]) -> list[LedgerJob]:
    """Return the oldest of the entries that must be over for the grant's job to have room; none if all of them would
    not be enough: then it is not they who are in the way."""
    found: list[LedgerJob] = []
    for entry in sorted(removable, key=lambda entry: entry.since):
        if not is_crowded(ledger, grant):
            break
        if any(gpu.uuid in entry.gpus for gpu in grant.gpus):
            found.append(entry)
            ledger = without(ledger, (entry,))
    return [] if is_crowded(ledger, grant) else found


def without(ledger: Ledger, over: Collection[LedgerJob]) -> Ledger:
    """Return the ledger without these entries."""
    return replace(ledger, jobs=tuple(entry for entry in ledger.jobs if entry not in over))


def part(entry: LedgerJob) -> float:
    """Return how much of each of its GPUs a job has: all, or 1/N."""
    share = option.parse(entry.share) if entry.on_gpu is not None else None
    return 1.0 if share is None else 1.0 / share.per_gpu


def is_crowded(ledger: Ledger, grant: Grant) -> bool:
    """Return whether the grant's job asks for more of a GPU than the others leave."""
    wanted = 1.0 / grant.share.per_gpu if grant.is_part else 1.0
    others = [entry for entry in ledger.jobs if entry.job_id != grant.job.job_id]
    taken = (sum(part(entry) for entry in others if gpu.uuid in entry.gpus) for gpu in grant.gpus)
    return any(one + wanted > 1.0 + 1e-9 for one in taken)  # thirds do not add up to 1


def free_part(ledger: Ledger, grant: Grant) -> int | None:
    """Return which of the N parts of its GPU the job takes, beside other jobs; None: it has whole GPUs.

    Slot k of N is the stretch from k/N to (k+1)/N of the GPU: the first that nobody is on. Where parts of unlike size
    leave room in pieces only, it is the first number that no job with the same N has.
    """
    if not grant.is_part:
        return None
    gpu, per_gpu = grant.gpus[0], grant.share.per_gpu
    others = [
        (entry.on_gpu, round(1 / part(entry)))
        for entry in ledger.jobs
        if gpu.uuid in entry.gpus and entry.job_id != grant.job.job_id and entry.on_gpu is not None
    ]
    free = [
        k for k in range(per_gpu) if all((k + 1) * n <= i * per_gpu or (i + 1) * per_gpu <= k * n for i, n in others)
    ]
    free += [k for k in range(per_gpu) if (k, per_gpu) not in others]
    return free[0] if free else 0


def is_in_use(ledger: Ledger, gpu: str, besides: int | None = None) -> bool:
    """Return whether any job (besides that one) has the GPU."""
    return any(gpu in entry.gpus and entry.job_id != besides for entry in ledger.jobs)


def remember_mode(ledger: Ledger, gpu: str, mode: int) -> Ledger:
    """Return the ledger with the compute mode to restore. The first one counts: a later one would be our own."""
    if any(before.gpu == gpu for before in ledger.modes):
        return ledger
    return replace(ledger, modes=(*ledger.modes, ModeBefore(gpu, mode)))


def forget_mode(ledger: Ledger, gpu: str) -> Ledger:
    """Return the ledger without that mode, which has been restored."""
    return replace(ledger, modes=tuple(before for before in ledger.modes if before.gpu != gpu))


def rebuild(boot_id: str, plans: Iterable[Plan]) -> Ledger:
    """Return a ledger made of the plans of this node's jobs, for when the ledger itself cannot be read. The modes
    that GPUs had before are in no plan."""
    return Ledger(boot_id, tuple(entry_of(plan, 0.0) for plan in plans))


def entry_of(plan: Plan, since: float) -> LedgerJob:
    """Return the entry that a job's plan tells of."""
    # The file may be its user's, who may have written something else into it.
    is_part = 0 < len(plan.slots) < plan.share.per_gpu * len(plan.gpus)
    return LedgerJob(
        plan.job_id,
        plan.uid,
        option.render(plan.share),
        tuple(gpu.uuid for gpu in plan.gpus),
        len(plan.slots),
        since,
        on_gpu=plan.slots[0].on_gpu if is_part else None,
    )
