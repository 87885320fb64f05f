"""slurm-share's state on this node: folder, ledger, files of jobs, daemons of backends, and log."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from ...core import log as core_log
from ...core import names, numbers, process
from ...core.errors import StateError
from ...core.paths import Paths
from ...core.records import ProcessIdentity
from ...core.settings import Settings
from ...node import processes
from ...prove import stage
from ...share import Examination, Health, Host, Ledger, LedgerJob, Plan, ledger_file, registry, user_folder
from . import programs, system
from .records import FileFact, LostPath, Mount, StateFacts, UnknownFact


def paths_of(state_root: str, root: Path) -> Paths:
    """Return the paths of the state below another root folder."""
    return Paths(root=root / state_root.lstrip("/"), cgroup=root / str(Paths().cgroup).lstrip("/"))


def read_state(settings: Settings, state_root: str, root: Path = Path("/"), mounts: Sequence[Mount] = ()) -> StateFacts:
    """Return the state of this node. What only root can read is UnknownFact to others."""
    paths = paths_of(state_root, root)
    user, log = f"{state_root}/{names.USER_FOLDER}", settings.log_file
    ledger, broken = _ledger(paths, root)
    writable, problem = _can_log(log, root)
    return StateFacts(
        root=state_root,
        folder=programs.read_file_fact(state_root, root, mounts),
        is_mount=any(one.point == state_root for one in mounts),
        free_percent=system.read_free_percent(paths.root),
        user_folder=programs.read_file_fact(user, root, mounts),
        user_is_mount=any(one.point == user for one in mounts),
        user_free_percent=system.read_free_percent(paths.user),
        own_used_percent=tuple(sorted(user_folder.read_own(paths).items())),
        ledger=ledger,
        broken=broken,
        folders=_folders(paths),
        live_jobs=frozenset(job.job_id for job in processes.read_live_jobs(root / "proc")),
        abandoned=() if isinstance(ledger, UnknownFact) else _abandoned(ledger, root),
        now=time.time(),
        uptime_s=time.clock_gettime(time.CLOCK_BOOTTIME),
        log=programs.read_file_fact(log, root, mounts) if log else None,
        log_is_writable=writable,
        log_problem=problem,
        has_journal=(root / core_log.JOURNAL.lstrip("/")).is_socket(),
        log_free_percent=system.read_free_percent((root / log.lstrip("/")).parent) if log else None,
        lost=() if isinstance(ledger, UnknownFact) else still_lost(read_lost(ledger, paths), paths, root),
        folders_of_root=_folders_of_root(paths, state_root, root),
        lock_holder=read_lock_holder(paths.ledger_lock, root / "proc"),
        helper_folder=programs.read_file_fact(names.HELPER_FOLDER, root, mounts),
        helper=read_helper(root),
        helper_did_not_start=_did_not_start(root),
        has_left_proof=stage.is_left(root / str(stage.FOLDER).lstrip("/")),
    )


def read_job_ids(state_root: str, root: Path = Path("/")) -> frozenset[int]:
    """Return all jobs that this node knows, to ask Slurm about them."""
    paths = paths_of(state_root, root)
    ledger, _ = _ledger(paths, root)
    known = [] if isinstance(ledger, UnknownFact) else [*ledger.jobs, *(one.job for one in ledger.leaving)]
    live = (job.job_id for job in processes.read_live_jobs(root / "proc"))
    return frozenset((*(job.job_id for job in known), *(job for job, _ in _folders(paths)), *live))


def _ledger(paths: Paths, root: Path) -> tuple[Ledger | UnknownFact, str]:
    try:
        boot_id = ledger_file.read_boot_id(root / str(ledger_file.BOOT_ID_FILE).lstrip("/"))
        return ledger_file.read_ledger(paths, boot_id), ""
    except StateError as error:
        return UnknownFact(str(error)), str(error)
    except OSError as error:
        return UnknownFact(f"the ledger is for root's eyes ({error.strerror})"), ""


def _abandoned(ledger: Ledger, root: Path) -> tuple[LedgerJob, ...]:
    return tuple(one.job for one in ledger.leaving if not process.is_same(one.hook, str(root / "proc")))


def _folders(paths: Paths) -> tuple[tuple[int, float], ...]:
    """Return the jobs that have a folder of root's or a users' one, with the time of its last change."""
    found: dict[int, float] = {}
    users = [paths.user_job(0, uid).parent for uid in user_folder.read_uids(paths)]
    for jobs in (*users, paths.jobs):
        try:
            for one in os.scandir(jobs):
                if (number := numbers.whole(one.name, numbers.UINT32_MOST)) is not None:
                    found[number] = one.stat().st_mtime
        except OSError:
            continue  # there is none, or a job's folder has just been removed
    return tuple(sorted(found.items()))


def _folders_of_root(paths: Paths, state_root: str, root: Path) -> tuple[FileFact, ...]:
    """Return root's folders: those of jobs, of users, and of tasks without MPS."""
    users = [paths.user_of(uid) for uid in user_folder.read_uids(paths)]
    folders = (paths.jobs, paths.user, paths.mps, paths.no_mps, *users)
    places = [f"{state_root}/{folder.relative_to(paths.root)}" for folder in folders]
    found = (programs.read_file_fact(place, root) for place in places)
    # Folders above belong to the check of the state folder.
    return tuple(replace(one, chain=one.chain[-1:]) for one in found if one is not None)


