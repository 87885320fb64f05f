"""What a sampler remembers of a node: windows, peaks and counters, and how they are stored."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from ...core.errors import StateError
from ...node.gpu_figures import GpuWindows
from .windows import Series

VERSION = 1
"""Version of the stored form; other versions are rejected."""
ORIGIN = "what the sampler remembered"


class Held(Struct, frozen=True):
    """What the sampler remembers of a process on one GPU."""

    peak_mib: int | None = None
    sm_percent: float = field(default=0.0, name="sm")
    sm_at: float = -1e9


class ProcessHistory(Struct, frozen=True):
    """A process at its last sample."""

    start_ticks: int
    at: float
    cpu_s: float
    gpus: dict[str, Held] = {}


class JobHistory(Struct, frozen=True, kw_only=True):
    """A job while it is on this node."""

    uid: int
    at: float
    cpu_s: dict[str, float] | None = None
    cpu_cores_windows: Series = field(default=Series(), name="cpu")
    kills: int | None = None
    kills_seen: int = 0
    """The counter as it stood: of cgroup v1 it loses what a step's group had when that goes."""
    peak_mib: int | None = None
    host_peak_mib: int | None = None
    """Peak of host memory of one task's processes on GPUs."""
    host_mean_mib: int | None = None
    """The highest mean of the job's memory over its tasks, while the most of them were there."""
    task_keys: tuple[str, ...] = field(default=(), name="seats")
    """Keys of the latest tasks, so that a task seen again is not counted twice."""
    measured: int = 0
    at_once: int = 0
    measured_s: float = 0.0
    since: float | None = None
    """When it was first seen here; None: a sampler of an older release wrote this down."""


class Stay(Struct, frozen=True):
    """The time a user has been on a GPU."""

    since: float
    """When the user was first seen on it; a time without anybody in between does not end it."""
    at: float
    """When last."""


class GpuHistory(GpuWindows[Series], frozen=True, kw_only=True, omit_defaults=True):
    """The load of a GPU over the last minutes."""

    stays: dict[int, Stay] = field(default_factory=dict)
    """By uid: the users on it, or the last one."""


class NodeHistory(Struct, frozen=True, kw_only=True):
    """What a sampler remembers of its node. The first one is `NodeHistory()`."""

    version: int = VERSION
    boot_id: str = ""
    at: float | None = None
    busy_s: float | None = None
    measured_s: float = 0.0
    gpus: dict[str, GpuHistory] = {}
    processes: dict[int, ProcessHistory] = {}
    jobs: dict[int, JobHistory] = {}


def render(history: NodeHistory) -> bytes:
    """Return the history as JSON."""
    return msgspec.json.encode(history)


def recall(data: bytes, boot_id: str) -> NodeHistory | None:
    """Return the history from its JSON; None if it is of another boot. Raises StateError for other data."""
    try:
        history = msgspec.json.decode(data, type=NodeHistory)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(ORIGIN, f"not what a sampler writes down: {error}") from error
    if history.version != VERSION:
        raise StateError(ORIGIN, f"written by another release (form {history.version}; this one knows {VERSION})")
    return history if history.boot_id == boot_id else None
