"""Compute node-hours of low, good and high load from the archive's samples, per user and in total."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from ...core.errors import UsageError, shown
from ...load import thresholds
from ..records import ALL, DAY_S, Sample

_WEEK = re.compile(r"([0-9]{4})-?W([0-9]{1,2})", re.ASCII)


# ---- Periods ----


class Period(Struct, frozen=True):
    """The time [since, until), Unix time in seconds, of whole UTC days."""

    name: str
    since: int
    until: int

    @property
    def label(self) -> str:
        """Return the period's name without blanks, for a file."""
        return self.name.replace(" to ", "_")


def week(text: str, now: float) -> Period:
    """Return the week `2026-W47`, or the last complete week for an empty text. Raises UsageError for other text."""
    if text:
        monday = _monday(text)
    else:
        today = _midnight(datetime.fromtimestamp(now, UTC))
        monday = today - timedelta(days=today.weekday() + 7)
    year, number, _ = monday.isocalendar()
    since = int(monday.timestamp())
    return Period(f"{year}-W{number:02}", since, since + 7 * DAY_S)


def _monday(text: str) -> datetime:
    match = _WEEK.fullmatch(text)
    try:
        if match:
            monday = datetime.fromisocalendar(int(match[1]), int(match[2]), 1).replace(tzinfo=UTC)
            return monday + timedelta(days=7) - timedelta(days=7)  # OverflowError in the calendar's last week
    except (ValueError, OverflowError):
        pass  # the year has no such week
    raise UsageError(f"--week {shown(text)}: a week is written 2026-W47")


def days(first: str | None, last: str | None, now: float) -> Period:
    """Return the period from the first to the last day, inclusive. Raises UsageError for text that is no day."""
    until = _day("--to", last) if last else _midnight(datetime.fromtimestamp(now, UTC))
    since = _day("--from", first) if first else until
    if since > until:
        raise UsageError(f"--from {first} is after --to {until:%Y-%m-%d}")
    return Period(f"{since:%Y-%m-%d} to {until:%Y-%m-%d}", int(since.timestamp()), int(until.timestamp()) + DAY_S)


