"""Mount the file systems for the files of users: one for the users' part of the state folder, and one in it for each
user with shared jobs.

The packages contain a systemd unit for the first (run-slurm\\x2dshare-user.mount), install.md a line for /etc/fstab;
the Prolog mounts it on nodes with neither.

A user can fill his own file system and keep it full, by open files without a name, after his last job has left. So
nobody shares it. It is unmounted with his last job. While a process of his holds a file there, the kernel does not
unmount it: it stays, and his next job uses it. A mount that is only detached (MNT_DETACH) would hold memory as well,
and he could leave any number of them.
"""

from __future__ import annotations

import errno
import os

from ..core import mounts, numbers
from ..core.errors import StateError
from ..core.names import JOBS_FOLDER
from ..core.paths import Paths

OPTIONS = "mode=0711,size=64m,nr_inodes=64k"
"""The mount options, the same as in the unit and in install.md: at most 64 MiB and 65,536 files."""
FULL_PERCENT = 90
"""More than this in use is reported: one daemon's logs and a job's slots still have room below it."""
_FLAGS = mounts.NOSUID | mounts.NODEV | mounts.NOEXEC


def lacks_mount(paths: Paths) -> bool:
    """Return whether the users' folder exists, is on the state folder's file system, and is empty, so that a mount
    hides nothing. Raises OSError if the state folder cannot be read."""
    try:
        return paths.user.stat().st_dev == paths.root.stat().st_dev and not os.listdir(paths.user)  # noqa: PTH208
    except FileNotFoundError:
        return False


def mount(paths: Paths) -> None:
    """Mount a tmpfs on the users' folder. The caller holds the ledger's lock, so that no two hooks mount at once.

    Raises StateError if this process may not mount, or if the mount would vanish with its mount namespace.
    """
    where = str(paths.user)
    why = _mount(where)
    if why:
        raise StateError(where, f"{why}: a user can fill the ledger's")


def _mount(where: str) -> str:
    """Mount a tmpfs; return why that is not possible, or an empty text."""
    if os.readlink("/proc/self/ns/mnt") != os.readlink("/proc/1/ns/mnt"):  # noqa: PTH115
        return "is not mounted: this hook's mount namespace is not the system's"
    code = mounts.mount("slurm-share", where, "tmpfs", _FLAGS, OPTIONS)
    return f"cannot be mounted as a file system of its own ({os.strerror(code)})" if code else ""


# ---- One user's file system ----


def mount_own(paths: Paths, uid: int) -> None:
    """Make the user's folder, as root's, and mount a tmpfs on it, if the users' part is a mount and nothing is in the
    folder: after an upgrade, a running job may be. The caller holds the ledger's lock and has entered a job of his.

    Raises StateError once, when the user comes, if it cannot be mounted; the users' part is used then.
    """
    folder = paths.user_of(uid)
    paths.mps.mkdir(mode=0o711, exist_ok=True)
    if folder.is_symlink():
        folder.unlink()
    try:
        folder.mkdir(mode=0o711)
        is_new = True
    except FileExistsError:
        is_new = False
        if folder.lstat().st_uid != os.geteuid():
            os.chown(folder, os.geteuid(), -1, follow_symlinks=False)
            folder.chmod(0o711)
    if paths.user.stat().st_dev == paths.root.stat().st_dev:
        return  # this node cannot mount; `mount` has said so
    if folder.stat().st_dev != paths.user.stat().st_dev or os.listdir(folder):  # noqa: PTH208
        return
    why = _mount(str(folder))
    if why and is_new:
        raise StateError(str(folder), f"{why}: this user can fill the users' part for others")


def release_own(paths: Paths, uid: int) -> bool:
    """Unmount and remove the folder of a user without jobs here, if nothing is in it; return whether it is gone. The
    caller holds the ledger's lock. If a process of the user holds a file there, it stays for his next job; each later
    hook tries again."""
    folder = str(paths.user_of(uid))
    try:
        os.rmdir(f"{folder}/{JOBS_FOLDER}")  # noqa: PTH106
    except OSError:
        pass  # there is none, or a refused job of the user has its folder there
    try:
        os.rmdir(folder)  # noqa: PTH106
    except FileNotFoundError:
        pass
    except OSError as error:
        is_idle = error.errno == errno.EBUSY and not os.listdir(folder)  # noqa: PTH208
        if not is_idle or mounts.unmount(folder) != 0:
            return False
        os.rmdir(folder)  # noqa: PTH106
    return True


def read_uids(paths: Paths) -> list[int]:
    """Return the users with a folder in the users' part."""
    try:
        found = [numbers.whole(name, numbers.UINT32_MOST) for name in os.listdir(paths.mps)]  # noqa: PTH208
    except OSError:
        return []
    return [uid for uid in found if uid is not None]


def read_own(paths: Paths) -> dict[int, int]:
    """Return uid -> percent of space or files in use, for each user with a file system of his own. Only root can list
    them; other callers get their own."""
    found = {}
    try:
        shared = paths.user.stat().st_dev
        for uid in read_uids(paths) or [os.geteuid()]:  # only root may list them
            folder = paths.user_of(uid)
            if folder.stat().st_dev != shared:
                found[uid] = used_percent(str(folder))
    except OSError:
        pass  # there is none, or the last one has just been removed
    return found


def used_percent(folder: str) -> int:
    """Return the percent of space, or of files, that is in use on the folder's file system: the greater one."""
    room = os.statvfs(folder)
    of = ((room.f_blocks, room.f_bavail), (room.f_files, room.f_favail))
    return max((100 * (most - free) // most for most, free in of if most), default=0)
