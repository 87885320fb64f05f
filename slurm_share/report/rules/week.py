"""Add up a user's jobs of a week: jobs, CPU-hours, GPU-hours, energy, and the jobs with the most idle GPU-hours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from ...core.records import Count, Level, Moment
from ...core.settings import Settings
from ..records import JobReport
from . import figures as adding
from . import next_time

MOST = 3
"""Jobs that are named."""


class IdleJob(Struct, frozen=True, kw_only=True):
    """A job with idle GPU-hours."""

    job: str
    name: str
    gpu_h: Level
    idle_h: Level
    advice: str
    """The advice for next time; empty: nothing is known that would help."""


class WeekReport(Struct, frozen=True, kw_only=True):
    """A user's jobs of a week. Of a job that began before, or ends after it, the part in the week counts."""

    user: str
    week: str
    since: Moment
    until: Moment
    jobs: Count = 0
    states: dict[str, Count] = {}
    """Slurm's state -> jobs in it."""
    cpu_had_h: Level = 0.0
    cpu_used_h: Level | None = None
    """None: of no job is it known."""
    gpu_had_h: Level = 0.0
    gpu_measured_h: Level = 0.0
    """GPU-hours of which is known whether they were idle."""
    gpu_idle_h: Level = 0.0
    energy_j: Level | None = None
    energy_gpu_h: Level = 0.0
    """GPU-hours of which the energy is known."""
    idle: tuple[IdleJob, ...] = ()
    """The jobs with the most idle GPU-hours, the most first."""

    @property
    def gpu_used_h(self) -> float:
        """Return the GPU-hours in which a kernel of the user's jobs ran."""
        return self.gpu_measured_h - self.gpu_idle_h


def week_report(
    reports: Iterable[JobReport], *, user: str, week: str, since: float, until: float, settings: Settings
) -> WeekReport:
    """Add up jobs that ran between two moments."""
    states: Counter[str] = Counter()
    cpu_had = gpu_had = measured = idle_s = energy_gpu = 0.0
    cpu_used: list[float] = []
    energy: list[float] = []
    idle: list[tuple[float, float, JobReport]] = []
    for report in reports:
        part = part_within(report, since, until)
        if report.job is None or not part:
            continue
        states[report.job.state] += 1
        found = adding.figures(report)
        cpu_had += part * (found.cpu_had_s or (found.cpus or 0) * (found.elapsed_s or 0.0))
        cpu_used += [] if found.cpu_s is None else [part * found.cpu_s]
        held = part * (found.gpu_s or 0.0)
        gpu_had += held
        measured += part * min(found.gpu_measured_s or 0.0, found.gpu_s or 0.0) if found.gpu_idle_s is not None else 0.0
        idle_s += part * (found.gpu_idle_s or 0.0)
        if found.energy_j is not None:
            energy.append(part * found.energy_j)
            energy_gpu += held
        if found.gpu_idle_s:
            idle.append((part * found.gpu_idle_s, held, report))
    idle.sort(key=lambda one: -one[0])
    return WeekReport(
        user=user,
        week=week,
        since=since,
        until=until,
        jobs=states.total(),
        states=dict(states.most_common()),
        cpu_had_h=cpu_had / 3600,
        cpu_used_h=sum(cpu_used) / 3600 if cpu_used else None,
        gpu_had_h=gpu_had / 3600,
        gpu_measured_h=measured / 3600,
        gpu_idle_h=idle_s / 3600,
        energy_j=sum(energy) if energy else None,
        energy_gpu_h=energy_gpu / 3600,
        idle=tuple(
            IdleJob(
                job=report.title,
                name=report.job.name if report.job else "",
                gpu_h=held / 3600,
                idle_h=seconds / 3600,
                advice=_advice(report, settings),
            )
            for seconds, held, report in idle[:MOST]
        ),
    )


def part_within(report: JobReport, since: float, until: float) -> float:
    """Return the part of a job's time that is between two moments, 0 to 1."""
    spans: Sequence[tuple[float, float]] = [
        (one.start, report.now if one.end is None else one.end) for one in report.starts if one.start is not None
    ]
    whole = sum(end - start for start, end in spans)
    within = sum(max(0.0, min(end, until) - max(start, since)) for start, end in spans)
    return within / whole if whole > 0 else float(any(since <= start < until for start, _ in spans))


def _advice(report: JobReport, settings: Settings) -> str:
    found = adding.figures(report)
    then = next_time.NextTime(
        advice=next_time.advice(report, settings, None), requests=next_time.requests(report, found)
    )
    return next(iter(next_time.short_lines(then)), "")
