"""Writes and removes what a job leaves on the node: its folder, its plan, its line in the ledger.

Everything appears whole (written aside, then renamed) and can be done twice. The state folder and every folder in it
belong to root, so no user can put a link where a file is written.
"""

from __future__ import annotations

import grp
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import ledger as ledger_bytes
from .. import locks, names, plan_text
from ..errors import StateError
from ..paths import Paths
from ..process import Deadline
from ..records import Ledger, PlanFile
from ..settings import Settings


def prepare(paths: Paths) -> None:
    """Make the state folder (0755), the jobs folder and that of tasks without MPS (0711) where they are not there yet,
    and put their modes right: a tmpfs mounted by hand may have any."""
    for folder, mode in ((paths.root, 0o755), (paths.jobs, 0o711), (paths.no_mps, 0o711)):
        folder.mkdir(mode=mode, exist_ok=True)
        folder.chmod(mode)


LOCK_PAUSE_S = 0.002
"""Between two tries for the ledger, which is held for less than that."""


@contextmanager
def exclusive(paths: Paths, deadline: Deadline) -> Iterator[None]:
    """Hold the node's ledger alone: read, decide, write, leave. The kernel lets go of it when a holder dies.

    Raises StateError when another hook, which hangs in the driver or was stopped, holds it until the deadline.
    """
    fd = os.open(paths.ledger_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not locks.take(fd, deadline, LOCK_PAUSE_S):
            raise StateError(str(paths.ledger_lock), "another hook has held it all the time")
        yield
    finally:
        os.close(fd)


def write_ledger(paths: Paths, ledger: Ledger, settings: Settings) -> None:
    """Put the whole ledger in place; readable by root, and by the operators' group where the site names one.

    Raises OSError when the state folder is full or not writable.
    """
    group = _group_id(settings.operators_group)
    _write_whole(paths.ledger, ledger_bytes.render(ledger), 0, group or 0, 0o600 if group is None else 0o640)


def make_job_folder(paths: Paths, job_id: int) -> None:
    """The job's folder, before its ledger line: where there is a line there is a folder, so that the Epilog of a job
    without one needs to read nothing."""
    paths.job(job_id).mkdir(mode=0o711, exist_ok=True)


def write_plan(paths: Paths, plan: PlanFile, gid: int) -> None:
    """Put the job's plan in place, readable by its user alone. Raises OSError as `write_ledger` does."""
    _write_whole(paths.plan(plan.job_id), plan_text.render(plan).encode("ascii"), plan.uid, gid, 0o400)


def make_slots(paths: Paths, plan: PlanFile, gid: int) -> None:
    """One file a slot, and those for choosing among them and waiting, which only the job's user can open: slurmstepd,
    as that user, holds a lock on the file of each slot it gives a task. Files that are there keep their locks.
    """
    folder = paths.slots(plan.job_id)
    folder.mkdir(mode=0o711, exist_ok=True)
    more = (names.SLOTS_LOCK, names.SLOTS_QUEUE, names.SLOTS_REFUSED)
    for name in (*more, *(str(slot.number) for slot in plan.slots)):
        fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.geteuid() == 0:
                os.fchown(fd, plan.uid, gid)
        finally:
            os.close(fd)


def remove_plan(paths: Paths, job_id: int) -> None:
    """Remove the job's plan alone; nothing to do where there is none."""
    paths.plan(job_id).unlink(missing_ok=True)


def remove_job(paths: Paths, job_id: int) -> None:
    """Remove the job's folder with all in it; nothing to do where there is none."""
    folder = paths.job(job_id)
    try:
        _empty(folder)
        folder.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        import shutil  # its compression alone costs an Epilog milliseconds

        shutil.rmtree(folder, ignore_errors=False, onerror=_unless_gone)


def _empty(folder: Path) -> None:
    """Remove what is in a folder, and in its folders. Raises OSError where somebody else is at it, too."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _empty(Path(entry.path))
                os.rmdir(entry.path)  # noqa: PTH106
            else:
                os.unlink(entry.path)  # noqa: PTH108


def _unless_gone(function: object, path: str, info: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]


def _group_id(name: str) -> int | None:
    """None for no group, and for one that this node does not know: then the ledger stays root's."""
    try:
        return grp.getgrnam(name).gr_gid if name else None
    except KeyError:
        return None


def _write_whole(file: Path, data: bytes, uid: int, gid: int, mode: int) -> None:
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(fd, mode)
            if os.geteuid() == 0:
                os.fchown(fd, uid, gid)
        aside.replace(file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
