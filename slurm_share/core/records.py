"""Records that all packages use: share requests, owners, processes.

Names end in units (`_mib` is 1,048,576 bytes). `None` means unknown; 0 is a measured zero. They are msgspec.Struct, not
dataclasses: these are made in C, and a Prolog builds many.
"""

from __future__ import annotations

from msgspec import Meta, Struct

from .numbers import UINT32_MOST, whole
from .typed import Annotated, Literal

MOST = 10**15
"""Upper bound of all figures of a node; a file with a larger one is refused."""
MPS_CLIENTS_MIN = 48
"""MPS clients of one GPU that every driver supports, from Volta on (docs.nvidia.com/deploy/mps, "Limitations")."""
Count = Annotated[int, Meta(ge=0, le=MOST)]
"""A count, or an identifying number."""
SmChoice = int | Literal["even", "free", "static"]
"""A task's part of a GPU's streaming multiprocessors: percent, an even part, no cap, or a static partition."""
SharingChoice = Literal["auto", "mps", "time-slicing", "exclusive"]
"""How the tasks of a GPU share it: as the node can, through MPS, in turns, or one task alone."""
SharingMethod = Literal["mps", "time-slicing", "exclusive", "mig"]
"""How a task got its GPU: through MPS, in turns with others, alone, or alone on a MIG instance."""


class ShareRequest(Struct, frozen=True):
    """The value of --share-gpu."""

    per_gpu: int
    """Tasks on each GPU: N of --share-gpu=N."""
    mem_mib: int | None = None
    """The most GPU memory of one task; None: an even part."""
    sm: SmChoice | None = None
    sharing: SharingChoice | None = None
    """None: the site's default."""
    mem_least_mib: int | None = None
    """The GPU memory that a task is sure of, and what is booked for it; None: `mem_mib`."""


class Owner(Struct, frozen=True):
    """User and groups of a process."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Supplementary groups; a site may give /dev/nvidia* to one."""


class ProcessIdentity(Struct, frozen=True):
    """A process, told apart from later processes with the same pid."""

    pid: int
    """0: unknown to the kernel (another pid namespace, or a lock that belongs to an open file)."""
    start_ticks: int | None = None
    """Field 22 of /proc/PID/stat, clock ticks after boot; None: hidden (hidepid) or gone."""
    uid: int | None = None
    name: str | None = None
    """The kernel's name of the process, at most 15 characters."""


class JobStart(Struct, frozen=True):
    """One start of a job. Launchers write it as `4711`, and `4711.2` after the second requeue; outside Slurm a run has
    a name of another form."""

    number: int | None
    """Slurm's job id; None: outside Slurm."""
    restarts: int = 0

    def __str__(self) -> str:
        return f"{self.number}.{self.restarts}" if self.restarts else str(self.number)

    @classmethod
    def parse(cls, text: str) -> JobStart:
        """Return the start that a text names. The text may be from a user's file: any other form has no number."""
        number, dot, restarts = text.partition(".")
        job, times = whole(number, UINT32_MOST), whole(restarts, UINT32_MOST) if dot else 0
        return cls(None) if job is None or times is None else cls(job, times)


class DaemonGroup(Struct, frozen=True):
    """The cgroup of one user's MPS daemon on one GPU: root's, in one folder for each user."""

    root: str
    """Where cgroups are mounted."""
    uid: int
    name: str
    """Name of the GPU's pipe directory."""
    minor: int | None = None
    """N of /dev/nvidiaN, the only GPU that processes in the group may open; None: unknown, so any."""
    memory_mib: int | None = None
    """Limit of host memory of all processes in it; None: no limit."""
    processes: int | None = None
    """Limit of processes and threads; None: no limit."""


Amount = Annotated[int, Meta(ge=-MOST, le=MOST)]
"""A measured whole number. The bounds keep arithmetic exact; they are no limits of real hardware."""
Level = Annotated[float, Meta(ge=-float(MOST), le=float(MOST))]
"""A measured number that may have a fraction."""
Moment = Annotated[float, Meta(ge=0, le=1e11)]
"""Unix time in seconds, up to the year 5138."""
NodeName = Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{1,255}$")]
Reasons = dict[str, str]
"""Field of a record -> why it is None, as text for people."""
