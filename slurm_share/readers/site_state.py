"""What slurm-share itself keeps on this node: its folder, ledger, daemons and log."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from .. import process
from ..checkup import Mount, StateFacts, Unseen
from ..errors import MpsError, StateError
from ..paths import Paths
from ..records import Ledger, LedgerJob, MpsPlace, Owner
from ..settings import Settings
from . import ledger_file, mps, proc, site_programs


def read_state(settings: Settings, state_root: str, root: Path = Path("/"), mounts: Sequence[Mount] = ()) -> StateFacts:
    """All of it; what is for root's eyes alone is Unseen to others."""
    paths = Paths(root=root / state_root.lstrip("/"))
    ledger, broken = _ledger(paths, root)
    writable, problem = _can_log(settings.log_file, root)
    return StateFacts(
        root=state_root,
        folder=site_programs.read_file_fact(state_root, root, mounts),
        is_mount=any(one.point == state_root for one in mounts),
        free_percent=_free_percent(paths.root),
        ledger=ledger,
        broken=broken,
        folders=_folders(paths.jobs),
        live_jobs=frozenset(job.job_id for job in proc.read_live_jobs(root / "proc")),
        abandoned=() if isinstance(ledger, Unseen) else _abandoned(ledger, root),
        daemons=() if isinstance(ledger, Unseen) else _daemons(paths, root),
        now=time.time(),
        log=site_programs.read_file_fact(settings.log_file, root, mounts) if settings.log_file else None,
        log_is_writable=writable,
        log_problem=problem,
    )


def _ledger(paths: Paths, root: Path) -> tuple[Ledger | Unseen, str]:
    try:
        boot_id = ledger_file.read_boot_id(root / str(ledger_file.BOOT_ID_FILE).lstrip("/"))
        return ledger_file.read_ledger(paths, boot_id), ""
    except StateError as error:
        return Unseen(str(error)), str(error)
    except OSError as error:
        return Unseen(f"the ledger is for root's eyes ({error.strerror})"), ""


def _abandoned(ledger: Ledger, root: Path) -> tuple[LedgerJob, ...]:
    return tuple(one.job for one in ledger.leaving if not process.is_same(one.hook, str(root / "proc")))


def _folders(jobs: Path) -> tuple[tuple[int, float], ...]:
    try:
        found = [(int(one.name), one.stat().st_mtime) for one in os.scandir(jobs) if one.name.isdecimal()]
    except OSError:
        return ()  # none, or a job's is being removed at this moment
    return tuple(sorted(found))


def _daemons(paths: Paths, root: Path) -> tuple[tuple[int, str, bool], ...]:
    """The kernel is asked who holds each one's lock, and no daemon is spoken to."""
    found = []
    for uid, pipe in mps.read_pipes(paths):
        try:
            lives = mps.read_daemon(MpsPlace("", pipe, "", Owner(uid, uid)), str(root / "proc")) is not None
        except MpsError:
            continue
        found.append((uid, pipe, lives))
    return tuple(found)


def _free_percent(folder: Path) -> int | None:
    try:
        seen = os.statvfs(folder)
    except OSError:
        return None
    parts = [(seen.f_bavail, seen.f_blocks), (seen.f_favail, seen.f_files)]
    return min((100 * free // whole for free, whole in parts if whole), default=None)


def _can_log(path: str, root: Path) -> tuple[bool, str]:
    """Whether the caller could append to the log; what keeps it from that."""
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
