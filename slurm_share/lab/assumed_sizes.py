"""Draw the values that cluster logs lack: GPU memory and SM activity of each job, and the number of nodes."""

from __future__ import annotations

import math
import random

from .cluster_logs import ClusterLog, LoggedJob
from .records import SimTask, Trace

MEMORY_MEDIAN_RATIO = 0.25
MEMORY_SIGMA = 0.8
MEMORY_MOST_RATIO = 0.95
"""Memory as a part of the GPU's memory: log-normal, assumed, since no cluster has published its distribution."""
SHARED_RATIOS = (0.3, 1.0)
"""For a job that asked for a part of a GPU: memory as a part of that part, evenly distributed."""
SM_BETA = 1.5
"""Both parameters of the beta distribution of SM activity, mean 0.5. Mean GPU utilisation in Philly was 52 % (Jeon
2019, Table 3); SM activity is lower than utilisation."""
LEAST_MIB = 300
LEAST_SM = 0.02
NODES_MOST = 1024


def trace_of(log: ClusterLog, seed: int) -> Trace:
    """Return a log as a trace, with sizes drawn by a seed."""
    first = min(job.submitted_s for job in log.jobs)
    ordered = sorted(log.jobs, key=lambda job: (job.submitted_s, job.name))
    tasks = tuple(_task(number, job, first, log, seed) for number, job in enumerate(ordered))
    measured = sum(job.memory_mib is not None for job in log.jobs)
    jobs = "all jobs" if not measured else f"{len(log.jobs) - measured} of {len(log.jobs)} jobs"
    nodes = _nodes(log)
    notes = (
        f"sizes are assumed: the log does not have the GPU memory of {jobs}; drawn by seed, log-normal with median "
        f"{MEMORY_MEDIAN_RATIO:g} of a GPU and sigma {MEMORY_SIGMA:g}, or {SHARED_RATIOS[0]:g} to "
        f"{SHARED_RATIOS[1]:g} of the part of a GPU that a job asked for",
        f"SM activity is assumed where the log does not have it: drawn by seed, beta ({SM_BETA:g}, {SM_BETA:g})",
        f"nodes are assumed: {nodes} with {log.gpus} GPUs, as many as the jobs keep busy on average; see --nodes",
        "every job counts as a new command: no job is used to estimate another",
    )
    return Trace(
        name=log.name,
        tasks=tasks,
        gpus=log.gpus,
        nodes=nodes,
        gpu_mib=log.gpu_mib,
        gpu_model=log.gpu_model,
        notes=(*notes, *log.notes),
    )


def _nodes(log: ClusterLog) -> int:
    fitting = [job for job in log.jobs if job.gpus <= log.gpus]
    times = [job.submitted_s for job in fitting]
    span_s = max(times, default=0.0) - min(times, default=0.0)
    work_s = math.fsum(job.seconds * job.gpus * job.share_ratio for job in fitting)
    return max(1, min(NODES_MOST, math.ceil(work_s / span_s / log.gpus))) if span_s > 0.0 else 1


def _task(number: int, job: LoggedJob, first_s: float, log: ClusterLog, seed: int) -> SimTask:
    draw = random.Random(f"{seed} {number} {job.name}")
    if job.share_ratio < 1.0:
        ratio = job.share_ratio * draw.uniform(*SHARED_RATIOS)
    else:
        ratio = min(MEMORY_MEDIAN_RATIO * math.exp(draw.gauss(0.0, MEMORY_SIGMA)), MEMORY_MOST_RATIO)
    sm = draw.betavariate(SM_BETA, SM_BETA) * job.share_ratio
    memory = log.gpu_mib * ratio if job.memory_mib is None else job.memory_mib
    return SimTask(
        task=number,
        name=job.name,
        submitted_s=job.submitted_s - first_s,
        work_s=job.seconds,
        memory_mib=max(LEAST_MIB, round(memory)),
        gpus=job.gpus,
        sm_ratio=max(LEAST_SM, sm if job.sm_ratio is None else job.sm_ratio),
        command=f"{job.name} {number}",
        family=f"{job.name} {number}",
    )
