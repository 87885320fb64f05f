"""What was seen until now: of every node, GPU, user and job five figures, finely for ten minutes and coarser further
back.

One thread adds surveys and another one draws them. A survey becomes one frame of plain numbers, which never changes
again, so nobody waits for longer than a list is copied.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from . import points as measured
from .picture import Picture
from .thin import thinned
from .wire import Point, RecordedPoints, Subject
from .work_history import WorkHistory

Of = Literal["cpu_load_percent", "gpu_load_percent", "sm_percent", "memory_percent", "gpu_memory_percent"]
"""A field of Point."""
FIELDS: tuple[Of, ...] = get_args(Of)

FINE_S = 600.0
"""So far back every survey is kept."""
MINUTES_S = 3600.0
"""So far back the mean of each minute."""
COARSE_S = 7 * 86_400.0
"""So far back the mean of ten minutes."""
VALUES_MOST = 6_000_000
"""Numbers of 4 bytes in each of the three: 70 MB in all, and then the oldest goes before its time."""
NODES_WITH_GPUS = 2000
"""On a larger cluster GPUs and jobs have no history of their own."""
RECORDED_MOST = 8
"""Subjects of which what a recording has is kept."""
_WIDTH = len(FIELDS)
_NAN = math.nan


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """All subjects at one moment, or over one bucket of time."""

    number: int
    taken: float
    """Unix time; of a mean, the middle of its span."""
    since: float
    """When the first survey in it was taken."""
    places: Mapping[Subject, int]
    """Where in `values` a subject begins; one and the same object as long as the same subjects come."""
    values: array[float]
    """FIELDS of each; NaN: unknown."""

    def point(self, subject: Subject) -> Point | None:
        """None: it is not in here."""
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
    """Bounded in memory, whatever is put in. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fine: tuple[_Frame, ...] = ()
        self._minutes: tuple[_Frame, ...] = ()
        self._coarse: tuple[_Frame, ...] = ()
        self._minute: list[_Frame] = []
        """Looks of the minute that is not over."""
        self._ten: list[_Frame] = []
        """Minutes of the ten that are not over."""
        self._sparks: dict[tuple[Subject, Of, int], tuple[float | None, ...]] = {}
        self._recorded: OrderedDict[Subject, tuple[Point, ...]] = OrderedDict()
        self._number = 0
        self.work = WorkHistory()
        """How fast each task was."""

    @property
    def newest(self) -> float | None:
        """Return when the newest survey was taken, Unix time; None: there was none."""
        fine = self._fine
        return fine[-1].taken if fine else None

    def take(self, picture: Picture) -> None:
        """Add a survey. One that is older than the last (a replay that went back, a clock that was set) takes the
        place of all that was after it."""
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
        # Only the thread that adds surveys touches the open buckets, and dear means are thought out without the lock.
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

    def spark(self, subject: Subject, of: Of, count: int) -> tuple[float | None, ...]:
        """The last ten minutes, or as much of them as there is, in at most `count` values, newest last: a value a
        survey as long as these have room, then the means of 2, 4, 8 ... surveys. None: unknown then."""
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
        """Return how long ago the first value of a sparkline is, seconds."""
        with self._lock:
            frames = self._fine
        return max(0.0, frames[-1].taken - frames[0].taken) if frames else 0.0

    def points(self, subject: Subject, span_s: float | None) -> tuple[Point, ...]:
        """What is known of the last `span_s` seconds before the newest survey, oldest first; None: all there is, of a
        recording what comes after it as well. Where it was not seen there is a point without figures."""
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
            # One that reaches into what is here finely already, and begins no earlier, would be in there twice.
            frames = [frame for frame in older if frame.taken < first.taken and frame.since < first.since] + frames
        found: list[Point] = []
        for frame in frames:
            if frame.taken >= since:
                point = frame.point(subject)
                if point is not None or found:
                    found.append(point or Point(frame.taken))
        return tuple(found)

    def add_recorded(self, recorded: RecordedPoints) -> None:
        """Add what a recording has of a subject; `points` returns it from then on."""
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
    for subject, found in measured.every(picture.nodes, gpus=len(picture.nodes) <= NODES_WITH_GPUS):
        subjects.append(subject)
        values.extend([_NAN if value is None else value for value in found])
    places = before
    if len(before) != len(subjects) or any(known != subject for known, subject in zip(before, subjects, strict=False)):
        places = {subject: at * _WIDTH for at, subject in enumerate(subjects)}
    return _Frame(number, taken, taken, places, array("f", values))


def _mean(frames: Sequence[_Frame]) -> _Frame:
    """One frame for several: of each figure the mean of what is known."""
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
    """The newest of them: not older than `since`, and not more numbers than there is room for; one at the least."""
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
    return thinned(numbers, [frame.value(subject, offset) for frame in frames], count)
