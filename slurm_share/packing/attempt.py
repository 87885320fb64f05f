"""The one record of an attempt at a task, from its place in the queue to its end.

The loop makes it, the sampler and the meters of progress fill it, the board decides from it. What is written to files
and shown on screens is rendered from it: the frozen views of a decision, and the run in the user's history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from ..node.gpu_figures import GpuLoad
from .decision_records import Start
from .history_records import TaskRun
from .records import EndFacts, EndKind, Estimate, GpuFacts, RunningView, TaskAsk, Tries, WaitingView
from .rules.endings import MEMORY_KINDS
from .rules.loads import ALONE_S, Figures, make_load
from .rules.log_messages import wanted_mib
from .speed_records import Load, Rate, SharingMethod

AGES_S = (30, 60, 120, 300, 900)
"""Ages at which the peak so far is recorded, to learn how much a peak may still grow."""
ALONE_RATIO = 0.95
"""A task counts as alone if it had no neighbour for this part of its time."""


def signature_of(ask: TaskAsk) -> object:
    """Return a value that is equal for tasks that a decision treats alike, provided that their estimates are equal."""
    family = None if ask.key is None else ask.key.family
    size = ask.gpu_mem_mib, ask.gpu_mem_least_mib, ask.gpu_mem_percent
    return family, ask.gpus, size, ask.is_half, ask.workers, ask.host_mib, ask.name


UNKNOWN = Estimate(point_mib=None, safe_mib=None, source="unknown")


class Attempt(Struct, eq=False, kw_only=True):
    """One attempt at a task. Times `*_s` are seconds of the launcher's clock, which begins with the run."""

    # ---- What was asked, and what earlier attempts have shown ----
    ask: TaskAsk
    attempt: int = 1
    """Its number, from 1."""
    tries: Tries = Tries()
    floor_mib: int = 0
    """Known least need."""
    had_room_mib: int = 0
    """The room on the GPU of an earlier attempt when that ran out of memory."""
    not_on: tuple[str, ...] = ()
    """GPUs (UUIDs) on which an earlier attempt ran out of memory, or from which it was moved away."""
    wants_alone: bool = False
    """It needs a GPU to itself."""
    after: EndKind | None = None
    """How the attempt before it ended."""

    # ---- In the queue ----
    seq: int = 0
    """Its place: a retry keeps the place of the first attempt."""
    waits_since_s: float = 0.0
    estimates: tuple[tuple[str, Estimate], ...] = ()
    """(GPU model, estimate) for the models of the node."""
    loads: tuple[tuple[str, Load], ...] = ()
    """(GPU model, measured load of its command or family alone), as far as it is known and used."""
    is_new: bool = False
    """The rate of its command alone is not known, and may become known."""
    epoch: int = -1
    """The epoch of its family at its last estimate; -1: it was never estimated."""
    hopeless: str = ""
    """Why it is given up; empty: it is tried."""

    # ---- Where it runs ----
    worker: int = -1
    """The launcher's worker that provides its cores; -1: none yet."""
    more_workers: tuple[int, ...] = ()
    """Further workers whose cores it has too."""
    gpus: tuple[str, ...] = ()
    """UUIDs; empty: it waits."""
    started_s: float = 0.0
    estimate: Estimate = UNKNOWN
    """On its GPU's model, at its start."""
    start_mib: int = 0
    """Its reservation at its start, which JAX and TensorFlow are told to take at most."""
    reserved_mib: int = 0
    """On each of its GPUs."""
    granted_mib: int = 0
    """The reservation that had room; growth that found none is not in it."""
    due_mib: int | None = None
    """The new reservation that follows from its memory; None: no change."""
    cap_mib: int | None = None
    """For each of its processes; None: no cap."""
    least_mib: int | None = None
    """Memory of all its processes that the driver guarantees it; None: it guarantees none."""
    is_alone: bool = False
    """It has a GPU to itself; no task may join it."""
    sm_percent: float | None = None
    partition: str | None = None
    """Its static partition of multiprocessors; None: it has none."""
    sharing: SharingMethod | None = None
    neighbours: int = 0
    """Tasks on its GPUs when it started."""
    was_joined: bool = False
    """Another task of this launcher was on one of its GPUs."""
    ends_s: float | None = None
    can_move: bool = False
    is_moving: bool = False
    """It was told to save its state and end, to start on another GPU."""
    is_paused: bool = False
    pause_s: float = 0.0
    """When it was last paused or resumed; 0: never."""
    paused_s: float = 0.0
    """Total time for which it was paused."""

    # ---- Its process, in the launcher ----
    rank: int = 0
    log: str = ""
    log_start: int = 0
    """Offset in the log at which its output begins."""
    out: int = -1
    """Descriptor of the open log while it is being started."""
    pid: int = 0
    """The leader of its session; 0: it is being started."""
    started: float = 0.0
    """Unix time, seconds."""
    clock: float = 0.0
    """The same on the monotonic clock, seconds."""
    gpu: int | None = None
    """Position of its GPU among the node's GPUs; None: the GPU of its worker."""
    is_told_to_save: bool = False
    """It got the signal of --checkpoint-signal because it ends with its job."""
    turn_over: float = 0.0
    """Unix time at which it got that signal because its turn is over (--slot), seconds; 0: it did not."""
    keeps_turn: bool = False
    """It is not told so again: it did not save its state."""
    over_time_s: float | None = None
    """The time limit that it has exceeded, seconds; None: it has not, or it has none."""

    # ---- What was measured ----
    memory: Mapping[str, int] = {}
    """UUID -> memory of all its processes there, at its last sample."""
    memory_mib: int | None = None
    """The largest of them on its GPUs; None: not seen yet."""
    peak_mib: int | None = None
    """The largest `memory_mib`."""
    gpu_now_mib: int | None = None
    """The sum over all GPUs at the last sample; None: not seen."""
    gpu_peak_mib: int | None = None
    """The largest `gpu_now_mib`, for its result."""
    peaks: list[tuple[float, int]] = []
    """(time, MiB) of each new peak."""
    peak_at: dict[int, int] = {}
    """Age of AGES_S -> peak up to that age."""
    clients: int = 1
    """Number of its CUDA processes."""
    is_flat: bool = False
    """Its memory has stopped rising (the plateau)."""
    is_elastic: bool = False
    growth: float = 1.0
    """Factor by which its flat peak may still grow."""
    growth_at_s: float | None = None
    """Its age when `growth` was asked for."""
    host_mib: int | None = None
    alone_s: float = 0.0
    """Time without a neighbour."""
    figures: Figures | None = None
    """Figures of its GPU in that time; after the plateau of its memory, only those since then."""
    is_settled: bool = False
    is_told: bool = False
    """The other nodes of the run know its size."""
    is_load_reported: bool = False
    rate: Rate | None = None
    """Since its neighbours last changed."""
    rate_alone: Rate | None = None
    """Rate of its command alone on this GPU model."""
    own_rate_alone: Rate | None = None
    """Measured in this attempt."""
    load: Load | None = None
    """Measured load of its command or family alone on this GPU model."""
    alone_since_s: float | None = None
    """Since when no other task of this launcher has been on its GPU; None: another one is."""
    units: float | UnsetType = UNSET
    """Units of work that its program has done; this and the next three are for its result."""
    rate_per_s: float | UnsetType = UNSET
    rate_source: str | UnsetType = UNSET
    speed_ratio: float | UnsetType = UNSET
    energy_j: float | UnsetType = UNSET
    """Energy of its GPUs that it is charged with, joules, once it has ended; this and the next three are for its
    result (triples/launcher/task_use.py)."""
    energy_rule: str | UnsetType = UNSET
    gpu_sm_percent: float | UnsetType = UNSET
    gpu_idle_s: float | UnsetType = UNSET
    asked_mib: int | None = None
    """GPU memory of its last failed allocation, from its log; None: not known."""
    cpu_s: float | None = None
    """CPU time of its processes, once it has ended."""
    rss_mib: int | None = None
    """Peak memory of the largest of its processes, once it has ended; None: not known."""

    # ---- How it ended ----
    seconds: float = 0.0
    """Its duration, without pauses."""
    kind: EndKind = "unfinished"
    """Once it has ended."""
    why: str = ""
    """For the result and the log: "out of GPU memory (needed > 9.1 GiB, had 6.0 reserved)"."""
    is_retried: bool = False
    needs_mib: int | None = None
    """The known least need of GPU memory, once it has run out of it."""

    # ---- Rendered ----
    waiting_view: WaitingView | None = None
    """None: it has to be rendered again, as the next one."""
    running_view: RunningView | None = None

    def render_waiting(self) -> WaitingView:
        """Return the frozen view of a waiting task for a decision."""
        if self.waiting_view is None:
            self.waiting_view = WaitingView(**{**_fields(self, _OF_WAITING), "after": self.after or ""})
        return self.waiting_view

    def render_running(self) -> RunningView:
        """Return the frozen view of a running task for a decision."""
        if self.running_view is None:
            self.running_view = RunningView(**_fields(self, _OF_RUNNING))
        return self.running_view

    # ---- The start ----

    @property
    def task(self) -> int:
        """Return the number of its task."""
        return self.ask.task

    @property
    def family(self) -> str:
        """Return the family of its command; empty: not known."""
        return "" if self.ask.key is None else self.ask.key.family

    @property
    def is_plain(self) -> bool:
        """Return whether another task of the same command may take its place without a decision of its own."""
        return self.ask.key is not None and len(self.gpus) == 1 and not self.is_alone and self.attempt == 1

    @property
    def signature(self) -> object:
        """Return `signature_of` its task."""
        return signature_of(self.ask)

    def begin(self, start: Start, estimate: Estimate, now_s: float) -> None:
        """Record that a decision has started it."""
        self.gpus, self.started_s, self.estimate = start.gpus, now_s, estimate
        self.start_mib = self.reserved_mib = self.granted_mib = start.reserve_mib
        self.cap_mib, self.is_alone = start.cap_mib, start.is_alone
        self.sm_percent, self.sharing = start.sm_percent, start.sharing
        self.is_elastic, self.clients = estimate.is_elastic, max(estimate.processes, 1)
        self.ends_s = None if estimate.seconds is None else now_s + estimate.seconds
        self.running_view = None

    def relative_speed(self) -> float | None:
        """Return its speed over that of its command alone; None: not known."""
        return None if self.rate is None or self.rate_alone is None else self.rate.ratio_to(self.rate_alone)

    def set_paused(self, now_s: float, *, is_paused: bool) -> None:
        """Record that it is paused or resumed, and leave the time of a pause out of its own."""
        if self.is_paused and not is_paused:
            self.paused_s += now_s - self.pause_s
            if self.ends_s is not None:
                self.ends_s += now_s - self.pause_s
        self.is_paused, self.pause_s = is_paused, now_s
        self.running_view = None

    # ---- Samples ----

    def see(self, memory: Mapping[str, int], clients: int, now_s: float) -> bool:
        """Record a sample of its memory (UUID -> MiB) and its number of CUDA processes.

        Return whether it has shown memory so far. This is the one place where its peaks are computed.
        """
        here = max((mib for uuid, mib in memory.items() if not self.gpus or uuid in self.gpus), default=0)
        if here <= 0 and self.memory_mib is None:
            return False
        self.memory, self.memory_mib, self.clients = memory, here, max(clients, 1)
        self.gpu_now_mib = sum(memory.values())
        self.gpu_peak_mib = max(self.gpu_peak_mib or 0, self.gpu_now_mib)
        peak = self.peak_mib = max(self.peak_mib or 0, here)
        if not self.peaks or peak > self.peaks[-1][1]:
            self.peaks.append((now_s, peak))
        age_s = now_s - self.started_s
        for age in AGES_S:
            if age_s <= age:
                self.peak_at[age] = peak
        return True

    def see_alone(self, gpu: GpuLoad, seconds: float) -> None:
        """Record figures of its GPU while it was alone there."""
        self.alone_s += seconds
        if self.figures is None:
            self.figures = Figures()
        self.figures.add(gpu, seconds)

    def was_alone(self, seconds: float) -> bool:
        """Return whether it had no neighbour for nearly all of its `seconds`."""
        return self.alone_s >= ALONE_RATIO * seconds > 0

    def settle(self) -> None:
        """Record that its memory is flat, and discard the figures of its warm-up."""
        if not self.is_settled:
            self.is_settled, self.figures = True, None

    def new_load(self) -> Load | None:
        """Return its load once, when it was alone for long enough after its warm-up; None: not now."""
        if self.is_load_reported or not self.is_settled or self.figures is None or self.figures.seconds() < ALONE_S:
            return None
        self.is_load_reported = True
        return make_load(*(self._mean(name) for name in ("sm", "util", "dram")))

    def _mean(self, name: str) -> float | None:
        mean = None if self.figures is None else self.figures.mean(name)
        return None if mean is None else round(mean, 4)

    # ---- The end ----

    def again(self, *, now_s: float, tries: Tries) -> Attempt:
        """Return the next attempt at the task, which waits in the same place of the queue."""
        return Attempt(
            ask=self.ask,
            attempt=self.attempt + 1,
            tries=tries,
            floor_mib=self.floor_mib,
            had_room_mib=self.had_room_mib,
            not_on=self.not_on,
            wants_alone=self.wants_alone,
            after=self.kind,
            seq=self.seq,
            waits_since_s=now_s,
            estimates=self.estimates,
            loads=self.loads,
            is_new=self.is_new,
            hopeless=self.hopeless,
            keeps_turn=self.keeps_turn,
        )

    def run(
        self,
        facts: EndFacts,
        gpu: GpuFacts,
        *,
        unix_s: float,
        sharing: str,
        software: str,
        cpu_cores: float | None,
        probe_mib: float | None,
    ) -> TaskRun:
        """Return the ended attempt as a line of the user's history. `probe_mib`: of a dry run; None: there was none."""
        key, estimate, kind, seconds = self.ask.key, self.estimate, self.kind, self.seconds
        is_own = kind in MEMORY_KINDS
        return TaskRun(
            when=unix_s,
            exact="" if key is None else key.exact,
            family="" if key is None else key.family,
            series="" if key is None else key.series,
            script="" if key is None else key.script,
            numbers=() if key is None else key.numbers,
            gpu_model=gpu.model,
            gpu_total_mib=gpu.total_mib,
            sharing=sharing,
            kind=kind,
            seconds=round(seconds, 3),
            alone_seconds=round(self.alone_s, 3),
            peak_mib=self.peak_mib,
            peak_at_mib=tuple(sorted((age, peak) for age, peak in self.peak_at.items() if seconds >= age)),
            reserved_mib=self.reserved_mib,
            cap_mib=self.cap_mib,
            source=estimate.source,
            estimate_mib=estimate.point_mib,
            safe_mib=estimate.safe_mib,
            probe_mib=None if probe_mib is None else round(probe_mib),
            is_elastic=self.is_elastic,
            is_censored=is_own,
            wanted_mib=wanted_mib(facts.log_tail, self.peak_mib) if is_own else None,
            clients=1 if self.memory_mib is None else self.clients,
            sm_ratio=self._mean("sm"),
            dram_ratio=self._mean("dram"),
            util_ratio=self._mean("util"),
            cpu_cores=cpu_cores,
            energy_j=(self.energy_j or None) if self.energy_j is not UNSET and self.was_alone(seconds) else None,
            software=software,
            rate_alone=None if self.own_rate_alone is None else self.own_rate_alone.per_s,
            rate_source="" if self.own_rate_alone is None else self.own_rate_alone.source,
        )


_OF_WAITING, _OF_RUNNING = WaitingView.__struct_fields__, RunningView.__struct_fields__


def _fields(its: Attempt, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of an attempt that a view has under the same names."""
    return {name: getattr(its, name) for name in names}
