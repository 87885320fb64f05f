"""`llsub --add`: add tasks to a run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ..core import names
from ..core.command import EXIT_INTERRUPTED
from ..core.errors import SlurmShareError, UsageError
from ..core.text import counted
from ..triples import Run, growing, run_folder, submission, submitting, task_stream

TAKES = ("tasks", "ntasks", "sweep", "zip", "open")
"""Options of --add in addition to those of --resume."""


def add(
    folder: Path,
    arguments: argparse.Namespace,
    wishes: submission.SbatchOptions,
    asked: submitting.ResumeOptions,
    output: submitting.Output,
) -> growing.Addition:
    """Add the tasks that the arguments name to a run, and say which numbers they got."""
    run = growing.read_run(folder)
    found = growing.read_tasks(folder, run, arguments.tasks, arguments.ntasks, arguments.sweep or (), arguments.zip)
    count = len(found.lines) or arguments.ntasks
    added = growing.add(folder, run, found, count, arguments.tasks or "", wishes, asked, output)
    show(added, output, is_parsable=arguments.parsable and not asked.dry_run)
    return added


def show(added: growing.Addition, output: submitting.Output, *, is_parsable: bool) -> None:
    """Print the numbers of added tasks, and what runs them; `is_parsable`: the numbers, and a new job."""
    tasks = f"{'task' if added.count == 1 else 'tasks'} {added.numbers}"
    if not is_parsable:
        print(f"{'' if added.job is None else f'job {added.job}: '}{tasks} {added.sentence}", flush=True)
        return
    output.note(f"{tasks} {added.sentence}")
    print(added.numbers if added.job is None else f"{added.numbers} {added.job}", flush=True)


# ---- --open ----


class Pipe:
    """Standard input whose lines become tasks as they come."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Wait for the first task. Raises UsageError for options that conflict."""
        conflict = next((one for one in ("sweep", "ntasks", "spmd", "dry_run") if getattr(arguments, one)), None)
        if conflict is not None:
            raise UsageError(f"--open adds lines as they come, which --{conflict.replace('_', '-')} cannot; remove one")
        if arguments.tasks != "-":
            raise UsageError("--open is for lines that come by and by: write --tasks - --open, and a pipe before llsub")
        if sys.stdin is None:
            raise UsageError("--tasks -: standard input is closed; write a pipe before llsub")
        self.reader = task_stream.LineReader(0)
        self.reader.gather(None, task_stream.is_task)
        self.number, self.lines = self.reader.take()
        if not any(map(task_stream.is_task, self.lines)):
            raise UsageError("--tasks standard input: it has ended without a task; nothing was submitted or added")
        self.lease: task_stream.Lease | None = None

    @property
    def data(self) -> bytes:
        """Return the lines that have come first."""
        return b"".join(line + b"\n" for line in self.lines)

    def open(self, folder: Path) -> None:
        """Keep the run in a folder from ending."""
        self.lease = task_stream.Lease(folder)

    def feed(self, folder: Path, place: Callable[[int, int], bool], note: Callable[[str], None], before: int) -> int:
        """Add further lines until the end of the input, and return the exit code. `before`: tasks that it had given."""
        assert self.lease is not None
        options = [line for line in self.lines if not task_stream.is_task(line)]
        stream = task_stream.TaskStream(folder, run_folder.read_run(folder), self.reader, options, place)
        self.reader.stop_on_signals()
        name = run_folder.typed(folder)
        try:
            is_taken = stream.add_all(self.lease)
        except SlurmShareError as error:
            self.lease.close()
            given = counted(before + stream.count, "task")
            raise type(error)(
                f"{error}\nno further line is read: {folder.name} has {given} from standard input"
            ) from error
        finally:
            self.lease.close()
        given = f"{counted(before + stream.count, 'task')} from standard input"
        if not is_taken:
            note(
                f"no job of {folder.name} runs any more: it has {given}, no further line is read; llsub --resume "
                f"{name} runs what is left"
            )
            return 1
        note(f"{'stopped' if self.reader.is_stopped else 'end of standard input'}: {folder.name} has {given}")
        return EXIT_INTERRUPTED if self.reader.is_stopped else names.EXIT_OK


def is_taken(folder: Path) -> Callable[[int, int], bool]:
    """Return a function that says whether a job of a run takes tasks that were added."""
    run = run_folder.read_run(folder)
    return lambda first, count: bool(growing.find_taker(folder, run))


def feed_beside(pipe: Pipe, folder: Path, run: Run, note: Callable[[str], None]) -> None:
    """Add further lines in a process of its own, beside the launcher that this process becomes."""
    launcher = os.getpid()
    if os.fork():
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        return
    code = 1
    try:
        code = pipe.feed(folder, lambda first, count: os.getppid() == launcher, note, run.tasks)
    except SlurmShareError as error:
        note(str(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def add_open(
    folder: Path,
    arguments: argparse.Namespace,
    wishes: submission.SbatchOptions,
    asked: submitting.ResumeOptions,
    output: submitting.Output,
) -> int:
    """Add the lines of a pipe to a run as they come, and return the exit code."""
    if asked.local:
        raise UsageError("--add --open and --local: start the run with --local --open, or submit it")
    run = growing.read_run(folder)
    growing.check_kind(folder, run, has_lines=True)
    growing.check(folder, run)
    pipe = Pipe(arguments)
    pipe.open(folder)
    assert pipe.lease is not None
    try:
        found = growing.parse_lines(folder, run, [], pipe.lines, pipe.number)
        added = growing.add(folder, run, found, len(found.lines), "-", wishes, asked, output)
        if added.launcher_environ is not None:
            raise UsageError(
                f"{'task' if added.count == 1 else 'tasks'} {added.numbers} added, but {folder.name} has no launcher: "
                f"llsub --resume {run_folder.typed(folder)} runs it on this machine"
            )
        show(added, output, is_parsable=arguments.parsable)
    except BaseException:
        pipe.lease.close()
        raise
    return pipe.feed(folder, is_taken(folder), output.note, added.count)
