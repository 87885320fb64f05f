"""The history that a sampler keeps of a node: windows, peaks and counters, and its stored form."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from ...core import text_files
from ...core.errors import StateError, quoted, shown
from ...node.gpu_figures import GpuWindows
from ...node.windows import WindowSeries

VERSION = 1
"""Version of the stored form; other versions are rejected."""
ORIGIN = "the sampler's stored history"


class Held(Struct, frozen=True):
    """The history of a process on one GPU."""

    peak_mib: int | None = None
    sm_time_percent: float = 0.0
    sm_at: float = -1e9


class ProcessHistory(Struct, frozen=True):
    """A process as it was at its last sample."""

    start_ticks: int
    at: float
    cpu_s: float
    gpus: dict[str, Held] = {}


class JobHistory(Struct, frozen=True, kw_only=True):
    """The history of a job on this node."""

    uid: int
    at: float
    cpu_s: dict[str, float] | None = None
    llload_s: dict[str, float] = {}
    cpu_cores_windows: WindowSeries = WindowSeries()
    kills: int | None = None
    kills_seen: int = 0
    """The counter at the last sample. With cgroup v1 it drops when a step's group is removed."""
    peak_mib: int | None = None
    host_peak_mib: int | None = None
    """Peak of the host memory of one task's processes on GPUs."""
    host_mean_mib: int | None = None
    """The highest mean of the job's memory over its tasks, while the most of them ran."""
    task_keys: tuple[str, ...] = ()
    """Keys of the latest tasks, so that a task is not counted twice."""
    measured: int = 0
    at_once: int = 0
    measured_s: float = 0.0
    since: float
    """When it was first seen on this node."""


class GpuStay(Struct, frozen=True):
    """The time a user has been on a GPU."""

    since: float
    """When the user was first seen on it. Time during which nobody is on it does not end the stay."""
    at: float
    """When the user was last seen on it."""


class GpuHistory(GpuWindows[WindowSeries], frozen=True, kw_only=True, omit_defaults=True):
    """The load of a GPU over the last minutes."""

    stays: dict[int, GpuStay] = field(default_factory=dict)
    """uid -> stay, of the users on it, or of the last ones."""


class NodeHistory(Struct, frozen=True, kw_only=True):
    """The history of a node. `NodeHistory()` is that of a new sampler."""

    version: int = VERSION
    boot_id: str = ""
    at: float | None = None
    busy_s: float | None = None
    measured_s: float = 0.0
    gpus: dict[str, GpuHistory] = {}
    processes: dict[int, ProcessHistory] = {}
    jobs: dict[int, JobHistory] = {}


def render(history: NodeHistory) -> bytes:
    """Return the history as JSON, for `recall`."""
    return msgspec.json.encode(history)


def recall(data: bytes, boot_id: str) -> NodeHistory | None:
    """Parse a history from JSON; None if it is of another boot. Raises StateError for other data."""
    try:
        history = msgspec.json.decode(data, type=NodeHistory)
    except text_files.NOT_JSON as error:
        raise StateError(ORIGIN, f"is not a history: {shown(str(error), 200)}") from error
    if history.version != VERSION:
        raise StateError(
            ORIGIN, f"written by another release (form {quoted(history.version, 20)}; this one knows {VERSION})"
        )
    return history if history.boot_id == boot_id else None
