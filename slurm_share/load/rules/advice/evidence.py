"""Take the evidence of an advice from a snapshot: the figures of one job on one node."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ....share import registry
from ....slurm.records import QueuedJob, SlurmNode
from ...snapshot import GpuLoad, JobLoad, JobProgress, ProcessLoad, Snapshot
from .. import idle, rates, thresholds, windows
from ..sums import added, whole
from . import usage


class Room(Struct, frozen=True):
    """The memory of one GPU in MiB."""

    total: int
    outside: int
    """Memory used by anything but the job's tasks: the driver, an MPS server, other jobs."""
    used: int | None = None
    own: int | None = None
    """Sum of the peaks of the job's present processes; None: not all are known."""
    is_host: bool = False
    """True: the GPU uses the node's memory, and `total` is MemTotal."""


class Card(Struct, frozen=True):
    """One GPU of the job on a node."""

    index: int
    tasks: int
    """The job's processes that work on it now."""
    load: float | None
    """Load in percent; None: not known."""

    @property
    def is_busy(self) -> bool:
        """Return whether it has tasks and its load is known."""
        return self.tasks > 0 and self.load is not None


class Evidence(Struct, frozen=True, kw_only=True):
    """The figures of one job, or of an array's elements together, on one node."""

    node: str
    running: int = 0
    """Tasks on GPUs at the moment of the snapshot; for a job without GPUs, the tasks that it was started with."""
    now: int | None = None
    """The most tasks that ran at once; None: not known."""
    gpus: int = 0
    """GPUs that the job has on the node."""
    gpus_sure: bool = True
    """False: Slurm has only the sum of its GPUs over all nodes, which have different numbers of them."""
    gpus_of_node: int = 0
    broken: tuple[str, ...] = ()
    """Its GPUs that cannot be used, and why, such as: GPU 3 (GPU is lost)."""
    is_mig: bool = False
    load: float | None = None
    """Load of the job's GPUs together, from all users: 2.0 is two GPUs fully busy."""
    own_load: float | None = None
    """The job's part of `load`."""
    alone: bool = True
    """False: others have processes on these GPUs, and their part of the load is not known, so own_load includes it."""
    is_sm: bool = False
    """True: the load is SM activity on every GPU; False: utilisation, an upper bound of it."""
    cards: tuple[Card, ...] = ()
    """The job's GPUs on the node, with and without tasks."""
    windows: tuple[float, ...] = ()
    """Mean load of a GPU with tasks, percent, over the last 1, 5 and 15 minutes that the job was watched."""
    dram_percent: float | None = None
    """Memory bandwidth of the GPU that uses most of it, over the same time as the load; of one moment if the sampler
    keeps no means."""
    load_window_s: float = 0.0
    rooms: tuple[Room, ...] = ()
    """Memory of the job's GPUs; empty if the size of one is not known."""
    other_clients: int = 0
    """The most processes that the same user has outside this job on one of these GPUs."""
    peak_mib: int | None = None
    median_mib: int | None = None
    """Median of the running tasks' peaks; None: too few run, or the memory of one is not known."""
    is_packed: bool = False
    """True: its run places tasks by their sizes (`llsub --pack`)."""
    cap_mib: int | None = None
    """The smallest memory cap of its tasks."""
    in_advance: tuple[str, ...] | None = None
    """The libraries of the largest task that take GPU memory at their start, as in ProcessLoad; None: not known."""
    connections: int | None = None
    """The largest CUDA_DEVICE_MAX_CONNECTIONS of its tasks; None: none sets it."""
    processes_of_task: int = 1
    """Processes that a task has on GPUs, the mean rounded up: each is a client of MPS."""
    spans: int = 1
    """The most GPUs on which one task works at once."""
    spanning_processes: int = 1
    """Processes of the task with `spans`."""
    host_total_mib: int | None = None
    """Host memory that its tasks may have together: the node's less the use of others, or the job's own limit."""
    host_limited: bool = False
    """True: host_total_mib is the job's own limit: the memory that Slurm gave it on the node."""
    host_peak_mib: int | None = None
    host_used_mib: int | None = None
    """Host memory of all its tasks now."""
    cores: int = 0
    """Cores that the job has, or would have as a share."""
    cpus: int = 0
    """Hardware threads that the job has, or would have as a share."""
    cpu_cores: float | None = None
    """CPU time of the job in cores: 3.0 is three CPUs busy with it."""
    load_average: float | None = None
    """The node's load average: processes of the job, and of the system, that run, wait for a CPU, or wait for storage
    or a lock of the kernel (proc_loadavg(5)). None: not known, or another job, or much else, has a part in it."""
    others_cores: float | None = None
    """CPU time of the node outside the job, in cores; None: not known, or the source does not list processes."""
    driver: str | None = None
    kills: int = 0
    """Processes that the kernel ended because host memory was full."""
    tasks_measured: int = 0
    measured_s: float = 0.0
    progress: JobProgress | None = None
    """The progress of its tasks together; None: no launcher reports it."""
    why_no_progress: str = ""
    """Why it is not known whether a launcher reports it, such as: only its user can read that."""
    largest: int | None = None
    """Number of the task with `peak_mib` in its run of llsub; None: not known, or it has ended."""
    spanning: int | None = None
    """Number of the task with `spans` in its run of llsub; None: not known."""

    @property
    def is_at_cap(self) -> bool:
        """Return whether the largest task took all that its cap allows, so that it may need more."""
        return bool(self.peak_mib and self.cap_mib and 100 * self.peak_mib >= thresholds.PEAK_AT_CAP * self.cap_mib)

    @property
    def size_mib(self) -> int | None:
        """Return the GPU memory that counts for the largest task: its peak; if that is at its cap, the cap."""
        return max(self.peak_mib or 0, self.cap_mib or 0) if self.is_at_cap else self.peak_mib

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the figures that are not known and make an advice weaker. Those without which there is none are not
        listed."""
        found = ["host memory of a task"] if not self.host_peak_mib or not self.host_total_mib else []
        found += ["CPU time"] if self.cpu_cores is None else []
        return (*found, *(["what else is in its GPUs' memory"] if any(one.used is None for one in self.rooms) else []))

    @property
    def busy(self) -> tuple[Card, ...]:
        """Return the GPUs that have tasks and whose load is known."""
        return tuple(card for card in self.cards if card.is_busy)

    @property
    def busy_percent(self) -> float | None:
        """Return the mean load of a GPU with tasks, in percent."""
        loads = [card.load for card in self.busy if card.load is not None]
        return sum(loads) / len(loads) if loads else None

    @property
    def own_percent(self) -> float | None:
        """Return the mean of the job's own part of the load of a GPU with tasks, in percent."""
        return 100 * self.own_load / len(self.busy) if self.own_load is not None and self.busy else None

    @property
    def has_unlike_sizes(self) -> bool:
        """Return whether the largest task took much more GPU memory than half of the tasks do."""
        if self.median_mib is None or self.peak_mib is None:
            return False
        more = self.peak_mib - self.median_mib
        return more >= thresholds.UNLIKE_MIB and self.peak_mib >= thresholds.UNLIKE * self.median_mib

    @property
    def windows_disagree(self) -> bool:
        """Return whether the means of the load over the windows differ too much for a steady load."""
        if len(self.windows) < 2:
            return False
        least, most = min(self.windows), max(self.windows)
        return most - least >= thresholds.DISAGREE and most > thresholds.DISAGREE_TIMES * least


