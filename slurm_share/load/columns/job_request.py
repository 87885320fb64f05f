"""Write what a waiting job asks Slurm for and why it waits, each fact with a label. A row in, texts out."""

from __future__ import annotations

from collections.abc import Sequence

from ...slurm.records import QueuedJob
from ..rules.job_rows import JobRow
from ..text import UNKNOWN, gigabytes, moment_text, time_text
from .job_columns import limit

Facts = tuple[str, tuple[str, ...]]
"""(label, facts)."""


def facts(row: JobRow) -> list[Facts]:
    """Return what Slurm has of a waiting job; empty: Slurm has no record of it. Lines without a fact are left out."""
    job = row.job
    if job is None:
        return []
    each = "each of its elements: " if row.is_array else ""
    found: list[Facts] = [
        ("waits", tuple(why(one) for one in dict.fromkeys(one.reason for one in row.records if not one.nodes))),
        ("start", (_start(row),)),
        ("asks for", (each + count(job.node_count, "node"), *resources(job), f"time limit {limit(row)}")),
        ("shares", shares(row)),
        ("priority", (priority(job), _submitted(row))),
        ("in", places(job)),
        ("depends", (job.dependency.replace("(unfulfilled)", ""),)),
        ("features", (job.features,)),
    ]
    return [(label, known) for label, texts in found if (known := tuple(filter(None, texts)))]


def why(reason: str) -> str:
    """Return why a job waits in words, with Slurm's word: the nodes ... are in use (Resources)."""
    words = in_words(reason or "None")
    return f"{words} ({reason or 'None'})" if words else reason


def resources(job: QueuedJob) -> Sequence[str]:
    """Return the CPUs, GPUs and memory that a job asks for."""
    return count(job.cpus, "CPU"), _gpus(job), _memory(job)


def count(number: int | None, what: str) -> str:
    """Return a number with its noun: 1 node, ? CPUs."""
    return f"{UNKNOWN if number is None else number} {what}{'' if number == 1 else 's'}"


def _gpus(job: QueuedJob) -> str:
    if job.has_shards:
        return "a part of a GPU"
    if job.gpus is None:
        return "all GPUs of its nodes" if job.keeps_others_out else f"{UNKNOWN} GPUs"
    return count(job.gpus, "GPU") if job.gpus else "no GPU"


def _memory(job: QueuedJob) -> str:
    if job.memory_per_gpu_mib is not None:
        return f"{gigabytes(job.memory_per_gpu_mib)} for each GPU"
    if job.memory_mib == 0 and not job.memory_is_per_cpu:
        return "all memory of its nodes"
    return f"{gigabytes(job.memory_mib)} {'for each CPU' if job.memory_is_per_cpu else 'on each node'}"


def _start(row: JobRow) -> str:
    if row.starts is None:
        return f"{UNKNOWN} (Slurm has not planned it)"
    left = row.starts - row.now
    return f"expected {moment_text(row.starts, row.now)}" + (f", in {time_text(left)}" if left >= 0 else "")


def shares(row: JobRow) -> tuple[str, ...]:
    """Return the share and the triple that it asked for."""
    job = row.job
    share = "" if job is None or job.share is None else f"--share-gpu={job.share}"
    return (share, f"triple {row.triple} of llsub" if row.triple else "")


def priority(job: QueuedJob) -> str:
    """Return its priority; 0: it is held."""
    if job.priority is None:
        return UNKNOWN
    return "0 (held)" if job.priority == 0 else str(job.priority)


def _submitted(row: JobRow) -> str:
    at = None if row.job is None else row.job.submitted
    if at is None:
        return f"submitted {UNKNOWN}"
    return f"submitted {moment_text(at, row.now)}, {time_text(max(0.0, row.now - at))} ago"


def places(job: QueuedJob) -> tuple[str, ...]:
    """Return its partition, QOS and account."""
    return (
        f"partition {job.partition}",
        f"QOS {job.qos}" if job.qos else "",
        f"account {job.account}" if job.account else "",
    )


