"""Decide which processes are ended when a job has left its GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...core.settings import Settings
from ...node.records import GpuReading, NodeProcess
from ..records import Sweep

FIRST_ORDINARY_UID = 1000
"""The first uid that is not a system user's (login.defs UID_MIN; systemd's "Users, Groups, UIDs and GIDs")."""
LiveJobs = Mapping[int, int | None]
"""Live job -> uid of its user; None: not known."""


def unread(readings: Sequence[GpuReading], gpus: Iterable[str]) -> str:
    """Return words for the GPUs (UUIDs) of ended jobs whose processes are not known, because a GPU does not answer;
    empty if all are known."""
    silent = [reading.gpu for reading in readings if reading.gpu.problem is not None]
    answering = {reading.gpu.uuid for reading in readings if reading.gpu.problem is None}
    missing = [uuid for uuid in dict.fromkeys(gpus) if uuid not in answering]
    if not silent or not missing:
        return ""
    reasons = "; ".join(f"GPU {gpu.index}: {gpu.problem}" for gpu in silent)
    return f"{', '.join(missing)} ({reasons})"


def sweep(
    processes: Iterable[NodeProcess], ended_uid: int, ended_job: int, live: LiveJobs, settings: Settings
) -> Sweep:
    """Sort the processes on the GPUs that `ended_job` of `ended_uid` had, and that no other shared job has.

    No process of a live job and none of a system user is ended. A process of another user is ended if no job has the
    GPU; it does not drain the node.
    """
    end, tolerated, without_job, foreign = [], [], [], []
    for process in processes:
        uid, name = process.identity.uid, process.identity.name
        lives_on = process.job_id != ended_job and _lives_on(process, live)
        if uid == ended_uid and uid >= FIRST_ORDINARY_UID and not lives_on:
            end.append(process)
        elif lives_on or (uid is not None and uid < FIRST_ORDINARY_UID and name in settings.tolerated_processes):
            tolerated.append(process)
        elif uid is not None and uid >= FIRST_ORDINARY_UID:
            without_job.append(process)
        else:
            foreign.append(process)
    return Sweep(tuple(end), tuple(tolerated), tuple(without_job), tuple(foreign))


def escaped(processes: Iterable[NodeProcess], uid: int, live: LiveJobs) -> tuple[NodeProcess, ...]:
    """Return the user's processes of jobs that are not alive. They are ended on any GPU, since those jobs get no Epilog
    any more."""
    return tuple(process for process in of_departed(processes, uid, live) if process.job_id is not None)


def of_departed(processes: Iterable[NodeProcess], uid: int, live: LiveJobs) -> tuple[NodeProcess, ...]:
    """Return the processes of a user who has no job here any more, except those of live jobs."""
    return tuple(
        process
        for process in processes
        if process.identity.uid == uid >= FIRST_ORDINARY_UID and not _lives_on(process, live)
    )


def _lives_on(process: NodeProcess, live: LiveJobs) -> bool:
    """Return whether the process belongs to a live job. If only the process's own environment says so, it must belong
    to that job's user."""
    if process.job_id is None or process.job_id not in live:
        return False
    return not process.is_own_claim or live[process.job_id] in (None, process.identity.uid)
