"""The target of an action, as a view gives it."""

from __future__ import annotations

from msgspec import Struct

from .location import Process


class Target(Struct, frozen=True, kw_only=True):
    """A job, or one process of it on one node."""

    owner: str
    """Name of the user."""
    job: str = ""
    """The job as squeue and scancel write it: 4711, 77_3, 4711+1. Empty: the process is in no job."""
    job_id: int | None = None
    """The job's number in Slurm's record."""
    job_name: str = ""
    nodes: str = ""
    """Folded node list: n[1-3]."""
    node: str = ""
    """The node of the process."""
    process: Process | None = None
    """None: the action applies to the whole job."""
    process_name: str = ""
    step: str = ""
    task: int | None = None
