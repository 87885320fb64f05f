"""Describe a job in the queue as squeue does, and find the jobs that a user names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from ...core.errors import OptionError, UsageError, shown
from ...slurm.records import QueuedJob
from .. import option

_SHORT_STATES = {
    # The flags come first: a job that is RUNNING and COMPLETING is shown as CG.
    "COMPLETING": "CG",
    "STAGE_OUT": "SO",
    "CONFIGURING": "CF",
    "RESIZING": "RS",
    "REQUEUED": "RQ",
    "REQUEUE_FED": "RF",
    "REQUEUE_HOLD": "RH",
    "SPECIAL_EXIT": "SE",
    "STOPPED": "ST",
    "REVOKED": "RV",
    "RESV_DEL_HOLD": "RD",
    "SIGNALING": "SI",
    "BOOT_FAIL": "BF",
    "CANCELLED": "CA",
    "COMPLETED": "CD",
    "DEADLINE": "DL",
    "FAILED": "F",
    "NODE_FAIL": "NF",
    "OUT_OF_MEMORY": "OOM",
    "PENDING": "PD",
    "PREEMPTED": "PR",
    "RUNNING": "R",
    "SUSPENDED": "S",
    "TIMEOUT": "TO",
}
"""Slurm's short names of states, in the order in which it checks them (job_state_string_compact())."""
_TRIPLE = re.compile(r"\bllsub (\[[0-9]+,[0-9]+(?:,[0-9]+)?\])")
_JOB = re.compile(r"([1-9][0-9]{0,9})(?:_(?:([0-9]{1,9})|\[([0-9,:-]{1,10000})\]))?", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?", re.ASCII)


def state_of(job: QueuedJob) -> str:
    """Return the state as squeue's column ST shows it."""
    return next((short for value, short in _SHORT_STATES.items() if value in job.states), "/".join(job.states))


def place_of(job: QueuedJob) -> str:
    """Return the nodes, or the reason for waiting, as squeue's column NODELIST(REASON) shows it."""
    return job.nodes or f"({job.reason or 'None'})"


def tasks_per_gpu(job: QueuedJob) -> int | None:
    """Return the N of the job's share; None: an ordinary job."""
    try:
        request = None if job.share is None else option.parse(job.share)
    except OptionError:
        return None
    return None if request is None else request.per_gpu


def slots_of(job: QueuedJob) -> int | None:
    """Return the number of the job's slots on all its nodes; None: no share, or not known yet."""
    per_gpu = tasks_per_gpu(job)
    if per_gpu is None:
        return None
    if job.has_shards:
        return 1
    return per_gpu * job.gpus if job.gpus else None


def triple_of(job: QueuedJob) -> str | None:
    """Return the triple in the comment of a job that llsub submitted; None: there is none."""
    found = _TRIPLE.search(job.comment)
    return found[1] if found else None


class JobTarget(Struct, frozen=True):
    """A job, or elements of an array, that a user named."""

    text: str
    job: int
    elements: tuple[tuple[int, int, int], ...] = ()
    """(first, last, step) of an array's elements; empty: the whole job."""

    def names(self, element: int) -> bool:
        """Return whether that element of the array is among those named."""
        return any(first <= element <= last and (element - first) % step == 0 for first, last, step in self.elements)


def parse_targets(text: str) -> tuple[JobTarget, ...]:
    """Return the jobs named in `12,77_3,77_[1-4,9]`. Raises UsageError for anything else."""
    found = []
    for part in re.split(r",(?![^\[]*\])", text):
        match = _JOB.fullmatch(part)
        if not match:
            raise UsageError(
                f"{shown(text)} is neither a job (write 4711, 4711_3 or 4711_[1-4], several with commas) "
                "nor the folder of a run"
            )
        elements = match[2] or match[3]
        found.append(JobTarget(part, int(match[1]), parse_elements(elements) if elements else ()))
    return tuple(found)


def parse_elements(text: str) -> tuple[tuple[int, int, int], ...]:
    """Return (first, last, step) of each part of a list such as 1-4,9,20-30:5. Raises UsageError for anything else."""
    found = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        if not match or last < first:
            raise UsageError(f"[{shown(text)}] is not a list of array elements; write it as 1-4,9")
        found.append((first, last, int(match[3] or 1)))
    return tuple(found)


class ChosenJob(Struct, frozen=True):
    """A job, or elements of a pending array, to be ended."""

    job: QueuedJob
    id: str
    """The id for scancel."""


def choose(target: JobTarget, queue: Iterable[QueuedJob]) -> tuple[ChosenJob, ...]:
    """Return the jobs of the queue that a target names."""
    return tuple(one for job in queue for one in _chosen(target, job))


def _chosen(target: JobTarget, job: QueuedJob) -> Iterator[ChosenJob]:
    if not target.elements:
        if target.job in (job.job_id, job.array, job.het[0] if job.het else None):
            yield ChosenJob(job, _whole(job))
    elif target.job != job.array:
        return
    elif job.element is not None:
        if target.names(job.element):
            yield ChosenJob(job, job.id)
    else:
        spans = parse_elements(job.waiting.partition("%")[0])
        left = [one for first, last, step in spans for one in range(first, last + 1, step) if target.names(one)]
        if left:
            yield ChosenJob(job, f"{job.array}_[{_folded(left)}]" if len(left) > 1 else f"{job.array}_{left[0]}")


def _whole(job: QueuedJob) -> str:
    if job.het is not None:
        return str(job.het[0])  # Slurm does not end a single component of a pending job
    return job.id.partition("%")[0] + "]" if "%" in job.id else job.id  # the limit after % is not part of the id


def _folded(numbers: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
