"""Add tasks to a run (`llsub --add`): write them into its folder, and submit it again if no job of it takes them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..core.errors import UsageError
from ..core.text import counted
from ..packing import ProgressReader
from ..slurm import script as script_reader
from . import added_tasks, queued_jobs, run_files, run_folder, submitting, task_reading
from .records import TASKS_MAX, Run
from .rules import deal, task_files
from .rules.submission import SbatchOptions
from .rules.task_files import Tasks
from .submitting import Output, ResumeOptions
from .task_reading import TaskSource

CLAIM_S, CLAIM_PAUSE_S = 60.0, 0.2
"""Most seconds to wait for another process that submits the run, and the pause between two attempts."""


class Addition(Struct, frozen=True):
    """The result of adding tasks to a run."""

    first: int
    count: int
    sentence: str
    job: int | None = None
    """The job that was submitted for them; None: none was needed, or there is no Slurm."""
    launcher_environ: Mapping[str, str] | None = None
    """As in submitting.ResumeResult."""

    @property
    def numbers(self) -> str:
        """Return the numbers of the tasks: `8-11`, or `8`."""
        return f"{self.first}-{self.first + self.count - 1}" if self.count > 1 else str(self.first)


def read_run(folder: Path) -> Run:
    """Return a run to which tasks may be added. Raises UsageError for another one."""
    run = run_folder.read_run(folder)
    if run.kind != "llsub":
        raise UsageError(
            f"{folder.name} is a run of llmapreduce, whose reducer would miss tasks added now; run llmapreduce on the "
            "further inputs"
        )
    if run.together:
        raise UsageError(f"{folder.name} has ranks, which all start together; submit a run with more ranks")
    return run


def read_tasks(
    folder: Path,
    run: Run,
    tasks: str | None,
    count: int | None,
    swept: Sequence[str] = (),
    is_zip: bool = False,
) -> Tasks:
    """Return the tasks to add: of a file or of --sweep, or `count` without lines. Raises UsageError."""
    arguments = run.called[run.called.index("--") + 1 :] if "--" in run.called else ()
    source = TaskSource(
        tasks=tasks,
        sweeps=swept,
        is_zip=is_zip,
        ntasks=count,
        arguments=arguments,
        has_script=bool(run.command),
        base=deal.base_spec(run),
        is_packed=run.pack is not None,
    )
    has_parameters = bool(swept) or is_zip or source.is_table
    if tasks is not None and count is not None and not has_parameters:
        raise UsageError("--tasks and --ntasks both define the tasks; write one of them")
    if tasks is None and count is None and not has_parameters:
        with_lines = "--sweep NAME=VALUES, or --tasks FILE.csv" if run.task_kind == "arguments" else "--tasks FILE"
        what = "--ntasks K" if run.task_kind == "rank" else with_lines
        raise UsageError(f"--add {run_folder.typed(folder)} needs the tasks: write {what}")
    if not has_parameters:
        check_kind(folder, run, has_lines=tasks is not None)
        return Tasks() if tasks is None else parse(folder, run, script_reader.read_task_bytes(tasks), tasks)
    if not (run.command or tasks is not None or arguments):
        raise UsageError(
            f"the tasks of {folder.name} are the lines of a file: write --tasks FILE with commands, in which {{NAME}} "
            "stands for a value"
        )
    read = task_reading.read(replace(source, known=_names(folder, run)))
    if read.kind != run.task_kind or (run.command and read.arguments != run.command[1:]):
        raise UsageError(
            f"the tasks of {folder.name} have no parameters, and those of --sweep and of a table have; submit them as "
            "another run"
        )
    return read.tasks


def check_kind(folder: Path, run: Run, *, has_lines: bool) -> None:
    """Raise UsageError if the tasks of a run are of another kind. For tasks without parameters."""
    if run.task_kind == "arguments":
        raise UsageError(f"the tasks of {folder.name} have parameters: write --sweep NAME=VALUES, or --tasks FILE.csv")
    if has_lines and run.task_kind == "rank":
        raise UsageError(
            f"the tasks of {folder.name} are numbered and have no lines: write --ntasks K instead of --tasks"
        )
    if not has_lines and run.task_kind != "rank":
        raise UsageError(f"the tasks of {folder.name} are the lines of a file: write --tasks FILE instead of --ntasks")


def parse(folder: Path, run: Run, data: bytes, tasks: str) -> Tasks:
    """Return the tasks in the contents of a file. Raises UsageError."""
    is_json = tasks.endswith(task_files.JSON_ENDING)
    return task_files.parse(
        data,
        f"--tasks {'standard input' if tasks == '-' else tasks}",
        deal.base_spec(run),
        is_json=is_json,
        is_packed=run.pack is not None,
        known=_names(folder, run) if is_json else (),
    )


def _names(folder: Path, run: Run) -> set[str]:
    """Return the names of a run's tasks. Raises StateError."""
    return {spec.name for spec in run_folder.read_specs(folder, run) if spec.name}


def parse_lines(folder: Path, run: Run, options: Sequence[bytes], lines: Sequence[bytes], number: int) -> Tasks:
    """Return the tasks in further lines of standard input. Raises UsageError, with the line's number.

    `options`: the lines with options before them. `number`: of the first of `lines`.
    """
    has_tasks = any(not line.startswith(task_files.MAGIC.encode()) for line in lines)
    text = b"\n".join([*options, *lines, *([] if has_tasks else [b":"])]) + b"\n"
    found = task_files.parse(
        text,
        "--tasks standard input",
        deal.base_spec(run),
        is_json=False,
        is_packed=run.pack is not None,
        first=number - len(options),
    )
    if not has_tasks:
        return Tasks()
    return replace(found, others=None if found.others is None else tuple(one for one in found.others if one >= number))


