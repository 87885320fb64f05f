"""`llkill` (LLSC's LLkill): ends jobs by number, by user, or all of a run's."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ..core import names, terminal, version
from ..core.command import enter
from ..core.errors import UsageError
from ..node import processes
from ..share import Chosen
from ..slurm import cancel
from ..triples import chosen_jobs

PROGRAM = "llkill"
NAME_MOST = 40
"""Most characters of a job's name, which may have a thousand, on a line."""
EXAMPLES = """\
examples
  llkill 4711                a job; of an array all elements
  llkill 4711,4712 77_3      several
  llkill '77_[1-4,9]'        some elements of an array, quoted for the shell
  llkill LLSUB.3             the jobs of this run; what they had not finished is
                             taken up by llsub --resume LLSUB.3
  llkill --all               all my jobs
  llkill -u alice            all jobs of alice: for root and Slurm's operators,
                             unless alice is you

Each job that was ended is named on a line. Nothing is asked.

exit codes
  0 all ended, 1 some were not (the others were), 2 it cannot be as asked, and
  nothing was ended.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="End jobs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("what", nargs="*", metavar="JOB|FOLDER", help="jobs, or the folder of a run")
    parser.add_argument("-u", "--user", metavar="USER", help="all jobs of this user")
    parser.add_argument("--all", action="store_true", help="all my jobs")
    version.add_to(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser().parse_args(argv)
    return enter(PROGRAM, lambda: end_jobs(arguments))


def end_jobs(arguments: argparse.Namespace) -> int:
    """Cancel the jobs and say so; return 1 if one was not there, or Slurm refused."""
    if (bool(arguments.what) + (arguments.user is not None) + arguments.all) != 1:
        raise UsageError("which jobs? Write their numbers or a run's folder, or -u USER, or --all: one of these")
    if arguments.what:
        chosen, problems = chosen_jobs.read_to_end(arguments.what)
    else:
        uid, chosen = chosen_jobs.read_of_user(arguments.user)
        problems = []
        if not chosen:
            print(f"nothing to end: no job of {processes.read_user_name(uid)} waits or runs")
    refused = cancel.cancel([one.id for one in chosen])
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


def _ended(one: Chosen) -> str:
    where = f"on {one.job.nodes}" if one.job.nodes else "waiting"
    return f"ended {one.id} ({terminal.shortened(one.job.name, NAME_MOST)}, {terminal.safe(one.job.user)}, {where})"


if __name__ == "__main__":
    sys.exit(main())
