"""Admit a job to this node: ask driver and kernel, enter it in the ledger, prepare its GPUs, decide, write the plan."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from slurm_share.core.errors import ConfigError, DriverError, StateError, UsageError
from slurm_share.core.paths import CONFIG_FILE, Paths
from slurm_share.core.process import Deadline
from slurm_share.core.records import Owner
from slurm_share.core.settings import Settings
from slurm_share.node import processes as node_processes
from slurm_share.node import topology
from slurm_share.node.gpus import compute_mode
from slurm_share.node.gpus import driver as nvml
from slurm_share.node.records import Gpu, LiveJob
from slurm_share.share import option, state, user_folder
from slurm_share.share.backends import registry
from slurm_share.share.backends.base import UNDO_S, Host
from slurm_share.share.records import (
    BACKEND_TIME_SLICING,
    Grant,
    Ledger,
    LedgerJob,
    Limits,
    Plan,
    Prepared,
    Refusal,
)
from slurm_share.share.rules import allocation, drain, granted, owners, reconcile
from slurm_share.slurm import hook_env
from slurm_share.slurm.records import JobContext

from . import hook, release

WHO = "prolog"

SLACK_S = 5.0
"""Seconds beyond hook_deadline_s after which the watchdog ends a Prolog: base.UNDO_S for undoing what a backend began,
and some time for processes to end after SIGKILL."""
CLEAR_RATIO = 0.5
"""The part of a Prolog's time for cleaning up after earlier jobs. Preparing the GPUs needs the rest."""
PATIENCE_S = 4.0
"""How long a job waits for one that should have ended; at most half of the remaining time, since cleaning up and
preparing need the rest."""
POLL_S = 0.1
"""The pause between two checks whether such a job has ended."""
OLD_S = 1.0
"""A list of live jobs that is older than this refuses no job: the one in the way may have ended."""


def admit_job(environ: Mapping[str, str], paths: Paths, settings: Settings, now: float) -> bool:
    """Decide about the job in `environ` and write the decision where its tasks look for it. Return False if the node is
    to be drained (share/rules/drain.py).

    Raises HookEnvError for an environment that is not slurmd's, StateError, OSError where state cannot be written.
    """
    job = read_job(environ)
    deadline = Deadline.after(settings.hook_deadline_s)
    last = Deadline(deadline.at + UNDO_S)
    if is_anothers(job, paths, last):
        hook.report(WHO, f"job {job.job_id} lives here, and not as one of uid {job.uid}: nothing is done for it")
        return True
    state.remove_unshared(paths, job.job_id)
    state.remove_plan(paths, job.job_id)  # first: the driver may hang, and no task may follow an earlier run's plan
    entry = Entry(read_grant(job, paths, settings))
    well = True
    listed = is_listed(job.node, settings)
    if job.share is not None or listed or paths.ledger.exists():
        entry = enter(job, entry.grant, environ, paths, settings, deadline, now, listed=listed)
        well = not drain.drains(release.clear(entry.over, paths, settings, deadline.part(CLEAR_RATIO), WHO))
    prepared = Prepared()
    if isinstance(entry.grant, Grant) and entry.grant.backend != BACKEND_TIME_SLICING:
        prepared = prepare(entry.grant, paths, settings, deadline, last)
        if not is_entered(job, paths, last):
            # slurmd was killed meanwhile, and the one after it has ended the job
            hook.report(WHO, f"job {job.job_id}: its Epilog was here already; what was started for it ends")
            release.clear((), paths, settings, last, WHO)
            return well
    decision = decide(job, entry, prepared, paths, settings)
    if isinstance(decision, Refusal) and isinstance(entry.grant, Grant):
        give_back(job.job_id, paths, settings, last)
    if decision is not None or job.share_problem is not None:
        hook.report(WHO, sentence(job, decision))
    if decision is not None:
        state.write_plan(paths, decision, job.gid)
    if isinstance(decision, Refusal):
        well = hook.count_refusal(WHO, paths, job.job_id, decision.cause) and well
    return well


