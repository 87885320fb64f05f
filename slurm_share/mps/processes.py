"""Find the processes of MPS in /proc: the holder of a daemon's lock, servers, front ends, daemons of other users.

No daemon is asked, so no client has to wait, and a daemon that hangs is found, too. Hooks load this module, so it reads
/proc itself: importing psutil takes 23 ms (tests/bench/hook_imports.py), and it reads environments whole, which can be
of any size.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct

from ..core import process
from ..core.errors import MpsFolderError, shown
from ..core.records import ProcessIdentity
from ..node import process_table
from .records import MPS_NAME, MpsPlace, MpsProcess, MpsRole

TYPE_CHECKING = False  # mypy takes it for True; hooks load this module
if TYPE_CHECKING:
    from collections.abc import Collection

DEFAULT_PIPE = "/tmp/nvidia-mps"
"""The pipe directory of MPS without CUDA_MPS_PIPE_DIRECTORY."""
DEFAULT_PIPE_V3_ROOT = "/run/nvidia-mps"
"""The same for a daemon of root's with protocol 3 (docs.nvidia.com/deploy/mps, release 615)."""
PIPE_VARIABLE = b"CUDA_MPS_PIPE_DIRECTORY"
PROTOCOL_VARIABLE = b"CUDA_MPS_PROTOCOL_VERSION"
CONTROL_PROGRAM = "nvidia-cuda-mps-control"
STATIC_OPTION = "-S"
"""The option with which a daemon gives each client a static partition of the GPU (driver 590)."""

_PROGRAMS: dict[str, MpsRole] = {CONTROL_PROGRAM: "daemon", "nvidia-cuda-mps-server": "server"}
_ENVIRONMENT_LIMIT_BYTES = 256 * 1024

_LOCK = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid."""


def lock_holder(place: MpsPlace, proc: str = "/proc") -> ProcessIdentity | None:
    """Return the process that holds the daemon's lock; None: no process, so there is no daemon.

    The file belongs to the user: a link, a FIFO or a device in its place counts as no lock. A process that the caller
    may not see (hidepid) has only its pid.

    Raises MpsFolderError if the caller may not enter the folder.
    """
    try:
        fd = os.open(
            f"{place.pipe}/control_lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        )
    except PermissionError as error:
        raise MpsFolderError(place.pipe, "belongs to another user") from error
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        # A query for a write lock finds any lock: a read lock keeps a daemon from starting, too.
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(fd)
    kind, _, _, _, pid = _LOCK.unpack(answer)
    if kind == fcntl.F_UNLCK:
        return None
    pid = max(0, pid)
    return (process.identify(pid, proc) if pid else None) or ProcessIdentity(pid)


def is_daemon(holder: ProcessIdentity, place: MpsPlace) -> bool:
    """Return whether the holder of the lock has the name and user of the owner's MPS daemon."""
    return holder.name == MPS_NAME and holder.uid == place.owner.uid


def describe_foreign(holder: ProcessIdentity) -> str:
    """Return a sentence about the holder of a lock that is not the owner's daemon."""
    if holder.pid == 0:
        return "a process in another pid namespace holds its lock"
    who = "" if holder.uid is None else f" ({shown(holder.name or '?')}, uid {holder.uid})"
    return f"process {holder.pid}{who} holds its lock and is not the owner's daemon"


def read_daemon(place: MpsPlace, proc: str = "/proc") -> ProcessIdentity | None:
    """Return the owner's daemon, whose lock proves it alive; None: there is none, or another process has the lock.

    Takes microseconds. Raises MpsFolderError if the caller may not enter the folder.
    """
    holder = lock_holder(place, proc)
    return holder if holder is not None and is_daemon(holder, place) else None


