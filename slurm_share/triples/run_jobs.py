"""Find jobs in the queue by job id, by the folder of a run, or by user, and read how one was submitted.

A job is one of a run by its id, and by the folder from which it was submitted. The list of job ids moves with the
folder, and a copy of the folder has it too. Slurm keeps the path of the job's script as it was at submission, where
there may be another run by now.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec.structs import replace

from ..core import numbers, terminal
from ..core.errors import SlurmShareError, StateError, UsageError, shown
from ..node import processes
from ..share import ChosenJob, queue
from ..slurm import jobs as slurm_jobs
from ..slurm import submit
from ..slurm.records import ClusterName, QueuedJob, Submission
from ..slurm.rules import submitted
from ..slurm.script import read_script
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
    if other.id == run.id:
        return copies and job.job_id in known
    if job.job_id in _read_known(place):
        return False
    return job.job_id in known or (copies and str(place) == run.folder)


def find_original(job: QueuedJob, folder: Path, run: Run) -> Path | None:
    """Return the folder of a queued job if `folder` is a copy of it; None: it is another run, or `folder` itself."""
    place = Path(job.script).parent
    if place == folder or run_folder.is_same(place, folder):
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


def read_submission(job: QueuedJob) -> Submission | None:
    """Return how one of the caller's jobs was submitted; None: not certain, or it cannot be read here."""
    script = Path(job.script)
    try:
        if script.name == run_folder.LAUNCH_SCRIPT and script.is_absolute():
            return _from_folder(script.parent, job.job_id)
        return _from_slurm(job)
    except (SlurmShareError, OSError, ValueError):
        return None


def _from_folder(folder: Path, job_id: int) -> Submission | None:
    if run_folder.read_foreign_owner(folder, os.geteuid()) is not None or not may_be_of(job_id, folder):
        return None
    run = run_folder.read_run(folder)
    return submitted.of_llsub(run.called, run.cwd, str(folder / run_folder.TASKS)) if run.kind == "llsub" else None


def _from_slurm(job: QueuedJob) -> Submission | None:
    from .rules import submission  # imported here: llstat and llkill do without it

    kept = submit.read_job(job.job_id)
    found = submitted.of_sbatch(kept.line, kept.command, kept.folder)
    if found is None:
        return None
    script = read_script(kept.command, to_execute=False)
    return replace(
        found,
        directives=frozenset(one.name for one in submission.parse_directives(script.directives)),
        starts_steps=submit.read_starts_steps(Path(script.path)),
        is_executable=os.access(script.path, os.X_OK),
        nodes=job.node_count or 1,
    )


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
    return [job for job in jobs if is_of_run(job, place, run, known)]


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
