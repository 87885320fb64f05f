"""Add up idle GPU-hours of everybody's jobs, by user and by job, for the site's report."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ...core.records import Count, Level
from ..records import JobReport
from . import figures as adding
from .week import part_within

USERS_MOST, JOBS_MOST = 20, 20


class UserIdle(Struct, frozen=True, kw_only=True):
    """The GPU-hours of one user's jobs in a period."""

    user: str
    jobs: Count
    gpu_h: Level
    measured_h: Level
    """GPU-hours of which is known whether they were idle."""
    idle_h: Level
    energy_j: Level | None = None
    """Sum of the jobs of which it is known; None: of none."""


class JobIdle(Struct, frozen=True, kw_only=True):
    """One job with idle GPU-hours."""

    job: str
    user: str
    name: str
    gpu_h: Level
    idle_h: Level


class SiteIdle(Struct, frozen=True, kw_only=True):
    """Users and jobs with the most idle GPU-hours, the most first."""

    users: tuple[UserIdle, ...] = ()
    jobs: tuple[JobIdle, ...] = ()
    gpu_h: Level = 0.0
    measured_h: Level = 0.0
    idle_h: Level = 0.0


class _Sums:
    def __init__(self) -> None:
        self.jobs = 0
        self.gpu = self.measured = self.idle = 0.0
        self.energy: list[float] = []


def site_idle(reports: Iterable[JobReport], since: float, until: float, user: str | None = None) -> SiteIdle:
    """Add up the jobs with GPUs that ran between two moments; of a job that crosses one the part in between counts.

    `user`: only this one's.
    """
    users: dict[str, _Sums] = {}
    jobs: list[JobIdle] = []
    for report in reports:
        part = part_within(report, since, until)
        if report.job is None or not part or (user is not None and report.job.user != user):
            continue
        found = adding.figures(report)
        if not found.gpu_s:
            continue
        sums = users.setdefault(report.job.user, _Sums())
        idle_s = part * (found.gpu_idle_s or 0.0)
        sums.jobs += 1
        sums.gpu += part * found.gpu_s
        if found.gpu_idle_s is not None:
            sums.measured += part * min(found.gpu_measured_s or 0.0, found.gpu_s)
        sums.idle += idle_s
        sums.energy += [] if found.energy_j is None else [part * found.energy_j]
        if idle_s:
            jobs.append(
                JobIdle(
                    job=report.title,
                    user=report.job.user,
                    name=report.job.name,
                    gpu_h=part * found.gpu_s / 3600,
                    idle_h=idle_s / 3600,
                )
            )
    rows = [
        UserIdle(
            user=name,
            jobs=sums.jobs,
            gpu_h=sums.gpu / 3600,
            measured_h=sums.measured / 3600,
            idle_h=sums.idle / 3600,
            energy_j=sum(sums.energy) if sums.energy else None,
        )
        for name, sums in users.items()
    ]
    return SiteIdle(
        users=tuple(sorted(rows, key=lambda one: (-one.idle_h, one.user))[:USERS_MOST]),
        jobs=tuple(sorted(jobs, key=lambda one: (-one.idle_h, one.job))[:JOBS_MOST]),
        gpu_h=sum(one.gpu_h for one in rows),
        measured_h=sum(one.measured_h for one in rows),
        idle_h=sum(one.idle_h for one in rows),
    )
