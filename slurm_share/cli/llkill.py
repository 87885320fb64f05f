"""`llkill` (LLSC's LLkill): ends jobs by number, by user, or all of a run's."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..core import names, terminal, version
from ..core.command import enter
from ..core.errors import SlurmShareError, StateError, UsageError, shown
from ..node import processes
from ..share.rules import queue
from ..share.rules.queue import Chosen, Target
from ..slurm import cancel
from ..slurm import jobs as slurm_jobs
from ..triples import run_folder

PROGRAM = "llkill"
NAME_MOST = 40
"""Of a job's name, which may be a thousand characters long, for a line on a terminal."""
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
    """The command's words."""
    words = argparse.ArgumentParser(
        prog=PROGRAM,
        description="End jobs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    words.add_argument("what", nargs="*", metavar="JOB|FOLDER", help="jobs, or the folder of a run")
    words.add_argument("-u", "--user", metavar="USER", help="all jobs of this user")
    words.add_argument("--all", action="store_true", help="all my jobs")
    version.add_to(words)
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser().parse_args(argv)
    return enter(PROGRAM, lambda: end_jobs(arguments))


def end_jobs(arguments: argparse.Namespace) -> int:
    """End them and say so; 1 where one was not there, or Slurm refused."""
    if (bool(arguments.what) + (arguments.user is not None) + arguments.all) != 1:
        raise UsageError("which jobs? Write their numbers or a run's folder, or -u USER, or --all: one of these")
    chosen, problems = _by_word(arguments.what) if arguments.what else _by_user(arguments.user)
    refused = cancel.cancel([one.id for one in chosen])
    terminal.print_lines(_ended(one) for one in chosen if one.id not in refused)
    owners = {one.id: one.job for one in chosen}
    for job_id, why in refused.items():
        job = owners[job_id]
        name = terminal.shortened(job.name, NAME_MOST)
        whose = "" if job.uid == os.geteuid() else f" of {terminal.safe(job.user)}"
        problems.append(f"job {job_id} ({name}){whose} was not ended; Slurm says: {terminal.safe(why)}")
    for problem in problems:
        print(f"{PROGRAM}: {problem}", file=sys.stderr)
    return 1 if problems else names.EXIT_OK


def _ended(one: Chosen) -> str:
    where = f"on {one.job.nodes}" if one.job.nodes else "waiting"
    return f"ended {one.id} ({terminal.shortened(one.job.name, NAME_MOST)}, {terminal.safe(one.job.user)}, {where})"


def _by_user(name: str | None) -> tuple[list[Chosen], list[str]]:
    uid = os.geteuid() if name is None else processes.read_user_id(name)
    if uid is None:
        raise UsageError(f"there is no user {shown(name or '') or repr(name)} here; write a user's name, or its number")
    _, jobs = slurm_jobs.read_queue(users=[str(uid)])
    chosen = {one.id: one for job in jobs for one in queue.choose(Target(job.id, job.job_id), [job])}
    if not chosen:
        print(f"nothing to end: no job of {processes.read_user_name(uid)} waits or runs")
    return list(chosen.values()), []


def _by_word(words: Sequence[str]) -> tuple[list[Chosen], list[str]]:
    """(what is to be ended, what is wrong with the rest). Raises UsageError before anything has been ended."""
    asked = [(word, _targets(word)) for word in words]
    _, jobs = slurm_jobs.read_queue(jobs=sorted({target.job for _, targets in asked for target in targets}))
    chosen: dict[str, Chosen] = {}
    problems = []
    for word, targets in asked:
        found = {target.word: queue.choose(target, jobs) for target in targets}
        chosen |= {one.id: one for each in found.values() for one in each}
        if _is_folder(word):
            if not any(found.values()):
                problems.append(f"no job of {terminal.safe(word)} is in Slurm's queue: they have ended")
        else:
            problems += [f"job {job} is not in Slurm's queue: see llstat -a" for job, each in found.items() if not each]
    return list(chosen.values()), problems


def _is_folder(word: str) -> bool:
    return not word[:1].isdecimal() or "/" in word or Path(word, run_folder.RUN).exists()


def _targets(word: str) -> list[Target]:
    if not _is_folder(word) or not Path(word).is_dir():
        return list(queue.parse_targets(word))
    folder = Path(word)
    try:
        run_folder.read_run(folder)
    except StateError as error:
        raise UsageError(str(error)) from error
    me = os.geteuid()
    owner = None if me == 0 else run_folder.read_foreign_owner(folder, me)
    if owner is not None:  # its list of jobs says what somebody else wants to be ended
        raise UsageError(
            f"{terminal.safe(word)} is {processes.read_user_name(owner)}'s run, or a file in it is; write the "
            "numbers of your own jobs: llstat shows them"
        )
    jobs = run_folder.read_jobs(folder)
    if not jobs:
        raise SlurmShareError(f"no job was submitted from {terminal.safe(word)}: nothing to end")
    return [Target(str(job), job) for job in jobs]


if __name__ == "__main__":
    sys.exit(main())
