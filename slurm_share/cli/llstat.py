"""`llstat` (LLSC's LLstat): jobs in the queue, with their shares of GPUs, slots and triples."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..core import names, terminal
from ..core.command import enter
from ..core.parser import Parser
from ..share import queue
from ..slurm.records import ClusterName, QueuedJob
from ..triples import run_jobs

PROGRAM = "llstat"
SCHEMA = 1
COLUMNS = (
    terminal.TerminalColumn("JOBID", shrinks_to=16),
    terminal.TerminalColumn("ARRAY_J", goes=7),
    terminal.TerminalColumn("NAME", shrinks_to=10),
    terminal.TerminalColumn("USER", goes=5),
    terminal.TerminalColumn("START_TIME", goes=6),
    terminal.TerminalColumn("PARTITION", goes=3),
    terminal.TerminalColumn("CPUS", right=True, goes=4),
    terminal.TerminalColumn("FEATURES", shrinks_to=8, goes=9),
    terminal.TerminalColumn("MIN_MEMORY", right=True, goes=8),
    terminal.TerminalColumn("ST"),
    terminal.TerminalColumn("NODELIST(REASON)", shrinks_to=16),
    terminal.TerminalColumn("GPUS", right=True),
    terminal.TerminalColumn("SHARE", shrinks_to=8),
    terminal.TerminalColumn("SLOTS", right=True),
    terminal.TerminalColumn("TRIPLE"),
)
"""The first eleven are those of LLSC's LLstat, so that scripts find the same fields."""
EXAMPLES = """\
columns
  The columns of LLSC's LLstat, then GPUS (that the job has or requests; 1/4: a
  part of one), SHARE (the value of --share-gpu), SLOTS (most tasks on the GPUs
  at once) and TRIPLE (of jobs of llsub).
  -: none. ?: not known yet, such as the GPUs of a job that waits for whole
  nodes. On a narrow terminal some columns are left out, and the last line names
  them. A pipe gets all columns.

examples
  llstat                     my jobs
  llstat -a                  jobs of all users, as far as Slurm shows them
  llstat -u alice,bob        jobs of these users
  llstat -j 4711,77_3        these jobs
  llstat -j LLSUB.3          jobs of this run
  llstat --json | jq '.jobs[] | select(.state == "R") | .id'

exit codes
  0 done, 1 Slurm did not answer or does not know all of these jobs, 2 invalid
  request.
"""


def parser() -> Parser:
    """Return the command's parser."""
    parser = Parser(
        prog=PROGRAM,
        description="List jobs that wait, run or end, with their shares of GPUs.",
        epilog=EXAMPLES,
        add_help=False,
        allow_abbrev=False,
    )
    parser.word_advice = f"write {PROGRAM} -j {{}} for a job or a run, {PROGRAM} -u {{}} for a user"
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("-u", "--user", metavar="USER", help="jobs of a user, or of several separated by commas")
    selection.add_argument("-a", "--all", action="store_true", help="jobs of all users")
    selection.add_argument(
        "-j",
        "--job",
        metavar="JOB",
        help="these jobs, such as 4711,77_3,77_[4-9]; or the jobs of a run, such as LLSUB.3",
    )
    parser.add_argument("-h", "--hide-header", action="store_true", help="print no column headings")
    parser.add_argument("--json", action="store_true", help="print JSON with all fields; unknown values are null")
    parser.add_argument("--help", action="help", help="show this help message and exit")
    parser.add_version()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = parser().parse_args(argv)
    return enter(PROGRAM, lambda: print_jobs(arguments))


def print_jobs(arguments: argparse.Namespace) -> int:
    """Read the queue and print it; return 1 if a requested job is not in the queue."""
    cluster, jobs, missing = run_jobs.read_to_show(arguments.job, arguments.user, everybody=arguments.all)
    if arguments.json:
        if arguments.hide_header:
            print(f"{PROGRAM}: --hide-header ignored: JSON has no headings", file=sys.stderr)
        print(json.dumps(as_json(cluster, jobs), indent=2))
    else:
        terminal.print_lines(as_lines(cluster, jobs, hide_header=arguments.hide_header, width=terminal.width()))
    for argument in missing:
        print(f"{PROGRAM}: {argument} in the queue", file=sys.stderr)
    return 1 if missing else names.EXIT_OK


def as_lines(cluster: ClusterName, jobs: Sequence[QueuedJob], *, hide_header: bool, width: int) -> list[str]:
    """Return the table as lines. The first line is always there: LLSC's tools expect it, also with --hide-header."""
    first = f"LLGrid: {terminal.safe(cluster.cluster)} (running slurm {terminal.safe(cluster.version)})"
    if not jobs:
        return [first] if hide_header else [first, "no jobs"]
    (headings, *rows), left_out = terminal.lay_out(COLUMNS, [_row(job) for job in jobs], width)
    note = [f"({', '.join(left_out)}: shown in a wider terminal, in a pipe, or with --json)"] if left_out else []
    return [first, *rows] if hide_header else [first, headings, *rows, *note]


def _row(job: QueuedJob) -> tuple[str, ...]:
    return (
        job.id,
        str(job.array or job.job_id),
        job.name,
        job.user,
        "N/A" if job.start is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(job.start)),
        job.partition,
        _number(job.cpus),
        job.features or "-",
        _memory(job.memory_mib),
        queue.state_of(job),
        queue.place_of(job),
        _gpus(job),
        job.share or "-",
        "-" if queue.tasks_per_gpu(job) is None else _number(queue.slots_of(job)),
        queue.triple_of(job) or "-",
    )


def _gpus(job: QueuedJob) -> str:
    if not job.has_shards:
        return "-" if job.gpus == 0 else _number(job.gpus)
    per_gpu = queue.tasks_per_gpu(job)
    return "part" if per_gpu is None else f"1/{per_gpu}"


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def _memory(mib: int | None) -> str:
    """Return a size as in squeue: in G for whole gibibytes, else in M."""
    if mib is None:
        return "?"
    return f"{mib // 1024}G" if mib and mib % 1024 == 0 else f"{mib}M" if mib else "0"


def as_json(cluster: ClusterName, jobs: Sequence[QueuedJob]) -> dict[str, Any]:
    """Return the documented JSON form, schema 1. Unknown and missing values are null."""
    return {
        "schema": SCHEMA,
        "cluster": cluster.cluster,
        "slurm": cluster.version,
        "jobs": [
            {
                "id": job.id,
                "job_id": job.job_id,
                "array_job_id": job.array,
                "array_task_id": job.element,
                "array_waiting": job.waiting or None,
                "name": job.name,
                "user": job.user,
                "uid": job.uid,
                "partition": job.partition,
                "state": queue.state_of(job),
                "states": list(job.states),
                "reason": job.reason or None,
                "start": job.start,
                "cpus": job.cpus,
                "tasks": job.tasks,
                "node_count": job.node_count,
                "nodes": job.nodes or None,
                "features": job.features or None,
                "memory_mib": job.memory_mib,
                "memory_is_per_cpu": job.memory_is_per_cpu,
                "gpus": job.gpus,
                "part_of_a_gpu": job.has_shards,
                "share": job.share,
                "slots": queue.slots_of(job),
                "triple": queue.triple_of(job),
            }
            for job in jobs
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
