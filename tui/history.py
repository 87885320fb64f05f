"""The history of all surveys so far: five figures of every node, GPU, user and job, at full resolution for ten minutes
and coarser before, and the rates of work of the last ten minutes.

One thread adds surveys, another one draws them. A survey becomes one immutable frame of numbers, so neither thread
waits longer than it takes to copy a list.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Literal, get_args

from slurm_share.load import JobLoad, ProcessLoad
from slurm_share.load import rates as rate_sums

from . import history_values
from .picture import SurveyPicture
from .wire import JobLife, Point, RecordedPoints, Subject

Figure = Literal["cpu_load_percent", "gpu_load_percent", "sm_percent", "memory_percent", "gpu_memory_percent"]
"""A field of Point."""
FIELDS: tuple[Figure, ...] = get_args(Figure)

FINE_S = 600.0
"""Age up to which every survey is kept, seconds."""
MINUTES_S = 3600.0
"""Age up to which the mean of each minute is kept, seconds."""
COARSE_S = 7 * 86_400.0
"""Age up to which the mean of ten minutes is kept, seconds."""
VALUES_MOST = 6_000_000
"""Most numbers of 4 bytes in each of the three, 70 MB in all; the oldest frames are dropped first."""
NODES_WITH_GPUS = 2000
"""In a larger cluster GPUs and jobs have no history of their own."""
RECORDED_MOST = 8
"""Most subjects whose recorded points are kept."""
RATES_MOST = 200_000
"""Most rates of all tasks together; the oldest surveys are dropped first."""
_WIDTH = len(FIELDS)
_NAN = math.nan


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """The figures of all subjects at one time, or their means over a span of time."""

    number: int
    taken: float
    """Unix time; for a mean, the middle of its span."""
    since: float
    """When its first survey was taken."""
    places: Mapping[Subject, int]
    """Index in `values` of each subject; the same object as long as the subjects do not change."""
    values: array[float]
    """FIELDS of each subject; NaN: unknown."""

    def point(self, subject: Subject) -> Point | None:
        """Return the subject's point; None: it is not in this frame."""
        if (at := self.places.get(subject)) is None:
            return None
        return Point(self.taken, *(None if value != value else value for value in self.values[at : at + _WIDTH]))

    def value(self, subject: Subject, offset: int) -> float | None:
        at = self.places.get(subject)
        value = _NAN if at is None else self.values[at + offset]
        return None if value != value else value


