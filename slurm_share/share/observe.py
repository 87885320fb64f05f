"""Log what the hooks would do, one line for each decision, and change nothing else (mode "observe").

If the controller observes, too, Slurm gave the job what its user wrote. The verdict then says what job_submit.lua would
have requested, and the job is judged as if it had been given that, on nodes that no other user is on.

The hooks keep no ledger in this mode, so each job is judged as if Slurm's other jobs on the node had been admitted.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from slurm_share.core.errors import DriverError, StateError
from slurm_share.core.paths import Paths
from slurm_share.core.process import Deadline
from slurm_share.core.settings import Settings
from slurm_share.node import processes, scratch
from slurm_share.node.gpus import driver as nvml
from slurm_share.share import ledger_file, option
from slurm_share.share.backends import registry
from slurm_share.share.records import BACKEND_TIME_SLICING, Grant, Ledger, LedgerJob, Plan, PreparedGpus, Refusal
from slurm_share.share.rules import allocation, leftovers, owners
from slurm_share.share.rules.verdict import JobVerdict
from slurm_share.slurm import hook_env
from slurm_share.slurm.records import JobContext

from . import admission, hook, release

WHO = "observe"


def arrival(environ: Mapping[str, str], paths: Paths, settings: Settings, now: float) -> None:
    """Log the decision that the Prolog would have made. Raises HookEnvError as `admission.admit_job` does."""
    job = admission.read_job(environ)
    guarded = job.share is not None or admission.is_listed(job.node, settings)
    if not guarded and job.share_problem is None:
        return
    said = hook.read_verdict() if job.share is not None else None
    is_as_written = said is not None and said.mode == "observe"
    if said is not None and is_as_written:
        if said.refused:
            hook.report(
                WHO, f"job {job.job_id} of uid {job.uid}: would be refused at submission (slurmctld's log says why)"
            )
            return
        job = _as_asked_for(job, said)
    grant = admission.read_grant(job, environ, paths, settings, Deadline.after(settings.hook_deadline_s))
    ledger = _read_ledger(paths)
    live = release.running_jobs()
    judged = admission.judge(job, grant, ledger, live, now, {}, guarded=guarded)
    if judged.neighbours:
        shown = admission.read_names(judged.uids(), environ)
        judged = admission.judge(job, grant, ledger, live, now, shown, guarded=guarded)
    waits = ""
    if is_as_written and judged.neighbours:
        others = ", ".join(str(one.job_id) for one in judged.neighbours)
        waits = f", when other users' jobs have left the node ({others})"
        judged = admission.judge(job, grant, ledger, live, now, {}, guarded=False)
    judged_grant = judged.grant
    for entry in judged.over:
        hook.report(WHO, f"would clear up after job {entry.job_id} of uid {entry.uid}, which is over")
    if judged_grant is None:
        why = "" if job.share_problem is None else f", unshared: {job.share_problem}"
        hook.report(WHO, f"job {job.job_id} of uid {job.uid}: would be let in{why}")
    elif isinstance(judged_grant, Refusal):
        hook.report(WHO, f"would be {admission.sentence(job, judged_grant, settings)}")
    else:
        hook.report(WHO, f"would be shared: {_shared(judged_grant, settings)}{waits}")


def _as_asked_for(job: JobContext, said: JobVerdict) -> JobContext:
    """Return the job as Slurm would have described it if job_submit.lua had changed its request."""
    if said.whole:
        try:
            gpus = hook.ask_driver(nvml.read_driver).gpus
        except DriverError:
            return job  # the missing driver refuses it
        return replace(job, exclusive="node", granted=tuple(gpu.uuid for gpu in gpus if not gpu.mig_parent))
    if said.part:
        return replace(job, exclusive="user", tasks=1, nodes=1)
    return replace(job, exclusive=job.exclusive or "user", tasks=said.tasks or job.tasks)


def departure(environ: Mapping[str, str], paths: Paths, settings: Settings) -> None:
    """Log what the Epilog would have removed after the job in `environ`. Raises HookEnvError as `arrival` does."""
    job = hook_env.read(environ, option.parse)
    listed = admission.is_listed(job.node, settings)
    if job.share is None and not listed:
        return
    said = hook.read_verdict() if job.share is not None else None
    if said is not None and said.mode == "observe":
        if said.refused:
            return
        job = _as_asked_for(job, said)
    live = release.running_jobs()
    over = (LedgerJob(job.job_id, job.uid, "", (), 0, since=0.0),)
    if job.uid not in owners.departed(over, _read_ledger(paths), live):
        return
    jobs = {one.job_id: one.uid for one in live if one.job_id != job.job_id}
    wanted = owners.clean_up(job, settings, is_listed=listed)
    found = []
    if "gpu_processes" in wanted:
        found += _on_gpus(job.uid, jobs)
    if "processes" in wanted:
        ends = leftovers.of_departed(processes.read_processes_of(job.uid), job.uid, jobs)
        descriptions = [f"process {one.identity.pid} ({one.identity.name})" for one in ends]
        found += [one for one in descriptions if f"{one} on a GPU" not in found]
    for kind, folder in (("shm", paths.shm), ("tmp", paths.tmp)):
        names = scratch.read_owned(str(folder), job.uid, Deadline.after(2.0)).names if kind in wanted else ()
        if names:
            found.append(f"{len(names)} in {folder}")
    what = ", ".join(dict.fromkeys(found)) or "nothing"
    hook.report(WHO, f"job {job.job_id} was the last of uid {job.uid} here: would clear away {what}")


def _on_gpus(uid: int, live: leftovers.LiveJobs) -> list[str]:
    try:
        readings = nvml.read_gpu_readings()
    except DriverError as error:
        return [f"no process on a GPU, since {error}"]
    pids = sorted({process.pid for reading in readings for process in reading.processes})
    ends = leftovers.of_departed(processes.read_processes(pids), uid, live)
    return [f"process {one.identity.pid} ({one.identity.name}) on a GPU" for one in ends]


def _read_ledger(paths: Paths) -> Ledger:
    boot_id = ledger_file.read_boot_id()
    try:
        return ledger_file.read_ledger(paths, boot_id)
    except StateError:
        return Ledger(boot_id)


def _shared(grant: Grant, settings: Settings) -> str:
    """Return a sentence on how the job would be shared if its backend could prepare every GPU."""
    backend = registry.get(grant.backend)
    found = admission.shared_sentence(grant.job, grant.slots, backend.describe(grant.slots), grant.gpus)
    found = "; ".join((found, *allocation.lost_notes(grant)))
    if grant.backend != BACKEND_TIME_SLICING:
        return f"{found}; {backend.describe()}"
    decision = allocation.decide(grant, PreparedGpus(), settings)
    notes = " ".join(decision.notes) if isinstance(decision, Plan) else ""
    return f"{found}; {notes or backend.describe()}"
