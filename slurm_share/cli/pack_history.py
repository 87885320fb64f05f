"""`slurm-share pack history`: what is known of the sizes of one's own tasks."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import names, terminal
from ..core.errors import StateError, UsageError
from ..core.text import counted, gib_range_text, span_text

if TYPE_CHECKING:
    from ..packing import history_queries

SCHEMA = 1
EPILOG = """\
The history holds hashes and numbers, and no word of any command. A script that
lies in the current folder is shown by its name; give a command behind -- to see
what is known of it, were it started here.

examples
  cd project; slurm-share pack history
  slurm-share pack history -- python train.py --batch-size 64
  slurm-share pack history --name resnet      what was named so with --name
  slurm-share pack history --forget train.py  or a name, or a hash of the list
  slurm-share pack history --forget --all

exit codes
  0 done, 1 the history cannot be changed, 2 it cannot be as asked, and where
  nothing is known by the name that is to be forgotten.
"""


def add_to(commands: Any) -> None:
    """Add `history`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "history",
        help="what is known of the sizes of your tasks, and how to forget it",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="behind --: what is known of this command")
    parser.add_argument("--name", default="", metavar="NAME", help="what a user named so with --name")
    parser.add_argument(
        "--forget", nargs="?", const="", metavar="NAME", help="remove a name, a script, or a hash of the list"
    )
    parser.add_argument("--all", action="store_true", help="with --forget: remove everything")
    parser.add_argument("--publish", action="store_true", help="lines for the site's folder estimate_history")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=history)


def history(arguments: argparse.Namespace) -> int:
    """Show or forget. Raises UsageError, StateError."""
    # Here and not above: every command of slurm-share passes this module, the launchers' on all nodes, too.
    from msgspec import to_builtins

    from ..packing import history_queries

    folder = Path.cwd()
    if arguments.forget is not None or arguments.all:
        return _forget(arguments, folder)
    if arguments.publish:
        for one in history_queries.publish():
            print(json.dumps(to_builtins(one)))
        return names.EXIT_OK
    if arguments.command:
        command = history_queries.read_command(arguments.command, folder, arguments.name)
        if arguments.json:
            print(json.dumps({"schema": SCHEMA, **to_builtins(command)}, indent=2))
        else:
            terminal.print_lines(command_lines(command))
        return names.EXIT_OK
    found = history_queries.read_summary(folder, arguments.name)
    if arguments.json:
        print(json.dumps({"schema": SCHEMA, **to_builtins(found)}, indent=2))
    else:
        terminal.print_lines(list_lines(found, history_queries.SHORT, terminal.width()))
    for note in found.notes:
        print(f"slurm-share: {note}", file=sys.stderr)
    return names.EXIT_OK


def _forget(arguments: argparse.Namespace, folder: Path) -> int:
    from ..packing import history_queries

    if arguments.forget is None:
        raise UsageError("--all goes with --forget: slurm-share pack history --forget --all removes everything")
    if arguments.command or (arguments.all and arguments.forget) or not (arguments.all or arguments.forget):
        raise UsageError("--forget wants one name, script or hash of slurm-share pack history, or --all")
    try:
        if arguments.all:
            files = history_queries.forget_all()
            print(f"everything is forgotten ({counted(files, 'file')} removed)")
        else:
            count = history_queries.forget(arguments.forget, folder)
            print(f"{counted(count, 'record')} of runs and speeds forgotten")
    except OSError as error:
        raise StateError(str(error.filename or "the history"), str(error.strerror)) from error
    return names.EXIT_OK


def list_lines(found: history_queries.HistorySummary, short: int, width: int) -> list[str]:
    """Return the table for people."""
    passed = f"{counted(found.passed_over, 'line')} of the history cannot be read and counts for nothing"
    if not found.families:
        empty = "no finished tasks are known; llsub --pack writes them down"
        return [empty, *([passed] if found.passed_over else [])]
    columns = [
        terminal.Column("SCRIPT", shrinks_to=12),
        terminal.Column("HASH"),
        terminal.Column("RUNS", right=True),
        terminal.Column("COMMANDS", right=True, goes=1),
        terminal.Column("GPU MEM", right=True),
        terminal.Column("OOM", right=True, goes=2),
        terminal.Column("TIME", right=True),
        terminal.Column("LAST"),
        terminal.Column("GPU", shrinks_to=8),
    ]
    rows = [
        (
            terminal.safe(found.names.get(one.script, "-")),
            one.family[:short],
            str(one.runs),
            str(one.commands),
            _size(one),
            str(one.out_of_memory or "-"),
            span_text(one.median_s),
            time.strftime("%Y-%m-%d", time.localtime(one.last)),
            terminal.safe(one.gpu_model),
        )
        for one in found.families
    ]
    lines, _ = terminal.lay_out(columns, rows, width)
    return [*lines, *([passed] if found.passed_over else [])]


def _size(one: history_queries.FamilyHistory) -> str:
    if one.is_elastic:
        return "all it gets"
    if one.least_mib is None or one.most_mib is None:
        return "unknown"
    return gib_range_text(one.least_mib, one.most_mib)


def command_lines(command: history_queries.CommandHistory) -> list[str]:
    """Return what is known of one command, for people."""
    if not command.estimates:
        return ["nothing is known of this command, of its script, or of a name that it was given"]
    lines = [f"{counted(command.runs, 'run')} of this command, {counted(command.family_runs, 'run')} of its script"]
    for model, one in command.estimates.items():
        if one.safe_mib is not None:
            lines.append(f"{one.safe_mib / 1024:6.1f} GiB on {terminal.safe(model)}: {one.words}")
    return lines
