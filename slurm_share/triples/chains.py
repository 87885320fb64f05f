"""Start a run after other runs are done (`llsub --after`), by the dependencies of Slurm's jobs.

The job waits for the jobs that the other runs have in the queue. Their end does not say that the runs are done, so the
job looks when it starts: it runs its tasks, ends with a sentence, or, if another job goes on with a run that is not
done, submits itself again after that one. A run that gets another job tells the jobs that wait for it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from ..core import append_file
from ..core.errors import SlurmShareError, StateError, UsageError
from ..core.text import counted, fold_some
from ..node import processes
from ..slurm import submit
from ..slurm.records import QueuedJob
from . import queued_jobs, run_folder
from .launcher import report
from .records import AwaitedRun, Run
from .result_files import ResultFiles
from .rules import submission, together

FOLLOWERS = "followers"
"""File in the folder of a run: the folders of the runs that wait for it, one line each."""
_FAILED_MOST = 5
"""Most numbers of failed tasks, or ranges of them, in a sentence."""


class _State(Struct, frozen=True):
    """A run that another one waits for, at this moment."""

    is_done: bool
    jobs: tuple[QueuedJob, ...] = ()
    """Its jobs in the queue that may still do something."""
    why: str = ""
    """Why the run is not done, and the way out; empty: it is done."""


def find(arguments: Sequence[str], find_folder: Callable[[str], Path]) -> tuple[AwaitedRun, ...]:
    """Return the runs that `--after` names. Raises UsageError for one that cannot be awaited."""
    found = []
    for argument in arguments:
        folder = find_folder(argument)
        owner = run_folder.read_foreign_owner(folder, os.geteuid())
        if owner is not None:
            raise UsageError(
                f"--after {argument}: the run belongs to {processes.read_user_name(owner)}; wait for one of its jobs: "
                "--options=--dependency=afterok:JOB"
            )
        run = run_folder.read_run(folder)
        if run.kind != "llsub":
            raise UsageError(
                f"--after {argument}: this is a run of llmapreduce, which removes its folder at its end; wait for its "
                "job: --options=--dependency=afterok:JOB"
            )
        found.append(AwaitedRun(str(folder), run.id))
    return tuple(found)


def jobs_before(run: Run) -> list[int]:
    """Return the jobs after which a job of the run may start.

    Raises UsageError if a run that it waits for is not done and has no job in the queue, SlurmShareError if the queue
    cannot be read.
    """
    states = [_read_state(one) for one in run.after]
    why = next((one.why for one in states if not one.is_done and not one.jobs), None)
    if why is not None:
        raise UsageError(f"--after: {why}")
    return sorted({job.job_id for one in states if not one.is_done for job in one.jobs})


def check_here(run: Run) -> None:
    """Raise UsageError if a run that this one waits for is not done: on this machine it would start now."""
    for one in run.after:
        state = _read_state(one)
        if not state.is_done:
            raise UsageError(f"--after: {state.why}; --local starts now, so wait for the end of that run")


class Verdict(Struct, frozen=True):
    """Whether the job of a run that waits for other runs may start its tasks now."""

    may_start: bool
    sentence: str = ""
    has_further_jobs: bool = False
    """True: further jobs go on with what it waits for."""


def look(folder: Path, run: Run) -> Verdict:
    """Return whether the runs that a run waits for are done. Raises SlurmShareError if the queue cannot be read."""
    missing = [state for one in run.after if not (state := _read_state(one)).is_done]
    if not missing:
        return Verdict(may_start=True)
    typed = shlex.quote(str(folder))
    dead = [state for state in missing if not state.jobs]
    if dead:
        said = "; ".join(state.why for state in dead)
        return Verdict(False, f"no task starts: {said}; then llsub --resume {typed} looks again")
    jobs = sorted({job.job_id for state in missing for job in state.jobs})
    said = f"no task starts yet: {missing[0].why}, and job {fold_some(jobs, _FAILED_MOST)} goes on with it"
    return Verdict(False, said, has_further_jobs=True)


def _read_state(awaited: AwaitedRun) -> _State:
    folder = Path(awaited.folder)
    name = shlex.quote(str(folder))
    try:
        run = run_folder.read_run(folder)
        if run.id != awaited.id:
            return _State(False, why=f"{folder} is another run than at submission; submit the run again, with --after")
        found = report.count(ResultFiles(folder, run), run)
    except StateError as error:
        return _State(
            False, why=f"the run that was {folder} cannot be read ({error}); submit the run again, with --after"
        )
    if found.done == run.tasks:
        return _State(True)
    jobs = tuple(
        job for job in queued_jobs.read(folder, run, run_folder.read_jobs(folder)) if queued_jobs.has_more(job)
    )
    done = f"{folder} is not done ({found.done} of {counted(run.tasks, 'task')}"
    failed = f"; failed: {fold_some(found.failed, _FAILED_MOST)}" if found.failed else ""
    way = ""
    if not jobs:
        again = together.again_text(run, name)
        way = f" and has no job in the queue: llsub --failed {name} shows what failed, {again}"
    return _State(False, jobs, f"{done}{failed}){way}")


# ---- The runs that wait ----


def note_follower(folder: Path, run: Run) -> None:
    """Note in the folders of the runs that a run waits for that it does. Raises OSError."""
    for one in run.after:
        append_file.append(Path(one.folder) / FOLLOWERS, os.fsencode(f"{folder}\n"), mode=0o666)


def tell_followers(folder: Path, note: Callable[[str], None]) -> None:
    """Let the jobs that wait for a run wait for its new job too. `note` gets a sentence for each that cannot."""
    try:
        lines = (folder / FOLLOWERS).read_bytes().splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        note(f"the runs that wait for {folder.name} are not known ({error.strerror})")
        return
    for line in dict.fromkeys(lines):
        follower = Path(os.fsdecode(line))
        try:
            _wait_again(follower, folder)
        except (SlurmShareError, OSError) as error:
            note(f"{follower} may start too early ({error}); it looks whether {folder.name} is done, and then ends")


def _wait_again(follower: Path, folder: Path) -> None:
    if run_folder.read_foreign_owner(follower, os.geteuid()) is not None:
        return
    try:
        run = run_folder.read_run(follower)
    except StateError:
        return  # it was removed
    if not any(run_folder.is_same(Path(one.folder), folder) for one in run.after):
        return
    pending = [
        job for job in queued_jobs.read(follower, run, run_folder.read_jobs(follower)) if job.states[:1] == ("PENDING",)
    ]
    if pending:
        argv = submission.with_dependency(run_folder.scheduler_command(follower, run), jobs_before(run))
        wanted = submission.dependency_of(argv)
        for job in pending:
            submit.set_dependency(job.job_id, wanted or "")