class FigureHistory:
    """The figures of all subjects over time. Bounded in memory. Every method is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fine: tuple[_Frame, ...] = ()
        self._minutes: tuple[_Frame, ...] = ()
        self._coarse: tuple[_Frame, ...] = ()
        self._minute: list[_Frame] = []
        """Frames of the current minute."""
        self._ten: list[_Frame] = []
        """Frames of the current ten minutes, one for each minute."""
        self._sparks: dict[tuple[Subject, Figure, int], tuple[float | None, ...]] = {}
        self._recorded: OrderedDict[Subject, tuple[Point, ...]] = OrderedDict()
        self._lives: OrderedDict[int, JobLife] = OrderedDict()
        self._number = 0
        self.work = WorkHistory()
        """The work rates of tasks."""

    @property
    def newest(self) -> float | None:
        """Return the time of the newest survey (Unix time); None: there was none."""
        fine = self._fine
        return fine[-1].taken if fine else None

    def take(self, picture: SurveyPicture) -> None:
        """Add a survey. One that is not newer than the last (a replay that went back, a clock that was set) replaces
        all after it."""
        taken = picture.survey.taken
        before = self._fine[-1].places if self._fine else {}
        frame = _frame(self._number, taken, picture, before)
        self.work.take(self._number, picture)
        with self._lock:
            self._number += 1
            if self._fine and taken <= self._fine[-1].taken:
                self._go_back(taken)
            self._fine = _bounded((*self._fine, frame), taken - FINE_S)
            self._sparks = {}
        # Only this thread uses the unfinished minutes, so the means are computed without the lock.
        if self._minute and taken // 60 != self._minute[0].taken // 60:
            minute, self._minute = _mean(self._minute), []
            ten = None
            if self._ten and minute.taken // 600 != self._ten[0].taken // 600:
                ten, self._ten = _mean(self._ten), []
            self._ten.append(minute)
            with self._lock:
                self._minutes = _bounded((*self._minutes, minute), taken - MINUTES_S)
                if ten is not None:
                    self._coarse = _bounded((*self._coarse, ten), taken - COARSE_S)
        with self._lock:
            self._minute.append(frame)

    def spark(self, subject: Subject, of: Figure, count: int) -> tuple[float | None, ...]:
        """Return the last ten minutes in at most `count` values, newest last: every survey, or the means of 2, 4, 8 ...
        surveys. None: unknown."""
        key = (subject, of, count)
        with self._lock:
            if (known := self._sparks.get(key)) is not None:
                return known
            frames, sparks = self._fine, self._sparks
        offset = FIELDS.index(of)
        values = [frame.value(subject, offset) for frame in frames]
        sparks[key] = downsampled([frame.number for frame in frames], values, count)
        return sparks[key]

    @property
    def spark_s(self) -> float:
        """Return the age of the first value of a sparkline, seconds."""
        with self._lock:
            frames = self._fine
        return max(0.0, frames[-1].taken - frames[0].taken) if frames else 0.0

    def points(self, subject: Subject, span_s: float | None) -> tuple[Point, ...]:
        """Return the points of the `span_s` seconds before the newest survey, oldest first; None: all points, in a
        replay also the later ones. A frame without the subject gives a point without figures."""
        with self._lock:
            fine, minutes, coarse = self._fine, self._minutes, self._coarse
            recorded = self._recorded.get(subject)
            if recorded is not None:
                self._recorded.move_to_end(subject)
        if recorded is not None:
            now = fine[-1].taken if fine else recorded[-1].taken if recorded else 0.0
            return recorded if span_s is None else tuple(one for one in recorded if now - span_s <= one.taken <= now)
        if not fine:
            return ()
        since = -math.inf if span_s is None else fine[-1].taken - span_s
        frames = list(fine)
        for older in (minutes, coarse):
            first = frames[0]
            # A mean that begins within the finer frames would count them twice.
            frames = [frame for frame in older if frame.taken < first.taken and frame.since < first.since] + frames
        points = ((frame, frame.point(subject)) for frame in frames if frame.taken >= since)
        known = dropwhile(lambda pair: pair[1] is None, points)
        return tuple(point or Point(frame.taken) for frame, point in known)

    def add_recorded(self, recorded: RecordedPoints) -> None:
        """Add a subject's points from a recording; `points` returns them from then on."""
        ordered = tuple(sorted(recorded.points, key=lambda point: point.taken))
        with self._lock:
            self._recorded[recorded.subject] = ordered
            self._recorded.move_to_end(recorded.subject)
            while len(self._recorded) > RECORDED_MOST:
                self._recorded.popitem(last=False)

    def add_life(self, life: JobLife) -> None:
        """Add the course of a job over its whole life; an earlier one is kept if this has no points."""
        with self._lock:
            if life.points or not (known := self._lives.get(life.job)) or not known.points:
                self._lives[life.job] = life
            self._lives.move_to_end(life.job)
            while len(self._lives) > RECORDED_MOST:
                self._lives.popitem(last=False)

    def life_of(self, job: int) -> JobLife | None:
        """Return the course of a job as the agents or Prometheus know it; None: no answer yet."""
        with self._lock:
            return self._lives.get(job)

    def has_recorded(self, subject: Subject) -> bool:
        with self._lock:
            return subject in self._recorded

    def _go_back(self, taken: float) -> None:
        frames = (self._fine, self._minutes, self._coarse, self._minute, self._ten)
        self._fine, self._minutes, self._coarse, minute, ten = (
            tuple(frame for frame in some if frame.taken < taken) for some in frames
        )
        self._minute, self._ten = [*minute], [*ten]


