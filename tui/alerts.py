"""Alerts: idle GPUs, memory near its cap, a silent node, an own job that has ended. Once for each event.

Values in, values out; no clock. `AlertBook` keeps what it has said, so that nothing is said twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from msgspec.structs import replace as changed

from slurm_share.core.text import counted, span_text
from slurm_share.load import JobRow, job_rows, nodes_of, text, thresholds
from slurm_share.slurm.records import QueuedJob

from .history import NODES_WITH_GPUS
from .location import Location
from .picture import SurveyPicture
from .user_config import AlertConfig

Kind = Literal["idle", "memory", "silent", "ended"]
CALM_S = 120.0
"""Seconds for which an event must be over before the same one is said again."""
KEPT = 200
"""Most alerts that are listed; the oldest are dropped first."""


@dataclass(frozen=True)
class Alert:
    """One event."""

    kind: Kind
    subject: str
    """Its subject: `job 4711`, `node n1`."""
    said: str
    """The sentence."""
    began: float
    """Unix time."""
    location: Location | None = None
    """Where to look."""
    over: float | None = None
    """Unix time at which it was seen to be over; None: it goes on, or it is a single event."""
    is_silenced: bool = False

    @property
    def key(self) -> tuple[Kind, str]:
        return self.kind, self.subject

    @property
    def is_shown(self) -> bool:
        """Return whether the banner shows it."""
        return not self.is_silenced and self.over is None


@dataclass
class AlertBook:
    """The alerts of one dashboard."""

    config: AlertConfig = field(default_factory=AlertConfig)
    alerts: list[Alert] = field(default_factory=list)
    """The oldest first."""
    _since: dict[tuple[Kind, str], float] = field(default_factory=dict)
    """When each condition was first seen, Unix time: it becomes an alert once it has held for long enough."""
    _gone: dict[tuple[Kind, str], float] = field(default_factory=dict)
    """When each condition was first seen to be over."""
    _own: dict[int, QueuedJob] | None = None
    """The viewer's running jobs in the survey before; None: there was none."""

    def take(self, picture: SurveyPicture) -> list[Alert]:
        """Return the new alerts of a survey. A recording has none: its events are over."""
        if picture.is_replay or not picture.details:
            return []
        now = picture.survey.taken
        has_others = self.config.others and len(picture.nodes) <= NODES_WITH_GPUS
        whole, picture = picture, picture if has_others else own_part(picture)
        rows = job_rows(picture, arrays=False)
        found = {
            alert.key: alert for alert in (*self._idle(rows), *self._memory(picture, rows), *self._silent(picture))
        }
        new = [alert for alert in self._held(found, now) if self._is_new(alert)]
        new += self._ended(whole, now)
        self._end(set(found), now)
        self.alerts = [*self.alerts, *new][-KEPT:]
        return new

    def silence(self, key: tuple[Kind, str] | None = None) -> None:
        """Silence one alert, or all."""
        self.alerts = [replace(one, is_silenced=True) if key in (None, one.key) else one for one in self.alerts]

    def explain(self, job: int, said: str) -> None:
        """Give the alert of an ended job the sentence that Slurm's answer allows."""
        self.alerts = [
            replace(one, said=said) if one.kind == "ended" and one.location and one.location.job == job else one
            for one in self.alerts
        ]

    @property
    def shown(self) -> list[Alert]:
        """Return what the banner is about, the newest first."""
        return [one for one in reversed(self.alerts) if one.is_shown]

    def _is_new(self, alert: Alert) -> bool:
        return not any(one.key == alert.key and one.over is None for one in self.alerts)

    def _held(self, found: dict[tuple[Kind, str], Alert], now: float) -> Iterator[Alert]:
        """Yield the conditions that have held for as long as the configuration demands."""
        for key, alert in found.items():
            since = self._since.setdefault(key, alert.began)
            self._gone.pop(key, None)
            least_s = {
                "idle": max(0.0, 60 * self.config.idle_minutes - thresholds.HELD_IDLE_S),
                "silent": self.config.silent_seconds,
            }.get(alert.kind, 0.0)
            if now - since >= least_s:
                yield replace(alert, began=now)

    def _end(self, keys: set[tuple[Kind, str]], now: float) -> None:
        """Note which conditions are over, after CALM_S."""
        for key in [one for one in self._since if one not in keys]:
            if now - self._gone.setdefault(key, now) >= CALM_S:
                del self._since[key], self._gone[key]
                self.alerts = [
                    replace(one, over=now) if one.key == key and one.over is None else one for one in self.alerts
                ]

    def _idle(self, rows: list[JobRow]) -> Iterator[Alert]:
        if self.config.idle_minutes <= 0:
            return
        for row in rows:
            if (count := int(row.idle_gpus.value or 0)) and self._concerns(row):
                said = f"{_job(row)} leaves {counted(count, 'GPU')} idle for {self.config.idle_minutes:g} minutes"
                yield Alert("idle", f"job {row.id}", said, row.now, _page(row))

    def _memory(self, picture: SurveyPicture, rows: list[JobRow]) -> Iterator[Alert]:
        most = self.config.memory_percent
        if most <= 0:
            return
        for row in rows:
            percent = row.memory_percent
            if percent is not None and percent >= most and self._concerns(row):
                said = (
                    f"{_job(row)} uses {text.percent_text(percent)} of its {text.summed_memory(row.memory_requested)}"
                )
                yield Alert("memory", f"job {row.id}", f"{said} host memory", row.now, _page(row))
        by_number = {row.number: row for row in rows}
        full: dict[int, tuple[float, int]] = {}
        for node in picture.snapshots:
            for process in node.processes:
                if not process.cap_mib or process.job is None:
                    continue
                used = max((on.memory_mib or 0 for on in process.gpus), default=0)
                percent = 100 * used / process.cap_mib
                if percent >= most and percent > full.get(process.job, (0.0, 0))[0]:
                    full[process.job] = percent, process.cap_mib
        for number, (percent, cap_mib) in full.items():
            owner = by_number.get(number)
            if owner is not None and self._concerns(owner):
                said = (
                    f"a task of {_job(owner)} uses {text.percent_text(percent)} of its cap of {text.gigabytes(cap_mib)}"
                )
                yield Alert("memory", f"GPU memory of job {owner.id}", f"{said} GPU memory", owner.now, _page(owner))

    def _silent(self, picture: SurveyPicture) -> Iterator[Alert]:
        if self.config.silent_seconds <= 0:
            return
        survey = picture.survey
        own = {name for job in survey.jobs if job.user == survey.user for name in nodes_of(job)}
        for row in picture.nodes:
            if row.node.snapshot is None and (self.config.others or row.name in own):
                said = f"node {row.name} is silent: {text.why_silent(row.node)}"
                yield Alert("silent", f"node {row.name}", said, survey.taken, Location(view="node", node=row.name))

    def _ended(self, picture: SurveyPicture, now: float) -> Iterator[Alert]:
        """Yield an alert for each own job with nodes that is not in the queue any more."""
        survey = picture.survey
        if survey.jobs_taken is None:
            return
        there = {job.job_id: job for job in survey.jobs if job.user == survey.user and job.nodes}
        waiting = {job.job_id for job in survey.jobs if not job.nodes}
        before, self._own = self._own, there
        for number, job in (before or {}).items():
            if self.config.ended and number not in there and number not in waiting:
                ran = "" if job.start is None else f" after {text.time_text(max(0.0, now - job.start))}"
                yield Alert("ended", f"job {job.id}", f"{_named(job)} has ended{ran}", now, _ended_page(job))

    def _concerns(self, row: JobRow) -> bool:
        return row.is_own or self.config.others


