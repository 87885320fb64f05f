"""`slurm-share pack`: commands for `llsub --pack`. `explain` is here, `history` in its own file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from . import pack_history


def add_to(commands: Any) -> None:
    """Add the parser of `pack` with its sub-commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "pack", help="packed tasks on shared GPUs: explain a run, show known sizes"
    )
    subcommands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_explain(subcommands)
    pack_history.add_to(subcommands)


EPILOG = """\
Every decision about the task is made again from its record (events.jsonl in the
folder of each node). The output says where the task started, or why it did
not start on each GPU. Repeated reasons are left out.

Without a task, every measured group of tasks on a GPU is listed: how long it
ran, its aggregate speed in units of one task at a time (STP, with its standard
error), the predicted speed, and delta, the sum of the times alone over the
longest time together.

examples
  slurm-share pack explain LLSUB.7 18
  slurm-share pack explain LLSUB.7

exit codes
  0 done, 1 the run cannot be read, 2 it has no such task.
"""


def _add_explain(subcommands: Any) -> None:
    """Add `explain`: why a task of a packed run went to its GPU, and the speeds of tasks together."""
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "explain", help="why a task of a run went to its GPU, or waited", epilog=EPILOG
    )
    parser.add_argument("folder", metavar="RUN", type=Path, help="the run's folder, LLSUB.N")
    parser.add_argument(
        "task", metavar="TASK", type=int, nargs="?", help="number of the task (default: list all groups of tasks)"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # Import here: every command of slurm-share imports this module, including the launchers on all nodes.
    from ..triples import explain_groups, explain_task

    if arguments.task is None:
        lines = explain_groups(arguments.folder)
    else:
        lines = explain_task(arguments.folder, arguments.task)
    for line in lines:
        sys.stdout.write(f"{line}\n")
    return 0
