"""Send signals to one process, or to the tasks of a step or a job, and cancel jobs.

A process on this node gets it directly. One on a node of the caller's own job gets it through a step of that job, which
runs `slurm-share signal` there as the caller. Operators reach other users' steps through scancel, which knows no
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
"""Names of the signals that can be sent."""
TIMEOUT_S = 60.0
"""Limit of srun or scancel, seconds."""
IMMEDIATE_S = 30
"""Limit of srun's own wait for the step, seconds. Below TIMEOUT_S: a step could begin after srun was ended."""
STEP_NAME = "slurm-share-signal"


def send(known: ProcessIdentity, name: str, proc: str = "/proc") -> None:
    """Send a signal to exactly this process on this node. Raises SlurmShareError where it has ended, another process
    has its number, or it is another user's."""
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
    """Send a signal to a process of the caller with this start time, in this job. Raises SlurmShareError where it is
    not sent."""
    # Only the caller's own, also for root: who may signal which process was decided before.
    known = ProcessIdentity(pid, start_ticks, os.geteuid())
    found = processes.read_process(pid)
    # The environment of a process may say anything; only the kernel's cgroup counts.
    if found is not None and not found.is_own_claim and found.job_id not in (None, job):
        raise SlurmShareError(f"process {pid} is in job {found.job_id} and not in {job}; nothing was sent")
    send(known, name)


def step_argv(
    *, job: int, component: int | None, node: str, of_job: int, pid: int, start_ticks: int, name: str,
    program: Sequence[str],
) -> list[str]:  # fmt: skip
    """Return the command that sends a signal to a process on a node of the caller's own job, in a step of its own.

    `job` and `component`: as in `small_step.step_argv`. `of_job`: the job that the process is in, by the number of its
    record. `program`: starts `slurm-share` on the node.
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
    """Return the command that signals all tasks of a step (4711.0), or of all steps of a job (4711); `script`: only the
    batch script; `all`: steps, script, and what the script started."""
    which = {"steps": [], "script": ["--batch"], "all": ["--full"]}[part]
    return ["scancel", f"--signal={name}", *which, "--", what]


def through_srun(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Run the command of `step_argv`. Raises SlurmShareError with the reason where nothing was sent, CommandError where
    it is not known."""
    done = finish(argv, timeout_s=TIMEOUT_S, env=env)
    if done.code != 0:
        raise SlurmShareError(_reason(done.stderr) or f"srun ended with {done.code}")


def through_scancel(argv: Sequence[str]) -> None:
    """Run the command of `scancel_argv`. Raises SlurmShareError with the reason where scancel refuses, CommandError
    where it hangs or does not exist."""
    # SCANCEL_INTERACTIVE of the caller would ask questions, SCANCEL_BATCH signal the script alone.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SCANCEL_")}
    done = finish(argv, timeout_s=TIMEOUT_S, env=env)
    if done.code != 0 or done.stderr.strip():
        raise SlurmShareError(_reason(done.stderr) or f"scancel ended with {done.code}")


def _reason(said: str) -> str:
    """Return our own sentence in srun's output, which has lines for every failed task besides; else its first error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("slurm-share: "):
            return line.removeprefix("slurm-share: ")
    errors = [line for line in lines if "error:" in line]
    last = (errors or lines or [""])[0]
    return last.partition("error: ")[2] or last


CANCEL_S = 120
AT_ONCE = 500
"""Jobs of one scancel. If it refuses any, each is tried by itself."""


def cancel(ids: Sequence[str]) -> dict[str, str]:
    """Cancel jobs, in scancel's notation. Return why for each that was refused; a job that has ended is not refused.

    Raises CommandError where scancel does not exist or hangs.
    """
    refused: dict[str, str] = {}
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        if not _cancel(some):
            continue
        # To cancel a job twice does nothing.
        refused |= {one: why for one in some if (why := _cancel([one]))}
    return refused


def _cancel(ids: Sequence[str]) -> str:
    """Cancel the jobs. Return why scancel refused; empty: it did not."""
    # SCANCEL_INTERACTIVE of the caller would ask questions, SCANCEL_STATE leave some jobs alive.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SCANCEL_")}
    done = finish(["scancel", "--", *ids], timeout_s=CANCEL_S, env=env)
    said = done.stderr.strip()
    return said.splitlines()[-1] if said else "" if done.code == 0 else f"scancel ended with {done.code}"
