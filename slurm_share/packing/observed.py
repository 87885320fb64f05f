"""What is seen of running tasks and GPUs between the samples: for the history, and for the sentences at the end."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct

from .records import After, EndKind, Estimate, GpuFacts, Start, TaskAsk, TaskRun

AGES_S = (30, 60, 120, 300, 900)
"""At these ages the peak so far is kept: how much a peak may still grow is learned from it."""
ALONE_RATIO = 0.95
"""Energy is a task's own only if it was alone on its GPU for this part of its time."""
GAP_S = 30.0
"""A longer time between two samples is not counted: the machine slept, or the driver hung."""
_OWN: frozenset[EndKind] = frozenset({"gpu memory", "gpu memory likely", "gpu memory suspected"})
_FREE: frozenset[EndKind] = frozenset({"neighbour's memory", "neighbour's fault", "device"})


class GpuSample(Struct, frozen=True, kw_only=True):
    """A GPU at one moment. None: not known."""

    uuid: str
    used_mib: int | None = None
    sm_ratio: float | None = None
    """SM activity, mean over the last minute; where only utilisation is known, that."""
    dram_ratio: float | None = None
    util_ratio: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded."""
    problem: str | None = None
    """None: as before."""


class TaskSample(Struct, frozen=True, kw_only=True):
    """A running task at one moment."""

    task: int
    memory_mib: Mapping[str, int]
    """GPU's UUID -> the memory of all its processes there."""
    clients: int = 1
    """CUDA processes."""


def signature(ask: TaskAsk) -> object:
    """Return what makes two tasks the same to a decision where as much is expected of both."""
    family = None if ask.key is None else ask.key.family
    return (family, ask.gpus, ask.gpu_mem_mib, ask.name)


class Observed:
    """One attempt that runs."""

    def __init__(
        self, ask: TaskAsk, start: Start, started_s: float, attempt: int, estimate: Estimate | None, *, neighbours: int
    ) -> None:
        self.ask = ask
        self.start = start
        self.started_s = started_s
        self.attempt = attempt
        self.estimate = estimate
        self.neighbours = neighbours
        """Tasks on its GPUs when it started."""
        self.reserved_mib = start.reserve_mib
        self.memory_mib: Mapping[str, int] = {}
        self.peak_mib: int | None = None
        """On the GPU where it is largest."""
        self.peak_at: dict[int, int] = {}
        self.clients = 1
        self.is_flat = False
        """Its memory has stopped rising."""
        self.alone_s = 0.0
        self.energy_j = 0.0
        self.signature = signature(ask)
        self.is_plain = ask.key is not None and len(start.gpus) == 1 and not start.is_alone and attempt == 1
        """Another task of the same command may take its place without a decision of its own."""
        self._sums: dict[str, tuple[float, float]] = {}
        """Figure -> (sum of its values times seconds, seconds), while it was alone."""

    def reserve(self, mib: int) -> None:
        """Note another reservation."""
        self.reserved_mib = mib

    def see(self, sample: TaskSample, now_s: float) -> None:
        """Note its memory."""
        self.memory_mib = sample.memory_mib
        self.clients = max(sample.clients, 1)
        peak = self.peak_mib = max(self.peak_mib or 0, *sample.memory_mib.values())
        age_s = now_s - self.started_s
        for age in AGES_S:
            if age_s <= age:
                self.peak_at[age] = peak

    def was_alone(self, gpu: GpuSample, seconds: float) -> None:
        """Note figures of its GPU while nothing else ran there."""
        self.alone_s += seconds
        figures = (("sm", gpu.sm_ratio), ("dram", gpu.dram_ratio), ("util", gpu.util_ratio))
        for name, value in figures:
            if value is not None:
                total, over = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = (total + value * seconds, over + seconds)

    def _mean(self, name: str) -> float | None:
        total, over = self._sums.get(name, (0.0, 0.0))
        return round(total / over, 4) if over else None

    def run(
        self,
        *,
        kind: EndKind,
        facts: GpuFacts,
        seconds: float,
        unix_s: float,
        wanted_mib: int | None,
        sharing: str,
        software: str,
        cpu_cores: float | None,
        is_elastic: bool,
        probe_mib: float | None,
    ) -> TaskRun:
        """Return the attempt as one run of the history. `probe_mib`: what a dry run said; None: there was none."""
        key, estimate = self.ask.key, self.estimate
        reached = {age: peak for age, peak in self.peak_at.items() if seconds >= age}
        was_alone = self.alone_s >= ALONE_RATIO * seconds > 0
        more = {} if key is None else {name: getattr(key, name) for name in key.__struct_fields__}
        return TaskRun(
            when=unix_s,
            **more,
            gpu_model=facts.model,
            gpu_total_mib=facts.total_mib,
            sharing=sharing,
            kind=kind,
            seconds=round(seconds, 3),
            alone_seconds=round(self.alone_s, 3),
            peak_mib=self.peak_mib,
            peak_at_mib=tuple(sorted(reached.items())),
            reserved_mib=self.reserved_mib,
            cap_mib=self.start.cap_mib,
            source="unknown" if estimate is None else estimate.source,
            estimate_mib=None if estimate is None else estimate.point_mib,
            safe_mib=None if estimate is None else estimate.safe_mib,
            probe_mib=None if probe_mib is None else round(probe_mib),
            is_elastic=is_elastic,
            is_censored=kind in _OWN,
            wanted_mib=wanted_mib,
            clients=self.clients,
            sm_ratio=self._mean("sm"),
            dram_ratio=self._mean("dram"),
            util_ratio=self._mean("util"),
            cpu_cores=cpu_cores,
            energy_j=round(self.energy_j, 3) if was_alone and self.energy_j else None,
            software=software,
        )


