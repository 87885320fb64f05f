"""`slurm-share status`: the shares of this node; others' jobs only for root and the operators' group."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from ..core import config, names, terminal
from ..core.errors import CommandError, DriverError
from ..core.paths import Paths
from ..node import processes
from ..node.gpus import binding
from ..node.records import GpuReading, NodeProcess
from ..share import leases_read, ledger_file
from ..share.backends import registry
from ..share.backends.base import Host
from ..share.records import LedgerJob, Plan
from ..share.rules import reconcile
from ..slurm import jobs as slurm_jobs
from . import cluster_status

SCHEMA = 1
FULL_UUID_WIDTH = 110
"""Below so many columns a UUID is cut, with a sign; --json has all of it."""
SIMULATED = "SIMULATED GPUs: nothing is computed on them"


@dataclass(frozen=True, slots=True)
class Status:
    """What this caller may see of this node."""

    node: str
    jobs: tuple[LedgerJob, ...]
    gpus: tuple[GpuReading, ...]
    tasks: Mapping[int, NodeProcess]
    """Programs on the GPUs by pid; those of the backends are not among them."""
    leased: Mapping[int, frozenset[int] | None]
    """Per job the slots that a task has; None: cannot be seen."""
    daemons: Mapping[str, str | None]
    """Per GPU the user's daemon there, pid and state in words; None: no daemon."""
    everything: bool
    """False: only the caller's own jobs and their GPUs."""
    problems: tuple[str, ...]
    modes: Mapping[str, str]
    """Of partitions that have one of their own, and under the empty name that of all others."""


def add_to(commands: Any) -> None:
    """Add `status`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "status", help="the shared jobs of this node, their users, GPUs and slots"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--cluster", action="store_true", help="mode, shares and MPS daemons of all nodes, a line for each"
    )
    parser.set_defaults(run=print_status)


def print_status(arguments: argparse.Namespace) -> int:
    """Exit 0 also where nothing is shared; 1 where a source did not answer, with the rest shown."""
    if arguments.cluster:
        return cluster_status.print_status(as_json=arguments.json)
    status = read_status()
    if arguments.json:
        print(json.dumps(as_json(status), indent=2))
    else:
        terminal.show(*as_tables(status))
    for problem in status.problems:
        print(f"slurm-share: {problem}", file=sys.stderr)
    return 1 if status.problems else names.EXIT_OK


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
    return Status(
        node,
        jobs,
        gpus,
        tasks={one.identity.pid: one for one in seen if not registry.is_own_process(one.identity.name or "")},
        leased={job.job_id: leases_read.read_leased(paths, job.job_id, job.slots) for job in jobs},
        daemons={gpu: _daemon(host, job.uid, gpu) for job in jobs for gpu in job.gpus},
        everything=everything,
        problems=tuple(problems),
        modes=configuration.modes(),
    )


def _daemon(host: Host, uid: int, gpu: str) -> str | None:
    """From the kernel alone: a question to the daemon would keep a task's own from being heard."""
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
    """A user's jobs from their own plans, which only they can read; Slurm says which jobs those are."""
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
    """When the plan was written; now, for a job that has just gone."""
    try:
        return paths.plan(job_id).stat().st_mtime
    except OSError:
        return time.time()


def as_json(status: Status) -> dict[str, Any]:
    """The documented form: schema 1. Unknown is null."""
    return {
        "schema": SCHEMA,
        "node": status.node,
        "simulated": any(reading.gpu.simulated for reading in status.gpus),
        "everything": status.everything,
        "mode": status.modes[""],
        "partition_modes": {name: mode for name, mode in status.modes.items() if name},
        "problems": list(status.problems),
        "jobs": [
            {
                "job_id": job.job_id,
                "user": job.user or processes.read_user_name(job.uid),
                "uid": job.uid,
                "partition": job.partition,
                "share": job.share or None,
                "gpus": list(job.gpus),
                "slots": job.slots,
                "slots_used": _count(status.leased[job.job_id]),
                "slot_on_gpu": job.on_gpu,
                "since": job.since,
            }
            for job in status.jobs
        ],
        "gpus": [
            {
                "uuid": reading.gpu.uuid,
                "index": reading.gpu.index,
                "name": reading.gpu.name,
                "simulated": reading.gpu.simulated,
                "memory_total_mib": reading.gpu.memory_total_mib,
                "memory_used_mib": reading.memory_used_mib,
                "utilization_percent": reading.utilization_percent,
                "slots": sum(_slots_on(job, reading.gpu.uuid) for job in status.jobs),
                "mps": status.daemons.get(reading.gpu.uuid),
                "processes": [
                    {
                        "pid": p.pid,
                        "user": processes.read_owner(p.pid),
                        "job_id": status.tasks[p.pid].job_id,
                        "memory_used_mib": p.memory_used_mib,
                    }
                    for p in reading.processes
                    if p.pid in status.tasks
                ],
            }
            for reading in status.gpus
        ],
    }


