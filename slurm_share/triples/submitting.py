"""Submit a run of llsub, resume a run, or start a run on this machine."""

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

from ..core import given_variables, names, numbers
from ..core.errors import SlurmShareError, StateError, UsageError
from ..core.records import JobStart
from ..core.text import counted
from ..node import processes
from ..share import visible_devices
from ..slurm import submit
from ..slurm.records import QueuedJob
from . import (
    added_tasks,
    chains,
    kept_script,
    next_job,
    planning,
    queued_jobs,
    result_files,
    run_files,
    run_folder,
    run_jobs,
)
from .planning import RunPlan
from .records import Run
from .rules import failing, moved, submission, together, until_done
from .rules.progress import all_done
from .rules.submission import SbatchOptions
from .rules.task_files import Tasks


@dataclass(frozen=True)
class Output:
    """Functions that print messages for the user during a submission."""

    command: Callable[[Sequence[str]], None]
    """Prints a command before it is run. Raises UsageError if it cannot be printed: without its output, the user would
    not learn the job id."""
    note: Callable[[str], None]

    def sbatch(self, text: str) -> None:
        """Print messages of sbatch and its plugins unchanged."""
        sys.stderr.write(text)
        sys.stderr.flush()


class ResumeOptions(Struct, frozen=True, kw_only=True):
    """Options of `llsub --resume`; None: unchanged."""

    retries: int | None
    oom_retries: int | None
    keep_going: bool
    until_done: int | None = None
    task_time: str | None = None
    """The time limit of all tasks, also of those with their own."""
    max_failures: str | None
    env: Literal["recorded", "current"] | None
    script: Literal["kept", "current"] | None
    dry_run: bool
    local: bool = False
    """Run the tasks on this machine, also of a run that was submitted to Slurm."""
    after_sealed: bool = False
    """A job of the run that is still in the queue, but runs none of the tasks that are left, is no obstacle: the new
    job starts after it."""
    more: int = 0
    """With `dry_run`: this many tasks would be added first."""


class ResumeResult(Struct, frozen=True):
    """The result of resuming a run."""

    sentence: str
    job: int | None = None
    """The submitted job; None: nothing was submitted."""
    launcher_environ: Mapping[str, str] | None = None
    """For a run without Slurm: the environment for `become_launcher`."""


# ---- A new run ----


def submit_new(
    plan: RunPlan,
    wishes: SbatchOptions,
    output: Output,
    *,
    is_kept: bool,
    prepare: Callable[[Path], None] = lambda folder: None,
) -> tuple[Path, int]:
    """Make the folder of a run and submit it; return the folder and the job id. `is_kept`: as in run_files.write.

    `prepare` gets the folder when its files are written, before the job exists.

    Raises UsageError, after removing the folder, if sbatch refuses; SlurmShareError if it is not known whether there is
    a job now.
    """
    folder = run_files.make_folder(Path.cwd())
    plan = replace(plan, run=run_files.identified(plan.run, folder))
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
        is_kept=is_kept,
    )
    for note in plan.notes:
        output.note(note)
    try:
        prepare(folder)
        if together.is_between_nodes(plan.run):
            run_folder.make_key(folder)
        argv = submission.with_dependency(argv, chains.jobs_before(plan.run))
        output.command(argv)
        job = submit.submit(argv, say=output.sbatch)
    except UsageError:
        run_folder.remove_key(run_folder.key_folder_of(folder))
        run_files.remove(folder)
        raise
    except SlurmShareError as error:
        raise SlurmShareError(
            f"{error}\nIf there is no such job, submit it with llsub --resume {folder.name}"
        ) from error
    note_job(folder, job, output)
    try:
        chains.note_follower(folder, plan.run)
    except OSError as error:
        output.note(f"the runs before this one do not know of it ({error.strerror}); it looks at its start")
    _submit_ahead(folder, plan.run, argv, job, os.environ, output)
    return folder, job


