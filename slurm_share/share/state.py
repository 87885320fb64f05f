"""Write and remove a job's state on the node: its folder, its plan, its entry in the ledger.

Every file is written under another name and then renamed; every function can be called twice. The state folder and the
folders in it belong to root, so no user can put a link in the place of a file. The files of users are below one folder,
on a file system of its own, so that users cannot fill the one with the ledger and the plans.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..core import files, locks, mounts, names
from ..core.errors import StateError
from ..core.paths import Paths
from ..core.process import Deadline
from ..core.records import Owner
from ..core.settings import Settings
from . import ledger_file, user_folder
from . import plan as plan_text
from .records import Ledger, UnsharedReason


def prepare(paths: Paths) -> None:
    """Make the state folder (0755) and those of jobs, users and tasks without MPS (0711) if they are missing, and set
    their modes: a tmpfs that was mounted by hand can have any mode."""
    for folder, mode in ((paths.root, 0o755), (paths.jobs, 0o711), (paths.user, 0o711), (paths.no_mps, 0o711)):
        folder.mkdir(mode=mode, exist_ok=True)
        folder.chmod(mode)


ASIDE = "."
"""Beginning of the name of a folder of launchers that is to be removed."""
LOCK_PAUSE_S = 0.002
"""The pause between two tries to lock the ledger, which hooks hold for a shorter time."""


@contextmanager
def exclusive(paths: Paths, deadline: Deadline) -> Iterator[None]:
    """Hold the exclusive lock of the node's ledger. The kernel releases it if the holder dies.

    Raises StateError if another hook, which hangs in the driver or was stopped, holds it until the deadline.
    """
    fd = os.open(paths.ledger_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not locks.take(fd, deadline, LOCK_PAUSE_S):
            raise StateError(str(paths.ledger_lock), "another hook held it until the deadline")
        yield
    finally:
        os.close(fd)


def write_ledger(paths: Paths, ledger: Ledger, settings: Settings) -> None:
    """Write the ledger, readable by root and by the operators' group, if the site configures one.

    Raises OSError if the state folder is full or not writable.
    """
    group = files.group_id(settings.operators_group)  # None: only root reads it

    def give(fd: int) -> None:
        os.fchmod(fd, 0o600 if group is None else 0o640)
        if os.geteuid() == 0:
            os.fchown(fd, 0, group or 0)

    files.write(paths.ledger, ledger_file.render_ledger(ledger), finish=give)


def make_job_folder(paths: Paths, job_id: int) -> None:
    """Make the job's folder. The caller writes the job's ledger entry afterwards: an Epilog that finds no folder then
    knows that there is no entry, without reading the ledger."""
    paths.job(job_id).mkdir(mode=0o711, exist_ok=True)


def write_plan(paths: Paths, plan: plan_text.Contents, gid: int) -> None:
    """Write the job's plan, owned by root and readable by its user only. Raises OSError as `write_ledger` does."""
    _put_plan(paths.plan(plan.job_id), plan, gid)


def write_unshared(paths: Paths, note: UnsharedReason, gid: int) -> None:
    """Record why a job that asked to share runs unshared. The file is not in the jobs folder: while that has an entry,
    the hooks of ordinary jobs have work. Raises OSError as `write_ledger` does."""
    file = paths.unshared(note.job_id)
    for folder, mode in ((paths.root, 0o755), (file.parent, 0o711)):
        folder.mkdir(mode=mode, exist_ok=True)
    _put_plan(file, note, gid)


def remove_unshared(paths: Paths, job_id: int) -> None:
    """Remove the file of `write_unshared`, if there is one."""
    paths.unshared(job_id).unlink(missing_ok=True)


def _put_plan(file: Path, plan: plan_text.Contents, gid: int) -> None:
    write_for_user(file, plan_text.render(plan).encode("ascii"), plan.uid, gid)


