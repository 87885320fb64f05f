"""Submit a script with sbatch, become salloc or srun, and read how a job was submitted, as far as Slurm keeps it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from msgspec import Struct
from msgspec.structs import replace

from ..core import given_variables, names, numbers
from ..core.errors import CommandError, SlurmShareError, UsageError
from ..core.process import Finished, finish, run
from .jobs import queue_environment
from .script import HEAD_BYTES

TIMEOUT_S = 300
"""Limit of sbatch, which retries by itself while slurmctld is busy or restarting."""
TEST_S = 60
"""Limit of sbatch --test-only."""
FOREIGN = ("SLURM_SHARE_", "SPANK_", "_SLURM_SPANK_OPTION_")
"""Prefixes of variables of the job that another one is submitted from: its slot, GPU, plan and plugins' options.
Slurm's own SLURM_... are no options of sbatch, and the new job gets its own."""
_CONTRADICTING = frozenset(
    {f"SBATCH_{name}" for name in (
        "ARRAY_INX", "CPUS_PER_GPU", "DISTRIBUTION", "ERROR", "EXCLUSIVE", "GPUS", "GPUS_PER_NODE", "GPUS_PER_TASK",
        "GRES", "INPUT", "OVERCOMMIT", "SPREAD_JOB", "TRES_PER_TASK", "USE_MIN_NODES")}
)  # fmt: skip
"""Options of sbatch as variables (sbatch(1), "Input environment variables") that a job of launchers sets itself. As an
array, for example, it would run every task once for each element."""
_TASK_COUNTS = frozenset({"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"})
"""The numbers of tasks of a job or step with a share, which srun in the new job would take for its own."""
_WAIT = "SBATCH_WAIT"
"""With it sbatch returns at the end of the job, and its number is not known before."""


_UNANSWERED = (
    "Socket timed out on send/recv operation",
    "Zero Bytes were transmitted or received",
    "Header lengths are longer than data received",
)
"""Errors of sbatch after which the job may exist (slurm_errno.c): the request was sent and not answered. A controller
that was stopped or busy takes the job when it goes on."""


