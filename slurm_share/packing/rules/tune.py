"""Find the number of equal tasks that a node does most with, by trials on the run's own tasks.

A level is a number of tasks at once on the node, the same on each GPU. The search begins with one on each GPU, doubles
as long as that gains, then tries a level in between. It goes down by not filling free places, and never ends a task.
What it may cost is limited: at most five levels, and at most a quarter of the tasks. No clock: time is counted in
windows, which the caller closes.

Source of the rules: throughput against the number of tasks rises to a plateau in all published measurements (Pan 2021,
Table 4; LLSC's triples), and programs differ by about 10 % between two runs (Pan 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from ..speed_records import LevelRun, SharingMethod, TunedRun

GAIN = 1.10
"""More tasks at once have to do so much more: less is noise, and each costs memory."""
WINDOWS_MIN = 3
"""Closed windows, or finished tasks, that a level needs at least."""
WINDOWS_MAX = 30
"""After so many windows (15 min of 30 s) a level is judged even where its tasks are too long to finish twice."""
FINISHED_PER_PLACE = 2
UNCLEAR_MAX = 16
"""Most rates of a level whose gain is not clear."""
LEVELS_MAX = 5
TASKS_RATIO = 0.25
"""Trials end when so large a part of the tasks is done."""
FRESH_S = 30 * 86400.0
"""A result that is older is begun below, and not taken over."""
SAME_RATIO = 0.20
"""A remembered level whose rate differs by more from the remembered one is not taken over."""
PRECISE_RATIO = 0.04
"""A level is measured on until its rate is known as well as this (standard error), or it has UNCLEAR_MAX rates."""
STEADY_RATIO = 0.01
"""Rates that spread less are exact enough with WINDOWS_MIN of them; others need twice as many."""
CHOICE_RATIO = 0.03
CHOICE_ERRORS = 0.5
"""More tasks are chosen only where they do more by this part, and by so many errors: each takes memory."""
_MAD_SIGMA = 1.4826
"""Standard deviation over median absolute deviation, for normal errors."""


def level_run(level: int, sharing: SharingMethod, rates: Sequence[float]) -> LevelRun:
    """Return what the rates of closed windows say of a level, in units a second; at least one rate."""
    mean = fmean(rates)
    spread = median(abs(rate - mean) for rate in rates)
    return LevelRun(level=level, sharing=sharing, per_s=mean, spread_per_s=spread, windows=len(rates))


def error_ratio(run: LevelRun) -> float:
    """Return the standard error of a level's rate as a part of the rate."""
    if run.per_s <= 0:
        return 0.0
    return _MAD_SIGMA * run.spread_per_s / math.sqrt(max(run.windows, 1)) / run.per_s


def compare(run: LevelRun, before: LevelRun) -> tuple[float, float]:
    """Return the rate of a level over that of another one, and the standard error of that ratio."""
    if before.per_s <= 0:
        return (math.inf if run.per_s > 0 else 1.0), 0.0
    ratio = run.per_s / before.per_s
    return ratio, ratio * math.hypot(error_ratio(run), error_ratio(before))


def is_clear_gain(run: LevelRun, before: LevelRun) -> bool:
    """Return whether a level does at least GAIN of another one, and by more than two errors."""
    ratio, error = compare(run, before)
    return ratio >= GAIN and ratio - 1.0 > 2.0 * error


def remembered_level(known: TunedRun | None, gpus: int, now: float) -> int | None:
    """Return the level with which a run begins that was tuned before; None: with one task on each GPU.

    The best one, up to 30 days; half of it, later. now: Unix time.
    """
    if known is None or known.best < 1 or known.gpus < 1:
        return None
    per_gpu = known.best / known.gpus
    if now - known.when > FRESH_S:
        per_gpu /= 2.0
    return gpus * max(1, round(per_gpu))


