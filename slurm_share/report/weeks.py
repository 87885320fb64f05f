"""A user's own week, and the site's idle GPU-hours: from Slurm's accounts and the jobs' comments, as text and JSON."""

from __future__ import annotations

import json

from msgspec import to_builtins

from ..core import terminal
from ..core.settings import Settings
from ..core.terminal import TerminalColumn
from ..core.text import counted, joules_text
from ..history import report as periods
from ..slurm import accounts
from . import sources
from .records import SCHEMA
from .rules import site_week
from .rules.site_week import SiteIdle
from .rules.week import WeekReport, week_report
from .sources import Viewer

SITE_COLUMNS = (
    TerminalColumn("USER", shrinks_to=8), TerminalColumn("JOBS", right=True), TerminalColumn("GPU_H", right=True),
    TerminalColumn("IDLE_H", right=True), TerminalColumn("?_H", right=True), TerminalColumn("ENERGY", right=True),
)  # fmt: skip
SITE_JOB_COLUMNS = (
    TerminalColumn("JOB"), TerminalColumn("USER", shrinks_to=8), TerminalColumn("NAME", shrinks_to=10),
    TerminalColumn("GPU_H", right=True), TerminalColumn("IDLE_H", right=True),
)  # fmt: skip


def read(week: str, who: Viewer, settings: Settings, now: float) -> WeekReport:
    """Return the report of a week, `2026-W47`, or of the last complete one for an empty text.

    Raises UsageError for other text, CommandError without Slurm's accounts.
    """
    period = periods.week(week, now)
    found = accounts.read(user=who.user, since=period.since, until=min(period.until, now))
    return week_report(
        sources.of_accounts(found, now),
        user=who.user,
        week=period.name,
        since=period.since,
        until=period.until,
        settings=settings,
    )


def read_site(since: float, until: float, user: str | None, now: float) -> SiteIdle:
    """Return everybody's idle GPU-hours, or one user's, between two moments. Raises CommandError without accounts."""
    ended = min(until, now)
    found = accounts.read(user=user or "", everybody=user is None, since=since, until=ended, steps=False)
    return site_week.site_idle(sources.of_accounts(found, now), since, ended, user)


def site_lines(found: SiteIdle, width: int) -> list[str]:
    """Return idle GPU-hours by user and by job as text."""
    if not found.users:
        return ["no job with GPUs ran in this time by Slurm's accounts"]
    unknown = found.gpu_h - found.measured_h
    head = f"GPU-hours by Slurm's accounts: {hours(found.gpu_h)} had, {hours(found.idle_h)} idle"
    head += f", {hours(unknown)} unknown" if unknown > 0.005 * found.gpu_h else ""
    rows = [
        (terminal.safe(one.user), str(one.jobs), hours(one.gpu_h), hours(one.idle_h), hours(one.gpu_h - one.measured_h),
         "?" if one.energy_j is None else joules_text(one.energy_j))
        for one in found.users
    ]  # fmt: skip
    said = [head, "", *terminal.lay_out(SITE_COLUMNS, rows, width)[0]]
    if found.jobs:
        jobs = [
            (one.job, terminal.safe(one.user), terminal.safe(one.name), hours(one.gpu_h), hours(one.idle_h))
            for one in found.jobs
        ]
        said += ["", *terminal.lay_out(SITE_JOB_COLUMNS, jobs, width)[0]]
    return said


def lines(found: WeekReport, width: int) -> list[str]:
    """Return the report as text."""
    head = f"Jobs of {terminal.safe(found.user)}, {found.week} (UTC)"
    if not found.jobs:
        return [head, "  none ran in this week"]
    states = ", ".join(f"{number} {state}" for state, number in found.states.items())
    rows = [("jobs", f"{found.jobs}: {states}"), ("CPU-hours", _cpu(found)), ("GPU-hours", _gpu(found))]
    rows += [("energy", _energy(found))] if found.gpu_had_h else []
    said = [head, *(terminal.shortened(f"  {label:<10} {text}", width) for label, text in rows)]
    if found.idle:
        said += ["", "The jobs with the most idle GPU-hours"]
        for one in found.idle:
            name = terminal.shortened(one.name, 24)
            said.append(f"  {one.job}  {name}  {hours(one.idle_h)} of {hours(one.gpu_h)} idle")
            said += [terminal.shortened(f"      {one.advice}", width)] if one.advice else []
        said += ["", "  slurm-share report JOB says more about each"]
    return said


def hours(value: float) -> str:
    """Return hours with what says something: 0.02, 3.4, 120."""
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _cpu(found: WeekReport) -> str:
    if found.cpu_used_h is None:
        return f"{hours(found.cpu_had_h)} had; how many were used is unknown"
    part = f" ({100 * found.cpu_used_h / found.cpu_had_h:.0f} %)" if found.cpu_had_h else ""
    return f"{hours(found.cpu_used_h)} used of {hours(found.cpu_had_h)} had{part}"


def _gpu(found: WeekReport) -> str:
    if not found.gpu_had_h:
        return "none"
    unknown = found.gpu_had_h - found.gpu_measured_h
    said = f"{hours(found.gpu_had_h)} had"
    if found.gpu_measured_h:
        said += f": {hours(found.gpu_used_h)} used, {hours(found.gpu_idle_h)} idle"
    return said + (f", {hours(unknown)} unknown" if unknown > 0.005 * found.gpu_had_h else "")


def _energy(found: WeekReport) -> str:
    if found.energy_j is None:
        return f"unknown: no record of {counted(found.jobs, 'job')} has it (usage_record in config.toml)"
    part = found.energy_gpu_h / found.gpu_had_h if found.gpu_had_h else 1.0
    return joules_text(found.energy_j) + (f", of {100 * part:.0f} % of the GPU-hours" if part < 0.995 else "")


def as_json(found: WeekReport) -> str:
    """Return the documented JSON form."""
    return json.dumps({"schema": SCHEMA, "week": {**to_builtins(found), "gpu_used_h": found.gpu_used_h}}, indent=2)
