"""Tell whether a job in the queue is one of a run: by its id, and by the folder from which it was submitted.

The list of job ids moves with the folder, and a copy of the folder has it too. Slurm keeps the path of the job's script
as it was at submission, where there may be another run by now.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..core.errors import StateError
from ..slurm.records import QueuedJob
from . import run_folder
from .records import Run


def is_of_run(job: QueuedJob, folder: Path, run: Run, known: Collection[int], *, copies: bool = False) -> bool:
    """Return whether a job is one of the run in `folder`. `known`: the ids in its file `jobs`.

    A job that is not recorded counts if it was submitted from this folder: the controller may have accepted it without
    answering. `copies`: jobs of a folder of which this one is a copy count too, and jobs that may be of this run.
    """
    script = Path(job.script)
    if not script.is_absolute():
        return job.job_id in known
    if script.name not in run_folder.JOB_SCRIPTS:
        return False  # Slurm has given the id to another job
    place = script.parent
    if place == folder or run_folder.is_same(place, folder):
        return job.job_id in known or script.name != run_folder.REDUCE_SCRIPT
    try:
        other = run_folder.read_run(place)
    except StateError:
        return job.job_id in known or (copies and str(place) == run.folder)
    if run.id and other.id == run.id:
        return copies and job.job_id in known
    if job.job_id in _read_known(place):
        return False
    return job.job_id in known or (copies and str(place) == run.folder)


def find_original(job: QueuedJob, folder: Path, run: Run) -> Path | None:
    """Return the folder of a queued job if `folder` is a copy of it; None: it is another run, or `folder` itself."""
    place = Path(job.script).parent
    if not run.id or place == folder or run_folder.is_same(place, folder):
        return None
    try:
        return place if run_folder.read_run(place).id == run.id else None
    except StateError:
        return None


def may_be_of(job_id: int, folder: Path) -> bool:
    """Return whether a job whose script was in `folder` may be of the run that is there now. Raises StateError."""
    known = run_folder.read_jobs(folder)
    return not known or job_id in known


def _read_known(folder: Path) -> list[int]:
    try:
        return run_folder.read_jobs(folder)
    except StateError:
        return []
