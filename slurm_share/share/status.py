"""Read this node's status for `slurm-share status`."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from ..core import config
from ..core.errors import CommandError, DriverError, StateError
from ..core.paths import Paths
from ..core.records import SharingMethod
from ..node import processes
from ..node.gpus import binding
from ..node.records import GpuReading, NodeProcess
from ..slurm import jobs as slurm_jobs
from ..slurm import node_name
from . import leases, ledger_file, lua_settings, user_folder
from .backends import registry
from .backends.base import Host
from .records import LedgerJob, Plan
from .rules import environment, reconcile, without_plugin


class NodeStatus(Struct, frozen=True):
    """The part of this node's status that the caller may see."""

    node: str
    jobs: tuple[LedgerJob, ...]
    gpus: tuple[GpuReading, ...]
    tasks: Mapping[int, NodeProcess]
    """pid -> process on a GPU, without the backends' own processes."""
    owners: Mapping[int, str | None]
    """pid -> user name; None: unknown."""
    leased: Mapping[int, frozenset[int] | None]
    """Job -> slots that a task has; None: cannot be read."""
    daemons: Mapping[str, str | None]
    """GPU -> the daemon of its user, as text; None: no daemon."""
    everything: bool
    """Whether other users' jobs and GPUs are included."""
    problems: tuple[str, ...]
    full: tuple[str, ...]
    """A sentence for each user, of those that the caller may see, whose own file system is full."""
    modes: Mapping[str, str]
    """The mode of each partition that has its own; the empty name stands for all others."""
    is_node: bool = True
    """False: this host is no compute node of Slurm, and has no driver to ask."""
    has_gpus: bool = True
    """False: slurm.conf gives this node no GPUs, and it has no driver to ask."""
    plugin_problem: str = ""
    """Says that shared jobs here ran without the SPANK plugin, and why; empty: the last one had it, or the caller may
    not read that."""
    lua_problem: str = ""
    """Why job_submit.lua on this controller shares no job, and the remedy; empty: it does, or this is no controller."""
    sharing: Mapping[int, tuple[SharingMethod, ...]] = {}
    """Job -> how its tasks share their GPUs, each way once; a job is missing if the caller may not read its plan."""


def read_status() -> NodeStatus:
    """Read the ledger, or the caller's own plans, and ask the driver. Raises ConfigError for a wrong configuration."""
    configuration = config.load()
    paths, node, problems = Paths(), node_name.read_node_name(), []
    host = Host(paths=paths, settings=configuration.settings)
    try:
        ledger = ledger_file.read_ledger(paths, ledger_file.read_boot_id())
        booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        jobs = tuple(replace(job, since=booted_at + job.since) for job in ledger.jobs)
        plugin_problem = without_plugin.node_sentence(ledger)
        everything = os.access(paths.ledger, os.R_OK) or os.geteuid() == 0
    except PermissionError:
        everything, plugin_problem = False, ""
        jobs, job_problems = _own_jobs(paths, node)
        problems += job_problems
    is_node = has_gpus = True
    try:
        gpus = binding.read_gpu_readings()
    except DriverError as error:
        gpus = ()
        is_node = bool(jobs) or node_name.is_node()
        has_gpus = bool(jobs) or not (is_node and node_name.lacks_gpus(node))
        problems += [str(error)] if is_node and has_gpus else []
    problems += [
        f"GPU {reading.gpu.index} does not answer ({reading.gpu.problem}); see nvidia-smi on this node"
        for reading in gpus
        if reading.gpu.problem is not None
    ]
    if not everything:
        own = {uuid for job in jobs for uuid in job.gpus}
        gpus = tuple(reading for reading in gpus if reading.gpu.uuid in own or reading.gpu.problem is not None)
    seen = processes.read_processes(process.pid for reading in gpus for process in reading.processes)
    tasks = {one.identity.pid: one for one in seen if not registry.is_own_process(one.identity.name or "")}
    return NodeStatus(
        node,
        tuple(replace(job, user=job.user or processes.read_user_name(job.uid)) for job in jobs),
        gpus,
        tasks=tasks,
        owners={pid: _owner(one) for pid, one in tasks.items()},
        leased={job.job_id: leases.read_leased(paths, job.job_id, job.slots) for job in jobs},
        daemons={gpu: _daemon(host, job.uid, gpu) for job in jobs for gpu in job.gpus},
        everything=everything,
        problems=tuple(problems),
        full=_full(paths),
        modes=configuration.modes(),
        is_node=is_node,
        has_gpus=has_gpus,
        plugin_problem=plugin_problem,
        lua_problem=lua_settings.outdated(configuration),
        sharing={job.job_id: found for job in jobs if (found := _sharing(paths, job.job_id))},
    )


def _sharing(paths: Paths, job_id: int) -> tuple[SharingMethod, ...]:
    """Return how the tasks of a job share their GPUs; empty: its plan cannot be read, or has no slots."""
    try:
        plan = ledger_file.read_plan(paths, job_id)
    except StateError:
        return ()
    if not isinstance(plan, Plan):
        return ()
    return tuple(dict.fromkeys(environment.sharing_method(slot, plan.share.per_gpu) for slot in plan.slots))


def _full(paths: Paths) -> tuple[str, ...]:
    """Return a sentence for each user whose own file system is full."""
    names = ((processes.read_user_name(uid), uid, used) for uid, used in sorted(user_folder.read_own(paths).items()))
    return tuple(
        f"{paths.user_of(uid)} is {used} % full: new shares of {user} here have no MPS or are refused. It is empty"
        f" when the jobs of {user} here have ended, and all processes that hold a file there (fuser -vm names them)"
        for user, uid, used in names
        if used > user_folder.FULL_PERCENT
    )


def _owner(process: NodeProcess) -> str | None:
    return None if process.identity.uid is None else processes.read_user_name(process.identity.uid)


def _daemon(host: Host, uid: int, gpu: str) -> str | None:
    """Return the daemon of a user on a GPU. Ask only the kernel: while a daemon answers us, its clients wait."""
    for backend in registry.every():
        for daemon in backend.health(host, [(uid, gpu)]).daemons:
            if daemon.condition == "hidden":
                return "?"  # an operator who is not root may not read the user's folder
            if daemon.pid is not None and daemon.lives:
                return f"pid {daemon.pid}"
    return None


def _own_jobs(paths: Paths, node: str) -> tuple[tuple[LedgerJob, ...], list[str]]:
    """Return the caller's jobs from their plans, and problems. Slurm tells which jobs are the caller's."""
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
    """Return the Unix time at which the plan was written; the present time if it was just removed."""
    try:
        return paths.plan(job_id).stat().st_mtime
    except OSError:
        return time.time()
