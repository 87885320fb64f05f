"""Find jobs in the queue by job id, by the folder of a run, or by user."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..core import numbers, terminal
from ..core.errors import SlurmShareError, StateError, UsageError, shown
from ..node import processes
from ..share import ChosenJob, queue
from ..slurm import jobs as slurm_jobs
from ..slurm.records import ClusterName, QueuedJob
from . import run_folder, run_jobs
from .records import Run


def find_run(argument: str) -> Path | None:
    """Return the folder of a run if the argument is one; None: the argument is a list of job ids.

    Raises UsageError for an empty argument.
    """
    if not argument:
        raise UsageError("an argument is empty: write job ids or the folder of a run (is a shell variable not set?)")
    folder = Path(argument)
    is_number = (
        numbers.whole(argument[:1]) is not None and "/" not in argument and not (folder / run_folder.RUN).exists()
    )
    return None if is_number or not folder.is_dir() else folder


def _user_id(name: str) -> int:
    uid = processes.read_user_id(name)
    if uid is None:
        raise UsageError(f"there is no user {shown(name) or repr(name)} on this host; write a user name or a uid")
    return uid


# ---- For llstat ----


def read_to_show(
    named: str | None, users: str | None, *, everybody: bool
) -> tuple[ClusterName, list[QueuedJob], list[str]]:
    """Return the cluster's name, the jobs in order, and a sentence start for each argument without a job.

    `named`: job ids, or the folder of a run. `users`: `alice,bob`. Neither: the caller's jobs. Raises UsageError,
    SlurmShareError, CommandError.
    """
    cluster: ClusterName | None
    found: Sequence[QueuedJob]
    missing: list[str] = []
    if named is not None:
        cluster, found, missing = _read_named(named)
    elif everybody:
        cluster, found = slurm_jobs.read_queue()
    else:
        uids = [os.geteuid()] if users is None else [_user_id(name) for name in users.split(",")]
        cluster, found = slurm_jobs.read_queue(users=[str(uid) for uid in uids])
    ordered = sorted(found, key=lambda job: (job.array or job.job_id, job.element is None, job.element or 0))
    return cluster or slurm_jobs.read_cluster(), ordered, missing


def _read_named(text: str) -> tuple[ClusterName | None, list[QueuedJob], list[str]]:
    folder = find_run(text)
    run = None if folder is None else _read_run(folder)
    targets = queue.parse_targets(text) if folder is None else _submitted(folder)
    if not targets:
        raise SlurmShareError(f"no job was submitted from {terminal.safe(str(folder))}")
    cluster, queued = slurm_jobs.read_queue(jobs=sorted({target.job for target in targets}))
    found = _of_run(folder, run, targets, queued)
    chosen = {id(one.job) for target in targets for one in queue.choose(target, found)}
    missing: list[str] = []
    if folder is None:
        missing = [f"job {target.text} is not" for target in targets if not queue.choose(target, found)]
    elif not chosen:
        missing = [f"no job of {terminal.safe(text)} is"]
    return cluster, [job for job in found if id(job) in chosen], missing


def _read_run(folder: Path) -> Run:
    try:
        return run_folder.read_run(folder)
    except StateError as error:
        raise UsageError(run_folder.no_run_text(str(folder), folder, error)) from error


def _of_run(
    folder: Path | None, run: Run | None, targets: Sequence[queue.JobTarget], jobs: Sequence[QueuedJob]
) -> Sequence[QueuedJob]:
    """Return the jobs of the run in a folder, without those of another folder and those to which an id was given anew.

    Without a folder, return all jobs.
    """
    if folder is None or run is None:
        return jobs
    known, place = {target.job for target in targets}, Path(os.path.abspath(folder))  # noqa: PTH100  # keeps links
    return [job for job in jobs if run_jobs.is_of_run(job, place, run, known)]


def _submitted(folder: Path) -> list[queue.JobTarget]:
    return [queue.JobTarget(str(job), job) for job in run_folder.read_jobs(folder)]


# ---- For llkill ----


def read_of_user(name: str | None) -> tuple[int, list[ChosenJob]]:
    """Return the uid and jobs of a user; None: of the caller. Raises UsageError, CommandError."""
    uid = os.geteuid() if name is None else _user_id(name)
    _, jobs = slurm_jobs.read_queue(users=[str(uid)])
    chosen = {one.id: one for job in jobs for one in queue.choose(queue.JobTarget(job.id, job.job_id), [job])}
    return uid, list(chosen.values())


def read_to_end(arguments: Sequence[str]) -> tuple[list[ChosenJob], list[str]]:
    """Return jobs to cancel, and a sentence for each argument without one. Raises SlurmShareError, CommandError."""
    asked = [(argument, *_targets(argument)) for argument in arguments]
    _, jobs = slurm_jobs.read_queue(jobs=sorted({target.job for *_, targets in asked for target in targets}))
    chosen: dict[str, ChosenJob] = {}
    problems = []
    for argument, folder, run, targets in asked:
        own = _of_run(folder, run, targets, jobs)
        found = {target.text: queue.choose(target, own) for target in targets}
        chosen |= {one.id: one for each in found.values() for one in each}
        if folder is not None:
            if not any(found.values()):
                problems.append(f"no job of {terminal.safe(argument)} is in Slurm's queue: they have ended")
        else:
            problems += [f"job {job} is not in Slurm's queue: see llstat -a" for job, each in found.items() if not each]
    return list(chosen.values()), problems


def _targets(argument: str) -> tuple[Path | None, Run | None, list[queue.JobTarget]]:
    """Return the jobs that an argument names, with folder and run if it is the folder of a run."""
    folder = find_run(argument)
    if folder is None:
        return None, None, list(queue.parse_targets(argument))
    run = _read_run(folder)
    me = os.geteuid()
    owner = None if me == 0 else run_folder.read_foreign_owner(folder, me)
    if owner is not None:  # another user could have written any job id into the run's list of jobs
        raise UsageError(
            f"{terminal.safe(argument)}, or a file in it, belongs to {processes.read_user_name(owner)}; write the ids "
            "of your own jobs, which llstat shows"
        )
    targets = _submitted(folder)
    if not targets:
        raise SlurmShareError(f"no job was submitted from {terminal.safe(argument)}: there is nothing to end")
    return folder, run, targets
