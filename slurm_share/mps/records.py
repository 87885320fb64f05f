"""Records of MPS: places, daemons, servers, clients, and how starting and stopping went.

Units live in the names (`_mib` is 1,048,576 bytes). `None` means the source would not say; 0 means measured, and none.
msgspec.Struct and not dataclasses: they are made in C, and a Prolog pays for each record that it builds.
"""

from __future__ import annotations

from msgspec import Struct

from ..core.records import DaemonGroup, Owner, ProcessIdentity
from ..core.typed import Literal

MPS_NAME = "nvidia-cuda-mps"
"""Name of MPS daemons and servers, as far as the kernel keeps it: 15 letters."""


class MpsPlace(Struct, frozen=True):
    """Where one MPS control daemon lives, of whom, for which GPU, and the program that is it and speaks with it."""

    program: str
    """Absolute path of nvidia-cuda-mps-control."""
    pipe: str
    """Pipe directory (CUDA_MPS_PIPE_DIRECTORY), absolute, at most 87 bytes."""
    gpu: str
    """CUDA_VISIBLE_DEVICES of the daemon: a UUID. Numbers would be counted anew for its clients, so that a client with
    the same CUDA_VISIBLE_DEVICES finds another GPU or none (docs.nvidia.com/deploy/mps, CUDA_VISIBLE_DEVICES)."""
    owner: Owner
    environment: tuple[tuple[str, str], ...] = ()
    """Further variables for the daemon, such as LD_LIBRARY_PATH where libcuda is not on the linker's path."""
    options: tuple[str, ...] = ()
    """Further words at its start, such as -S (static partitioning, where the release has it)."""
    group: DaemonGroup | None = None
    """The cgroup that root starts it in; None: the caller's own."""

    @property
    def logs(self) -> str:
        """Log folder. Not `log`: the daemon makes a fifo of that name in its pipe directory."""
        return f"{self.pipe}/logs"


class MpsServer(Struct, frozen=True):
    """One nvidia-cuda-mps-server, the process through which clients reach the GPU."""

    pid: int
    status: str | None
    """INITIALIZING, ACTIVE, FAULT; None: a release that cannot say (535 and older)."""


class MpsClient(Struct, frozen=True):
    """One program that goes through an MPS server, as `ps` lists it."""

    pid: int
    server_pid: int
    gpu: str
    """The beginning of its UUID."""
    command: str


MpsCondition = Literal["fine", "no server", "fault", "silent", "stopped", "foreign", "dead"]


class MpsHealth(Struct, frozen=True):
    """How one control daemon is."""

    condition: MpsCondition
    """fine: it answers and its server takes clients. no server: it answers, and starts one for the first client.
    fault: the server refuses new clients (CUDA error 807). silent: it lives and does not answer. stopped: by SIGSTOP,
    so it was not asked, as `slurm-share doctor` does. foreign: something else holds its lock. dead: nobody holds it;
    CUDA programs then run on, without MPS, and say nothing."""
    daemon: ProcessIdentity | None
    servers: tuple[MpsServer, ...] = ()
    why: str = ""
    """What was seen, where it is not fine."""


MpsRole = Literal["daemon", "server", "front end"]
"""A front end that waits for input keeps every other one out of its daemon."""


class MpsProcess(Struct, frozen=True):
    """A process of MPS that runs on this node, anybody's."""

    identity: ProcessIdentity
    role: MpsRole
    pipe: str | None
    """Its pipe directory; None: its environment is not for our eyes."""
    uids: tuple[int, ...] = ()
    """Its real, effective, saved and file system uid; empty where the kernel does not say. They differ in a program
    that changes its user, such as su: such a process is not its effective user's alone."""
    program: str | None = None
    """The file that it executes, as the kernel says it (/proc/PID/exe); None: not for our eyes."""
    protocol: int = 2
    """2, or from driver 615 on also 3: another way to ask the daemon, and another default pipe directory."""


class MpsDefaults(Struct, frozen=True):
    """What a daemon gives every server that it starts from then on. None: as NVIDIA has it, no limit."""

    thread_percent: float | None = None
    memory_mib: int | None = None
    """Pinned memory of one client on the daemon's GPU."""
    client_priority: int | None = None
    """0 normal, 1 below normal."""


class MpsStarted(Struct, frozen=True):
    """A daemon that is there and was seen to answer."""

    place: MpsPlace
    daemon: ProcessIdentity
    servers: tuple[MpsServer, ...]
    joined: bool
    """True: it ran already."""
    seconds: float
    notes: tuple[str, ...] = ()


class MpsFailed(Struct, frozen=True):
    """A daemon that is not to be used, and why; what was begun was undone."""

    place: MpsPlace
    kind: str
    """Name of the error."""
    why: str


class MpsStopped(Struct, frozen=True):
    """How a daemon went, and what of it is still there."""

    place: MpsPlace
    how: Literal["was not there", "in use", "quit", "SIGTERM", "SIGKILL", "still there"]
    clients: tuple[int, ...]
    """Programs that were still connected and were told to end."""
    left: tuple[ProcessIdentity, ...]
    """Processes of it that outlived every signal: the GPU is not free."""
    seconds: float
    notes: tuple[str, ...] = ()
