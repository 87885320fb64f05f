"""What `slurm-share doctor --fix` does with its own hands. Each can be done twice."""

from __future__ import annotations

import os
import pwd
import stat

from ..core.errors import CommandError, StateError
from ..core.process import finish
from ..mps.control import SEARCH_PATH

CHOOSE_S = 120.0
"""For slurm-share-plugin where it has to compile the plugin; on two cores that takes seconds."""


def run_epilog(
    program: str,
    job_id: int,
    uid: int,
    node: str,
    *,
    restart_count: int | None,
    partition: str | None,
    timeout_s: float,
) -> None:
    """Run our Epilog as slurmd would for a job that is over. Raises CommandError where it fails or does not end.

    With the restart count that the ledger has, the Epilog leaves alone a later run of the same job.
    """
    environ = {
        "PATH": SEARCH_PATH,
        "SLURM_JOB_ID": str(job_id),
        "SLURM_JOB_UID": str(uid),
        "SLURM_JOB_GID": str(_group_of(uid)),
        "SLURMD_NODENAME": node,
        "SLURM_SCRIPT_CONTEXT": "epilog_slurmd",
    }
    if restart_count is not None:
        environ["SLURM_JOB_RESTART_COUNT"] = str(restart_count)
    if partition is not None:
        environ["SLURM_JOB_PARTITION"] = partition
    done = finish([program], timeout_s=timeout_s, env=environ)
    if done.code:
        raise CommandError((program,), done.code, done.stderr)


def _group_of(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def choose_plugin(program: str) -> None:
    """Run the package's slurm-share-plugin, which makes the plugin's link. Raises CommandError with its reason."""
    done = finish([program], timeout_s=CHOOSE_S, env={"PATH": SEARCH_PATH})
    if done.code:
        raise CommandError((program,), done.code, done.stderr)


def relink(path: str, target: str) -> None:
    """Point a link elsewhere, in one step. Raises StateError where there is something else than a link, OSError."""
    try:
        os.readlink(path)  # noqa: PTH115
    except FileNotFoundError as error:
        raise StateError(path, "is gone: install slurm-share-spank") from error
    except OSError as error:
        raise StateError(path, "is no link: put the object there by hand") from error
    new = f"{path}.new"
    try:
        os.unlink(new)  # noqa: PTH108  (of one who was killed here)
    except FileNotFoundError:
        pass
    os.symlink(target, new)  # noqa: PTH211
    os.replace(new, path)  # noqa: PTH105


def narrow(path: str) -> None:
    """Take from a file or folder of root's what lets others write to it. Raises StateError where it is not root's,
    OSError where it is a link or gone."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        seen = os.fstat(fd)
        if seen.st_uid != 0:
            raise StateError(path, f"belongs to uid {seen.st_uid}: see who put it there, then remove it")
        os.fchmod(fd, stat.S_IMODE(seen.st_mode) & ~0o022)
    finally:
        os.close(fd)
