"""The totals of one job on one node while it runs, and the records that are made of them.

They are plain values that can be stored: the next agent of the same boot goes on with them (`job_use.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field

from ...core.records import Reasons
from ...node.readings import ProcessNow
from ...usage import Charge, GpuEnergy, GpuUse, JobUse, Sources, TaskUse, add_charges
from ..snapshot import ProcessLoad
from .sums import UNREPORTED

NOT_SEEN = "no process of the job was on a GPU while it was measured, and Slurm did not tell its GPUs"
LATE = "the agent began after the job"
NO_TASK = "only their user and root can read which of the job's processes are a task"
NO_SLOT = "only its user and root can read its environment; its results and the launcher have it"


Key = tuple[int, str, str]
"""Whom energy is charged to: the number of the job's totals here, the task's key, the GPU or MIG instance."""


class Mean(Struct):
    """A mean over the time in which the figure was known."""

    sum: float = 0.0
    seconds: float = 0.0

    def add(self, value: float | None, seconds: float) -> None:
        """Add a figure that stands for so many seconds; None: not known."""
        if value is not None:
            self.sum += value * seconds
            self.seconds += seconds

    @property
    def value(self) -> float | None:
        """Return the mean; None: it was never known."""
        return self.sum / self.seconds if self.seconds > 0 else None


class Counter(Struct):
    """A counter that may start again from 0, as a cgroup's that was made anew."""

    before: float = 0.0
    last: float | None = None

    def add(self, value: float | None) -> None:
        """Note the counter's present value; None: not known now."""
        if value is None:
            return
        if self.last is not None and value < self.last:
            self.before += self.last
        self.last = value

    @property
    def value(self) -> float | None:
        """Return the sum; None: it was never known."""
        return None if self.last is None else self.before + self.last


class StepCounters(Struct):
    """The sum of counters of steps that come and go."""

    gone: float = 0.0
    there: dict[str, Counter] | None = None

    def add(self, now: Mapping[str, float] | None) -> None:
        """Note the present values; None: not known now."""
        if now is None:
            return
        kept = self.there or {}
        self.gone += sum(one.value or 0.0 for key, one in kept.items() if key not in now)
        self.there = {key: kept.get(key, Counter()) for key in now}
        for key, value in now.items():
            self.there[key].add(value)

    @property
    def value(self) -> float | None:
        """Return the sum; None: nothing was ever known."""
        if self.there is None:
            return None
        return self.gone + sum(one.value or 0.0 for one in self.there.values())


class GpuTotals(Struct, kw_only=True):
    """The use of one GPU or MIG instance by a job so far."""

    uuid: str
    index: int | None = None
    name: str = ""
    simulated: bool = False
    memory_total_mib: int | None = None
    measured_s: float = 0.0
    utilization: Mean = field(default_factory=Mean)
    sm: Mean = field(default_factory=Mean)
    dram: Mean = field(default_factory=Mean)
    own_sm: Mean = field(default_factory=Mean)
    memory_peak_mib: int | None = None
    memory_cap_mib: int | None = None
    idle_s: float = 0.0
    idle_run_s: float = 0.0
    idle_longest_s: float = 0.0
    idle_unknown_s: float = 0.0
    was_shared: bool = False
    charge: Charge = Charge()
    device_mj: int | None = None
    unattributed_mj: int = 0
    unknown: Reasons = {}
    """Reasons of the last sample for figures that the driver did not tell."""

    def note_idle(self, is_idle: bool | None, seconds: float) -> None:
        """Add an interval in which the job used the GPU or did not; None: not known."""
        if is_idle is None:
            self.idle_unknown_s += seconds
        self.idle_run_s = self.idle_run_s + seconds if is_idle else 0.0
        if is_idle:
            self.idle_s += seconds
            self.idle_longest_s = max(self.idle_longest_s, self.idle_run_s)

    def use(self, held_s: float | None) -> GpuUse:
        """Return the record of it."""
        known: dict[str, float | int | bool | None] = {
            "utilization_percent": rounded(self.utilization.value),
            "sm_percent": rounded(self.sm.value),
            "dram_percent": rounded(self.dram.value),
            "own_sm_percent": rounded(self.own_sm.value),
            "memory_total_mib": self.memory_total_mib,
            "memory_peak_mib": self.memory_peak_mib,
            "memory_cap_mib": self.memory_cap_mib,
            "idle_s": rounded(self.idle_s),
            "idle_longest_s": rounded(self.idle_longest_s),
            "was_shared": self.was_shared,
        }
        unknown = {}
        if self.idle_unknown_s > self.measured_s / 2:
            known["idle_s"] = known["idle_longest_s"] = None
        if not self.measured_s:
            known["was_shared"] = known["idle_s"] = known["idle_longest_s"] = None
        of = {"sm_percent": "activity", "dram_percent": "activity", "own_sm_percent": "sm_time_percent"}
        for name, value in known.items():
            if value is None:
                why = self.unknown.get(of.get(name, name), UNREPORTED)
                unknown[name] = "only one sample of the job" if not self.measured_s else why
        if self.memory_cap_mib is None:
            unknown["memory_cap_mib"] = "only the tasks' user and root can read it"
        energy = None
        if self.device_mj is None:
            unknown["energy"] = unknown["device_j"] = self.unknown.get("energy_j", UNREPORTED)
        else:
            energy = self.charge.use()
        by: Sources = {name: "agent" for name, value in known.items() if value is not None}
        if energy is not None:
            by |= {"energy": "agent", "device_j": "agent"}
        return GpuUse(
            uuid=self.uuid,
            index=self.index,
            name=self.name,
            simulated=self.simulated,
            held_s=held_s,
            measured_s=rounded(self.measured_s),
            energy=energy,
            device_j=None if self.device_mj is None else self.device_mj / 1000,
            by=by,
            unknown=unknown,
            **known,  # type: ignore[arg-type]
        )


