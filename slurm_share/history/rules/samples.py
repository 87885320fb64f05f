"""Make the archive's samples from a survey of all users' nodes: one for each user on each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core import nodelist
from ...core.settings import Settings
from ...load import (
    Advice,
    GpuLoad,
    JobLoad,
    NodeLoad,
    Snapshot,
    Survey,
    UserLoad,
    advise_all,
    evidence,
    idle,
    sums,
    windows,
)
from ...slurm.records import QueuedJob
from ..records import ALL, Sample


def samples(
    survey: Survey,
    time: int,
    interval_s: int,
    settings: Settings,
    partitions: Mapping[str, Settings] | None = None,
) -> tuple[Sample, ...]:
    """Return a sample for each user on each node of the user's running jobs, and one (ALL) for the survey itself.

    A silent node has a sample as well, with unknown load. `partitions`: settings of partitions that have their own.
    Raises UsageError for a job whose nodes are no list.
    """
    jobs: dict[tuple[str, str], list[QueuedJob]] = {}
    for job in survey.jobs:
        if "RUNNING" in job.states:
            for node in nodelist.unfold(job.nodes):
                jobs.setdefault((node, job.user), []).append(job)
    for load in survey.nodes:
        # Without Slurm, the jobs are those that the node itself reports.
        for one in load.snapshot.jobs if load.snapshot is not None and survey.jobs_taken is None else ():
            jobs.setdefault((load.name, one.user), [])
    everything = Sample(
        time=time, node=ALL, user=ALL, jobs=sum("RUNNING" in job.states for job in survey.jobs), interval_s=interval_s
    )
    advices = {one.job: one for one in advise_all(survey, settings, partitions)}
    nodes = {node.name: node for node in survey.nodes}
    found = (
        _sample(nodes[node], user, here, advices, time, interval_s, is_alone=_is_alone(jobs, node))
        for (node, user), here in sorted(jobs.items(), key=lambda item: item[0])
        if node in nodes
    )
    return (everything, *found)


def _is_alone(jobs: Mapping[tuple[str, str], object], node: str) -> bool:
    return sum(name == node for name, _ in jobs) == 1


def _sample(
    load: NodeLoad,
    user: str,
    jobs: Sequence[QueuedJob],
    advices: Mapping[int | None, Advice],
    time: int,
    interval_s: int,
    *,
    is_alone: bool,
) -> Sample:
    seen = load.snapshot
    advice = next((advices[number] for job in jobs if (number := job.array or job.job_id) in advices), None)
    known = [job for job in jobs if job.cpus is not None]
    of_node = load.slurm.cpus if load.slurm is not None else 0 if seen is None else seen.cpus
    cpus = sum((job.cpus or 0) // (job.node_count or 1) for job in jobs) if jobs and len(known) == len(jobs) else None
    if seen is None:
        return Sample(
            time=time, node=load.name, user=user, jobs=len(jobs), cpus=cpus, gpus=_gpus(jobs, load.name, None),
            interval_s=interval_s,
        )  # fmt: skip
    loads = [one for one in seen.jobs if one.user == user]
    own = next((one for one in seen.users if one.user == user), None)
    gpus = _gpus(jobs, load.name, own)
    watched_s = max((one.measured_s for one in loads), default=0.0)
    gpu_load, by = _gpu_load(seen, user, own, watched_s)
    return Sample(
        time=time,
        node=load.name,
        user=user,
        jobs=len(jobs) or len(loads),
        cpus=cpus,
        cpu_load=_cpu_load(seen, loads, watched_s, has_node=is_alone and (cpus is None or cpus >= of_node)),
        memory_mib=_known([one.memory_mib for one in loads]),
        gpus=gpus,
        gpu_load=gpu_load if gpus else None,
        gpu_memory_mib=(0 if own is None else own.gpu_memory_mib) if gpus else None,
        load_by=by if gpus else "",
        nppn=None if advice is None else advice.now,
        advised=None if advice is None else advice.next,
        decided_by="" if advice is None else advice.decided_by,
        work="" if advice is None else advice.work,
        interval_s=interval_s,
    )


def _gpus(jobs: Sequence[QueuedJob], node: str, own: UserLoad | None) -> int | None:
    """Return how many GPUs of the node the jobs have; a GPU of which they have parts counts once."""
    if not jobs:
        return None if own is None else len(own.gpus)
    numbers: set[int] = set()
    counted = 0
    for job in jobs:
        told = idle.numbers_on(job, node)
        if told is not None:
            numbers |= set(told)
        elif not job.has_shards:
            counted += -(-(job.gpus or 0) // (job.node_count or 1))
    return max(len(numbers) + counted, 0 if own is None else len(own.gpus))


def _cpu_load(seen: Snapshot, loads: Sequence[JobLoad], watched_s: float, *, has_node: bool) -> float | None:
    """Return the load average, LLSC's measure, if the user has the whole node; else the jobs' CPU time in cores."""
    if has_node and seen.load is not None:
        return windows.within(seen.load, watched_s)
    return sums.added([one.cpu_cores if one.cpu_cores_windows is None else one.cpu_cores_windows.m15 for one in loads])


def _gpu_load(seen: Snapshot, user: str, own: UserLoad | None, watched_s: float) -> tuple[float | None, str]:
    """Return (sum over the user's GPUs, counter). On a GPU with others, the load as the driver divides SM time."""
    if own is None or not own.gpus:
        return (0.0, "") if seen.driver is not None and seen.gpu_sums is None else (None, "")
    gpus = [gpu for gpu in seen.whole_gpus if gpu.uuid in own.gpus]
    by = "sm" if gpus and all(gpu.sm_percent_windows is not None for gpu in gpus) else "util"
    if any(_has_others(seen, gpu, user) for gpu in gpus):
        return own.gpu_load, "util"
    total = sums.added([windows.mean_within(gpu.load_percent_windows, watched_s) for gpu in gpus])
    return (None, "") if total is None else (total / 100, by)


def _has_others(seen: Snapshot, gpu: GpuLoad, user: str) -> bool:
    return bool(gpu.others_mib) or any(
        on.uuid == gpu.uuid
        for one in seen.processes
        if one.user != user and not evidence.is_own(one)
        for on in one.gpus
    )


def _known(values: Sequence[int | None]) -> int | None:
    total = sums.added(values)
    return None if total is None else int(total)
