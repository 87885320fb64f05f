"""Sample once a second the memory of GPUs and host, and the memory of each running task."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...core.errors import DriverError
from ...node import descendants
from ...node.gpus import binding
from ...node.memory import HostMemory
from ...node.records import GpuProcess, GpuReading, MemoryUse
from .running import Running

EVERY_S = 1.0
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1024 * 1024)


class Sampler(threading.Thread):
    """Samples in a thread of its own, so that a driver that hangs does not delay tasks.

    `running` maps the leader of each task's session to the task; the loop changes it, the sampler only reads it.
    """

    def __init__(self, running: Mapping[int, Running], has_gpus: bool, host: HostMemory) -> None:
        super().__init__(name="sampler", daemon=True)
        self._running = running
        self._has_gpus = has_gpus
        self._host = host
        self._over = threading.Event()
        self._now = threading.Event()
        self._gpus: dict[str, GpuReading] = {}
        self.watch_host = False
        """True: also sample the host memory of tasks, which reads every process. Set after a task ran out of it."""

    def run(self) -> None:
        """Sample every EVERY_S seconds until `stop`."""
        while not self._over.is_set():
            try:
                self.sample()
            except OSError:
                self._gpus = {}  # no descriptor left, for example: nothing is known until the next sample
            self._now.wait(EVERY_S)
            self._now.clear()

    def sample(self) -> None:
        running = dict(self._running)
        if not running:
            return
        if self._has_gpus:
            try:
                readings = binding.read_gpu_readings()
            except DriverError:
                readings = ()  # do not keep old figures
            self._gpus = {reading.gpu.uuid: reading for reading in readings}
            self._count_gpus(running, ((reading.gpu.uuid, reading.processes) for reading in readings))
        if self.watch_host:
            self._count_host(running)

    def _count_gpus(
        self, running: Mapping[int, Running], gpus: Iterable[tuple[str, Iterable[GpuProcess]]]
    ) -> tuple[dict[int, dict[str, int]], Counter[int]]:
        """Update the memory of each task from (UUID, processes) of the GPUs.

        Return leader -> UUID -> memory in MiB, where it is known, and leader -> number of processes.
        """
        memory: dict[int, dict[str, int]] = {}
        clients: Counter[int] = Counter()
        for uuid, its_processes in gpus:
            for process in its_processes:
                leader = descendants.read_session_of(process.pid)
                if leader in running:
                    clients[leader] += 1
                    if process.memory_used_mib is not None:
                        used = memory.setdefault(leader, {})
                        used[uuid] = used.get(uuid, 0) + process.memory_used_mib
        for leader, used in memory.items():
            task = running[leader]
            task.gpu_now_mib = sum(used.values())
            task.gpu_peak_mib = max(task.gpu_now_mib, task.gpu_peak_mib or 0)
        return memory, clients

    def _count_host(self, running: Mapping[int, Running]) -> None:
        """Add up the resident memory of each task's session.

        Reads statm only for processes of tasks. psutil takes 1.8 times as long for it (30 us: python -m timeit -p -s
        'import psutil' 'psutil.Process().memory_info()'), and has no session id.
        """
        sums = dict.fromkeys(running, 0.0)
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and (leader := descendants.read_session_of(int(folder.name))) in sums:
                try:
                    sums[leader] += int((folder / "statm").read_text(encoding="ascii").split()[1]) * _PAGE_MIB
                except (OSError, IndexError, ValueError):
                    continue
        for leader, used in sums.items():
            running[leader].host_now_mib = int(used)

    def gpu(self, uuid: str, tasks: Sequence[Running]) -> MemoryUse | None:
        """Return the memory of one GPU at the last sample; None: not known."""
        reading = self._gpus.get(uuid)
        if reading is None or reading.memory_used_mib is None or reading.gpu.memory_total_mib is None:
            return None
        now = tuple(task.gpu_now_mib or 0 for task in tasks)
        return MemoryUse(reading.gpu.memory_total_mib, reading.memory_used_mib, now)

    def host(self, tasks: Sequence[Running]) -> MemoryUse | None:
        """Return the host's memory now; None: not known."""
        room = self._host.room()
        now = tuple(task.host_now_mib or 0 for task in tasks)
        return None if room is None else MemoryUse(room.total_mib, room.used_mib, now)

    def stop(self) -> None:
        """Ask the thread to end, without waiting: it may hang in the driver."""
        self._over.set()
        self._now.set()