def _submit_ahead(
    folder: Path, run: Run, argv: Sequence[str], job: int, environ: Mapping[str, str], output: Output
) -> None:
    """Submit all further jobs of --until-done now if the nodes of the job may not do it; tell the user."""
    if run.until_done is None:
        return
    said = {one.name: one.value for one in submission.parse_options(argv[1:-1], "the command")}
    if not next_job.must_submit_ahead(said.get("partition") or environ.get("SBATCH_PARTITION")):
        return
    try:
        ahead = next_job.submit_ahead(folder, run, argv, job, environ)
        output.note(until_done.ahead_text(ahead, run))
    except (SlurmShareError, OSError) as error:
        output.note(f"job {job} is submitted, but not all further jobs of it ({error}); resume the run after them")


def note_job(folder: Path, job: int, output: Output) -> None:
    """Append a job id to the file `jobs` of a run; tell the user if that fails."""
    try:
        run_files.note_job(folder, job)
    except OSError as error:
        output.note(
            f"job {job} is submitted, but {folder / run_folder.JOBS} cannot be written ({error.strerror}); wait for "
            "the end of the job before you resume it"
        )


# ---- On this machine ----


def make_here(run: Run, tasks: Tasks, *, is_kept: bool) -> Path:
    """Make the folder of a run on this machine. `is_kept`: as in run_files.write. Raises UsageError."""
    folder = run_files.make_folder(Path.cwd())
    run = run_files.identified(run, folder)
    script = submission.local_script(sys.executable, is_together=run.together)
    environ = submission.recorded_environment(os.environ)
    run_files.write(folder, run, tasks.lines, script, environ=environ, specs=tasks.specs, is_kept=is_kept)
    return folder