def likely_server(daemon: ProcessIdentity, proc: str = "/proc") -> int | None:
    """Return the pid of the daemon's only child, which is probably its server; None: it has none or several, or the
    kernel does not list children. A guess that saves a question to the daemon, not a proof."""
    found: set[int] = set()
    try:
        for thread in os.scandir(f"{proc}/{daemon.pid}/task"):
            with open(f"{thread.path}/children", "rb") as file:
                found.update(int(number) for number in file.read().split())
    except OSError:
        return None
    return found.pop() if len(found) == 1 else None


def is_static(pid: int, proc: str = "/proc") -> bool | None:
    """Return whether a daemon was started with STATIC_OPTION; None: it has ended."""
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            return parse_static(file.read(4096).split(b"\0"))
    except OSError:
        return None


def parse_static(argv: list[bytes]) -> bool:
    """Return whether the command line of a daemon, in which an interpreter can come first, has STATIC_OPTION, in its
    short or long form."""
    program = (place for place, one in enumerate(argv) if one.rpartition(b"/")[2] == CONTROL_PROGRAM.encode())
    return any(
        argument == b"--static-partitioning" or (argument[:1] == b"-" and argument[1:2] != b"-" and b"S" in argument)
        for argument in argv[next(program, 0) + 1 :]
    )


def read_processes(proc: str = "/proc", uids: Collection[int] | None = None) -> tuple[MpsProcess, ...]:
    """Return the processes of MPS on this node that the caller may see: those of these users and of system users, and
    possibly others; None: of all users."""
    rows = process_table.read(proc, uids)
    found = (read_process(pid, proc) for pid, (_, name, _, _) in rows.items() if name == MPS_NAME.encode())
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.identity.pid))


def read_process(pid: int, proc: str = "/proc") -> MpsProcess | None:
    """Return a process of MPS; None if it is another program or has ended."""
    try:
        with open(f"{proc}/{pid}/comm", "rb") as file:
            if file.read().strip() != MPS_NAME.encode():
                return None
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            argv = file.read(4096).split(b"\0")
    except OSError:
        return None
    identity = process.identify(pid, proc)
    texts = [argument.decode(errors="replace") for argument in argv if argument]
    role = parse_role(texts)
    if identity is None or role is None:
        return None
    uids = _read_uids(pid, proc)
    variables = _read_variables(pid, proc)
    protocol = parse_protocol(texts, variables.get(PROTOCOL_VARIABLE) if variables else None)
    return MpsProcess(
        identity,
        role,
        None if variables is None else _pipe(variables, protocol, is_root=uids[1:2] == (0,)),
        uids=uids,
        program=_read_program(pid, proc),
        protocol=protocol,
        is_static=role == "daemon" and parse_static(argv),
    )


def parse_role(argv: list[str]) -> MpsRole | None:
    """Return the role of a process of MPS, from its command line, in which an interpreter can come first.

    Only `-d` or `-f` make the control program a daemon. Without an argument it is a front end that reads commands from
    its input; with protocol 3 the command is in its arguments (`nvidia-cuda-mps-control server list`).
    """
    for place, argument in enumerate(argv[:3]):
        role = _PROGRAMS.get(argument.rpartition("/")[2])
        if role == "daemon" and not any(_starts_daemon(one) for one in argv[place + 1 :]):
            return "front end"
        if role is not None:
            return role
    return None


def _starts_daemon(argument: str) -> bool:
    if argument.startswith("--"):
        return argument in ("--daemon", "--foreground")
    return argument.startswith("-") and ("d" in argument or "f" in argument)


def parse_protocol(argv: list[str], variable: bytes | None) -> int:
    """Return the protocol of a daemon, 2 or 3, from its command line and CUDA_MPS_PROTOCOL_VERSION, which wins."""
    if variable in (b"2", b"3"):
        return int(variable)
    asked = [
        after if argument in ("-p", "--protocol") else argument.removeprefix("--protocol=").removeprefix("-p")
        for argument, after in zip(argv, [*argv[1:], ""], strict=True)
        if argument.startswith(("-p", "--protocol"))
    ]
    return 3 if "3" in asked else 2


