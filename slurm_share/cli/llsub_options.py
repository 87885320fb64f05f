"""The options of llsub for tasks and packing, on the command line and in #LLSUB lines of a script."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from ..core import numbers
from ..core.errors import UsageError, shown
from ..core.text import did_you_mean
from ..packing import POLICIES, TaskSpec
from ..slurm.script import OWN_MAGIC, Script
from ..triples import (
    DISTRIBUTIONS,
    TASKS_MAX,
    PackOptions,
    checkpoint,
    log_counts,
    pack_options,
    submission,
    task_options,
    turns,
    until_done,
)

DRY_RUNS = ("short", "script")
"""Values of --dry-run: without and with the script of the job. The first is the default."""

TASK_OPTIONS = ("task-time", "task-cpus", "task-mem")
"""Options of each task that need no --pack; an `#LLSUB` line of a tasks file has them too."""
FIRST_PAGE: dict[str, str] = {
    "--options": "further options of sbatch, quoted as one argument",
    "--share-gpu": "such as mem=8G: the memory of each process; N: processes on a GPU",
    "--tasks": "a task for each line: an argument of SCRIPT, or without SCRIPT a command for bash; FILE.csv: its "
    "columns are parameters",
    "--sweep": "a task for each value, such as lr=1e-3,1e-4 or seed=0..9, and for each combination of several "
    "--sweep",
    "--ntasks": "run the script M times",
    "--max-failures": "start no further tasks once so many have failed",
    "--progress": r"progress in a task's log, such as 'step (\d+)'",
    "--checkpoint-signal": "signal on which tasks save their state and end, such as USR1@120",
    "--task-time": "end a task that runs longer, such as 10m",
    "--until-done": "submit the next job of the run until all tasks are done",
    "--pack": "start each task on a GPU with room for it; P of the triple may then be auto",
    "--gpu-mem": "GPU memory of a task, such as 6G, 6G:20G or 25%% (default: learned)",
    "--spmd": "run ranks of one program, which send messages to each other",
    "--dry-run": "show the submission, but create and submit nothing",
    "--wait": "submit, then watch; exit 0 if all tasks are done",
    "--after": "start when all tasks of that run are done",
    "--add": "add the tasks of --tasks or --sweep to a run, also while it runs",
    "--watch": "watch a run (default: the newest)",
    "--failed": "print the failed tasks of a run; --lines: for another --tasks",
    "--log": "print the log of a task: 776 or lr=1e-3,seed=4",
    **dict.fromkeys(
        (
            "--constraint", "--qos", "--reservation", "--account", "--zip", "--distribution", "--logs", "--window",
            "--no-bind", "--gpus-per-task", "--name", "--oom-retries", "--max-per-gpu", "--order", "--memory-guard",
            "--estimate", "--compare-sharing", "--hang", "--undo", "--keep-going", "--env", "--script", "--parsable",
            "--task-cpus", "--task-mem", "--lines", "--open", "--report", "--sharing",
        ),
        argparse.SUPPRESS,
    ),
}  # fmt: skip
"""Option -> its text in llsub --help, which shows what people use; llsub --help-all has every option with its text."""


def add_work(parser: argparse.ArgumentParser) -> None:
    """Add the options of triples mode."""
    add = parser.add_argument_group("triples mode").add_argument
    add(
        "--tasks",
        metavar="FILE",
        help="run one task per line of FILE: an argument of SCRIPT or, without SCRIPT, a command for bash; in "
        "FILE.jsonl each line is a JSON object; in FILE.csv and FILE.tsv the first line names parameters; - is "
        "standard input",
    )
    add(
        "--sweep",
        metavar="NAME=VALUES",
        action="append",
        help="a task for each value, such as lr=1e-3,1e-4, seed=0..9, n=0..100..10, file=@FILE, and for each "
        "combination of several --sweep; {NAME} in the arguments stands for the value, else it is the argument "
        "--NAME=VALUE",
    )
    add("--zip", action="store_true", help="the first values of all --sweep, then the second, no combinations")
    add("--ntasks", type=positive, metavar="M", help="run the script, or each combination of parameters, M times")
    add(
        "--distribution",
        choices=DISTRIBUTIONS,
        help="how tasks are assigned to processes; dynamic: a free process gets the next task (default: dynamic)",
    )
    add("--retries", type=_count, metavar="K", help="run a failed task again, up to K times (default: 0)")
    add(
        "--max-failures",
        metavar="K|P%",
        help="start no further tasks once K tasks, or P%% of all tasks, have failed; running tasks go on",
    )
    add(
        "--logs",
        choices=("task", "rank"),
        help="write a log for each task or for each process (default: task; rank above "
        f"{submission.LOGS_PER_TASK_MAX} tasks)",
    )
    add(
        "--progress",
        type=_pattern,
        metavar="REGEX",
        help=r"regular expression for progress in a task's log, with one group for the number, such as 'step (\d+)'; a "
        "task may also write the number into the file $LLSUB_PROGRESS",
    )
    add(
        "--window",
        type=_window,
        metavar="SECONDS",
        help="length of the windows in which rates are measured (default: 30)",
    )
    add(
        "--checkpoint-signal",
        metavar="SIGNAL[@SECONDS]",
        help="signal, such as USR1, on which tasks save their state and end (exit code 75); Slurm sends it "
        "SECONDS before the time limit; --pack --undo=pause also sends it to a task that moves to another GPU",
    )
    add(
        "--task-time",
        type=_task_option("task-time"),
        metavar="TIME",
        help="end a task that runs longer, such as 90s, 10m, 2h or, as sbatch has it, 10 (minutes), 1:00:00; it counts "
        "as failed, and --retries applies",
    )
    add(
        "--slot",
        type=_slot,
        metavar="TIME",
        help="fair turns, with --checkpoint-signal: a task that has run for TIME (10m, 1h) saves its state and goes to "
        "the end of the queue, where another one waits that fits nowhere",
    )
    add(
        "--until-done",
        nargs="?",
        type=_most_jobs,
        const=until_done.JOBS_DEFAULT,
        metavar="K",
        help="let the run submit its next job itself while tasks are left, at most K jobs in all (default: "
        f"{until_done.JOBS_DEFAULT}); not after a job that made no progress, and not for failed tasks alone",
    )
    add(
        "--task-cpus",
        type=_task_option("task-cpus"),
        metavar="K",
        help="CPUs of a task; if that is more than one process has, it starts when they are free on the node",
    )
    add(
        "--task-mem",
        type=_task_option("task-mem"),
        metavar="SIZE",
        help="host memory of a task, such as 8G; it starts when so much of the job's memory is not booked by others",
    )
    add("--no-bind", action="store_true", help="do not bind processes to cores")
    add(
        "--report",
        action="store_true",
        help="print a short report at the end of the job's output: use of GPUs, CPUs and memory, energy, advice; "
        "slurm-share report LLSUB.n has all of it",
    )


def add_packing(parser: argparse.ArgumentParser) -> None:
    """Add the options of packing, `PackOptions`."""
    group = parser.add_argument_group("packing (each task gets a GPU with room for it when it starts)")
    add = group.add_argument
    add(
        "--pack",
        nargs="?",
        const=pack_options.DEFAULT_POLICY,
        metavar="POLICY",
        help=f"pack tasks onto the GPUs by a policy: {', '.join(POLICIES)} (default: {pack_options.DEFAULT_POLICY}); "
        "the others are for comparisons (lab.md), some with conditions after commas: book, smact_max=RATIO, "
        "free_min=SIZE; P of the triple may then be auto",
    )
    add(
        "--gpu-mem",
        metavar="SIZE",
        help="GPU memory of a task, such as 6G, 6G:20G (guaranteed, most) or 25%% of its GPU (default: learned)",
    )
    add(
        "--gpus-per-task",
        type=_gpus,
        metavar="K",
        help="GPUs of a task; more than 1: whole idle GPUs; 0.5: two on a GPU (default: 1)",
    )
    add("--name", metavar="NAME", help="tasks with the same name are of one kind, also with other scripts")
    add("--oom-retries", type=_count, metavar="K", help="further attempts after out of GPU memory (default: 2)")
    add("--max-per-gpu", type=positive, metavar="K", help="most tasks on a GPU at once")
    add(
        "--order",
        type=_order,
        metavar="ORDER",
        help="order in which tasks start: fifo (as written), reversed, random[:SEED]; with --pack also short or long, "
        "by the durations of earlier runs (default: fifo)",
    )
    add(
        "--memory-guard",
        choices=pack_options.GUARDS,
        help="whether a task may use more memory than is booked for it: soft: yes, hard: no (default: soft)",
    )
    add("--estimate", choices=pack_options.ESTIMATES, help="source of sizes without --gpu-mem (default: history)")
    add(
        "--compare-sharing",
        action="store_true",
        help="for equal tasks, without --pack: try one task per GPU, time-slicing and MPS, and go on with the fastest",
    )
    add(
        "--hang",
        choices=pack_options.HANGS,
        help="what to do with a task that hangs: log it (say) or end it (kill) (default: say)",
    )
    add(
        "--undo",
        choices=pack_options.UNDOS,
        help="with --pack: pause one of two tasks that are slower together than one after the other (pause), or "
        "only place no such pair again (off) (default: off)",
    )
    add(
        "--keep-going",
        action="store_true",
        help="try all tasks, also those that need at least as much memory as tasks that did not fit on a whole GPU",
    )


def with_value(argv: Sequence[str]) -> list[str]:
    """Return the arguments with the default value added to a bare option which a script may follow: --pack."""
    given = {
        "--until-done": f"--until-done={until_done.JOBS_DEFAULT}",
        "--pack": f"--pack={pack_options.DEFAULT_POLICY}",
        "--dry-run": f"--dry-run={DRY_RUNS[0]}",
    }
    return [given.get(word, word) for word in argv]


class _LineParser(argparse.ArgumentParser):
    """A parser for #LLSUB lines that raises UsageError."""

    where = ""
    """Prefix of errors: line and script."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.where}: {message}")


def take_own_lines(script: Script, arguments: argparse.Namespace, *, is_auto: bool = False) -> tuple[str, ...]:
    """Set `arguments` that the command line does not have from a script's #LLSUB lines, and return notes.

    is_auto: the triple has `auto`, so that options of packing are valid without --pack. Raises UsageError, with the
    line's number, for a line with anything but such options.
    """
    lines = _LineParser(prog="llsub", usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
    add_work(lines)
    add_packing(lines)
    read = argparse.Namespace()
    for number, text in script.own_lines:
        lines.where = f"line {number} of {script.name}, {OWN_MAGIC} {shown(text)}"
        try:
            options = shlex.split(text, comments=True)
        except ValueError as error:
            lines.error(str(error))
        _, unknown = lines.parse_known_args(with_value(options), read)
        if unknown:
            known = [option for action in lines._actions for option in action.option_strings]
            hint = did_you_mean(unknown[0].partition("=")[0], known, f"the options are {', '.join(known)}")
            lines.error(f"{shown(unknown[0]) or repr('')} is not an option of such a line{hint}")
        try:
            pack_options.request(PackOptions(pack=read.pack or pack_options.DEFAULT_POLICY, gpu_mem=read.gpu_mem), 0)
            if read.checkpoint_signal is not None:
                checkpoint.parse(read.checkpoint_signal)
        except UsageError as error:
            lines.error(str(error))
    taken = {name: value for name, value in vars(read).items() if not pack_options.is_written(getattr(arguments, name))}
    is_packed = is_auto or arguments.pack is not None or taken.get("pack") is not None
    is_packed = is_packed or arguments.compare_sharing or bool(taken.get("compare_sharing"))
    idle = []
    for name, value in taken.items():
        if is_packed or name not in PackOptions.__struct_fields__ or not pack_options.needs_pack(name, value):
            setattr(arguments, name, value)
        elif pack_options.is_written(value):
            idle.append(name)
    ignored = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
    return (f"{script.name} has {OWN_MAGIC} lines that need --pack: {ignored} ignored",) if idle else ()


@contextmanager
def _as_type_error() -> Iterator[None]:
    """Translate a UsageError into the error of an argument's type, for which argparse names the option."""
    try:
        yield
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _order(text: str) -> str:
    with _as_type_error():
        return pack_options.parse_order(text)


