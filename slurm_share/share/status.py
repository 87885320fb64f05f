"""Read what `slurm-share status` shows of this node."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from ..core import config
from ..core.errors import CommandError, DriverError
from ..core.paths import Paths
from ..node import processes
from ..node.gpus import binding
from ..node.records import GpuReading, NodeProcess
from ..slurm import jobs as slurm_jobs
from . import leases, ledger_file, lua_settings
from .backends import registry
from .backends.base import Host
from .records import LedgerJob, Plan
from .rules import reconcile


class Status(Struct, frozen=True):
    """What this caller may see of this node."""

    node: str
    jobs: tuple[LedgerJob, ...]
    gpus: tuple[GpuReading, ...]
    tasks: Mapping[int, NodeProcess]
    """Programs on the GPUs by pid; those of the backends are not among them."""
    owners: Mapping[int, str | None]
    """Whose they are, by pid; None: gone meanwhile."""
    leased: Mapping[int, frozenset[int] | None]
    """Per job the slots that a task has; None: cannot be seen."""
    daemons: Mapping[str, str | None]
    """Per GPU the user's daemon there, pid and state in words; None: no daemon."""
    everything: bool
    """False: only the caller's own jobs and their GPUs."""
    problems: tuple[str, ...]
    modes: Mapping[str, str]
    """The mode of each partition that has its own, and under the empty name that of all others."""
    lua_problem: str = ""
    """Why job_submit.lua on this controller shares no job, and the way out; empty: it does, or this is none."""


def read_status() -> Status:
    """Ask ledger or plans, and the driver. Raises ConfigError for a configuration that is wrong."""
    configuration = config.load()
    paths, node, problems = Paths(), _node(), []
    host = Host(paths=paths, settings=configuration.settings)
    try:
        known = ledger_file.read_ledger(paths, ledger_file.read_boot_id()).jobs
        clocks = time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
        jobs = tuple(reconcile.with_unix_time(job, *clocks) for job in known)
        everything = os.access(paths.ledger, os.R_OK) or os.geteuid() == 0
    except PermissionError:
        everything = False
        jobs, job_problems = _own_jobs(paths, node)
        problems += job_problems
    try:
        gpus = binding.read_gpu_readings()
    except DriverError as error:
        gpus = ()
        problems.append(str(error))
    if not everything:
        own = {uuid for job in jobs for uuid in job.gpus}
        gpus = tuple(reading for reading in gpus if reading.gpu.uuid in own)
    seen = processes.read_processes(process.pid for reading in gpus for process in reading.processes)
    tasks = {one.identity.pid: one for one in seen if not registry.is_own_process(one.identity.name or "")}
    return Status(
        node,
        tuple(replace(job, user=job.user or processes.read_user_name(job.uid)) for job in jobs),
        gpus,
        tasks=tasks,
        owners={pid: processes.read_owner(pid) for pid in tasks},
        leased={job.job_id: leases.read_leased(paths, job.job_id, job.slots) for job in jobs},
        daemons={gpu: _daemon(host, job.uid, gpu) for job in jobs for gpu in job.gpus},
        everything=everything,
        problems=tuple(problems),
        modes=configuration.modes(),
        lua_problem=lua_settings.outdated(configuration),
    )


def _daemon(host: Host, uid: int, gpu: str) -> str | None:
    """Return the daemon as the kernel knows it: while a daemon answers us, it answers no task."""
    for backend in registry.every():
        for daemon in backend.health(host, [(uid, gpu)]).daemons:
            if daemon.condition == "hidden":
                return "?"  # an operator who is not root may not look into the user's folder
            if daemon.pid is not None and daemon.lives:
                return f"pid {daemon.pid}"
    return None


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0]


def _own_jobs(paths: Paths, node: str) -> tuple[tuple[LedgerJob, ...], list[str]]:
    """Return the user's jobs from their own plans, which only they can read; Slurm says which jobs those are."""
    ids, problems = set(), []
    if re.fullmatch("[0-9]{1,10}", os.environ.get("SLURM_JOB_ID", "")):
        ids.add(int(os.environ["SLURM_JOB_ID"]))
    try:
        ids |= set(slurm_jobs.read_my_job_ids(node))
    except CommandError as error:
        problems.append(f"cannot ask Slurm for your jobs here: {error}")
    plans = [(job_id, ledger_file.read_plan(paths, job_id)) for job_id in sorted(ids)]
    known = [plan for _, plan in plans if isinstance(plan, Plan)]
    return tuple(reconcile.entry_of(plan, _since(paths, plan.job_id)) for plan in known), problems


def _since(paths: Paths, job_id: int) -> float:
    """Return when the plan was written; now, for a job that has just gone."""
    try:
        return paths.plan(job_id).stat().st_mtime
    except OSError:
        return time.time()
