"""The use of a node by its tasks: energy, SM time, idle time and memory of GPUs, for results and records of the job.

Once a second the strategy passes the sampler's newest sample on. A task that ends after SHORT_S has the energy counters
read once more, so that its result has the energy until its end. A shorter task is charged too, by the time that it was
there, but not by its number: the driver renews its counters every 20 to 100 ms and SM time once a second, so a figure
of its own would be invented. The energy of such tasks is in the sums only.

`use-JOB.json` and `series-JOB.json` (usage/files.py) are written to the node's folder every WRITE_S and at the end. A
file that cannot be written costs the record only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from math import ceil

from msgspec.structs import replace

from ...core.records import JobStart
from ...node.memory import HostMemory
from ...node.readings import EnergyNow, GpuNow
from ...packing import Attempt, Board, TaskSample
from ...usage import (
    Charge,
    GpuMoment,
    GpuSample,
    GpuUse,
    Holder,
    JobUse,
    Meter,
    MigInstance,
    Recorder,
    Source,
    add_charges,
    files,
    mig_holders,
    slices_of,
)
from ..records import Run
from .node import Node
from .sampler import GAP_S, PATIENCE_S, NodeSample, Sampler

SHORT_S = 1.0
"""A task that ends before this age, in seconds, is charged together with all others that are as short."""
SHORT = -1
"""Their key in the meter, in place of a task's number."""
SHORT_MOST = 256
"""Most of them at once on a GPU that are told apart from fewer."""
WRITE_S = 60.0
HOST_S = 5.0
"""Seconds between two readings of the host's memory and CPU time, as between the first points of a series."""
_OWN: Source = "launcher"


class _Mean:
    """A mean over time."""

    def __init__(self) -> None:
        self.sum = self.seconds = 0.0

    def add(self, value: float | None, seconds: float) -> None:
        if value is not None:
            self.sum, self.seconds = self.sum + value * seconds, self.seconds + seconds

    def value(self) -> float | None:
        return round(self.sum / self.seconds, 2) if self.seconds else None


class _TaskFigures:
    """Sums of the samples of a running task."""

    def __init__(self) -> None:
        self.sm = _Mean()
        """SM time of its processes, the mean over its GPUs."""
        self.idle_s = self.idle_over_s = 0.0
        """Seconds without a kernel of its own, of the seconds in which that is known."""

    def add(self, sm_percent: float | None, seconds: float, *, is_idle: bool | None) -> None:
        self.sm.add(sm_percent, seconds)
        if is_idle is not None:
            self.idle_over_s += seconds
            self.idle_s += seconds if is_idle else 0.0


class _GpuFigures:
    """Sums of the samples of one GPU, or MIG instance, of this launcher."""

    def __init__(self) -> None:
        self.now: GpuNow | None = None
        self.measured_s = 0.0
        self.utilization, self.sm, self.dram, self.own_sm = _Mean(), _Mean(), _Mean(), _Mean()
        self.peak_mib: int | None = None
        self.idle_s = self.idle_now_s = self.idle_longest_s = self.idle_over_s = 0.0
        self.was_shared: bool | None = None

    def add(self, own_sm: float | None, seconds: float, *, is_idle: bool | None) -> None:
        """Add the time since the sample before. `own_sm`: SM time of all tasks."""
        assert self.now is not None
        self.measured_s += seconds
        self.utilization.add(self.now.utilization_percent, seconds)
        self.sm.add(self.now.activity.sm_percent, seconds)
        self.dram.add(self.now.activity.dram_percent, seconds)
        self.own_sm.add(own_sm, seconds)
        if is_idle is None:
            return
        self.idle_over_s += seconds
        self.idle_now_s = self.idle_now_s + seconds if is_idle else 0.0
        self.idle_s += seconds if is_idle else 0.0
        self.idle_longest_s = max(self.idle_longest_s, self.idle_now_s)


