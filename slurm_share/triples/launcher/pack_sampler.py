"""The sampler of a packed run: memory of each task on each GPU, CUDA processes, load and energy of the GPUs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

from msgspec import Struct

from ...node.gpus.load import NvmlSession
from ...node.memory import HostMemory
from ...node.readings import GpuNow
from ...packing import GpuSample, TaskSample
from .running import Running
from .sampler import Sampler

WINDOW_S = 60.0
"""Seconds over which the mean load is computed."""
STALE_S = 3.0
"""Age of the last sample, in seconds, from which on the driver is assumed to hang."""
POLL_S = 0.002
RETRY_S = 5.0
"""Seconds between two attempts to find a lost GPU again."""


class NodeSample(Struct, frozen=True, kw_only=True):
    """One sample of a node's GPUs and of the launcher's tasks on them."""

    at: float
    """When the driver was asked, monotonic clock, seconds."""
    gpus: Mapping[str, GpuSample]
    """GPU UUID -> its sample."""
    tasks: tuple[TaskSample, ...]


class PackSampler(Sampler):
    """Samples every second, also while nothing runs: the first start needs to know the memory that others use."""

    def __init__(self, running: Mapping[int, Running], host: HostMemory) -> None:
        super().__init__(running, has_gpus=True, host=host)
        self._tasks = running
        self._session = NvmlSession(retry_s=RETRY_S)
        self._windows: dict[tuple[str, str], deque[tuple[float, float]]] = {}
        self.latest: NodeSample | None = None
        """The newest sample. The sampler's thread replaces it, so readers take the reference once."""

    def sample(self) -> None:
        running = dict(self._tasks)
        at = time.monotonic()
        now = self._session.read()
        memory, clients = self._count_gpus(running, ((gpu.uuid, gpu.processes or ()) for gpu in now.gpus))
        if self.watch_host:
            self._count_host(running)
        if now.gpus or not now.problems:
            self.latest = NodeSample(
                at=at,
                gpus={gpu.uuid: self._figures(gpu, at) for gpu in now.gpus},
                tasks=tuple(
                    TaskSample(task=running[leader].turn.task, memory_mib=used, clients=clients[leader])
                    for leader, used in memory.items()
                ),
            )

    def sample_now(self, patience_s: float) -> NodeSample | None:
        """Take a sample now and return it; None: it took longer than `patience_s`, or there is no driver.

        Does not ask a driver whose last answer is older than STALE_S.
        """
        asked = time.monotonic()
        if self.latest is None or asked - self.latest.at > STALE_S:
            return None
        self._now.set()
        while time.monotonic() - asked < patience_s:
            if self.latest.at >= asked:
                return self.latest
            time.sleep(POLL_S)
        return None

    def _figures(self, gpu: GpuNow, at: float) -> GpuSample:
        util = self._mean(gpu.uuid, "util", gpu.utilization_percent, at)
        sm = self._mean(gpu.uuid, "sm", gpu.activity.sm_percent, at)
        return GpuSample(
            uuid=gpu.uuid,
            used_mib=gpu.memory_used_mib,
            sm_ratio=util if sm is None else sm,
            dram_ratio=self._mean(gpu.uuid, "dram", gpu.activity.dram_percent, at),
            util_ratio=util,
            sm_now_ratio=_ratio(gpu.activity.sm_percent, gpu.utilization_percent),
            dram_now_ratio=_ratio(gpu.activity.dram_percent),
            util_now_ratio=_ratio(gpu.utilization_percent),
            energy_j=gpu.energy_j,
            problem=gpu.problem or "",
        )

    def _mean(self, uuid: str, name: str, percent: float | None, at: float) -> float | None:
        """Return the mean over the window as a ratio; None: the current value is not known."""
        if percent is None:
            return None
        window = self._windows.setdefault((uuid, name), deque())
        window.append((at, percent))
        while at - window[0][0] > WINDOW_S:
            window.popleft()
        return round(sum(value for _, value in window) / len(window) / 100, 4)


def _ratio(percent: float | None, otherwise: float | None = None) -> float | None:
    known = otherwise if percent is None else percent
    return None if known is None else round(known / 100, 4)
