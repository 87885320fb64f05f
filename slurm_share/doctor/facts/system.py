"""The operating system of a node: mounts, limits, logind, PAM, SELinux, and running daemons."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from ...core import cgroup_paths, numbers
from ...core.errors import CommandError
from ...core.process import Finished
from ...core.user_process import CAP_WAKE_ALARM
from ...mps import device_guard
from ...mps.rules import cgroups
from ...node import host
from ...slurm.rules.node_name import name_of_option
from .records import HostFacts, Mount, UnknownFact

Ask = Callable[[Sequence[str]], Finished]
"""Runs a program for some seconds at most. Raises CommandError if it is missing or does not end."""
DAEMONS = frozenset({"slurmctld", "slurmd", "sackd", "munged", "systemd-logind"})
_OPEN_FILES = re.compile(rb"^Max open files\s+(\d+|unlimited)\s", re.MULTILINE)
_UNLIMITED = 1 << 30
_FIRST_ORDINARY_UID, _NOBODYS_UID = 1000, 60000
"""Range of people's uids (login.defs, UID_MIN and UID_MAX); Debian's slurm is 64030."""
_ADOPTS = re.compile(r"^[^#\n]*pam_slurm_adopt", re.MULTILINE)


def read_host(ask: Ask, state_root: str, root: Path = Path("/")) -> HostFacts:
    """Return the facts of the operating system; unknown ones are UnknownFact with the reason."""
    running = _running(root)
    daemons = frozenset(running)
    slurmd = running.get("slurmd")
    return HostFacts(
        daemons=daemons,
        stopped={name: one.pid for name, one in running.items() if one.is_stopped},
        mounts=tuple(Mount(*one) for one in host.read_mounts(root / "proc")),
        node="" if slurmd is None else name_of_option(slurmd.argv),
        open_files=_open_files(slurmd, root),
        ptrace_scope=_ptrace_scope(root),
        unheld=read_unheld(None if slurmd is None else slurmd.pid, root),
        removes_ipc=_removes_ipc(ask) if "systemd-logind" in daemons else UnknownFact("no systemd-logind runs here"),
        adopt_files=_adopting(root),
        selinux=_label(state_root, root),
        shm_mode=_mode(root / "dev/shm"),
        shm_free_percent=read_free_percent(root / "dev/shm"),
        container_files=_containers(state_root, root),
    )


def find_daemon(name: str, root: Path = Path("/")) -> int | None:
    """Return the pid of a daemon of Slurm; None: it does not run here."""
    found = _running(root).get(name)
    return None if found is None else found.pid


def read_daemon_folders(root: Path = Path("/")) -> list[str]:
    """Return the folders of Slurm's daemons that run here, and the bin folder next to each, where its commands are."""
    found: list[str] = []
    for name, one in _running(root).items():
        if one.program and name.startswith("s") and name != "systemd-logind":
            folder = os.path.dirname(one.program)  # noqa: PTH120
            found += [folder, f"{folder.rpartition('/')[0]}/bin"]
    return list(dict.fromkeys(found))


_DEBIAN = "-wlm"
"""Debian's daemons are named slurmd-wlm behind a link. The kernel uses that name after `scontrol reconfigure`, which
makes the daemons restart themselves.
"""
_NAMES = DAEMONS | {f"{name}{_DEBIAN}" for name in DAEMONS}


def _running(root: Path) -> dict[str, host.HostProcess]:
    """Return Slurm's daemons here by name, without users' programs of the same name."""
    found: dict[str, host.HostProcess] = {}
    for one in host.read_named(_NAMES, root / "proc"):
        if not _FIRST_ORDINARY_UID <= one.uid < _NOBODYS_UID:
            found.setdefault(one.name.removesuffix(_DEBIAN), one)
    return found


def _open_files(slurmd: host.HostProcess | None, root: Path) -> int | UnknownFact:
    """Return slurmd's limit. Not from psutil: that asks prlimit(2), which answers root only, and ignores `root`."""
    if slurmd is None:
        return UnknownFact("no slurmd runs here")
    try:
        match = _OPEN_FILES.search((root / f"proc/{slurmd.pid}/limits").read_bytes())
    except OSError as error:
        return UnknownFact(f"slurmd's limits are for root to see ({error.strerror})")
    if match is None:
        return UnknownFact("the kernel does not tell slurmd's limits")
    return _UNLIMITED if match[1] == b"unlimited" else int(match[1])


def _ptrace_scope(root: Path) -> int | UnknownFact:
    text = _text(root / "proc/sys/kernel/yama/ptrace_scope").strip()
    scope = numbers.whole(text)
    return UnknownFact("this kernel has no Yama") if scope is None else scope


