"""Add up rates of work: of the tasks on a GPU, the jobs on a node, a job on its nodes. Values in, values out.

Rates are added only if all of them count the same unit: epochs of one program and images of another are not added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from ...core.text import rate_text
from ..snapshot import GpuLoad, JobLoad, JobProgress, ProcessLoad, Snapshot
from .job_progress import total_per_s


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