def write_for_user(file: Path, data: bytes, uid: int, gid: int = -1) -> None:
    """Write a file of root's that one user can read. On a file system without access lists the user owns the file.

    Raises OSError."""

    def give(fd: int) -> None:
        if os.geteuid() == 0 and uid != 0:
            try:
                os.setxattr(fd, "system.posix_acl_access", _for_one_reader(uid))
                return
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
            os.fchown(fd, uid, gid)
        os.fchmod(fd, 0o400)

    files.write(file, data, finish=give)


def _for_one_reader(uid: int) -> bytes:
    """Return an access list in the kernel's format (include/uapi/linux/posix_acl_xattr.h): version 2, then each entry's
    tag, permissions and id. The owner can read and write, the user `uid` can read, others have no access."""
    owner, user, group, mask, others, nobody = 0x01, 0x02, 0x04, 0x10, 0x20, 0xFFFFFFFF
    read, write = 4, 2
    entries = ((owner, read | write, nobody), (user, read, uid), (group, 0, nobody), (mask, read, nobody))
    found = (2).to_bytes(4, "little")
    for tag, permissions, who in (*entries, (others, 0, nobody)):
        found += tag.to_bytes(2, "little") + permissions.to_bytes(2, "little") + who.to_bytes(4, "little")
    return found


def make_slots(paths: Paths, job_id: int, slots: int, owner: Owner) -> None:
    """Make a file for each of the job's `slots`, for the lock for choosing, and for the queue of waiting sruns.

    Only the `owner`, the job's user, can open them: slurmstepd, as that user, locks the file of each slot that it gives
    to a task. Existing files are kept, and so are their locks.

    Raises OSError if the users' file system is full.
    """
    folder = paths.slots(job_id)
    if not folder.is_dir():
        of_user = paths.slot_files(job_id, owner.uid)
        for one in (*reversed(of_user.parents[:4]), of_user):
            one.mkdir(mode=0o711, exist_ok=True)
        folder.unlink(missing_ok=True)  # it leads to a folder that is gone, as after an upgrade
        folder.symlink_to(os.path.relpath(of_user, folder.parent))
    more = (names.SLOTS_LOCK, names.SLOTS_QUEUE, names.SLOTS_REFUSED)
    for name in (*more, *map(str, range(slots))):
        fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.geteuid() == 0:
                os.fchown(fd, owner.uid, owner.gid)
        finally:
            os.close(fd)


def make_launchers_folder(paths: Paths, owner: Owner) -> tuple[str, ...]:
    """Make the folder in which the launchers of the `owner` on this node tell each other their bookings. Nobody else
    can make it first, as in /tmp. Return a sentence for each file system that its user had mounted there.

    The caller has made the job's slots. Raises OSError if it cannot be made.
    """
    folder, notes = paths.launchers_of(owner.uid), list[str]()
    parent = os.open(folder.parent, _FOLDER)
    try:
        try:
            os.mkdir(folder.name, 0o700, dir_fd=parent)
        except FileExistsError:
            mounts.uncover(parent, folder.name, notes)
        if os.geteuid() == 0:
            os.chown(folder.name, owner.uid, owner.gid, dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)
    return tuple(notes)


def set_launchers_aside(paths: Paths, uids: Collection[int]) -> tuple[str, ...]:
    """Take away the folders of make_launchers_folder from all users but `uids`, for `remove_asides`, and remove those
    that are empty; return sentences about mounts there. The caller holds the ledger's lock."""
    notes: list[str] = []
    for folder, parent in _opened_above_launchers(paths, except_for=uids):
        aside = f"{ASIDE}{folder.name}.{time.monotonic_ns()}"
        move = partial(os.rename, folder.name, aside, src_dir_fd=parent, dst_dir_fd=parent)
        try:
            try:
                mounts.rmdir(folder.name, parent, notes)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                mounts.retry_uncovered(move, parent, folder.name, notes)
        except FileNotFoundError:
            pass  # there is none
        except OSError as error:
            notes.append(f"{folder} is not removed yet: {error.strerror}")
    return tuple(notes)