def read_job(environ: Mapping[str, str]) -> JobContext:
    """Return the job in `environ`, and whether its GPUs are surely those of this node.

    Raises HookEnvError for an environment that is not slurmd's.
    """
    job = hook_env.read(environ, option.parse)
    if job.nodes in (None, 1) or job.node_list is None:
        return job
    from slurm_share.core import nodelist  # only for jobs of several nodes: the import takes time

    try:
        has_all = len(nodelist.unfold(job.node_list)) >= job.nodes
    except UsageError:
        has_all = False
    return job if has_all else replace(job, has_sure_gpus=False)


def decide(
    job: JobContext, entry: Entry, prepared: Prepared, paths: Paths, settings: Settings
) -> Plan | Refusal | None:
    """Return the decision and make the job's slots; None for an ordinary job. It is a Refusal where there is no room
    for the slots. That never drains the node: the user's own jobs may have filled the file system."""
    decision: Plan | Refusal | None = None
    if isinstance(entry.grant, Grant):
        decision = allocation.decide(entry.grant, prepared, settings, cores=topology.read_cores(), on_gpu=entry.on_gpu)
    elif entry.grant is not None:
        decision = entry.grant
    if decision is None:
        return None
    has_room = make_slots(job, len(decision.slots) if isinstance(decision, Plan) else 0, paths)
    if isinstance(decision, Plan) and not has_room:
        return allocation.no_room_refusal(job, str(paths.user))
    return decision


def make_slots(job: JobContext, slots: int, paths: Paths) -> bool:
    """Make the files of the job's slots; return False where there is no room for them."""
    try:
        state.make_slots(paths, job.job_id, slots, Owner(job.uid, job.gid))
    except OSError as error:
        if error.errno not in hook.NO_ROOM:
            raise
        hook.report(WHO, hook.explain(error))
        return False
    return True


def give_users_folder(paths: Paths) -> None:
    """Mount the second file system, for the files of users, if it is not mounted yet and the mount would hide nothing.

    A node where it cannot be mounted works without it; doctor tells about it.
    """
    state.prepare(paths)
    if not user_folder.lacks_mount(paths):
        return
    with state.exclusive(paths, Deadline.after(release.LEDGER_S)):
        try:
            if user_folder.lacks_mount(paths):
                user_folder.mount(paths)
        except StateError as error:
            hook.report(WHO, str(error))


def refuse_unentered(environ: Mapping[str, str], paths: Paths, why: str) -> None:
    """Write a refusal for the tasks of a shared job that could not be entered in the ledger, so that they do not run
    unshared.

    Raises HookEnvError for an environment that is not slurmd's, OSError where state cannot be written; the plugin then
    finds no plan, and ends the tasks itself.
    """
    job = hook_env.read(environ, option.parse)
    if job.share is None:
        return
    refusal = allocation.state_refusal(job, why)
    state.prepare(paths)
    state.make_job_folder(paths, job.job_id)
    state.write_plan(paths, refusal, job.gid)


def read_grant(job: JobContext, paths: Paths, settings: Settings) -> Grant | Refusal | None:
    """Return what a job has of this node; None for one without a share. Where the driver does not answer it is a
    Refusal, since the job's GPUs cannot be identified."""
    if job.share is None:
        return None
    try:
        driver = hook.ask_driver(nvml.read_driver)
    except DriverError as error:
        return allocation.driver_refusal(job, str(error))
    return allocation.admit(job, driver.gpus, read_offers(job, paths, settings, driver.version), settings)


def granted_uuids(job: JobContext) -> list[str]:
    """Return the UUIDs of an ordinary job's GPUs; an empty list where the driver does not answer."""
    try:
        return [gpu.uuid for gpu in granted.granted_gpus(job.granted, hook.ask_driver(nvml.read_driver).gpus)[0]]
    except DriverError:
        return []


