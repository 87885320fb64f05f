"""Take the evidence of an advice (load/rules/advice) from the records of a job's use over its whole time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ...core import nodelist, numbers
from ...load import evidence as advising
from ...load import thresholds
from ...slurm.accounts import AccountedJob
from ...slurm.records import QueuedJob
from ...usage import GpuUse, JobUse, TaskUse, UseSeries
from ..records import JobReport
from . import figures

Evidence = advising.Evidence
BETWEEN_S = 0.2
"""Seconds by which the next task of a slot may seem to begin before the one before it ends: the launcher sees ends
late."""


def queued(job: AccountedJob, report: JobReport) -> QueuedJob:
    """Return a job of the accounts as the rules of advice take jobs."""
    array = numbers.whole(job.array, numbers.UINT32_MOST)
    memory = job.memory_asked_mib
    return QueuedJob(
        job_id=job.job,
        array=array,
        element=numbers.whole(job.id.rpartition("_")[2]) if array is not None else None,
        name=job.name,
        user=job.user,
        uid=job.uid or 0,
        partition=job.partition,
        states=(job.state,),
        start=None if job.start is None else int(job.start),
        cpus=job.cpus,
        tasks=job.tasks,
        node_count=len(job.nodes) or None,
        nodes=nodelist.fold(job.nodes),
        memory_on_nodes_mib=() if memory is None else (memory,) * len(job.nodes),
        gpus=job.gpus,
        has_shards=bool(job.shards),
        share=report.share or None,
        comment=f"llsub {report.triple}" if report.triple else job.comment,
    )


def of_report(report: JobReport) -> tuple[Evidence, ...]:
    """Return the evidence of each node of the last start that was measured there."""
    return tuple(_of_node(report, use) for use in figures.last_start(report.uses))


def tasks_of(report: JobReport, use: JobUse) -> tuple[TaskUse, ...]:
    """Return the known tasks on a node: of the record, or of the run with a GPU of that node."""
    if use.tasks:
        return use.tasks
    uuids = {gpu.uuid for gpu in use.gpus}
    return tuple(task for task in report.tasks if any(gpu.uuid in uuids for gpu in task.gpus))


def most_at_once(use: JobUse, tasks: Sequence[TaskUse], series: UseSeries | None) -> int | None:
    """Return the most tasks that were on the node's GPUs at once; None: not known."""
    spans = [
        (task.began, task.began + max(0.0, task.seconds - BETWEEN_S))
        for task in tasks
        if task.began is not None and task.seconds
    ]
    if spans and len(spans) == len(tasks):
        changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
        running = most = 0
        for _, change in changes:
            running += change
            most = max(most, running)
        return most
    if series is not None and series.gpus:
        columns = zip(*(gpu.tasks for gpu in series.gpus), strict=False)
        seen = [sum(count or 0 for count in column) for column in columns]
        if any(seen):
            return max(seen)
    if use.share is not None and use.gpus and (use.slots is None or use.slots >= use.share):
        return use.share * len(use.gpus)
    return use.slots  # fewer than N: it had a part of a GPU


def _of_node(report: JobReport, use: JobUse) -> Evidence:
    tasks, gpus = tasks_of(report, use), use.gpus
    series = next((one for one in report.series if (one.job, one.node) == (use.job, use.node)), None)
    now = most_at_once(use, tasks, series)
    if not gpus and now is None:
        now = _slurm_tasks(report)
    span = figures.span_of(use, report.now)
    measured = min((gpu.measured_s or 0.0 for gpu in gpus), default=span or 0.0)
    is_sm = bool(gpus) and all(gpu.sm_percent is not None for gpu in gpus)
    loads = [gpu.sm_percent if is_sm else gpu.utilization_percent for gpu in gpus]
    load = None if not loads or None in loads else sum(one or 0.0 for one in loads) / 100
    was_shared = any(gpu.was_shared for gpu in gpus)
    peaks = [_task_peak(task) for task in tasks]
    known_peaks = [peak for peak in peaks if peak is not None]
    each = -(-now // len(gpus)) if now and gpus else 1
    peak = max(known_peaks, default=None) or _part_of_gpu(gpus, each)
    hosts = [task.memory_peak_mib for task in tasks if task.memory_peak_mib is not None]
    host = max(hosts, default=None)
    if host is None and use.memory_peak_mib is not None and now:
        host = max(1, use.memory_peak_mib // now)
    # A launcher sees the CPUs that it may use, on a simulated node fewer than the job has.
    cpus = _slurm_cpus(report) or use.cpus or 1
    return Evidence(
        node=use.node,
        running=now or 0,
        now=now,
        gpus=len(gpus),
        gpus_of_node=len(gpus),
        is_mig=any(gpu.uuid.startswith("MIG-") for gpu in gpus),
        load=load,
        own_load=_own(gpus, load) if was_shared else load,
        alone=not was_shared or all(gpu.own_sm_percent is not None for gpu in gpus),
        is_sm=is_sm,
        cards=tuple(
            advising.Card(gpu.index if gpu.index is not None else place, each, one)
            for place, (gpu, one) in enumerate(zip(gpus, loads, strict=True))
        ),
        dram_percent=max((gpu.dram_percent for gpu in gpus if gpu.dram_percent is not None), default=None),
        load_window_s=measured,
        rooms=tuple(
            advising.Room(gpu.memory_total_mib or 0, 0, gpu.memory_peak_mib, gpu.memory_peak_mib) for gpu in gpus
        )
        if all(gpu.memory_total_mib for gpu in gpus)
        else (),
        peak_mib=peak,
        median_mib=int(median(known_peaks)) if len(known_peaks) >= thresholds.UNLIKE_TASKS else None,
        cap_mib=min((gpu.memory_cap_mib for gpu in gpus if gpu.memory_cap_mib is not None), default=None),
        in_advance=None,
        host_total_mib=use.memory_limit_mib,
        host_limited=use.memory_limit_mib is not None,
        host_peak_mib=host,
        host_used_mib=use.memory_peak_mib,
        cores=cpus,
        cpus=cpus,
        cpu_cores=use.cpu_s / span if use.cpu_s is not None and span else None,
        kills=use.memory_kills or 0,
        tasks_measured=len(known_peaks) or now or 0,
        measured_s=measured,
    )


def _slurm_tasks(report: JobReport) -> int | None:
    job = report.job
    return None if job is None or job.tasks is None else -(-job.tasks // (len(job.nodes) or 1))


def _slurm_cpus(report: JobReport) -> int | None:
    job = report.job
    return None if job is None or not job.cpus else job.cpus // (len(job.nodes) or 1)


def _task_peak(task: TaskUse) -> int | None:
    known = [gpu.memory_peak_mib for gpu in task.gpus if gpu.memory_peak_mib is not None]
    return sum(known) if known else None


def _part_of_gpu(gpus: Sequence[GpuUse], each: int) -> int | None:
    """Return a task's part of the peak of a GPU, where no task was measured by itself."""
    peak = max((gpu.memory_peak_mib for gpu in gpus if gpu.memory_peak_mib is not None), default=None)
    return None if peak is None else -(-peak // max(1, each))


def _own(gpus: Sequence[GpuUse], load: float | None) -> float | None:
    known = [gpu.own_sm_percent for gpu in gpus if gpu.own_sm_percent is not None]
    return min(load, sum(known) / 100) if load is not None and len(known) == len(gpus) else load
