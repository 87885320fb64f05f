"""Find jobs that hold GPUs and have never had a process on them. Values in, values out.

It is said only of what was watched: every node of the job, since the job's start, by a driver that lists the processes
of its GPUs. A daemon or a server of MPS is no use of a GPU, and another job's process is none of this job's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ....core import nodelist
from ....core.text import counted, fold, span_text
from ....slurm.records import QueuedJob
from ...snapshot import Confidence, JobLoad, Snapshot
from .. import idle, thresholds
from .causes import AdviceDraft
from .evidence import is_own

DECIDED_BY = "no process"
_COUNTS = ("tasks", "tasks_measured", "tasks_at_once", "measured_s")
"""Figures of a job without which its processes on GPUs are not known."""
_NOT_AT_WORK = {"COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED"}
_MOST_NAMED = 4
"""Most elements of an array that are named."""


class UnusedGpus(Struct, frozen=True, kw_only=True):
    """The GPUs that a job holds without a process on them."""

    answer: AdviceDraft
    gpus: int
    """On all nodes of the job, or of the elements of an array."""
    since: float
    """Unix time since which no process was on them: the start of the job."""


def judged(jobs: Sequence[QueuedJob], snapshots: Sequence[Snapshot], now: float | None) -> UnusedGpus | None:
    """Return the GPUs that all these jobs, one or the elements of an array, hold and have not used for ten minutes from
    their start. None: they use some, or it is not known. `now`: Unix time of the snapshots."""
    by_name = {one.node: one for one in snapshots}
    if now is None or not jobs or not all(_holds(job) for job in jobs):
        return None
    spans = [_unused_span(job, by_name, now) for job in jobs]
    known = [one for one in spans if one is not None]
    if len(known) < len(jobs) or now - max(since for since, _ in known) < thresholds.HELD_IDLE_S:
        return None
    since, has_steps = max(since for since, _ in known), all(has for _, has in known)
    gpus = sum(_count(job) for job in jobs)
    cores = sum(
        load.cpu_cores_windows.m5 if load.cpu_cores_windows is not None else load.cpu_cores or 0.0
        for job in jobs
        for load in _loads(job, by_name)
    )
    answer = AdviceDraft(
        "release",
        None,
        DECIDED_BY,
        _sentence(jobs, gpus, now - since, cores, has_steps=has_steps),
        surest=_surest(jobs, now - since, cores),
    )
    return UnusedGpus(answer=answer, gpus=gpus, since=since)


def watched_text(jobs: Sequence[QueuedJob], loads: Sequence[JobLoad]) -> tuple[str, ...]:
    """Return the sentence about jobs that had no process on their GPUs while they were watched, which was not from
    their start."""
    watched = min((load.measured_s for load in loads), default=0.0)
    if not jobs or not all(_holds(job) for job in jobs) or watched < thresholds.HELD_IDLE_S:
        return ()
    if not all(_never_used(load) for load in loads):
        return ()
    return (
        f"no process of it was on its {counted(sum(map(_count, jobs)), 'GPU')} in the {span_text(watched)} that it was "
        "watched; what was before is not known",
    )


def _holds(job: QueuedJob) -> bool:
    is_at_work = "RUNNING" in job.states and not _NOT_AT_WORK & set(job.states)
    return is_at_work and job.start is not None and _count(job) > 0


def _count(job: QueuedJob) -> int:
    """Return the GPUs of a job; one of which it has a part counts as one."""
    return job.gpus or sum(len(numbers) for numbers in job.gpu_indexes or ())


def _loads(job: QueuedJob, by_name: Mapping[str, Snapshot]) -> list[JobLoad]:
    names = nodelist.unfold(job.nodes)
    return [load for name in names if name in by_name for load in by_name[name].jobs if load.job == job.job_id]


def _never_used(load: JobLoad) -> bool:
    is_known = not any(field in load.unknown for field in _COUNTS)
    return is_known and not load.gpus and load.tasks == load.tasks_measured == load.tasks_at_once == 0


def _unused_span(job: QueuedJob, by_name: Mapping[str, Snapshot], now: float) -> tuple[float, bool] | None:
    """Return (the time since which no process of a job was on its GPUs, whether a step of it runs on each of its
    nodes); None: there was one, or it is not known."""
    names = nodelist.unfold(job.nodes)
    if not names or any(name not in by_name for name in names):
        return None
    assert job.start is not None
    found = [float(job.start)]
    has_steps = True
    for name in names:
        snapshot = by_name[name]
        load = next((one for one in snapshot.jobs if one.job == job.job_id), None)
        numbers = idle.numbers_on(job, name) or ()
        uuids = idle.granted(snapshot, numbers)
        if not _are_listed(job, snapshot, uuids, numbers):
            return None
        if load is not None:
            # A Prolog takes time before the first step, and an agent a moment to see it.
            if not _never_used(load) or now - job.start - load.measured_s > thresholds.SEEN_FROM_START_S:
                return None
            continue
        # Without a step there, only the time for which nobody's process was on its GPUs is known.
        unused = [gpu.unused_s for gpu in snapshot.whole_gpus if gpu.uuid in uuids]
        if "jobs" in snapshot.unknown or not unused or any(one is None for one in unused):
            return None
        has_steps = False
        found.append(now - min(one for one in unused if one is not None))
    return max(found), has_steps


def _are_listed(job: QueuedJob, snapshot: Snapshot, uuids: set[str], numbers: Sequence[int]) -> bool:
    """Return whether every process on the job's GPUs of a node is known to be no use by this job."""
    gpus = snapshot.whole_gpus
    if not gpus or any(gpu.clients is None or gpu.problem is not None for gpu in gpus):
        return False
    is_mig = any(gpu.mig_of is not None for gpu in gpus)
    if not is_mig and len(uuids) < len(numbers):
        return False  # others use one of them, and it is not shown
    mine = [gpu for gpu in gpus if gpu.uuid in uuids]
    programs = [one for one in snapshot.processes if not is_own(one)]
    if any(one.job is None and one.uid == job.uid for one in programs):
        return False  # it may be the job's
    if job.has_shards:
        return True
    taken = {on.uuid for one in programs for on in one.gpus}
    for gpu in mine:
        means = gpu.load_percent_windows
        if gpu.others_mib or (means is not None and gpu.uuid not in taken and means.m5 >= thresholds.HELD_IDLE):
            return False  # a process that is not listed may use it
    return True


