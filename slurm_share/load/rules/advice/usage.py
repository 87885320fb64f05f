"""Tell the tasks of a job apart by their processes, and add up what each of them, and the job on its node, uses."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ....core import nodelist
from ....slurm.records import QueuedJob, SlurmNode
from ...snapshot import GpuLoad, JobLoad, OnGpu, ProcessLoad, Snapshot
from .. import thresholds, windows
from ..sums import add_up, added, whole

Task = tuple[ProcessLoad, ...]
"""The processes of one task."""


def by_task(processes: Sequence[ProcessLoad], running: int) -> tuple[Task, ...]:
    """Return the processes of each of the `running` tasks. If their records do not tell so many tasks apart, because
    the environments cannot be read, each process counts as a task."""
    if running == 1 and processes:
        return (tuple(processes),)
    if len(processes) > running:
        for key in (_by_run, _by_slot, _by_step):
            found: dict[object, list[ProcessLoad]] = {}
            for one in processes:
                found.setdefault((one.job, key(one)), []).append(one)
            if len(found) == running and not any(key(one) is None for one in processes):
                return tuple(tuple(task) for task in found.values())
    return tuple((one,) for one in processes)


def _by_run(process: ProcessLoad) -> object:
    return None if process.progress is None else process.progress.task


def _by_slot(process: ProcessLoad) -> object:
    return process.slot


def _by_step(process: ProcessLoad) -> object:
    return None if process.task is None else (process.step, process.task)


def on_gpus(task: Task) -> tuple[OnGpu, ...]:
    """Return the use of each GPU by all processes of a task together."""
    found: dict[str, OnGpu] = {}
    for on in (on for one in task for on in one.gpus):
        before = found.get(on.uuid)
        found[on.uuid] = (
            on
            if before is None
            else replace(
                on,
                memory_mib=whole(add_up([before.memory_mib, on.memory_mib])),
                peak_mib=(_most_of(before) or 0) + (_most_of(on) or 0) or None,
            )
        )
    return tuple(found.values())


def _most_of(on: OnGpu) -> int | None:
    """Return the most memory that was seen, in MiB."""
    return max((mib for mib in (on.peak_mib, on.memory_mib) if mib is not None), default=None)


def peak(task: Task) -> int:
    """Return the most GPU memory that was seen of a task, in MiB."""
    return sum(_most_of(on) or 0 for one in task for on in one.gpus)


def number(task: Task) -> int | None:
    """Return the number of a task in its run; None: not known."""
    return next((one.progress.task for one in task if one.progress is not None), None)


def in_advance(tasks: Sequence[Task], peak_mib: int | None) -> tuple[str, ...] | None:
    """Return the libraries of the largest task that take memory at their start. `peak_mib`: the most GPU memory of any
    task of the job, in MiB. None: not known."""
    largest = max(tasks, key=peak, default=())
    # The peak may be of a task that has ended.
    if not largest or not peak_mib or peak(largest) < 0.9 * peak_mib:
        return None
    found = dict.fromkeys(library for one in largest for library in one.in_advance or ())
    return tuple(found) if found or all(one.in_advance is not None for one in largest) else None


def median(tasks: Sequence[Task]) -> int | None:
    """Return the median of the peaks of the tasks that run."""
    memory = [on.memory_mib for task in tasks for one in task for on in one.gpus]
    if len(tasks) < thresholds.UNLIKE_TASKS or None in memory:
        return None
    sizes = sorted(map(peak, tasks))
    return sizes[(len(sizes) - 1) // 2]


def tasks_on(gpu: GpuLoad, tasks: Sequence[Task]) -> int:
    """Return the number of tasks that hold much of their memory on the GPU, or whose memory is not known."""
    count = 0
    for task in tasks:
        uses = on_gpus(task)
        most = max((on.memory_mib or 0 for on in uses), default=0)
        count += any(on.uuid == gpu.uuid and 2 * (on.memory_mib or 0) >= most for on in uses)
    return count


def works_on(gpus: Sequence[OnGpu]) -> int:
    """Return on how many GPUs a task holds much memory. A context that PyTorch leaves on GPU 0 does not count."""
    most = max((on.memory_mib or 0 for on in gpus), default=0)
    return max(1, sum(2 * (on.memory_mib or 0) >= most for on in gpus)) if most else 1


def host_memory(
    snapshot: Snapshot, jobs: Sequence[QueuedJob], loads: Sequence[JobLoad], slurm: SlurmNode | None, part: float
) -> tuple[int | None, bool]:
    """Return (host memory in MiB that the job's tasks may have together, whether that is the job's own limit)."""
    if snapshot.memory_total_mib is None:
        return None, False
    own = added([load.memory_mib for load in loads])
    others = max(0, (snapshot.memory_used_mib or 0) - int(own)) if own is not None else 0
    # Slurm gives jobs no more than RealMemory, which may be less than there is.
    total = min(snapshot.memory_total_mib, int(slurm.memory_mib) if slurm and slurm.memory_mib > 1 else 1 << 60)
    free = snapshot.memory_total_mib - others
    limits = [_memory_of(job, snapshot.node) for job in jobs]
    limit = sum(limits) if limits and all(limits) else None
    if limit is None:
        return min(free, int(total * part)), False
    return (free, False) if limit > free else (limit, True)


def _memory_of(job: QueuedJob, node: str) -> int:
    """Return the memory in MiB that Slurm has given a job on a node; 0: not known. A job of llsub asks for --mem=0, all
    of the node's, so what it asked for says nothing."""
    names = nodelist.unfold(job.nodes)
    if node in names and len(names) == len(job.memory_on_nodes_mib):
        return job.memory_on_nodes_mib[names.index(node)]
    return (job.memory_mib or 0) * ((job.cpus or 0) // (job.node_count or 1) if job.memory_is_per_cpu else 1)


def has_node_alone(snapshot: Snapshot, jobs: Sequence[QueuedJob], slurm: SlurmNode | None) -> bool:
    """Return whether no other job can be on the node, by Slurm: a figure of the node may then be about these jobs."""
    ids = {job.job_id for job in jobs}
    if not jobs or any(load.job not in ids for load in snapshot.jobs):
        return False
    # Slurm gives jobs the CPUs that it counts, cores or hardware threads, whatever the kernel counts.
    cpus = slurm.cpus if slurm is not None and slurm.cpus else snapshot.cpus
    asked = sum((job.cpus or 0) // (job.node_count or 1) for job in jobs)
    return asked >= cpus or all(job.keeps_others_out for job in jobs)


def cpu_cores(loads: Sequence[JobLoad]) -> float | None:
    """Return the CPUs that the records of a job use together, the higher of the means over one and five minutes; None:
    not known."""
    means = [(load, load.cpu_cores_windows) for load in loads]
    return added([load.cpu_cores if of is None else windows.recent(of, load.measured_s) for load, of in means])


def others_cores(snapshot: Snapshot, loads: Sequence[JobLoad]) -> float | None:
    """Return the CPUs of the node that others than the job use now; None: not known."""
    own = added([load.cpu_cores for load in loads])  # of the same moment as the node's
    own = cpu_cores(loads) if own is None else own
    if own is None or snapshot.cpu_cores is None or not snapshot.knows_processes:
        return None
    return max(0.0, snapshot.cpu_cores - own)


def load_average(snapshot: Snapshot, loads: Sequence[JobLoad]) -> float | None:
    """Return the load average of the job's node, over one or five minutes; None: not known, or others explain it."""
    if snapshot.load is None:
        return None
    others, own = others_cores(snapshot, loads) or 0.0, cpu_cores(loads) or 0.0
    if others >= own and 100 * others >= thresholds.OTHERS_CPU * snapshot.cpus:
        return None  # a login or a daemon of the system, and what waits for a CPU because of it
    return snapshot.load[0 if max(load.measured_s for load in loads) < thresholds.SHORT_S else 1]
