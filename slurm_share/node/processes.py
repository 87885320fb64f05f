"""Read processes from the kernel, with their jobs and users. Hooks load this module, so without psutil (host.py)."""

from __future__ import annotations

import math
import os
import pwd
from collections.abc import Iterable
from pathlib import Path

from ..core import numbers
from ..core.patterns import pattern
from ..core.process import identify
from . import cgroups, process_table
from .cgroups import slurp
from .records import LiveJob, NodeProcess

PROC = Path("/proc")
_ENVIRON_JOB = pattern(rb"(?:^|\0)SLURM_JOB_ID=([0-9]{1,10})(?:\0|$)")
_STEPD_NAME = b"slurmstepd"
_UID = pattern(rb"(?m)^Uid:\t([0-9]+)\t")
_ANCESTORS = 64
"""Most levels of parents that are read; no normal job's tree is deeper."""


def read_user_name(uid: int) -> str:
    """Return the name of a user, or the uid as text if this host does not know it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def read_user_id(name: str) -> int | None:
    """Return the uid for a name or number; None: this host knows no such user."""
    try:
        number = numbers.whole(name, numbers.UINT32_MOST)
        return (pwd.getpwnam(name) if number is None else pwd.getpwuid(number)).pw_uid
    except (KeyError, ValueError):  # ValueError: a NUL in the name, or one that is not UTF-8
        return None


def are_hidden(proc: Path = PROC) -> bool:
    """Return whether the kernel hides other users' processes from this one (hidepid, proc(5)): pid 1 is root's."""
    return not slurp(proc / "1/stat")


def read_live_jobs(proc: Path = PROC) -> tuple[LiveJob, ...]:
    """Return the jobs that have a step on this node.

    slurmstepd has job and step in its title (`slurmstepd: [4711.batch]`), and its children are the job's tasks, with
    the user's uid. A job between two steps is not listed, so this proves that a job runs, never that it has ended. A
    slurmstepd alone is no proof: after its task it waits until slurmctld has answered (see `LiveJob.without_task_s`).
    """
    steps: dict[int, int] = {}
    starts: dict[int, float] = {}
    for pid, (_, name, start, _) in process_table.read(str(proc), ()).items():
        if name.startswith(_STEPD_NAME):
            job = _job_of_stepd(proc / str(pid))
            if job is not None:
                steps[pid] = job
                starts[pid] = start
    children = process_table.read_children(steps, str(proc)) if steps else {}
    owners: dict[int, int | None] = dict.fromkeys(steps.values())
    for pid, job in steps.items():
        for child in children.get(pid, ()):
            uid = _UID.search(slurp(proc / str(child) / "status"))
            if uid and int(uid[1]) != 0:  # a child that is still root has not become its task yet
                owners[job] = int(uid[1])
                break
    now_s = _uptime_s(proc) if steps else 0.0
    idle = dict.fromkeys(owners, math.inf)
    for pid, job in steps.items():
        idle[job] = min(idle[job], 0.0 if pid in children else max(0.0, now_s - starts[pid]))
    return tuple(LiveJob(job, uid, idle[job]) for job, uid in sorted(owners.items()))


def read_slurmd_start(proc: Path = PROC) -> float | None:
    """Return when the oldest slurmd here started, in seconds since boot; None: there is none. A slurmd has children of
    its name for moments. A user's process of that name can only make it look older."""
    rows = process_table.read(str(proc), ()).values()
    return min((start for _, name, start, _ in rows if name in process_table.SLURMD_NAMES), default=None)


def _uptime_s(proc: Path) -> float:
    """Return the seconds since boot; 0 if unknown."""
    seconds = slurp(proc / "uptime").partition(b" ")[0]
    return float(seconds) if seconds.replace(b".", b"", 1).isdigit() else 0.0


def read_runs_in_job(proc: Path = PROC, pid: int | None = None) -> bool:
    """Return whether a process (default: this one) was started inside a job's own step: PrologFlags=RunInJob (Slurm
    24.05 and later)."""
    above = _ancestors(os.getpid() if pid is None else pid, proc)
    return any(_job_of_stepd(proc / str(one)) is not None for one in above)


def read_processes(pids: Iterable[int], proc: Path = PROC) -> tuple[NodeProcess, ...]:
    """Return those of the processes that still exist."""
    return tuple(found for found in (read_process(pid, proc) for pid in pids) if found is not None)


def read_processes_of(uid: int, proc: Path = PROC) -> tuple[NodeProcess, ...]:
    """Return the processes of which all uids are the user's. A process of root that acts for the user for a moment (a
    login's monitor, a file server) has another real or saved uid."""
    import re

    whole = re.compile(rb"^Uid:\t%d\t%d\t%d\t" % (uid, uid, uid), re.MULTILINE)
    return read_processes(
        (pid for pid in process_table.read(str(proc)) if whole.search(slurp(proc / str(pid) / "status"))), proc
    )


def read_ancestors(processes: Iterable[NodeProcess], proc: Path = PROC) -> tuple[NodeProcess, ...]:
    """Return the ancestors of the processes, nearest first, without duplicates and without pid 1."""
    pids = dict.fromkeys(pid for one in processes for pid in _ancestors(one.identity.pid, proc))
    return read_processes(pids, proc)


def read_process(pid: int, proc: Path = PROC) -> NodeProcess | None:
    """Return a process and its job; None if it has ended.

    The job is taken from its cgroup, which a user cannot leave; else from its slurmstepd; else from its environment,
    which the user can write and which can only spare the user's own process.
    """
    identity = identify(pid, str(proc))
    if identity is None:
        return None
    job = _job_of_cgroup(pid, proc)
    if job is not None:
        return NodeProcess(identity, job)
    for ancestor in _ancestors(pid, proc):
        job = _job_of_stepd(proc / str(ancestor))
        if job is not None:
            return NodeProcess(identity, job)
    match = _ENVIRON_JOB.search(slurp(proc / str(pid) / "environ", 1 << 20))
    return NodeProcess(identity, int(match[1]), is_own_claim=True) if match else NodeProcess(identity, None)


def _job_of_cgroup(pid: int, proc: Path) -> int | None:
    place = cgroups.read_place(proc / str(pid))
    if place is None or place.job is not None:
        return None if place is None else place.job
    return cgroups.read_job_of_sluid(place, proc)


def _job_of_stepd(process: Path) -> int | None:
    """Return the job in the title of a slurmstepd of root's."""
    found = cgroups.read_stepd(process)
    return None if found is None else found[0]


def _ancestors(pid: int, proc: Path) -> Iterable[int]:
    for _ in range(_ANCESTORS):
        fields = slurp(proc / str(pid) / "stat").rpartition(b")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
        if pid <= 1:
            return
        yield pid


def is_stopped(pid: int, proc: str | Path = "/proc") -> bool:
    """Return whether a process was stopped by a signal, or is traced (proc_pid_stat(5)); False if it has ended."""
    return slurp(f"{proc}/{pid}/stat").rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])
