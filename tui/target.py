"""What a command acts on, as a view hands it over: values, and nothing that could act by itself."""

from __future__ import annotations

from msgspec import Struct

from .place import Process


class Target(Struct, frozen=True, kw_only=True):
    """A job, or one process of it on one node."""

    owner: str
    """User's name."""
    job: str = ""
    """As squeue and scancel write it: 4711, 77_3, 4711+1. Empty: the process is in no job."""
    job_id: int | None = None
    """The job's number in Slurm's record."""
    job_name: str = ""
    nodes: str = ""
    """Folded, n[1-3]."""
    node: str = ""
    """The node of the process."""
    process: Process | None = None
    """None: the job as a whole is meant."""
    process_name: str = ""
    step: str = ""
    task: int | None = None