def add(
    folder: Path,
    run: Run,
    found: Tasks,
    count: int,
    source: str,
    wishes: SbatchOptions,
    asked: ResumeOptions,
    output: Output,
) -> Addition:
    """Add tasks to a run, and submit it again if no job of it takes them.

    `found`: their lines; `count`: their number. With `asked.dry_run`, change nothing. Raises UsageError if the run
    cannot take them, SlurmShareError if the queue cannot be read; nothing is added then.
    """
    check(folder, run)
    if asked.dry_run:
        number = run.tasks
        _check_most(folder, run, number, count)
        taker = find_taker(folder, run)
        if taker:
            return Addition(number, count, f"would be added to {folder.name}; {taker}")
        submitted = submitting.resume(folder, wishes, replace(asked, more=count), output)
        return Addition(number, count, f"would be added to {folder.name}; then {submitted.sentence}")
    entry = append(folder, run, found, count, source)
    return place(folder, run, entry.head.first, count, wishes, asked, output)


def check(folder: Path, run: Run) -> None:
    """Raise UsageError if tasks added to a folder would not be its run's: it is a copy of a run that has a job.

    Raises SlurmShareError if the queue cannot be read.
    """
    for job in queued_jobs.read(folder, run, run_folder.read_jobs(folder)):
        if not run_folder.is_same(Path(job.script).parent, folder):
            raise UsageError(submitting.why_not_now(job, folder, run))


def append(folder: Path, run: Run, found: Tasks, count: int, source: str, first_line: int = 1) -> added_tasks.Entry:
    """Write tasks into the folder of a run. Raises UsageError if they cannot be written.

    `source`: the file of --tasks as written. `first_line`: number of its first line among `found`.
    """
    head = added_tasks.Head(
        first=0,
        tasks=count,
        source=source,
        other_lines=found.others,
        first_line=first_line,
        has_lines=bool(found.lines),
        has_specs=bool(found.specs),
    )
    specs = [msgspec.json.encode(spec) for spec in found.specs]
    try:
        entry = added_tasks.append(folder, head, found.lines, specs, tasks=run.first_tasks, most=TASKS_MAX)
    except OSError as error:
        raise UsageError(
            f"cannot write into {folder / added_tasks.FOLDER} ({error.strerror}); nothing was added"
        ) from error
    if entry is None:
        _check_most(folder, run, run_folder.with_added(folder, run).tasks, count)
        raise UsageError(f"{folder.name} cannot take {counted(count, 'task')} more; make another run")
    return entry


def _check_most(folder: Path, run: Run, tasks: int, count: int) -> None:
    if tasks + count > TASKS_MAX:
        raise UsageError(
            f"{folder.name} has {counted(tasks, 'task')}, and with {count} more it would have more than {TASKS_MAX}, "
            "the most; make another run"
        )


def place(
    folder: Path, run: Run, first: int, count: int, wishes: SbatchOptions, asked: ResumeOptions, output: Output
) -> Addition:
    """Find the job that takes tasks that were added, or submit one.

    Raises SlurmShareError if that fails; the tasks stay in the run.
    """
    until = time.monotonic() + CLAIM_S
    while True:
        taker = find_taker(folder, run)
        if taker:
            return Addition(first, count, f"added to {folder.name}; {taker}")
        try:
            found = submitting.resume(folder, wishes, asked, output)
            return Addition(first, count, f"added; {found.sentence}", found.job, found.launcher_environ)
        except run_files.RunIsClaimedError as error:
            if time.monotonic() > until:
                raise UsageError(f"{_are_added(first, count)}, but no job was submitted: {error}") from error
            time.sleep(CLAIM_PAUSE_S)
        except UsageError as error:
            if find_taker(folder, run):
                continue  # another client has submitted it in the meantime
            raise UsageError(
                f"{_are_added(first, count)}, but no job was submitted: {error}\nllsub --resume "
                f"{run_folder.typed(folder)} runs what is left"
            ) from error


def _are_added(first: int, count: int) -> str:
    tasks = f"task {first} is" if count == 1 else f"tasks {first}-{first + count - 1} are"
    return f"{tasks} added"


def find_taker(folder: Path, run: Run) -> str:
    """Return who runs the tasks that are added now, as a sentence; empty: nobody.

    Raises SlurmShareError if the queue cannot be read.
    """
    for job in queued_jobs.read(folder, run, run_folder.read_jobs(folder)):
        if submitting.takes_added(folder, job):
            return f"job {job.job_id} runs {'them' if 'RUNNING' in job.states else 'them when it starts'}"
    return "its launcher on this machine runs them" if _has_launcher_here(folder, run) else ""


def _has_launcher_here(folder: Path, run: Run) -> bool:
    """Return whether a launcher without Slurm runs on this machine and takes added tasks; wait for one that ends."""
    parent = folder / run.log_folder
    until = time.monotonic() + CLAIM_S
    while _is_locked(parent):
        last = added_tasks.read_last(folder)[1]
        starts = [one for one in ProgressReader(parent).read() if one.job.startswith("local-")]
        newest = max(starts, key=lambda one: one.at, default=None)
        if last is None or newest is None or last.last_seal != newest.job:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(CLAIM_PAUSE_S)
    return False


def _is_locked(parent: Path) -> bool:
    """Return whether a launcher of this machine has the results of a run open.

    It does not try the lock, because a launcher that starts at this moment would find it taken.
    """
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    locked = {line.split()[5].rpartition(":")[2] for line in locks if " FLOCK " in line and len(line.split()) > 5}
    for file in parent.glob(f"p*_*/{run_folder.RESULTS}"):
        with contextlib.suppress(OSError):
            if str(file.stat().st_ino) in locked:
                return True
    return False
