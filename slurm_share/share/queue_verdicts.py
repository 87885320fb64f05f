"""Reads the queue for what the controller said about each job's share, and the cluster's nodes."""

from __future__ import annotations

import os
import re

import msgspec

from ..core import process
from ..core.errors import CommandError
from ..slurm import jobs as slurm_jobs
from .records import Switchable

_OF_THE_SHELL = ("SLURM_CLUSTERS",)
"""By which a person's squeue and scontrol ask another cluster."""
_CONTROLLER = re.compile(r"^Slurmctld\([a-z0-9]+\) at (\S+) is (\w+)", re.MULTILINE)
_SHAPED = re.compile(r"(?:^|;)share-gpu=")
_OVER = frozenset({"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"})
QUEUE_S = 300.0
"""A queue of a hundred thousand jobs is some hundred MB."""


class _Number(msgspec.Struct):
    set: bool = False
    number: int = 0


class _Job(msgspec.Struct):
    job_id: int
    array_job_id: _Number
    array_task_id: _Number
    array_task_string: str
    partition: str
    job_state: list[str]
    admin_comment: str
    extra: str
    comment: str
    restart_cnt: int


class _Answer(msgspec.Struct):
    jobs: list[_Job]


def environment() -> dict[str, str]:
    """Return the environment for the commands that ask, and change, this host's own cluster."""
    kept = slurm_jobs.queue_environment(os.environ)
    return {name: value for name, value in kept.items() if name not in _OF_THE_SHELL}


def argv() -> list[str]:
    """Return the question for all jobs that wait or run."""
    return ["squeue", "--all", f"--json={slurm_jobs.DATA_PARSER}"]


def parse(text: str) -> tuple[Switchable, ...]:
    """Return the jobs of squeue's JSON that have not ended. Raises CommandError for another answer."""
    try:
        # byte for byte: JSON that has bytes which are no UTF-8 is none, and any user can write some into a job
        bytewise = text.encode("utf-8", "surrogateescape").decode("latin-1")
        found = msgspec.json.decode(bytewise, type=_Answer).jobs
    except msgspec.DecodeError as error:
        raise CommandError(tuple(argv()), 0, f"an answer that is not squeue's JSON: {error}") from error
    return tuple(_job(one) for one in found if not _OVER.intersection(one.job_state))


def _job(one: _Job) -> Switchable:
    return Switchable(
        which=_which(one),
        partitions=tuple(one.partition.split(",")),
        is_pending="PENDING" in one.job_state,
        was_shaped=_SHAPED.search(one.admin_comment) is not None,
        restarts=one.restart_cnt,
        extra=_words(one.extra),
        comment=_words(one.comment),
    )


def _words(bytewise: str) -> str:
    """Return a user's text as it is to go back to scontrol."""
    try:
        return bytewise.encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return bytewise  # it has characters that the JSON wrote by their numbers


def _which(one: _Job) -> str:
    """Return the job as scontrol names it. The number of an array's last element is that of the array, and would name
    all of its elements."""
    array = one.array_job_id.number
    if not array:
        return str(one.job_id)
    if one.array_task_id.set:
        return f"{array}_{one.array_task_id.number}"
    elements = one.array_task_string.partition("%")[0]
    return f"{array}_[{elements}]" if elements else str(one.job_id)


def read() -> tuple[Switchable, ...]:
    """Return the jobs of the queue. Raises CommandError where squeue does not answer."""
    found = process.run(
        argv(),
        timeout_s=QUEUE_S,
        env=environment(),
        check=slurm_jobs.patience(argv()),
        errors="surrogateescape",
    )
    return parse(found)


# --- Hosts -----------------------------------------------------------------------------------------------------------


def nodes_argv() -> list[str]:
    """Return the question for every node, its generic resources and its state."""
    return ["sinfo", "--all", "--noheader", "--Node", "--format=%N|%G|%T"]


def parse_nodes(text: str) -> dict[str, tuple[bool, str]]:
    """Return of each node whether it has GPUs, and its state in Slurm's word."""
    rows = (line.split("|") for line in text.splitlines() if line.count("|") == 2)
    return {name: (re.search(r"(^|,)gpu\b", gres) is not None, state) for name, gres, state in rows}


def read_nodes() -> dict[str, tuple[bool, str]]:
    """Return the same from Slurm. Raises CommandError where it does not answer."""
    argv = nodes_argv()
    return parse_nodes(process.run(argv, timeout_s=60.0, env=environment(), check=slurm_jobs.patience(argv)))


def parse_controllers(text: str) -> dict[str, bool]:
    """Return the controllers' hosts in the text of `scontrol ping`, the primary first, and whether each answers."""
    return {host: word == "UP" for host, word in _CONTROLLER.findall(text)}


def read_controllers() -> dict[str, bool]:
    """Return the same from Slurm. Raises CommandError where there is no scontrol."""
    argv = slurm_jobs.ping_text_argv()
    return parse_controllers(process.finish(argv, timeout_s=30.0, env=environment()).stdout)
