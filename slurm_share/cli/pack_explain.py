"""`slurm-share pack explain`: why a task of a packed run went where it did, and what tasks did together."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

EPILOG = """\
Each decision about the task is decided again from what the journal says that
it saw (decisions.jsonl in the folder of each node): where it started, or on
every GPU the reason why not. What is the same as at the decision before is
left out.

Without a task: each group of tasks on a GPU whose speeds were measured, how
long it ran, what it did of one task at a time (STP, with its standard error),
what was predicted, and delta: the sum of the times alone over the longest time
together.

examples
  slurm-share pack explain LLSUB.7 18
  slurm-share pack explain LLSUB.7

exit codes
  0 done, 1 the run cannot be read, 2 it has no such task.
"""


def add_to(subcommands: Any) -> None:
    """Add `explain`."""
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "explain",
        help="why a task of a run went where it did, and why it waited",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="RUN", type=Path, help="the run's folder, LLSUB.N")
    parser.add_argument(
        "task", metavar="TASK", type=int, nargs="?", help="the task's number; none: all groups of tasks"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # Here and not above: every command of slurm-share passes this module, the launchers' on all nodes, too.
    from ..triples import explain_groups, explain_task

    if arguments.task is None:
        lines = explain_groups(arguments.folder)
    else:
        lines = explain_task(arguments.folder, arguments.task)
    for line in lines:
        sys.stdout.write(f"{line}\n")
    return 0
