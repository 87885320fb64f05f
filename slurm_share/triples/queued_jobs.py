"""The jobs of a run that are in Slurm's queue."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import CommandError, SlurmShareError
from ..slurm import jobs as slurm_jobs
from ..slurm.records import QueuedJob
from . import run_jobs
from .records import Run


def read(folder: Path, run: Run, jobs: Sequence[int]) -> tuple[QueuedJob, ...]:
    """Return the queued jobs of a run: those in `jobs`, and others that run its script.

    If the controller has accepted a job without answering, the id of that job is not recorded. Raises SlurmShareError.
    """
    if not run.scheduler:
        return ()
    try:
        queue = slurm_jobs.read_queue(users=[str(os.geteuid())])[1]
    except CommandError as error:
        raise SlurmShareError(
            f"cannot check whether the jobs of {folder.name} have ended ({error}); nothing was changed or submitted"
        ) from error
    return tuple(job for job in queue if run_jobs.is_of_run(job, folder, run, jobs, copies=True))


def has_more(job: QueuedJob) -> bool:
    """Return whether a job in the queue may still run tasks; a job that is requeued completes first."""
    return "COMPLETING" not in job.states or job.states[0] == "PENDING" or "REQUEUED" in job.states
