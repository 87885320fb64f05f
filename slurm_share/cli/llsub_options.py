"""The options of llsub that say what the tasks are and how they are packed, on the command line and in a script."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Sequence
from typing import NoReturn

from ..core.errors import UsageError, shown
from ..packing import POLICIES
from ..slurm.script import OWN_MAGIC, Script
from ..triples import DISTRIBUTIONS, PackOptions, log_counts, pack_options, submission


def add_work(parser: argparse.ArgumentParser) -> None:
    """Add the options of triples mode."""
    work = parser.add_argument_group("triples mode")
    work.add_argument(
        "--tasks",
        metavar="FILE",
        help="a line a task: an argument of SCRIPT, or a command; - is stdin; in FILE.jsonl a JSON object a task",
    )
    work.add_argument("--ntasks", type=positive, metavar="M", help="the script M times")
    work.add_argument(
        "--distribution", choices=DISTRIBUTIONS, help="who gets which task (default: dynamic, whoever is free)"
    )
    work.add_argument("--retries", type=_count, metavar="K", help="how often a failed task is tried again")
    work.add_argument(
        "--max-failures",
        metavar="K|P%",
        help="stop when so many tasks, or so large a part of them, have failed: nothing more starts, what runs goes on",
    )
    work.add_argument(
        "--logs",
        choices=("task", "rank"),
        help=f"a log for each task, or each process (default: task, above {submission.LOGS_PER_TASK_MAX} tasks rank)",
    )
    work.add_argument(
        "--progress",
        type=_pattern,
        metavar="REGEX",
        help=r"the number in a task's log that says how much it has done, in one group: 'step (\d+)' (a task may also "
        "write it into the file $LLSUB_PROGRESS)",
    )
    work.add_argument(
        "--window", type=_window, metavar="SECONDS", help="over which the rates of tasks are measured (default: 30)"
    )
    work.add_argument("--no-bind", action="store_true", help="do not bind processes to cores")


def add_packing(parser: argparse.ArgumentParser) -> None:
    """Add the options of packing, `PackOptions`."""
    pack = parser.add_argument_group("unlike tasks (each goes to a GPU that has room for it when it starts)")
    pack.add_argument(
        "--pack",
        nargs="?",
        const=pack_options.DEFAULT_POLICY,
        metavar="POLICY",
        help=f"pack tasks onto the GPUs; --pack=POLICY is one of {', '.join(POLICIES)}, and behind a comma book, "
        f"smact_max=RATIO, free_min=SIZE (default: {POLICIES[0]}); P of the triple may then be auto",
    )
    pack.add_argument("--gpu-mem", metavar="SIZE", help="GPU memory of a task, such as 6G (default: learned)")
    pack.add_argument("--gpus-per-task", type=_gpus, metavar="K", help="more than 1: whole idle GPUs (default: 1)")
    pack.add_argument("--name", metavar="NAME", help="tasks of one name are of one kind, whatever their script")
    pack.add_argument("--oom-retries", type=_count, metavar="K", help="tries after out of GPU memory (default: 2)")
    pack.add_argument("--max-per-gpu", type=positive, metavar="K", help="most tasks on a GPU at once")
    pack.add_argument("--order", choices=pack_options.ORDERS, help="which task goes first (default: fifo)")
    pack.add_argument(
        "--memory-guard",
        choices=pack_options.GUARDS,
        help="hard: no task gets more memory than is booked for it (default: soft)",
    )
    pack.add_argument(
        "--estimate", choices=pack_options.ESTIMATES, help="where sizes come from besides --gpu-mem (default: history)"
    )
    pack.add_argument(
        "--compare-sharing",
        action="store_true",
        help="equal tasks, without --pack: try one at a time, time-slicing and MPS, and go on with the best",
    )
    pack.add_argument("--hang", choices=pack_options.HANGS, help="what to do about a task that hangs (default: say)")
    pack.add_argument(
        "--undo",
        choices=pack_options.UNDOS,
        help="what to do about tasks that together do less than one at a time: never again such a pair (ban, the "
        "default), or also stop one of the two for a while (pause)",
    )
    pack.add_argument(
        "--checkpoint-signal",
        metavar="SIGNAL",
        help="tasks save their state and end on this signal, such as USR1: --undo=pause may move them to another GPU",
    )
    pack.add_argument("--min-speed", metavar="RATIO", help="no task is to keep less of its speed alone (default: 0.4)")
    pack.add_argument(
        "--keep-going", action="store_true", help="try all tasks of a kind of which several need more than a GPU"
    )


def with_value(argv: Sequence[str]) -> list[str]:
    """Write the default policy behind a --pack without one. The word after it is the script, or the triple."""
    return [f"--pack={pack_options.DEFAULT_POLICY}" if word == "--pack" else word for word in argv]


class _LineParser(argparse.ArgumentParser):
    """Parses the #LLSUB lines of a script."""

    where = ""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.where}: {message}")