def own_part(picture: SurveyPicture) -> SurveyPicture:
    """Return the picture with the viewer's own jobs and their nodes only: a survey of 10,000 nodes costs no more than
    that part of it."""
    survey = picture.survey
    jobs = tuple(job for job in survey.jobs if job.user == survey.user)
    if not survey.jobs:
        return picture if len(picture.nodes) <= NODES_WITH_GPUS else replace(picture, nodes=())
    names = dict.fromkeys(name for job in jobs for name in nodes_of(job))
    nodes = tuple(row for name in names if (row := picture.by_name.get(name)) is not None)
    return replace(picture, nodes=nodes, survey=changed(survey, jobs=jobs))


def ended_text(job: QueuedJob) -> str:
    """Return how a job has ended, as a sentence."""
    state = job.states[0] if job.states else "?"
    why = f" ({job.reason})" if job.reason and job.reason != "None" else ""
    ran = "" if job.start is None or job.ends is None else f" after {span_text(max(0, job.ends - job.start))}"
    return f"{_named(job)}: {state}{why}{ran}"


def _named(job: QueuedJob) -> str:
    return f"job {job.id} {job.name}".strip()


def _job(row: JobRow) -> str:
    return f"job {row.id} {row.name}".strip() + ("" if row.is_own else f" of {row.user}")


def _page(row: JobRow) -> Location:
    return Location(view="job", user=row.user, job=row.number, job_name=f"{row.id} {row.name}".strip())


def _ended_page(job: QueuedJob) -> Location:
    return Location(view="job", user=job.user, job=job.job_id, job_name=f"{job.id} {job.name}".strip())
