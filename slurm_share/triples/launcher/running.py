"""The record of a running task, which loop, sampler and strategy share."""

from __future__ import annotations

import time

from msgspec import UNSET, Struct, UnsetType, field

from ...packing import Allowance
from .feeder import Turn


class Running(Struct, eq=False):
    """An attempt and the worker it runs in. Mutable: the sampler and the strategy fill in what they measure."""

    worker: int
    turn: Turn
    rank: int
    log: str
    log_start: int
    """Offset in the log at which the attempt's output begins."""
    started: float
    """Unix time, seconds."""
    clock: float = field(default_factory=lambda: time.monotonic())
    """The same on the monotonic clock, seconds."""
    pid: int = 0
    """Its process, the leader of its session; 0: it is being started."""
    out: int = -1
    """Descriptor of the open log while the task is being started."""
    cap_mib: int | None = None
    allowed: Allowance | None = None
    """Its allowance of GPU memory; None: the cap of its worker."""
    asked_mib: int | None = None
    """GPU memory of its last failed allocation, from its log; None: not known."""
    gpu_now_mib: int | None = None
    gpu_peak_mib: int | None = None
    host_now_mib: int | None = None
    gpu: int | None = None
    """Position of its GPU among the node's GPUs; None: the GPU of its worker."""
    booked_mib: int | UnsetType = UNSET
    """Memory booked for it on each of its GPUs."""
    is_moving: bool = False
    """True: it was told to save its state and end, to start on another GPU."""
    is_told_to_save: bool = False
    """True: it got the signal of --checkpoint-signal."""
    needs_mib: int | UnsetType = UNSET
    """The known least need of GPU memory, once it has run out of it."""
    units: float | UnsetType = UNSET
    """This and the next three: see records.Ended."""
    rate_per_s: float | UnsetType = UNSET
    rate_source: str | UnsetType = UNSET
    speed_ratio: float | UnsetType = UNSET
    cpu_s: float | None = None
    """CPU time of its processes, once it has ended."""
    rss_mib: int | None = None
    """Peak memory of the largest of its processes, once it has ended; None: not known."""
