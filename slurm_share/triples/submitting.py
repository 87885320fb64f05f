"""Submit a run of llsub, submit the unfinished part of one again, or start one on this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from ..core import names
from ..core.errors import CommandError, SlurmShareError, StateError, UsageError, shown
from ..node import processes
from ..slurm import jobs as slurm_jobs
from ..slurm import submit
from ..slurm.records import QueuedJob
from . import planning, rendezvous_files, result_files, run_files, run_folder
from .planning import Plan
from .records import Run
from .rules import failing, submission, together
from .rules.progress import all_done
from .rules.submission import Wishes
from .rules.task_files import Tasks


@dataclass(frozen=True)
class Output:
    """Where the user's messages are printed while a run is submitted."""

    command: Callable[[Sequence[str]], None]
    """Shows a command before it is run. Raises UsageError where nobody can read it: who does not see the job's number
    loses the job."""
    note: Callable[[str], None]
    """Says a sentence that is worth a look."""
    sbatch: Callable[[str], None]
    """Passes on what sbatch and its plugins say."""


class Resume(Struct, frozen=True, kw_only=True):
    """Changes to a resumed run from the command line; None: as it was."""

    retries: int | None
    oom_retries: int | None
    max_failures: str | None
    env: Literal["recorded", "current"] | None
    dry_run: bool


class Resumed(Struct, frozen=True):
    """The result of resuming a run."""

    sentence: str
    job: int | None = None
    """What was submitted; None: nothing."""
    launcher_environ: Mapping[str, str] | None = None
    """The environment of a run without a scheduler, which `become_launcher` is to go on with."""


# ---- A new run ----


def submit_new(plan: Plan, wishes: Wishes, output: Output) -> tuple[Path, int]:
    """Make the run's folder, and submit it; return both the folder and the job. Raises UsageError, with the folder gone
    again, where sbatch refuses; SlurmShareError where nobody knows whether there is a job now."""
    folder = run_files.make_folder(Path.cwd())
    argv = planning.scheduler_command(plan, str(folder), wishes)
    environ = submission.recorded_environment(os.environ)
    run_files.write(
        folder,
        plan.run,
        plan.tasks.lines,
        planning.launch_script(plan, str(folder), argv),
        argv,
        environ=environ,
        specs=plan.tasks.specs,
    )
    for note in plan.notes:
        output.note(note)
    try:
        if together.is_between_nodes(plan.run):
            rendezvous_files.make(folder)
        output.command(argv)
        job = submit.submit(argv, say=output.sbatch)
    except UsageError:
        rendezvous_files.remove(rendezvous_files.folder_of(folder))
        run_files.remove(folder)
        raise
    except SlurmShareError as error:
        again = f"llsub --resume {folder.name} submits it again" if not plan.run.together else "submit it anew"
        raise SlurmShareError(f"{error}\n{again} if it is not there") from error
    _note(folder, job, output)
    return folder, job


def _note(folder: Path, job: int, output: Output) -> None:
    try:
        run_files.note_job(folder, job)
    except OSError as error:
        output.note(
            f"job {job} is submitted, but cannot be noted in {folder / run_folder.JOBS} ({error.strerror}); "
            "wait for its end before you resume it"
        )


# ---- On this machine ----


def make_here(run: Run, tasks: Tasks) -> Path:
    """Make the folder of a run without a scheduler."""
    folder = run_files.make_folder(Path.cwd())
    script = submission.local_script(str(folder), sys.executable, is_together=run.together)
    environ = submission.recorded_environment(os.environ)
    run_files.write(folder, run, tasks.lines, script, environ=environ, specs=tasks.specs)
    return folder


def become_launcher(folder: Path, gpus: int | None, environ: Mapping[str, str]) -> NoReturn:
    """Become the launcher by exec: it takes over the exit code and Ctrl-C."""
    environment = {name: value for name, value in environ.items() if not name.startswith(("SLURM_", "SLURMD_"))}
    if gpus is not None:
        visible = environment.get(names.ENV_VISIBLE_DEVICES, "")
        listed = visible.split(",") if visible else [str(number) for number in range(gpus)]
        environment[names.ENV_VISIBLE_DEVICES] = ",".join(listed[:gpus])
    sys.stdout.flush()
    sys.stderr.flush()
    argv = [sys.executable, "-I", "-m", "slurm_share.cli.main", "launch", str(folder)]
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # until the launcher takes them, for the tasks
    os.execve(sys.executable, argv, environment)


# ---- A run that there is ----


def find_folder(argument: str) -> Path:
    """Return the absolute path of a run's folder. Raises UsageError for another folder."""
    folder = Path(os.path.abspath(argument))  # noqa: PTH100  # not through links: the job finds it under this name
    try:
        run_folder.read_run(folder)
    except StateError as error:
        raise UsageError(
            f"{shown(argument)}: there is no run in this folder ({error.why}); runs are called LLSUB.<n>"
        ) from error
    return folder


def find_own_folder(argument: str) -> Path:
    """Return the folder of a run of the caller's, in whose name what is in it is started. Raises UsageError for another
    user's."""
    folder = find_folder(argument)
    owner = run_folder.read_foreign_owner(folder, os.geteuid())
    if owner is not None:
        raise UsageError(
            f"{folder.name} is {processes.read_user_name(owner)}'s run, or a file in it is; a run is resumed by "
            "its owner, and not by root either: submit the script anew"
        )
    return folder


