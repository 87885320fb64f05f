"""Submit the next job of a run with `--until-done`, once, and end the jobs that are not needed.

The next job depends on the present one. It is submitted when tasks are told to save their state, or at the job's end.
Two submissions exclude each other by the run's claim (`run_files.claimed`). Within it the queue is read, which has also
the job of a submission that was killed before it noted the job's id.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ..core import numbers
from ..core.errors import CommandError, SlurmShareError, StateError, UsageError
from ..core.process import Deadline
from ..core.records import JobStart
from ..slurm import jobs as slurm_jobs
from ..slurm import signals, submit
from . import chains, queued_jobs, result_files, run_files, run_folder
from .launcher import report
from .records import Run
from .rules import submission, until_done
from .rules.account import Account
from .rules.until_done import LastJob

CLAIM_S = 60.0
"""Longest wait for another process that submits a job of the run, in seconds."""
PAUSE_S = 0.25

Say = Callable[[str], None]


def at_notice(folder: Path, run: Run, job: int, say: Say, *, is_stopped: bool) -> None:
    """Submit the next job while tasks save their state, or cancel it if the user has cancelled this one.

    `is_stopped`: the notice was SIGTERM, which also a cancelled job gets.
    """
    states, is_preempted = _read_state(job)
    if "CANCELLED" in states:
        _cancel(folder, run, job, say)
    elif not is_stopped or is_preempted or {"TIMEOUT", "PREEMPTED"} & set(states):
        _ensure(folder, run, job, states, say, is_end=False)


def at_end(folder: Path, run: Run, found: Account, job: int, say: Say) -> None:
    """Submit the next job if it is needed and not submitted yet; cancel it if it is not needed. Say which.

    `found`: the counts at the end of the job.
    """
    states, _ = _read_state(job)
    why = until_done.why_none(
        _last(folder, run, found, job, is_cancelled="CANCELLED" in states), shlex.quote(str(folder))
    )
    if why:
        say(why)
        _cancel(folder, run, job, say)
    else:
        _ensure(folder, run, job, states, say, is_end=True)


def why_not_begin(folder: Path, run: Run, job: int) -> tuple[str, bool]:
    """Return why a job that the run submitted itself has nothing to do, and whether all is done; empty: it runs.

    Raises StateError if results cannot be read.
    """
    before = run_folder.read_job_before(folder, job)
    if before is None:
        return "", False
    states, _ = _read_state(before, has_ended=True)
    found = report.count(result_files.ResultFiles(folder, run), run)
    last = _last(folder, run, found, before, is_cancelled="CANCELLED" in states)
    return until_done.why_none(last, shlex.quote(str(folder))), last.done >= last.tasks


def submit_ahead(folder: Path, run: Run, argv: Sequence[str], first: int, environ: Mapping[str, str]) -> list[int]:
    """Submit all further jobs of a run whose nodes may not submit jobs; return their ids.

    `argv`: the command of the `first` job. Raises SlurmShareError with the reason if one is refused; those before it
    are submitted.
    """
    jobs = [first]
    begun = len(set(run_folder.read_jobs(folder)))
    for number in range(begun + 1, (run.until_done or 0) + 1):
        after = until_done.argv_after(argv, run, number, jobs, folder.name)
        jobs.append(submit.submit(after, environ=environ, say=lambda _: None))
        run_files.note_job(folder, jobs[-1], jobs[-2])
    return jobs[1:]


def must_submit_ahead(partition: str | None) -> bool:
    """Return whether jobs of these partitions (None: the default one) may not be submitted from all nodes.

    False if Slurm does not answer: then the nodes try it.
    """
    try:
        allowed = slurm_jobs.read_alloc_nodes()
    except CommandError:
        return False
    wanted = partition.split(",") if partition else [name for name, one in allowed.items() if one.is_default]
    return any(name in allowed and not allowed[name].is_everywhere for name in wanted)


# ---- The parts ----


def _last(folder: Path, run: Run, found: Account, job: int, *, is_cancelled: bool) -> LastJob:
    attempts = result_files.ResultFiles(folder, run, all_starts=True)
    number_of = {start: JobStart.parse(start).number for start in found.jobs}
    return LastJob(
        job=job,
        is_cancelled=is_cancelled,
        has_progressed=until_done.has_progressed(attempts, job, number_of, are_ranks=run.together),
        tasks=run.tasks,
        done=found.done,
        failed=len(found.failed),
    )


def _read_state(job: int, *, has_ended: bool = False) -> tuple[tuple[str, ...], bool]:
    """Return Slurm's states of a job, and whether another one preempts it; none if they are not known.

    Slurm forgets a job that `has_ended` after MinJobAge.
    """
    try:
        one = slurm_jobs.read_shown(job, has_ended=has_ended)
    except CommandError:
        return (), False  # then as if it ended by itself
    return ((), False) if one is None else (one.states, one.preempted is not None)


def _ensure(folder: Path, run: Run, job: int, states: Sequence[str], say: Say, *, is_end: bool) -> None:
    """Submit the next job unless there is one, Slurm starts this one again, or the run has had all its jobs."""
    if "PENDING" in states or {"REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"} & set(states):
        if is_end:
            say(f"Slurm starts job {job} again, and it goes on with what is left")
        return  # a requeue is not a new job
    again = f"llsub --resume {shlex.quote(str(folder))} runs what is left"
    try:
        with _claimed(folder):
            known = run_folder.read_jobs(folder)
            queued = [one for one in queued_jobs.read(folder, run, known) if one.job_id != job]
            for one in queued:
                if one.job_id not in known:
                    run_files.note_job(folder, one.job_id, job)
            if queued:
                if is_end:
                    say(f"job {queued[0].job_id} goes on with what is left")
                return
            jobs = list(dict.fromkeys(known))
            if len(jobs) >= (run.until_done or 0):
                if is_end:
                    say(until_done.is_last_text(run, len(jobs), shlex.quote(str(folder))))
                return
            argv = run_folder.scheduler_command(folder, run)
            argv_after = until_done.argv_after(argv, run, len(jobs) + 1, [job], folder.name)
            new = submit.submit(argv_after, environ=_environment(folder), say=lambda _: None)
            try:
                run_files.note_job(folder, new, job)
            except OSError as error:
                say(f"{folder / run_folder.JOBS} cannot be written ({error.strerror}); the queue has job {new}")
            chains.tell_followers(folder, say)
            say(
                f"job {new} is submitted and goes on with what is left: job {len(jobs) + 1} of at most {run.until_done}"
            )
    except (SlurmShareError, StateError) as error:
        if is_end or not isinstance(error, UsageError):
            say(f"the next job could not be submitted: {error}; {again}")


def _cancel(folder: Path, run: Run, job: int, say: Say) -> None:
    """Cancel the waiting jobs of the run."""
    try:
        known = run_folder.read_jobs(folder)
        queued = queued_jobs.read(folder, run, known)
        waiting = [one.id for one in queued if one.job_id != job and "PENDING" in one.states]
        if waiting:
            refused = signals.cancel(waiting)
            say(f"job {', '.join(waiting)} cancelled: not needed" if not refused else "; ".join(refused.values()))
    except (SlurmShareError, StateError) as error:
        say(f"the waiting jobs of {folder.name} could not be cancelled ({error}); they end when they start")


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Hold the run's claim; wait for another process of ours that has it. Raises UsageError."""
    deadline = Deadline.after(CLAIM_S)
    while True:
        try:
            with run_files.claimed(folder):
                yield
                return
        except run_files.RunIsClaimedError:
            if deadline.left() == 0:
                raise
            time.sleep(PAUSE_S)


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of the run's submission, with what this host needs to reach Slurm.

    Variables of the present job, which would become options of the next one, are left out. Raises StateError.
    """
    recorded = run_folder.read_environment(folder)
    kept = submission.recorded_environment(os.environ if recorded is None else recorded)
    needed = ("SLURM_CONF", "SLURM_CONF_SERVER", "KRB5CCNAME")
    return kept | {name: os.environ[name] for name in needed if name in os.environ}


def own_job(environ: Mapping[str, str]) -> int | None:
    """Return the id of the job in which this process runs; None: none."""
    return numbers.whole(environ.get("SLURM_JOB_ID"), numbers.UINT32_MOST)
