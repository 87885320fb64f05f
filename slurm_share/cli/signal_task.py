"""`slurm-share signal`: what the dashboard starts on a node, in the caller's own job, to signal one process there."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..core import names
from ..core.errors import SlurmShareError
from ..core.records import ProcessIdentity
from ..node import processes
from ..slurm import signals


def add_to(commands: Any) -> None:
    """Add `signal`, which the help leaves out: for a person there is kill(1)."""
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
    """Exit 0: it was sent. Raises SlurmShareError where it was not."""
    # Of the caller's and no other, for root as well: whose process it is was decided where the question was answered.
    known = ProcessIdentity(arguments.pid, arguments.start, os.geteuid())
    found = processes.read_process(arguments.pid)
    # Its own environment may say anything; the kernel's word alone counts.
    if found is not None and not found.is_own_word and found.job_id not in (None, arguments.job):
        raise SlurmShareError(
            f"process {arguments.pid} is in job {found.job_id} and not in {arguments.job}; nothing was sent"
        )
    signals.send(known, arguments.signal)
    return names.EXIT_OK