class Measure:
    """The windows of one level."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.rates: list[float] = []
        self.windows = 0
        self.finished = 0

    def add(self, rates: Iterable[float], finished: int) -> None:
        """Note a closed window, see `Tuner.window`."""
        self.rates += rates
        self.windows += 1
        self.finished += finished

    @property
    def has_enough(self) -> bool:
        """Return whether the level was measured: each place has finished two tasks, or they are too long for that."""
        if len(self.rates) < WINDOWS_MIN:
            return False
        is_twice = self.windows >= WINDOWS_MIN and self.finished >= FINISHED_PER_PLACE * self.level
        return is_twice or self.windows >= WINDOWS_MAX

    @property
    def is_blind(self) -> bool:
        """Return whether nothing at all shows a rate after the longest time that a level may take."""
        return not self.rates and self.windows >= WINDOWS_MAX

    def is_unclear(self, run: LevelRun, before: LevelRun | None) -> bool:
        """Return whether more windows could change what follows. `before`: the best level so far."""
        if len(self.rates) >= UNCLEAR_MAX or self.windows >= WINDOWS_MAX:
            return False
        if before is not None and not is_clear_gain(run, before):
            ratio, error = compare(run, before)
            if error > STEADY_RATIO and ratio + 2.0 * error >= 1.0:
                return True
        is_few = len(self.rates) < 2 * WINDOWS_MIN and run.spread_per_s > STEADY_RATIO * run.per_s
        return is_few or error_ratio(run) > PRECISE_RATIO


class Tuner:
    """The search of one node."""

    def __init__(
        self,
        gpus: int,
        tasks: int,
        *,
        sharing: SharingMethod = "mps",
        known: TunedRun | None = None,
        now: float = 0.0,
    ) -> None:
        """Begin. `gpus`: of the node, at least one. `tasks`: that it has to do. `known`: what an earlier run found on
        such GPUs. `now`: Unix time."""
        self.gpus = gpus
        self.tasks = tasks
        self.sharing = sharing
        self.levels: list[LevelRun] = []
        """Those that were measured, in the order of their trials."""
        self.hi: int | None = None
        """The most tasks that the node can have, a multiple of its GPUs; None: not known yet."""
        self.is_done = False
        self.why = ""
        """Why the search ended, for people."""
        self.finished = 0
        """Tasks that were done while it searched."""
        self._expected: LevelRun | None = None
        self.level = remembered_level(known, gpus, now) or gpus
        """Tasks that are to run at once now."""
        if known is not None and now - known.when <= FRESH_S and known.gpus == gpus:
            self._expected = next((one for one in known.levels if one.level == self.level), None)
        self._measure = Measure(self.level)
        self._bisections = 0

    # ---- What is known ----

    @property
    def best(self) -> LevelRun | None:
        """Return the best of the measured levels: more tasks have to do more."""
        found: LevelRun | None = None
        for run in sorted(self.levels, key=lambda one: one.level):
            if found is None:
                found = run
                continue
            ratio, error = compare(run, found)
            if ratio > 1.0 + max(CHOICE_RATIO, CHOICE_ERRORS * error):
                found = run
        return found

    @property
    def has_rates(self) -> bool:
        """Return whether the level that is tried has shown any rate."""
        return bool(self._measure.rates)

    # ---- What happened ----

    def bound(self, hi: int) -> None:
        """Note the most tasks that the node can have, by memory, MPS clients, cores and host memory."""
        self.hi = max(self.gpus, hi - hi % self.gpus)
        if self.level > self.hi and not self.is_done:
            self._go(self.hi)

    def window(self, rates: Iterable[float], finished: int) -> None:
        """Note a closed window in which as many tasks ran as the level says.

        `rates`: that of the node in it, in units a second; or, where only finished tasks show a rate, one for each of
        them. `finished`: tasks that were done in it.
        """
        if self.is_done:
            return
        measure = self._measure
        measure.add(rates, finished)
        self.finished += finished
        if measure.is_blind:
            self.stop("no task shows progress, and none was done in the time that a level may take")
            return
        if not measure.has_enough:
            self._stop_if_costly()
            return
        if self.hi is None:
            return
        run = level_run(self.level, self.sharing, measure.rates)
        is_costly = self.finished > TASKS_RATIO * self.tasks
        if measure.is_unclear(run, self.best) and not is_costly:
            return
        self.levels.append(run)
        if is_costly:
            self._stop_if_costly()
        else:
            self._next(run)

    def stop(self, why: str) -> None:
        """End the search. What the level under trial has done so far is not used, for it was cut short."""
        if self.is_done:
            return
        self.is_done, self.why = True, why
        best = self.best
        if best is not None:
            self.level = best.level

    def _stop_if_costly(self) -> None:
        if self.finished > TASKS_RATIO * self.tasks:
            self.stop(f"{TASKS_RATIO:.0%} of the tasks are done, and trials are not to cost more than they bring")

    # ---- The next level ----

    def _next(self, run: LevelRun) -> None:
        if len(self.levels) == 1 and self._expected is not None:
            if abs(run.per_s - self._expected.per_s) <= SAME_RATIO * self._expected.per_s:
                self.stop("it does as much as it did in the run that was tuned")
                return
            self._expected = None
        hi = self.hi or self.gpus
        if len(self.levels) >= LEVELS_MAX:
            self.stop(f"{LEVELS_MAX} levels were tried")
        elif not self._bisections and run.level >= hi and self.best is run:
            self.stop("no more tasks have room")
        elif not self._bisections and run.level < hi and (len(self.levels) == 1 or self._gains(run)):
            self._go(min(2 * run.level, hi))
        else:
            self._bisect()

    def _gains(self, run: LevelRun) -> bool:
        """Return whether it is worth to go on: the gain over the best level below may be GAIN, within two errors."""
        below = [one for one in self.levels if one.level < run.level]
        best = max(below, key=lambda one: one.per_s)
        ratio, error = compare(run, best)
        return ratio + 2.0 * error >= GAIN and ratio > 1.0

    def _bisect(self) -> None:
        """Try a level below the best one, or between it and the next above it, at most twice; or end."""
        best = self.best
        assert best is not None
        middle = None
        if not self._bisections or (self._bisections == 1 and self.levels[-1] is best):
            if best.level == min(one.level for one in self.levels):
                middle = self._between(0, best.level)  # it began with a remembered level: fewer may do as much
            if middle is None:
                above = min((one.level for one in self.levels if one.level > best.level), default=best.level)
                middle = self._between(best.level, above)
        if middle is None:
            self.stop("more tasks at once do no more")
            return
        self._bisections += 1
        self._go(middle)

    def _between(self, low: int, high: int) -> int | None:
        middle = (low + high) // 2
        middle -= middle % self.gpus
        return middle if low < middle < high else None

    def _go(self, level: int) -> None:
        self.level = level
        self._measure = Measure(level)


class Comparison:
    """Ways of sharing the GPUs of one node, tried one after the other."""

    def __init__(
        self, trials: Sequence[tuple[SharingMethod, int]], tasks: int, measured: Sequence[LevelRun] = ()
    ) -> None:
        """Begin. `trials`: method and level of each, in order. `tasks`: that are to be done. `measured`: what is known
        from this run already, and is not tried again."""
        self.runs = list(measured)
        self.tasks = tasks
        self.finished = 0
        self.untried: list[SharingMethod] = []
        """Methods that there was no time for."""
        known = {(one.sharing, one.level) for one in measured}
        self._left = [trial for trial in trials if trial not in known]
        self._measure = Measure(self._left[0][1]) if self._left else None

    @property
    def now(self) -> tuple[SharingMethod, int] | None:
        """Return the method under trial and its level; None: all were tried."""
        return self._left[0] if self._left else None

    @property
    def best(self) -> LevelRun | None:
        """Return what did most; at equal rates the first."""
        return max(self.runs, key=lambda one: one.per_s, default=None)

    def window(self, rates: Iterable[float], finished: int) -> None:
        """Note a closed window, see `Tuner.window`."""
        measure = self._measure
        if measure is None:
            return
        measure.add(rates, finished)
        self.finished += finished
        if measure.has_enough:
            sharing, level = self._left[0]
            run = level_run(level, sharing, measure.rates)
            if not measure.is_unclear(run, self.best):
                self.runs.append(run)
                self._next()
        if self._left and (measure.is_blind or self.finished > TASKS_RATIO * self.tasks):
            self.stop()

    def stop(self) -> None:
        """End the comparison. A method under trial is not counted."""
        self.untried = [sharing for sharing, _ in self._left]
        self._left, self._measure = [], None

    def _next(self) -> None:
        del self._left[0]
        self._measure = Measure(self._left[0][1]) if self._left else None