def find_newest() -> Path:
    """Return the folder of the newest run in this folder. Raises UsageError where there is none."""
    found = [
        path for path in Path.cwd().glob("LLSUB.*") if path.suffix[1:].isdecimal() and (path / run_folder.RUN).exists()
    ]
    if not found:
        raise UsageError("there is no LLSUB.<n> in this folder; write which one: llsub --watch FOLDER")
    return max(found, key=lambda path: int(path.suffix[1:]))


def resume(folder: Path, wishes: Wishes, asked: Resume, output: Output) -> Resumed:
    """Submit what a run has not finished, or only say what that would be.

    Raises UsageError where a job of it is still in the queue, SlurmShareError where that cannot be seen.
    """
    run = run_folder.read_run(folder)
    if run.together:
        raise UsageError(f"{folder.name} has ranks that talk to each other; {together.AGAIN}")
    with run_files.claimed(folder):
        jobs = run_folder.read_jobs(folder)
        queued = [job.job_id for job in _queued(folder, jobs)]
        for job in queued:
            if job not in jobs:
                _note(folder, job, output)
        if queued:
            raise UsageError(
                f"job {queued[0]} of {folder.name} is still in the queue; wait for its end, or write llkill {queued[0]}"
            )
        done = len(result_files.read_done(folder, run))
        if done >= run.tasks:
            return Resumed(f"{folder.name}: {all_done(run.tasks)}; there is nothing to resume")
        environ, recorded_owner = _environment(folder, asked.env)
        count = run.tasks - done
        left = (
            f"{count} of {submission.counted(run.tasks, 'task')} of {folder.name} {'is' if count == 1 else 'are'} left"
        )
        new = _with_retries(run, asked, folder)
        if asked.max_failures is not None:
            new = replace(new, max_failures=failing.parse_max_failures(asked.max_failures, run.tasks))
        if not (folder / run_folder.SUBMIT).exists():
            if wishes != Wishes():
                raise UsageError(f"{folder.name} runs here, without Slurm; leave -q, -T and --options away")
            if not asked.dry_run and new != run:
                run_files.rewrite_run(folder, new)
            return Resumed(f"{left}; {recorded_owner}", launcher_environ=environ)
        argv = submission.again(run_folder.read_scheduler_command(folder), wishes)
        if run.triple is not None:
            submission.check_options(wishes.options)
        output.command(argv)
        if asked.dry_run:
            return Resumed(f"{left}; {recorded_owner}")
        job = _submit_again(folder, run, new, argv, environ, output)
        _note(folder, job, output)
        return Resumed(f"{left}; {recorded_owner}", job=job)


def _with_retries(run: Run, asked: Resume, folder: Path) -> Run:
    """Return the run with the numbers of retries of a resumption. Raises UsageError."""
    new = run if asked.retries is None else replace(run, retries=asked.retries)
    if new.pack is None:
        if asked.oom_retries is not None:
            raise UsageError(f"{folder.name} is not packed, and --oom-retries goes with --pack; --retries is for it")
        return new
    settings = replace(new.pack.settings, retries=new.retries)
    if asked.oom_retries is not None:
        settings = replace(settings, oom_retries=asked.oom_retries)
    return replace(new, pack=replace(new.pack, settings=settings))


def _environment(folder: Path, wish: str | None) -> tuple[Mapping[str, str], str]:
    """Return the environment of a run that is resumed, and a sentence that says which. Raises StateError."""
    recorded = None if wish == "current" else run_folder.read_environment(folder)
    if recorded is not None:
        sentence = "its environment is that of its submission (--env=current takes this shell's)"
        return submission.resumed_environment(recorded, os.environ), sentence
    why = "" if wish == "current" else ", for none was recorded"
    return os.environ, f"its environment is this shell's{why}"


def _submit_again(
    folder: Path, run: Run, new: Run, argv: Sequence[str], environ: Mapping[str, str], output: Output
) -> int:
    """Submit `run` as `new`, which differs in its retries: the job may begin at once, and reads it then."""
    if new != run:
        run_files.rewrite_run(folder, new)
    try:
        return submit.submit(argv, environ=environ, say=output.sbatch)
    except UsageError:
        if new != run:
            run_files.rewrite_run(folder, run)
        raise


def _queued(folder: Path, jobs: Sequence[int]) -> tuple[QueuedJob, ...]:
    """Return the jobs of a run that wait, run or end: those of the numbers `jobs`, and those that run its script. The
    controller may have taken a job without answering, and then nobody has noted its number."""
    if not (folder / run_folder.SUBMIT).exists():
        return ()
    script = str(folder / run_folder.LAUNCH_SCRIPT)
    try:
        queue = slurm_jobs.read_queue(users=[str(os.geteuid())])[1]
    except CommandError as error:
        raise SlurmShareError(
            f"cannot see whether the jobs of {folder.name} have ended ({error}); nothing was submitted"
        ) from error
    return tuple(job for job in queue if job.job_id in jobs or job.script == script)