class TaskTotals(Struct, kw_only=True):
    """The use by one Slurm task of a job so far, from its processes on GPUs."""

    task: int
    step: str
    began: float
    ended: float
    slot: int | None = None
    cpu: StepCounters = field(default_factory=StepCounters)
    memory_peak_mib: int | None = None
    gpus: dict[str, GpuTotals] = field(default_factory=dict)

    def use(self) -> TaskUse:
        """Return the record of it."""
        cpu_s = self.cpu.value
        by: Sources = {"seconds": "agent"}
        if cpu_s is not None:
            by["cpu_s"] = "agent"
        if self.memory_peak_mib is not None:
            by["memory_peak_mib"] = "agent"
        return TaskUse(
            task=self.task,
            step=self.step,
            slot=self.slot,
            began=self.began,
            seconds=self.ended - self.began,
            cpu_s=cpu_s,
            memory_peak_mib=self.memory_peak_mib,
            gpus=tuple(gpu.use(None) for gpu in self.gpus.values()),
            by=by,
            unknown={} if self.slot is not None else {"slot": NO_SLOT},
        )


class JobTotals(Struct, kw_only=True):
    """The use by one start of a job on this node so far."""

    number: int
    """Number of these totals in the keys of energy. It rises with each start of a job."""
    job: int
    uid: int
    user: str
    node: str
    start: str = ""
    """As `GroupUse.start`."""
    restarts: int | None = None
    began: float | None = None
    """Unix time; None: before the agent's first sample."""
    is_told: bool = False
    """`began` is from Slurm or the ledger: it is taken once, as two readings differ by some milliseconds."""
    seen_first: float
    """Unix time of the first and the last sample with it."""
    seen_last: float
    ended: float | None = None
    measured_s: float = 0.0
    share: int | None = None
    slots: int | None = None
    sharing: str | None = None
    cpus: int | None = None
    has_cgroup: bool = False
    """The CPU time is its cgroup's, not that of the processes below its steps."""
    cpu: StepCounters = field(default_factory=StepCounters)
    llload: StepCounters = field(default_factory=StepCounters)
    cpu_wait: Counter = field(default_factory=Counter)
    io_wait: Counter = field(default_factory=Counter)
    memory_limit_mib: int | None = None
    memory_peak_mib: int | None = None
    memory_kills: int | None = None
    gpus: dict[str, GpuTotals] = field(default_factory=dict)
    tasks: dict[str, TaskTotals] = field(default_factory=dict)
    unknown: Reasons = {}

    def use(self) -> JobUse:
        """Return the record of it."""
        cpu_s = self.cpu.value
        if cpu_s is not None:
            cpu_s = max(0.0, cpu_s - (self.llload.value or 0.0))
        figures = {
            "cpu_s": cpu_s,
            "cpu_wait_s": self.cpu_wait.value,
            "io_wait_s": self.io_wait.value,
            "memory_limit_mib": self.memory_limit_mib,
            "memory_peak_mib": self.memory_peak_mib,
            "memory_kills": self.memory_kills,
        }
        unknown = {name: self.unknown.get(name, UNREPORTED) for name, value in figures.items() if value is None}
        unknown |= {name: why for name, why in self.unknown.items() if name in ("ended", "tasks")}
        if self.began is None:
            unknown["began"] = LATE
        if self.restarts is None:
            unknown["restarts"] = "Slurm was not asked: the job was here for less than a minute, or it has no share"
        if not self.gpus:
            unknown["gpus"] = NOT_SEEN
        by: Sources = {name: "cgroup" for name, value in figures.items() if value is not None}
        by |= {"measured_s": "agent"}
        if self.memory_peak_mib is not None:
            by["memory_peak_mib"] = "agent"
        if "cpu_s" in by and not self.has_cgroup:
            by["cpu_s"] = "agent"
        held_s = None if self.began is None else (self.ended or self.seen_last) - self.began
        return JobUse(
            job=self.job,
            restarts=self.restarts,
            uid=self.uid,
            node=self.node,
            began=self.began,
            ended=self.ended,
            measured_s=rounded(self.measured_s),
            share=self.share,
            slots=self.slots,
            sharing=self.sharing,
            cpus=self.cpus,
            gpus=tuple(gpu.use(held_s) for gpu in self.gpus.values()),
            tasks=tuple(task.use() for task in self.tasks.values()),
            others=tuple(
                GpuEnergy(uuid=gpu.uuid, unattributed_j=gpu.unattributed_mj / 1000, total_j=gpu.device_mj / 1000)
                for gpu in self.gpus.values()
                if gpu.device_mj is not None
            ),
            by=by,
            unknown=unknown,
            **figures,  # type: ignore[arg-type]
        )

    @property
    def charge(self) -> Charge:
        """Return the energy that it is charged with on all GPUs."""
        return add_charges(gpu.charge for gpu in self.gpus.values())


class JobProcess(NamedTuple):
    """A process on GPUs: its record, the kernel's reading, and the totals of its job; None: it is in no job."""

    shown: ProcessLoad
    read: ProcessNow
    totals: JobTotals | None

    def key(self, uuid: str) -> Key | None:
        """Return whom to charge for it on that GPU; None: nobody."""
        return None if self.totals is None else (self.totals.number, self.read.task_key, uuid)


def rounded(value: float | None) -> float | None:
    """Return the figure with three digits: a microsecond more is no more exact."""
    return None if value is None else round(value, 3)