def become_launcher(folder: Path, gpus: int | None, environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by the launcher (exec), which then determines the exit code and handles Ctrl-C."""
    job = numbers.whole(environ.get("SLURM_JOB_ID"), numbers.UINT32_MOST)
    # without a number, this is a task of another run on this machine: its GPU and caps are still in force
    own = environ if job is None else given_variables.forget(environ, job)
    environment = {name: value for name, value in own.items() if not name.startswith(("SLURM_", "SLURMD_"))}
    visible = visible_devices(own)
    if visible is not None:
        environment[names.ENV_VISIBLE_DEVICES] = visible
    if gpus is not None:
        listed = visible.split(",") if visible else [str(number) for number in range(gpus)]
        environment[names.ENV_VISIBLE_DEVICES] = ",".join(listed[:gpus])
    sys.stdout.flush()
    sys.stderr.flush()
    argv = [sys.executable, "-I", "-X", "utf8", "-m", "slurm_share.cli.main", "launch", str(folder)]
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # for the tasks; ignored until the launcher handles them
    os.execve(sys.executable, argv, environment)


# ---- An existing run ----


def find_folder(argument: str) -> Path:
    """Return the absolute path of a run's folder. Raises UsageError for another folder."""
    folder = Path(os.path.abspath(argument))  # noqa: PTH100  # keeps links: the job uses this path
    try:
        run_folder.read_run(folder)
    except StateError as error:
        raise UsageError(run_folder.no_run_text(argument, folder, error)) from error
    return folder


def find_own_folder(argument: str, what: str = "resume a run", instead: str = "submit the script again") -> Path:
    """Return the folder of a run of the caller, who will execute its contents. Raises UsageError for another user's.

    `what`: what only its owner can do. `instead`: what others can do.
    """
    folder = find_folder(argument)
    owner = run_folder.read_foreign_owner(folder, os.geteuid())
    if owner is not None:
        raise UsageError(
            f"{folder.name}, or a file in it, belongs to {processes.read_user_name(owner)}; only its owner can {what}, "
            f"not even root: {instead}"
        )
    return folder


def find_newest(command: str = "llsub --watch") -> Path:
    """Return the folder of the newest run in the working directory. Raises UsageError if there is none.

    command: the words before the folder's name, for the message.
    """
    found = {
        number: path
        for path in Path.cwd().glob("LLSUB.*")
        if (number := numbers.whole(path.suffix[1:])) is not None and (path / run_folder.RUN).exists()
    }
    if not found:
        raise UsageError(f"there is no LLSUB.<n> in this folder; write its path: {command} FOLDER")
    return found[max(found)]


def resume(folder: Path, wishes: SbatchOptions, asked: ResumeOptions, output: Output) -> ResumeResult:
    """Submit the unfinished tasks of a run; with `dry_run`, only show the command.

    Raises UsageError if a job of it is still in the queue, SlurmShareError if the queue cannot be read.
    """
    run = run_folder.read_run(folder)
    if run.together:
        together.check_resume({name: getattr(asked, name) for name in asked.__struct_fields__})
    with run_files.claimed(folder):
        jobs = run_folder.read_jobs(folder)
        queued = _queued_or_unknown(folder, run, jobs, asked, output)
        for one in queued:
            if one.job_id not in jobs:
                note_job(folder, one.job_id, output)
        ending = [one for one in queued if asked.after_sealed and not takes_added(folder, one)]
        if len(ending) < len(queued):
            raise UsageError(why_not_now(queued[0], folder, run))
        run = _in_place(folder, run, output, dry_run=asked.dry_run)
        done = len(result_files.read_done(folder, run))
        run = replace(run, tasks=run.tasks + asked.more, added=run.added + asked.more)
        if done >= run.tasks:
            return ResumeResult(f"{folder.name}: {all_done(run.tasks)}; there is nothing to resume")
        environ, recorded_owner = _environment(folder, run, asked.env)
        count = run.tasks - done
        left = f"{count} of {counted(run.tasks, 'task')} of {folder.name} {'is' if count == 1 else 'are'} left"
        if run.together:
            left = f"all {counted(run.tasks, 'rank')} of {folder.name} start again"
        new = _with_retries(run, asked, folder, output)
        if asked.until_done is not None:
            new = replace(new, until_done=asked.until_done)
            if run.until_done is None and not (asked.local or asked.dry_run):
                run_files.ask_to_begin(folder)
        if asked.max_failures is not None:
            new = failing.with_max_failures(new, asked.max_failures)
        if asked.task_time is not None:
            new = replace(new, resumed_time=asked.task_time)
        if asked.local or not run.scheduler:
            if run.triple is not None and run.triple.nodes > 1:
                raise UsageError(
                    f"{folder.name} is a run on {run.triple.nodes} nodes, and --local is one machine; resume it "
                    "without --local, or start a new run with --local"
                )
            if wishes != SbatchOptions():
                output.note(f"-q, -T and --options ignored: {folder.name} runs on this machine, without Slurm")
            chains.check_here(run)
            new = _with_script(folder, new, asked, output)
            if not asked.dry_run and new != run:
                run_files.rewrite_run(folder, new)
            return ResumeResult(f"{left}; {recorded_owner}", launcher_environ=environ)
        argv = submission.again(run_folder.scheduler_command(folder, run), wishes, run.cwd)
        if run.triple is not None:
            submission.check_options(wishes.options)
        new = _with_script(folder, new, asked, output)
        argv = submission.with_dependency(argv, [*(one.job_id for one in ending), *chains.jobs_before(run)])
        output.command(argv)
        if asked.dry_run:
            for note in submit.ask(argv):
                output.note(note)
            return ResumeResult(f"{left}; {recorded_owner}")
        if new.until_done is not None:
            new = replace(new, scheduler=tuple(argv))  # the jobs that follow have these options too
        job = _submit_again(folder, run, new, argv, environ, output)
        note_job(folder, job, output)
        chains.tell_followers(folder, output.note)
        _submit_ahead(folder, new, argv, job, environ, output)
        return ResumeResult(f"{left}; {recorded_owner}", job=job)


def _queued_or_unknown(
    folder: Path, run: Run, jobs: Sequence[int], asked: ResumeOptions, output: Output
) -> tuple[QueuedJob, ...]:
    """Return the queued jobs of a run; none on a machine without Slurm, for a run that goes on there."""
    try:
        return queued_jobs.read(folder, run, jobs)
    except SlurmShareError as error:
        cause = error.__cause__
        if not asked.local or cause is None or not isinstance(cause.__cause__, OSError):
            raise
        output.note(f"this machine has no Slurm to ask: make sure that no job of {folder.name} runs elsewhere")
        return ()


def takes_added(folder: Path, job: QueuedJob) -> bool:
    """Return whether a queued job of a run runs the tasks that are added now. Raises StateError."""
    last = added_tasks.read_last(folder)[1]
    is_sealed = last is not None and last.last_seal == str(JobStart(job.job_id, job.restarts or 0))
    is_again = "COMPLETING" in job.states or job.states[0] == "PENDING"
    return queued_jobs.has_more(job) and not (is_sealed and not is_again)


def why_not_now(job: QueuedJob, folder: Path, run: Run) -> str:
    original = run_jobs.find_original(job, folder, run)
    if original is None:
        return f"job {job.job_id} of {folder.name} is still in the queue; wait for its end, or run llkill {job.job_id}"
    return (
        f"{folder.name} is a copy of {original}, whose job {job.job_id} is still in the queue and runs the same tasks; "
        "wait for its end"
    )


def _in_place(folder: Path, run: Run, output: Output, *, dry_run: bool) -> Run:
    """Return the run in its present folder, for which its files are written again if it was renamed or moved."""
    recorded = run.folder
    if run_folder.is_same(Path(recorded), folder):
        return run
    new = moved.run_in(run, recorded, str(folder), os.path.exists)
    if not dry_run:
        run_files.move(folder, run, new)
    sentence = moved.moved_text(new, recorded)
    if sentence:
        output.note(sentence)
    return new


def _with_retries(run: Run, asked: ResumeOptions, folder: Path, output: Output) -> Run:
    """Return the run with the retries of `asked`."""
    new = run if asked.retries is None else replace(run, retries=asked.retries)
    if new.pack is None:
        if asked.oom_retries is not None:
            output.note(f"--oom-retries ignored: {folder.name} is not packed; --retries is for all failures")
        if asked.keep_going:
            output.note(f"--keep-going ignored: {folder.name} is not packed")
        return new
    settings = replace(new.pack.settings, retries=new.retries)
    if asked.oom_retries is not None:
        settings = replace(settings, oom_retries=asked.oom_retries)
    if asked.keep_going:
        settings = replace(settings, keep_going=True)
    return replace(new, pack=replace(new.pack, settings=settings))


def _with_script(folder: Path, run: Run, asked: ResumeOptions, output: Output) -> Run:
    """Return the run with the script as it is now, if asked; else say if it is not as it was at submission."""
    if asked.script == "current":
        return run if asked.dry_run or not run.command else run_files.keep_again(folder, run)
    if kept_script.has_changed(run):
        output.note(
            f"{run.command[0]} is not as it was at submission; the run has it as submitted (--script=current: as it is "
            "now)"
        )
    return run


def _environment(folder: Path, run: Run, wish: str | None) -> tuple[Mapping[str, str], str]:
    """Return the environment for a resumed run, and a sentence on its origin. Raises StateError."""
    recorded = None if wish == "current" else run_folder.read_environment(folder)
    if recorded is not None:
        sentence = "its environment is that of its submission (--env=current: that of this shell)"
        here = not run.scheduler
        return submission.resumed_environment(recorded, os.environ, here=here), sentence
    why = "" if wish == "current" else ", because none was recorded"
    return os.environ, f"its environment is this shell's{why}"


def _submit_again(
    folder: Path, run: Run, new: Run, argv: Sequence[str], environ: Mapping[str, str], output: Output
) -> int:
    """Write `new` to run.json and submit it; restore `run` if sbatch refuses. The job reads run.json when it starts."""
    if new != run:
        run_files.rewrite_run(folder, new)
    try:
        return submit.submit(argv, environ=environ, say=output.sbatch)
    except UsageError:
        if new != run:
            run_files.rewrite_run(folder, run)
        raise
