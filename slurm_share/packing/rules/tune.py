"""Find the number of equal tasks with the highest rate of a node, by trials on the run's own tasks.

A level is the number of tasks at once on the node, the same on each GPU. The search begins with one task on each GPU,
and goes on to four times the level, or twice where the rate rises less steeply; it goes up as soon as a rise is clear.
Where it ends, it tries levels in between. To lower the level, it leaves free places empty; it never ends a task.

A trial is made only if the tasks that are left can pay it back: what it may gain for each of them, against what it may
lose while its places do a task. Time is counted in windows, which the caller closes. A search that is cut off says with
which level the next run goes on.

Source of the rules: throughput against the number of tasks rises to a plateau in all published measurements (Pan 2021,
Table 4; LLSC's triples), and programs differ by about 10 % between two runs (Pan 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from msgspec import Struct

from ..speed_records import LevelRun, SearchEnd, SearchRun, SharingMethod

GAIN = 1.10
"""Least ratio of rates for a clear gain: a smaller gain is noise, and each task costs memory."""
WINDOWS_MIN = 3
"""Least number of closed windows, or finished tasks, of a level."""
WINDOWS_MAX = 30
"""After this many windows (15 min of 30 s) a level is judged even if its tasks are too long to finish twice."""
FINISHED_PER_PLACE = 2
ROUGH_RATES = 2
"""Least number of rates of a level of a run with few tasks."""
ROUGH_NOISE = 0.10
"""Assumed spread of a rate while there are fewer than twice WINDOWS_MIN: programs differ by so much (Pan 2021)."""
ONE_NOISE = 0.20
"""The same of a single rate: it may be that of one task, which was a short or a long one."""
COMMON_NOISE = 0.03
"""Assumed error that all rates of a trial have in common, until there are UNCLEAR_MAX of them."""
LINEAR_RATIO = 1.25
"""More tasks cannot do more than so many times their number: then an earlier run's tasks were other ones."""
UNCLEAR_MAX = 16
"""Most rates of a level whose gain is not clear."""
LEVELS_MAX = 6
"""Most trials of a run, with those of a level that is measured again."""
BISECTIONS = 2
"""Most levels between others that a run tries."""
TASKS_RATIO = 0.25
"""Part of the tasks that trials may take to be precise, an equal part each: beyond it, a rough rate counts."""
STEP, STEEP_STEP = 2, 4
"""Ratio of a level to the one below while the rate rises; the larger one at the beginning and in a steep rise."""
STEEP = 0.7
"""Exponent of the rate over the number of tasks from which on a rise is steep; of published curves below their bend."""
PRIOR = 0.7
"""The same of a rise that was not measured yet."""
DOUBT = 0.7
"""The part of the rise that is expected to go on above the best level."""
METHOD_LOSS = 0.5
"""Part of the rate that a sharing method is assumed to lose against the best one: half, as one task at a time against
MPS in published figures."""
LOSS = 0.2
"""Part of the rate that a level above all others is assumed to lose if it does not gain: between the published curves,
which lose nothing, and half of the peaked ones of tests/bench/tuning_runs.py."""
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
    """Return the standard error of a level's rate as a part of the rate.

    A few rates do not show how much they spread: unless they are steady, at least ROUGH_NOISE is assumed for each.
    """
    if run.per_s <= 0:
        return 0.0
    sigma = _MAD_SIGMA * run.spread_per_s / run.per_s
    is_steady = run.windows >= WINDOWS_MIN and run.spread_per_s <= STEADY_RATIO * run.per_s
    if run.windows < 2 * WINDOWS_MIN and not is_steady:
        sigma = max(sigma, ROUGH_NOISE if run.windows > 1 else ONE_NOISE)
    common = 0.0 if is_steady or run.windows >= UNCLEAR_MAX else COMMON_NOISE
    return math.hypot(sigma / math.sqrt(max(run.windows, 1)), common)


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


