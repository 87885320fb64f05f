"""Write what a waiting job asks Slurm for and why it waits, each fact with a label. A row in, texts out."""

from __future__ import annotations

from collections.abc import Sequence

from ...slurm.records import QueuedJob
from ...slurm.rules import reasons
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
        ("asks for", (each + _count(job.node_count, "node"), *resources(job), f"time limit {limit(row)}")),
        ("shares", _shares(row)),
        ("priority", (_priority(job), _submitted(row))),
        ("in", _places(job)),
        ("depends", (job.dependency.replace("(unfulfilled)", ""),)),
        ("features", (job.features,)),
    ]
    return [(label, known) for label, texts in found if (known := tuple(filter(None, texts)))]


def why(reason: str) -> str:
    """Return why a job waits in words, with Slurm's word: the nodes ... are in use (Resources)."""
    words = reasons.in_words(reason or "None")
    return f"{words} ({reason or 'None'})" if words else reason


def resources(job: QueuedJob) -> Sequence[str]:
    """Return the CPUs, GPUs and memory that a job asks for."""
    return _count(job.cpus, "CPU"), _gpus(job), _memory(job)


def _count(number: int | None, what: str) -> str:
    return f"{UNKNOWN if number is None else number} {what}{'' if number == 1 else 's'}"


def _gpus(job: QueuedJob) -> str:
    if job.has_shards:
        return "a part of a GPU"
    if job.gpus is None:
        return "all GPUs of its nodes" if job.keeps_others_out else f"{UNKNOWN} GPUs"
    return _count(job.gpus, "GPU") if job.gpus else "no GPU"


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


def _shares(row: JobRow) -> tuple[str, ...]:
    job = row.job
    share = "" if job is None or job.share is None else f"--share-gpu={job.share}"
    return (share, f"triple {row.triple} of llsub" if row.triple else "")


def _priority(job: QueuedJob) -> str:
    if job.priority is None:
        return UNKNOWN
    return "0 (held)" if job.priority == 0 else str(job.priority)


def _submitted(row: JobRow) -> str:
    at = None if row.job is None else row.job.submitted
    if at is None:
        return f"submitted {UNKNOWN}"
    return f"submitted {moment_text(at, row.now)}, {time_text(max(0.0, row.now - at))} ago"


def _places(job: QueuedJob) -> tuple[str, ...]:
    return (
        f"partition {job.partition}",
        f"QOS {job.qos}" if job.qos else "",
        f"account {job.account}" if job.account else "",
    )