def _removes_ipc(ask: Ask) -> bool | UnknownFact:
    """Ask logind for RemoveIPC: its default is set when it is built, and differs between systems."""
    place = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "RemoveIPC")
    try:
        done = ask(["busctl", "get-property", *place])
    except CommandError as error:
        return UnknownFact(f"logind was not asked: {error}")
    values = done.stdout.split()
    if done.code or values[:1] != ["b"] or len(values) != 2:
        return UnknownFact("logind does not say")
    return values[1] == "true"


def _adopting(root: Path) -> tuple[str, ...]:
    folder = root / "etc/pam.d"
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return ()
    return tuple(f"/etc/pam.d/{file.name}" for file in files if _ADOPTS.search(_text(file)))


def _label(path: str, root: Path) -> str | None:
    if _text(root / "sys/fs/selinux/enforce").strip() != "1":
        return None
    try:
        return os.getxattr(root / path.lstrip("/"), "security.selinux").rstrip(b"\0").decode("ascii", "replace")
    except OSError:
        return ""


def missed(why: str) -> HostFacts:
    """Return the facts if none of them could be read."""
    not_seen = UnknownFact(why)
    return HostFacts(missed=why, open_files=not_seen, ptrace_scope=not_seen, unheld=not_seen, removes_ipc=not_seen)


def _mode(folder: Path) -> int | None:
    try:
        return stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        return None


def read_free_percent(folder: Path) -> int | None:
    """Return the free percent of a folder's file system: bytes or files, whichever is less. None: unknown.

    psutil.disk_usage knows no files.
    """
    try:
        seen = os.statvfs(folder)
    except OSError:
        return None
    parts = [(seen.f_bavail, seen.f_blocks), (seen.f_favail, seen.f_files)]
    return min((100 * free // whole for free, whole in parts if whole), default=None)


_APPTAINER = ("etc/apptainer/apptainer.conf", "etc/singularity/singularity.conf")
_ENROOT = "etc/enroot/mounts.d"
"""Folder of mounts that enroot, and pyxis through it, makes in all containers (enroot's doc/configuration.md)."""


def _containers(state_root: str, root: Path) -> tuple[tuple[str, bool], ...]:
    found = []
    if (folder := root / _ENROOT).is_dir():
        names_it = any(_names(file, state_root) for file in folder.glob("*.fstab"))
        found.append((f"/{_ENROOT}", names_it))
    found += [(f"/{name}", _names(root / name, state_root)) for name in _APPTAINER if (root / name).is_file()]
    return tuple(found)


def _names(file: Path, path: str) -> bool:
    """Return whether a file mentions a folder outside of comments."""
    return any(path in line for line in _text(file).splitlines() if not line.lstrip().startswith("#"))


def _text(file: Path) -> str:
    """Return the text of a file; "" if it is missing or not readable."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- Limits of users' MPS daemons that this node cannot enforce ------------------------------------------------------


WHAT = {
    "memory": "host memory is not limited",
    "pids": "the number of processes is not limited",
    "devices": "any GPU may be opened",
    "freezer": "processes cannot be stopped before they are killed",
}


def read_unheld(slurmd: int | None, root: Path = Path("/")) -> tuple[str, ...] | UnknownFact:
    """Return a short description of each limit of users' MPS daemons that cannot be enforced.

    slurmd: its pid; the hooks that start daemons have its rights.
    """
    if os.geteuid() != 0:
        return UnknownFact("whether limits hold is for root to see")
    mount = str(root / "sys/fs/cgroup")
    trees = [controller for controller, _ in cgroup_paths.trees(mount)]
    is_v2 = trees == [""]
    there = cgroup_paths.read_controllers(mount) if is_v2 else trees
    wanted = ("memory", "pids") if is_v2 else cgroup_paths.CONTROLLERS
    found = [f"{WHAT[name]} (the controller {name} is not in {mount})" for name in wanted if name not in there]
    if not trees:
        found = ["there are no cgroups that can be written: no limit holds"]
    elif is_v2 and (why := _why_no_guard()) is not None:
        found.append(f"{WHAT['devices']} (bpf: {why})")
    if slurmd is not None and not _may_grant(slurmd, root):
        found.append("users can trace their daemons (slurmd may not use CAP_WAKE_ALARM)")
    return tuple(found)


def _why_no_guard() -> str | None:
    """Return why the kernel takes no device program; None: it does. A program is loaded and discarded, without a
    cgroup."""
    try:
        os.close(device_guard.load(cgroups.device_program(0)))
    except OSError as error:
        return error.strerror
    return None


def _may_grant(slurmd: int, root: Path) -> bool:
    # psutil does not report capabilities. Without a status slurmd has just ended.
    match = re.search(r"^CapBnd:\s*(\w+)", _text(root / f"proc/{slurmd}/status"), re.MULTILINE)
    return match is None or bool(int(match[1], 16) >> CAP_WAKE_ALARM & 1)
