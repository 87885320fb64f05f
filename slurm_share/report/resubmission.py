"""Read what the advice of a report needs besides its figures: how the job was submitted, and whether its script is
still there."""

from __future__ import annotations

import os
from pathlib import Path

from ..core.settings import Settings
from ..slurm.records import Submission
from ..triples import read_submission
from .records import JobFigures, JobReport
from .rules import evidence
from .rules import next_time as rule_next_time
from .sources import Viewer

QUEUED_S = 300.0
"""Seconds after a job's end for which slurmctld still tells how it was submitted (MinJobAge, Slurm's default)."""


def next_time(report: JobReport, found: JobFigures, settings: Settings, who: Viewer) -> rule_next_time.NextTime:
    """Return what to ask for next time. `settings`: those of the job's partition."""
    job = report.job
    if job is None:
        return rule_next_time.NextTime()
    requests = rule_next_time.requests(report, found)
    script = rule_next_time.script_of(job.submit_line, job.folder)
    line = rule_next_time.line(requests, job.submit_line, script_is_there=bool(script) and Path(script).is_file())
    advice = rule_next_time.advice(report, settings, _submission(report, script, who))
    return rule_next_time.NextTime(advice=advice, requests=requests, line=line)


def _submission(report: JobReport, script: str, who: Viewer) -> Submission | None:
    """Return how the job was submitted; None: not certain, or it is another user's."""
    job = report.job
    if job is None or job.uid != who.uid or who.uid != os.geteuid():
        return None
    path = report.script or script
    if not path or (not report.script and job.end is not None and report.now - job.end > QUEUED_S):
        return None
    from msgspec.structs import replace

    return read_submission(replace(evidence.queued(job, report), script=path))
