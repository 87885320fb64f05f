"""Compute the ledger after a job comes, goes, or has ended without an Epilog (a crash, a reboot, a kill)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from ...core.records import ProcessIdentity
from ...slurm.records import JobContext
from .. import option
from ..records import Grant, Leaving, Ledger, LedgerJob, ModeBefore, Plan, UserRemains


def enter(
    ledger: Ledger,
    job: JobContext,
    grant: Grant | None,
    now: float,
    clean_up: tuple[str, ...] = (),
    on_gpu: int | None = None,
) -> Ledger:
    """Return the ledger with an entry of the job, which replaces an earlier one (a requeue, a second Prolog).

    grant: None for an ordinary job. on_gpu: the number of the job's part of its GPU (`free_part`), if it has one.
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
        has_step=job.nodes == 1 and (job.is_batch or job.direct),
    )
    before = leave(ledger, job.job_id)
    return replace(before, jobs=(*before.jobs, entry))


def leave(ledger: Ledger, job_id: int) -> Ledger:
    """Return the ledger without the job; the same ledger if the job was not in it."""
    return replace(ledger, jobs=tuple(entry for entry in ledger.jobs if entry.job_id != job_id))


def begin_leaving(ledger: Ledger, over: Iterable[LedgerJob], hook: ProcessIdentity) -> Ledger:
    """Return the ledger in which these jobs are leaving and `hook` cleans up after them, also after those that an
    earlier hook was cleaning up after."""
    over = tuple(over)
    earlier = {one.job: one for one in ledger.leaving}
    leaving = tuple(replace(earlier.get(entry, Leaving(entry, hook)), hook=hook) for entry in over)
    rest = end_leaving(ledger, over)
    return replace(rest, leaving=(*rest.leaving, *leaving))


def asides_of(ledger: Ledger, over: Collection[LedgerJob]) -> tuple[str, ...]:
    """Return the folders with files of these jobs that were moved aside to be removed."""
    return tuple(aside for one in ledger.leaving if one.job in over for aside in one.asides)


def name_aside(ledger: Ledger, entry: LedgerJob, aside: str) -> Ledger:
    """Return the ledger with one more folder of files of the job that are moved aside."""
    leaving = [replace(one, asides=(*one.asides, aside)) if one.job == entry else one for one in ledger.leaving]
    return replace(ledger, leaving=tuple(leaving))


AGAIN_S = 86_400.0
"""The time after which the log names remains again that have not changed."""


def remaining(entry: LedgerJob, remains: Iterable[UserRemains]) -> str:
    """Return what remains of a job and its user and keeps its entry in the ledger; empty: nothing."""
    found = [
        one.why
        for one in remains
        if one.uid == entry.uid and one.gpu in (None, *entry.gpus) and one.job_id in (None, entry.job_id)
    ]
    return "; ".join(dict.fromkeys(found))


def with_noted_remains(ledger: Ledger) -> frozenset[LedgerJob]:
    """Return the leaving jobs of which the log says that something remains."""
    return frozenset(one.job for one in ledger.leaving if one.why)


def note_remains(
    ledger: Ledger, over: Collection[LedgerJob], remains: Collection[UserRemains], now: float
) -> tuple[Ledger, tuple[Leaving, ...]]:
    """Return the ledger with what remains of each leaving job in `over`, and the entries to log: those for which it is
    new, has changed, or was logged AGAIN_S ago.

    Every hook tries again, and a user can leave any number of jobs: without this the log would grow with both.
    """
    leaving, said = [], []
    for one in ledger.leaving:
        why = remaining(one.job, remains) if one.job in over else one.why
        if one.job in over and why and (why != one.why or not 0 <= now - one.said < AGAIN_S):
            said.append(one := replace(one, why=why, said=now))
        leaving.append(one)
    return replace(ledger, leaving=tuple(leaving)), tuple(said)


def end_leaving(ledger: Ledger, over: Collection[LedgerJob]) -> Ledger:
    """Return the ledger without these jobs, whose clean-up is finished."""
    return replace(without(ledger, over), leaving=tuple(one for one in ledger.leaving if one.job not in over))


def abandoned(ledger: Ledger, living: Collection[ProcessIdentity]) -> tuple[LedgerJob, ...]:
    """Return the leaving jobs whose hook is not among the `living`: it was killed, or had no more time."""
    return tuple(one.job for one in ledger.leaving if one.hook not in living)


def find(ledger: Ledger, job_id: int) -> LedgerJob | None:
    """Return the job's entry; None if there is none."""
    return next((entry for entry in ledger.jobs if entry.job_id == job_id), None)


