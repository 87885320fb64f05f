"""Slurm's own view of its jobs, through its commands. Never used by Prolog or Epilog, which must not call Slurm."""

from __future__ import annotations

import msgspec

from ..errors import CommandError
from ..process import run

DATA_PARSER = "v0.0.42"
"""The one JSON layout that Slurm 24.11 and 26.05 both write."""


class _Job(msgspec.Struct):
    job_id: int


class _Answer(msgspec.Struct):
    jobs: list[_Job]


def squeue_argv(node: str) -> list[str]:
    """The question for the caller's own jobs on one node."""
    return ["squeue", "--me", f"--nodelist={node}", "--states=RUNNING,COMPLETING", f"--json={DATA_PARSER}"]


def parse_job_ids(text: str) -> tuple[int, ...]:
    """Job ids in squeue's JSON. Raises CommandError for an answer that is not squeue's."""
    try:
        return tuple(job.job_id for job in msgspec.json.decode(text, type=_Answer).jobs)
    except msgspec.DecodeError as error:
        raise CommandError(("squeue",), 0, f"an answer that is not its JSON: {error}") from error


def read_my_job_ids(node: str) -> tuple[int, ...]:
    """The caller's running jobs on `node`. Raises CommandError when squeue does not answer."""
    return parse_job_ids(run(squeue_argv(node), timeout_s=10))