REASONS = {
    "AccountNotAllowed": "its account may not use the partition",
    "AccountingPolicy": "a limit of accounting is reached",
    "AssociationJobLimit": "its account has as many jobs as it may",
    "AssociationResourceLimit": "its account uses as much as it may",
    "AssociationTimeLimit": "its account has used its time",
    "BadConstraints": "no node can ever fulfil what it asks for",
    "BeginTime": "it begins later, as it was submitted to",
    "BurstBufferOperation": "an operation of the burst buffer failed",
    "BurstBufferResources": "the burst buffer is full",
    "BurstBufferStageIn": "its files are copied to the burst buffer",
    "Cleaning": "it was requeued, and its last run is cleaned up",
    "DeadLine": "it cannot end before its deadline",
    "Dependency": "it depends on a job that has not ended",
    "DependencyNeverSatisfied": "a job that it depends on ended otherwise than it demands: it never starts",
    "FedJobLock": "a cluster of the federation decides first",
    "FrontEndDown": "no front end is up",
    "InactiveLimit": "it reached the limit of inactivity",
    "InvalidAccount": "its account does not exist: it never starts",
    "InvalidQOS": "its QOS does not exist: it never starts",
    "JobArrayTaskLimit": "as many elements of its array run as it allows at once",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "its user holds it: scontrol release lets it start",
    "JobHoldMaxRequeue": "it is held, since it was requeued too often",
    "JobLaunchFailure": "its start failed: a file system or the node is unwell",
    "Licenses": "the licenses that it asks for are in use",
    "MaxMemPerLimit": "it asks for more memory for a CPU or node than is allowed",
    "MaxRequeue": "it was requeued too often",
    "NodeDown": "a node that it needs is down",
    "NonZeroExitCode": "it ended with an exit code other than 0",
    "None": "Slurm has not looked at it yet",
    "OutOfMemory": "it had no memory left",
    "PartitionConfig": "the partition's rules do not allow it",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition starts no jobs",
    "PartitionNodeLimit": "it asks for more or fewer nodes than the partition allows",
    "PartitionTimeLimit": "its time limit is above the partition's",
    "Priority": "jobs with a higher priority wait before it",
    "Prolog": "its Prolog runs",
    "QOSJobLimit": "its QOS has as many jobs as it may",
    "QOSMinGRES": "its QOS demands more GPUs, of which a part of a GPU (--share-gpu with -n1) is none: it never starts",
    "QOSNotAllowed": "its QOS may not use the partition",
    "QOSResourceLimit": "its QOS uses as much as it may",
    "QOSTimeLimit": "its QOS has used its time",
    "QOSUsageThreshold": "the use by its QOS is too high",
    "ReqNodeNotAvail": "a node that it needs is not available",
    "RequeuedInHostCertProblem": "its node's certificate failed",
    "Reservation": "its reservation has not begun, or is in use",
    "ReservationDeleted": "its reservation was deleted",
    "Resources": "the nodes, CPUs, GPUs or memory that it asks for are in use",
    "SchedDefer": "Slurm starts nothing at submission; it looks soon",
    "SystemFailure": "Slurm, a file system or the network failed",
    "TimeLimit": "it reached its time limit",
}
"""The common reasons (slurm.h, `enum job_state_reason`; "Job Reason Codes" in squeue's manual)."""

_LIMITED = {"Assoc": "its account", "QOS": "its QOS", "Max": "its QOS or account"}
_OF = (
    ("GrpCpuRunMinutes", "CPU time that its running jobs may have left"), ("GRES", "GPUs"), ("Gres", "GPUs"),
    ("Cpu", "CPUs"), ("CPU", "CPUs"), ("Mem", "memory"), ("Node", "nodes"), ("Job", "jobs"), ("Submit", "jobs"),
    ("Wall", "time"), ("Billing", "billing units"), ("BB", "burst buffer"), ("License", "licenses"),
    ("Energy", "energy"),
)  # fmt: skip


def in_words(reason: str) -> str:
    """Return Slurm's reason in words; empty: it is no word of Slurm's, or one that says enough or is not known.

    Slurm adds to some reasons, as in `ReqNodeNotAvail, UnavailableNodes:n4`; limits of accounting have names made of
    parts, as in `QOSMaxGRESPerUser`.
    """
    word = reason.partition(",")[0].strip()
    if word in REASONS:
        return REASONS[word]
    whose = next((who for begin, who in _LIMITED.items() if word.startswith(begin)), "")
    what = next((what for part, what in _OF if part in word), "")
    if whose and what and ("Max" in word or "Grp" in word or "Min" in word):
        least = "Min" in word and "Minutes" not in word and "Max" not in word
        each = " of its user" if "PerUser" in word else " of its account" if "PerAccount" in word else ""
        return (
            f"it asks for less {what} than {whose} demands"
            if least
            else f"the limit of {whose} on {what}{each} is reached"
        )
    return ""