def newest_search(runs: Sequence[SearchRun], now: float) -> SearchRun | None:
    """Return the search with which the next run of a script goes on: the newest, or an earlier one that covers it.

    Nodes of one run, and runs at the same time, do not know each other's levels: the last to end may know least. runs:
    oldest first, on the same number of GPUs of one model. now: Unix time.
    """
    found: SearchRun | None = None
    for run in reversed(runs):
        if found is None or (now - run.when <= FRESH_S and _covers(run, found)):
            found = run
    return found


def _covers(run: SearchRun, other: SearchRun) -> bool:
    """Return whether a search has all levels of another one with the same rates, and more of them or an end."""
    mine = {(one.level, one.sharing): one for one in run.levels}
    theirs = {(one.level, one.sharing): one for one in other.levels}
    if run.rate_source != other.rate_source or not mine.keys() >= theirs.keys():
        return False
    is_more = len(mine) > len(theirs) or (not run.next and bool(other.next))
    return is_more and all(is_same(one, mine[key]) for key, one in theirs.items())


def remembered_level(known: SearchRun | None, gpus: int, tasks: int, now: float) -> int | None:
    """Return the first level of a run of a script that was tuned before; None: one task on each GPU.

    It is the level with which a search that was cut off goes on, or the best level; half of the best level if the
    result is older than FRESH_S. It is not raised above the number of tasks. now: Unix time.
    """
    if known is None or known.best < 1 or known.gpus < 1:
        return None
    if now - known.when > FRESH_S:
        per_gpu = known.best / known.gpus / 2.0
    elif known.next > known.best:
        per_gpu = max(known.best / known.gpus, min(known.next / known.gpus, tasks // gpus))
    else:
        per_gpu = (known.next or known.best) / known.gpus
    return gpus * max(1, round(per_gpu))


def is_same(run: LevelRun, other: LevelRun) -> bool:
    """Return whether two measurements of one level agree: by SAME_RATIO, or by two errors if they are rough."""
    ratio, error = compare(run, other)
    return abs(ratio - 1.0) <= max(SAME_RATIO, 2.0 * error)


def pooled(run: LevelRun, other: LevelRun) -> LevelRun:
    """Return two measurements of one level as one, each with the weight of its windows."""
    windows = run.windows + other.windows
    return LevelRun(
        level=run.level,
        sharing=run.sharing,
        per_s=(run.per_s * run.windows + other.per_s * other.windows) / windows,
        spread_per_s=(run.spread_per_s * run.windows + other.spread_per_s * other.windows) / windows,
        windows=windows,
    )


def _exponent(run: LevelRun, below: LevelRun) -> float:
    """Return by which power of the number of tasks the rate rises between two levels, from 0 to 1."""
    if below.per_s <= 0 or run.per_s <= 0:
        return PRIOR
    return min(max(math.log(run.per_s / below.per_s) / math.log(run.level / below.level), 0.0), 1.0)


def pays(left: float, gain: float, tasks: float, loss: float) -> bool:
    """Return whether the tasks that are left can pay back a trial: the one rule by which all trials end.

    left: tasks that would gain by its result. gain: part of a task's time that each may gain. tasks: those under trial.
    loss: part of a task's time that each of them may lose.
    """
    return left * gain >= tasks * loss


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
    def is_rough(self) -> bool:
        """Return whether each place has finished a task, or WINDOWS_MAX has passed: enough to go on upwards."""
        return len(self.rates) >= ROUGH_RATES and (self.finished >= self.level or self.windows >= WINDOWS_MAX)

    @property
    def is_usable(self) -> bool:
        """Return whether a trial that is cut off counts: half of the places have finished a task."""
        return len(self.rates) >= ROUGH_RATES and 2 * self.finished >= self.level

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
            is_own = error_ratio(run) > 0.5 * error_ratio(before)
            if error > STEADY_RATIO and ratio + 2.0 * error >= 1.0 and is_own:
                return True
        return error_ratio(run) > PRECISE_RATIO


class Tuner:
    """The search for the best level of one node."""

    def __init__(
        self, gpus: int, tasks: int, *, sharing: SharingMethod = "mps", known: SearchRun | None = None, now: float = 0.0
    ) -> None:
        """Begin the search, or go on with one that was cut off. `gpus`: of the node, at least one. `tasks`: to be done
        by the node. `known`: result of an earlier run on such GPUs. `now`: Unix time."""
        self.gpus = gpus
        self.tasks = tasks
        self.sharing = sharing
        self.levels: list[LevelRun] = []
        """The levels that this run has measured, in the order of their trials."""
        self.hi: int | None = None
        """Most tasks that the node can have, a multiple of its GPUs; None: not known yet."""
        self.end: SearchEnd | None = None
        """Why the search ended; None: it goes on."""
        self.next = 0
        """The level with which a later run goes on; 0: the search is finished."""
        self.finished = 0
        """Tasks that were done during the search."""
        self.level = remembered_level(known, gpus, tasks, now) or gpus
        """Tasks that should run at once now."""
        self.pool: dict[int, LevelRun] = {}
        """Level -> what is known of it: of this run, and of earlier ones if they agree with it."""
        self._known: SearchRun | None = None
        if known is not None and now - known.when <= FRESH_S and known.gpus == gpus:
            self._known = known
            self.pool = {one.level: one for one in known.levels if one.sharing == sharing}
        self._waiting: int | None = None
        best = self.best
        if best is not None and self.level > best.level and self.level not in self.pool:
            wanted, self.level, self._waiting = self.level, best.level, max(tasks - best.level, 0)
            self.level = wanted if self._pays(wanted) else best.level
        self._measure = Measure(self.level)
        self._trials = 0
        self._bisections = 0

    @property
    def is_done(self) -> bool:
        return self.end is not None

    @property
    def is_finished(self) -> bool:
        """Return whether the search ended and leaves no level for a later run."""
        return self.is_done and not self.next

    @property
    def best(self) -> LevelRun | None:
        """Return the best known level. A higher level has to have a clearly higher rate."""
        found: LevelRun | None = None
        for run in self.known_levels:
            if found is None:
                found = run
                continue
            ratio, error = compare(run, found)
            if ratio > 1.0 + max(CHOICE_RATIO, CHOICE_ERRORS * error):
                found = run
        return found

    @property
    def known_levels(self) -> list[LevelRun]:
        """Return what is known of the levels that have room, the lowest first."""
        return [self.pool[level] for level in sorted(self.pool) if self.hi is None or level <= self.hi]

    @property
    def has_rates(self) -> bool:
        return bool(self._measure.rates)

    @property
    def is_new(self) -> bool:
        """Return whether this run has found something for the user's history."""
        return bool(self.levels) and self.best is not None and self.end != "same"

    def forget(self) -> None:
        """Drop the rates of earlier runs, which are of another unit or of other tasks."""
        own = {one.level for one in self.levels}
        self.pool = {level: run for level, run in self.pool.items() if level in own}
        self._known = None

    def bound(self, hi: int) -> None:
        """Set the most tasks that the node can have, by memory, MPS clients, cores and host memory."""
        self.hi = max(self.gpus, hi - hi % self.gpus)
        if self.level > self.hi and not self.is_done:
            self._go(self.hi)

    def window(self, rates: Iterable[float], finished: int, waiting: int | None = None) -> None:
        """Add a closed window in which as many tasks ran as the level demands.

        `rates`: the node's rate in it, in units a second; if only finished tasks show a rate, one for each of them.
        `finished`: number of tasks that were done in it. `waiting`: number of tasks that have not started; None: all
        tasks of the node less those that are done and those of the present level.
        """
        if self.is_done:
            return
        measure = self._measure
        measure.add(rates, finished)
        self.finished += finished
        self._waiting = max(self.tasks - self.finished - self.level, 0) if waiting is None else waiting
        if measure.is_blind:
            self._stop("no rates", self.level)
            return
        if self.hi is None or not measure.rates:
            return
        run = level_run(self.level, self.sharing, measure.rates)
        if self._is_decided(run, measure):
            self._take(run)
            self._next(run)

    def _is_decided(self, run: LevelRun, measure: Measure) -> bool:
        """Return whether the next step is known: a rise goes on at once, and so does the way back from a loss."""
        others = [one for one in self.known_levels if one.level != self.level]
        best = max(others, key=lambda one: one.per_s, default=None)
        has_room = self.hi is not None and self.level < self.hi
        is_confirming = self._known is not None and not self._known.next
        if not is_confirming and has_room and best is None:
            return True
        if not is_confirming and best is not None:
            ratio, error = compare(run, best)
            if has_room and run.level > best.level and ratio - 2.0 * error > 1.0:
                return True
            if ratio + 2.0 * error < 1.0 and len(measure.rates) >= WINDOWS_MIN:
                return True
        if len(measure.rates) < ROUGH_RATES:
            return False
        if self._is_part_spent:
            return measure.is_rough
        return measure.has_enough and not measure.is_unclear(run, best)

    def stop(self, end: SearchEnd) -> None:
        """End the search from outside. The level under trial counts if half of its places have finished a task."""
        if self.is_done:
            return
        wanted: int | None = self.level
        if self._measure.is_usable and self.hi is not None:
            run = level_run(self.level, self.sharing, self._measure.rates)
            self._take(run)
            wanted, reason = self._decide(run)
            end = end if wanted else reason
        self._stop(end, wanted or 0)

    def _stop(self, end: SearchEnd, wanted: int = 0) -> None:
        self.end, self.next = end, wanted
        best = self.best
        if best is not None and end != "same":
            self.level = best.level

    @property
    def _is_part_spent(self) -> bool:
        """Return whether the tasks are done that this and the earlier trials may take for precision."""
        return self.finished * LEVELS_MAX > TASKS_RATIO * self.tasks * (self._trials + 1)

    def _pays(self, level: int) -> bool:
        """Return whether the tasks that are left can pay back a trial of a level.

        What it may gain for each of them follows from its rate, if it was measured, or from the rise below the best
        level. What it may lose is the time that its places need for a task, if it does less than the best level.
        """
        best = self.best
        if best is None or self._waiting is None or level == best.level:
            return True
        ordered = self.known_levels
        below = [one for one in ordered if one.level < best.level]
        above = [one for one in ordered if one.level > best.level]
        if level in self.pool:
            ratio, error = compare(self.pool[level], best)
            gain, loss = ratio + error - 1.0, 1.0 - ratio + error
        elif level > best.level:
            rise = _exponent(best, below[-1]) if below else PRIOR
            gain = DOUBT * ((level / best.level) ** rise - 1.0)
            loss = 1.0 - above[0].per_s / best.per_s if above else LOSS
        else:
            gain = GAIN - 1.0
            loss = 1.0 - (below[-1].per_s / best.per_s if below else level / best.level)
        left = self._waiting + (self.level if level > self.level else 0)
        return pays(left, gain, level, loss)

    # ---- The next level ----

    def _take(self, run: LevelRun) -> None:
        """Add a measured level to what is known, or replace what does not agree with it."""
        self._trials += 1
        self.levels = [one for one in self.levels if one.level != run.level]
        before = self.pool.get(run.level)
        if before is not None and not is_same(run, before):
            self.forget()
            before = None
        elif any(run.per_s > LINEAR_RATIO * one.per_s * run.level / one.level for one in self.pool.values()
                 if one.level < run.level):  # fmt: skip
            self.forget()
        self.pool[run.level] = run if before is None else pooled(run, before)
        self.levels.append(self.pool[run.level])

    def _next(self, run: LevelRun) -> None:
        wanted, reason = self._decide(run)
        if wanted is None:
            self._stop(reason)
        elif self._trials >= LEVELS_MAX:
            self._stop("levels", wanted)
        elif wanted > self.level and self._waiting is not None and self._waiting < self.gpus:
            self._stop("few tasks", wanted)
        elif not self._pays(wanted):
            self._stop("cost", wanted)
        else:
            is_between = wanted < self.known_levels[-1].level
            self._bisections += is_between and wanted not in self.pool
            if wanted > self.level and self._waiting is not None:
                wanted = min(wanted, self.level + self._waiting - self._waiting % self.gpus)  # all that are left
            self._go(wanted)

    def _decide(self, run: LevelRun) -> tuple[int | None, SearchEnd]:
        """Return the level to try after `run`; None, and why the search is finished."""
        hi = self.hi or self.gpus
        known, self._known = self._known, None
        if known is not None and not known.next and run.level == known.best and len(self.levels) == 1:
            if known.end != "no room" or run.level >= hi:
                return None, "same"
            return min(2 * run.level, hi), "no room"
        ordered = self.known_levels
        top, below = ordered[-1], ordered[:-1]
        best = self.best
        assert best is not None
        rival = max(below, key=lambda one: one.per_s, default=top)
        gain = self._gain(top, rival) if below else True
        if gain and top.level < hi:
            is_steep = not below or _exponent(top, rival) >= STEEP
            return min((STEEP_STEP if is_steep else STEP) * top.level, hi), "no gain"
        if gain is None and self._pays(rougher := self._rougher(top, rival)):
            return rougher, "no gain"
        if best is top and top.level >= hi:
            if not gain and (middle := self._middle(rival)) is not None and self._pays(middle):
                return middle, "no room"  # the rate may fall before the bound
            # The bound is also the number of tasks: a run of more tasks may have room for more.
            return (2 * top.level if hi + self.gpus > self.tasks else None), "no room"
        if best.level not in {one.level for one in self.levels}:
            return best.level, "no gain"  # to compare it with the higher level in one run
        middle = self._middle(best)
        if middle is not None:
            return middle, "no gain"
        above = next((one for one in ordered if one.level > best.level), None)
        if above is not None and self._gain(above, best) is None and self._pays(rougher := self._rougher(above, best)):
            return rougher, "no gain"
        if best.windows < WINDOWS_MIN and error_ratio(best) > PRECISE_RATIO:
            return best.level, "no gain"  # it may look best because it was measured for a moment only
        return None, "no gain"

    def _gain(self, run: LevelRun, before: LevelRun) -> bool | None:
        """Return whether a higher level may have GAIN times the rate of a lower one; None: not clear."""
        ratio, error = compare(run, before)
        is_possible = ratio > 1.0 and ratio + 2.0 * error >= GAIN
        if is_possible and ratio - error >= 1.0:
            return True
        if ratio + 2.0 * error < GAIN or min(run.windows, before.windows) >= UNCLEAR_MAX:
            return False
        return None

    def _rougher(self, run: LevelRun, before: LevelRun) -> int:
        """Return the one of two levels that is to be measured again."""
        return before.level if error_ratio(before) > error_ratio(run) else run.level

    def _middle(self, best: LevelRun) -> int | None:
        """Return a level below the best one, or between it and the next higher one, at most BISECTIONS in a run."""
        if self._bisections >= BISECTIONS:
            return None
        if best is self.known_levels[0]:
            middle = self._between(0, best.level)  # the search began with a remembered level
            if middle is not None:
                return middle
        above = min((one.level for one in self.known_levels if one.level > best.level), default=best.level)
        return self._between(best.level, above)

    def _between(self, low: int, high: int) -> int | None:
        """Return the level that is as many times the lower one as the higher one is of it; None: there is none."""
        middle = round(math.sqrt(low * high)) if low else high // 2
        middle -= middle % self.gpus
        if middle <= low:
            middle += self.gpus
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
        self._count = len(self._left)

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
        tried = self._count - len(self._left)
        is_part_spent = self.finished * self._count > TASKS_RATIO * self.tasks * (tried + 1)
        if measure.has_enough or (is_part_spent and measure.is_rough):
            sharing, level = self._left[0]
            run = level_run(level, sharing, measure.rates)
            if is_part_spent or not measure.is_unclear(run, self.best):
                self.runs.append(run)
                self._next()
        if self._left and (measure.is_blind or not self._pays(self._left[0][1])):
            self.stop()

    def _pays(self, level: int) -> bool:
        return pays(self.tasks - self.finished, GAIN - 1.0, level, METHOD_LOSS)

    def stop(self) -> None:
        """End the comparison. The method under trial is not used."""
        self.untried = [sharing for sharing, _ in self._left]
        self._left, self._measure = [], None

    def _next(self) -> None:
        del self._left[0]
        self._measure = Measure(self._left[0][1]) if self._left else None