def _surest(jobs: Sequence[QueuedJob], unused_s: float, cores: float) -> Confidence:
    """Return how sure it is that the job does not need its GPUs: a person at a shell, or a long start, may soon. Of a
    job without a known script (salloc, srun, --wrap) it is not known whether it is a shell."""
    if not all(job.script for job in jobs) or cores >= thresholds.STARTING_CORES:
        return "low"
    return "high" if unused_s >= thresholds.UNUSED_LONG_S else "medium"


def _sentence(jobs: Sequence[QueuedJob], gpus: int, unused_s: float, cores: float, *, has_steps: bool) -> str:
    them = "it" if gpus == 1 else "them"
    what = "its GPU" if gpus == 1 else f"its {gpus} GPUs"
    none = f"does not use {what}" if gpus == 1 else f"uses none of {what}"
    if any(job.has_shards for job in jobs):
        none, them = f"does not use its part{'s' * (gpus > 1)} of {counted(gpus, 'GPU')}", "it" if gpus == 1 else "them"
    ids = [job.id for job in jobs]
    if len(ids) > _MOST_NAMED:  # not the whole array: its other elements wait
        ids = [f"'{jobs[0].array}_[{fold(job.element or 0 for job in jobs)}]'"]
    end = f"scancel {' '.join(ids)}"
    if not all(job.script for job in jobs):
        end += ", or leave its shell if it is one"
    long = span_text(unused_s)
    why = f"since its start {long} ago" if has_steps else f"for {long} at least, and no step of it runs"
    said = f"{none}: release {them} ({end}): no process of it has been there {why}"
    if cores >= thresholds.STARTING_CORES:
        said += f"; its CPU time is {cores:.1f} cores: if it prepares its input, a job without GPUs can do that before"
    return said
