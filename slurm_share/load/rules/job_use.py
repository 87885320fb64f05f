"""Add up what each job on a node uses, from the readings of its sampler: the records that stay after its end.

`NodeUse.add` gets each sample; it is pure. A job's totals can be stored and go on in another agent of the same boot
(`StoredJob`). What the kernel counts for a job's cgroup (CPU time, waiting) is from the start of the job, also if the
agent came later; all else is over the time in which there are samples, `measured_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from ...core.records import Reasons
from ...mps.records import MPS_NAME
from ...node.readings import DriverNow, GpuNow, HostNow, JobNow, ProcessNow
from ...usage.records import GpuEnergy, GpuUse, JobUse, Sources, TaskUse, UseSeries
from ...usage.rules.energy import Charge, GpuMoment, Holder, Meter, MigInstance, add_charges, mig_holders, slices_of
from ...usage.series import GpuSample, Recorder
from ..snapshot import GpuLoad, JobLoad, ProcessLoad, Snapshot
from .fold import GAP_S
from .sums import UNREPORTED, add_up, most

KEPT_S = 900.0
"""Seconds for which an ended job may go on: between two steps of an allocation nothing of it is on the node."""
MOST_TASKS = 512
"""Most tasks of a job's record; the first ones are kept."""
MOST_ENDED = 256
"""Most ended jobs that may go on."""
NOT_SEEN = "no process of the job was on a GPU while it was measured, and Slurm did not tell its GPUs"
LATE = "the agent began after the job"
ENDED_AWAY = "the agent was away when the job ended; it was last seen at this time"
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
    """What a job has used of one GPU or MIG instance so far."""

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
            "utilization_percent": _rounded(self.utilization.value),
            "sm_percent": _rounded(self.sm.value),
            "dram_percent": _rounded(self.dram.value),
            "own_sm_percent": _rounded(self.own_sm.value),
            "memory_total_mib": self.memory_total_mib,
            "memory_peak_mib": self.memory_peak_mib,
            "memory_cap_mib": self.memory_cap_mib,
            "idle_s": _rounded(self.idle_s),
            "idle_longest_s": _rounded(self.idle_longest_s),
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
            measured_s=_rounded(self.measured_s),
            energy=energy,
            device_j=None if self.device_mj is None else self.device_mj / 1000,
            by=by,
            unknown=unknown,
            **known,  # type: ignore[arg-type]
        )