def read_offers(job: JobContext, paths: Paths, settings: Settings, driver: str) -> Iterator[Limits]:
    """Return what the backends that may serve the job can do on this node, in order of preference. Each is looked at
    when it is asked for."""
    host = Host(paths=paths, settings=settings)
    return (backend.limits(driver, host) for backend in registry.wanted(job.share))


def is_anothers(job: JobContext, paths: Paths, deadline: Deadline) -> bool:
    """Return whether a job of that number lives here and belongs to another user: then its state must not change."""
    if not paths.job(job.job_id).exists():
        return False
    with state.exclusive(paths, deadline.at_most(release.LEDGER_S)):
        known = reconcile.find(hook.read_ledger(paths, WHO), job.job_id)
    if known is None or known.uid == job.uid:
        return False
    return any(one.job_id == job.job_id for one in release.running_jobs())


def is_entered(job: JobContext, paths: Paths, deadline: Deadline) -> bool:
    """Return whether the ledger still has the job."""
    with state.exclusive(paths, deadline.at_most(release.LEDGER_S)):
        return reconcile.find(hook.read_ledger(paths, WHO), job.job_id) is not None


class Judged(Struct, frozen=True):
    """What a job has of the node, with the jobs that are on it taken into account."""

    grant: Grant | Refusal | None
    over: tuple[LedgerJob, ...]
    """Jobs in the ledger that are over and had no Epilog."""
    neighbours: tuple[LiveJob, ...] = ()
    """Jobs of other users, which are the reason for a refusal."""

    def uids(self) -> frozenset[int]:
        """Return the users of the neighbours."""
        return frozenset(one.uid for one in self.neighbours if one.uid is not None)


class Entry(Struct, frozen=True):
    """The result of entering a job in the ledger."""

    grant: Grant | Refusal | None
    over: tuple[LedgerJob, ...] = ()
    """Jobs that are over and had no Epilog: this hook cleans up after them."""
    on_gpu: int | None = None
    """Which part of the GPU the job has."""


def enter(
    job: JobContext,
    grant: Grant | Refusal | None,
    environ: Mapping[str, str],
    paths: Paths,
    settings: Settings,
    deadline: Deadline,
    now: float,
    *,
    listed: bool,
) -> Entry:
    """Decide whether the job may run beside the jobs that are here, and enter it in the ledger if it may and is shared,
    or if the node is `listed` (kept to one user).

    Where other jobs are in the way, wait for PATIENCE_S: Slurm gives a job its GPUs, or a listed node, alone. But when
    the controller has lost sight of a node for a while, it starts jobs there before the earlier ones have ended. They
    end within moments, and the new job need not be refused for them.

    The ledger is written before anything is started: a hook that stops a daemon first looks there, under that GPU's own
    lock, whether a new job has come to the GPU. What takes long is done without the ledger's lock, for which all hooks
    of the node wait: a directory service may answer slowly, and a user may have left so many processes that to list
    them takes longer than everything else. The list of live jobs may therefore be a moment older than the ledger. That
    does no harm: a step proves that its job lives, and a missing step proves nothing.
    """
    guarded = job.share is not None or listed
    state.prepare(paths)
    patience = deadline.at_most(min(PATIENCE_S, deadline.left() / 2))
    began, at = time.monotonic(), now
    asked: frozenset[int] = frozenset()
    shown: Mapping[int, str] = {}
    while True:
        read_at = time.monotonic()
        steps = node_processes.read_live_jobs() if guarded or paths.ledger.exists() else ()
        with state.exclusive(paths, deadline):
            ledger = hook.read_ledger(paths, WHO)
            live = owners.running(steps)
            judged = judge(job, grant, ledger, live, at, shown, guarded=guarded)
            is_in_the_way = isinstance(judged.grant, Refusal) and not isinstance(grant, Refusal)
            waits = is_in_the_way and (patience.left() > 0 or time.monotonic() - read_at > OLD_S)
            if not waits and judged.uids() <= asked:
                report_idle([one for one in steps if one not in live], ledger)
                return write_down(job, judged, ledger, paths, settings, at, listed=listed)
        if waits:
            time.sleep(POLL_S)
        else:
            asked |= judged.uids()
            shown = read_names(asked, environ)
        at = now + time.monotonic() - began