def take_own_lines(script: Script, arguments: argparse.Namespace, *, is_auto: bool = False) -> tuple[str, ...]:
    """Take the options of a script's #LLSUB lines for those that the command line does not have, and return notes.

    is_auto: the triple has `auto`, with which those of packing count also without --pack.

    Raises UsageError, with the line's number, for a line that is not made of such options.
    """
    lines = _LineParser(prog="llsub", usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
    add_work(lines)
    add_packing(lines)
    read = argparse.Namespace()
    for number, text in script.own_lines:
        lines.where = f"line {number} of {script.name}, {OWN_MAGIC} {shown(text)}"
        try:
            words = shlex.split(text, comments=True)
        except ValueError as error:
            lines.error(str(error))
        _, unknown = lines.parse_known_args(with_value(words), read)
        if unknown:
            known = [option for action in lines._actions for option in action.option_strings]
            close = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
            lines.error(f"{shown(unknown[0]) or repr('')} is no option of such a line{hint}")
        try:
            pack_options.request(PackOptions(pack=read.pack or pack_options.DEFAULT_POLICY, gpu_mem=read.gpu_mem), 0)
            if read.checkpoint_signal is not None:
                pack_options.parse_checkpoint_signal(read.checkpoint_signal)
            if read.min_speed is not None:
                pack_options.parse_min_speed(read.min_speed)
        except UsageError as error:
            lines.error(str(error))
    taken = {name: value for name, value in vars(read).items() if not pack_options.is_written(getattr(arguments, name))}
    is_packed = is_auto or arguments.pack is not None or taken.get("pack") is not None
    is_packed = is_packed or arguments.compare_sharing or bool(taken.get("compare_sharing"))
    idle = []
    for name, value in taken.items():
        if is_packed or name not in PackOptions.__struct_fields__:
            setattr(arguments, name, value)
        elif pack_options.is_written(value):
            idle.append(name)
    options = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
    return (f"{script.name} has {OWN_MAGIC} lines that count with --pack only: {options} left aside",) if idle else ()


def _pattern(text: str) -> str:
    try:
        log_counts.parse_pattern(text, "the expression")
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _window(text: str) -> float:
    try:
        return log_counts.parse_window(text, "the window")
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive(text: str) -> int:
    """Return the number from 1 on that an option has. Raises ArgumentTypeError."""
    return _count(text, least=1)


def _gpus(text: str) -> int:
    number = positive(text)
    if number > pack_options.GPUS_MAX:
        raise argparse.ArgumentTypeError(f"{shown(text)} GPUs are more than any node has")
    return number


def _count(text: str, least: int = 0) -> int:
    number = text.removeprefix("-")
    if not (number.isascii() and number.isdecimal()):
        raise argparse.ArgumentTypeError(f"{shown(text) or repr(text)} is not a whole number")
    if number != text or (not text.strip("0") and least > 0):
        raise argparse.ArgumentTypeError(f"it must be {least} or more, and {shown(text)} is less")
    digits = text.lstrip("0")
    if len(digits) > len(str(submission.TASKS_MAX)) or int(text) > submission.TASKS_MAX:
        raise argparse.ArgumentTypeError(f"{shown(text)} is more than {submission.TASKS_MAX}, the most")
    return int(text)
