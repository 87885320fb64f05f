"""Count the tasks of running triples that ran out of GPU memory, from the results in their folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..core.errors import StateError
from ..core.records import JobStart
from ..slurm.records import QueuedJob
from . import run_folder

TAIL_BYTES = 256 * 1024
"""Most bytes read from the end of a node's results: some hundred tasks, of possibly a million."""


def read_memory_failures(jobs: Iterable[QueuedJob], uid: int) -> dict[int, int]:
    """Return job id -> number of its latest tasks that ran out of GPU memory, for running llsub jobs of `uid`.

    The folder of a run is that of the job's script. Skips jobs without such tasks, and jobs whose folder cannot be read
    here or does not belong to the user.
    """
    found = {}
    for job in jobs:
        script = Path(job.script)
        if job.uid != uid or "RUNNING" not in job.states or script.name != run_folder.LAUNCH_SCRIPT:
            continue
        try:
            count = _failures(script.parent, job.job_id, uid) if script.is_absolute() else 0
        except (OSError, StateError, ValueError):
            continue
        if count:
            found[job.job_id] = count
    return found


def _failures(folder: Path, job: int, uid: int) -> int:
    if run_folder.read_foreign_owner(folder, uid) is not None:
        return 0
    run = run_folder.read_run(folder)
    ended = (
        one
        for file in sorted((folder / run.log_folder).glob(f"p*_*/{run_folder.RESULTS}"))
        for one in run_folder.parse_results(_read_last(file))
    )
    # All starts of this job; the folder may also contain earlier jobs of the run.
    return sum(one.outcome == "gpu memory" and JobStart.parse(one.job).number == job for one in ended)


def _read_last(file: Path) -> bytes:
    """Return the last whole lines of a file."""
    data = run_folder.read_end(file, TAIL_BYTES + 1)
    return data.partition(b"\n")[2] if len(data) > TAIL_BYTES else data