def _pattern(text: str) -> str:
    with _as_type_error():
        return log_counts.parse_pattern(text, "the expression").pattern


def _slot(text: str) -> float:
    with _as_type_error():
        return turns.parse(text)


def _most_jobs(text: str) -> int:
    with _as_type_error():
        return until_done.parse(text)


def _window(text: str) -> float:
    with _as_type_error():
        return log_counts.parse_window(text, "the window")


def positive(text: str) -> int:
    """Return the value of an option that is a number from 1 on. Raises ArgumentTypeError."""
    return _count(text, least=1)


def _task_option(name: str) -> Callable[[str], str]:
    """Return the type of an option of `task_options`, whose text is kept."""

    def checked(text: str) -> str:
        try:
            task_options.with_option(TaskSpec(), name, text, at="the value")
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return checked


def task_spec(arguments: argparse.Namespace) -> TaskSpec:
    """Return the options of tasks that need no --pack, as written."""
    spec = TaskSpec()
    for name in TASK_OPTIONS:
        text = getattr(arguments, name.replace("-", "_"))
        if text is not None:
            spec = task_options.with_option(spec, name, text)
    return spec


def _gpus(text: str) -> int | float:
    if text in ("0.5", ".5"):
        return 0.5
    if "." in text:
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is not a whole number or 0.5; other parts of a GPU are sizes: --gpu-mem=25%"
        )
    number = positive(text)
    if number > pack_options.GPUS_MAX:
        raise argparse.ArgumentTypeError(f"{shown(text)} GPUs are more than any node has")
    return number


_DIGITS = re.compile("[0-9]+")


def _count(text: str, least: int = 0) -> int:
    digits = text.removeprefix("-")
    if not _DIGITS.fullmatch(digits):
        raise argparse.ArgumentTypeError(f"{shown(text) or repr(text)} is not a whole number")
    if digits != text or (not text.strip("0") and least > 0):
        raise argparse.ArgumentTypeError(f"it must be {least} or more, and {shown(text)} is less")
    number = numbers.whole(text.lstrip("0") or "0", TASKS_MAX)
    if number is None:
        raise argparse.ArgumentTypeError(f"{shown(text)} is more than {TASKS_MAX}, the most")
    return number
