"""Names and folders of the cgroups of users' MPS daemons, and their files.

    v1: /sys/fs/cgroup/CONTROLLER/slurm-share/uid_2001/5131194a-9e2f6f      for each of CONTROLLERS
    v2: /sys/fs/cgroup/slurm-share/uid_2001/5131194a-9e2f6f

They are not in Slurm's own tree: Slurm kills what it finds in a job's cgroup, and these daemons serve several jobs.
"""

from __future__ import annotations

import os

from .numbers import UINT32_MOST, whole
from .records import DaemonGroup

FOLDER = "slurm-share"
CONTROLLERS = ("freezer", "memory", "pids", "devices")
"""Controllers of cgroup v1. In v2, freezing and devices need no controller."""
_USER = "uid_"


def is_v2(root: str) -> bool:
    """Return whether `root` is a cgroup v2 mount, which has one tree."""
    return os.access(f"{root}/cgroup.controllers", os.R_OK)


def read_controllers(root: str) -> tuple[str, ...]:
    """Return the controllers of a cgroup v2 mount."""
    try:
        with open(f"{root}/cgroup.controllers", encoding="ascii") as file:
            return tuple(file.read().split())
    except OSError:
        return ()


def trees(root: str) -> tuple[tuple[str, str], ...]:
    """Return (controller, our folder) for each tree that can hold a daemon; the controller is "" in cgroup v2.

    Empty if no cgroups are mounted, or they are mounted read-only.
    """
    if is_v2(root):
        return (("", f"{root}/{FOLDER}"),) if os.access(root, os.W_OK) else ()
    return tuple((name, f"{root}/{name}/{FOLDER}") for name in CONTROLLERS if os.access(f"{root}/{name}", os.W_OK))


def folders(group: DaemonGroup) -> tuple[tuple[str, str], ...]:
    """Return (controller, the group's folder) for each tree, whether or not the folder exists yet."""
    return tuple((controller, f"{ours}/{_USER}{group.uid}/{group.name}") for controller, ours in trees(group.root))


def users_folders(group: DaemonGroup) -> tuple[tuple[str, str], ...]:
    """Return (controller, the folder of all groups of the group's user) for each tree."""
    return tuple((controller, f"{ours}/{_USER}{group.uid}") for controller, ours in trees(group.root))


def read_groups(root: str) -> tuple[DaemonGroup, ...]:
    """Return the groups that exist. Only root, uid and name are set."""
    found: dict[tuple[int, str], None] = {}
    for _, ours in trees(root):
        for user in _names(ours):
            uid = whole(user.removeprefix(_USER), UINT32_MOST)
            if user.startswith(_USER) and uid is not None:
                found.update({(uid, name): None for name in _names(f"{ours}/{user}")})
    return tuple(DaemonGroup(root, uid, name) for uid, name in sorted(found))


def exists(group: DaemonGroup) -> bool:
    """Return whether the group exists in any tree."""
    return any(os.access(folder, os.F_OK) for _, folder in folders(group))


def read_pids(group: DaemonGroup) -> tuple[int, ...]:
    """Return the pids in the group, in any tree, in the caller's pid namespace."""
    found: set[int] = set()
    for _, folder in folders(group):
        found |= read_pids_in(folder)
    return tuple(sorted(found))


def read_pids_in(folder: str) -> set[int]:
    """Return the pids in a folder and below, without those of other pid namespaces (which read as 0)."""
    found: set[int] = set()
    try:
        fd = os.open(f"{folder}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return found
    try:
        with open(fd, "rb") as file:
            found |= {int(number) for number in file.read().split()}
    except OSError:
        pass  # the group was removed meanwhile
    for name in _names(folder):
        found |= read_pids_in(f"{folder}/{name}")
    return found - {0}


def _names(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def write(file: str, value: str) -> None:
    """Write a value into a file of the kernel. Raises OSError that names the file."""
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, file) from error
    finally:
        os.close(fd)
