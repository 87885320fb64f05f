"""Read how a running job was submitted: from the folder of its run, else from Slurm's records."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from ..core.errors import SlurmShareError
from ..slurm import submissions
from ..slurm.records import QueuedJob, Submission
from ..slurm.rules import submitted
from ..slurm.script import read_script
from . import run_folder, run_jobs
from .rules import submission


def read_submission(job: QueuedJob) -> Submission | None:
    """Return how one of the caller's jobs was submitted; None: not certain, or it cannot be read here."""
    script = Path(job.script)
    try:
        if script.name == run_folder.LAUNCH_SCRIPT and script.is_absolute():
            return _of_run(script.parent, job.job_id)
        return _of_slurm(job)
    except (SlurmShareError, OSError, ValueError):
        return None


def _of_run(folder: Path, job_id: int) -> Submission | None:
    if run_folder.read_foreign_owner(folder, os.geteuid()) is not None or not run_jobs.may_be_of(job_id, folder):
        return None
    run = run_folder.read_run(folder)
    return submitted.of_llsub(run.called, run.cwd, str(folder / run_folder.TASKS)) if run.kind == "llsub" else None


def _of_slurm(job: QueuedJob) -> Submission | None:
    kept = submissions.read_job(job.job_id)
    found = submitted.of_sbatch(kept.line, kept.command, kept.folder)
    if found is None:
        return None
    script = read_script(kept.command, to_execute=False)
    return replace(
        found,
        directives=frozenset(one.name for one in submission.parse_directives(script.directives)),
        starts_steps=submissions.read_starts_steps(Path(script.path)),
        is_executable=os.access(script.path, os.X_OK),
        nodes=job.node_count or 1,
    )
