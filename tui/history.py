"""The history of all surveys so far: five figures of every node, GPU, user and job, at full resolution for ten minutes
and coarser before.

One thread adds surveys, another one draws them. A survey becomes one immutable frame of numbers, so neither thread
waits longer than it takes to copy a list.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from . import history_values
from .downsample import downsampled
from .picture import Picture
from .wire import Point, RecordedPoints, Subject
from .work_history import WorkHistory

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
        at = self.places.get(subject)
        if at is None:
            return None
        return Point(self.taken, *(None if value != value else value for value in self.values[at : at + _WIDTH]))

    def value(self, subject: Subject, offset: int) -> float | None:
        at = self.places.get(subject)
        if at is None:
            return None
        value = self.values[at + offset]
        return None if value != value else value


class History:
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
        self._number = 0
        self.work = WorkHistory()
        """The work rates of tasks."""

    @property
    def newest(self) -> float | None:
        """Return the time of the newest survey (Unix time); None: there was none."""
        fine = self._fine
        return fine[-1].taken if fine else None

    def take(self, picture: Picture) -> None:
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
        found = _spark(frames, subject, FIELDS.index(of), count)
        sparks[key] = found
        return found

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
        found: list[Point] = []
        for frame in frames:
            if frame.taken >= since:
                point = frame.point(subject)
                if point is not None or found:
                    found.append(point or Point(frame.taken))
        return tuple(found)

    def add_recorded(self, recorded: RecordedPoints) -> None:
        """Add a subject's points from a recording; `points` returns them from then on."""
        ordered = tuple(sorted(recorded.points, key=lambda point: point.taken))
        with self._lock:
            self._recorded[recorded.subject] = ordered
            self._recorded.move_to_end(recorded.subject)
            while len(self._recorded) > RECORDED_MOST:
                self._recorded.popitem(last=False)

    def has_recorded(self, subject: Subject) -> bool:
        """Return whether the recording's points of a subject are here."""
        with self._lock:
            return subject in self._recorded

    def _go_back(self, taken: float) -> None:
        self._fine = tuple(frame for frame in self._fine if frame.taken < taken)
        self._minutes = tuple(frame for frame in self._minutes if frame.taken < taken)
        self._coarse = tuple(frame for frame in self._coarse if frame.taken < taken)
        self._minute = [frame for frame in self._minute if frame.taken < taken]
        self._ten = [frame for frame in self._ten if frame.taken < taken]


def _frame(number: int, taken: float, picture: Picture, before: Mapping[Subject, int]) -> _Frame:
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


def _spark(frames: Sequence[_Frame], subject: Subject, offset: int, count: int) -> tuple[float | None, ...]:
    numbers = [frame.number for frame in frames]
    return downsampled(numbers, [frame.value(subject, offset) for frame in frames], count)
