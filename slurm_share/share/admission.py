"""Admit a job to a node: read driver and kernel, enter it in the ledger, prepare its GPUs, decide, write the plan."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from slurm_share.core.errors import CommandError, ConfigError, DriverError, StateError, UsageError
from slurm_share.core.paths import CONFIG_FILE, Paths
from slurm_share.core.process import Deadline
from slurm_share.core.records import Owner
from slurm_share.core.settings import Settings
from slurm_share.node import processes as node_processes
from slurm_share.node import topology
from slurm_share.node.gpus import driver as nvml
from slurm_share.node.records import Gpu, LiveJob
from slurm_share.share import ledger_file, memory_limits, option, state, user_folder
from slurm_share.share.backends import registry
from slurm_share.share.backends.base import UNDO_S, Host
from slurm_share.share.records import (
    BACKEND_TIME_SLICING,
    DriverCaps,
    Grant,
    Ledger,
    LedgerJob,
    Limits,
    Plan,
    PreparedGpus,
    Refusal,
)
from slurm_share.share.rules import allocation, drain, driver_caps, granted, owners, reconcile, without_plugin
from slurm_share.share.rules import mps as mps_rules
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
"""How long a job waits for a job that should have ended; at most half of the remaining time."""
POLL_S = 0.1
"""The pause between two checks whether such a job has ended."""
OLD_S = 1.0
"""The greatest age of a list of live jobs that may refuse a job: a job on an older list may have ended."""


def admit_job(environ: Mapping[str, str], paths: Paths, settings: Settings, now: float) -> bool:
    """Decide about the job in `environ` and write the plan or refusal for its tasks. Return False if the node is to be
    drained (share/rules/drain.py).

    Raises HookEnvError for an environment that is not slurmd's, StateError, OSError where state cannot be written.
    """
    job = read_job(environ)
    deadline = Deadline.after(settings.hook_deadline_s)
    last = Deadline(deadline.at + UNDO_S)
    if is_anothers(job, paths, last):
        hook.report(WHO, f"job {job.job_id} is alive here under another user than uid {job.uid}: nothing is done")
        return True
    state.remove_unshared(paths, job.job_id)
    state.remove_plan(paths, job.job_id)  # first: the driver may hang, and no task may use the plan of an earlier run
    grant = read_grant(job, environ, paths, settings, deadline)
    entry = AdmissionEntry(refuse_without_plugin(job, grant, paths, environ) or grant)
    well = True
    listed = is_listed(job.node, settings)
    if job.share is not None or listed or paths.ledger.exists():
        entry = enter(job, entry.grant, environ, paths, settings, deadline, now, listed=listed)
        well = not drain.drains(release.CleanUp(paths, settings, WHO).clear(entry.over, deadline.part(CLEAR_RATIO)))
    prepared = PreparedGpus()
    if isinstance(entry.grant, Grant) and entry.grant.backend != BACKEND_TIME_SLICING:
        prepared = prepare(entry.grant, paths, settings, deadline, last, on_gpu=entry.on_gpu)
        if not is_entered(job, paths, last):
            # slurmd was killed meanwhile, and the next one has ended the job.
            hook.report(WHO, f"job {job.job_id}: its Epilog has run already; what was started for it is ended")
            release.CleanUp(paths, settings, WHO).clear((), last)
            return well
    decision = decide(job, entry, prepared, paths, settings)
    if isinstance(decision, Refusal) and isinstance(entry.grant, Grant):
        give_back(job.job_id, paths, settings, last)
    if decision is not None or job.share_problem is not None:
        hook.report(WHO, sentence(job, decision, settings))
    if decision is not None:
        if isinstance(decision, Plan):
            state.expect_plugin(paths, job.job_id)
        state.write_plan(paths, decision, job.gid)
    if isinstance(decision, Plan) and settings.usage_record != "off":
        from . import job_note  # after the plan: it asks the driver once more

        job_note.begin_share(job, decision, paths, settings, is_part=entry.on_gpu is not None)
    if isinstance(decision, Refusal):
        if decision.cause == drain.NO_PLUGIN:
            from . import plugin_use

            plugin_use.end_job(job, decision.sentence, environ)
        well = hook.count_refusal(WHO, paths, job.job_id, decision.cause) and well
    return well


def refuse_without_plugin(
    job: JobContext, grant: Grant | Refusal | None, paths: Paths, environ: Mapping[str, str]
) -> Refusal | None:
    """Return the Refusal of a share if several jobs in a row ran without the plugin, and it still cannot be loaded."""
    if not isinstance(grant, Grant) or not _is_in_doubt(paths):
        return None
    from . import plugin_use  # needed only then

    return plugin_use.refusal(job, environ)


def _is_in_doubt(paths: Paths) -> bool:
    """Return whether the jobs before ran without the plugin. A damaged ledger is reported where it is read next."""
    try:
        ledger = ledger_file.read_ledger(paths, ledger_file.read_boot_id())
    except StateError:
        return False
    return without_plugin.is_in_doubt(ledger)


def read_job(environ: Mapping[str, str]) -> JobContext:
    """Return the job in `environ`, with `has_sure_gpus` False if its GPUs may be those of another node.

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
    job: JobContext, entry: AdmissionEntry, prepared: PreparedGpus, paths: Paths, settings: Settings
) -> Plan | Refusal | None:
    """Return the decision and make the job's slots; None for an ordinary job. If the file system is full, refuse the
    job without draining the node: the user's own jobs may have filled it."""
    decision: Plan | Refusal | None = None
    if isinstance(entry.grant, Grant):
        caps = read_caps(entry.grant, paths, settings)
        cores = topology.read_cores()
        decision = allocation.decide(entry.grant, prepared, settings, cores=cores, on_gpu=entry.on_gpu, caps=caps)
    elif entry.grant is not None:
        decision = entry.grant
    if decision is None:
        return None
    has_room = make_slots(job, len(decision.slots) if isinstance(decision, Plan) else 0, paths)
    if isinstance(decision, Plan) and not has_room:
        return allocation.no_room_refusal(job, *read_full(job, paths))
    return decision