def _frame(number: int, taken: float, picture: SurveyPicture, before: Mapping[Subject, int]) -> _Frame:
    subjects: list[Subject] = []
    values: list[float] = []
    for subject, found in history_values.all_values(picture.nodes, gpus=len(picture.nodes) <= NODES_WITH_GPUS):
        subjects.append(subject)
        values.extend([_NAN if value is None else value for value in found])
    places = before
    if len(before) != len(subjects) or any(known != subject for known, subject in zip(before, subjects, strict=False)):
        places = {subject: at * _WIDTH for at, subject in enumerate(subjects)}
    return _Frame(number, taken, taken, places, array("f", values))


def _mean(frames: Sequence[_Frame]) -> _Frame:
    """Return one frame with the mean of the known values."""
    first, last = frames[0], frames[-1]
    taken = sum(frame.taken for frame in frames) / len(frames)
    if all(frame.places is first.places for frame in frames):
        count = len(frames)
        values = array("f", [sum(column) / count for column in zip(*(frame.values for frame in frames), strict=True)])
        for at, value in enumerate(values):
            if value != value:  # some were unknown
                values[at] = _mean_known([frame.values[at] for frame in frames])
        return _Frame(last.number, taken, first.since, first.places, values)
    subjects = {subject: None for frame in frames for subject in frame.places}
    places = {subject: at * _WIDTH for at, subject in enumerate(subjects)}
    values = array("f")
    for subject in subjects:
        there = [(frame.values, where) for frame in frames if (where := frame.places.get(subject)) is not None]
        values.extend(_mean_known([each[where + offset] for each, where in there]) for offset in range(_WIDTH))
    return _Frame(last.number, taken, first.since, places, values)


