"""Add up what each job on a node uses, from the readings of its sampler: the records that stay after its end.

`NodeUse.add` gets each sample; it is pure. A job's totals can be stored and go on in another agent of the same boot
(`StoredJob`). What the kernel counts for a job's cgroup (CPU time, waiting) is from the start of the job, also if the
agent came later; all else is over the time in which there are samples, `measured_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ...core.records import Reasons
from ...mps.records import MPS_NAME
from ...node.readings import DriverNow, HostNow, JobNow
from ...usage import (
    GpuSample,
    JobUse,
    Recorder,
    UseSeries,
    add_charges,
)
from ..snapshot import GpuLoad, JobLoad, OnGpu, ProcessLoad, Snapshot, UserLoad
from .fold import GAP_S
from .job_energy import NodeEnergy, StoredNode
from .job_totals import NO_TASK, GpuTotals, JobProcess, JobTotals, Key, TaskTotals
from .sums import UNREPORTED, add_up, most

KEPT_S = 900.0
"""Seconds for which an ended job may go on: between two steps of an allocation nothing of it is on the node."""
MOST_TASKS = 512
"""Most tasks of a job's record; the first ones are kept."""
MOST_ENDED = 64
"""Most ended jobs that may go on."""
ENDED_AWAY = "the agent was away when the job ended; it was last seen at this time"
ENDED_WITH_NODE = "the node was booted; the job was last seen at this time"


_OnGpus = dict[str, list[tuple[JobProcess, OnGpu]]]
"""UUID -> the processes on it, and what each uses of it."""


class JobFacts(NamedTuple):
    """A job on this node as Slurm or the ledger tells it."""

    restarts: int | None = None
    began: float | None = None


class StoredJob(Struct, frozen=True):
    """A running job's totals and course, for the next agent of this boot."""

    boot_id: str
    totals: JobTotals
    series: UseSeries


class JobRecord(Struct, frozen=True):
    """One start of a job on this node: what it used, and its course."""

    use: JobUse
    series: UseSeries


class _Running(NamedTuple):
    totals: JobTotals
    recorder: Recorder

    def record(self) -> JobRecord:
        """Return the record so far."""
        return JobRecord(self.totals.use(), replace(self.recorder.series(), restarts=self.totals.restarts))


