"""A shared job comes to this node: ask driver and kernel, decide, write ledger and plan."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_share.actuators import environment, state
from slurm_share.decide import admit, reconcile
from slurm_share.errors import DriverError
from slurm_share.paths import Paths
from slurm_share.readers import hook_env, nvml, topology
from slurm_share.records import JobContext, Plan, Refusal
from slurm_share.settings import Settings

from . import hook

WHO = "prolog"


def admit_job(environ: Mapping[str, str], paths: Paths, settings: Settings, now: float) -> None:
    """Decide about the job in `environ` and leave the decision where its tasks will look for it.

    Raises HookEnvError for an environment that is not slurmd's, OSError where state cannot be written.
    """
    job = hook_env.read(environ)
    decision = decide(job, settings)
    hook.report(WHO, sentence(job, decision))
    if decision is None:
        return
    state.prepare(paths)
    state.make_job_folder(paths, job.job_id)
    if isinstance(decision, Plan):
        with state.exclusive(paths):
            ledger = hook.read_ledger(paths, WHO)
            state.write_ledger(paths, reconcile.enter(ledger, decision, now), settings)
    state.write_plan(paths, environment.plan_file(decision), job.gid)


def decide(job: JobContext, settings: Settings) -> Plan | Refusal | None:
    """The decision; a driver that does not answer is a Refusal, since nobody knows then which GPU is which."""
    if job.share is None:
        return None
    try:
        gpus = nvml.read_gpus()
    except DriverError as error:
        return admit.driver_refusal(job, str(error))
    return admit.admit(job, gpus, topology.read_cores(), settings)


def sentence(job: JobContext, decision: Plan | Refusal | None) -> str:
    """The decision, for the log."""
    if isinstance(decision, Refusal):
        return f"refused: {decision.sentence}"
    if isinstance(decision, Plan):
        where = ", ".join(gpu.uuid for gpu in decision.gpus)
        return f"job {job.job_id} of uid {job.uid}: {len(decision.slots)} slots on {where}"
    return f"job {job.job_id} of uid {job.uid}: not shared: {job.share_problem or 'no share was asked'}"
