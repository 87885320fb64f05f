"""Find the number of equal tasks with the highest rate of a node, by trials on the run's own tasks.

A level is the number of tasks at once on the node, the same on each GPU. The search begins with one task on each GPU,
doubles the level while the rate rises, then tries levels in between. To lower the level, it leaves free places empty;
it never ends a task. Its cost is limited to five levels and a quarter of the tasks. Time is counted in windows, which
the caller closes.

Source of the rules: throughput against the number of tasks rises to a plateau in all published measurements (Pan 2021,
Table 4; LLSC's triples), and programs differ by about 10 % between two runs (Pan 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from msgspec import Struct

from ..speed_records import LevelRun, SharingMethod, TunedRun

GAIN = 1.10
"""Least ratio of rates for a clear gain: a smaller gain is noise, and each task costs memory."""
WINDOWS_MIN = 3
"""Least number of closed windows, or finished tasks, of a level."""
WINDOWS_MAX = 30
"""After this many windows (15 min of 30 s) a level is judged even if its tasks are too long to finish twice."""
FINISHED_PER_PLACE = 2
UNCLEAR_MAX = 16
"""Most rates of a level whose gain is not clear."""
LEVELS_MAX = 5
TASKS_RATIO = 0.25
"""Trials end when this part of the tasks is done."""
FRESH_S = 30 * 86400.0
"""An older result is not adopted: the search begins with half of its level."""
SAME_RATIO = 0.20
"""A remembered level is adopted only if its rate differs by at most this part from the remembered one."""
PRECISE_RATIO = 0.04
"""A level is measured until its standard error is at most this part of its rate, or it has UNCLEAR_MAX rates."""
STEADY_RATIO = 0.01
"""If the rates spread by at most this part, WINDOWS_MIN of them are enough; otherwise twice as many are needed."""
CHOICE_RATIO = 0.03
CHOICE_ERRORS = 0.5
"""A higher level is chosen only if its rate is higher by this part and by this many errors: each task takes memory."""
_MAD_SIGMA = 1.4826
"""Standard deviation over median absolute deviation, for normal errors."""


def level_run(level: int, sharing: SharingMethod, rates: Sequence[float]) -> LevelRun:
    """Return the result of a level from the rates of its closed windows, at least one, in units a second."""
    mean = fmean(rates)
    spread = median(abs(rate - mean) for rate in rates)
    return LevelRun(level=level, sharing=sharing, per_s=mean, spread_per_s=spread, windows=len(rates))


def error_ratio(run: LevelRun) -> float:
    """Return the standard error of a level's rate as a part of the rate."""
    if run.per_s <= 0:
        return 0.0
    return _MAD_SIGMA * run.spread_per_s / math.sqrt(max(run.windows, 1)) / run.per_s


def compare(run: LevelRun, before: LevelRun) -> tuple[float, float]:
    """Return the ratio of the rates of two levels, and its standard error."""
    if before.per_s <= 0:
        return (math.inf if run.per_s > 0 else 1.0), 0.0
    ratio = run.per_s / before.per_s
    return ratio, ratio * math.hypot(error_ratio(run), error_ratio(before))


def is_clear_gain(run: LevelRun, before: LevelRun) -> bool:
    """Return whether a level has at least GAIN times the rate of another one, by more than two errors."""
    ratio, error = compare(run, before)
    return ratio >= GAIN and ratio - 1.0 > 2.0 * error


def remembered_level(known: TunedRun | None, gpus: int, now: float) -> int | None:
    """Return the first level of a run that was tuned before; None: one task on each GPU.

    It is the best level, or half of it if the result is older than FRESH_S. now: Unix time.
    """
    if known is None or known.best < 1 or known.gpus < 1:
        return None
    per_gpu = known.best / known.gpus
    if now - known.when > FRESH_S:
        per_gpu /= 2.0
    return gpus * max(1, round(per_gpu))


class Measure(Struct):
    """The windows of one level."""

    level: int
    rates: list[float] = []
    windows: int = 0
    finished: int = 0

    def add(self, rates: Iterable[float], finished: int) -> None:
        self.rates += rates
        self.windows += 1
        self.finished += finished

    @property
    def has_enough(self) -> bool:
        """Return whether the level is measured: each place has finished two tasks, or WINDOWS_MAX has passed."""
        if len(self.rates) < WINDOWS_MIN:
            return False
        is_twice = self.windows >= WINDOWS_MIN and self.finished >= FINISHED_PER_PLACE * self.level
        return is_twice or self.windows >= WINDOWS_MAX

    @property
    def is_blind(self) -> bool:
        """Return whether there is no rate after the longest time that a level may take."""
        return not self.rates and self.windows >= WINDOWS_MAX

    def is_unclear(self, run: LevelRun, before: LevelRun | None) -> bool:
        """Return whether more windows could change the next step. `before`: the best level so far."""
        if len(self.rates) >= UNCLEAR_MAX or self.windows >= WINDOWS_MAX:
            return False
        if before is not None and not is_clear_gain(run, before):
            ratio, error = compare(run, before)
            if error > STEADY_RATIO and ratio + 2.0 * error >= 1.0:
                return True
        is_few = len(self.rates) < 2 * WINDOWS_MIN and run.spread_per_s > STEADY_RATIO * run.per_s
        return is_few or error_ratio(run) > PRECISE_RATIO


