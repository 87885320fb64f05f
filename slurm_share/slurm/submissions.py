"""Read how a job was submitted, as far as Slurm keeps it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ..core.errors import CommandError
from ..core.process import run
from .jobs import queue_environment
from .script import HEAD_BYTES

TIMEOUT_S = 5
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
    kept = parse_job(run(["scontrol", "show", "job", str(job)], timeout_s=TIMEOUT_S, env=env))
    if kept.line or not kept.command:
        return kept
    # scontrol of 24.11 does not show the submit line.
    argv = ["sacct", "-X", "--noheader", "--parsable2", f"--jobs={job}", "--format=WorkDir,SubmitLine"]
    try:
        line = parse_line(run(argv, timeout_s=TIMEOUT_S, env=env), kept.folder)
    except CommandError:
        return kept  # without accounting the line is not known
    return replace(kept, line=line)


def read_starts_steps(script: Path) -> bool:
    """Return whether a script starts its tasks with srun or a similar command. Raises OSError."""
    with script.open("rb") as file:
        return _STEPS.search(file.read(HEAD_BYTES)) is not None
