"""`llkill` (LLSC's LLkill): ends jobs by job id, by user, or by run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ..core import names, terminal
from ..core.command import enter
from ..core.errors import UsageError
from ..core.parser import Parser
from ..node import processes
from ..share import ChosenJob
from ..slurm import signals
from ..triples import run_jobs

PROGRAM = "llkill"
NAME_MOST = 40
"""Most characters of a job's name in a line."""
EXAMPLES = """\
examples
  llkill 4711                a job, or all elements of an array
  llkill 4711,4712 77_3      several jobs
  llkill '77_[1-4,9]'        some elements of an array, quoted for the shell
  llkill LLSUB.3             the jobs of a run; llsub --resume LLSUB.3 runs its
                             unfinished tasks later
  llkill --all               all my jobs
  llkill -u alice            all jobs of alice; only for alice, root and Slurm's
                             operators

Prints a line for each ended job. Does not ask for confirmation.

exit codes
  0 all jobs were ended, 1 some were not, 2 invalid request, nothing was ended.
"""


def parser() -> Parser:
    parser = Parser(prog=PROGRAM, description="End jobs.", epilog=EXAMPLES, allow_abbrev=False)
    parser.add_argument("what", nargs="*", metavar="JOB|FOLDER", help="job ids, or the folder of a run")
    parser.add_argument("-u", "--user", metavar="USER", help="end all jobs of this user")
    parser.add_argument("--all", action="store_true", help="end all my jobs")
    parser.add_version()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    return enter(PROGRAM, lambda: end_jobs(arguments))


def end_jobs(arguments: argparse.Namespace) -> int:
    """Cancel jobs and print the result; return 1 if a job was not in the queue or Slurm refused."""
    if (bool(arguments.what) + (arguments.user is not None) + arguments.all) != 1:
        raise UsageError("write one of: job ids or the folder of a run, -u USER, --all")
    if arguments.what:
        chosen, problems = run_jobs.read_to_end(arguments.what)
    else:
        uid, chosen = run_jobs.read_of_user(arguments.user)
        problems = []
        if not chosen:
            print(f"there is nothing to end: no job of {processes.read_user_name(uid)} waits or runs")
    refused = signals.cancel([one.id for one in chosen])
    terminal.print_lines(_ended(one) for one in chosen if one.id not in refused)
    owners = {one.id: one.job for one in chosen}
    for job_id, why in refused.items():
        job = owners[job_id]
        name = terminal.shortened(job.name, NAME_MOST)
        of_user = "" if job.uid == os.geteuid() else f" of {terminal.safe(job.user)}"
        problems.append(f"job {job_id} ({name}){of_user} was not ended; Slurm says: {terminal.safe(why)}")
    for problem in problems:
        print(f"{PROGRAM}: {problem}", file=sys.stderr)
    return 1 if problems else names.EXIT_OK


def _ended(one: ChosenJob) -> str:
    where = f"on {one.job.nodes}" if one.job.nodes else "waiting"
    return f"ended {one.id} ({terminal.shortened(one.job.name, NAME_MOST)}, {terminal.safe(one.job.user)}, {where})"


if __name__ == "__main__":
    sys.exit(main())
