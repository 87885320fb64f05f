"""Start a helper for the hooks after this one. A hook without a helper loads this module, so it imports little."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time

from slurm_share.core import names
from slurm_share.share import hook

TYPE_CHECKING = False  # as in hook.py
if TYPE_CHECKING:
    from collections.abc import Callable

AGAIN_S = 60.0
"""Seconds to wait before starting another helper after one that did not start."""


def path_of(name: str) -> str:
    """Return the path of one of the helper's files."""
    return f"{names.HELPER_FOLDER}/{name}"


def start(report: Callable[[str], None]) -> None:
    """Start a helper, unless one runs, or was started less than AGAIN_S ago and is not ready yet.

    It inherits no file, session or environment of this hook. `report` gets a sentence if the last helper did not start,
    or this one cannot be started. Never raises, since the hook has done its work.
    """
    try:
        if not _is_free():
            return
        tried_s = _age_s(path_of(names.HELPER_STARTED))
        if tried_s is not None:
            if tried_s < AGAIN_S:
                return
            report("the hooks' helper that was started before does not run; hooks work without it")
        os.close(os.open(path_of(names.HELPER_STARTED), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(path_of(names.HELPER_STARTED))
        flags = ["-ISB" if sys.flags.no_site else "-IB"]
        null = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in range(3)]
        argv = [sys.executable, *flags, sys.argv[0], hook.HELPER_ARGUMENT]
        os.posix_spawn(sys.executable, argv, {"PATH": "/usr/bin:/bin"}, file_actions=null, setsid=True)
    except (OSError, NotImplementedError) as error:
        report(f"no helper for hooks can be started: {error}")


def forget_start() -> None:
    """Record that the helper has started, or has ended properly."""
    try:
        os.unlink(path_of(names.HELPER_STARTED))  # noqa: PTH108  (pathlib: see hook.py)
    except OSError:
        pass  # there is no record


def _is_free() -> bool:
    """Return whether no helper runs. Raises OSError if another user than root can enter its folder."""
    try:
        os.mkdir(names.HELPER_FOLDER, 0o700)  # noqa: PTH102
    except FileExistsError:
        pass
    found = os.lstat(names.HELPER_FOLDER)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise OSError(f"{names.HELPER_FOLDER} is not root's alone")
    fd = os.open(path_of(names.HELPER_LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)  # releases the lock


def _age_s(file: str) -> float | None:
    try:
        return abs(time.time() - os.stat(file).st_mtime)  # noqa: PTH116
    except FileNotFoundError:
        return None