class NodeUse:
    """The totals of the jobs on one node. Used by one thread at a time."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.boot_id = ""
        self._energy = NodeEnergy()
        self._running: dict[tuple[int, int], _Running] = {}
        """By (job, uid)."""
        self._recent: dict[tuple[int, int], _Running] = {}
        """Ended less than KEPT_S ago, the oldest first."""
        self._number = 0
        self._has_sample = False

    # ---- over a restart of the agent ----

    def restore(self, boot_id: str, jobs: Iterable[StoredJob], node: StoredNode) -> list[JobRecord]:
        """Go on with what an earlier agent has stored. Return the records of jobs of an earlier boot: they are over."""
        self.boot_id = boot_id
        over = []
        for one in jobs:
            totals = one.totals
            if one.boot_id != boot_id:
                totals.ended = totals.seen_last
                totals.unknown = {**totals.unknown, "ended": ENDED_WITH_NODE}
                over.append(JobRecord(totals.use(), one.series))
                continue
            self._number = max(self._number, totals.number)
            recorder = Recorder(job=totals.job, uid=totals.uid, node=totals.node, before=one.series)
            self._running[totals.job, totals.uid] = _Running(totals, recorder)
        if node.boot_id == boot_id:
            self._energy = NodeEnergy(node)
        return over

    def stored_jobs(self) -> dict[tuple[int, int], StoredJob]:
        """Return what the next agent needs of each running job, by (job, uid)."""
        return {key: StoredJob(self.boot_id, one.totals, one.recorder.series()) for key, one in self._running.items()}

    def stored_node(self) -> StoredNode:
        """Return what the next agent needs of the node."""
        return self._energy.stored(self.boot_id)

    # ---- answers ----

    def records(self, job: int) -> list[JobRecord]:
        """Return the records of the running starts of a job, and of those that have ended lately."""
        both = (*self._running.items(), *self._recent.items())
        return [one.record() for key, one in both if key[0] == job]

    def filled(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the energy of jobs, of users and of nobody."""
        if not self._energy.is_measured:
            return snapshot

        def of_job(job: JobLoad) -> JobLoad:
            found = self._running.get((job.job, job.uid))
            if found is None or any(gpu.device_mj is None for gpu in found.totals.gpus.values()):
                return job
            return _known(job, "energy_j", found.totals.charge.mj)

        return replace(
            snapshot,
            jobs=tuple(map(of_job, snapshot.jobs)),
            users=tuple(_known(user, "energy_j", self._energy.user_mj.get(user.uid, 0)) for user in snapshot.users),
            gpus=tuple(
                _known(gpu, "unattributed_energy_j", self._energy.unattributed_mj.get(gpu.uuid))
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
            JobProcess(shown, read, self._totals_of(shown))
            for shown, read in zip(snapshot.processes, host.processes, strict=True)
            if not shown.name.startswith(MPS_NAME)
        ]
        on: _OnGpus = {}
        for process in processes:
            for use in process.shown.gpus:
                on.setdefault(use.uuid, []).append((process, use))
        gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
        self._add_gpus(snapshot.jobs, gpus, {gpu.uuid: gpu.unknown for gpu in driver.gpus}, on, dt)
        self._add_tasks(processes, gpus, on, host.taken, dt)
        self._charge(snapshot, driver, host, processes, ended)
        self._record(snapshot.jobs, gpus, on, host.taken)
        self._has_sample = True
        for one in ended:
            one.recorder.finish()
        return [one.record() for one in ended]

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
            began=taken if self._has_sample else None,
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
        self._recent = {key: one for key, one in self._recent.items() if taken - one.totals.seen_last <= KEPT_S}
        while len(self._recent) > MOST_ENDED:
            self._recent.pop(next(iter(self._recent)))
        return ended

    # ---- GPUs ----

    def _add_gpus(
        self,
        jobs: Sequence[JobLoad],
        gpus: Mapping[str, GpuLoad],
        reasons: Mapping[str, Reasons],
        on: _OnGpus,
        dt: float,
    ) -> None:
        for load in jobs:
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
                own = [pair for pair in there if pair[0].totals is totals]
                its.unknown = reasons.get(uuid, {})
                was_on = self._energy.was_on(uuid, totals.number)
                _add_gpu(its, gpu, own, dt, was_on=was_on, is_alone=len(own) == len(there))
                its.was_shared = its.was_shared or 0 < len(own) < len(there)

    def _add_tasks(
        self, processes: Sequence[JobProcess], gpus: Mapping[str, GpuLoad], on: _OnGpus, taken: float, dt: float
    ) -> None:
        by_task: dict[tuple[int, str], list[JobProcess]] = {}
        for process in processes:
            if process.totals is not None and process.shown.task is not None and process.shown.step is not None:
                by_task.setdefault((process.totals.number, process.read.task_key), []).append(process)
            elif process.totals is not None and "task" in process.shown.unknown and not process.totals.tasks:
                process.totals.unknown = {**process.totals.unknown, "tasks": NO_TASK}
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
                    its = task.gpus[uuid] = GpuTotals(
                        uuid=uuid, index=gpu.index, name=gpu.name, simulated=gpu.simulated
                    )
                there = on.get(uuid, [])
                pairs = [pair for pair in there if pair[0].totals is totals and pair[0].read.task_key == key]
                is_alone = len(pairs) == len(there)
                _add_gpu(its, gpu, pairs, dt, was_on=True, is_alone=is_alone)
                its.was_shared = its.was_shared or not is_alone

    # ---- energy ----

    def _charge(
        self,
        snapshot: Snapshot,
        driver: DriverNow,
        host: HostNow,
        processes: Sequence[JobProcess],
        ended: Sequence[_Running],
    ) -> None:
        """Add the energy since the last sample to the totals of jobs and tasks."""

        def only_job(uuid: str) -> Key | None:
            """Whom to charge for a process that came and went since: the only job that has the GPU."""
            having = [job for job in snapshot.jobs if uuid in job.gpus or uuid in (job.granted or ())]
            found = self._running.get((having[0].job, having[0].uid)) if len(having) == 1 else None
            return None if found is None else (found.totals.number, "", uuid)

        interval = self._energy.add(driver, host, processes, only_job)
        by_number = {one.totals.number: one.totals for one in (*self._running.values(), *self._recent.values())}
        for (number, task_key, uuid), charge in interval.charges.items():
            totals = by_number.get(number)
            if totals is None:
                continue
            self._energy.add_to_user(totals.uid, charge.mj)
            task = totals.tasks.get(task_key)
            for gpus in (totals.gpus, {} if task is None else task.gpus):
                if (its := gpus.get(uuid)) is not None:
                    its.charge = add_charges((its.charge, charge))
        for running in (*self._running.values(), *ended):
            of_job = running.totals
            for having in (of_job.gpus, *(task.gpus for task in of_job.tasks.values())):
                for gpu in having.values():
                    rise = interval.rises.get(gpu.uuid)
                    if rise is not None:
                        gpu.device_mj = (gpu.device_mj or 0) + rise.total_mj
                        gpu.unattributed_mj += rise.unattributed_mj

    # ---- the course over time ----

    def _record(self, jobs: Sequence[JobLoad], gpus: Mapping[str, GpuLoad], on: _OnGpus, taken: float) -> None:
        for load in jobs:
            running = self._running.get((load.job, load.uid))
            if running is None:
                continue
            samples = {}
            for uuid in running.totals.gpus:
                gpu = gpus.get(uuid)
                if gpu is None:
                    continue
                own = [use for one, use in on.get(uuid, ()) if one.totals is running.totals]
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


_Record = TypeVar("_Record", JobLoad, UserLoad, GpuLoad)


def _known(record: _Record, name: str, mj: int | None) -> _Record:
    if mj is None:
        return record
    unknown = {field: why for field, why in record.unknown.items() if field != name}
    return replace(record, unknown=unknown, **{name: mj / 1000})


def _is_same(totals: JobTotals, start: str, fact: JobFacts) -> bool:
    """Return whether totals are of this start of their job, as far as it is known."""
    if start and totals.start:
        return start == totals.start
    return fact.restarts is None or totals.restarts is None or fact.restarts == totals.restarts


def _add_job(totals: JobTotals, load: JobLoad, job: JobNow | None, fact: JobFacts, taken: float, dt: float) -> None:
    if taken > totals.seen_first:
        totals.measured_s += dt
    totals.seen_last = taken
    totals.start = totals.start or ("" if job is None else job.use.start)
    if fact.restarts is not None:
        totals.restarts = fact.restarts
    if fact.began is not None and fact.began <= totals.seen_first and not totals.is_told:
        totals.began, totals.is_told = fact.began, True
    totals.share = totals.share if load.share is None else load.share
    totals.slots = totals.slots if load.slots is None else load.slots
    totals.sharing = totals.sharing if load.sharing is None else load.sharing
    totals.memory_kills = totals.memory_kills if load.memory_kills is None else load.memory_kills
    totals.memory_peak_mib = most(totals.memory_peak_mib, load.memory_mib)
    unknown = {"memory_kills": load.unknown.get("memory_kills", UNREPORTED)}
    unknown["memory_peak_mib"] = load.unknown.get("memory_mib", UNREPORTED)
    unknown["cpu_s"] = load.unknown.get("cpu_cores", UNREPORTED)
    if job is not None:
        totals.has_cgroup = totals.has_cgroup or (job.cpu_s or {}).keys() == {"cgroup"}
        totals.cpu.add(job.cpu_s)
        totals.llload.add(job.llload_s)
        totals.cpu_wait.add(job.use.cpu_wait_s)
        totals.io_wait.add(job.use.io_wait_s)
        totals.cpus = totals.cpus if job.use.cpus is None else job.use.cpus
        totals.memory_limit_mib = job.use.memory_limit_mib or totals.memory_limit_mib
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
    its: GpuTotals,
    gpu: GpuLoad,
    own: Sequence[tuple[JobProcess, OnGpu]],
    dt: float,
    *,
    was_on: bool,
    is_alone: bool,
) -> None:
    """Add an interval. `own`: the job's or task's processes on it now. `was_on`: it had some at the last sample."""
    uses = [use for _, use in own]
    memory = add_up(use.memory_mib for use in uses)
    its.memory_peak_mib = most(its.memory_peak_mib, most(None, memory))
    caps = [one.shown.cap_mib for one, _ in own if one.shown.cap_mib is not None]
    its.memory_cap_mib = most(its.memory_cap_mib, max(caps, default=None))
    if dt <= 0:
        return
    its.measured_s += dt
    its.utilization.add(gpu.utilization_percent, dt)
    its.sm.add(gpu.activity.sm_percent, dt)
    its.dram.add(gpu.activity.dram_percent, dt)
    own_sm = add_up(use.sm_time_percent for use in uses)
    its.own_sm.add(None if own_sm is None else min(100.0, own_sm), dt)
    its.note_idle(_is_idle(gpu, bool(uses), own_sm, was_on=was_on, is_alone=is_alone), dt)


def _is_idle(gpu: GpuLoad, is_on: bool, own_sm: float | None, *, was_on: bool, is_alone: bool) -> bool | None:
    if not is_on:
        return True if not was_on or gpu.utilization_percent == 0 else None
    if own_sm is not None:
        return own_sm == 0
    if gpu.utilization_percent == 0:
        return True
    return False if is_alone and gpu.utilization_percent is not None else None
