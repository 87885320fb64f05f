"""Add up the progress of a job's tasks on a node, as its launchers report it. Values in, values out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ...node.progress_figures import JobProgress, RunProgress, TaskProgress
from ..snapshot import JobLoad

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
