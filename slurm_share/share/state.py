"""Write and remove what a job leaves on the node: its folder, its plan, its line in the ledger.

Everything appears whole (written aside, then renamed) and can be done twice. The state folder and every folder in it
belong to root, so no user can put a link where a file is written. What users can write to is below one folder of it,
on a file system of its own, so that nobody can fill that of the ledger and the plans.
"""

from __future__ import annotations

import errno
import grp
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core import locks, names
from ..core.errors import StateError
from ..core.paths import Paths
from ..core.process import Deadline
from ..core.records import Owner
from ..core.settings import Settings
from . import ledger_file
from . import plan as plan_text
from .records import Ledger, Unshared


def prepare(paths: Paths) -> None:
    """Make the state folder (0755), the jobs folder, the users' and that of tasks without MPS (0711) where they are not
    there yet, and put their modes right: a tmpfs mounted by hand may have any."""
    for folder, mode in ((paths.root, 0o755), (paths.jobs, 0o711), (paths.user, 0o711), (paths.no_mps, 0o711)):
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

    def give(fd: int) -> None:
        os.fchmod(fd, 0o600 if group is None else 0o640)
        if os.geteuid() == 0:
            os.fchown(fd, 0, group or 0)

    _write_whole(paths.ledger, ledger_file.render_ledger(ledger), give)


def make_job_folder(paths: Paths, job_id: int) -> None:
    """Make the job's folder, before its ledger line is written: where there is a line there is a folder, so that the
    Epilog of a job without one needs to read nothing."""
    paths.job(job_id).mkdir(mode=0o711, exist_ok=True)


def write_plan(paths: Paths, plan: plan_text.Contents, gid: int) -> None:
    """Put the job's plan in place, root's, for its user alone to read. Raises OSError as `write_ledger` does."""
    _put_plan(paths.plan(plan.job_id), plan, gid)


def write_unshared(paths: Paths, note: Unshared, gid: int) -> None:
    """Note that a job which asked to share runs unshared. Not in the folder of the jobs that share: while there is one,
    the hooks of ordinary jobs have work. Raises OSError as `write_ledger` does."""
    file = paths.unshared(note.job_id)
    for folder, mode in ((paths.root, 0o755), (file.parent, 0o711)):
        folder.mkdir(mode=mode, exist_ok=True)
    _put_plan(file, note, gid)


def remove_unshared(paths: Paths, job_id: int) -> None:
    """Remove that note; nothing to do where there is none."""
    paths.unshared(job_id).unlink(missing_ok=True)


def _put_plan(file: Path, plan: plan_text.Contents, gid: int) -> None:
    """Write a plan for its user to read. Where the file system has no access lists, the file is the user's own."""

    def give(fd: int) -> None:
        if os.geteuid() == 0 and plan.uid != 0:
            try:
                os.setxattr(fd, "system.posix_acl_access", _for_one_reader(plan.uid))
                return
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
            os.fchown(fd, plan.uid, gid)
        os.fchmod(fd, 0o400)

    _write_whole(file, plan_text.render(plan).encode("ascii"), give)


def _for_one_reader(uid: int) -> bytes:
    """Return an access list as the kernel takes it (include/uapi/linux/posix_acl_xattr.h): version 2, then each entry's
    tag, permissions and id. The owner reads and writes, the user `uid` reads, nobody else has anything."""
    owner, user, group, mask, others, nobody = 0x01, 0x02, 0x04, 0x10, 0x20, 0xFFFFFFFF
    read, write = 4, 2
    entries = ((owner, read | write, nobody), (user, read, uid), (group, 0, nobody), (mask, read, nobody))
    found = (2).to_bytes(4, "little")
    for tag, permissions, who in (*entries, (others, 0, nobody)):
        found += tag.to_bytes(2, "little") + permissions.to_bytes(2, "little") + who.to_bytes(4, "little")
    return found


def make_slots(paths: Paths, job_id: int, slots: int, owner: Owner) -> None:
    """Make a file for each of the job's `slots`, and those for choosing among them and waiting.

    Only the job's user, the `owner`, can open them: slurmstepd, as that user, holds a lock on the file of each slot it
    gives a task. Files that are there keep their locks.

    Raises OSError where the users' file system is full.
    """
    folder = paths.slots(job_id)
    if not folder.is_dir():
        files = paths.slot_files(job_id)
        for one in (files.parents[1], files.parent, files):
            one.mkdir(mode=0o711, exist_ok=True)
        if not folder.exists():
            folder.symlink_to(os.path.relpath(files, folder.parent))
    more = (names.SLOTS_LOCK, names.SLOTS_QUEUE, names.SLOTS_REFUSED)
    for name in (*more, *map(str, range(slots))):
        fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.geteuid() == 0:
                os.fchown(fd, owner.uid, owner.gid)
        finally:
            os.close(fd)


def remove_plan(paths: Paths, job_id: int) -> None:
    """Remove the job's plan alone; nothing to do where there is none."""
    paths.plan(job_id).unlink(missing_ok=True)


def remove_job(paths: Paths, job_id: int) -> None:
    """Remove the job's folders with all in them; nothing to do where there is none. The one that the next Epilog looks
    for goes last."""
    for folder in (paths.user_job(job_id), paths.job(job_id)):
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


def remove_remains(paths: Paths, uids: Collection[int]) -> None:
    """Remove what killed hooks left: ledgers that were being written, and empty MPS folders of other users than `uids`,
    for whom a hook may be starting a daemon. The caller holds the ledger."""
    for entry in os.scandir(paths.root):
        if entry.name.startswith(f".{paths.ledger.name}."):
            os.unlink(entry)  # noqa: PTH108
    for folder in (paths.mps, paths.earlier_mps):
        try:
            others = [one.path for one in os.scandir(folder) if one.name.isdecimal() and int(one.name) not in uids]
        except FileNotFoundError:
            continue
        for path in others:
            try:
                os.rmdir(path)  # noqa: PTH106
            except OSError:
                pass  # something is in it: a daemon, which the clean-up after its job ends


def _unless_gone(function: object, path: str, info: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]


def _group_id(name: str) -> int | None:
    """Return the group's id; None for no group, and for one that this node does not know: then the ledger stays
    root's."""
    try:
        return grp.getgrnam(name).gr_gid if name else None
    except KeyError:
        return None


def _write_whole(file: Path, data: bytes, give: Callable[[int], None]) -> None:
    """Write a file under another name and rename it. `give` sets owner and mode; until then it is root's, 0600."""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb") as stream:
            stream.write(data)
            stream.flush()
            give(fd)
        aside.replace(file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