def remove_asides(paths: Paths, deadline: Deadline) -> tuple[str, ...]:
    """Remove what `set_launchers_aside` has taken away; return sentences about mounts, and about what stays for the
    next hook."""
    notes: list[str] = []
    for folder, parent in _opened_above_launchers(paths):
        asides = [name for name in os.listdir(parent) if name.startswith(f"{ASIDE}{folder.name}.")]  # noqa: PTH208
        for name in asides:
            from ..mps import folders  # needed only if the user has left files

            try:
                folders.remove_below(parent, name, deadline, notes)
            except FileNotFoundError:
                pass  # removed by another hook
            except OSError as error:
                notes.append(f"{folder.parent / name} is not all removed yet: {error.strerror}")
    return tuple(notes)


def _opened_above_launchers(paths: Paths, except_for: Collection[int] = ()) -> Iterator[tuple[Path, int]]:
    """Yield the folder of the launchers of each user here, which may be missing, and the open folder above it."""
    for uid in user_folder.read_uids(paths):
        folder = paths.launchers_of(uid)
        try:
            parent = -1 if uid in except_for else os.open(folder.parent, _FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed by another hook; or no folder, which `mount_own` replaces
        if parent >= 0:
            try:
                yield folder, parent
            finally:
                os.close(parent)


def expect_plugin(paths: Paths, job_id: int) -> None:
    """Make the empty file into which the plugin writes in every slurmstepd of the job that loads it, as root. Raises
    OSError as `write_ledger` does."""
    os.close(os.open(paths.loaded(job_id), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def was_plugin_loaded(paths: Paths, job_id: int) -> bool | None:
    """Return whether a step of the job loaded the plugin on this node; None: its Prolog made no plan."""
    try:
        return os.lstat(paths.loaded(job_id)).st_size > 0
    except OSError:
        return None


def remove_plan(paths: Paths, job_id: int) -> None:
    """Remove the job's plan, if there is one, and nothing else."""
    paths.plan(job_id).unlink(missing_ok=True)


def remove_job(paths: Paths, job_id: int) -> tuple[str, ...]:
    """Remove the job's folders and their contents, if there are any; return a sentence for each file system that its
    user had mounted on a file there. The folder by which an Epilog recognizes the job is removed last.

    Raises OSError if something cannot be removed.
    """
    notes: list[str] = []
    users = user_folder.read_uids(paths)
    for folder in (
        *(paths.user_job(job_id, uid) for uid in users),
        paths.job(job_id),
    ):
        try:
            parent = os.open(folder.parent, _FOLDER)
        except FileNotFoundError:
            continue
        try:
            _remove(parent, folder.name, notes)
        finally:
            os.close(parent)
    return tuple(notes)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _remove(parent: int, name: str, notes: list[str]) -> None:
    """Remove a folder of root's, in which users have files but make none, with its contents, if it exists."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        return
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        _remove(folder, entry.name, notes)
                    else:
                        mounts.unlink(entry.name, folder, notes)
                except FileNotFoundError:
                    pass  # another hook is removing it, too
        mounts.rmdir(name, parent, notes)
    except FileNotFoundError:
        pass
    finally:
        os.close(folder)


def remove_remains(paths: Paths, uids: Collection[int]) -> None:
    """Remove what killed hooks left: partly written ledgers, folders of launchers, and empty folders of users. Those of
    `uids` stay: a hook may be starting a daemon there. The caller holds the ledger's lock."""
    set_launchers_aside(paths, uids)
    for entry in os.scandir(paths.root):
        if entry.name.startswith(f".{paths.ledger.name}."):
            os.unlink(entry)  # noqa: PTH108
    for uid in set(user_folder.read_uids(paths)).difference(uids):
        user_folder.release_own(paths, uid)  # what is not empty goes with the clean-up after its job
