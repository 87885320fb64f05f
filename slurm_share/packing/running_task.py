"""Collect the samples of a running task for the user's history."""

from __future__ import annotations

from collections.abc import Mapping

from .decision_records import Start
from .history_records import TaskRun
from .records import EndKind, Estimate, GpuFacts, GpuSample, TaskAsk, TaskSample
from .rules.demand import Figures
from .rules.endings import MEMORY_KINDS
from .rules.loads import ALONE_S, Load
from .speed_records import Rate

AGES_S = (30, 60, 120, 300, 900)
"""Ages at which the peak so far is recorded, to learn how much a peak may still grow."""
ALONE_RATIO = 0.95
"""A task counts as alone if it had no neighbour for this part of its time."""


def signature(ask: TaskAsk) -> object:
    """Return a value that is equal for tasks that a decision treats alike, provided that their estimates are equal."""
    family = None if ask.key is None else ask.key.family
    return (family, ask.gpus, ask.gpu_mem_mib, ask.name)


class RunningTask:
    """One running attempt with the results of its samples."""

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
        """Peak on the GPU where it is largest."""
        self.peak_at: dict[int, int] = {}
        self.clients = 1
        self.is_flat = False
        """Its memory has stopped rising."""
        self.alone_s = 0.0
        self.energy_j = 0.0
        self.signature = signature(ask)
        self.is_plain = ask.key is not None and len(start.gpus) == 1 and not start.is_alone and attempt == 1
        """Another task of the same command may take its place without a decision of its own."""
        self.paused_s = 0.0
        """Total time for which it was paused."""
        self._paused_at_s: float | None = None
        self.rate: Rate | None = None
        """Since its neighbours last changed."""
        self.rate_alone: Rate | None = None
        """Measured in this attempt."""
        self.model_s = 0.0
        """The time alone that the model predicts for its time with neighbours."""
        self.measured_s = 0.0
        """The time alone for the part of its time in which its slowdown was measured or it was alone."""
        self.unmeasured_s = 0.0
        """The rest of its time."""
        self._is_load_reported = self._is_settled = False
        self._figures = Figures()
        """Figures while it was alone; after the plateau of its memory, only those since then."""

    def pause(self, now_s: float) -> None:
        if self._paused_at_s is None:
            self._paused_at_s = now_s

    @property
    def is_paused(self) -> bool:
        return self._paused_at_s is not None

    def resume(self, now_s: float) -> None:
        if self._paused_at_s is not None:
            self.paused_s += now_s - self._paused_at_s
            self._paused_at_s = None

    def see(self, sample: TaskSample, now_s: float) -> None:
        """Record the memory and processes of a sample."""
        self.memory_mib = sample.memory_mib
        self.clients = max(sample.clients, 1)
        peak = self.peak_mib = max(self.peak_mib or 0, *sample.memory_mib.values())
        age_s = now_s - self.started_s
        for age in AGES_S:
            if age_s <= age:
                self.peak_at[age] = peak

    def see_alone(self, gpu: GpuSample, seconds: float) -> None:
        """Record figures of its GPU while it was alone there."""
        self.alone_s += seconds
        self._figures.add(gpu, seconds)

    def was_alone(self, seconds: float) -> bool:
        """Return whether it had no neighbour for nearly all of its `seconds`."""
        return self.alone_s >= ALONE_RATIO * seconds > 0

    def settle(self) -> None:
        """Record that its memory is flat, and discard the figures of its warm-up."""
        if not self._is_settled:
            self._is_settled = True
            self._figures = Figures()

    def new_load(self) -> Load | None:
        """Return its load once, when it was alone for long enough after its warm-up; None: not now."""
        if self._is_load_reported or not self._is_settled or self._figures.seconds() < ALONE_S:
            return None
        self._is_load_reported = True
        sm, util, dram = (self._mean(name) for name in ("sm", "util", "dram"))
        return Load(
            sm_ratio=None if dram is None and sm == util else sm,
            util_ratio=util,
            dram_ratio=dram,
            pcie_ratio=self._mean("pcie"),
        )

    def _mean(self, name: str) -> float | None:
        mean = self._figures.mean(name)
        return None if mean is None else round(mean, 4)

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
        """Return the attempt as a record of the history. `probe_mib`: result of a dry run; None: there was none."""
        key, estimate = self.ask.key, self.estimate
        reached = {age: peak for age, peak in self.peak_at.items() if seconds >= age}
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
            is_censored=kind in MEMORY_KINDS,
            wanted_mib=wanted_mib,
            clients=self.clients,
            sm_ratio=self._mean("sm"),
            dram_ratio=self._mean("dram"),
            util_ratio=self._mean("util"),
            cpu_cores=cpu_cores,
            energy_j=round(self.energy_j, 3) if self.was_alone(seconds) and self.energy_j else None,
            software=software,
            rate_alone=None if self.rate_alone is None else self.rate_alone.per_s,
            rate_source="" if self.rate_alone is None else self.rate_alone.source,
            pcie_ratio=self._mean("pcie"),
        )
