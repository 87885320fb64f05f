"""The operating system of a node: mounts, limits, logind, PAM, SELinux, and running daemons."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from ...core.errors import CommandError
from ...core.process import Finished
from ...node import processes as proc
from . import daemon_limits
from .records import HostFacts, Mount, Unseen

Ask = Callable[[Sequence[str]], Finished]
"""Runs a program for some seconds at most. Raises CommandError if it is missing or does not end."""
DAEMONS = frozenset({"slurmctld", "slurmd", "sackd", "munged", "systemd-logind"})
_OPEN_FILES = re.compile(rb"^Max open files\s+(\d+|unlimited)\s", re.MULTILINE)
_UNLIMITED = 1 << 30
_UID = re.compile(r"^Uid:\t(\d+)\t", re.MULTILINE)
_FIRST_ORDINARY_UID, _NOBODYS_UID = 1000, 60000
"""Range of people's uids (login.defs, UID_MIN and UID_MAX); Debian's slurm is 64030."""
_ADOPTS = re.compile(r"^[^#\n]*pam_slurm_adopt", re.MULTILINE)


def read_host(ask: Ask, state_root: str, root: Path = Path("/")) -> HostFacts:
    """Return the facts of the operating system; unknown ones are Unseen with the reason."""
    running = _running(root / "proc")
    daemons = frozenset(running)
    return HostFacts(
        daemons=daemons,
        stopped={name: pid for name, pid in running.items() if proc.is_stopped(pid, str(root / "proc"))},
        mounts=read_mounts(root),
        node=_node_of(running.get("slurmd"), root),
        open_files=_open_files(running.get("slurmd"), root),
        ptrace_scope=_ptrace_scope(root),
        unheld=daemon_limits.read_unheld(running.get("slurmd"), root),
        removes_ipc=_removes_ipc(ask) if "systemd-logind" in daemons else Unseen("no systemd-logind runs here"),
        adopt_files=_adopting(root),
        selinux=_label(state_root, root),
        shm_mode=_mode(root / "dev/shm"),
        shm_free_percent=read_free_percent(root / "dev/shm"),
        container_files=_containers(state_root, root),
    )


def read_mounts(root: Path = Path("/")) -> tuple[Mount, ...]:
    """Return the mounts in the kernel's order (proc_pid_mountinfo(5)), with options of the mount and its file
    system."""
    found = []
    for line in _text(root / "proc/self/mountinfo").splitlines():
        first, _, second = line.partition(" - ")
        here, there = first.split(), second.split()
        if len(here) >= 6 and len(there) >= 2:
            options = (*here[5].split(","), *(there[2].split(",") if len(there) > 2 else ()))
            found.append(Mount(_plain(here[4]), there[0], options))
    return tuple(found)


def _plain(point: str) -> str:
    """Unescape a field of mountinfo, where a blank is octal 040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)


def find_daemon(name: str, root: Path = Path("/")) -> int | None:
    """Return the pid of a daemon of Slurm; None: it does not run here."""
    return _running(root / "proc").get(name)


def read_daemon_folders(root: Path = Path("/")) -> list[str]:
    """Return the folders of Slurm's daemons that run here, and the bin folder next to each, where its commands are."""
    found: list[str] = []
    for name, pid in _running(root / "proc").items():
        try:
            folder = str((root / f"proc/{pid}/exe").readlink().parent)
        except OSError:
            continue  # a process of another user
        if name.startswith("s") and name != "systemd-logind":
            found += [folder, f"{folder.rpartition('/')[0]}/bin"]
    return list(dict.fromkeys(found))


def _running(proc: Path) -> dict[str, int]:
    """Return the pids of Slurm's daemons here, without users' programs of the same name."""
    found: dict[str, int] = {}
    for folder in proc.iterdir() if proc.is_dir() else ():
        if folder.name.isdecimal():
            name = _text(folder / "comm").strip().removesuffix(_DEBIAN)
            if name in DAEMONS and _is_of_system(folder):
                found.setdefault(name, int(folder.name))
    return found


_DEBIAN = "-wlm"
"""Debian's daemons are named slurmd-wlm behind a link. The kernel uses that name after `scontrol reconfigure`, which
makes the daemons restart themselves.
"""


def _is_of_system(folder: Path) -> bool:
    match = _UID.search(_text(folder / "status"))
    return match is not None and (int(match[1]) < _FIRST_ORDINARY_UID or int(match[1]) >= _NOBODYS_UID)


def _node_of(slurmd: int | None, root: Path) -> str:
    """Return the node name given to slurmd (-N n1, -Nn1), which may differ from the host's."""
    if slurmd is None:
        return ""
    values = _text(root / f"proc/{slurmd}/cmdline").split("\0")
    for value, following in zip(values, [*values[1:], ""], strict=True):
        if value.startswith("-N"):
            return value[2:] or following
    return ""


def _open_files(slurmd: int | None, root: Path) -> int | Unseen:
    if slurmd is None:
        return Unseen("no slurmd runs here")
    try:
        match = _OPEN_FILES.search((root / f"proc/{slurmd}/limits").read_bytes())
    except OSError as error:
        return Unseen(f"slurmd's limits are for root to see ({error.strerror})")
    if match is None:
        return Unseen("the kernel does not tell slurmd's limits")
    return _UNLIMITED if match[1] == b"unlimited" else int(match[1])


def _ptrace_scope(root: Path) -> int | Unseen:
    text = _text(root / "proc/sys/kernel/yama/ptrace_scope").strip()
    return int(text) if text.isdecimal() else Unseen("this kernel has no Yama")


def _removes_ipc(ask: Ask) -> bool | Unseen:
    """Ask logind for RemoveIPC: its default is set when it is built, and differs between systems."""
    place = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "RemoveIPC")
    try:
        done = ask(["busctl", "get-property", *place])
    except CommandError as error:
        return Unseen(f"logind was not asked: {error}")
    values = done.stdout.split()
    if done.code or values[:1] != ["b"] or len(values) != 2:
        return Unseen("logind does not say")
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
    not_seen = Unseen(why)
    return HostFacts(missed=why, open_files=not_seen, ptrace_scope=not_seen, unheld=not_seen, removes_ipc=not_seen)


def _mode(folder: Path) -> int | None:
    try:
        return stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        return None


def read_free_percent(folder: Path) -> int | None:
    """Return the free percent of a folder's file system: bytes or files, whichever is less. None: unknown."""
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