def report_idle(steps: Iterable[LiveJob], ledger: Ledger) -> None:
    """Log the jobs whose tasks have ended while their slurmstepd is still there."""
    for one in steps:
        if reconcile.find(ledger, one.job_id) is not None:
            hook.report(
                WHO,
                f"job {one.job_id} has a slurmstepd here, {one.without_task_s:.0f} s old, that has no task any more "
                "and does not end, as one that slurmctld does not answer: it keeps nobody away",
            )


def write_down(
    job: JobContext, judged: Judged, ledger: Ledger, paths: Paths, settings: Settings, now: float, *, listed: bool
) -> Entry:
    """Write the job into `ledger` and make its folder. The caller holds the ledger's lock and has read `ledger`."""
    for entry in judged.over:
        hook.report(WHO, f"job {entry.job_id} of uid {entry.uid} is over and had no Epilog: clearing up after it")
    over, ledger = release.take_over(ledger, judged.over, paths, settings, WHO)
    grant = judged.grant
    on_gpu = reconcile.free_part(ledger, grant) if isinstance(grant, Grant) else None
    enters = job.share is not None or listed
    wanted = owners.clean_up(job, settings, is_listed=listed) if enters else None
    after = ledger
    if wanted is not None and not isinstance(grant, Refusal):
        after = reconcile.enter(ledger, job, grant, now, wanted, on_gpu)
    if enters or isinstance(grant, Refusal):
        # An Epilog of an earlier run may have removed the folder. From here on it does not: the ledger has the job.
        state.make_job_folder(paths, job.job_id)
    if after != ledger:
        state.write_ledger(paths, after, settings)
    return Entry(grant, over, on_gpu)


def judge(
    job: JobContext,
    grant: Grant | Refusal | None,
    ledger: Ledger,
    live: Sequence[LiveJob],
    now: float,
    shown: Mapping[int, str],
    *,
    guarded: bool,
) -> Judged:
    """Return the grant, or a Refusal because of the jobs that are here, and the ledger's jobs that are over. Changes
    nothing.

    `shown`: names of other users that may be told to this job's user.
    """
    has = grant if isinstance(grant, Grant) else None
    granted = [gpu.uuid for gpu in has.gpus] if has is not None else granted_uuids(job) if ledger.jobs else []
    if not job.has_sure_gpus:
        granted = []  # they prove nothing about the jobs that have them
    over = reconcile.stale(ledger, job, has if job.has_sure_gpus else None, granted, [one.job_id for one in live], now)
    left = reconcile.without(ledger, over)
    neighbours = owners.others(job, left, live, now) if guarded else ()
    if neighbours:
        return Judged(owners.refuse(job, neighbours, shown), over, neighbours)
    if has is not None and reconcile.is_crowded(left, has):
        return Judged(allocation.crowd_refusal(has) if job.has_sure_gpus else allocation.unsure_refusal(job), over)
    return Judged(grant, over)


def read_names(uids: Iterable[int], environ: Mapping[str, str]) -> dict[int, str]:
    """Return uid -> name, for a job's output; nothing where Slurm hides users from each other."""
    return {} if read_hides_owners(environ) else {uid: node_processes.read_user_name(uid) for uid in uids}


def is_listed(node: str, settings: Settings) -> bool:
    """Return whether the site keeps this node to one user at a time (exclusive_user_nodes), for ordinary jobs, too."""
    listed = settings.exclusive_user_nodes
    if node in listed:
        return True
    folded = [names for names in listed if "[" in names or "," in names]
    if not folded:
        return False
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        return any(node in NodeSet(names, resolver=RESOLVER_NOGROUP) for names in folded)
    except NodeSetException as error:
        raise ConfigError(str(CONFIG_FILE), str(error), "exclusive_user_nodes") from error


