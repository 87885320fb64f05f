"""What is to become of processes that sit on a GPU when a job has left it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...core.settings import Settings
from ...node.records import NodeProcess
from ..records import Sweep

FIRST_ORDINARY_UID = 1000
"""Below it live the system's own users (login.defs UID_MIN; systemd's "Users, Groups, UIDs and GIDs")."""


LiveJobs = Mapping[int, int | None]
"""Jobs that live here, and whose they are; None: not known."""


def sweep(
    processes: Iterable[NodeProcess], ended_uid: int, ended_job: int, live: LiveJobs, settings: Settings
) -> Sweep:
    """Sort the processes on the GPUs that `ended_job` of `ended_uid` had, and that no other shared job has.

    No process of a job that still lives here is ended, and none of a system user's. Nobody knows who put a process of
    another user there: it is ended where no job has the GPU, and does not drain the node.
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
    """Return the user's processes that belong to a job which no longer lives: to be ended wherever they are found,
    since no Epilog of that job will come."""
    return tuple(process for process in of_departed(processes, uid, live) if process.job_id is not None)


def of_departed(processes: Iterable[NodeProcess], uid: int, live: LiveJobs) -> tuple[NodeProcess, ...]:
    """Return the processes of a user who has no job here any more, except those of a job that lives: none of them
    has a reason to be on the node."""
    return tuple(
        process
        for process in processes
        if process.identity.uid == uid >= FIRST_ORDINARY_UID and not _lives_on(process, live)
    )


def _lives_on(process: NodeProcess, live: LiveJobs) -> bool:
    """Return whether the process belongs to a living job. If only the process itself says so, it must be of that
    job's user."""
    if process.job_id is None or process.job_id not in live:
        return False
    return not process.is_own_claim or live[process.job_id] in (None, process.identity.uid)