def of_job(
    snapshot: Snapshot, jobs: Sequence[QueuedJob], loads: Sequence[JobLoad], slurm: SlurmNode | None
) -> Evidence:
    """Return the evidence of one node. `loads`: the snapshot's records of the job, or of an array's elements; at least
    one. `jobs`: Slurm's records of them; empty if Slurm did not answer. Raises UsageError for a job whose nodes are no
    list."""
    ids = {load.job for load in loads}
    programs = [one for one in snapshot.processes if not is_own(one)]
    processes = [one for one in programs if one.job in ids]
    used = {uuid for load in loads for uuid in load.gpus}
    granted = idle.granted(snapshot, {n for job in jobs for n in idle.numbers_on(job, snapshot.node) or ()})
    gpus, is_sure = _gpus_here(snapshot, jobs, granted, used)
    of_node = max(gpus, slurm.gpus if slurm else 0, len(snapshot.whole_gpus) + snapshot.hidden_gpus)
    mine = [
        gpu
        for gpu in snapshot.whole_gpus
        if gpu.uuid in used or gpu.uuid in granted or len(snapshot.whole_gpus) == gpus
    ]
    busy = [gpu for gpu in mine if gpu.uuid in used]
    watched_s = max(load.measured_s for load in loads)
    total = added([windows.recent(gpu.load_percent_windows, watched_s) for gpu in busy])
    load = None if total is None else total / 100
    # A source without processes tells the job's part of its GPUs by their sums.
    has_sums = not snapshot.knows_processes
    own_load, alone = _own_by_sums(snapshot, loads, busy, load) if has_sums else _own(programs, ids, busy, load)
    outside_mib = _outside_by_sums(snapshot, loads, busy) if has_sums else None
    part = gpus / of_node if gpus and of_node else 1.0
    asked_cpus = sum((job.cpus or 0) // (job.node_count or 1) for job in jobs)
    cpus = max(asked_cpus, int(snapshot.cpus * part)) if gpus else asked_cpus or snapshot.cpus
    host_total, host_limited = usage.host_memory(snapshot, jobs, loads, slurm, part)
    peak_mib = _most(load.task_peak_mib for load in loads if load.tasks or load.tasks_measured)
    running = sum(load.tasks for load in loads)
    those = usage.by_task(processes, running)
    widest = max(those, key=lambda task: usage.works_on(usage.on_gpus(task)), default=())
    return Evidence(
        node=snapshot.node,
        running=running,
        now=sum(max(load.tasks, load.tasks_at_once) for load in loads) or None,
        gpus=gpus,
        gpus_sure=is_sure,
        gpus_of_node=of_node,
        broken=tuple(f"GPU {gpu.index} ({gpu.problem})" for gpu in mine if gpu.problem is not None),
        is_mig=any(gpu.mig_of is not None for gpu in mine),
        load=load,
        own_load=own_load,
        alone=alone,
        is_sm=bool(busy) and all(gpu.sm_percent_windows is not None for gpu in busy),
        cards=tuple(
            Card(
                gpu.index,
                _tasks_by_sums(snapshot, gpu, ids) if has_sums else usage.tasks_on(gpu, those),
                windows.recent(gpu.load_percent_windows, watched_s),
            )
            for gpu in mine
        ),
        windows=_windows(busy, watched_s),
        dram_percent=max((dram for gpu in busy if (dram := _dram(gpu, watched_s)) is not None), default=None),
        load_window_s=min(
            (gpu.load_percent_windows.over_s for gpu in busy if gpu.load_percent_windows is not None), default=0.0
        ),
        rooms=tuple(_room(gpu, processes, outside_mib if gpu in busy else None) for gpu in mine)
        if all(gpu.memory_total_mib for gpu in mine)
        else (),
        other_clients=_other_clients(mine, programs, ids, loads[0].uid),
        peak_mib=peak_mib,
        median_mib=usage.median(those),
        is_packed=any(one.job in ids for gpu in mine for one in gpu.bookings),
        cap_mib=min((one.cap_mib for one in processes if one.cap_mib is not None), default=None),
        in_advance=usage.in_advance(those, peak_mib),
        connections=max((one.connections for one in processes if one.connections is not None), default=None),
        processes_of_task=-(-len(processes) // max(1, running)) or 1,
        spans=usage.works_on(usage.on_gpus(widest)),
        spanning_processes=len(widest) or 1,
        host_total_mib=host_total,
        host_limited=host_limited,
        host_peak_mib=_most(load.task_host_peak_mib for load in loads if load.tasks or load.tasks_measured),
        host_used_mib=whole(added([load.memory_mib for load in loads])),
        cores=max(1, cpus * snapshot.cores // max(1, snapshot.cpus)),
        cpus=max(1, cpus),
        cpu_cores=usage.cpu_cores(loads),
        load_average=usage.load_average(snapshot, loads) if usage.has_node_alone(snapshot, jobs, slurm) else None,
        others_cores=usage.others_cores(snapshot, loads),
        driver=snapshot.driver,
        kills=sum(load.memory_kills or 0 for load in loads),
        tasks_measured=sum(load.tasks_measured for load in loads),
        measured_s=watched_s,
        progress=rates.joined(loads),
        why_no_progress=next((load.unknown["progress"] for load in loads if "progress" in load.unknown), ""),
        largest=next((usage.number(task) for task in those if peak_mib and usage.peak(task) == peak_mib), None),
        spanning=usage.number(widest),
    )


def with_tasks(node: Evidence, count: int) -> Evidence:
    """Return the evidence with `count` running tasks, for a job without GPUs, whose tasks no sampler counts."""
    host = node.host_peak_mib or (None if node.host_used_mib is None else max(1, node.host_used_mib // count))
    return replace(node, running=count, now=count, host_peak_mib=host)


def scaled_to_gpus(node: Evidence, gpus: int) -> Evidence:
    """Return the evidence scaled to a node with that many GPUs, and the same tasks, cores and memory for each GPU."""
    if gpus == node.gpus:
        return node
    part = gpus / node.gpus
    return replace(
        node,
        gpus=gpus,
        gpus_of_node=gpus + max(0, node.gpus_of_node - node.gpus),
        running=math.ceil(node.running * part),
        now=None if node.now is None else math.ceil(node.now * part),
        load=_times(node.load, part),
        own_load=_times(node.own_load, part),
        host_total_mib=whole(_times(node.host_total_mib, part)),
        host_used_mib=whole(_times(node.host_used_mib, part)),
        cores=max(1, int(node.cores * part)),
        cpus=max(1, int(node.cpus * part)),
        cpu_cores=_times(node.cpu_cores, part),
        load_average=_times(node.load_average, part),
        others_cores=_times(node.others_cores, part),
        progress=None,
    )


def with_load(node: Evidence, gpu: float = 1.0, cpu: float = 1.0, average: float = 1.0) -> Evidence:
    """Return the evidence with the loads of its GPUs, its CPU time and the load average multiplied by these factors."""
    return replace(
        node,
        load=_times(node.load, gpu),
        own_load=_times(node.own_load, gpu),
        cards=tuple(replace(card, load=_times(card.load, gpu)) for card in node.cards),
        dram_percent=_times(node.dram_percent, gpu),
        cpu_cores=_times(node.cpu_cores, cpu),
        load_average=_times(node.load_average, average),
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def with_cards(node: Evidence, percents: Sequence[float]) -> Evidence:
    """Return the evidence with these loads for its GPUs with tasks, in their order."""
    before = sum(card.load or 0.0 for card in node.busy)
    scaled = with_load(node, sum(percents) / before if before else 1.0)
    left = iter(percents)
    return replace(scaled, cards=tuple(replace(card, load=next(left)) if card.is_busy else card for card in node.cards))


def is_own(process: ProcessLoad) -> bool:
    """Return whether it is a backend's own process on a GPU, and not a task."""
    return registry.is_own_process(process.name)


def _gpus_here(
    snapshot: Snapshot, jobs: Sequence[QueuedJob], granted: Collection[str], used: Collection[str]
) -> tuple[int, bool]:
    """Return (the job's GPUs on this node, whether that is sure): Slurm's count, at least the GPUs with its processes,
    at most all. A job with part of a GPU is not in Slurm's count."""
    if not jobs:
        return len(snapshot.whole_gpus), True
    if granted:
        return max(len(granted), len(used)), True
    whole = [(job.gpus or 0, job.node_count or 1) for job in jobs if not job.has_shards]
    counted = sum(-(-gpus // nodes) for gpus, nodes in whole)
    there = len(snapshot.whole_gpus) + snapshot.hidden_gpus
    is_sure = all(gpus % nodes == 0 for gpus, nodes in whole) and (counted <= there or not there)
    return max(min(counted, there) if there else counted, len(used)), is_sure


def _other_clients(mine: Sequence[GpuLoad], programs: Sequence[ProcessLoad], ids: Collection[int], uid: int) -> int:
    others = [one for one in programs if one.uid == uid and one.job not in ids]
    return max((sum(any(on.uuid == gpu.uuid for on in one.gpus) for one in others) for gpu in mine), default=0)


def _most(values: Iterable[int | None]) -> int | None:
    """Return the largest value; None if one is not known, because it may be the largest."""
    found = list(values)
    return max((value for value in found if value is not None), default=None) if None not in found else None


def _own(
    programs: Sequence[ProcessLoad], ids: Collection[int], busy: Sequence[GpuLoad], load: float | None
) -> tuple[float | None, bool]:
    """Return (the job's part of the load, whether that is known), as the driver divides SM time among processes."""
    uuids = {gpu.uuid for gpu in busy}
    there = [(one.job in ids, on.sm_time_percent) for one in programs for on in one.gpus if on.uuid in uuids]
    hidden = any(gpu.others_mib for gpu in busy)
    if load is None or (all(is_mine for is_mine, _ in there) and not hidden):
        return load, True
    total = added([percent for _, percent in there])
    if hidden or not total:
        return load, False
    return load * sum(percent or 0.0 for is_mine, percent in there if is_mine) / total, True


def _are_there(snapshot: Snapshot, gpu: GpuLoad, ids: Collection[int]) -> bool:
    """Return whether other jobs than these have a process on a GPU, by the jobs' records."""
    return any(gpu.uuid in job.gpus for job in snapshot.jobs if job.job not in ids)


def _own_by_sums(
    snapshot: Snapshot, loads: Sequence[JobLoad], busy: Sequence[GpuLoad], load: float | None
) -> tuple[float | None, bool]:
    """Return (the job's part of the load, whether that is known), by the job's own record."""
    ids = {load.job for load in loads}
    if not any(_are_there(snapshot, gpu, ids) for gpu in busy):
        return load, True
    own = added([one.gpu_load for one in loads])
    return (load, False) if own is None or load is None else (min(own, load), True)


def _outside_by_sums(snapshot: Snapshot, loads: Sequence[JobLoad], busy: Sequence[GpuLoad]) -> int | None:
    """Return the mean memory in MiB that others than the job use on a GPU with its tasks; None: not known."""
    own, used = added([load.gpu_memory_mib for load in loads]), added([gpu.memory_used_mib for gpu in busy])
    return None if own is None or used is None else max(0, round((used - own) / len(busy)))


def _tasks_by_sums(snapshot: Snapshot, gpu: GpuLoad, ids: Collection[int]) -> int:
    """Return the number of processes on a GPU that has those of this job only, by the driver's count; 0: it has none,
    or the number is not known."""
    is_ours = any(gpu.uuid in job.gpus for job in snapshot.jobs if job.job in ids)
    return (gpu.clients or 0) - (gpu.mps_servers or 0) if is_ours and not _are_there(snapshot, gpu, ids) else 0


def _room(gpu: GpuLoad, processes: Sequence[ProcessLoad], outside_mib: int | None) -> Room:
    """Return the memory of a GPU. `outside_mib`: what others use of it; None: what is not these processes'."""
    here = [on for one in processes for on in one.gpus if on.uuid == gpu.uuid]
    mine = [on.memory_mib for on in here]
    total = gpu.memory_total_mib or 0
    if outside_mib is not None:
        return Room(total, outside_mib, gpu.memory_used_mib, is_host=gpu.is_host_memory)
    if gpu.memory_used_mib is None or any(memory is None for memory in mine):
        return Room(total, gpu.others_mib, gpu.memory_used_mib, is_host=gpu.is_host_memory)
    own = sum(max(on.peak_mib or 0, on.memory_mib or 0) for on in here)
    return Room(total, max(0, gpu.memory_used_mib - sum(memory or 0 for memory in mine)), gpu.memory_used_mib, own)


def _windows(busy: Sequence[GpuLoad], watched_s: float) -> tuple[float, ...]:
    means = [gpu.load_percent_windows for gpu in busy if gpu.load_percent_windows is not None]
    if not means:
        return ()
    count = 1 + (watched_s >= thresholds.SHORT_S) + (watched_s >= thresholds.LONG_S)
    columns = zip(*((one.m1, one.m5, one.m15) for one in means), strict=True)
    return tuple(sum(column) / len(means) for column in columns)[:count]


def _dram(gpu: GpuLoad, watched_s: float) -> float | None:
    """Return the memory bandwidth in percent, over the same time as the load."""
    return (
        gpu.activity.dram_percent
        if gpu.dram_percent_windows is None
        else windows.recent(gpu.dram_percent_windows, watched_s)
    )
