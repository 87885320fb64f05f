"""Simulate a cluster, for surveys without Slurm. Every record says that it is a demonstration.

The same time gives the same survey: no state is kept between two surveys. Nodes form groups. A group runs one
user's job at a time (a node belongs to one user, as under slurm-share), is idle for a while, then runs the next job.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct, structs

from ...core.errors import UsageError, shown
from ...core.metric import measured
from ...core.text import natural
from ...node.gpu_figures import Activity
from ...node.progress_figures import RunProgress
from ...slurm.records import QueuedJob, SlurmNode
from ..rules.rates import with_progress
from ..snapshot import (
    GpuBooking,
    GpuLoad,
    JobLoad,
    Means,
    NodeLoad,
    OnGpu,
    ProcessLoad,
    Snapshot,
    Survey,
    TaskProgress,
    UserLoad,
)

USER = "alice"
"""The default user."""
USERS = {"alice": 2001, "bob": 2002, "carol": 2003, "dave": 2004}
ACCOUNTS = {"alice": "vision", "bob": "genomics", "carol": "vision", "dave": "genomics"}
NODES = 12
INTERVAL_S = 5.0
WINDOW_S = 30.0
"""Window of the mean rates of tasks, seconds."""
_QUEUE_EVERY_S = 60
_BIG = 48
"""Larger clusters have fewer processes on a node, so that a survey of 10,000 nodes takes a second."""


class _Kind(Struct, frozen=True):
    """A kind of node of the simulated cluster."""

    prefix: str
    cpus: int
    memory_mib: int
    gpus: int = 0
    gpu: str = ""
    gpu_mib: int = 0
    gpm: bool = False
    """Whether its driver reports SM activity."""


_KINDS = (
    _Kind("v", 40, 384 * 1024, 2, "Simulated V100-32GB", 32 * 1024),
    _Kind("h", 96, 1024 * 1024, 4, "Simulated H100-80GB", 80 * 1024, True),
    _Kind("c", 48, 192 * 1024),
)


class _Work(Struct, frozen=True):
    """The load that a job causes."""

    name: str
    per_gpu: int
    """Tasks on a GPU; 0: it does not use GPUs."""
    gpu_percent: float
    """GPU load of one task alone."""
    task_gib: float
    cpu_percent: float
    """CPU load in percent of all CPUs of the node."""
    host_gib: float
    grows: bool = False
    """True: its memory rises until tasks run out of it."""
    share: bool = True
    booked_gib: float = 0.0
    """Memory that a run with `--pack` has booked for each task; 0: it does not pack."""
    alone_per_s: float = 0.0
    """Units of work a second of one task alone on a GPU; 0: its tasks report no progress."""
    speed_ratio: float = 1.0
    """Speed of a task among `per_gpu` tasks as a ratio of its speed alone."""
    counted_from: str = ""
    """`TaskProgress.rate_source` of its tasks."""


_WORKS = (
    _Work("lenet-sweep", 4, 9.0, 2.3, 62.0, 1.6, alone_per_s=14.0, speed_ratio=0.86, counted_from="progress"),
    _Work(
        *("resnet18", 2, 38.0, 10.3, 85.0, 9.0), booked_gib=11.4, alone_per_s=3.4, speed_ratio=0.71, counted_from="log"
    ),
    _Work("gnn-leak", 2, 30.0, 9.0, 75.0, 14.0, grows=True),
    _Work("llm-finetune", 1, 88.0, 27.0, 58.0, 60.0, share=False, alone_per_s=0.04, counted_from="log"),
    _Work("notebook", 1, 3.0, 1.1, 2.0, 3.0, share=False),
    _Work("cpu-pipeline", 0, 0.0, 0.0, 165.0, 2.0, share=False),
    _Work("monte-carlo", 0, 0.0, 0.0, 95.0, 0.8, share=False),
)


_IDLER = _Work("interactive", 1, 0.6, 5.6, 1.5, 6.0, share=False)
_IDLER_GROUP, _DAY_S, _IDLER_LEAST_S = 1, 86_400.0, 3600.0
"""One of the viewer's jobs holds all GPUs of its nodes for a day with one task that does almost nothing, to show idle
GPUs."""
_LIMIT_S = 2 * 86_400
"""Time limit of every job."""


class Demo:
    """A simulated cluster, in place of a SurveyReader."""

    def __init__(
        self,
        *,
        user: str = USER,
        everybody: bool = False,
        nodes: Sequence[str] = (),
        jobs: Iterable[int | str] = (),
        count: int = NODES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`count`: number of nodes. Raises UsageError for a user or a node that the demonstration does not have."""
        if user not in USERS:
            raise UsageError(
                f"the demonstration has no user {shown(user) or repr(user)}; there are {', '.join(sorted(USERS))}"
            )
        self._user, self._everybody, self._jobs = user, everybody, frozenset(map(str, jobs))
        self._unchecked = self._jobs
        self._clock, self._count = clock, count
        self._groups = _groups(count)
        there = [name for group in self._groups for name, _ in group]
        for name in nodes:
            if name not in there:
                some = _some(there)
                raise UsageError(f"the demonstration has no node {shown(name) or repr(name)}; there are {some}")
        self._nodes = frozenset(nodes)
        self._rich = count <= _BIG

    def read(self, timeout_s: float = 0.0) -> Survey:
        """Return the survey of this moment. Raises UsageError for a named job that the first survey does not have."""
        now = self._clock()
        of_groups = [_job_of(number, group, now) for number, group in enumerate(self._groups)]
        self._check_jobs(job for job in of_groups if job is not None)
        nodes: list[NodeLoad] = []
        jobs: list[QueuedJob] = []
        for group, running in zip(self._groups, of_groups, strict=True):
            mine = running is not None and (
                (self._everybody or running.user == self._user) and (not self._jobs or str(running.id) in self._jobs)
            )
            if not mine and (not self._everybody or self._jobs):
                continue
            chosen = [(name, kind) for name, kind in group if not self._nodes or name in self._nodes]
            if not chosen:
                continue
            if running is not None:
                jobs.append(_queued(running, group))
            nodes += [self._node(name, kind, running if mine else None, now) for name, kind in chosen]
        nodes.sort(key=lambda node: natural(node.name))
        return Survey(
            taken=now,
            cluster="demo",
            slurm_version="simulated",
            user=self._user,
            everybody=self._everybody,
            source="demo",
            nodes=tuple(nodes),
            jobs=tuple(jobs),
            jobs_taken=now - now % _QUEUE_EVERY_S,
            notes=("a simulated cluster: no such nodes, users or jobs",),
        )

    def _check_jobs(self, running: Iterable[_DemoJob]) -> None:
        """Raise UsageError for a named job that does not run. Only the first survey checks: later it may have ended."""
        wanted, self._unchecked = self._unchecked, frozenset()
        if not wanted:
            return
        there = [job.id for job in running if self._everybody or job.user == self._user]
        missing = sorted(wanted.difference(map(str, there)), key=natural)
        if missing:
            some, of_user = _some(there) or "none now", "" if self._everybody else f" of {self._user}"
            raise UsageError(f"the demonstration has no job {missing[0]}{of_user}; there are {some}")

    def close(self) -> None:
        """Do nothing: the demonstration holds no resources."""

    def _node(self, name: str, kind: _Kind, job: _DemoJob | None, now: float) -> NodeLoad:
        number = int(name.rpartition("-")[2])
        if self._count >= 10 and name == "c-2":
            return NodeLoad(name=name, slurm=_slurm_node(name, kind, None, down=True), why="down")
        slurm = _slurm_node(name, kind, job)
        if self._count >= 6 and name == "v-4" and now % 300 > 180:  # it answers for three minutes of five
            return NodeLoad(name=name, slurm=slurm, why="no answer within 5 s")
        return NodeLoad(name=name, slurm=slurm, snapshot=_snapshot(name, number, kind, job, now, self._rich))


