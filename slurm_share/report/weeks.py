"""A user's own week: read from Slurm's accounts and the jobs' comments, as text and as JSON."""

from __future__ import annotations

import json

from msgspec import to_builtins

from ..core import terminal
from ..core.settings import Settings
from ..core.text import counted
from ..history import report as periods
from ..slurm import accounts
from . import sources
from .records import SCHEMA
from .rules import wording
from .rules.week import WeekReport, week_report
from .sources import Viewer


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
    return wording.joules(found.energy_j) + (f", of {100 * part:.0f} % of the GPU-hours" if part < 0.995 else "")


def as_json(found: WeekReport) -> str:
    """Return the documented JSON form."""
    return json.dumps({"schema": SCHEMA, "week": {**to_builtins(found), "gpu_used_h": found.gpu_used_h}}, indent=2)