def as_tables(status: Status) -> list[Any]:
    """The same for a person."""
    parts: list[Any] = []
    if any(reading.gpu.simulated for reading in status.gpus):
        parts.append(Text(SIMULATED, style="bold reverse"))
    parts += [Text(line) for line in _mode_lines(status.modes)]
    whose = "" if status.everything else " of yours"
    if not status.jobs:
        parts.append(Text(f"{status.node}: no shared job{whose}"))
    else:
        parts.append(_job_table(status))
    if status.gpus:
        parts += [Text(""), _gpu_table(status)]
    return parts


def _mode_lines(modes: Mapping[str, str]) -> list[str]:
    """Where jobs are not shared, and why; nothing where they are."""
    said = {"off": "sharing is switched off", "observe": "slurm-share observes only and shares nothing"}
    return [
        said[mode] + (f" in partition {name}" if name else "") + " (mode in the configuration)"
        for name, mode in modes.items()
        if mode != "on" and (not name or mode != modes[""])
    ]


def _job_table(status: Status) -> Table:
    table = _table("JOB", "USER", "SHARE", "GPUS", "SLOTS", "USED", "SINCE", numbers=(0, 4, 5))
    index_of = {reading.gpu.uuid: str(reading.gpu.index) for reading in status.gpus}
    for job in status.jobs:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.since))
        gpus = ",".join(index_of.get(uuid, "?") for uuid in job.gpus)
        user = job.user or processes.read_user_name(job.uid)
        if job.share:
            slots = str(job.slots) if job.on_gpu is None else f"no. {job.on_gpu}"
            used = _known(_count(status.leased[job.job_id]))
            table.add_row(str(job.job_id), user, job.share, gpus, slots, used, since)
        else:
            table.add_row(str(job.job_id), user, "-", "-", "-", "-", since)
    return table


def _gpu_table(status: Status) -> Table:
    headings = ("GPU", "UUID", "NAME", "SLOTS", "TASKS", "MEMORY MIB", "UTIL", "MPS", "JOBS")
    table = _table(*headings, numbers=(0, 3, 4, 5, 6))
    # Where it is narrow the name is cut, with a sign, and nothing is folded: eight GPUs stay eight lines.
    table.columns[1].no_wrap, table.columns[1].min_width = True, 13
    table.columns[2].no_wrap, table.columns[2].overflow = True, "ellipsis"
    in_full = terminal.width() >= FULL_UUID_WIDTH
    for reading in status.gpus:
        uuid = reading.gpu.uuid
        jobs = [job for job in status.jobs if uuid in job.gpus]
        table.add_row(
            str(reading.gpu.index),
            uuid if in_full else f"{uuid[:12]}…",
            reading.gpu.name,
            str(sum(_slots_on(job, uuid) for job in jobs)),
            str(sum(process.pid in status.tasks for process in reading.processes)),
            f"{_known(reading.memory_used_mib)} / {_known(reading.gpu.memory_total_mib)}",
            f"{_known(reading.utilization_percent)} %",
            status.daemons.get(uuid) or "-",
            ",".join(str(job.job_id) for job in jobs) or "-",
        )
    return table


def _table(*headings: str, numbers: tuple[int, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place in numbers else "left", overflow="fold")
    return table


def _slots_on(job: LedgerJob, uuid: str) -> int:
    """Slot i is on GPU i mod G, so every GPU of a job has slots/G of them."""
    return job.slots // len(job.gpus) if uuid in job.gpus else 0


def _count(slots: frozenset[int] | None) -> int | None:
    return None if slots is None else len(slots)


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)