def submit(
    argv: Sequence[str],
    *,
    say: Callable[[str], None],
    launchers: bool = True,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Run an `sbatch --parsable` command and return the job's id. `say` gets the messages of sbatch and its plugins.

    `launchers`: the script is ours and not a user's. `environ`: the environment of the job, where it is not this
    process's. Raises UsageError where sbatch refuses or does not exist, SlurmShareError where it is not known whether
    the job exists.
    """
    try:
        program = shutil.which(argv[0]) or argv[0]
        env = submission_environment(os.environ if environ is None else environ, launchers=launchers)
        done = finish([program, *argv[1:]], timeout_s=TIMEOUT_S, env=env)
    except CommandError as error:
        if isinstance(error.__cause__, OSError):
            if error.__cause__.errno == errno.E2BIG:
                raise UsageError(
                    "cannot submit: the environment, or one variable in it, is larger than a program may have "
                    "(128 KiB for one); unset what the job does not need"
                ) from error
            raise UsageError(
                f"cannot submit: {error.stderr}; submit where Slurm is, or run this here with --local"
            ) from error
        raise SlurmShareError(f"sbatch gave {error.stderr}; see with squeue --me whether there is a job") from error
    if done.code != 0 and any(phrase in done.stderr for phrase in _UNANSWERED):
        raise SlurmShareError(
            f"{_output(done)}\nThe controller did not answer, and may have taken the job all the same: see with squeue "
            "--me whether it is there before you submit it again"
        )
    if done.code != 0:
        raise UsageError(f"the scheduler did not take this job; it says:\n{_output(done)}")
    say(done.stderr)
    last = (done.stdout.strip().splitlines() or [""])[-1].partition(";")[0]  # JOBID;CLUSTER with several clusters
    number = numbers.whole(last, numbers.UINT32_MOST)
    if number is None:
        raise SlurmShareError(f"sbatch answered {done.stdout.strip()[:200]!r} and no job id; see squeue --me")
    return number


def set_dependency(job: int, dependency: str) -> None:
    """Replace the dependency of a waiting job. Raises CommandError if Slurm does not do it."""
    run(["scontrol", "update", f"JobId={job}", f"Dependency={dependency}"], timeout_s=TEST_S)


_NO_NODES = "Requested node configuration is not available"
"""sbatch --test-only says this also of nodes that are down or drained, for which a job waits (26.05)."""


def ask(
    argv: Sequence[str], *, script: str | None = None, launchers: bool = True, may_lack_nodes: bool = False
) -> tuple[str, ...]:
    """Ask Slurm whether it would take an `sbatch` command, and return notes; nothing is submitted.

    `script`: the text of the script in `argv`, which does not exist yet. `may_lack_nodes`: the job would wait for nodes
    that are down. Raises UsageError if sbatch refuses.
    """
    try:
        with tempfile.NamedTemporaryFile("wb", prefix="llsub-", suffix=".sh") as file:
            file.write(os.fsencode(script or ""))
            file.flush()
            options = argv[1:] if script is None else [*argv[1:-1], file.name]
            program = shutil.which(argv[0]) or argv[0]
            env = submission_environment(os.environ, launchers=launchers)
            done = finish([program, "--test-only", *options], timeout_s=TEST_S, env=env)
    except (CommandError, OSError) as error:
        return (f"the scheduler was not asked whether it would take this job ({error})",)
    text = _output(done)
    if done.code == 0:
        return (f"the scheduler would take this job: {text}",)
    if any(phrase in text for phrase in _UNANSWERED):
        return (f"the scheduler did not say whether it would take this job: {text}",)
    if may_lack_nodes and _NO_NODES in text:
        return ()
    raise UsageError(f"the scheduler would not take this job; it says:\n{text}")


def _output(done: Finished) -> str:
    return done.stderr.strip() or done.stdout.strip() or f"no reason, exit code {done.code}"


def become(argv: Sequence[str]) -> NoReturn:
    """Replace this process by salloc or srun. Raises UsageError where the program does not exist."""
    try:
        os.execvpe(argv[0], list(argv), submission_environment(os.environ, is_step=argv[0] == "srun"))
    except OSError as error:
        raise UsageError(f"cannot start {argv[0]}: {error.strerror}; this is for a machine with Slurm") from error


def submission_environment(
    environ: Mapping[str, str], *, launchers: bool = False, is_step: bool = False
) -> dict[str, str]:
    """Return the environment without variables of the job that it comes from, and, for a job of launchers, without
    options of sbatch that contradict it. `is_step`: within a job this makes a step of that job."""
    left_out = _CONTRADICTING | {_WAIT} if launchers else {_WAIT}
    if is_step and "SLURM_JOB_ID" in environ:
        kept = dict(environ)
    else:
        kept = given_variables.forget(environ)
        left_out |= _TASK_COUNTS if names.ENV_JOB in environ else frozenset()
    return {name: value for name, value in kept.items() if not name.startswith(FOREIGN) and name not in left_out}


SHOW_S = 5
_FIELD = re.compile(r"^ {3}(Command|SubmitLine|WorkDir)=(.*)$", re.MULTILINE)
_BEHIND = re.compile(r"^ {3}SubmitLine=.*\n(.*)$", re.MULTILINE)
_STEPS = re.compile(rb"^[^#\n]*\b(?:srun|mpirun|mpiexec|llsub)\b", re.MULTILINE)


class SubmissionFields(Struct, frozen=True):
    """Fields of `scontrol show job`; empty: Slurm has none."""

    line: str = ""
    """SubmitLine, without its quotes."""
    command: str = ""
    """Path of the script."""
    folder: str = ""
    """WorkDir: where the job works."""


def parse_job(text: str) -> SubmissionFields:
    """Return the fields in scontrol's text; none where a line break in the submit line makes it unclear where each
    begins."""
    fields = _FIELD.findall(text)
    found = {name: value for name, value in fields if value != "(null)"}
    behind = _BEHIND.search(text)
    if len({name for name, _ in fields}) < len(fields) or (behind and not behind[1].startswith("   WorkDir=")):
        return SubmissionFields()
    return SubmissionFields(found.get("SubmitLine", ""), found.get("Command", ""), found.get("WorkDir", ""))


def parse_line(text: str, folder: str) -> str:
    """Return the submit line in sacct's text for the job that works in `folder`; empty if it is not certain."""
    rows = text.removesuffix("\n").split("\n")
    return rows[0].removeprefix(f"{folder}|") if len(rows) == 1 and rows[0].startswith(f"{folder}|") else ""


def read_job(job: int) -> SubmissionFields:
    """Return what Slurm keeps of a job. Raises CommandError if Slurm does not answer."""
    env = queue_environment(os.environ)
    kept = parse_job(run(["scontrol", "show", "job", str(job)], timeout_s=SHOW_S, env=env))
    if kept.line or not kept.command:
        return kept
    # scontrol of 24.11 does not show the submit line.
    argv = ["sacct", "-X", "--noheader", "--parsable2", f"--jobs={job}", "--format=WorkDir,SubmitLine"]
    try:
        line = parse_line(run(argv, timeout_s=SHOW_S, env=env), kept.folder)
    except CommandError:
        return kept  # without accounting the line is not known
    return replace(kept, line=line)


def read_starts_steps(script: Path) -> bool:
    """Return whether a script starts its tasks with srun or a similar command. Raises OSError."""
    with script.open("rb") as file:
        return _STEPS.search(file.read(HEAD_BYTES)) is not None