def is_late(entry: LedgerJob | None, job: JobContext) -> bool:
    """Return whether the Epilog of `job` belongs to an earlier run of a job that was requeued and is here again."""
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
    slurmd_start: float | None = None,
) -> tuple[LedgerJob, ...]:
    """Return the entries without an Epilog (slurmd was killed, another script failed before ours) whose jobs the
    arrival of `job`, or a missing step, proves to have ended. slurmd_start: of the oldest slurmd here, in seconds since
    boot; None: not known.

    Slurm gives a whole node, a user's node, or a GPU to a new job only when the previous one has ended. But jobs of one
    user can have parts of a GPU at the same time: then an arrival proves only that there is room for it, so the oldest
    entries that leave no room have ended. A job without a share can have a part (gres/shard), too, which a hook is not
    told. Entries whose jobs have a step here are kept, and so are parts that have just begun.

    A job that has a step until its end, and has none, has ended if the slurmd that ran its Prolog is gone: a slurmd
    that lives may still run another site's Prolog, for minutes, before it starts the step.
    """
    rest = [entry for entry in ledger.jobs if not _is_same(entry, job) and entry.job_id not in live_jobs]
    over = [
        entry
        for entry in rest
        if entry.job_id == job.job_id
        or job.exclusive == "node"
        or is_unlaunched(entry, slurmd_start, now)
        or (job.exclusive == "user" and entry.uid != job.uid)
        or (
            any(uuid in granted for uuid in entry.gpus)
            and (entry.uid != job.uid or len(granted) > 1 or len(entry.gpus) > 1)
        )
    ]
    if grant is not None:
        # A whole GPU is different: Slurm never gives one as a whole and in parts, whatever a site counts as a part.
        settled = [
            one
            for one in rest
            if one not in over and not (grant.is_part and one.on_gpu is not None and is_starting(one, now))
        ]
        parts = _in_the_way(without(ledger, over), grant, settled)
        over += parts
    return tuple(over)


def is_unlaunched(entry: LedgerJob, slurmd_start: float | None, now: float) -> bool:
    """Return whether a job without a step here has ended, or is never going to start: each slurmd here is younger than
    its Prolog. One that restarts in the usual way first starts the steps whose Prologs it runs (seen on 26.05)."""
    return entry.has_step and slurmd_start is not None and entry.since < slurmd_start and not is_starting(entry, now)


def _is_same(entry: LedgerJob, job: JobContext) -> bool:
    """Return whether the entry belongs to the job. A controller that lost its state can assign a number again, to
    another user."""
    return entry.job_id == job.job_id and entry.uid == job.uid


STARTING_S = 30.0
"""The time after the beginning of a Prolog in which its job may have no step yet: the Prolog takes up to 13 s, and then
slurmd waits for BatchStartTimeout, 10 s by default."""


def is_starting(entry: LedgerJob, now: float) -> bool:
    """Return whether the job's Prolog began less than STARTING_S ago."""
    return 0 <= now - entry.since < STARTING_S


def _in_the_way(ledger: Ledger, grant: Grant, removable: Collection[LedgerJob]) -> list[LedgerJob]:
    """Return the oldest entries, as few as give the grant's job room; empty if even all of them would not."""
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
    """Return the part of each of its GPUs that a job has: 1, or 1/N."""
    share = option.parse(entry.share) if entry.on_gpu is not None else None
    return 1.0 if share is None else 1.0 / share.per_gpu


def is_crowded(ledger: Ledger, grant: Grant) -> bool:
    """Return whether the grant's job asks for more of a GPU than the others leave."""
    wanted = 1.0 / grant.share.per_gpu if grant.is_part else 1.0
    others = [entry for entry in ledger.jobs if entry.job_id != grant.job.job_id]
    taken = (sum(part(entry) for entry in others if gpu.uuid in entry.gpus) for gpu in grant.gpus)
    return any(one + wanted > 1.0 + 1e-9 for one in taken)  # thirds do not add up to 1


def free_part(ledger: Ledger, grant: Grant) -> int | None:
    """Return the number of the part of its GPU that the job takes; None: it has whole GPUs.

    Part k of N is the interval from k/N to (k+1)/N of the GPU. Take the first that overlaps with no other job's; if
    parts of different sizes leave none, the first number that no job with the same N has.
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


def is_in_use(ledger: Ledger, gpu: str, except_job: int | None = None) -> bool:
    """Return whether any job except `except_job` has the GPU."""
    return any(gpu in entry.gpus and entry.job_id != except_job for entry in ledger.jobs)


def remember_mode(ledger: Ledger, gpu: str, mode: int) -> Ledger:
    """Return the ledger with the compute mode to restore. Keep a recorded one: a later mode is our own."""
    if any(before.gpu == gpu for before in ledger.modes):
        return ledger
    return replace(ledger, modes=(*ledger.modes, ModeBefore(gpu, mode)))


def forget_mode(ledger: Ledger, gpu: str) -> Ledger:
    """Return the ledger without the GPU's compute mode, which has been restored."""
    return replace(ledger, modes=tuple(before for before in ledger.modes if before.gpu != gpu))


def rebuild(boot_id: str, plans: Iterable[Plan]) -> Ledger:
    """Return a ledger made from the plans of this node's jobs, for a damaged ledger. Compute modes are lost."""
    return Ledger(boot_id, tuple(entry_of(plan, 0.0) for plan in plans))


def entry_of(plan: Plan, since: float) -> LedgerJob:
    """Return the ledger entry that a job's plan implies."""
    # The user can own the file and have changed it: check before dividing or indexing.
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


def has_job(ledger: Ledger, uid: int, folder: str) -> bool:
    """Return whether a job of the user in the ledger has the GPU whose daemon is in the folder. The folder's name has
    the beginning and the end of the GPU's UUID (see paths.py)."""
    first, _, last = folder.rpartition("/")[2].partition("-")
    jobs = [*ledger.jobs, *(one.job for one in ledger.leaving)]
    gpus = [gpu.partition("-")[2].replace("/", "") for job in jobs if job.uid == uid for gpu in job.gpus]
    return any(gpu.startswith(first) and gpu.endswith(last) for gpu in gpus)
