"""The processes of MPS, as the kernel lists them: who holds a daemon's lock, which servers and front ends there are.

No daemon is asked, so nobody is kept waiting, and a daemon that hangs is seen as well as any other.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct

from . import process
from .errors import MpsFolderError, shown
from .records import MPS_NAME, MpsPlace, MpsProcess, MpsRole, ProcessIdentity

DEFAULT_PIPE = "/tmp/nvidia-mps"
"""Where MPS lives when nobody says where."""

_PROGRAMS: dict[str, MpsRole] = {"nvidia-cuda-mps-control": "daemon", "nvidia-cuda-mps-server": "server"}
_ENVIRONMENT_LIMIT_BYTES = 256 * 1024

_LOCK = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid."""


def lock_holder(place: MpsPlace, proc: str = "/proc") -> ProcessIdentity | None:
    """Who holds the daemon's lock; None: nobody, so there is no daemon.

    No connection is made and nobody is kept waiting. The file is in its user's hands: a link, a fifo or a device in its
    place is nobody's lock. Of a process that this caller may not see (hidepid) only the number is known.

    Raises MpsFolderError where the folder is not for the caller's eyes.
    """
    try:
        fd = os.open(
            f"{place.pipe}/control_lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        )
    except PermissionError as error:
        raise MpsFolderError(place.pipe, "belongs to somebody else") from error
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        # Asking for a write lock names the holder of any lock: a mere read lock keeps a daemon from starting, too.
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(fd)
    kind, _, _, _, pid = _LOCK.unpack(answer)
    if kind == fcntl.F_UNLCK:
        return None
    pid = max(0, pid)
    return (process.identify(pid, proc) if pid else None) or ProcessIdentity(pid)


def is_daemon(holder: ProcessIdentity, place: MpsPlace) -> bool:
    """Whether the holder of the lock is the owner's MPS daemon, as far as the kernel's own words go."""
    return holder.name == MPS_NAME and holder.uid == place.owner.uid


def describe_foreign(holder: ProcessIdentity) -> str:
    """Who holds a lock that is not theirs, as far as the caller may know."""
    if holder.pid == 0:
        return "a process that the kernel does not name here holds its lock"
    who = "" if holder.uid is None else f" ({shown(holder.name or '?')}, uid {holder.uid})"
    return f"process {holder.pid}{who} holds its lock and is not the owner's daemon"


def read_daemon(place: MpsPlace, proc: str = "/proc") -> ProcessIdentity | None:
    """The owner's daemon, proved alive by its lock; None: none, or something else has its place. Costs microseconds.

    Raises MpsFolderError where the folder is not for the caller's eyes.
    """
    holder = lock_holder(place, proc)
    return holder if holder is not None and is_daemon(holder, place) else None


def likely_server(daemon: ProcessIdentity, proc: str = "/proc") -> int | None:
    """Pid of the daemon's one child, which then is its server; None: more than one, none, or a kernel without the list.

    A guess that saves a question, never a proof.
    """
    found: set[int] = set()
    try:
        for thread in os.scandir(f"{proc}/{daemon.pid}/task"):
            with open(f"{thread.path}/children", "rb") as file:
                found.update(int(word) for word in file.read().split())
    except OSError:
        return None
    return found.pop() if len(found) == 1 else None


def read_processes(proc: str = "/proc") -> tuple[MpsProcess, ...]:
    """Every process of MPS on this node that the caller may see, of anybody, whoever started it."""
    found = (read_process(int(entry.name), proc) for entry in os.scandir(proc) if entry.name.isdecimal())
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.identity.pid))


def read_process(pid: int, proc: str = "/proc") -> MpsProcess | None:
    """One process of MPS; None where it is something else, or gone."""
    try:
        with open(f"{proc}/{pid}/comm", "rb") as file:
            if file.read().strip() != MPS_NAME.encode():
                return None
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:
        return None
    identity = process.identify(pid, proc)
    role = parse_role([word.decode(errors="replace") for word in words if word])
    if identity is None or role is None:
        return None
    return MpsProcess(identity, role, _read_pipe(pid, proc))


def parse_role(words: list[str]) -> MpsRole | None:
    """What a process of MPS is, from its command line. The name may follow an interpreter's."""
    for place, word in enumerate(words[:3]):
        role = _PROGRAMS.get(word.rpartition("/")[2])
        if role == "daemon" and not words[place + 1 :]:
            return "front end"
        if role is not None:
            return role
    return None


def _read_pipe(pid: int, proc: str) -> str | None:
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            variables = file.read(_ENVIRONMENT_LIMIT_BYTES).split(b"\0")
    except OSError:
        return None
    name = b"CUDA_MPS_PIPE_DIRECTORY="
    values = [variable[len(name) :] for variable in variables if variable.startswith(name)]
    return os.fsdecode(values[0]) if values else DEFAULT_PIPE


def servers_of(processes: tuple[MpsProcess, ...], place: MpsPlace) -> tuple[ProcessIdentity, ...]:
    """Servers of the owner with this pipe directory, whether or not their daemon still lives."""
    return tuple(
        one.identity
        for one in processes
        if one.role == "server" and one.pipe == place.pipe and one.identity.uid == place.owner.uid
    )


def front_ends_of(processes: tuple[MpsProcess, ...], place: MpsPlace) -> tuple[ProcessIdentity, ...]:
    """Front ends at this daemon: an idle one is why it answers nobody else."""
    return tuple(one.identity for one in processes if one.role == "front end" and one.pipe == place.pipe)
