"""Start processes as a user that this user cannot trace, in a cgroup of root's.

A process that root starts for a user, such as an MPS daemon, is outside that user's job: a user who could trace it
could run programs there, outside the job's limits and after its end. The kernel lets a process trace
another one of the same user only if it has all capabilities of that one (ptrace(2), "Ptrace access mode checking",
rule 3, the commoncap module). So processes started here have a capability that the user does not have: CAP_WAKE_ALARM,
which only allows timers that wake a suspended machine. It is ambient: programs that they start have it, too.

The user cannot read /proc/PID/{mem,environ,exe,cwd,fd} of such a process either. The user can send it signals, and read
/proc/PID/{comm,stat,status,cmdline}.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from . import cgroup_paths
from .records import DaemonGroup, Owner

CAP_WAKE_ALARM = 35
"""From linux/capability.h."""
CANNOT_BECOME = 126
"""The exit code of a process that could not become its user."""
_PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 8, 47, 2
_CAPABILITY_VERSION_3 = 0x20080522


def preparation(owner: Owner, group: DaemonGroup | None) -> tuple[Callable[[], None], tuple[int, ...]]:
    """Return the function that a forked process of root calls before it starts a program as `owner`, and the open
    files that this needs; the caller closes them.

    As much as possible is prepared here, because the process may be a fork of a program with threads. A process that
    cannot join the group, or does not get the capability, goes on without (see `is_untraceable`). One that cannot
    change to its user exits with CANNOT_BECOME.
    """
    import ctypes  # needed only if root starts a process for a user

    libc = ctypes.CDLL(None, use_errno=True)
    prctl, capset = libc.prctl, libc.capset
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    low, high = (1 << CAP_WAKE_ALARM) & 0xFFFFFFFF, (1 << CAP_WAKE_ALARM) >> 32
    data = (ctypes.c_uint32 * 6)(low, low, low, high, high, high)
    number, zero = ctypes.c_ulong(CAP_WAKE_ALARM), ctypes.c_ulong(0)
    keep, ambient_raise = ctypes.c_ulong(1), ctypes.c_ulong(_PR_CAP_AMBIENT_RAISE)
    files = () if group is None else _open_groups(group)

    def prepare() -> None:
        for fd in files:
            try:
                os.write(fd, b"0")
            except OSError:
                pass  # the group is gone, or full
        prctl(_PR_SET_KEEPCAPS, keep, zero, zero, zero)
        try:
            os.setgroups(owner.groups)
            os.setresgid(owner.gid, owner.gid, owner.gid)
            os.setresuid(owner.uid, owner.uid, owner.uid)
        except OSError as error:
            os.write(2, f"cannot become uid {owner.uid}: {error.strerror}\n".encode())
            os._exit(CANNOT_BECOME)
        capset(header, data)
        prctl(_PR_CAP_AMBIENT, ambient_raise, number, zero, zero)

    return prepare, files


def _open_groups(group: DaemonGroup) -> tuple[int, ...]:
    found = []
    for _, folder in cgroup_paths.folders(group):
        try:
            found.append(os.open(f"{folder}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            continue  # this node cannot make the group (mps/cgroups.py)
    return tuple(found)


def is_untraceable(pid: int, proc: str = "/proc") -> bool | None:
    """Return whether a process has the capability that keeps its user from tracing it; None: it has ended."""
    try:
        with open(f"{proc}/{pid}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    permitted = next((line.split()[1] for line in lines if line.startswith(b"CapPrm:")), b"0")
    return bool(int(permitted, 16) >> CAP_WAKE_ALARM & 1)