def read_caps(grant: Grant, paths: Paths, settings: Settings) -> DriverCaps:
    """Return where the driver enforces the job's memory caps. It is asked only if its release has such limits."""
    why = driver_caps.why_none(grant.driver, settings, has_cgroup_v2=True)
    if why is None:
        from slurm_share.node import cgroups  # only with a driver that has limits

        has_jobs = cgroups.find_scope(grant.job.node, paths.cgroup) is not None
        why = driver_caps.why_none(grant.driver, settings, has_cgroup_v2=has_jobs)
    if why is not None:
        return DriverCaps(why_not=why)
    try:
        return driver_caps.of_gpus(grant, hook.ask_driver(memory_limits.read_problems, grant.gpus, str(paths.cgroup)))
    except (DriverError, OSError) as error:
        hook.report(WHO, f"job {grant.job.job_id}: the driver does not limit the memory of cgroups: {error}")
        return DriverCaps(why_not=f"the driver does not limit the memory of cgroups here ({error})")


def make_slots(job: JobContext, slots: int, paths: Paths) -> bool:
    """Make the files of the job's slots, and the folder of the user's launchers; return False if the file system is
    full."""
    owner = Owner(job.uid, job.gid)
    try:
        state.make_slots(paths, job.job_id, slots, owner)
    except OSError as error:
        if error.errno not in hook.NO_ROOM:
            raise
        hook.report(WHO, hook.explain(error))
        return False
    try:
        for note in state.make_launchers_folder(paths, owner) if slots else ():
            hook.report(WHO, f"job {job.job_id} of uid {job.uid}: {note}")
    except OSError as error:
        hook.report(WHO, f"{paths.launchers_of(job.uid)} is not made: {error.strerror}; launchers use /tmp")
    return True