def read_hides_owners(environ: Mapping[str, str]) -> bool:
    """Return whether a user must not be told who else is here; True where that is not known."""
    from slurm_share.slurm import private_data  # only where somebody else is in the way: every shared job would pay

    file = environ.get("SLURM_CONF", "")
    return not file.startswith("/") or private_data.read_hides_jobs(Path(file))


def prepare(grant: Grant, paths: Paths, settings: Settings, deadline: Deadline, last: Deadline) -> Prepared:
    """Have the grant's backend make its GPUs ready. A failed start may be undone until `last`, which is after the
    deadline."""
    backend, job = registry.get(grant.backend), grant.job
    exclusive = backend.has_gpu_alone and settings.compute_mode == "exclusive_process"
    if exclusive:
        hold_gpus(grant, paths, settings, deadline)
    with state.exclusive(paths, deadline):
        ledger = hook.read_ledger(paths, WHO)
    in_use = frozenset(gpu.uuid for gpu in grant.gpus if reconcile.is_in_use(ledger, gpu.uuid, besides=job.job_id))
    host = Host(paths=paths, settings=settings)
    prepared = backend.prepare(host, Owner(job.uid, job.gid), grant.gpus, in_use, deadline)
    for line in prepared.log:
        hook.report(WHO, f"job {job.job_id}: {line}")
    if prepared.failures and exclusive:
        # Without the backend the tasks use the GPU as several processes, and this mode admits only one.
        release.restore_modes(paths, settings, last, WHO, tuple(prepared.failures), besides=job.job_id)
    return prepared


def give_back(job_id: int, paths: Paths, settings: Settings, deadline: Deadline) -> None:
    """Undo what was done for a job whose share is refused after all. Its folder stays: it holds the refusal."""
    with state.exclusive(paths, deadline.at_most(release.LEDGER_S)):
        ledger = hook.read_ledger(paths, WHO)
        state.write_ledger(paths, reconcile.leave(ledger, job_id), settings)
    release.clear((), paths, settings, deadline, WHO)


def hold_gpus(grant: Grant, paths: Paths, settings: Settings, deadline: Deadline) -> None:
    """Set EXCLUSIVE_PROCESS on the grant's GPUs, and note the mode before in the ledger; a GPU that refuses keeps its
    mode."""
    for gpu in grant.gpus:
        try:
            with state.exclusive(paths, deadline):
                before = hook.ask_driver(compute_mode.read_compute_mode, gpu.uuid)
                if before != compute_mode.EXCLUSIVE_PROCESS:
                    ledger = reconcile.remember_mode(hook.read_ledger(paths, WHO), gpu.uuid, before)
                    state.write_ledger(paths, ledger, settings)
                    hook.ask_driver(compute_mode.set_compute_mode, gpu.uuid, compute_mode.EXCLUSIVE_PROCESS)
        except DriverError as error:
            hook.report(WHO, f"job {grant.job.job_id}: {gpu.uuid} stays in its compute mode: {error}")


def sentence(job: JobContext, decision: Plan | Refusal | None) -> str:
    """Return the decision in words, for the log."""
    if isinstance(decision, Refusal):
        return f"refused: {decision.sentence}"
    if isinstance(decision, Plan):
        served = [slot.backend for slot in decision.slots if slot.backend != BACKEND_TIME_SLICING]
        how = registry.get(served[0] if served else BACKEND_TIME_SLICING).describe(len(served))
        return shared_sentence(job, len(decision.slots), how, decision.gpus)
    return f"job {job.job_id} of uid {job.uid}: not shared: {job.share_problem or 'no share was asked'}"


def shared_sentence(job: JobContext, slots: int, how: str, gpus: Iterable[Gpu]) -> str:
    """Return in words what a job has of the node, for the log."""
    where = ", ".join(gpu.uuid for gpu in gpus)
    return f"job {job.job_id} of uid {job.uid}: {slots} slots, {how}, on {where}"
