"""Sample once a second: memory of tasks on GPUs, their CUDA processes, load and energy of the GPUs, host memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ...node import descendants, windows
from ...node.cgroups import slurp
from ...node.gpu_figures import WINDOWED, Means
from ...node.memory import HostMemory
from ...node.readings import EnergyNow, GpuNow
from ...node.records import Gpu, MemoryUse
from ...node.windows import WindowSeries
from ...packing import Attempt, EndFacts, TaskSample

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from ...node.gpus.load import NvmlSession

EVERY_S = 1.0
GAP_S = 3.0
"""Most seconds for which a reading stands."""
STALE_S = 3.0
"""Age of the last sample, in seconds, from which on the driver is assumed to hang."""
POLL_S = 0.002
RETRY_S = 5.0
"""Seconds between two attempts to find a lost GPU again."""
EXTRA_PAUSE_S = 0.25
"""Seconds between two extra samples because of failed tasks."""
PATIENCE_S = 1.0
"""Most seconds to wait for an extra sample, which takes milliseconds unless the host is overloaded. The ends of other
tasks wait too, but a lost GPU that is not seen costs a task one of its attempts."""
COUNT_PATIENCE_S = 0.05
"""Most seconds to wait for the energy counters at a task's end; reading them takes tenths of a millisecond."""
COUNT_AGAIN_S = 0.005
"""Seconds for which counters that were read at the end of one task also count for the end of another."""
MPS_SERVER = b"nvidia-cuda-mps"
"""The kernel's name of MPS servers and daemons: nvidia-cuda-mps-server, cut to 15 characters."""
BROKEN = frozenset({"GPU is lost", "GPU requires restart"})
"""NVML's texts of GPU_IS_LOST and RESET_REQUIRED: no program can use the GPU until somebody acts."""
_Key = TypeVar("_Key", str, int)
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1024 * 1024)


class EnergySample(Struct, frozen=True):
    """The energy counters of a node's GPUs at one moment."""

    at: float
    """Monotonic clock, seconds."""
    gpus: Mapping[str, EnergyNow]


class NodeSample(Struct, frozen=True, kw_only=True):
    """One sample of a node's GPUs and of the launcher's tasks on them."""

    at: float
    """When the driver was asked, monotonic clock, seconds."""
    gpus: Mapping[str, GpuNow]
    """GPU UUID -> its figures, with means over the last minutes."""
    energy: EnergySample
    """Read at once after all other figures, which take long on a busy host."""
    tasks: tuple[TaskSample, ...]
    watched: frozenset[int]
    """The tasks that were known to run. A start is known a moment after it, at the loop's next turn."""
    others: Mapping[str, Sequence[float | None]] = {}
    """GPU UUID -> SM time of each session of processes there that are no task's, MPS servers left out; None: the driver
    does not say."""


class _Seen:
    """One task in one sample."""

    def __init__(self) -> None:
        self.clients = 0
        self.memory_mib: dict[str, int] = {}
        self.sm_percent: dict[str, float | None] = {}


