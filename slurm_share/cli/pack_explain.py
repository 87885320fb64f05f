"""`slurm-share pack explain`: why a task of a packed run went where it did."""

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

examples
  slurm-share pack explain LLSUB.7 18

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
    parser.add_argument("task", metavar="TASK", type=int, help="the task's number")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # Here and not above: every command of slurm-share passes this module, the launchers' on all nodes, too.
    from ..triples import explain_task

    for line in explain_task(arguments.folder, arguments.task):
        sys.stdout.write(f"{line}\n")
    return 0
