"""Mount a file system for the users' part of the state folder if the system has not done so.

The packages contain a systemd unit for it (run-slurm\\x2dshare-user.mount), install.md a line for /etc/fstab. This
module is for nodes with neither.
"""

from __future__ import annotations

import os

from ..core.errors import StateError
from ..core.paths import Paths

OPTIONS = "mode=0711,size=64m,nr_inodes=64k"
"""The mount options, the same as in the unit and in install.md: at most 64 MiB and 65,536 files."""
_FLAGS = 2 | 4 | 8
"""MS_NOSUID, MS_NODEV and MS_NOEXEC of mount(2)."""


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
    if os.readlink("/proc/self/ns/mnt") != os.readlink("/proc/1/ns/mnt"):  # noqa: PTH115
        raise StateError(where, "is not mounted: this hook's mount namespace is not the system's")
    import ctypes  # needed at most once after a boot

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"slurm-share", os.fsencode(where), b"tmpfs", ctypes.c_ulong(_FLAGS), OPTIONS.encode("ascii")) != 0:
        why = os.strerror(ctypes.get_errno())
        raise StateError(where, f"cannot be mounted as a file system of its own ({why}): a user can fill the ledger's")