def read_full(job: JobContext, paths: Paths) -> tuple[str, bool]:
    """Return the full folder of a job's slots, and whether it is on a file system of the user's own."""
    own = paths.user_of(job.uid)
    is_own = job.uid in user_folder.read_own(paths)
    return str(own if is_own else paths.user), is_own


def mount_users_folder(paths: Paths) -> None:
    """Mount the file system for the files of users if it is not mounted yet and the mount would hide nothing.

    A node where it cannot be mounted works without it; `slurm-share doctor` reports that.
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

    Raises HookEnvError for an environment that is not slurmd's, OSError if state cannot be written. Then there is no
    plan, and the plugin refuses the tasks.
    """
    job = hook_env.read(environ, option.parse)
    if job.share is None:
        return
    refusal = allocation.state_refusal(job, why)
    state.prepare(paths)
    state.make_job_folder(paths, job.job_id)
    state.write_plan(paths, refusal, job.gid)


def read_grant(
    job: JobContext, environ: Mapping[str, str], paths: Paths, settings: Settings, deadline: Deadline
) -> Grant | Refusal | None:
    """Return what a job has of this node; None for a job without a share, a Refusal if the driver does not answer, if
    it is not certain which GPUs the job has, or if the site's TaskProlog replaces the share's variables."""
    if job.share is None:
        return None
    if refusal := refuse_task_prolog(job, environ):
        return refusal
    try:
        driver = hook.ask_driver(nvml.read_driver)
    except DriverError as error:
        return allocation.driver_refusal(job, str(error))
    whole = with_all_gpus(job, environ, driver.gpus, deadline)
    if isinstance(whole, Refusal):
        return whole
    grant = allocation.admit(whole, driver.gpus, read_offers(job, paths, settings, driver.version), settings)
    return replace(grant, driver=driver.version) if isinstance(grant, Grant) else grant


def refuse_task_prolog(job: JobContext, environ: Mapping[str, str]) -> Refusal | None:
    """Return the Refusal of a share whose variables the site's TaskProlog certainly replaces."""
    file = environ.get("SLURM_CONF", "")
    if not file.startswith("/"):
        return None
    from slurm_share.slurm import hook_conf  # only shares need it

    script, variables = hook_conf.read_replaced(Path(file))
    return allocation.task_prolog_refusal(job, script, variables) if variables else None


def with_all_gpus(
    job: JobContext, environ: Mapping[str, str], gpus: Sequence[Gpu], deadline: Deadline
) -> JobContext | Refusal:
    """Return the job with its GPUs of all types; a Refusal if it is not certain which these are.

    slurmd names those of one type only (slurm/job_gpus.py). The plugin compares what a step has with the plan.
    """
    file = environ.get("SLURM_CONF", "")
    if not job.granted or len(job.granted) >= len(gpus) or not file.startswith("/"):
        return job
    from slurm_share.slurm import job_gpus  # a job with all GPUs of the driver does not need it

    on_node = job_gpus.read_node_gpus(Path(file), job.node)
    if on_node.types is not None and on_node.types < 2:
        return job
    found = granted.whole_node(job, gpus, on_node.count)
    if found is None:
        try:
            known = job_gpus.ask(job.job_id, job.node, file, deadline)
        except CommandError as error:
            if on_node.types is None:
                return job  # most likely it has one type
            return allocation.types_refusal(job, f"the controller did not name the others ({error})")
        found = granted.of_numbers(job, gpus, on_node.count, job_gpus.read_numbers(environ), known)
        if found is None:
            shown = ", ".join(map(str, known)) or "none"
            return allocation.types_refusal(job, f"the controller names GPU {shown}, which does not fit")
    return replace(job, granted=found, has_sure_gpus=True)


