"""Judge which GPUs running jobs hold and leave idle. Values in, values out.

A GPU is idle for a job that holds it if its mean utilisation over the last ten minutes is below 5 percent
(`thresholds.HELD_IDLE`), or if no process was on it in that time. Utilisation is an upper bound of SM activity, so a
GPU on which kernels run is never called idle. A MIG instance has no utilisation, and SM activity is used.

It is not known if less than ten minutes were measured, the job has run for less, or the driver does not report it. A
GPU that did enough in the minutes that were measured is not idle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from ...core import nodelist
from ...core.errors import UsageError
from ...core.text import span_text
from ...slurm.records import QueuedJob
from ..snapshot import GpuLoad, HeldGpu, JobLoad, Means, NodeLoad, Snapshot, Survey
from .sums import UNREPORTED
from .thresholds import HELD_IDLE, HELD_IDLE_S

FIVE_S, MOST_S = 300.0, 900.0
"""Lengths of the windows of Means that are used here."""


def judged(survey: Survey) -> Survey:
    """Return the survey with the GPUs that running jobs hold, and whether they are idle (`NodeLoad.held_gpus`)."""
    if not any(node.snapshot is not None and node.snapshot.gpus for node in survey.nodes):
        return survey
    queue = _queue_of_nodes(survey.jobs)
    nodes = tuple(
        replace(node, held_gpus=held_gpus(node, queue.get(node.name, ()), survey.taken)) for node in survey.nodes
    )
    return replace(survey, nodes=nodes)


def held_gpus(node: NodeLoad, queued: Sequence[tuple[QueuedJob, int]], now: float) -> tuple[HeldGpu, ...] | None:
    """Return each GPU that a job holds, once for each job; None if the single GPUs of this node are not known. A job
    holds the GPUs that Slurm gave it, and those on which it has processes. A job that does not run, because it is
    suspended or ends, holds none. `queued`: Slurm's jobs on the node, each with the index of the node in its list.
    `now`: Unix time."""
    snapshot = node.snapshot
    if snapshot is None or (snapshot.gpu_sums is not None and not snapshot.gpus):
        return None
    records = {job.job_id: (job, place) for job, place in queued}
    loads = {load.job: load for load in snapshot.jobs}
    found = []
    for number in sorted(records.keys() | loads.keys()):
        record, load = records.get(number), loads.get(number)
        if record is not None and "RUNNING" not in record[0].states:
            continue
        uuids = set() if load is None else {*load.gpus, *(load.granted or ())}
        if record is not None:
            uuids |= given(snapshot, record[0], node.name) or set()
        mine = [gpu for gpu in snapshot.whole_gpus if gpu.uuid in uuids]
        user = record[0].user if record is not None else load.user if load is not None else ""
        for gpu in mine:
            idle, why = is_idle(gpu, _age_s(record, load, now))
            found.append(HeldGpu(uuid=gpu.uuid, index=gpu.index, job=number, user=user, idle=idle, why=why))
    return tuple(found)


def is_idle(gpu: GpuLoad, job_runs_s: float | None) -> tuple[bool | None, str]:
    """Return (whether a GPU that a job has held for that many seconds is idle, why that is not known)."""
    if gpu.problem is not None:
        return None, gpu.problem
    if job_runs_s is None or job_runs_s < HELD_IDLE_S:
        return None, "how long the job runs is not known" if job_runs_s is None else "the job runs for less than 10 min"
    means = gpu.utilization_percent_windows if gpu.utilization_percent_windows is not None else gpu.sm_percent_windows
    if means is not None and means.m10 is not None:
        return means.m10 < HELD_IDLE, ""
    if gpu.unused_s is not None and gpu.unused_s >= HELD_IDLE_S:
        return True, ""
    if means is None:
        return None, gpu.unknown.get("utilization") or UNREPORTED
    if _least(means) >= HELD_IDLE:
        return False, ""
    return None, f"measured for {span_text(means.over_s)} of 10 min"


def _least(means: Means) -> float:
    """Return the lowest possible mean over ten minutes, as if the GPU did nothing while it was not measured."""
    known_s = min(means.over_s, MOST_S)
    sums = [means.m5 * min(known_s, FIVE_S)]
    if known_s <= HELD_IDLE_S:
        sums.append(means.m15 * known_s)
    return max(sums) / HELD_IDLE_S


def _age_s(record: tuple[QueuedJob, int] | None, load: JobLoad | None, now: float) -> float | None:
    """Return the seconds since the job started by Slurm; else those for which it was measured, which are fewer."""
    if record is not None and record[0].start is not None:
        return now - record[0].start
    return None if load is None else load.measured_s


def numbers_on(job: QueuedJob, node: str) -> tuple[int, ...] | None:
    """Return Slurm's numbers of the job's GPUs on a node; None: not told, or it is on other nodes."""
    indexes = job.gpu_indexes or ()
    told = nodelist.unfold(job.nodes)[: len(indexes)] if indexes else ()
    return indexes[told.index(node)] if node in told else None


def count_on(job: QueuedJob, node: str) -> int | None:
    """Return how many GPUs Slurm gave a job on one of its nodes, whole or in part; None: not told."""
    if job.gpu_indexes:
        numbers = numbers_on(job, node)
        return None if numbers is None else len(numbers)
    if job.gpus == 0 and not job.has_shards:
        return 0
    return None if job.has_shards or (job.node_count or 0) != 1 else job.gpus


def granted(snapshot: Snapshot, numbers: Collection[int]) -> set[str]:
    """Return the UUIDs of the node's GPUs with these numbers of Slurm, which counts device files: the driver's minor
    numbers. MIG instances have none."""
    return {
        gpu.uuid
        for gpu in snapshot.whole_gpus
        if gpu.mig_of is None and (gpu.index if gpu.minor is None else gpu.minor) in numbers
    }


def given(snapshot: Snapshot, job: QueuedJob, node: str) -> set[str] | None:
    """Return the UUIDs of the GPUs that Slurm gave a job on a node; None: Slurm does not tell them."""
    numbers = numbers_on(job, node)
    if numbers is not None:
        return granted(snapshot, numbers)
    if job.gpus == 0 and not job.has_shards:
        return set()
    whole = snapshot.whole_gpus
    if job.gpus and not job.has_shards and job.gpus == (job.node_count or 1) * (len(whole) + snapshot.hidden_gpus):
        return {gpu.uuid for gpu in whole}
    return None


def _queue_of_nodes(jobs: Iterable[QueuedJob]) -> Mapping[str, Sequence[tuple[QueuedJob, int]]]:
    found: dict[str, list[tuple[QueuedJob, int]]] = {}
    for job in jobs:
        try:
            names = nodelist.unfold(job.nodes)
        except UsageError:
            continue  # the list of nodes cannot be parsed
        for place, name in enumerate(names):
            found.setdefault(name, []).append((job, place))
    return found


# --- Sums -------------------------------------------------------------------------------------------------------------


def count(held: Iterable[HeldGpu]) -> tuple[int | None, bool]:
    """Return (number of idle GPUs, whether some are not known); (None, False) if none is known."""
    verdicts: dict[str, bool | None] = {}
    for one in held:
        if one.idle is not None or one.uuid not in verdicts:
            verdicts[one.uuid] = one.idle
    unknown = sum(idle is None for idle in verdicts.values())
    if unknown and unknown == len(verdicts):
        return None, False
    return sum(idle is True for idle in verdicts.values()), unknown > 0


def sentences(survey: Survey) -> list[str]:
    """Return a sentence for each job with idle GPUs, those with the most first: its user, the GPUs and their nodes."""
    of_job: dict[tuple[int, str], dict[str, list[HeldGpu]]] = {}
    for node in survey.nodes:
        for one in node.held_gpus or ():
            of_job.setdefault((one.job, one.user), {}).setdefault(node.name, []).append(one)
    names = {job.job_id: job.id for job in survey.jobs}
    found = []
    for (job, user), nodes in of_job.items():
        idle = {name: [one for one in held if one.idle] for name, held in nodes.items()}
        number = sum(map(len, idle.values()))
        if not number:
            continue
        total = sum(map(len, nodes.values()))
        where = "; ".join(f"{name}: {','.join(str(one.index) for one in held)}" for name, held in idle.items() if held)
        found.append((number, f"job {names.get(job, job)} of {user}: {number} of {total} GPUs idle ({where})"))
    return [said for _, said in sorted(found, key=lambda pair: -pair[0])]