class TaskUses:
    """The use by the tasks of one launcher. Only the thread of the loop calls it."""

    def __init__(self, run: Run, node: Node, board: Board, sampler: Sampler, host: HostMemory) -> None:
        self._node, self._board, self._sampler, self._host = node, board, sampler, host
        self._share = None if run.share is None else run.share.per_gpu
        self._meter: Meter[int] = Meter()
        self._gpus = {uuid: _GpuFigures() for uuid in board.facts}
        self._tasks: dict[int, _TaskFigures] = {}
        self._short_s = dict.fromkeys(board.facts, 0.0)
        """GPU -> time that tasks had which were too short for a sample, since the last interval."""
        self._short_mj: dict[str, int] = {}
        """GPU -> what such tasks were charged with under their own number."""
        self._charged_at = 0.0
        """When energy was last divided, monotonic clock, seconds."""
        self._sample: NodeSample | None = None
        self._seen: dict[int, TaskSample] = {}
        self._began, self._clock = time.time(), time.monotonic()
        self._ended: float | None = None
        start = JobStart.parse(node.job)
        self._job, self._restarts = start.number or 0, start.restarts
        if start.number is None:  # outside Slurm each start has files of its own, too
            self._restarts = len(files.read_folder(node.folder, JobUse)[0])
        self._series = Recorder(
            job=self._job, restarts=self._restarts or None, uid=os.getuid(), node=node.name, every_s=HOST_S
        )
        self._cpu_began = self._cpu_s = host.cpu_s()
        self._host_at, self._memory_peak_mib = self._clock, host.used_mib()
        self._write_s = self._clock + WRITE_S

    # ---- Samples and ends ----

    def sampled(self, sample: NodeSample) -> None:
        """Record a sample of the node; each one once, before the board sees it."""
        before, self._sample = self._sample, sample
        self._seen = {one.task: one for one in sample.tasks}
        for uuid, its in self._gpus.items():
            its.now = sample.gpus.get(uuid)
        passed_s = 0.0 if before is None else sample.energy.at - before.energy.at
        if 0 < passed_s <= GAP_S:
            self._count_tasks(sample, passed_s)
        self._charge(sample.energy.at, sample.energy.gpus, is_whole=True)
        if self._gpus:
            self._series.add(time.time(), gpus={uuid: self._point(uuid, one) for uuid, one in self._gpus.items()})

    def ended(self, task: Attempt) -> None:
        """Charge a task that has ended, and give it the figures for its result."""
        if not task.gpus:
            return
        now, began = time.monotonic(), task.clock
        if now - began >= SHORT_S:
            counted = self._sampler.count()
            if counted is not None:
                self._charge(counted.at, counted.gpus)
            self._give(task, self._meter.take(task.task), self._tasks.pop(task.task, None))
        elif began < self._charged_at:
            self._tasks.pop(task.task, None)
            for uuid, charge in self._meter.take(task.task).items():
                self._short_mj[uuid] = self._short_mj.get(uuid, 0) + charge.mj
        left_s = now - (began if began > self._charged_at else self._charged_at)
        if left_s > 0:
            for uuid in task.gpus:
                if uuid in self._short_s:
                    self._short_s[uuid] += left_s

    def finish(self) -> None:
        """Charge the energy until now; call it before the sampler stops."""
        counted = self._sampler.count(PATIENCE_S) if self._gpus else None
        if counted is not None:
            self._charge(counted.at, counted.gpus)
        self._ended = round(time.time(), 3)

    def _give(self, task: Attempt, charges: Mapping[str, Charge], its: _TaskFigures | None) -> None:
        if charges:
            charge = add_charges(charges.values())
            task.energy_j, task.energy_rule = charge.mj / 1000, charge.rule
        sm = None if its is None else its.sm.value()
        if its is not None and sm is not None:
            task.gpu_sm_percent = sm
        if its is not None and its.idle_over_s:
            task.gpu_idle_s = round(its.idle_s, 1)

    def _charged_until(self, uuid: str) -> float:
        meter = self._meter.gpus.get(self._metered(uuid))
        return self._clock if meter is None or meter.at_s is None else meter.at_s

    def _metered(self, uuid: str) -> str:
        """Return the GPU whose counter has the energy of a GPU or MIG instance: for an instance, its parent."""
        gpu = None if self._sample is None else self._sample.gpus.get(uuid)
        return uuid if gpu is None or gpu.mig_of is None else gpu.mig_of

    # ---- Energy ----

    def _charge(self, at: float, energy: Mapping[str, EnergyNow], *, is_whole: bool = False) -> None:
        """Charge the energy since the last interval. `is_whole`: the newest sample is of this moment."""
        sample = self._sample
        if sample is None:
            return
        holders = self._holders(at, sample)
        moments = []
        for unit in dict.fromkeys(map(self._metered, self._gpus)):
            gpu, now = sample.gpus.get(unit), energy.get(unit)
            if gpu is None or now is None:
                continue
            instances = [one for one in sample.gpus.values() if one.mig_of == unit]
            inside = [unit, *(one.uuid for one in instances)]
            moments.append(
                GpuMoment(
                    uuid=unit,
                    name=gpu.name,
                    counter_mj=None if now.energy_j is None else round(1000 * now.energy_j),
                    power_w=now.power_w,
                    holders=_of_instances(instances, holders) if instances else holders.get(unit, []),
                    is_empty=is_whole
                    and gpu.processes is not None
                    and not any(uuid in one.sm_percent for one in sample.tasks for uuid in inside)
                    and not any(sample.others.get(uuid) for uuid in inside),
                )
            )
        self._meter.add(at, moments)
        self._charged_at = max(at, self._charged_at)
        for uuid in self._short_s:
            if self._charged_until(uuid) == at:
                self._short_s[uuid] = 0.0

    def _holders(self, at: float, sample: NodeSample) -> dict[str, list[Holder[int]]]:
        """Return who has had each GPU or MIG instance since the last interval."""
        is_fresh = at - sample.energy.at <= GAP_S
        found: dict[str, list[Holder[int]]] = {
            uuid: [Holder(None, sm if is_fresh else None) for sm in sample.others.get(uuid, ())] for uuid in sample.gpus
        }
        for task in self._board.running.values():
            if not task.clock:
                continue  # it is not started yet
            for uuid in task.gpus:
                sm = self._sm_percent(task, uuid) if is_fresh and task.clock < sample.energy.at else None
                found.setdefault(uuid, []).append(Holder(task.task, sm, task.clock))
        for uuid, short_s in self._short_s.items():
            passed_s = at - self._charged_until(uuid)
            if short_s <= 0 or passed_s <= 0:
                continue
            count = min(ceil(short_s / passed_s), SHORT_MOST)
            found.setdefault(uuid, []).extend(Holder(SHORT, None, at - short_s / count) for _ in range(count))
        return found

    def _sm_percent(self, task: Attempt, uuid: str) -> float | None:
        """Return the SM time of a task on a GPU at the newest sample; None: not known."""
        sample = self._sample
        gpu = None if sample is None or task.task not in sample.watched else sample.gpus.get(uuid)
        if gpu is None or gpu.processes is None:
            return None
        seen = self._seen.get(task.task)
        if seen is None or uuid not in seen.sm_percent:
            return 0.0  # it has no process there
        return seen.sm_percent[uuid]

    # ---- Figures ----

    def _count_tasks(self, sample: NodeSample, passed_s: float) -> None:
        """Add the time since the sample before to the figures of tasks and GPUs."""
        on: dict[str, list[Attempt]] = {uuid: [] for uuid in self._gpus}
        for task in self._board.running.values():
            if not task.clock or task.clock >= sample.energy.at:
                continue
            for uuid in task.gpus:
                on[uuid].append(task)
        idle: dict[int, list[bool | None]] = {}
        sm: dict[int, list[float | None]] = {}
        for uuid, its in self._gpus.items():
            if its.now is None:
                continue
            others = sample.others.get(uuid, ())
            for task in on[uuid]:
                percent = self._sm_percent(task, uuid)
                is_alone = len(on[uuid]) == 1 and not others
                is_idle = percent == 0 if percent is not None else self._is_unused(its.now, is_alone=is_alone)
                sm.setdefault(task.task, []).append(percent)
                idle.setdefault(task.task, []).append(is_idle)
            own = [sm[task.task][-1] for task in on[uuid]]
            all_idle = [idle[task.task][-1] for task in on[uuid]]
            its.add(_sum(own), passed_s, is_idle=_all(all_idle))
            memory = [seen.memory_mib[uuid] for seen in self._seen.values() if uuid in seen.memory_mib]
            if its.now.processes is not None:
                its.peak_mib = max(its.peak_mib or 0, sum(memory))
                its.was_shared = bool(its.was_shared or others)
        for number, percents in sm.items():
            figures = self._tasks.get(number)
            if figures is None:
                figures = self._tasks[number] = _TaskFigures()
            seconds = min(passed_s, sample.energy.at - self._board.running[number].clock)
            total = _sum(percents)
            figures.add(None if total is None else total / len(percents), seconds, is_idle=_all(idle[number]))

    def _is_unused(self, gpu: GpuNow, *, is_alone: bool) -> bool | None:
        """Return whether no kernel of a task ran, whose SM time is not known; None: not known."""
        if gpu.utilization_percent == 0:
            return True
        return False if is_alone and gpu.utilization_percent is not None else None

    def _point(self, uuid: str, its: _GpuFigures) -> GpuSample:
        gpu = its.now
        if gpu is None:
            return GpuSample()
        seen = [one for one in self._seen.values() if uuid in one.sm_percent]
        memory = None if gpu.processes is None else sum(one.memory_mib.get(uuid, 0) for one in seen)
        return GpuSample(
            load_percent=gpu.load_percent,
            memory_mib=memory,
            power_w=gpu.power_w,
            tasks=None if gpu.processes is None else sum(one.clients for one in seen),
        )

    # ---- Records ----

    def tick(self, rate_per_s: float | None, *, may_write: bool, ended: bool) -> None:
        """Read the host's figures and write the records, if it is time. `rate_per_s`: of all tasks together.

        `may_write` False: the node's folder is another run's. `ended`: the last call.
        """
        now = time.monotonic()
        if ended or now - self._host_at >= HOST_S:
            self._read_host(now, rate_per_s)
        if may_write and (ended or now >= self._write_s):
            self._write_s = now + WRITE_S
            series = self._series.finish() if ended else self._series.series()
            for record in (self._job_use(), series):
                try:
                    files.write(self._node.folder, record, mode=0o666)  # as the umask says, like the results
                except OSError:
                    return  # a full disk, which the loop tells

    def _read_host(self, now: float, rate_per_s: float | None) -> None:
        cpu_s, memory_mib = self._host.cpu_s(), self._host.used_mib()
        cores, passed_s = None, now - self._host_at
        if cpu_s is not None and self._cpu_s is not None and passed_s > 0:
            cores = round((cpu_s - self._cpu_s) / passed_s, 3)
        self._cpu_s, self._host_at = cpu_s, now
        if memory_mib is not None:
            self._memory_peak_mib = max(memory_mib, self._memory_peak_mib or 0)
        self._series.add(time.time(), cpu_cores=cores, memory_mib=memory_mib, rate_per_s=rate_per_s)

    def _job_use(self) -> JobUse:
        limit = self._host.limit()
        cpu_s = None if self._cpu_s is None or self._cpu_began is None else round(self._cpu_s - self._cpu_began, 3)
        return JobUse(
            job=self._job,
            restarts=self._restarts or None,
            uid=os.getuid(),
            node=self._node.name,
            began=round(self._began, 3),
            ended=self._ended,
            share=self._share,
            cpus=self._node.cores,
            cpu_s=cpu_s,
            memory_limit_mib=None if limit is None else limit.mib,
            memory_peak_mib=self._memory_peak_mib,
            gpus=tuple(self._gpu_use(uuid, its) for uuid, its in self._gpus.items()),
            others=tuple(replace(gpu.unit, short_j=self._short_j(uuid)) for uuid, gpu in self._meter.gpus.items()),
            by={"cpu_s": "cgroup", "memory_peak_mib": _OWN, "gpus": _OWN, "others": _OWN},
            unknown={
                **({} if cpu_s is not None else {"cpu_s": "the launcher's cgroup does not tell its CPU time"}),
                **(
                    {}
                    if self._memory_peak_mib is not None
                    else {"memory_peak_mib": "the launcher's cgroup has no limit of memory, so others may be in it"}
                ),
            },
        )

    def _short_j(self, unit: str) -> float:
        charge = self._meter.charges(SHORT).get(unit)
        return (self._short_mj.get(unit, 0) + (0 if charge is None else charge.mj)) / 1000

    def _gpu_use(self, uuid: str, its: _GpuFigures) -> GpuUse:
        facts, unit = self._board.facts[uuid], self._metered(uuid)
        meter = self._meter.gpus.get(unit)
        budget = self._node.budgets.get(facts.index)
        gpu = None if self._sample is None else self._sample.gpus.get(uuid)
        is_first = next(one for one in self._gpus if self._metered(one) == unit) == uuid
        has_energy = meter is not None and meter.measured_s > 0 and is_first
        figures = {
            "utilization_percent": its.utilization.value(),
            "sm_percent": its.sm.value(),
            "dram_percent": its.dram.value(),
            "own_sm_percent": its.own_sm.value(),
        }
        why = "the driver has not told it in this run"
        unknown = {name: why for name, value in figures.items() if value is None}
        if not has_energy:
            unknown["energy"] = why if is_first else "in the figure of the first MIG instance of the same GPU"
        return GpuUse(
            uuid=uuid,
            index=None if gpu is None else gpu.index,
            name=facts.model,
            simulated=gpu is not None and gpu.simulated,
            held_s=round(time.monotonic() - self._clock, 3),
            measured_s=round(its.measured_s, 3),
            memory_total_mib=facts.total_mib,
            memory_peak_mib=its.peak_mib,
            memory_cap_mib=None if budget is None else budget.cap_mib,
            memory_least_mib=None if budget is None else budget.least_mib,
            idle_s=round(its.idle_s, 1) if its.idle_over_s else None,
            idle_longest_s=round(its.idle_longest_s, 1) if its.idle_over_s else None,
            was_shared=its.was_shared,
            energy=meter.charged.use() if has_energy and meter is not None else None,
            device_j=meter.total_mj / 1000 if has_energy and meter is not None else None,
            unknown=unknown,
            utilization_percent=figures["utilization_percent"],
            sm_percent=figures["sm_percent"],
            dram_percent=figures["dram_percent"],
            own_sm_percent=figures["own_sm_percent"],
        )

    def sentences(self) -> list[str]:
        """Return what the user should know about the energy figures, at the end of the run."""
        places = {self._metered(uuid): facts.index for uuid, facts in self._board.facts.items()}
        return [
            f"{self._node.name}: energy of GPU {places[uuid]}: {sentence}"
            for uuid, gpu in self._meter.gpus.items()
            if uuid in places
            for sentence in gpu.sentences()
        ]


def _of_instances(instances: Sequence[GpuNow], holders: Mapping[str, Sequence[Holder[int]]]) -> list[Holder[int]]:
    return mig_holders(
        MigInstance(slices=slices_of(one.name), sm_percent=one.activity.sm_percent, holders=holders.get(one.uuid, ()))
        for one in instances
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum; None: one of them is not known."""
    known = [one for one in values if one is not None]
    return sum(known) if len(known) == len(values) else None


def _all(values: Sequence[bool | None]) -> bool | None:
    """Return whether all are true; None: not known."""
    return False if False in values else None if None in values else True
