"""The work rate of each task in the last ten minutes, as the task reports it. Bounded in memory."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from slurm_share.load import ProcessLoad

from .downsample import downsampled
from .picture import Picture

SPAN_S = 600.0
"""Age up to which every survey is kept, seconds."""
VALUES_MOST = 200_000
"""Most rates of all tasks together; the oldest surveys are dropped first."""

Key = tuple[str, int | None, str, int]
"""(node, job, run, task): all attempts of a task have the same key."""


@dataclass(frozen=True, slots=True)
class _Survey:
    """The rates of all tasks in one survey."""

    number: int
    taken: float
    rates: dict[Key, float]
    """Units per second."""


class WorkHistory:
    """Rates of tasks. One thread adds surveys, another one draws."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._surveys: deque[_Survey] = deque()
        self._count = 0

    def take(self, number: int, picture: Picture) -> None:
        """Add a survey. Later surveys are dropped, for a replay that went back. `number`: of the survey."""
        taken = picture.survey.taken
        survey = _Survey(number, taken, _rates(picture))
        with self._lock:
            while self._surveys and self._surveys[-1].taken >= taken:
                self._count -= len(self._surveys.pop().rates)
            self._surveys.append(survey)
            self._count += len(survey.rates)
            while len(self._surveys) > 1 and (self._surveys[0].taken < taken - SPAN_S or self._count > VALUES_MOST):
                self._count -= len(self._surveys.popleft().rates)

    def percents(self, node: str, process: ProcessLoad, count: int) -> tuple[float | None, ...]:
        """Return the task's rate in the last ten minutes as percent of `full_per_s`, at most `count` values, newest
        last. None: no rate then. Empty: never any."""
        key = key_of(node, process)
        if key is None:
            return ()
        with self._lock:
            surveys = tuple(self._surveys)
        rates = [survey.rates.get(key) for survey in surveys]
        full = full_per_s(process, rates)
        if not full:
            return ()
        values = [None if rate is None else 100 * rate / full for rate in rates]
        return downsampled([survey.number for survey in surveys], values, count)

    def most_per_s(self, node: str, process: ProcessLoad) -> float | None:
        """Return the rate that is 100 percent of the sparkline, units per second; None: unknown."""
        key = key_of(node, process)
        if key is None:
            return None
        with self._lock:
            surveys = tuple(self._surveys)
        return full_per_s(process, [survey.rates.get(key) for survey in surveys])


def key_of(node: str, process: ProcessLoad) -> Key | None:
    """Return the key of a process's task; None: no launcher reports on it."""
    one = process.progress
    return None if one is None else (node, process.job, one.run, one.task)


def alone_per_s(process: ProcessLoad) -> float | None:
    """Return the rate of the task alone on a GPU; None: unknown."""
    one = process.progress
    if one is None or not one.rate_per_s or not one.speed_ratio:
        return None
    return one.rate_per_s / one.speed_ratio


def full_per_s(process: ProcessLoad, rates: list[float | None]) -> float | None:
    """Return the rate that counts as full: the task's rate alone, else the highest one seen."""
    seen = max((rate for rate in rates if rate is not None), default=None)
    return alone_per_s(process) or seen


def _rates(picture: Picture) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for row in picture.nodes:
        for process in row.node.snapshot.processes if row.node.snapshot is not None else ():
            one, key = process.progress, key_of(row.name, process)
            if one is not None and key is not None and (one.is_paused or one.rate_per_s is not None):
                found[key] = 0.0 if one.is_paused else one.rate_per_s or 0.0
    return found