def read_protocol(pid: int, proc: str = "/proc") -> int:
    """Return the protocol of a daemon, 2 or 3; 2 also if it has ended, or the caller may not read its environment."""
    one = read_process(pid, proc)
    return 2 if one is None else one.protocol


def is_of(pipe: str | None, place_pipe: str) -> bool:
    """Return whether a pipe directory is that of a daemon or, with protocol 3, of one of its servers."""
    return pipe is not None and (pipe == place_pipe or pipe.startswith(f"{place_pipe}/"))


def _pipe(variables: dict[bytes, bytes], protocol: int, *, is_root: bool) -> str:
    named = variables.get(PIPE_VARIABLE)
    if named is not None:
        return os.fsdecode(named)
    return DEFAULT_PIPE_V3_ROOT if protocol == 3 and is_root else DEFAULT_PIPE


def _read_variables(pid: int, proc: str) -> dict[bytes, bytes] | None:
    """Return a process's variables for pipe directory and protocol, the first of each name; None: not readable."""
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            variables = file.read(_ENVIRONMENT_LIMIT_BYTES).split(b"\0")
    except OSError:
        return None
    found: dict[bytes, bytes] = {}
    for variable in variables:
        name, equals, value = variable.partition(b"=")
        if equals and name in (PIPE_VARIABLE, PROTOCOL_VARIABLE):
            found.setdefault(name, value)
    return found


def _read_uids(pid: int, proc: str) -> tuple[int, ...]:
    try:
        with open(f"{proc}/{pid}/status", "rb") as file:
            line = next((line for line in file if line.startswith(b"Uid:")), b"")
    except OSError:
        return ()
    return tuple(int(number) for number in line.split()[1:5])


def _read_program(pid: int, proc: str) -> str | None:
    try:
        return os.readlink(f"{proc}/{pid}/exe").removesuffix(" (deleted)")  # noqa: PTH115
    except OSError:
        return None


def read_program_files(program: str) -> frozenset[str]:
    """Return the files that a process of the control `program` can execute: the program and, if it is a script, its
    interpreter."""
    found = {os.path.realpath(program)}
    try:
        with open(program, "rb") as file:
            head = file.read(256)
    except OSError:
        return frozenset(found)
    argv = head.partition(b"\n")[0].removeprefix(b"#!").split() if head.startswith(b"#!") else []
    return frozenset({*found, *(os.path.realpath(os.fsdecode(argument)) for argument in argv[:1])})


def runs_program(one: MpsProcess, program_files: frozenset[str]) -> bool:
    """Return whether a process executes the control program: one of `program_files`, or a file with NVIDIA's name (as
    in a container)."""
    program = one.program
    return program is not None and (program in program_files or program.rpartition("/")[2] == CONTROL_PROGRAM)


def is_systems(one: MpsProcess, program_files: frozenset[str], first_ordinary_uid: int) -> bool:
    """Return whether a daemon is a system user's: all four uids are, and it executes the control program.

    Name and effective uid are not enough: su, called by a link of that name, has both while it asks an ordinary user
    for a password.
    """
    return bool(one.uids) and max(one.uids) < first_ordinary_uid and runs_program(one, program_files)


def foreign_daemons(processes: tuple[MpsProcess, ...], root: str) -> tuple[MpsProcess, ...]:
    """Return the daemons that are not ours, i.e. whose pipe directory is not below `root`. They are never stopped.

    A daemon whose pipe directory the caller may not read counts as foreign; root can read all.
    """
    return tuple(
        one for one in processes if one.role == "daemon" and (one.pipe is None or not one.pipe.startswith(f"{root}/"))
    )


def servers_of(processes: tuple[MpsProcess, ...], place: MpsPlace) -> tuple[ProcessIdentity, ...]:
    """Return the owner's servers with this pipe directory, whether or not their daemon is alive."""
    return tuple(
        one.identity
        for one in processes
        if one.role == "server" and is_of(one.pipe, place.pipe) and one.identity.uid == place.owner.uid
    )
