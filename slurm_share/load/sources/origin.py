"""Open the source of surveys that a command's options select: a cluster, a demonstration or a recording."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from ...core import config
from ...core.errors import UsageError, shown
from ...core.settings import Settings
from ...slurm.records import Submission
from ..snapshot import Advice, Survey

SOURCES = ("srun", "local", "agents", "prometheus")
DEMO_NODES = 12
SECOND = 0.999_999
"""Added to a whole second for its end."""
LASTING_S = 900.0
"""Age in seconds from which an advice is no input of the next one: the longest window of load."""
ASK_S = 2.0
"""Longest time to read submissions of jobs at one survey, enough for some hundred."""
MOST_TIME_S = 1e11
"""Upper limit of a Unix time, within the years that datetime supports."""


class SurveySource(Protocol):
    """A source of surveys that can be read repeatedly."""

    def read(self, timeout_s: float) -> Survey:
        """Return the newest survey. Raises SlurmShareError."""

    def close(self) -> None:
        """Release the resources of the source."""


class Origin(Struct, frozen=True, kw_only=True):
    """The source to read and the options for it. The dashboard sends it to another process as JSON."""

    user: str
    """The user whose nodes are read."""
    everybody: bool = False
    nodes: tuple[str, ...] = ()
    """Only these nodes; not for a recording, whose nodes are filtered later."""
    jobs: tuple[str, ...] = ()
    """Only these jobs, as squeue writes them."""
    details: bool = True
    """Whether more than a line per node is wanted."""
    source: str = ""
    """One of SOURCES; empty: the site's load_source."""
    demo: bool = False
    demo_nodes: int = DEMO_NODES
    replay: str | None = None
    """A recording's file."""
    at: str | None = None
    """The start position in a recording, as `moment` reads it."""
    waiting: bool = False
    """Whether pending jobs are wanted as well."""
    interval_s: float | None = None
    """Seconds between two surveys; None: a single survey, for a recording its last one."""


def open_survey_source(origin: Origin, settings: Settings) -> SurveySource:
    """Open the source, and import only its module. Raises UsageError, StateError."""
    if origin.demo:
        from .demo import Demo

        return Demo(
            user=origin.user, everybody=origin.everybody, nodes=origin.nodes, jobs=origin.jobs, count=origin.demo_nodes
        )
    if origin.replay is not None:
        from .replay import Replay

        replay = Replay(Path(origin.replay))
        if origin.at is not None:
            try:
                replay.seek(within(origin.at, replay.first, replay.last))
            except UsageError:
                replay.close()
                raise
        elif origin.interval_s is None:
            replay.seek(replay.last)
        return replay
    from . import survey_reader

    return survey_reader.SurveyReader(
        survey_reader.open_source(origin.source or settings.load_source, settings, interval_s=origin.interval_s),
        user=origin.user,
        everybody=origin.everybody,
        nodes=origin.nodes,
        jobs=origin.jobs,
        details=origin.details,
        waiting=origin.waiting,
        settings=settings,
    )


def moment(text: str, last: float) -> float:
    """Return the Unix time of `2026-01-31T14:30`, `14:30` on the day of `last`, or a Unix time. Raises UsageError."""
    with contextlib.suppress(ValueError):
        seconds = float(text)
        if 0 <= seconds <= MOST_TIME_S:
            return seconds
    day = datetime.date.fromtimestamp(last).isoformat()
    for form in (text, f"{day}T{text}"):
        try:
            return datetime.datetime.fromisoformat(form).timestamp()
        except (ValueError, OverflowError):
            continue
    raise UsageError(f"--at {shown(text)}: write 2026-01-31T14:30, 14:30 (of the recording's last day), or seconds")


def until(text: str, last: float) -> float:
    """Return the time as `moment` does, but the end of the second for a time without a fraction. Raises UsageError. So
    a survey at 14:30:39.6, which is shown as 14:30:39, is found by that."""
    found = moment(text, last)
    return found if "." in text else found + SECOND


def within(text: str, first: float, last: float) -> float:
    """Return the time as `until` does. Raises UsageError for a time outside a recording from `first` to `last`."""
    found = until(text, last)
    if found < first or moment(text, last) > last:
        begin, end = (
            datetime.datetime.fromtimestamp(int(taken)).isoformat(timespec="seconds") for taken in (first, last)
        )
        raise UsageError(f"--at {shown(text)}: the recording is from {begin} to {end}; write a time between these")
    return found


class Advisor:
    """An advisor for successive surveys, which keeps the advice of the last survey as an input of the next."""

    def __init__(self) -> None:
        self._previous: tuple[Advice, ...] = ()
        self._taken: float | None = None
        self._submissions: dict[int, Submission | None] = {}

    def __call__(self, survey: Survey) -> tuple[Advice, ...]:
        """Return the advice for every running job in the survey, by this site's settings. Raises UsageError for a job
        whose nodes are no list, and for an invalid configuration."""
        from ...triples import result_files
        from ..rules.advice import advise

        site = config.load()
        # The jobs of a recording or a demonstration are not those whose results and submissions are on this host.
        is_now = survey.source not in ("replay", "demo")
        failures = result_files.read_memory_failures(survey.jobs, os.geteuid()) if is_now else {}
        is_next = self._taken is not None and 0 <= survey.taken - self._taken <= LASTING_S

        def advised() -> tuple[Advice, ...]:
            return advise.advise_all(
                survey,
                site.settings,
                site.partitions,
                failures,
                previous=self._previous if is_next else (),
                submissions={job: one for job, one in self._submissions.items() if one is not None},
            )

        found = advised()
        if is_now and self._read_submissions(survey, {one.job for one in found if one.change}):
            found = advised()
        self._previous, self._taken = found, survey.taken
        return found

    def _read_submissions(self, survey: Survey, advised: set[int | None]) -> bool:
        """Read the submissions of the caller's own jobs that should be changed; return whether any was read. After
        ASK_S the rest is left for the next survey."""
        from ...triples import read_submission

        until, uid, learned = time.monotonic() + ASK_S, os.geteuid(), False
        running = {job.job_id for job in survey.jobs}
        self._submissions = {job: one for job, one in self._submissions.items() if job in running}
        for job in survey.jobs:
            if (job.array or job.job_id) not in advised or job.job_id in self._submissions or job.uid != uid:
                continue
            if "RUNNING" not in job.states:
                continue
            if time.monotonic() > until:
                break
            self._submissions[job.job_id] = read_submission(job)
            learned = learned or self._submissions[job.job_id] is not None
            if job.array:
                advised = advised - {job.array}  # one element stands for all
        return learned
