"""`slurm-share signal`: signal a process on a node. The dashboard runs it there in a step of the caller's job."""

from __future__ import annotations

import argparse
from typing import Any

from ..core import names
from ..slurm import signals


def add_to(commands: Any) -> None:
    """Add the sub-command `signal`, which the help omits: people have kill(1)."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "signal",
        description="Send a signal to one process on this node, and to no later one of the same number: of the "
        "caller's own, and in that job. Started by llload-tui.",
    )
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--start", type=int, required=True, metavar="TICKS", help="field 22 of /proc/PID/stat")
    parser.add_argument("--job", type=int, required=True, help="Slurm's number of the job that the process is in")
    parser.add_argument("signal", choices=signals.NAMES)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Send the signal. Raises SlurmShareError if it was not sent."""
    signals.send_in_job(arguments.pid, arguments.start, arguments.job, arguments.signal)
    return names.EXIT_OK
