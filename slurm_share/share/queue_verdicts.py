"""Read and change the controller's verdict on each job in the queue."""

from __future__ import annotations

import os
import time

import msgspec

from ..core import process, text_files
from ..core.errors import CommandError, SlurmSilentError, shown
from ..core.settings import Configuration
from ..slurm import jobs as slurm_jobs
from ..slurm.rules.resources import share_of
from .records import QueueSwitched, SwitchableJob, VerdictUpdate
from .rules import switch

_OVER = frozenset({"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"})
QUEUE_S = 300.0
"""The time limit of squeue: 100,000 jobs are some hundred MB of JSON."""
UPDATE_S = 60.0
ROUNDS = 20
"""The most times that the queue is listed and changed until no job has the old verdict."""
SETTLE_S = 1.0
"""The time after which a submission that was in progress when config.toml was written is in the queue."""


class _QueuedJob(msgspec.Struct):
    job_id: int
    array_job_id: slurm_jobs.Number
    array_task_id: slurm_jobs.Number
    array_task_string: str
    partition: str
    job_state: list[str]
    admin_comment: str
    extra: str
    comment: str
    restart_cnt: int


class _QueuedJobs(msgspec.Struct):
    jobs: list[_QueuedJob]


def environment() -> dict[str, str]:
    """Return the environment for squeue and scontrol on this host's cluster: SLURM_CLUSTERS would select another."""
    kept = slurm_jobs.queue_environment(os.environ)
    return {name: value for name, value in kept.items() if name != "SLURM_CLUSTERS"}


def argv() -> list[str]:
    """Return the command that lists all pending and running jobs."""
    return ["squeue", "--all", f"--json={slurm_jobs.DATA_PARSER}"]


def parse(text: str) -> tuple[SwitchableJob, ...]:
    """Return the jobs of squeue's JSON that have not ended. Raises CommandError for any other text."""
    try:
        # Decode byte by byte: any user can write bytes into a job that are not UTF-8, which JSON does not allow.
        bytewise = text.encode("utf-8", "surrogateescape").decode("latin-1")
        found = msgspec.json.decode(bytewise, type=_QueuedJobs).jobs
    except text_files.NOT_JSON as error:
        raise CommandError(tuple(argv()), 0, f"the answer is not squeue's JSON: {shown(str(error), 200)}") from error
    return tuple(_job(one) for one in found if not _OVER.intersection(one.job_state))


def _job(one: _QueuedJob) -> SwitchableJob:
    return SwitchableJob(
        which=_which(one),
        partitions=tuple(one.partition.split(",")),
        is_pending="PENDING" in one.job_state,
        was_shaped=share_of(one.admin_comment, one.extra, one.comment) is not None,
        restarts=one.restart_cnt,
        extra=_field_text(one.extra),
        comment=_field_text(one.comment),
    )


def _field_text(bytewise: str) -> str:
    """Return a user's text with its original bytes, as scontrol has to get it back."""
    try:
        return bytewise.encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return bytewise  # the JSON has escaped characters in it


def _which(one: _QueuedJob) -> str:
    """Return the job as scontrol names it. The last element of an array has the array's number, so for an element use
    ARRAY_INDEX, which does not name the whole array."""
    array = one.array_job_id.number
    if not array:
        return str(one.job_id)
    if one.array_task_id.set:
        return f"{array}_{one.array_task_id.number}"
    elements = one.array_task_string.partition("%")[0]
    return f"{array}_[{elements}]" if elements else str(one.job_id)


def read() -> tuple[SwitchableJob, ...]:
    """Return the jobs in the queue. Raises CommandError if squeue does not answer."""
    return parse(slurm_jobs.ask(argv(), QUEUE_S, env=environment(), errors="surrogateescape"))


def update_argv(update: VerdictUpdate) -> list[str]:
    """Return the scontrol command for one change."""
    return ["scontrol", "update", f"jobid={','.join(update.jobs)}", f"{update.field}={update.text}"]


def change(update: VerdictUpdate) -> str | None:
    """Change these jobs; return scontrol's message if it did not change all of them: it refuses a job that has begun
    or ended since it was listed, and changes the others. Raises CommandError if scontrol does not end."""
    argv = update_argv(update)
    done = process.finish(argv, timeout_s=UPDATE_S, env=environment(), check=slurm_jobs.patience(argv))
    return None if done.code == 0 else done.stderr.strip()


def switch_all(configuration: Configuration, *, off: bool) -> QueueSwitched:
    """Write the new verdict into the jobs of the queue, and list it again, until no job has the old one.

    When no job is left, list the queue once more after SETTLE_S, for jobs that were being submitted. Raises
    CommandError if no controller answers, or squeue or scontrol is missing.
    """

    def listed() -> tuple[tuple[SwitchableJob, ...], tuple[VerdictUpdate, ...]]:
        found = read()
        return found, switch.updates(found, lambda names: switch.mode_of(configuration, names), off=off)

    switched: set[str] = set()
    refused: list[str] = []
    jobs, changes = listed()
    for _ in range(ROUNDS):
        if not changes:
            time.sleep(SETTLE_S)
            jobs, changes = listed()
            if not changes:
                break
        shared = {job.which for job in jobs if job.is_pending and (switch.shares(job) or not off)}
        is_slow, refused = False, []
        for update in changes:
            said, in_time = _try(update)
            is_slow = is_slow or not in_time
            if said is None:
                switched |= shared.intersection(update.jobs)
            else:
                refused.append(f"{', '.join(update.jobs)[:200]}: {said[:300]}")
        jobs, changes = listed()
        if is_slow and changes:
            break  # each call takes a minute: do not repeat them
    return QueueSwitched(
        running=sum(not job.is_pending and switch.shares(job) for job in jobs),
        waiting=sum(switch.count(which) for which in switched),
        left=sum(switch.count(which) for update in changes for which in update.jobs),
        refused=tuple(refused),
    )


def _try(update: VerdictUpdate) -> tuple[str | None, bool]:
    """Return the result of `change`, or why scontrol did not end, and whether it answered in time. Raises CommandError
    if no controller answers, or scontrol is missing."""
    try:
        return change(update), True
    except CommandError as error:
        if isinstance(error, SlurmSilentError) or isinstance(error.__cause__, OSError):
            raise
        return str(error), False
