"""A task that runs, as loop, sampler and strategy know it."""

from __future__ import annotations

import time

from msgspec import UNSET, UnsetType

from ..rules.memory_caps import Allowance
from .feeder import Turn


class Running:
    """A task and the worker it runs in."""

    __slots__ = (
        "allowed",
        "asked_mib",
        "booked_mib",
        "cap_mib",
        "clock",
        "cpu_s",
        "gpu",
        "gpu_now_mib",
        "gpu_peak_mib",
        "host_now_mib",
        "is_moving",
        "log",
        "log_start",
        "needs_mib",
        "out",
        "pid",
        "rank",
        "rate_per_s",
        "rate_source",
        "rss_mib",
        "speed_ratio",
        "started",
        "turn",
        "units",
        "worker",
    )

    def __init__(self, worker: int, turn: Turn, rank: int, log: str, log_start: int, started: float) -> None:
        self.worker = worker
        self.turn = turn
        self.rank = rank
        self.log = log
        self.log_start = log_start
        self.started = started
        self.clock = time.monotonic()
        self.pid = 0
        self.out = -1
        """The open log, while the task is being started."""
        self.cap_mib: int | None = None
        """The cap of GPU memory that it runs under; None: there is none."""
        self.allowed: Allowance | None = None
        """Its part of the GPU's memory, if that is not the part of its worker."""
        self.asked_mib: int | None = None
        """GPU memory that it asked for in vain when it ended."""
        self.gpu_now_mib: int | None = None
        self.gpu_peak_mib: int | None = None
        self.host_now_mib: int | None = None
        self.gpu: int | None = None
        """Position of its GPU among the node's, if that is not its worker's own."""
        self.booked_mib: int | UnsetType = UNSET
        """What is booked for it on each of its GPUs."""
        self.is_moving = False
        """It was told to save its state and end, to start on another GPU."""
        self.needs_mib: int | UnsetType = UNSET
        """What it is known to need, once it has run out of GPU memory."""
        self.units: float | UnsetType = UNSET
        self.rate_per_s: float | UnsetType = UNSET
        self.rate_source: str | UnsetType = UNSET
        self.speed_ratio: float | UnsetType = UNSET
        """What was measured of its work, once it has ended: see records.Ended."""
        self.cpu_s: float | None = None
        """CPU time of its processes, once it has ended."""
        self.rss_mib: int | None = None
        """The peak of the largest of its processes, once it has ended; None: not known."""
