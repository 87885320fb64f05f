"""Our MPS daemons as a physician looks at them: whether those that live answer, and whether their folders are there."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...core import process
from ...core.errors import MpsError, StateError
from ...core.paths import Paths
from ...core.process import Deadline
from ...core.records import Owner, ProcessIdentity
from ...core.settings import Settings
from ...mps import control, status
from ...mps.records import MPS_NAME, MpsHealth, MpsPlace
from ...node import processes
from ...share import ledger_file
from ...share.records import Ledger, LedgerJob, Plan
from .records import LostPath

ASK_S = 4.0
"""For the answer of a daemon. They are asked side by side; a front end of somebody's keeps one busy for a moment."""
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"


def owner_of(uid: int) -> Owner:
    """The owner of a daemon, in whose name it is spoken to: with his own group, and none of that number."""
    try:
        return Owner(uid, pwd.getpwuid(uid).pw_gid)
    except KeyError:
        return Owner(uid, uid)


def read_healths(
    daemons: Iterable[tuple[int, str, bool]], settings: Settings, root: Path = Path("/")
) -> Mapping[str, MpsHealth]:
    """By pipe directory how each daemon is that lives. One that is stopped is not spoken to."""
    paths = Paths(cgroup=root / "sys/fs/cgroup")
    places = [
        control.node_place(paths, settings.mps_control, owner_of(uid), "", pipe=pipe)
        for uid, pipe, lives in daemons
        if lives and uid
    ]
    if not places or not settings.mps_control:
        return {}
    with ThreadPoolExecutor(len(places)) as pool:
        told = list(pool.map(lambda place: _health(place, str(root / "proc")), places))
    return {place.pipe: health for place, health in zip(places, told, strict=True) if health is not None}


def _health(place: MpsPlace, proc_folder: str) -> MpsHealth | None:
    """None: it cannot be asked from here, which checks of the program and of the folder have to say."""
    try:
        daemon = status.read_daemon(place, proc_folder)
        if daemon is not None and is_stopped(daemon.pid, proc_folder):
            return MpsHealth("stopped", daemon, why=f"its daemon, process {daemon.pid}, is stopped (SIGSTOP)")
        return status.read_health(place, Deadline.after(ASK_S), proc_folder)
    except MpsError:
        return None


def is_stopped(pid: int, proc_folder: str = "/proc") -> bool:
    """Whether a process was sent SIGSTOP, or is traced (proc_pid_stat(5))."""
    try:
        text = Path(proc_folder, str(pid), "stat").read_text(errors="replace")
        return text.rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def read_users(place: MpsPlace, deadline: Deadline, proc_folder: str = "/proc") -> tuple[ProcessIdentity, ...]:
    """Programs that use a daemon, or are about to: its clients, as it says itself where it answers, and every process
    of its owner that was started with its pipe directory. The latter is the owner's own word, and only spares."""
    pids: set[int] = set()
    try:
        for server in control.read_servers(place, deadline):
            pids.update(control.read_clients(place, server.pid, deadline))
    except MpsError:
        pass  # dead, or it hangs: then the kernel alone is asked
    name = f"{PIPE_VARIABLE}={place.pipe}".encode()
    for one in processes.read_processes_of(place.owner.uid, Path(proc_folder)):
        if one.identity.name != MPS_NAME and name in _environ(one.identity.pid, proc_folder).split(b"\0"):
            pids.add(one.identity.pid)
    found = (process.identify(pid, proc_folder) for pid in sorted(pids))
    return tuple(one for one in found if one is not None)


def _environ(pid: int, proc_folder: str) -> bytes:
    try:
        return Path(proc_folder, str(pid), "environ").read_bytes()
    except OSError:
        return b""


def read_lost(ledger: Ledger, paths: Paths) -> tuple[LostPath, ...]:
    """What hooks made for the jobs in the ledger and is gone: a job's plan and slots, and the folders of the daemons
    that its plan names."""
    return tuple(
        LostPath(job.job_id, job.uid, path)
        for job in ledger.jobs
        if job.share
        for path in _wanted(job, paths)
        if not os.path.lexists(path)
    )


def _wanted(job: LedgerJob, paths: Paths) -> Iterator[str]:
    yield str(paths.plan(job.job_id))
    try:
        plan = ledger_file.read_plan(paths, job.job_id)
    except StateError:
        return  # torn: the hooks' own check says so to its job
    if not isinstance(plan, Plan):
        return
    yield str(paths.slots(job.job_id))
    # A plan may be its user's to write: of what it names only that is looked at which the ledger gives the job.
    named = {slot.mps_directory for slot in plan.slots if slot.mps_directory is not None}
    given = {str(pipe(job.uid, gpu)) for gpu in job.gpus for pipe in (paths.mps_pipe, paths.earlier_mps_pipe)}
    for pipe in sorted(named & given):
        yield from (pipe, f"{pipe}/control", f"{pipe}/logs")
