"""Add up rates of work, as the launchers of llsub report them: of the tasks of a job, the tasks on a GPU, the jobs on a
node, a job on its nodes. Values in, values out.

Rates are added only if all of them count the same unit: epochs of one program and images of another are not added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...core.text import rate_text
from ...node.progress_figures import RunProgress
from ..snapshot import GpuLoad, JobLoad, JobProgress, ProcessLoad, Snapshot, TaskProgress

MAD_OF_NORMAL = 0.6745
"""Median absolute deviation of a normal distribution with standard deviation 1."""


def with_progress(jobs: Sequence[JobLoad], runs: Sequence[RunProgress]) -> tuple[JobLoad, ...]:
    """Return the jobs with the progress that their own users' launchers report."""
    if not runs:
        return tuple(jobs)
    found = []
    for job in jobs:
        own = [run for run in runs if run.job == job.job and run.uid == job.uid]
        found.append(replace(job, progress=of_runs(own)) if own else job)
    return tuple(found)


def of_runs(runs: Sequence[RunProgress]) -> JobProgress:
    """Return the progress of one job from its launchers, at least one."""
    tasks = [task for run in runs for task in run.tasks]
    rated = [task for task in tasks if task.rate_per_s is not None]
    speeds = [task.speed_ratio for task in tasks if task.speed_ratio is not None]
    finished = [run.finished_per_h for run in runs if run.finished_per_h is not None]
    levels = [run for run in runs if run.levels]
    one_run = levels[0] if len(levels) == 1 else None
    return JobProgress(
        source=_only(task.rate_source for task in rated),
        family=_only(task.family for task in tasks),
        tasks=len(tasks),
        rated=len(rated),
        paused=sum(task.is_paused for task in tasks),
        rate_per_s=total_per_s(tasks),
        spread_per_s=_spread_per_s(tasks),
        windows=min((task.rate_windows for task in tasks), default=0),
        speed_ratio=sum(speeds) / len(speeds) if speeds else None,
        finished_per_h=sum(finished) if finished else None,
        levels_source="" if one_run is None else one_run.source,
        levels=() if one_run is None else one_run.levels,
    )


def total_per_s(tasks: Sequence[TaskProgress]) -> float | None:
    """Return the sum of the tasks' rates; None if one has no rate, or they count the units of different commands. A
    paused task does nothing."""
    tasks = [task for task in tasks if not task.is_paused]
    rates = [task.rate_per_s for task in tasks if task.rate_per_s is not None]
    if not tasks or len(rates) < len(tasks):
        return None
    if len(tasks) == 1:
        return rates[0]
    return sum(rates) if _only(task.family for task in tasks) and _only(task.rate_source for task in tasks) else None


def _spread_per_s(tasks: Sequence[TaskProgress]) -> float | None:
    """Return the median absolute deviation of the sum over windows, if they are normal and independent."""
    if total_per_s(tasks) is None or any(task.rate_error_per_s is None for task in tasks):
        return None
    return MAD_OF_NORMAL * math.sqrt(sum((task.rate_error_per_s or 0.0) ** 2 * task.rate_windows for task in tasks))


def _only(values: Iterable[str]) -> str:
    """Return the value if all are equal; empty if they differ or there is none."""
    found = set(values)
    return next(iter(found)) if len(found) == 1 else ""


class RateSum(Struct, frozen=True):
    """The units of work a second of several tasks, and the source of the count."""

    per_s: float
    source: str


def per_s(found: RateSum | None) -> float | None:
    """Return a sum as a number; None without a sum."""
    return None if found is None else found.per_s


def text(found: RateSum | None, *, with_source: bool = False) -> str:
    """Return a sum as text, `with_source`: with its source; empty without a sum."""
    return "" if found is None else rate_text(found.per_s, found.source if with_source else "")


def of_gpu(gpu: GpuLoad | None, processes: Sequence[ProcessLoad]) -> RateSum | None:
    """Return the rate of the programs on a GPU; None if one of them reports no progress, works on further GPUs, counts
    another unit, or is not shown."""
    if gpu is None or gpu.others_mib:
        return None
    tasks = {}
    for one in processes:
        if one.progress is None or len(one.gpus) != 1:
            return None
        tasks[one.job, one.progress.run, one.progress.task] = one.progress
    total = total_per_s(list(tasks.values()))
    source = next((task.rate_source for task in tasks.values() if not task.is_paused), "")
    return None if total is None else RateSum(total, source)


def of_node(snapshot: Snapshot) -> RateSum | None:
    """Return the rate of the jobs of llsub on a node; None if another program is on one of its GPUs."""
    if any(gpu.others_mib for gpu in snapshot.gpus):
        return None
    return of_jobs(job.progress for job in snapshot.jobs)


def of_jobs(found: Iterable[JobProgress | None]) -> RateSum | None:
    """Return the rate of several jobs together, or of one job on several nodes."""
    known = list(found)
    told = [one for one in known if one is not None and one.rate_per_s is not None]
    if not told or len(told) < len(known):
        return None
    if len(told) > 1 and (len({(one.family, one.source) for one in told}) > 1 or not told[0].family):
        return None
    return RateSum(sum(one.rate_per_s or 0.0 for one in told), told[0].source)


def joined(loads: Sequence[JobLoad]) -> JobProgress | None:
    """Return the progress of a job, or of an array's elements together, on a node; None if no launcher reports it."""
    known = [load.progress for load in loads if load.progress is not None]
    if not known or len(known) < len(loads):
        return None
    if len(known) == 1:
        return known[0]
    total = of_jobs(known)
    spreads = [one.spread_per_s for one in known if one.spread_per_s is not None]
    return JobProgress(
        source=known[0].source if total else "",
        family=known[0].family if total else "",
        tasks=sum(one.tasks for one in known),
        rated=sum(one.rated for one in known),
        paused=sum(one.paused for one in known),
        rate_per_s=None if total is None else total.per_s,
        spread_per_s=math.hypot(*spreads) if total and len(spreads) == len(known) else None,
        windows=min(one.windows for one in known),
    )
