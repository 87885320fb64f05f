"""A location in the dashboard (a view and what it is narrowed to), and the target of an action."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ViewName = Literal["nodes", "users", "jobs", "gpus", "node", "gpu", "process", "advice", "queue", "job"]
"""`node`, `gpu`, `process` and `job` show one thing; the others are tables of everything, or of what the location
narrows them to."""

TITLES: dict[ViewName, str] = {
    "nodes": "Nodes", "users": "Users", "jobs": "Jobs", "gpus": "GPUs",
    "node": "Node", "gpu": "GPU", "process": "Process", "advice": "Advice",
    "queue": "Queue", "job": "Job",
}  # fmt: skip


class Process(Struct, frozen=True):
    """A process on a node. The start time tells it from a later process with the same PID."""

    pid: int
    start_ticks: int | None = None


class Location(Struct, frozen=True, kw_only=True):
    """A view, and the user, job, node, GPU or process that it is narrowed to."""

    view: ViewName
    user: str = ""
    job: int | None = None
    """Slurm's number of the job record (QueuedJob.job_id)."""
    job_name: str = ""
    """The job as squeue writes it, for the breadcrumb: 77_3."""
    node: str = ""
    gpu: str = ""
    """UUID of the GPU."""
    gpu_name: str = ""
    """The GPU's name in the breadcrumb: GPU 0."""
    process: Process | None = None


class JobPlace(Struct, frozen=True, kw_only=True):
    """A job, or one process of it on one node."""

    owner: str
    """Name of the user."""
    job: str = ""
    """The job as squeue and scancel write it: 4711, 77_3, 4711+1. Empty: the process is in no job."""
    job_id: int | None = None
    """The job's number in Slurm's record."""
    node: str = ""
    """The node of the process."""
    process: Process | None = None
    """None: the action applies to the whole job."""
    process_name: str = ""
    step: str = ""
    task: int | None = None
