"""Signals, for one process and no other, or for the tasks of a step or a job, whichever way the caller can reach them.

On the caller's own node directly; on a node of the caller's own job through a step of that job, which runs
`slurm-share signal` there as the caller; anybody else's, for operators, through scancel, which knows steps and no
processes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Literal

from ..core.errors import SlurmShareError
from ..core.process import end, finish, identify
from ..core.records import ProcessIdentity
from ..node import processes
from . import small_step

NAMES = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT", "KILL")
"""Signals that a person sends."""
TIMEOUT_S = 60.0
"""How long srun or scancel may take, seconds."""
IMMEDIATE_S = 30
"""How long srun itself waits for room for the step, seconds. If we ended srun before, the step could still begin."""
STEP_NAME = "slurm-share-signal"


def send(known: ProcessIdentity, name: str, proc: str = "/proc") -> None:
    """Send a signal to that very process on this node. Raises SlurmShareError, with the reason, where it is not sent:
    the process has ended, its number is another's now, it is somebody else's."""
    found = identify(known.pid, proc) if known.pid > 0 else None
    if found is None:
        raise SlurmShareError(f"process {known.pid} has ended; nothing was sent")
    if known.start_ticks is None or found.start_ticks != known.start_ticks:
        raise SlurmShareError(f"process {known.pid} has ended, and another one has its number now; nothing was sent")
    if known.uid is None or found.uid != known.uid:
        raise SlurmShareError(f"process {known.pid} is not of user {known.uid}; nothing was sent")
    if not end(known, signal.Signals[f"SIG{name}"], proc):
        raise SlurmShareError(f"process {known.pid} ended at this moment, or is not yours to signal; nothing was sent")


def send_in_job(pid: int, start_ticks: int, job: int, name: str) -> None:
    """Send a signal to a process of the caller's that began then and is in that job. Raises SlurmShareError where it is
    not sent."""
    # Of the caller's and no other, for root as well: whose process it is was decided where the question was answered.
    known = ProcessIdentity(pid, start_ticks, os.geteuid())
    found = processes.read_process(pid)
    # Its own environment may say anything; the kernel's word alone counts.
    if found is not None and not found.is_own_claim and found.job_id not in (None, job):
        raise SlurmShareError(f"process {pid} is in job {found.job_id} and not in {job}; nothing was sent")
    send(known, name)


def step_argv(
    *, job: int, component: int | None, node: str, of_job: int, pid: int, start_ticks: int, name: str,
    program: Sequence[str],
) -> list[str]:  # fmt: skip
    """Return the command that sends a signal to a process on a node of the caller's own job, beside the job's own
    steps.

    `job`: as srun's --jobid takes it, of a heterogeneous job its first component's, and `component` which one;
    `of_job`: the record's number that the process is in; `program`: what starts `slurm-share` on the node.
    """
    return [
        *small_step.step_argv(job=job, component=component, nodes=node, count=1, gres="none", name=STEP_NAME),
        f"--immediate={IMMEDIATE_S}",
        *program,
        "signal",
        f"--pid={pid}",
        f"--start={start_ticks}",
        f"--job={of_job}",
        name,
    ]


def scancel_argv(what: str, name: str, *, part: Literal["steps", "script", "all"] = "steps") -> list[str]:
    """Return the command that sends a signal to all tasks of a step (4711.0), or to those of all steps of a job
    (4711), to its script alone, or to both and whatever the script started."""
    which = {"steps": [], "script": ["--batch"], "all": ["--full"]}[part]
    return ["scancel", f"--signal={name}", *which, "--", what]


def through_srun(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Run the command that `step_argv` gave. Raises SlurmShareError with what was said where nothing was sent, and
    CommandError where nobody knows."""
    done = finish(argv, timeout_s=TIMEOUT_S, env=env)
    if done.code != 0:
        raise SlurmShareError(_reason(done.stderr) or f"srun ended with {done.code}")


def through_scancel(argv: Sequence[str]) -> None:
    """Run the command that `scancel_argv` gave. Raises SlurmShareError with what scancel said against it, CommandError
    where it hangs or is not there."""
    # Not what the caller has set for scancel itself: SCANCEL_INTERACTIVE would ask, SCANCEL_BATCH hit the script alone.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SCANCEL_")}
    done = finish(argv, timeout_s=TIMEOUT_S, env=env)
    if done.code != 0 or done.stderr.strip():
        raise SlurmShareError(_reason(done.stderr) or f"scancel ended with {done.code}")


def _reason(said: str) -> str:
    """Return our own sentence if the output has one: srun has a line of its own for every task that ends badly."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("slurm-share: "):
            return line.removeprefix("slurm-share: ")
    errors = [line for line in lines if "error:" in line]
    last = (errors or lines or [""])[0]
    return last.partition("error: ")[2] or last
