"""Records of MPS: places, daemons, servers, and the results of starting and stopping.

Names carry the unit (`_mib`: 1,048,576 bytes). `None` means unknown; 0 means measured and zero. The records are
msgspec.Struct, which is built in C: a Prolog pays for each record.
"""

from __future__ import annotations

from msgspec import Struct

from ..core.records import DaemonGroup, Owner, ProcessIdentity
from ..core.typed import Literal

MPS_NAME = "nvidia-cuda-mps"
"""The name of MPS daemons and servers in the kernel, which keeps 15 bytes."""


class Namespace(Struct, frozen=True):
    """A part of a server of protocol 3, with caps that its clients cannot raise."""

    name: str
    memory_mib: int | None = None
    """The most memory of each client; None: no cap."""
    percent: float | None = None
    """The most of the GPU's multiprocessors, in percent; None: no cap."""


class MpsPlace(Struct, frozen=True):
    """The program, folder, GPU and owner of one MPS control daemon."""

    program: str
    """Absolute path of nvidia-cuda-mps-control."""
    pipe: str
    """Pipe directory (CUDA_MPS_PIPE_DIRECTORY), absolute, at most 87 bytes."""
    gpu: str
    """CUDA_VISIBLE_DEVICES of the daemon: a UUID. MPS renumbers devices for its clients, so that a client with the same
    number would find another GPU or none (docs.nvidia.com/deploy/mps, CUDA_VISIBLE_DEVICES)."""
    owner: Owner
    environment: tuple[tuple[str, str], ...] = ()
    """Further variables for the daemon, such as LD_LIBRARY_PATH if libcuda is not on the linker's path."""
    group: DaemonGroup | None = None
    """The cgroup in which root starts the daemon; None: the caller's own."""
    partitions: int = 0
    """The number of equal static partitions that the daemon is to have, one for each client; 0: it has none, and its
    clients share all multiprocessors (SM)."""
    protocol: int = 2
    """The protocol of a daemon that is started here. One that runs is asked with its own."""
    namespaces: tuple[Namespace, ...] = ()
    """The namespaces that a daemon with protocol 3 must have for its tasks."""
    chunks: int = 0
    """The chunks of its GPU when it was last divided into static partitions; 0: not known."""

    @property
    def logs(self) -> str:
        """Return the log folder. Its name is not `log`: the daemon makes a FIFO of that name in its pipe directory."""
        return f"{self.pipe}/logs"


class MpsServer(Struct, frozen=True):
    """One nvidia-cuda-mps-server, the process through which clients use the GPU."""

    pid: int
    status: str | None
    """INITIALIZING, ACTIVE or FAULT; None: the release cannot report it (535 and older)."""


class Partition(Struct, frozen=True):
    """One static partition of a GPU's SM."""

    id: str
    """The daemon's name for it. A client names it as GPU-UUID/ID."""
    chunks: int
    sm_count: int
    has_clients: bool | None = None
    """None: the control program does not tell."""


class PartitionTable(Struct, frozen=True):
    """The static partitions of a GPU, by id, and the part of the GPU that is in none."""

    free_chunks: int
    free_sms: int
    """The SM in no partition, also those that fill no chunk."""
    partitions: tuple[Partition, ...] = ()

    @property
    def total_chunks(self) -> int:
        return self.free_chunks + sum(one.chunks for one in self.partitions)

    @property
    def total_sms(self) -> int:
        return self.free_sms + sum(one.sm_count for one in self.partitions)


class GpuChunks(Struct, frozen=True):
    """The chunks in which a driver divides the SM of a GPU into static partitions."""

    gpu: str
    total_chunks: int
    chunk_sms: int
    total_sms: int


class EqualPartitions(Struct, frozen=True):
    """The equal static partitions of a daemon's GPU."""

    names: tuple[str, ...]
    """The value of CUDA_MPS_SM_PARTITION for each; in the same order for each job that joins the daemon."""
    sm_count: int
    """The SM of each."""
    of: GpuChunks


MpsCondition = Literal["fine", "no server", "fault", "silent", "stopped", "foreign", "dead"]


class MpsHealth(Struct, frozen=True):
    """The state of one control daemon."""

    condition: MpsCondition
    """fine: it answers, and its server accepts clients. no server: it answers, and starts one for the first client.
    fault: the server refuses new clients (CUDA error 807). silent: it runs and does not answer. stopped: by SIGSTOP, so
    `slurm-share doctor` did not ask it. foreign: another process holds its lock. dead: no process holds its lock; CUDA
    programs then run without MPS and do not report that."""
    daemon: ProcessIdentity | None
    servers: tuple[MpsServer, ...] = ()
    why: str = ""
    """The reason for a condition other than fine."""


MpsRole = Literal["daemon", "server", "front end"]
"""The role of a process of MPS. A front end that waits for input blocks all others from its daemon."""


class MpsProcess(Struct, frozen=True):
    """A process of MPS on this node, of any user."""

    identity: ProcessIdentity
    role: MpsRole
    pipe: str | None
    """Its pipe directory; None: the caller may not read its environment."""
    uids: tuple[int, ...] = ()
    """Its real, effective, saved and file system uid; empty if they cannot be read. They differ in a program that
    changes its user, such as su."""
    program: str | None = None
    """The file that it executes (/proc/PID/exe); None: the caller may not read it."""
    protocol: int = 2
    """2, or from driver 615 on also 3, which has other commands and another default pipe directory."""
    is_static: bool = False
    """Whether it is a daemon that gives each client a static partition of its GPU."""


class MpsStarted(Struct, frozen=True):
    """A daemon that runs and has answered."""

    place: MpsPlace
    daemon: ProcessIdentity
    servers: tuple[MpsServer, ...]
    joined: bool
    """Whether it ran already."""
    seconds: float
    notes: tuple[str, ...] = ()
    partitions: EqualPartitions | None = None
    """None: it has no static partitions."""
    protocol: int = 2
    """The daemon's own, which may be another than a new one would have."""


class MpsFailed(Struct, frozen=True):
    """A daemon that was not started or stopped, and why. A start has been undone."""

    place: MpsPlace
    kind: str
    """The name of the error's class."""
    why: str


class MpsStopped(Struct, frozen=True):
    """The result of stopping a daemon."""

    place: MpsPlace
    how: Literal["was not there", "in use", "quit", "SIGTERM", "SIGKILL", "still there"]
    clients: tuple[int, ...]
    """Clients that were still connected and were terminated."""
    left: tuple[ProcessIdentity, ...]
    """Processes of the daemon that outlived every signal: the GPU is not free."""
    seconds: float
    notes: tuple[str, ...] = ()