def _some(names: Sequence[int | str]) -> str:
    return ", ".join(map(str, names[:8])) + (", ..." if len(names) > 8 else "")


# --- Jobs -------------------------------------------------------------------------------------------------------------


class _DemoJob(Struct, frozen=True):
    id: int
    user: str
    work: _Work
    start: float
    age: float
    life: float
    tasks: int
    """Tasks on each node."""
    lost: int
    """Tasks of each node that ran out of memory."""


def _noise(*parts: int) -> float:
    """Return a number from 0 to 1 that depends on the arguments only (a 64-bit mix, faster than `hash` and
    `random`)."""
    value = 0x171BCA57F77FDCCE
    for part in parts:
        value = (value ^ (part & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 29
    return (value >> 11) / (1 << 53)


def _groups(count: int) -> list[list[tuple[str, _Kind]]]:
    """Return the groups of nodes that run a job together: one, two or three nodes of a kind."""
    left = [0] * len(_KINDS)
    groups: list[list[tuple[str, _Kind]]] = []
    made = 0
    while made < count:
        kind = (0, 0, 1, 0, 2)[len(groups) % 5]
        size = min(count - made, 1 + int(_noise(len(groups), 7) * 2.4))
        group = []
        for _ in range(size):
            left[kind] += 1
            group.append((f"{_KINDS[kind].prefix}-{left[kind]}", _KINDS[kind]))
        groups.append(group)
        made += size
    return groups


def _job_of(number: int, group: Sequence[tuple[str, _Kind]], now: float) -> _DemoJob | None:
    """Return the job that the group runs at this time; None: it is idle."""
    kind = group[0][1]
    period = 900.0 + 1800.0 * _noise(number, 1)
    shifted = now + period * _noise(number, 2)
    cycle, age = int(shifted // period), shifted % period
    life = period * (0.88 + 0.1 * _noise(number, cycle, 3))
    if number == _IDLER_GROUP:
        cycle, age, life = int(now // _DAY_S), _IDLER_LEAST_S + now % _DAY_S, _IDLER_LEAST_S + _DAY_S
    if age > life:
        return None
    works = [work for work in _WORKS if bool(work.per_gpu) == bool(kind.gpus) or (kind.gpus and not work.per_gpu)]
    # On nodes with GPUs, few jobs do not use them.
    place = _noise(number, cycle, 4)
    works = [work for work in works if work.per_gpu] if kind.gpus and place < 0.93 else works
    work = _IDLER if number == _IDLER_GROUP else works[int(_noise(number, cycle, 5) * len(works))]
    users = tuple(USERS)
    # The first groups are the viewer's, so that `--demo` always has something to show.
    user = USER if number in (0, 1, 2) else users[int(_noise(number, cycle, 6) * len(users))]
    tasks = 1 if work is _IDLER else work.per_gpu * kind.gpus or max(1, kind.cpus // 2)
    lost = tasks // 2 if work.grows and age > 0.6 * life else 0
    return _DemoJob(
        id=(number + 1) * 10_000 + cycle % 10_000,
        user=user,
        work=work,
        start=now - age,
        age=age,
        life=life,
        tasks=tasks,
        lost=lost,
    )


def _queued(job: _DemoJob, group: Sequence[tuple[str, _Kind]]) -> QueuedJob:
    kind, numbers = group[0][1], [name.rpartition("-")[2] for name, _ in group]
    nodes = group[0][0] if len(group) == 1 else f"{kind.prefix}-[{numbers[0]}-{numbers[-1]}]"
    triple = f"[{len(group)},{job.tasks},{max(1, kind.cpus // job.tasks)}]"
    return QueuedJob(
        job_id=job.id,
        name=job.work.name,
        user=job.user,
        uid=USERS[job.user],
        partition="gpu" if kind.gpus else "cpu",
        states=("RUNNING",),
        start=int(job.start),
        cpus=kind.cpus * len(group),
        tasks=job.tasks * len(group),
        node_count=len(group),
        nodes=nodes,
        memory_mib=kind.memory_mib,
        memory_on_nodes_mib=(kind.memory_mib,) * len(group),
        gpus=kind.gpus * len(group) if job.work.per_gpu else 0,
        gpu_indexes=tuple(tuple(range(kind.gpus)) for _ in group) if job.work.per_gpu else (),
        share=str(job.work.per_gpu) if job.work.share else None,
        comment=f"llsub {triple} LLSUB.{job.id}",
        submitted=int(job.start) - 60,
        limit_s=_LIMIT_S,
        ends=int(job.start) + _LIMIT_S,
        priority=1000,
        account=ACCOUNTS[job.user],
        qos="normal",
    )


# --- Nodes ------------------------------------------------------------------------------------------------------------


def _slurm_node(name: str, kind: _Kind, job: _DemoJob | None, *, down: bool = False) -> SlurmNode:
    state = "DOWN" if down else "IDLE" if job is None else "ALLOCATED"
    return SlurmNode(
        name=name,
        states=(state, "NOT_RESPONDING") if down else (state,),
        reason="Not responding" if down else "",
        cpus=kind.cpus,
        cpus_allocated=0 if job is None else kind.cpus,
        memory_mib=kind.memory_mib,
        memory_allocated_mib=0 if job is None else kind.memory_mib,
        gpus=kind.gpus,
        gpus_allocated=0 if job is None or not job.work.per_gpu else kind.gpus,
        partitions=("gpu" if kind.gpus else "cpu",),
    )


def _wave(now: float, period: float, phase: float) -> float:
    """Return a wave's value, -1 to 1."""
    return math.sin(2 * math.pi * (now / period + phase))


def _means(level: float, swing: float, now: float, period: float, phase: float, over: float, most: float) -> Means:
    """Return the means of the wave over the windows; longer windows are flatter."""

    def at(window: float) -> float:
        x = math.pi * min(window, over, 900.0) / period
        return max(0.0, min(most, level + swing * (math.sin(x) / x if x else 1.0) * _wave(now, period, phase)))

    over_s = min(900.0, max(INTERVAL_S, over))
    return Means(m1=at(60), m5=at(300), m15=at(900), over_s=over_s, m10=at(600) if over_s >= 600.0 else None)


def _time(kind: _Kind, running: float) -> float:
    """Return the CPU time of so many running threads, in cores: no more than there are."""
    return min(0.98 * kind.cpus, running)


def _snapshot(name: str, number: int, kind: _Kind, job: _DemoJob | None, now: float, rich: bool) -> Snapshot:
    place = number * 31 + ord(name[0])
    taken = now - INTERVAL_S * _noise(place)
    uuids = [f"GPU-demo-{name}-{index}" for index in range(kind.gpus)]
    cpu_cores, host_mib, task_mib, peak_mib = 0.05 + 0.05 * _noise(place, 1), 3000, 0, 0
    processes: list[ProcessLoad] = []
    if job is not None:
        work = job.work
        cpu_cores = kind.cpus * work.cpu_percent / 100.0 * (1 + 0.12 * _wave(now, 240, _noise(place, 2)))
        grown = 0.4 + 0.6 * min(1.0, job.age / 120.0)
        if work.grows:
            # Memory rises until the GPU is full and half of the tasks die; that of the others starts low.
            done = job.age / (0.6 * job.life) if not job.lost else (job.age - 0.6 * job.life) / job.life
            grown = 0.25 + 0.75 * min(1.0, done)
            task_mib = int(grown * kind.gpu_mib / work.per_gpu * 0.97)
            peak_mib = int(kind.gpu_mib / work.per_gpu * 0.97) if job.lost else task_mib
        else:
            task_mib = int(work.task_gib * 1024 * grown)
            peak_mib = max(task_mib, int(work.task_gib * 1024 * min(1.0, 0.4 + job.age / 200.0)))
        host_mib += int(work.host_gib * 1024 * (job.tasks - job.lost) * grown)
        host_mib = min(host_mib, int(kind.memory_mib * 0.93))
        for slot in range(0 if not work.per_gpu else job.tasks - job.lost if rich else min(job.tasks, 2 * kind.gpus)):
            sm_time_percent = min(100.0, work.gpu_percent * (1 + 0.2 * _wave(now, 47, _noise(slot))))
            on = OnGpu(
                uuid=uuids[slot % kind.gpus],
                memory_mib=task_mib,
                peak_mib=peak_mib,
                sm_time_percent=round(sm_time_percent, 1),
            )
            processes.append(
                ProcessLoad(
                    pid=10_000 + slot * 13 + number % 1000,
                    start_ticks=int(job.start * 100) % 1_000_000_000,
                    name="python",
                    uid=USERS[job.user],
                    user=job.user,
                    job=job.id,
                    step="0",
                    task=slot,
                    slot=slot if work.share else None,
                    gpus=(on,),
                    cap_mib=int(kind.gpu_mib * 0.98 / work.per_gpu) if work.share else None,
                    cpu_cores=round(_time(kind, cpu_cores) / job.tasks, 2),
                    memory_mib=host_mib // max(1, job.tasks),
                    progress=_progress(job, slot, now) if rich else None,
                )
            )
    alive = len(processes)
    gpus = tuple(
        _gpu(index, uuid, kind, job, on_it, on_it * task_mib, now, _noise(place, index), rich)
        for index, uuid in enumerate(uuids)
        for on_it in (len(range(index, alive, kind.gpus)),)
    )
    jobs: tuple[JobLoad, ...] = ()
    users: tuple[UserLoad, ...] = ()
    if job is not None:
        cpu = round(_time(kind, cpu_cores), 2)
        use: dict[str, Any] = {
            "uid": USERS[job.user],
            "user": job.user,
            "gpus": tuple(uuids[:alive]),
            "gpu_memory_mib": alive * task_mib,
            "gpu_load": round(sum(gpu.load_percent_5min or 0.0 for gpu in gpus) / 100.0, 3),  # the job has all of them
            "cpu_cores": cpu,
            "memory_mib": host_mib,
        }
        one = JobLoad(
            job=job.id,
            share=job.work.per_gpu if job.work.share else None,
            slots=job.tasks if job.work.share else None,
            tasks=alive,
            cpu_cores_windows=Means(cpu, cpu, cpu, min(900.0, job.age)),
            memory_kills=job.lost,
            task_peak_mib=peak_mib if alive else None,
            task_host_peak_mib=host_mib // max(1, job.tasks),
            tasks_measured=job.tasks if alive else 0,
            tasks_at_once=job.tasks if alive else 0,
            measured_s=job.age,
            **use,
        )
        tasks = tuple(process.progress for process in processes if process.progress is not None)
        jobs = with_progress((one,), (RunProgress(uid=USERS[job.user], job=job.id, tasks=tasks),) if tasks else ())
        users = (UserLoad(jobs=(job.id,), processes=alive, **use),)
    average = cpu_cores * min(1.0, (job.age if job else 900.0) / 300.0) + 0.1
    return Snapshot(
        node=name,
        taken=taken,
        source="demo",
        measured_s=86_400.0,
        interval_s=INTERVAL_S,
        driver="simulated" if kind.gpus else None,
        cpus=kind.cpus,
        cores=kind.cpus,
        load=(round(cpu_cores + 0.1, 2), round(average, 2), round(0.9 * average, 2)),
        cpu_cores=round(_time(kind, cpu_cores), 2),
        memory_total_mib=kind.memory_mib,
        memory_used_mib=host_mib,
        gpus=gpus,
        processes=tuple(processes),
        jobs=jobs,
        users=users,
    )


def _progress(job: _DemoJob, slot: int, now: float) -> TaskProgress | None:
    """Return the progress that the task's launcher would report: the mean over the last whole window. In each ten
    minutes, a run that packs its tasks pauses its last task for a minute and a half, and the other tasks on its GPU are
    faster."""
    work = job.work
    if not work.counted_from:
        return None
    last = job.tasks - 1
    is_last_paused = bool(work.booked_gib) and 180 <= now % 600 < 270
    is_paused = is_last_paused and slot == last
    windows = int(job.age // WINDOW_S)
    phase = _noise(job.id, slot)
    at = now // WINDOW_S * WINDOW_S
    swing = 0.6 * _wave(at, 410.0, phase) + 0.8 * (_noise(job.id, slot, int(at)) - 0.5)
    speed_ratio = work.speed_ratio
    if is_last_paused and (last - slot) * work.per_gpu % job.tasks == 0:
        speed_ratio = 1 - 0.5 * (1 - work.speed_ratio)
    speed_ratio = round(min(1.0, speed_ratio * (1 + (0.15 if work.per_gpu > 1 else 0.04) * swing)), 3)
    per_s = round(work.alone_per_s * speed_ratio, 4) if windows else None
    return TaskProgress(
        task=slot,
        run=f"LLSUB.{job.id}",
        family=work.name,
        rate_per_s=per_s,
        rate_error_per_s=None if per_s is None else round(0.04 * per_s / math.sqrt(windows), 5),
        rate_windows=min(windows, 20),
        rate_source="" if per_s is None else work.counted_from,
        speed_ratio=None if per_s is None else speed_ratio,
        units=round(work.alone_per_s * work.speed_ratio * job.age, 1),
        is_paused=is_paused,
    )


def _gpu(
    index: int, uuid: str, kind: _Kind, job: _DemoJob | None, on_it: int, mib: int, now: float, phase: float, rich: bool
) -> GpuLoad:
    """Return a GPU with `on_it` tasks, which have `mib` of its memory. `phase`: of the wave of its load, 0 to 1."""
    level = min(97.0, (0.0 if job is None else job.work.gpu_percent) * on_it)
    age = 900.0 if job is None else job.age
    load = _means(level, 0.25 * min(level, 100 - level), now, 90.0 + 60.0 * phase, phase, age, 100.0)
    activity = Activity()
    if kind.gpm and rich:
        activity = Activity(**_made_up(Activity, load.m1) | {"dram_percent": round(load.m1 * (0.35 + 0.2 * phase), 1)})
    # Utilisation counts any kernel as a busy GPU: an upper bound.
    utilization = _times(load, 1.25)
    gpu = GpuLoad(
        uuid=uuid,
        index=index,
        name=kind.gpu,
        minor=index,
        simulated=True,
        memory_total_mib=kind.gpu_mib,
        memory_used_mib=min(kind.gpu_mib, mib + (420 if on_it else 0)),
        utilization_percent=round(utilization.m1, 1),
        utilization_percent_windows=utilization,
        sm_percent_windows=load if kind.gpm else None,
        dram_percent_windows=_times(load, 0.35 + 0.2 * phase) if kind.gpm else None,
        activity=activity,
        power_w=round(45.0 + 2.5 * load.m1, 1),
        temperature_c=int(30 + 0.45 * level),
        clients=on_it,
        mps_servers=0,
        unused_s=None if on_it else min(900.0, age),
        unknown={} if kind.gpm else dict.fromkeys(("sm", "dram"), "the driver has no GPM for this GPU"),
        **_made_up(GpuLoad, load.m1),
    )
    if job is None or not job.work.booked_gib or not on_it:
        return gpu
    # A packed run has booked memory. In each ten minutes, the last GPU is held for two.
    is_held = index == kind.gpus - 1 and now % 600 < 120
    booking = GpuBooking(
        uid=USERS[job.user],
        job=job.id,
        booked_mib=int(on_it * job.work.booked_gib * 1024),
        tasks=on_it,
        clients=on_it,
        held_for=job.tasks + 3 if is_held else None,
        held_since=now - now % 600 if is_held else None,
    )
    return structs.replace(gpu, booked_mib=booking.booked_mib, bookings=(booking,))


def _made_up(record: type[Struct], load_percent: float) -> dict[str, Any]:
    """Return the figures with a `Metric.demo`, which is their value at full load, for a GPU with this load."""
    found = {}
    for one in measured(record):
        if one.metric.demo is not None:
            value = one.metric.demo * load_percent / 100
            found[one.name] = round(value) if one.is_whole else round(value, 1)
    return found


def _times(load: Means, factor: float) -> Means:
    """Return the means multiplied, at most 100."""
    means = {name: getattr(load, name) for name in ("m1", "m5", "m15", "m10")}
    return structs.replace(
        load, **{name: min(100.0, value * factor) for name, value in means.items() if value is not None}
    )