def still_lost(lost: Collection[LostPath], paths: Paths, root: Path) -> tuple[LostPath, ...]:
    """Return the missing files of jobs that are still in the ledger. An Epilog removes a job's folder, then its line in
    the ledger."""
    ledger = _ledger(paths, root)[0] if lost else UnknownFact("not needed")
    here = () if isinstance(ledger, UnknownFact) else {job.job_id for job in ledger.jobs}
    return tuple(one for one in lost if one.job_id in here)


def read_lost(ledger: Ledger, paths: Paths) -> tuple[LostPath, ...]:
    """Return missing files that hooks made for jobs in the ledger: plans and slots."""
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
        return  # damaged: the hooks report it to its job
    if isinstance(plan, Plan):
        yield str(paths.slots(job.job_id))


# --- Backends --------------------------------------------------------------------------------------------------------


def read_backends(
    host: Host, mounts: Sequence[Mount], *, driver: str | UnknownFact, ledger: Ledger | UnknownFact, asks_daemons: bool
) -> tuple[Mapping[str, Health], tuple[LostPath, ...]]:
    """Return the health of each backend by name, and the missing files of daemons that jobs need. Daemons are searched
    only if the ledger tells which jobs have them."""
    paths, root = host.paths, host.root
    examination = Examination(
        driver,
        lambda path: programs.read_file_fact(path, root, mounts),
        () if isinstance(ledger, UnknownFact) else read_plans(ledger, paths),
        asks_daemons,
    )
    of = () if isinstance(ledger, UnknownFact) else None
    found = {one.name: one.health(host, of, examination=examination) for one in registry.every()}
    lost = [LostPath(*one) for health in found.values() for one in health.lost]
    return found, still_lost(lost, paths, root)


def read_plans(ledger: Ledger, paths: Paths) -> tuple[tuple[LedgerJob, frozenset[str]], ...]:
    """Return the jobs that share, and the daemon folders in each job's plan."""
    return tuple((job, _daemon_folders(job, paths)) for job in ledger.jobs if job.share)


def _daemon_folders(job: LedgerJob, paths: Paths) -> frozenset[str]:
    """Return the daemon folders in a job's plan; none for a damaged plan, which the hooks report to its job."""
    try:
        plan = ledger_file.read_plan(paths, job.job_id)
    except StateError:
        return frozenset()
    slots = plan.slots if isinstance(plan, Plan) else ()
    return frozenset(slot.mps_directory for slot in slots if slot.mps_directory is not None)


# --- Locks, and the log ----------------------------------------------------------------------------------------------


HELPER_START_S = 30.0
"""A helper is ready a fraction of a second after its start; later it has failed."""
LOCK_READ_S = 1.0
"""Hooks hold the ledger's lock for milliseconds, or tens of them with a slow disk."""
_FLOCK = re.compile(r"^\d+: FLOCK +\S+ +\S+ +(-?\d+) +([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)


def read_lock_holder(file: Path, proc_folder: Path = Path("/proc")) -> str:
    """Return a description of the process that holds a lock file all the time; "": none.

    Reads the kernel's list of locks (proc_locks(5)), which psutil does not cover, and does not take the lock.
    """
    held = _holder(file, proc_folder)
    end = time.monotonic() + LOCK_READ_S
    while held is not None and time.monotonic() < end:
        time.sleep(LOCK_READ_S / 20)
        if _holder(file, proc_folder) != held:
            return ""
    return "" if held is None else _described(held, proc_folder)


def read_helper(root: Path = Path("/")) -> str:
    """Return a description of the hooks' helper; "": there is none, or the caller may not see it."""
    held = _holder(root / names.HELPER_FOLDER.lstrip("/") / names.HELPER_LOCK, root / "proc")
    return "" if held is None else _described(held, root / "proc")


def _did_not_start(root: Path) -> bool:
    try:
        mark = (root / names.HELPER_FOLDER.lstrip("/") / names.HELPER_STARTED).stat()
    except OSError:
        return False
    return time.time() - mark.st_mtime > HELPER_START_S


def _holder(file: Path, proc_folder: Path) -> ProcessIdentity | None:
    try:
        seen = file.stat()
        text = (proc_folder / "locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for pid, major, minor, inode in _FLOCK.findall(text):
        if (os.makedev(int(major, 16), int(minor, 16)), int(inode)) == (seen.st_dev, seen.st_ino):
            return process.identify(int(pid), str(proc_folder)) or ProcessIdentity(max(0, int(pid)))
    return None


def _described(holder: ProcessIdentity, proc_folder: Path) -> str:
    if not holder.pid:
        return "a process that the kernel does not name here"
    if holder.start_ticks is None:
        return f"what process {holder.pid} started, which is gone itself (`fuser -v` names it),"
    stopped = ", stopped" if processes.is_stopped(holder.pid, str(proc_folder)) else ""
    return f"process {holder.pid} ({holder.name or '?'}, uid {holder.uid}{stopped})"


def _can_log(path: str, root: Path) -> tuple[bool, str]:
    """Return whether the caller could append to the log, and why not."""
    if not path:
        return True, ""
    file = root / path.lstrip("/")
    try:
        seen = file.lstat()
    except FileNotFoundError:
        if not file.parent.is_dir():
            return False, f"there is no folder {Path(path).parent}"
        return (True, "") if os.access(file.parent, os.W_OK) else (False, "its folder cannot be written to")
    except OSError as error:
        return False, str(error.strerror)
    if not stat.S_ISREG(seen.st_mode):
        return False, "it is no plain file, and hooks follow no links"
    if not os.access(file, os.W_OK):
        return False, "it cannot be written"
    room = os.statvfs(file)
    return (True, "") if room.f_bavail else (False, "its file system is full")
