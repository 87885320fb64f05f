"""pRUN: start a program as ranks, on this machine or through Slurm."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import names
from ..errors import SpmdError, UsageError
from .arrays import length

FOLDER = Path("PythonMPI")
"""Folder in which programs for pPython look for the output of ranks."""


class RunFailed(SpmdError):
    """Failure of a run that pRUN started."""


def pRUN(py_file: str, n_proc: Any, machines: Any = None, sched_options: Any = None) -> int:
    """Run a program as ranks, and return 0 when all have ended.

    `n_proc`: ranks, or [nodes, ranks per node], or [nodes, ranks per node, threads per rank]. `machines`: {} or [] for
    this machine; "grid" for Slurm, or the name of a partition; with a final "&", submit and do not wait.
    `sched_options`: further options of llsub, as one string or a sequence.

    Rank 0 prints here; the others' outputs are in `PythonMPI/PROGRAM.RANK.out`. Raises UsageError if the program cannot
    be started, RunFailed if a rank fails.
    """
    counts = _counts(n_proc)
    if not Path(py_file).is_file():
        raise UsageError(f"pRUN: there is no program {py_file} in {Path.cwd()}")
    if int(os.environ.get(names.ENV_SIZE) or 1) > 1 and names.ENV_RENDEZVOUS in os.environ:
        raise UsageError("pRUN: this process is a rank of a run; start a program that calls pRUN without ranks")
    if isinstance(machines, str) and machines:
        return _through_slurm(llsub_command(py_file, counts, machines, sched_options), py_file)
    if machines is None or len(machines) == 0:
        return _here(py_file, counts)
    raise UsageError(
        f"pRUN: ranks are not started on a list of machines ({machines!r}): use {{}} for this machine, 'grid' or a "
        "partition's name for Slurm"
    )


def MPI_Run(py_file: str, n_proc: Any, machines: Any = None) -> int:
    """Run a program as ranks, and return 0 when all have ended; see pRUN."""
    return pRUN(py_file, n_proc, machines)


def _counts(n_proc: Any) -> tuple[int, ...]:
    """Return `n_proc` as positive integers: ranks, or nodes, ranks per node, and threads. Raises UsageError."""
    try:
        given = () if isinstance(n_proc, str | bytes) else (n_proc,) if np.ndim(n_proc) == 0 else n_proc
        counts = tuple(length(one) for one in given)
    except (TypeError, ValueError):
        counts = ()
    if not 1 <= len(counts) <= 3 or min(counts) < 1:
        raise UsageError(
            f"pRUN: {n_proc!r} is not a number of ranks, [nodes, ranks of a node] or [nodes, ranks of a node, threads]"
        )
    return counts


def _here(py_file: str, counts: Sequence[int]) -> int:
    from .. import local

    ranks = counts[0] if len(counts) == 1 else counts[0] * counts[1]
    threads = {"OMP_NUM_THREADS": str(counts[2])} if len(counts) == 3 else {}
    FOLDER.mkdir(exist_ok=True)
    outcome = local.run_local(py_file, ranks, logs=FOLDER, env=threads)
    if outcome.code:
        raise RunFailed(f"pRUN: {py_file}: {outcome.why}")
    return 0


def llsub_command(py_file: str, counts: Sequence[int], machines: str, sched_options: Any = None) -> list[str]:
    """Return the llsub command that submits a program."""
    partition = machines.removesuffix("&").strip()
    triple = [1, *counts] if len(counts) == 1 else list(counts)
    command = ["llsub", "--spmd", py_file, "[" + ",".join(map(str, triple)) + "]"]
    if partition not in ("", "grid"):
        command += ["--partition", partition]
    if not machines.endswith("&"):
        command.append("--wait")
    if sched_options:
        command += _split(sched_options) if isinstance(sched_options, str) else list(map(str, sched_options))
    return command


def _split(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise UsageError(f"pRUN: sched_options {options!r} cannot be read: {error}") from None


def _through_slurm(command: list[str], py_file: str) -> int:
    before = set(Path.cwd().glob("LLSUB.*"))
    sys.stdout.flush()
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(f"pRUN: there is no command {command[0]} here; it submits runs to Slurm")
    try:
        code = os.spawnv(os.P_WAIT, program, command)
    except OSError as error:
        raise UsageError(f"pRUN: {command[0]} cannot be started ({error.strerror}); it submits runs to Slurm") from None
    new = sorted(set(Path.cwd().glob("LLSUB.*")) - before)
    logs = _logs_of_slurm(new[-1], Path(py_file).name) if "--wait" in command and new else {}
    _link(logs, Path(py_file).stem)
    if 0 in logs:
        sys.stdout.write(logs[0].read_text(errors="replace"))
    if code:
        raise RunFailed(f"pRUN: {shlex.join(command)} ended with code {code}")
    return 0


def _logs_of_slurm(folder: Path, program: str) -> dict[int, Path]:
    found = {}
    for log in folder.glob(f"p*_*/{program}.log.*"):
        if log.suffix[1:].isdecimal():
            found[int(log.suffix[1:])] = log
    return found


def _link(logs: dict[int, Path], program: str) -> None:
    """Link the logs under the names at which programs for pPython look for the output of ranks."""
    if not logs:
        return
    FOLDER.mkdir(exist_ok=True)
    for rank, log in logs.items():
        link = FOLDER / f"{program}.{rank}.out"
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(log, FOLDER))
