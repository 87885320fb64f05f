"""Say what a job has of its node, and uses of it: host memory, CPUs, and its part of the load average."""

from __future__ import annotations

from collections.abc import Sequence

from ....core import nodelist
from ....slurm.records import QueuedJob, SlurmNode
from ...snapshot import JobLoad, Snapshot
from .. import thresholds, windows
from ..sums import added


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