class Sampler(threading.Thread):
    """Samples in a thread of its own, so that a driver that hangs does not delay tasks.

    Also while nothing runs: the first start of a packed run needs to know the memory that others use. `running` maps
    the leader of each task's session to the task; the loop changes it, the sampler only reads it.
    """

    def __init__(
        self, running: Mapping[int, Attempt], has_gpus: bool, host: HostMemory, known: Sequence[Gpu] = ()
    ) -> None:
        """Prepare the thread. `known`: the GPUs of the tasks as the driver listed them for the launcher."""
        super().__init__(name="sampler", daemon=True)
        self._running = running
        self._has_gpus = has_gpus
        self._known = known
        self._host = host
        self._over = threading.Event()
        self._now = threading.Event()
        self._answered = threading.Event()
        """Set after the first sample, also a failed one: opening the driver may take longer than a short task."""
        self._began_s = time.monotonic()
        self._series: dict[tuple[str, str], WindowSeries] = {}
        """(GPU UUID, name of its windows) -> the figure over time."""
        self._asked_s = -EXTRA_PAUSE_S
        self._is_extra_due = False
        self._is_count_due = False
        self._counted = threading.Event()
        """Set when the energy counters that `count` asked for are read."""
        self._count_from_s = 0.0
        """Before this time `count` does not ask, because the driver was slow."""
        self._energy: EnergySample | None = None
        self.latest: NodeSample | None = None
        """The newest sample. The sampler's thread replaces it, so readers take the reference once."""
        self.watch_host = False
        """True: also sample the host memory of tasks, which reads every process. Set after a task ran out of it."""

    def run(self) -> None:
        """Sample every EVERY_S seconds until `stop`, and when `_extra` or `count` asks."""
        session = _session(self._known) if self._has_gpus else None
        due_s = 0.0
        while not self._over.is_set():
            self._now.clear()
            if self._is_extra_due or time.monotonic() >= due_s:
                self._is_extra_due = False
                try:
                    self.sample(session)
                except OSError:
                    self.latest = None  # no descriptor left, for example: nothing is known until the next sample
                self._answered.set()
                due_s = time.monotonic() + EVERY_S
            if self._is_count_due and session is not None:
                self._is_count_due = False
                self._energy = _read_energy(session)
                self._counted.set()
            self._now.wait(max(due_s - time.monotonic(), 0.0))

    def sample(self, session: NvmlSession | None) -> None:
        """Take one sample. `session`: asks the driver; None: the node's tasks have no GPUs."""
        running = dict(self._running)
        if session is not None:
            self._sample_gpus(running, session)
        if self.watch_host:
            self._count_host(running)

    def _sample_gpus(self, running: Mapping[int, Attempt], session: NvmlSession) -> None:
        at = time.monotonic()
        now = session.read()
        energy = _read_energy(session)
        running = {**running, **self._running}  # with the tasks that have started in the meantime
        seen, others = self._find_processes(running, now.gpus)
        if now.gpus or not now.problems:
            self.latest = NodeSample(
                at=at,
                energy=energy,
                gpus={gpu.uuid: self._with_means(gpu, at) for gpu in now.gpus},
                tasks=tuple(
                    TaskSample(
                        task=running[leader].task,
                        memory_mib=one.memory_mib,
                        clients=one.clients,
                        sm_percent=one.sm_percent,
                    )
                    for leader, one in seen.items()
                ),
                watched=frozenset(one.task for one in running.values()),
                others={uuid: tuple(sessions.values()) for uuid, sessions in others.items()},
            )

    def _find_processes(
        self, running: Mapping[int, Attempt], gpus: Iterable[GpuNow]
    ) -> tuple[dict[int, _Seen], dict[str, dict[int, float | None]]]:
        """Return what the GPUs show of each task, by its leader, and UUID -> session -> SM time of other processes."""
        seen: dict[int, _Seen] = {}
        others: dict[str, dict[int, float | None]] = {}
        for gpu in gpus:
            sm = None if gpu.process_sm is None else {one.pid: one.sm_time_percent for one in gpu.process_sm}
            for process in gpu.processes or ():
                leader = descendants.read_session_of(process.pid)
                percent = None if sm is None else sm.get(process.pid, 0.0)
                if leader in running:
                    one = seen.setdefault(leader, _Seen())
                    one.clients += 1
                    if process.memory_used_mib is not None:
                        one.memory_mib[gpu.uuid] = one.memory_mib.get(gpu.uuid, 0) + process.memory_used_mib
                    _add(one.sm_percent, gpu.uuid, percent)
                elif _is_foreign(process.pid, leader):
                    _add(others.setdefault(gpu.uuid, {}), leader or -process.pid, percent)
        return seen, others

    def _with_means(self, gpu: GpuNow, at: float) -> GpuNow:
        """Return the figures with their means over the last minutes, as llload computes them."""
        means: dict[str, Means | None] = {}
        for one in WINDOWED:
            key = gpu.uuid, one.windows
            series = self._series.get(key, WindowSeries())
            since = series.at[-1] if series.at else at - EVERY_S
            series = self._series[key] = windows.add(series, at, min(at - since, GAP_S), one.now(gpu))
            means[one.windows] = windows.means(series, at)
        return replace(gpu, **means)

    def _count_host(self, running: Mapping[int, Attempt]) -> None:
        """Add up the resident memory of each task's session.

        Reads statm only for processes of tasks. psutil takes 1.8 times as long for it (30 us: python -m timeit -p -s
        'import psutil' 'psutil.Process().memory_info()'), and has no session id.
        """
        if not running:
            return
        sums = dict.fromkeys(running, 0.0)
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and (leader := descendants.read_session_of(int(folder.name))) in sums:
                try:
                    sums[leader] += int((folder / "statm").read_text(encoding="ascii").split()[1]) * _PAGE_MIB
                except (OSError, IndexError, ValueError):
                    continue
        for leader, used in sums.items():
            running[leader].host_mib = int(used)

    # ---- For the loop ----

    def gpu(self, uuid: str, tasks: Sequence[Attempt]) -> MemoryUse | None:
        """Return the memory of one GPU at the last sample; None: not known."""
        latest = self.latest
        reading = None if latest is None else latest.gpus.get(uuid)
        if reading is None or reading.memory_used_mib is None or reading.memory_total_mib is None:
            return None
        now = tuple(task.gpu_now_mib or 0 for task in tasks)
        return MemoryUse(reading.memory_total_mib, reading.memory_used_mib, now)

    def host(self, tasks: Sequence[Attempt]) -> MemoryUse | None:
        """Return the host's memory now; None: not known."""
        room = self._host.room()
        now = tuple(task.host_mib or 0 for task in tasks)
        return None if room is None else MemoryUse(room.total_mib, room.used_mib, now)

    def with_sample(self, facts: EndFacts, uuids: Sequence[str]) -> EndFacts:
        """Return the facts about a task's end with those of its GPUs at the last sample before it.

        After a failure also whether one of them is broken, if necessary by a new sample: all tasks of a lost GPU fail
        at once, and waiting tasks would be started there until the next regular sample.
        """
        latest = self.latest
        is_failed = facts.was_started and facts.code != 0 and not facts.is_stopped_by_us
        is_lost = is_failed and (self._has_broken(latest, uuids) or self._has_broken(self._extra(), uuids))
        if latest is None:
            return replace(facts, is_device_lost=is_lost)
        rooms = [
            1 - one.memory_used_mib / one.memory_total_mib
            for one in (latest.gpus.get(uuid) for uuid in uuids)
            if one is not None and one.memory_used_mib is not None and one.memory_total_mib
        ]
        age_s = time.monotonic() - latest.at
        return replace(facts, room_ratio=min(rooms, default=None), sample_age_s=age_s, is_device_lost=is_lost)

    def broken(self, uuids: Iterable[str]) -> dict[str, str]:
        """Return UUID -> NVML's text for those of the GPUs that are broken at the last sample."""
        readings = {} if self.latest is None else self.latest.gpus
        found = ((uuid, readings[uuid].problem or "") for uuid in uuids if uuid in readings)
        return {uuid: problem for uuid, problem in found if problem in BROKEN}

    def _has_broken(self, sample: NodeSample | None, uuids: Sequence[str]) -> bool:
        return sample is not None and any(sample.gpus[uuid].problem in BROKEN for uuid in uuids if uuid in sample.gpus)

    def _extra(self) -> NodeSample | None:
        """Take a sample now and return it; None: too early after another one, it took too long, or no driver.

        Does not ask a driver whose last answer is older than STALE_S, or that has given none for STALE_S.
        """
        asked = time.monotonic()
        if self._has_gpus and not self._answered.is_set() and asked - self._began_s < STALE_S:
            self._answered.wait(PATIENCE_S)
        if asked - self._asked_s < EXTRA_PAUSE_S or self.latest is None or asked - self.latest.at > STALE_S:
            return None
        self._asked_s = asked
        self._is_extra_due = True
        self._now.set()
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if (latest := self.latest) is not None and latest.at >= asked:
                return latest
            time.sleep(POLL_S)
        return None

    def count(self, patience_s: float = COUNT_PATIENCE_S) -> EnergySample | None:
        """Return the energy counters now; None: there are no GPUs, or the driver does not answer in `patience_s`.

        After it did not, the default patience asks it no more for a second.
        """
        asked, last = time.monotonic(), self._energy
        if last is not None and asked - last.at < COUNT_AGAIN_S:
            return last
        is_slow = asked < self._count_from_s and patience_s <= COUNT_PATIENCE_S
        if is_slow or self.latest is None or asked - self.latest.at > STALE_S:
            return None
        self._counted.clear()
        self._is_count_due = True
        self._now.set()
        if not self._counted.wait(patience_s):
            self._count_from_s = asked + EVERY_S
            return None
        return self._energy

    def stop(self) -> None:
        """Ask the thread to end, without waiting: it may hang in the driver."""
        self._over.set()
        self._now.set()


def _add(sums: dict[_Key, float | None], key: _Key, percent: float | None) -> None:
    sums[key] = None if percent is None else (sums.get(key) or 0.0) + percent


def _is_foreign(pid: int, leader: int) -> bool:
    """Return whether a process on a GPU that is no task's is anybody's. `leader`: its session; 0: it is not known.

    MPS servers work for their clients, which the driver lists too. A process that has ended is nobody's. A leader that
    is our child is of a task whose start is not known yet.
    """
    if leader:
        is_ours = descendants.read_parent_of(leader) == os.getpid()
        return not is_ours and not slurp(f"/proc/{pid}/comm").startswith(MPS_SERVER)
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # another user's, and hidden (hidepid)
    except OSError:
        pass
    return False


def _read_energy(session: NvmlSession) -> EnergySample:
    began = time.monotonic()
    gpus = session.read_energy()
    return EnergySample((began + time.monotonic()) / 2, gpus)


def _session(known: Sequence[Gpu]) -> NvmlSession:
    """Return what reads the GPUs, as for llload."""
    from ...node.gpus.load import NvmlSession  # imported here, in the thread: tasks start before

    return NvmlSession(retry_s=RETRY_S, known=known)