class Tuner:
    """The search for the best level of one node."""

    def __init__(
        self, gpus: int, tasks: int, *, sharing: SharingMethod = "mps", known: TunedRun | None = None, now: float = 0.0
    ) -> None:
        """Begin the search. `gpus`: of the node, at least one. `tasks`: to be done by the node. `known`: result of an
        earlier run on such GPUs. `now`: Unix time."""
        self.gpus = gpus
        self.tasks = tasks
        self.sharing = sharing
        self.levels: list[LevelRun] = []
        """The measured levels, in the order of their trials."""
        self.hi: int | None = None
        """Most tasks that the node can have, a multiple of its GPUs; None: not known yet."""
        self.is_done = False
        self.why = ""
        """Why the search ended, as a sentence."""
        self.finished = 0
        """Tasks that were done during the search."""
        self._expected: LevelRun | None = None
        self.level = remembered_level(known, gpus, now) or gpus
        """Tasks that should run at once now."""
        if known is not None and now - known.when <= FRESH_S and known.gpus == gpus:
            self._expected = next((one for one in known.levels if one.level == self.level), None)
        self._measure = Measure(self.level)
        self._bisections = 0

    @property
    def best(self) -> LevelRun | None:
        """Return the best measured level. A higher level has to have a clearly higher rate."""
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
        return bool(self._measure.rates)

    def bound(self, hi: int) -> None:
        """Set the most tasks that the node can have, by memory, MPS clients, cores and host memory."""
        self.hi = max(self.gpus, hi - hi % self.gpus)
        if self.level > self.hi and not self.is_done:
            self._go(self.hi)

    def window(self, rates: Iterable[float], finished: int) -> None:
        """Add a closed window in which as many tasks ran as the level demands.

        `rates`: the node's rate in it, in units a second; if only finished tasks show a rate, one for each of them.
        `finished`: number of tasks that were done in it.
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
        """End the search. The level under trial is not used, since its trial is incomplete."""
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
        """Return whether to continue upwards: within two errors, the gain over the best lower level may be GAIN."""
        below = [one for one in self.levels if one.level < run.level]
        best = max(below, key=lambda one: one.per_s)
        ratio, error = compare(run, best)
        return ratio + 2.0 * error >= GAIN and ratio > 1.0

    def _bisect(self) -> None:
        """Try a level below the best one, or between it and the next higher one, at most twice; else stop."""
        best = self.best
        assert best is not None
        middle = None
        if not self._bisections or (self._bisections == 1 and self.levels[-1] is best):
            if best.level == min(one.level for one in self.levels):
                middle = self._between(0, best.level)  # the search began with a remembered level
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
    """Trials of the sharing methods of one node, one after the other."""

    def __init__(
        self, trials: Sequence[tuple[SharingMethod, int]], tasks: int, measured: Sequence[LevelRun] = ()
    ) -> None:
        """Begin the trials. `trials`: method and level of each, in order. `tasks`: to be done by the node. `measured`:
        earlier results of this run, which are not tried again."""
        self.runs = list(measured)
        self.tasks = tasks
        self.finished = 0
        self.untried: list[SharingMethod] = []
        """Methods that were not tried because the trials ended."""
        known = {(one.sharing, one.level) for one in measured}
        self._left = [trial for trial in trials if trial not in known]
        self._measure = Measure(self._left[0][1]) if self._left else None

    @property
    def now(self) -> tuple[SharingMethod, int] | None:
        """Return the method under trial and its level; None: all are tried."""
        return self._left[0] if self._left else None

    @property
    def best(self) -> LevelRun | None:
        """Return the result with the highest rate; of equal rates, the first."""
        return max(self.runs, key=lambda one: one.per_s, default=None)

    def window(self, rates: Iterable[float], finished: int) -> None:
        """Add a closed window, see `Tuner.window`."""
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
        """End the comparison. The method under trial is not used."""
        self.untried = [sharing for sharing, _ in self._left]
        self._left, self._measure = [], None

    def _next(self) -> None:
        del self._left[0]
        self._measure = Measure(self._left[0][1]) if self._left else None
