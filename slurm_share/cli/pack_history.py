"""`slurm-share pack history`: show or delete the known sizes of the user's tasks."""

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
The history contains hashes and numbers, and no text of a command. Scripts in the
current folder are shown by name. Write a command after -- to see its known size
when it is started here.

examples
  cd project; slurm-share pack history
  slurm-share pack history -- python train.py --batch-size 64
  slurm-share pack history --name resnet      tasks submitted with --name=resnet
  slurm-share pack history --forget train.py  or a name, or a hash of the list
  slurm-share pack history --forget --all

exit codes
  0 done, 1 the history cannot be changed, 2 the command line is wrong, or the
  history has no such name, script or hash.
"""


def add_to(commands: Any) -> None:
    """Add the parser of `history`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "history", help="show or delete the known sizes of your tasks", epilog=EPILOG
    )
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="after --: show the size of this command")
    parser.add_argument("--name", default="", metavar="NAME", help="show the tasks submitted with this --name")
    parser.add_argument(
        "--forget",
        nargs="?",
        const="",
        metavar="NAME",
        help="delete the runs of a name, a script, or a hash of the list",
    )
    parser.add_argument("--all", action="store_true", help="with --forget: delete everything")
    parser.add_argument("--publish", action="store_true", help="print lines for the site's folder estimate_history")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=history)


def history(arguments: argparse.Namespace) -> int:
    """Show or delete the history. Raises UsageError, StateError."""
    # Import here: every command of slurm-share imports this module, including the launchers on all nodes.
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
        raise UsageError("--all needs --forget: slurm-share pack history --forget --all deletes everything")
    if arguments.command or (arguments.all and arguments.forget) or not (arguments.all or arguments.forget):
        raise UsageError("--forget needs one name, script or hash from slurm-share pack history, or --all")
    try:
        if arguments.all:
            files = history_queries.forget_all()
            print(f"deleted the whole history ({counted(files, 'file')})")
        else:
            count = history_queries.forget(arguments.forget, folder)
            print(f"deleted {counted(count, 'record')} of runs and speeds")
    except OSError as error:
        raise StateError(str(error.filename or "the history"), str(error.strerror)) from error
    return names.EXIT_OK


def list_lines(found: history_queries.HistorySummary, short: int, width: int) -> list[str]:
    """Return the table of families as lines."""
    are = "is" if found.passed_over == 1 else "are"
    passed = f"{counted(found.passed_over, 'line')} of the history cannot be read and {are} ignored"
    if not found.families:
        empty = "the history has no finished tasks; llsub --pack records them"
        return [empty, *([passed] if found.passed_over else [])]
    columns = [
        terminal.TerminalColumn("SCRIPT", shrinks_to=12),
        terminal.TerminalColumn("HASH"),
        terminal.TerminalColumn("RUNS", right=True),
        terminal.TerminalColumn("COMMANDS", right=True, goes=1),
        terminal.TerminalColumn("GPU MEM", right=True),
        terminal.TerminalColumn("OOM", right=True, goes=2),
        terminal.TerminalColumn("TIME", right=True),
        terminal.TerminalColumn("LAST"),
        terminal.TerminalColumn("GPU", shrinks_to=8),
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
    """Return the history of one command as lines."""
    if not command.estimates:
        return ["the history has no runs of this command, its script or its name"]
    lines = [f"{counted(command.runs, 'run')} of this command, {counted(command.family_runs, 'run')} of its script"]
    for model, one in command.estimates.items():
        if one.safe_mib is not None:
            lines.append(f"{one.safe_mib / 1024:6.1f} GiB on {terminal.safe(model)}: {one.text}")
    return lines