class TaskTotals(Struct, kw_only=True):
    """What one Slurm task of a job has used so far, by its processes on GPUs."""

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
    """What one start of a job has used on this node so far."""

    number: int
    """Of these totals, in the keys of energy. It rises with each start of a job."""
    job: int
    uid: int
    user: str
    node: str
    start: str = ""
    """As `GroupUse.start`."""
    restarts: int | None = None
    began: float | None = None
    """Unix time; None: before the agent's first sample."""
    seen_first: float
    """Unix time of the first and the last sample with it."""
    seen_last: float
    ended: float | None = None
    measured_s: float = 0.0
    share: int | None = None
    slots: int | None = None
    cpus: int | None = None
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
        if "ended" in self.unknown:
            unknown["ended"] = self.unknown["ended"]
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
        held_s = None if self.began is None else (self.ended or self.seen_last) - self.began
        return JobUse(
            job=self.job,
            restarts=self.restarts,
            uid=self.uid,
            node=self.node,
            began=self.began,
            ended=self.ended,
            measured_s=_rounded(self.measured_s),
            share=self.share,
            slots=self.slots,
            cpus=self.cpus,
            gpus=tuple(gpu.use(held_s) for gpu in self.gpus.values()),
            tasks=tuple(task.use() for task in self.tasks.values()),
            others=tuple(
                GpuEnergy(
                    uuid=gpu.uuid, unattributed_j=gpu.unattributed_mj / 1000, total_j=gpu.device_mj / 1000
                )
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


class JobFacts(NamedTuple):
    """What Slurm or the ledger tells of a job here."""

    restarts: int | None = None
    began: float | None = None


class StoredJob(Struct, frozen=True):
    """A running job's totals and course, for the next agent of this boot."""

    boot_id: str
    totals: JobTotals
    series: UseSeries


class StoredMeter(Struct, frozen=True, kw_only=True):
    """One GPU's last reading and what is nobody's, for the next agent of this boot."""

    at_s: float
    counter_mj: int | None
    power_w: float | None
    unattributed_mj: int = 0


class JobRecord(Struct, frozen=True):
    """One start of a job on this node: what it used, and its course."""

    use: JobUse
    series: UseSeries


class _Running(NamedTuple):
    totals: JobTotals
    recorder: Recorder


class _Process(NamedTuple):
    """A process on GPUs: its record, the kernel's reading, and the totals of its job."""

    shown: ProcessLoad
    read: ProcessNow
    totals: JobTotals | None

    def key(self, uuid: str) -> Key | None:
        return None if self.totals is None else (self.totals.number, self.read.task_key, uuid)


class NodeUse:
    """The totals of the jobs on one node. Used by one thread at a time."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.boot_id = ""
        self.user_mj: dict[int, int] = {}
        """User -> energy of all jobs since the first agent of this boot, also of ended ones."""
        self.unattributed_mj: dict[str, int] = {}
        self._meter: Meter[Key] = Meter()
        self._running: dict[tuple[int, int], _Running] = {}
        """By (job, uid)."""
        self._recent: dict[tuple[int, int], _Running] = {}
        """Ended less than KEPT_S ago, the oldest first."""
        self._on: dict[str, dict[int, Key | None]] = {}
        """GPU -> pid -> whom it belonged to at the last sample."""
        self._number = 0
        self._at: float | None = None

    # ---- over a restart of the agent ----

    def restore(self, boot_id: str, jobs: Iterable[StoredJob], gpus: Mapping[str, StoredMeter]) -> list[JobRecord]:
        """Go on with what an earlier agent has stored. Return the records of jobs of an earlier boot, which are over."""
        self.boot_id = boot_id
        over = []
        for one in jobs:
            totals = one.totals
            if one.boot_id != boot_id:
                totals.ended = totals.seen_last
                totals.unknown = {**totals.unknown, "ended": "the node was booted; it was last seen at this time"}
                over.append(JobRecord(totals.use(), one.series))
                continue
            self._number = max(self._number, totals.number)
            recorder = Recorder(job=totals.job, uid=totals.uid, node=totals.node, before=one.series)
            self._running[totals.job, totals.uid] = _Running(totals, recorder)
        self.user_mj = {}
        for running in self._running.values():
            uid = running.totals.uid
            self.user_mj[uid] = self.user_mj.get(uid, 0) + running.totals.charge.mj
        for uuid, stored in gpus.items():
            self._meter.resume(uuid, at_s=stored.at_s, counter_mj=stored.counter_mj, power_w=stored.power_w)
            self.unattributed_mj[uuid] = stored.unattributed_mj
        return over

    def stored_jobs(self) -> dict[tuple[int, int], StoredJob]:
        """Return what the next agent needs of each running job, by (job, uid)."""
        return {
            key: StoredJob(self.boot_id, one.totals, one.recorder.series()) for key, one in self._running.items()
        }

    def stored_gpus(self) -> dict[str, StoredMeter]:
        """Return what the next agent needs of each GPU."""
        return {
            uuid: StoredMeter(
                at_s=gpu.at_s,
                counter_mj=gpu.counter_mj,
                power_w=gpu.power_w,
                unattributed_mj=self.unattributed_mj.get(uuid, 0),
            )
            for uuid, gpu in self._meter.gpus.items()
            if gpu.at_s is not None
        }

    # ---- answers ----

    def records(self, job: int) -> list[JobRecord]:
        """Return the records of the running starts of a job, and of those that have ended lately."""
        both = (*self._running.items(), *self._recent.items())
        return [JobRecord(one.totals.use(), one.recorder.series()) for key, one in both if key[0] == job]

    def filled(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the energy of jobs, of users and of nobody."""
        if not self._meter.gpus:
            return snapshot

        def joules(mj: int | None) -> float | None:
            return None if mj is None else mj / 1000

        def of_job(job: JobLoad) -> JobLoad:
            found = self._running.get((job.job, job.uid))
            if found is None or any(gpu.device_mj is None for gpu in found.totals.gpus.values()):
                return job
            unknown = {name: why for name, why in job.unknown.items() if name != "energy_j"}
            return replace(job, energy_j=found.totals.charge.mj / 1000, unknown=unknown)

        return replace(
            snapshot,
            jobs=tuple(of_job(job) for job in snapshot.jobs),
            users=tuple(replace(user, energy_j=joules(self.user_mj.get(user.uid, 0))) for user in snapshot.users),
            gpus=tuple(
                replace(gpu, unattributed_energy_j=joules(self.unattributed_mj.get(gpu.uuid)))
                for gpu in snapshot.gpus
            ),
        )

    # ---- a sample ----

    def add(
        self,
        host: HostNow,
        driver: DriverNow,
        snapshot: Snapshot,
        facts: Callable[[int, int], JobFacts] = lambda _job, _uid: JobFacts(),
    ) -> list[JobRecord]:
        """Add a sample; return the records of the jobs that have ended since the last one.

        `host`, `driver`: the readings from which `snapshot` was made, to which the GPUs that Slurm gave were added.
        """
        self.boot_id = host.boot_id
        dt = 0.0 if snapshot.interval_s is None or snapshot.interval_s > GAP_S else snapshot.interval_s
        seen = {(job.job, job.uid): job for job in host.jobs}
        for load in snapshot.jobs:
            key = load.job, load.uid
            fact = facts(*key)
            running = self._running_of(key, load, seen.get(key), fact, host.taken)
            _add_job(running.totals, load, seen.get(key), fact, host.taken, dt)
        ended = self._end(frozenset((job.job, job.uid) for job in snapshot.jobs), host.taken)
        processes = [
            _Process(shown, read, self._totals_of(shown))
            for shown, read in zip(snapshot.processes, host.processes, strict=True)
            if not shown.name.startswith(MPS_NAME)
        ]
        self._add_gpus(snapshot, driver, host, processes, dt)
        self._add_tasks(processes, snapshot, host.taken, dt)
        self._charge(snapshot, driver, host, processes)
        self._record(snapshot, processes, host.taken)
        self._at = host.at
        return [JobRecord(one.totals.use(), one.recorder.finish()) for one in ended]

    def _totals_of(self, process: ProcessLoad) -> JobTotals | None:
        found = None if process.job is None else self._running.get((process.job, process.uid))
        return None if found is None else found.totals

    def _running_of(
        self, key: tuple[int, int], load: JobLoad, job: JobNow | None, fact: JobFacts, taken: float
    ) -> _Running:
        start = "" if job is None else job.use.start
        found = self._running.get(key)
        if found is not None and _is_same(found.totals, start, fact):
            return found
        if found is not None:  # another start of it, so fast that no sample was without it
            self._recent[key] = self._running.pop(key)
            found.totals.ended = taken
        back = self._recent.get(key)
        if back is not None and _is_same(back.totals, start, fact) and taken - back.totals.seen_last <= KEPT_S:
            self._running[key] = self._recent.pop(key)
            back.totals.ended = None
            return back
        self._number += 1
        totals = JobTotals(
            number=self._number,
            job=load.job,
            uid=load.uid,
            user=load.user,
            node=self.node,
            start=start,
            began=taken if self._at is not None else None,
            seen_first=taken,
            seen_last=taken,
        )
        made = self._running[key] = _Running(totals, Recorder(job=load.job, uid=load.uid, node=self.node))
        return made

    def _end(self, there: frozenset[tuple[int, int]], taken: float) -> list[_Running]:
        ended = []
        for key in [key for key in self._running if key not in there]:
            one = self._running.pop(key)
            one.totals.ended = taken
            if taken - one.totals.seen_last > GAP_S:
                one.totals.ended = one.totals.seen_last
                one.totals.unknown = {**one.totals.unknown, "ended": ENDED_AWAY}
            self._recent.pop(key, None)
            self._recent[key] = one
            ended.append(one)
        self._recent = {
            key: one for key, one in self._recent.items() if taken - one.totals.seen_last <= KEPT_S
        }
        while len(self._recent) > MOST_ENDED:
            self._recent.pop(next(iter(self._recent)))
        return ended

    # ---- GPUs ----

    def _add_gpus(
        self, snapshot: Snapshot, driver: DriverNow, host: HostNow, processes: Sequence[_Process], dt: float
    ) -> None:
        gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
        reasons = {gpu.uuid: gpu.unknown for gpu in driver.gpus}
        on: dict[str, list[_Process]] = {}
        for process in processes:
            for use in process.shown.gpus:
                on.setdefault(use.uuid, []).append(process)
        before = {uuid: {key[0] for key in pids.values() if key is not None} for uuid, pids in self._on.items()}
        for load in snapshot.jobs:
            running = self._running.get((load.job, load.uid))
            if running is None:
                continue
            totals = running.totals
            for uuid in dict.fromkeys((*(load.granted or ()), *load.gpus)):
                gpu = gpus.get(uuid)
                if gpu is None:
                    continue
                its = totals.gpus.get(uuid)
                if its is None:
                    its = totals.gpus[uuid] = _first(gpu, totals, uuid in (load.granted or ()), dt)
                there = on.get(uuid, [])
                own = [one for one in there if one.totals is totals]
                its.unknown = reasons.get(uuid, {})
                _add_gpu(its, gpu, own, dt, was_on=totals.number in before.get(uuid, set()), alone=len(own) == len(there))
                its.was_shared = its.was_shared or (bool(own) and len(own) < len(there))

    def _add_tasks(self, processes: Sequence[_Process], snapshot: Snapshot, taken: float, dt: float) -> None:
        gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
        by_task: dict[tuple[int, str], list[_Process]] = {}
        for process in processes:
            if process.totals is not None and process.shown.task is not None and process.shown.step is not None:
                by_task.setdefault((process.totals.number, process.read.task_key), []).append(process)
        for (_, key), own in by_task.items():
            first, totals = own[0], own[0].totals
            assert totals is not None
            task = totals.tasks.get(key)
            if task is None:
                if len(totals.tasks) >= MOST_TASKS:
                    totals.unknown = {**totals.unknown, "tasks": f"only the first {MOST_TASKS} are kept"}
                    continue
                task = totals.tasks[key] = TaskTotals(
                    task=first.shown.task or 0, step=first.shown.step or "", began=taken - dt, ended=taken
                )
            task.ended = taken
            task.slot = next((one.shown.slot for one in own if one.shown.slot is not None), task.slot)
            task.cpu.add({f"{one.read.pid}.{one.read.start_ticks}": one.read.cpu_s for one in own})
            task.memory_peak_mib = most(task.memory_peak_mib, add_up(one.read.own_mib for one in own))
            for uuid in dict.fromkeys(use.uuid for one in own for use in one.shown.gpus):
                gpu = gpus.get(uuid)
                if gpu is None:
                    continue
                its = task.gpus.get(uuid)
                if its is None:
                    its = task.gpus[uuid] = GpuTotals(uuid=uuid, index=gpu.index, name=gpu.name, simulated=gpu.simulated)
                there = [one for one in own if any(use.uuid == uuid for use in one.shown.gpus)]
                others = any(
                    one.read.task_key != key or one.totals is not totals
                    for one in processes
                    if any(use.uuid == uuid for use in one.shown.gpus)
                )
                _add_gpu(its, gpu, there, dt, was_on=True, alone=not others)
                its.was_shared = its.was_shared or others

    # ---- energy ----

    def _charge(
        self, snapshot: Snapshot, driver: DriverNow, host: HostNow, processes: Sequence[_Process]
    ) -> None:
        """Charge the energy since the last sample, and note who is on the GPUs now."""
        used = {
            gpu.uuid: {one.pid: one.sm_time_percent for one in gpu.process_sm}
            for gpu in driver.gpus
            if gpu.process_sm is not None
        }
        shown = {(process.read.pid, use.uuid): use.sm_time_percent for process in processes for use in process.shown.gpus}
        now: dict[str, dict[int, Key | None]] = {}
        known = {process.read.pid: process for process in processes}
        servers = {one.pid for one in host.processes if one.name.startswith(MPS_NAME)}
        for gpu in driver.gpus:
            now[gpu.uuid] = {
                one.pid: known[one.pid].key(gpu.uuid) if one.pid in known else None
                for one in gpu.processes or ()
                if one.pid not in servers
            }
        holders = {
            gpu.uuid: _holders(
                self._on.get(gpu.uuid, {}),
                now[gpu.uuid],
                {pid: shown.get((pid, gpu.uuid), sm) for pid, sm in _sm_of(gpu, now, self._on, used).items()},
                self._at,
                host.at,
                self._only_job(gpu.uuid, snapshot),
            )
            for gpu in driver.gpus
        }
        totals_before = {uuid: (gpu.total_mj, gpu.unattributed_mj) for uuid, gpu in self._meter.gpus.items()}
        moments = []
        for gpu in driver.gpus:
            if gpu.mig_of is not None:
                continue
            own = holders[gpu.uuid]
            if gpu.mig_parent:
                parts = [
                    MigInstance(
                        slices=slices_of(one.name), sm_percent=one.activity.sm_percent, holders=holders[one.uuid]
                    )
                    for one in driver.gpus
                    if one.mig_of == gpu.uuid
                ]
                own = [*own, *mig_holders(parts)]
            moments.append(
                GpuMoment(
                    uuid=gpu.uuid,
                    name=gpu.name,
                    counter_mj=None if gpu.energy_j is None else round(1000 * gpu.energy_j),
                    power_w=gpu.power_w,
                    holders=own,
                    is_empty=gpu.processes is not None and not gpu.processes and not own,
                )
            )
        self._meter.add(host.at, moments)
        keys = {one.key for of_gpu in holders.values() for one in of_gpu if one.key is not None}
        self._take(keys)
        parents = {gpu.uuid: gpu.mig_of or gpu.uuid for gpu in driver.gpus}
        self._add_devices(parents, totals_before)
        self._on = now

    def _only_job(self, uuid: str, snapshot: Snapshot) -> Key | None:
        """Return whom to charge for a process that came and went between two samples: the only job that has the GPU."""
        having = [job for job in snapshot.jobs if uuid in job.gpus or uuid in (job.granted or ())]
        found = self._running.get((having[0].job, having[0].uid)) if len(having) == 1 else None
        return None if found is None else (found.totals.number, "", uuid)

    def _take(self, keys: Iterable[Key]) -> None:
        by_number = {
            one.totals.number: one.totals for one in (*self._running.values(), *self._recent.values())
        }
        for key in keys:
            number, task_key, uuid = key
            charged = add_charges(self._meter.take(key).values())
            totals = by_number.get(number)
            if not charged.mj or totals is None:
                continue
            self.user_mj[totals.uid] = self.user_mj.get(totals.uid, 0) + charged.mj
            its = totals.gpus.get(uuid)
            if its is not None:
                its.charge = add_charges((its.charge, charged))
            task = totals.tasks.get(task_key)
            if task is not None and uuid in task.gpus:
                task.gpus[uuid].charge = add_charges((task.gpus[uuid].charge, charged))

    def _add_devices(self, parents: Mapping[str, str], before: Mapping[str, tuple[int, int]]) -> None:
        """Add each GPU's energy of the interval to the jobs that have it, and what was nobody's."""
        rises = {}
        for uuid, gpu in self._meter.gpus.items():
            total, unattributed = before.get(uuid, (0, 0))
            if gpu.measured_s:
                rises[uuid] = gpu.total_mj - total, gpu.unattributed_mj - unattributed
            if gpu.counter_mj is not None or gpu.power_w is not None:
                self.unattributed_mj[uuid] = (
                    self.unattributed_mj.get(uuid, 0) + gpu.unattributed_mj - unattributed
                )
        for running in self._running.values():
            its = [running.totals, *running.totals.tasks.values()]
            for gpu in (gpu for one in its for gpu in one.gpus.values()):
                rise = rises.get(parents.get(gpu.uuid, gpu.uuid))
                if rise is not None:
                    gpu.device_mj = (gpu.device_mj or 0) + rise[0]
                    gpu.unattributed_mj += rise[1]

    # ---- the course over time ----

    def _record(self, snapshot: Snapshot, processes: Sequence[_Process], taken: float) -> None:
        gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
        for load in snapshot.jobs:
            running = self._running.get((load.job, load.uid))
            if running is None:
                continue
            samples = {}
            for uuid in running.totals.gpus:
                gpu = gpus.get(uuid)
                if gpu is None:
                    continue
                own = [
                    use
                    for one in processes
                    if one.totals is running.totals
                    for use in one.shown.gpus
                    if use.uuid == uuid
                ]
                memory = add_up(use.memory_mib for use in own)
                samples[uuid] = GpuSample(
                    load_percent=gpu.load_percent,
                    memory_mib=None if memory is None else int(memory),
                    power_w=gpu.power_w,
                    tasks=len(own),
                )
            rate = load.progress.rate_per_s if load.progress is not None else None
            running.recorder.add(
                taken, cpu_cores=load.cpu_cores, memory_mib=load.memory_mib, rate_per_s=rate, gpus=samples
            )


def _is_same(totals: JobTotals, start: str, fact: JobFacts) -> bool:
    """Return whether totals are of this start of their job, as far as it is known."""
    if start and totals.start:
        return start == totals.start
    return fact.restarts is None or totals.restarts is None or fact.restarts == totals.restarts


def _add_job(
    totals: JobTotals, load: JobLoad, job: JobNow | None, fact: JobFacts, taken: float, dt: float
) -> None:
    if taken > totals.seen_first:
        totals.measured_s += dt
    totals.seen_last = taken
    totals.start = totals.start or ("" if job is None else job.use.start)
    if fact.restarts is not None:
        totals.restarts = fact.restarts
    if fact.began is not None and fact.began <= totals.seen_first:
        totals.began = fact.began
    totals.share = totals.share if load.share is None else load.share
    totals.slots = totals.slots if load.slots is None else load.slots
    totals.memory_kills = totals.memory_kills if load.memory_kills is None else load.memory_kills
    totals.memory_peak_mib = most(totals.memory_peak_mib, load.memory_mib)
    unknown = {"memory_kills": load.unknown.get("memory_kills", UNREPORTED)}
    unknown["memory_peak_mib"] = load.unknown.get("memory_mib", UNREPORTED)
    unknown["cpu_s"] = load.unknown.get("cpu_cores", UNREPORTED)
    if job is not None:
        totals.cpu.add(job.cpu_s)
        totals.llload.add(job.llload_s)
        totals.cpu_wait.add(job.use.cpu_wait_s)
        totals.io_wait.add(job.use.io_wait_s)
        totals.cpus = totals.cpus if job.use.cpus is None else job.use.cpus
        totals.memory_limit_mib = totals.memory_limit_mib if job.use.memory_limit_mib is None else job.use.memory_limit_mib
        unknown |= job.use.unknown
    if "tasks" in totals.unknown:
        unknown["tasks"] = totals.unknown["tasks"]
    totals.unknown = unknown


def _first(gpu: GpuLoad, totals: JobTotals, is_granted: bool, dt: float) -> GpuTotals:
    """Return the totals of a GPU that a job is seen with for the first time. One that Slurm gave it was idle until now:
    Slurm is asked after a minute, and a process would have been seen."""
    made = GpuTotals(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        simulated=gpu.simulated,
        memory_total_mib=gpu.memory_total_mib,
    )
    if is_granted and totals.measured_s > dt:
        made.measured_s = totals.measured_s - dt
        made.note_idle(True, made.measured_s)
    return made


def _add_gpu(
    its: GpuTotals, gpu: GpuLoad, own: Sequence[_Process], dt: float, *, was_on: bool, alone: bool
) -> None:
    """Add an interval. `own`: the job's or task's processes on it now. `was_on`: it had some at the last sample."""
    uses = [use for one in own for use in one.shown.gpus if use.uuid == gpu.uuid]
    memory = add_up(use.memory_mib for use in uses)
    its.memory_peak_mib = most(its.memory_peak_mib, most(None, memory))
    caps = [one.shown.cap_mib for one in own if one.shown.cap_mib is not None]
    its.memory_cap_mib = most(its.memory_cap_mib, max(caps, default=None))
    if dt <= 0:
        return
    its.measured_s += dt
    its.utilization.add(gpu.utilization_percent, dt)
    its.sm.add(gpu.activity.sm_percent, dt)
    its.dram.add(gpu.activity.dram_percent, dt)
    own_sm = add_up(use.sm_time_percent for use in uses)
    its.own_sm.add(None if own_sm is None else min(100.0, own_sm), dt)
    its.note_idle(_is_idle(gpu, bool(uses), own_sm, was_on=was_on, alone=alone), dt)


def _is_idle(gpu: GpuLoad, is_on: bool, own_sm: float | None, *, was_on: bool, alone: bool) -> bool | None:
    if not is_on:
        return not was_on or None if gpu.utilization_percent is None else not was_on or gpu.utilization_percent == 0
    if own_sm is not None:
        return own_sm == 0
    if gpu.utilization_percent == 0:
        return True
    return False if alone and gpu.utilization_percent is not None else None


def _sm_of(
    gpu: GpuNow,
    now: Mapping[str, Mapping[int, Key | None]],
    before: Mapping[str, Mapping[int, Key | None]],
    used: Mapping[str, Mapping[int, float]],
) -> dict[int, float | None]:
    """Return the SM time of every process that was on the GPU since the last sample; None: the driver does not tell."""
    told = used.get(gpu.uuid)
    pids = {*now.get(gpu.uuid, ()), *before.get(gpu.uuid, ()), *(told or ())}
    return {pid: None if told is None else told.get(pid, 0.0) for pid in pids}


def _holders(
    before: Mapping[int, Key | None],
    now: Mapping[int, Key | None],
    sm: Mapping[int, float | None],
    since: float | None,
    until: float,
    only: Key | None,
) -> list[Holder[Key]]:
    """Return who had a GPU since the last sample. Who came or went in between is taken to have done so in the middle."""
    middle = until if since is None else (since + until) / 2
    found: dict[Key | None, Holder[Key]] = {}
    for pid, percent in sm.items():
        if pid in now:
            key, came, went = now[pid], None if pid in before else middle, None
        elif pid in before:
            key, came, went = before[pid], None, middle
        elif percent:
            key, came, went = only, None, middle
        else:
            continue
        have = found.get(key)
        if have is None:
            found[key] = Holder(key, percent, came, went)
            continue
        sums = None if have.sm_percent is None or percent is None else have.sm_percent + percent
        is_early = have.since_s is None or came is None
        is_late = have.until_s is None or went is None
        found[key] = Holder(key, sums, None if is_early else came, None if is_late else went)
    return list(found.values())


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