def granted_uuids(job: JobContext) -> list[str]:
    """Return the UUIDs of an ordinary job's GPUs, without those that do not answer; empty if the driver does not."""
    try:
        found, _ = granted.granted_gpus(job.granted, hook.ask_driver(nvml.read_driver).gpus)
    except DriverError:
        return []
    return [gpu.uuid for gpu in found if gpu.problem is None]


def read_offers(job: JobContext, paths: Paths, settings: Settings, driver: str) -> Iterator[Limits]:
    """Yield the limits of the backends that may serve the job, in order of preference. Each is read when needed."""
    host = Host(paths=paths, settings=settings)
    return (backend.limits(driver, host) for backend in registry.wanted(job.share, settings))


def is_anothers(job: JobContext, paths: Paths, deadline: Deadline) -> bool:
    """Return whether a live job here has the same number and another user: then its state must not change."""
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


class AdmissionDecision(Struct, frozen=True):
    """The grant of a job, or its Refusal, after comparison with the other jobs on the node."""

    grant: Grant | Refusal | None
    over: tuple[LedgerJob, ...]
    """Jobs in the ledger that have ended without an Epilog."""
    neighbours: tuple[LiveJob, ...] = ()
    """Jobs of other users that are the reason for a refusal."""

    def uids(self) -> frozenset[int]:
        """Return the uids of the neighbours' users."""
        return frozenset(one.uid for one in self.neighbours if one.uid is not None)


class AdmissionEntry(Struct, frozen=True):
    """The result of entering a job in the ledger."""

    grant: Grant | Refusal | None
    over: tuple[LedgerJob, ...] = ()
    """Jobs that have ended without an Epilog: this hook cleans up after them."""
    on_gpu: int | None = None
    """The number of the job's part of its GPU; None: it has whole GPUs."""


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
) -> AdmissionEntry:
    """Decide whether the job may run next to the jobs on the node. If so, enter it in the ledger if it is shared or the
    node is `listed` (kept to one user).

    If other jobs are in the way, wait for PATIENCE_S. Slurm gives a job its GPUs, or a listed node, alone; but a
    controller that lost contact with a node starts jobs there before the earlier ones have ended. Those end within
    moments, so the new job need not be refused.

    The ledger is written before anything is started: a hook that stops a daemon checks it, under that GPU's lock, for a
    new job on the GPU. Slow work is done without the ledger's lock, for which all hooks of the node wait: looking up
    user names, and listing processes, of which a user can have left many. So the list of live jobs can be older than
    the ledger. That is safe: a step proves that its job is alive, and a missing step proves nothing.
    """
    guarded = job.share is not None or listed
    state.prepare(paths)
    patience = deadline.at_most(min(PATIENCE_S, deadline.left() / 2))
    began, at = time.monotonic(), now
    asked: frozenset[int] = frozenset()
    shown: Mapping[int, str] = {}
    while True:
        read_at = time.monotonic()
        reads = guarded or paths.ledger.exists()
        slurmd_start = node_processes.read_slurmd_start() if reads else None  # first: steps must not be older
        steps = node_processes.read_live_jobs() if reads else ()
        with state.exclusive(paths, deadline):
            ledger = hook.read_ledger(paths, WHO)
            live = owners.running(steps)
            judged = judge(job, grant, ledger, live, at, shown, guarded=guarded, slurmd_start=slurmd_start)
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
                "and does not end (it may be waiting for slurmctld): it is ignored",
            )