class Account:
    """The sums of a node's packed run. Only what was measured is in them."""

    def __init__(self, gpus: Sequence[GpuFacts]) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._energy: dict[str, float] = {}
        """GPU -> its counter at the last sample."""
        self._at: float | None = None
        self.seconds = 0.0
        """That were sampled, of each GPU."""
        self.memory_mib_s = self.booked_mib_s = self.used_mib_s = 0.0
        self.busy_s = 0.0
        """GPU seconds with a task."""
        self.sm_s = self.sm_over_s = 0.0
        self.energy_j = self.idle_j = 0.0
        self.own = self.neighbours = self.free = 0
        """Attempts that ran out of memory by their own need; by a neighbour's; that a fault or a device ended."""
        self.wasted_s = 0.0
        """Of attempts whose work was lost for one of these."""
        self.done = 0
        self.waits = array("d")
        """Seconds from the beginning of the launcher to the first start of each task."""
        self.learned: set[str] = set()
        """Commands whose size was seen."""

    def started(self, waited_s: float | None) -> None:
        """Note a start; `waited_s` None: it is not the task's first."""
        if waited_s is not None:
            self.waits.append(max(waited_s, 0.0))

    def ended(self, its: Observed, after: After, seconds: float) -> None:
        """Note the end of an attempt."""
        if after.kind == "done":
            self.done += 1
        elif after.kind in _OWN:
            self.own += 1
            self.wasted_s += seconds
        elif after.kind in _FREE:
            self.neighbours += after.kind == "neighbour's memory"
            self.free += after.kind != "neighbour's memory"
            self.wasted_s += seconds

    def sample(self, gpus: Mapping[str, GpuSample], running: Mapping[int, Observed], now_s: float) -> None:
        """Add the time since the last sample."""
        before, self._at = self._at, now_s
        seconds = 0.0 if before is None else now_s - before
        counted = 0 < seconds <= GAP_S
        there: dict[str, list[Observed]] = {uuid: [] for uuid in self._gpus}
        for its in running.values():
            for uuid in its.start.gpus:
                there[uuid].append(its)
        self.seconds += seconds if counted else 0.0
        for uuid, facts in self._gpus.items():
            gpu, tasks = gpus.get(uuid), there[uuid]
            joules = self._joules(gpu)
            if not counted or gpu is None:
                continue
            self.busy_s += seconds if tasks else 0.0
            if facts.total_mib and gpu.used_mib is not None:
                self.memory_mib_s += facts.total_mib * seconds
                self.used_mib_s += gpu.used_mib * seconds
                booked = sum(max(its.reserved_mib, its.memory_mib.get(uuid, 0)) for its in tasks)
                self.booked_mib_s += min(booked, facts.total_mib) * seconds
            if gpu.sm_ratio is not None:
                self.sm_s += gpu.sm_ratio * seconds
                self.sm_over_s += seconds
            self.energy_j += joules
            if not tasks:
                self.idle_j += joules
            if len(tasks) == 1:
                tasks[0].was_alone(gpu, seconds)
                tasks[0].energy_j += joules

    def _joules(self, gpu: GpuSample | None) -> float:
        """Return what a GPU has used since its last sample; 0 where that is not known, or its counter began anew."""
        if gpu is None or gpu.energy_j is None:
            return 0.0
        before, self._energy[gpu.uuid] = self._energy.get(gpu.uuid), gpu.energy_j
        return 0.0 if before is None or gpu.energy_j < before else gpu.energy_j - before

    def sentences(self, folder: str) -> list[str]:
        """Return the sentences at the end of a node's run. `folder`: the run's, as its user writes it."""
        said = []
        if self.memory_mib_s:
            booked, used = (100 * one / self.memory_mib_s for one in (self.booked_mib_s, self.used_mib_s))
            busy = 100 * self.busy_s / (self.seconds * len(self._gpus))
            sm = f"; SM activity {self.sm_s / self.sm_over_s:.2f}" if self.sm_over_s else ""
            said.append(
                f"GPU memory booked {booked:.0f} %, used {used:.0f} %; GPUs with work {busy:.0f} % of the time{sm}"
            )
        lost = f"; wasted {span(self.wasted_s)}" if self.wasted_s else ""
        faults = f"; {self.free} ended by a neighbour's fault or a failed GPU" if self.free else ""
        said.append(f"out of GPU memory: {self.own} own, {self.neighbours} by a neighbour{faults}{lost}")
        if self.waits:
            total, middle = sum(self.waits) / len(self.waits), median(self.waits)
            said.append(f"a task waited {span(total)} for its start (median {span(middle)})")
        if self.energy_j:
            each = f", {_joules_text(self.energy_j / self.done)} a task that is done" if self.done else ""
            idle = f"; {_joules_text(self.idle_j)} of it while idle" if self.idle_j else ""
            said.append(f"energy {_joules_text(self.energy_j)}{each}{idle}")
        if self.learned:
            commands = "1 command" if len(self.learned) == 1 else f"{len(self.learned)} commands"
            said.append(f"learned the size of {commands}; next time --dry-run shows it")
        said.append(f"slurm-share pack explain {folder} TASK says why a task went where it did")
        return said


def span(seconds: float) -> str:
    """Return a duration as text: 4.2 s, 11 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _joules_text(joules: float) -> str:
    return f"{joules / 1e6:.2f} MJ" if joules >= 1e5 else f"{joules / 1e3:.1f} kJ"