def _mean_known(values: Sequence[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else _NAN


def _bounded(frames: tuple[_Frame, ...], since: float) -> tuple[_Frame, ...]:
    """Return the newest frames: those taken after `since` that fit into VALUES_MOST, and at least one."""
    room = VALUES_MOST
    keep = 0
    for frame in reversed(frames):
        room -= len(frame.values)
        if keep and (room < 0 or frame.taken < since):
            break
        keep += 1
    return frames if keep == len(frames) else frames[-keep:]


def downsampled(numbers: Sequence[int], values: Sequence[float | None], count: int) -> tuple[float | None, ...]:
    """Return at most `count` values, newest last: the values themselves, or the means of 2, 4, 8 ... of them.

    `numbers`: the number of the survey of each value.
    """
    if count <= 0 or not numbers:
        return ()
    each = 1
    # Groups begin at multiples of `each`, so that a drawn value does not change, it only moves to the left.
    while numbers[-1] // each - numbers[0] // each >= count:
        each *= 2
    if each == 1:
        return tuple(values)
    groups: dict[int, list[float]] = {}
    for number, value in zip(numbers, values, strict=True):
        known = groups.setdefault(number // each, [])
        if value is not None:
            known.append(value)
    return tuple(sum(known) / len(known) if known else None for known in groups.values())[-count:]


Key = tuple[str, int | None, str, int]
"""(node, job, run, task): all attempts of a task have the same key."""


@dataclass(frozen=True, slots=True)
class _Survey:
    """The rates of all tasks in one survey."""

    number: int
    taken: float
    rates: dict[Key, float]
    """Units per second."""
    of_jobs: dict[int, float]
    """The rates of the tasks of each job together."""

    @property
    def size(self) -> int:
        """Return the number of rates."""
        return len(self.rates) + len(self.of_jobs)


class WorkHistory:
    """The rate of each task in the last ten minutes, as the task reports it. Bounded in memory, thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._surveys: deque[_Survey] = deque()
        self._count = 0

    def take(self, number: int, picture: SurveyPicture) -> None:
        """Add a survey. Later surveys are dropped, for a replay that went back. `number`: of the survey."""
        taken = picture.survey.taken
        survey = _Survey(number, taken, _rates(picture), _job_rates(picture))
        with self._lock:
            while self._surveys and self._surveys[-1].taken >= taken:
                self._count -= self._surveys.pop().size
            self._surveys.append(survey)
            self._count += survey.size
            while len(self._surveys) > 1 and (self._surveys[0].taken < taken - FINE_S or self._count > RATES_MOST):
                self._count -= self._surveys.popleft().size

    def percents(self, node: str, process: ProcessLoad, count: int) -> tuple[float | None, ...]:
        """Return the task's rate in the last ten minutes as percent of `most_per_s`, at most `count` values, newest
        last. None: no rate then. Empty: never any."""
        numbers, rates = self._rates_of(node, process)
        full = full_per_s(process, rates)
        if not full:
            return ()
        return downsampled(numbers, [None if rate is None else 100 * rate / full for rate in rates], count)

    def of_job(self, job: int) -> tuple[tuple[float, float | None], ...]:
        """Return the rate of a job's tasks together over the last ten minutes: (Unix time, units per second)."""
        with self._lock:
            surveys = tuple(self._surveys)
        return tuple((one.taken, one.of_jobs.get(job)) for one in surveys)

    def of_task(self, node: str, process: ProcessLoad) -> tuple[tuple[float, float | None], ...]:
        """Return the rate of the process's task over the last ten minutes: (Unix time, units per second)."""
        key = key_of(node, process)
        with self._lock:
            surveys = tuple(self._surveys) if key is not None else ()
        return tuple((one.taken, one.rates.get(key)) for one in surveys if key is not None)

    def most_per_s(self, node: str, process: ProcessLoad) -> float | None:
        """Return the rate that is 100 percent of the sparkline, units per second; None: unknown."""
        return full_per_s(process, self._rates_of(node, process)[1])

    def _rates_of(self, node: str, process: ProcessLoad) -> tuple[list[int], list[float | None]]:
        """Return the number of each survey, and the rate of the process's task in it."""
        key = key_of(node, process)
        with self._lock:
            surveys = tuple(self._surveys) if key is not None else ()
        return [one.number for one in surveys], [one.rates.get(key) for one in surveys if key is not None]


def key_of(node: str, process: ProcessLoad) -> Key | None:
    """Return the key of a process's task; None: no launcher reports on it."""
    one = process.progress
    return None if one is None else (node, process.job, one.run, one.task)


def alone_per_s(process: ProcessLoad) -> float | None:
    """Return the rate of the task alone on a GPU; None: unknown."""
    one = process.progress
    return one.rate_per_s / one.speed_ratio if one and one.rate_per_s and one.speed_ratio else None


def full_per_s(process: ProcessLoad, rates: list[float | None]) -> float | None:
    """Return the rate that counts as full: the task's rate alone, else the highest one seen."""
    return alone_per_s(process) or max((rate for rate in rates if rate is not None), default=None)


def _rates(picture: SurveyPicture) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for row in picture.nodes:
        for process in row.node.snapshot.processes if row.node.snapshot is not None else ():
            one, key = process.progress, key_of(row.name, process)
            if one is not None and key is not None and (one.is_paused or one.rate_per_s is not None):
                found[key] = 0.0 if one.is_paused else one.rate_per_s or 0.0
    return found


def _job_rates(picture: SurveyPicture) -> dict[int, float]:
    """Return the rate of each job on all of its nodes, units per second, where it is known everywhere."""
    loads: dict[int, list[JobLoad]] = {}
    for row in picture.nodes:
        for load in row.node.snapshot.jobs if row.node.snapshot is not None else ():
            loads.setdefault(load.job, []).append(load)
    found = ((job, rate_sums.of_jobs(load.progress for load in there)) for job, there in loads.items())
    return {job: total.per_s for job, total in found if total is not None}