def write_down(
    job: JobContext,
    judged: AdmissionDecision,
    ledger: Ledger,
    paths: Paths,
    settings: Settings,
    now: float,
    *,
    listed: bool,
) -> AdmissionEntry:
    """Write the job into `ledger` and make its folder. The caller holds the ledger's lock and has read `ledger`."""
    for entry in judged.over:
        hook.report(WHO, f"job {entry.job_id} of uid {entry.uid} ended without an Epilog: cleaning up after it")
    over, ledger = release.CleanUp(paths, settings, WHO).take_over(ledger, judged.over)
    grant = judged.grant
    on_gpu = reconcile.free_part(ledger, grant) if isinstance(grant, Grant) else None
    enters = job.share is not None or listed
    wanted = owners.clean_up(job, settings, is_listed=listed) if enters else None
    after = ledger
    if wanted is not None and not isinstance(grant, Refusal):
        after = reconcile.enter(ledger, job, grant, now, wanted, on_gpu)
    if enters or isinstance(grant, Refusal):
        # An Epilog of an earlier run may have removed the folder. It no longer does once the job is in the ledger.
        state.make_job_folder(paths, job.job_id)
    if after != ledger:
        state.write_ledger(paths, after, settings)
    if job.share is not None:
        try:
            user_folder.mount_own(paths, job.uid)
        except StateError as error:
            hook.report(WHO, str(error))
    return AdmissionEntry(grant, over, on_gpu)


def judge(
    job: JobContext,
    grant: Grant | Refusal | None,
    ledger: Ledger,
    live: Sequence[LiveJob],
    now: float,
    shown: Mapping[int, str],
    *,
    guarded: bool,
    slurmd_start: float | None = None,
) -> AdmissionDecision:
    """Return the grant, or a Refusal because of other jobs, and the ledger's jobs that have ended. Changes nothing.

    `shown`: the names of other users that this job's user may see.
    """
    has = grant if isinstance(grant, Grant) else None
    granted = [gpu.uuid for gpu in has.gpus] if has is not None else granted_uuids(job) if ledger.jobs else []
    if not job.has_sure_gpus:
        granted = []  # the GPUs may be another node's, so they prove no job here to have ended
    jobs = [one.job_id for one in live]
    over = reconcile.stale(ledger, job, has if job.has_sure_gpus else None, granted, jobs, now, slurmd_start)
    left = reconcile.without(ledger, over)
    neighbours = owners.others(job, left, live, now) if guarded else ()
    if neighbours:
        return AdmissionDecision(owners.refuse(job, neighbours, shown), over, neighbours)
    if has is not None and reconcile.is_crowded(left, has):
        return AdmissionDecision(
            allocation.crowd_refusal(has) if job.has_sure_gpus else allocation.unsure_refusal(job), over
        )
    return AdmissionDecision(grant, over)


def read_names(uids: Iterable[int], environ: Mapping[str, str]) -> dict[int, str]:
    """Return uid -> name, for a job's output; empty if Slurm hides users from each other."""
    return {} if read_hides_owners(environ) else {uid: node_processes.read_user_name(uid) for uid in uids}


def is_listed(node: str, settings: Settings) -> bool:
    """Return whether the site keeps this node to one user at a time for all jobs (exclusive_user_nodes)."""
    listed = settings.exclusive_user_nodes
    if node in listed:
        return True
    folded = [names for names in listed if "[" in names or "," in names]
    if not folded:
        return False
    from slurm_share.core import nodelist  # few sites need it; its import takes time

    try:
        return any(node in nodelist.parse(names) for names in folded)
    except UsageError as error:
        raise ConfigError(str(CONFIG_FILE), str(error), "exclusive_user_nodes") from error


def read_hides_owners(environ: Mapping[str, str]) -> bool:
    """Return whether users may not see each other's jobs (PrivateData in slurm.conf); True if that is not known."""
    from ..slurm import hook_conf

    file = environ.get("SLURM_CONF", "")
    return not file.startswith("/") or hook_conf.read_hides_jobs(Path(file))


