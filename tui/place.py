"""Where in the dashboard somebody is: a view, and what it is narrowed to on the way down."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ViewName = Literal["nodes", "users", "jobs", "gpus", "node", "gpu", "process", "advice"]
"""`node`, `gpu` and `process` are of one thing; the others are tables of all, or of what `Place` narrows them to."""

TITLES: dict[ViewName, str] = {
    "nodes": "Nodes",
    "users": "Users",
    "jobs": "Jobs",
    "gpus": "GPUs",
    "node": "Node",
    "gpu": "GPU",
    "process": "Process",
    "advice": "Advice",
}


class Process(Struct, frozen=True):
    """One process and no later one of the same number, on one node."""

    pid: int
    start_ticks: int | None = None


class Place(Struct, frozen=True, kw_only=True):
    """A view and its subject, with the places above it."""

    view: ViewName
    user: str = ""
    job: int | None = None
    """Slurm's number of the record (QueuedJob.job_id)."""
    job_name: str = ""
    """As squeue writes the job, for the breadcrumb: 77_3."""
    node: str = ""
    gpu: str = ""
    """UUID."""
    gpu_name: str = ""
    """For the breadcrumb: GPU 0."""
    process: Process | None = None
