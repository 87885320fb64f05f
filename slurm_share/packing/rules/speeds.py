"""Learn the speeds of tasks, alone and beside each other: measured loads, rates alone, and measured pairs.

The state uses no clock or file, like `estimate.estimator.Estimator` for memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from ..history_records import TaskRun
from ..records import TaskAsk, TaskKey
from ..speed_records import Load, PairRun, PairView, Rate, RateSource
from .loads import Loads, load_of

REFUSED_S = 30 * 86400.0
"""A refusal ends after 30 days, because programs, drivers and machines change."""
REFUSED_STP = 0.95
"""Two commands are kept apart below this aggregate speed, as estimated from groups. A group of two is tested instead,
see `undo`."""
UNMEASURED_EXTRA = 0.4
"""Delay by a neighbour with which a task was not measured, where a group with others was. Two such tasks do 1.4 of one
at a time; Gavel (Narayanan 2020) published 1.31 on average of V100."""
COMMANDS_MOST = 4096
EARLIER_ERROR_RATIO = 0.05
"""Assumed standard error of a rate from an earlier run, of which only the mean is kept: half of the difference of about
10 % between two runs of a program (Pan 2021)."""
_SOURCES: frozenset[str] = frozenset({"progress", "log", "output", "finished"})
_Pair = tuple[str, str]
"""Two commands, sorted; or a command and a GPU model."""
_Name = TypeVar("_Name")
_Value = TypeVar("_Value")


class Speeds:
    """Speeds of tasks, from the user's history and this run."""

    def __init__(self, runs: Iterable[TaskRun] = (), pairs: Iterable[PairRun] = (), *, now: float = 0.0) -> None:
        """Learn from the user's history (`runs`, `pairs`, oldest first). `now`: Unix time."""
        self.version = 0
        """Changes whenever an answer may change."""
        self._loads = Loads()
        self._rates: dict[_Pair, Rate] = {}
        """(command, GPU model) -> its rate alone there."""
        self._shared: dict[_Pair, Rate] = {}
        """(command, GPU model) -> its highest rate beside other tasks there, in this run."""
        self._alone_s: dict[_Pair, float] = {}
        """(command, GPU model) -> duration of its newest run alone."""
        self._pairs: dict[_Pair, PairView] = {}
        self._counts: dict[_Pair, int] = {}
        """Measured pair -> number of measurements."""
        self._silent: dict[str, None] = {}
        """Families of which a task was left alone on a GPU and has shown no progress, in this run."""
        for run in runs:
            self.learn(run)
        for pair in pairs:
            self.learn_pair(pair, now)

    # ---- Answers ----

    def load(self, ask: TaskAsk, gpu_model: str) -> Load | None:
        """Return the load of a task alone on a GPU model; None: not measured."""
        return self._loads.find(ask.key, gpu_model)

    def rate_alone(self, key: TaskKey | None, gpu_model: str) -> Rate | None:
        """Return the rate of a command alone on a GPU model; None: not known."""
        return None if key is None or not key.exact else self._rates.get((key.exact, gpu_model))

    def least_alone(self, key: TaskKey | None, gpu_model: str) -> Rate | None:
        """Return the highest rate of a command beside others on a GPU model, at most that alone; None: not known."""
        return None if key is None or not key.exact else self._shared.get((key.exact, gpu_model))

    def seconds_alone(self, key: TaskKey | None, gpu_model: str) -> float | None:
        """Return the duration of a command alone on a GPU model; None: not known."""
        return None if key is None or not key.exact else self._alone_s.get((key.exact, gpu_model))

    def is_new(self, ask: TaskAsk, gpu_models: Iterable[str]) -> bool:
        """Return whether the rate of a task alone is not known on one of these GPU models, and may become known."""
        key = ask.key
        if key is None or not key.exact or ask.gpus > 1 or key.family in self._silent:
            return False
        return any((key.exact, model) not in self._rates for model in gpu_models)

    def pairs(self, keys: Iterable[TaskKey]) -> tuple[PairView, ...]:
        """Return the measured and refused pairs of these commands, sorted by (a, b)."""
        if not self._pairs:
            return ()  # the usual case: no pair was measured
        names = {key.exact for key in keys}
        return tuple(self._pairs[pair] for pair in sorted(self._pairs) if pair[0] in names and pair[1] in names)

    @property
    def has_pairs(self) -> bool:
        """Return whether a pair was measured."""
        return bool(self._pairs)

    def is_refused(self, a: TaskKey | None, b: TaskKey | None) -> bool:
        """Return whether two tasks must not share a GPU."""
        known = None if a is None or b is None else self._pairs.get(_pair(a.exact, b.exact))
        return known is not None and known.is_refused

    # ---- Learning ----

    def learn(self, run: TaskRun) -> None:
        """Learn from a finished attempt."""
        key = TaskKey(exact=run.exact, family=run.family)
        if (load := load_of(run)) is not None:
            self.note_load(key, run.gpu_model, load)
        if run.rate_alone is not None and run.rate_source in _SOURCES:
            source: RateSource = run.rate_source  # type: ignore[assignment]
            known = self.rate_alone(key, run.gpu_model)
            if known is None or (known.per_s, known.source) != (run.rate_alone, source):
                error = EARLIER_ERROR_RATIO * run.rate_alone
                rate = Rate(per_s=run.rate_alone, error_per_s=error, windows=1, source=source)
                self.note_alone(key, run.gpu_model, rate)
        if run.kind == "done" and run.exact and 0 < 0.95 * run.seconds <= run.alone_seconds:
            _keep(self._alone_s, (run.exact, run.gpu_model), run.seconds)

    def note_load(self, key: TaskKey | None, gpu_model: str, load: Load) -> None:
        """Record the load of a task that was alone on a GPU."""
        if key is not None:
            self._loads.add(key, gpu_model, load)
            self.version += 1

    def note_alone(self, key: TaskKey | None, gpu_model: str, rate: Rate) -> None:
        """Record the rate of a command alone on a GPU model."""
        if key is not None and key.exact and math.isfinite(rate.per_s) and rate.per_s > 0:
            _keep(self._rates, (key.exact, gpu_model), rate)
            self.version += 1

    def note_shared(self, key: TaskKey | None, gpu_model: str, rate: Rate) -> None:
        """Record the rate of a command beside other tasks on a GPU model."""
        if key is None or not key.exact:
            return
        known = self.least_alone(key, gpu_model)
        if known is None or (rate.ratio_to(known) or 2.0) > 1.0:
            _keep(self._shared, (key.exact, gpu_model), rate)

    def note_silent(self, key: TaskKey | None) -> None:
        """Record that a task was left alone on a GPU and has shown no progress."""
        if key is not None:
            _keep(self._silent, key.family, None)
            self.version += 1

    def learn_pair(self, pair: PairRun, now: float) -> None:
        """Learn from two commands that shared a GPU in an earlier run. `now`: Unix time."""
        if pair.a and pair.b and now - pair.when <= REFUSED_S:
            a, b = (TaskKey(exact=pair.a, family=pair.family_a), TaskKey(exact=pair.b, family=pair.family_b))
            self.learn_group((a, b), (pair.slowdown_a, pair.slowdown_b))
            self.refuse(a, b, is_refused=pair.is_refused)

    def learn_group(self, keys: Sequence[TaskKey], slowdowns: Sequence[float]) -> None:
        """Learn from tasks that shared a GPU, all with measured rates.

        The delays by several neighbours are taken to add up. What is left of a slowdown after the known delays is
        divided among the neighbours, mostly among those that were measured least.
        """
        extras: dict[tuple[int, int], float] = {}
        for at, slowdown in enumerate(slowdowns):
            others = [other for other in range(len(keys)) if other != at]
            known = [self._extra(keys[at].exact, keys[other].exact) for other in others]
            weights = [1.0 / (1 + self._counts.get(_pair(keys[at].exact, keys[other].exact), 0)) for other in others]
            rest = max(slowdown, 1.0) - 1.0 - sum(known)
            for other, extra, weight in zip(others, known, weights, strict=True):
                extras[at, other] = max(0.0, extra + rest * weight / sum(weights))
        for at, one in enumerate(keys):
            for other in range(at + 1, len(keys)):
                self._note_pair(one, keys[other], extras[at, other], extras[other, at])
        self.version += 1

    def _extra(self, name: str, other: str) -> float:
        view = self._pairs.get(_pair(name, other))
        if view is None:
            return UNMEASURED_EXTRA
        return view.extra_a if view.a == name else view.extra_b

    def _note_pair(self, one: TaskKey, other: TaskKey, extra: float, back: float) -> None:
        names = _pair(one.exact, other.exact)
        if names[0] != one.exact:
            extra, back = back, extra
        view = PairView(a=names[0], b=names[1], extra_a=round(extra, 3), extra_b=round(back, 3))
        _keep(self._counts, names, self._counts.get(names, 0) + 1)
        _keep(self._pairs, names, view)
        self.refuse(one, other, is_refused=view.stp < REFUSED_STP)

    def refuse(self, one: TaskKey, other: TaskKey, *, is_refused: bool) -> None:
        """Keep two measured commands apart, or no longer."""
        names = _pair(one.exact, other.exact)
        self._pairs[names] = replace(self._pairs[names], is_refused=is_refused)


def _pair(one: str, two: str) -> _Pair:
    return (one, two) if one <= two else (two, one)


def _keep(known: dict[_Name, _Value], name: _Name, value: _Value) -> None:
    """Store a value as the newest one, and drop the oldest if there are too many."""
    known.pop(name, None)
    known[name] = value
    if len(known) > COMMANDS_MOST:
        del known[next(iter(known))]
