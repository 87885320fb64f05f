"""Records that every package knows: what was asked, who owns what, which process is meant.

Units live in the names (`_mib` is 1,048,576 bytes). `None` means the source would not say; 0 means measured, and none.
msgspec.Struct and not dataclasses: they are made in C, and a Prolog pays for each record that it builds.
"""

from __future__ import annotations

from msgspec import Meta, Struct

from .typed import Annotated, Literal

MOST = 10**15
"""What no figure of a node reaches, and what one can still calculate with: a file that says more is no record."""
Count = Annotated[int, Meta(ge=0, le=MOST)]
"""Something that is counted, or a number by which something is known."""
SmChoice = int | Literal["even", "free"]
"""The share of a GPU's streaming multiprocessors a task may use: percent, an even part, or no cap."""


class ShareRequest(Struct, frozen=True):
    """What a user wrote after --share-gpu."""

    per_gpu: int
    """Tasks on each GPU, the N."""
    mem_mib: int | None = None
    """GPU memory of one task; None: an even part."""
    sm: SmChoice | None = None
    mps: bool | None = None
    """None: with MPS where the node has it."""


class Owner(Struct, frozen=True):
    """Who a process runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Supplementary groups; a site may give /dev/nvidia* to one."""


class ProcessIdentity(Struct, frozen=True):
    """One process and no later one of the same number."""

    pid: int
    """0: the kernel names no process (another pid namespace, or a lock that belongs to an open file)."""
    start_ticks: int | None = None
    """Field 22 of /proc/PID/stat, clock ticks after boot; None: hidden (hidepid) or gone."""
    uid: int | None = None
    name: str | None = None
    """The kernel's name of it, at most 15 characters."""


class DaemonGroup(Struct, frozen=True):
    """The cgroup of one user's MPS daemon on one GPU: root's, in one folder for each user."""

    root: str
    """Where cgroups are mounted."""
    uid: int
    name: str
    """The GPU, as its pipe directory names it."""
    minor: int | None = None
    """The N of /dev/nvidiaN, the one GPU that may be opened in it; None: not known, so any."""
    memory_mib: int | None = None
    """Host memory that all in it may take; None: no limit."""
    processes: int | None = None
    """Processes and threads that may be in it; None: no limit."""


Amount = Annotated[int, Meta(ge=-MOST, le=MOST)]
"""A measured figure. Its bounds are for calculating with it, and no word on what a node can have."""
Level = Annotated[float, Meta(ge=-float(MOST), le=float(MOST))]
"""The same with a fraction."""
Moment = Annotated[float, Meta(ge=0, le=1e11)]
"""Unix time, seconds, of a year that a calendar has."""
NodeName = Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{1,255}$")]
Reasons = dict[str, str]
"""Field of the record -> why it is None, in words for a person."""
