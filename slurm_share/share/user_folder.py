"""Give the users' part of the state folder a file system of its own, where the system has not done so.

The packages bring a systemd unit for it (run-slurm\\x2dshare-user.mount), install.md a line for /etc/fstab. This is for
nodes with neither.
"""

from __future__ import annotations

import os

from ..core.errors import StateError
from ..core.paths import Paths

OPTIONS = "mode=0711,size=64m,nr_inodes=64k"
"""As the unit and install.md have them: what a user fills is 64 MiB, and no more than 65536 files."""
_FLAGS = 2 | 4 | 8
"""MS_NOSUID, MS_NODEV and MS_NOEXEC of mount(2)."""


def lacks_mount(paths: Paths) -> bool:
    """Return whether the folder has no file system of its own and may be given one: it exists, and holds nothing
    that a mount would hide. Raises OSError where the state folder cannot be read."""
    try:
        return paths.user.stat().st_dev == paths.root.stat().st_dev and not os.listdir(paths.user)  # noqa: PTH208
    except FileNotFoundError:
        return False


def mount(paths: Paths) -> None:
    """Mount it, with the ledger's lock held: two at once would hide each other's.

    Raises StateError where this process may not mount, or where what it mounts would be gone with its mount namespace.
    """
    where = str(paths.user)
    if os.readlink("/proc/self/ns/mnt") != os.readlink("/proc/1/ns/mnt"):  # noqa: PTH115
        raise StateError(where, "is not mounted by a hook, whose mount namespace is not that of the system")
    import ctypes  # once a boot, and only where nobody else has mounted it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"slurm-share", os.fsencode(where), b"tmpfs", ctypes.c_ulong(_FLAGS), OPTIONS.encode("ascii")) != 0:
        why = os.strerror(ctypes.get_errno())
        raise StateError(where, f"gets no file system of its own ({why}): whoever fills it fills the ledger's")