def prepare(
    grant: Grant, paths: Paths, settings: Settings, deadline: Deadline, last: Deadline, *, on_gpu: int | None = None
) -> PreparedGpus:
    """Prepare the grant's GPUs with its backend. Undoing a failed start may take until `last`, after the deadline.

    on_gpu: the number of the job's part of its GPU, if it has one.
    """
    backend, job = registry.get(grant.backend), grant.job
    exclusive = backend.has_gpu_alone and settings.compute_mode == "exclusive_process"
    if exclusive:
        hold_gpus(grant, paths, settings, deadline)
    with state.exclusive(paths, deadline):
        ledger = hook.read_ledger(paths, WHO)
    in_use = frozenset(gpu.uuid for gpu in grant.gpus if reconcile.is_in_use(ledger, gpu.uuid, except_job=job.job_id))
    host = Host(paths=paths, settings=settings)
    owner = Owner(job.uid, job.gid)
    prepared = backend.prepare(
        host,
        owner,
        grant.gpus,
        in_use,
        deadline,
        partitions=grant.partitions,
        namespaces=mps_rules.namespaces(grant, settings, on_gpu),
    )
    for line in (*((grant.why_protocol,) if grant.why_protocol else ()), *prepared.log):
        hook.report(WHO, f"job {job.job_id}: {line}")
    if prepared.failures and exclusive:
        # Without the backend several processes use the GPU, and this mode admits only one.
        release.CleanUp(paths, settings, WHO).restore_modes(last, tuple(prepared.failures), except_job=job.job_id)
    return prepared


def give_back(job_id: int, paths: Paths, settings: Settings, deadline: Deadline) -> None:
    """Undo what was done for a job that is refused after its GPUs were prepared. Its folder with the refusal stays."""
    with state.exclusive(paths, deadline.at_most(release.LEDGER_S)):
        ledger = hook.read_ledger(paths, WHO)
        state.write_ledger(paths, reconcile.leave(ledger, job_id), settings)
    release.CleanUp(paths, settings, WHO).clear((), deadline)


def hold_gpus(grant: Grant, paths: Paths, settings: Settings, deadline: Deadline) -> None:
    """Set EXCLUSIVE_PROCESS on the grant's GPUs and record the previous mode in the ledger; log a GPU that refuses."""
    for gpu in grant.gpus:
        try:
            with state.exclusive(paths, deadline):
                before = hook.ask_driver(nvml.read_compute_mode, gpu.uuid)
                if before != nvml.EXCLUSIVE_PROCESS:
                    ledger = reconcile.remember_mode(hook.read_ledger(paths, WHO), gpu.uuid, before)
                    state.write_ledger(paths, ledger, settings)
                    hook.ask_driver(nvml.set_compute_mode, gpu.uuid, nvml.EXCLUSIVE_PROCESS)
        except DriverError as error:
            hook.report(WHO, f"job {grant.job.job_id}: {gpu.uuid} stays in its compute mode: {error}")


def sentence(job: JobContext, decision: Plan | Refusal | None, settings: Settings) -> str:
    """Return the log's sentence about the decision."""
    if isinstance(decision, Refusal):
        return f"refused: {decision.sentence}"
    if isinstance(decision, Plan):
        served = [slot.backend for slot in decision.slots if slot.backend != BACKEND_TIME_SLICING]
        how = registry.get(served[0] if served else BACKEND_TIME_SLICING).describe(len(served))
        of_sizes = allocation.size_notes(decision.share, decision.gpus, settings)
        sizes = [note for note in of_sizes if note in decision.notes]
        lost = decision.notes[:1] if decision.lost else ()
        return "; ".join((shared_sentence(job, len(decision.slots), how, decision.gpus), *lost, *sizes))
    return f"job {job.job_id} of uid {job.uid}: not shared: {job.share_problem or 'it did not ask to share'}"


def shared_sentence(job: JobContext, slots: int, how: str, gpus: Iterable[Gpu]) -> str:
    """Return the log's sentence about a job's slots and GPUs."""
    where = ", ".join(gpu.uuid for gpu in gpus)
    return f"job {job.job_id} of uid {job.uid}: {slots} slots, {how}, on {where}"
