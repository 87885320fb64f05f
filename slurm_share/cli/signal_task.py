"""`slurm-share signal`: signal a process on a node. The dashboard runs it there in a step of the caller's job."""

from __future__ import annotations

import argparse
from typing import Any

from ..core import names
from ..slurm import signals


def add_to(commands: Any) -> None:
    """Add the sub-command `signal`, which the help does not list because people use kill(1)."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "signal",
        description="Send a signal to a process on this node that belongs to the caller and to that job. The start "
        "time keeps it from a later process with the same pid. llload-tui runs this command.",
    )
    parser.add_argument("--pid", type=int, required=True, help="pid of the process")
    parser.add_argument(
        "--start", type=int, required=True, metavar="TICKS", help="its start time, field 22 of /proc/PID/stat"
    )
    parser.add_argument("--job", type=int, required=True, help="its job id")
    parser.add_argument("signal", choices=signals.NAMES, help="signal to send")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Send the signal. Raises SlurmShareError if it was not sent."""
    signals.send_in_job(arguments.pid, arguments.start, arguments.job, arguments.signal)
    return names.EXIT_OK