def _day(option: str, text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        raise UsageError(f"{option} {shown(text)}: a day is written 2026-11-21") from error


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


# ---- Node-hours ----


class Hours(Struct, frozen=True):
    """Node-hours by load: below, within and above the band (`thresholds.py`), and with unknown load."""

    low: float = 0.0
    good: float = 0.0
    high: float = 0.0
    unknown: float = 0.0

    @property
    def known(self) -> float:
        """Return the node-hours with a known load."""
        return self.low + self.good + self.high

    @property
    def bad(self) -> float:
        """Return the node-hours of low and of high load."""
        return self.low + self.high


class AdviceHours(Struct, frozen=True):
    """An advice to run another number of tasks, and for how many node-hours it was given."""

    now: int
    next: int
    decided_by: str
    hours: float


class Use(Struct, frozen=True, kw_only=True):
    """The node-hours of one user, or of all users."""

    user: str
    """The user's name; empty: all users."""
    hours: float = 0.0
    """Node-hours; a node with jobs of two users counts for both."""
    gpu_hours: float = 0.0
    """Node-hours on nodes where the user had GPUs."""
    nodes: int = 0
    cpu: Hours = Hours()
    gpu: Hours = Hours()
    cpu_percent: float | None = None
    """Mean load of the CPUs that the user had; None: not known."""
    gpu_percent: float | None = None
    """Mean load of the GPUs that the user had; None: not known."""
    advised: AdviceHours | None = None
    """The advice that was given for the most hours; None: there was none."""
    cpu_only_bad: float = 0.0
    """Node-hours of low or high CPU load on nodes of which the user had no GPU."""

    @property
    def bad(self) -> float:
        """Return the node-hours of low or high load: by GPU load on nodes where the user had GPUs, since a job on GPUs
        keeps few CPUs busy, else by CPU load."""
        return self.gpu.bad + self.cpu_only_bad


class UsageReport(Struct, frozen=True, kw_only=True):
    """The node-hours of a period, users with the most badly used node-hours first."""

    period: Period
    covered_h: float
    """Hours of the period with samples; missing hours count as no load."""
    elapsed_h: float
    total: Use
    users: tuple[Use, ...]


class _Loads:
    """The sums of one kind of load while samples are added: node-hours by level, and the mean."""

    def __init__(self, band: tuple[float, float]) -> None:
        self._band = band
        self._hours: defaultdict[str, float] = defaultdict(float)
        self._busy = self._had = 0.0

    def add(self, load: float | None, of: int | None, hours: float) -> str:
        """Add a sample, and return its level, a field of Hours."""
        level = "unknown"
        if load is not None and of:
            percent = 100 * load / of
            level = "low" if percent < self._band[0] else "high" if percent > self._band[1] else "good"
            self._busy += load * hours
            self._had += of * hours
        self._hours[level] += hours
        return level

    def hours(self) -> Hours:
        return Hours(**{level: _rounded(hours) for level, hours in self._hours.items()})

    def percent(self) -> float | None:
        return round(100 * self._busy / self._had, 1) if self._had else None


class _Sums:
    """The sums of one user while samples are added."""

    def __init__(self) -> None:
        self.cpu, self.gpu = _Loads(thresholds.CPU_BAND), _Loads(thresholds.GPU_BAND)
        self.nodes: set[str] = set()
        self.hours = self.gpu_hours = self.cpu_only_bad = 0.0
        self.advised: defaultdict[tuple[int, int, str], float] = defaultdict(float)

    def add(self, one: Sample, hours: float) -> None:
        self.nodes.add(one.node)
        self.hours += hours
        level = self.cpu.add(one.cpu_load, one.cpus, hours)
        if one.gpus:
            self.gpu_hours += hours
            self.gpu.add(one.gpu_load, one.gpus, hours)
        elif level in ("low", "high"):
            self.cpu_only_bad += hours
        if one.nppn and one.advised and one.advised != one.nppn:
            self.advised[one.nppn, one.advised, one.decided_by] += hours

    def use(self, user: str) -> Use:
        most = max(self.advised.items(), key=lambda item: (item[1], item[0]), default=None)
        return Use(
            user=user,
            hours=_rounded(self.hours),
            gpu_hours=_rounded(self.gpu_hours),
            nodes=len(self.nodes),
            cpu=self.cpu.hours(),
            gpu=self.gpu.hours(),
            cpu_percent=self.cpu.percent(),
            gpu_percent=self.gpu.percent(),
            advised=None if most is None else AdviceHours(*most[0], _rounded(most[1])),
            cpu_only_bad=_rounded(self.cpu_only_bad),
        )


def _rounded(hours: float) -> float:
    return round(hours, 4)


def report(samples: Iterable[Sample], period: Period, now: float, user: str | None = None) -> UsageReport:
    """Add up samples, which are in order of time.

    A sample stands for its interval, or until the next sample of that user and node if that is sooner. A repeated
    sample counts once. `user`: count only this user's.
    """
    sums: dict[str, _Sums] = {}
    total = _Sums()
    last: dict[tuple[str, str], Sample] = {}
    over = min(float(period.until), now)  # the rest of an interval that has not ended does not count
    covered, covered_to = 0.0, float(period.since)

    def count(one: Sample, seconds: float) -> None:
        hours = max(0.0, min(seconds, over - one.time)) / 3600
        if user is None or one.user == user:
            sums.setdefault(one.user, _Sums()).add(one, hours)
            total.add(one, hours)

    for one in samples:
        end = min(float(one.time + one.interval_s), over)
        covered += max(0.0, end - max(covered_to, one.time))
        covered_to = max(covered_to, end)
        before = last.get((one.node, one.user))
        if one.user == ALL or (before is not None and before.time >= one.time):
            continue
        if before is not None:
            count(before, min(before.interval_s, one.time - before.time))
        last[one.node, one.user] = one
    for one in last.values():
        count(one, one.interval_s)
    users = [added.use(name) for name, added in sums.items()]
    elapsed = max(0.0, min(period.until, now) - period.since)
    return UsageReport(
        period=period,
        covered_h=_rounded(min(covered, elapsed) / 3600),
        elapsed_h=_rounded(elapsed / 3600),
        total=replace(total.use(""), advised=None),
        users=tuple(sorted(users, key=lambda use: (-use.bad, -use.hours, use.user))),
    )


DRAFT_FROM_H = 1.0
"""Badly used node-hours from which a user gets a message."""


def to_write_to(found: UsageReport) -> tuple[Use, ...]:
    """Return the users who should get a message, the worst first."""
    return tuple(use for use in found.users if use.bad >= DRAFT_FROM_H)
