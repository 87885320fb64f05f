"""Decide whether a run of `--until-done[=K]` needs a next job, and build its submission."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET, Struct

from ...core.errors import UsageError, shown
from ...core.numbers import whole
from ...core.text import counted
from ..records import Ended, Run
from .progress import all_done

OPTION = "--until-done"
JOBS_DEFAULT = 10
"""Most jobs of a run without a number. Where jobs are submitted beforehand, all of them wait in the queue."""
JOBS_MAX = 1000


def parse(text: str) -> int:
    """Return the most jobs of a run, the first one included. Raises UsageError."""
    number = whole(text, JOBS_MAX)
    if number is None or number < 2:
        raise UsageError(f"{OPTION}={shown(text)}: write the most jobs that the run may have, 2 to {JOBS_MAX}")
    return number


class LastJob(Struct, frozen=True, kw_only=True):
    """What a job of the run has left behind."""

    job: int
    is_cancelled: bool
    """The user or an administrator ended it (scancel)."""
    has_progressed: bool
    tasks: int
    done: int
    failed: int
    """Tasks that are left because they failed."""

    @property
    def open(self) -> int:
        """Return the number of tasks that are left and have not failed."""
        return self.tasks - self.done - self.failed


def has_progressed(
    attempts: Iterable[Ended], job: int, number_of: dict[str, int | None], *, are_ranks: bool = False
) -> bool:
    """Return whether a job has done a task, saved a state, or advanced a task further than earlier jobs have.

    `number_of`: `Ended.job` -> Slurm's job id. A task that was killed counts if its program reported more units of work
    than any attempt of another job. `are_ranks`: all start again, so one that is done is no progress of the run.
    """
    counts = ("saved",) if are_ranks else ("done", "saved")
    here: dict[int, float] = {}
    before: dict[int, float] = {}
    for ended in attempts:
        is_here = number_of.get(ended.job) == job
        if is_here and ended.outcome in counts:
            return True
        if ended.units is not UNSET:
            found = here if is_here else before
            found[ended.task] = max(found.get(ended.task, 0.0), ended.units)
    return any(units > before.get(task, 0.0) for task, units in here.items())


def why_none(last: LastJob, folder: str) -> str:
    """Return why no further job follows `last`, as a sentence; empty: a next job is needed.

    `folder`: the run's folder as one writes it in a shell.
    """
    again = f"llsub --resume {folder} runs what is left"
    if last.done >= last.tasks:
        return f"{all_done(last.tasks)}; no further job is needed"
    if last.is_cancelled:
        return f"job {last.job} was cancelled, so no further job follows; {again}"
    if last.open == 0:
        return f"only failed tasks are left, so no further job follows ({OPTION}); {again}"
    if not last.has_progressed:
        return (
            f"job {last.job} has neither finished nor saved nor advanced a task, so no further job follows ({OPTION}); "
            f"see the logs of its tasks (one that saves without a signal can show its progress by LLSUB_PROGRESS); "
            f"{again}"
        )
    return ""


def is_last_text(run: Run, jobs: int, folder: str) -> str:
    """Return the sentence of a run that has had all its jobs."""
    return (
        f"this was job {jobs} of at most {run.until_done} ({OPTION}); llsub --resume {folder} {OPTION}={2 * jobs} goes "
        "on"
    )


def argv_after(argv: Sequence[str], run: Run, number: int, earlier: Sequence[int], folder_name: str) -> list[str]:
    """Return the command that submits a run's job `number` (from 2), which starts when all `earlier` jobs have ended.

    `argv`: the command of the first job. Of options that are written twice, sbatch takes the last.
    """
    triple = "" if run.triple is None else f" {run.triple}"
    fresh = [
        f"--dependency=afterany:{':'.join(map(str, earlier))}",
        "--begin=now",
        f"--job-name={run.name}.{number}",
        f"--comment={run.kind}{triple}, job {number} of at most {run.until_done} of {folder_name}",
    ]
    return [*argv[:-1], *fresh, argv[-1]]


def ahead_text(jobs: Sequence[int], run: Run) -> str:
    """Return the note on jobs that were submitted beforehand."""
    return (
        f"nodes of this partition may not submit jobs (AllocNodes), so {counted(len(jobs), 'further job')} of "
        f"{OPTION}={run.until_done} {'waits' if len(jobs) == 1 else 'wait'} in the queue, each for the one before it; "
        "they are cancelled when all is done"
    )
