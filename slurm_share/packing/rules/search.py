"""Find the best level by trials on the run's own tasks: how many run at once, how they share GPUs, with which part.

The search for the number of tasks begins with one on each GPU, and goes on to four times the level, or twice where the
rate rises less steeply; it goes up as soon as a rise is clear. Where it ends, it tries levels in between. Ways of
sharing and parts of the multiprocessors are listed levels, which are tried in turn.

A trial is made only if the tasks that are left can pay it back: what it may gain for each of them, against what it may
lose while its places do a task. Time is counted in windows, which the caller closes. A search that is cut off says with
which level the next run goes on. It never ends a task.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..speed_records import LevelRun, Load, SearchEnd, SearchKind, SearchRun
from .level_runs import (
    FRESH_S,
    GAIN,
    PRECISE_RATIO,
    PRIOR,
    ROUGH_RATES,
    UNCLEAR_MAX,
    WINDOWS_MIN,
    Level,
    Measure,
    compare,
    error_ratio,
    exponent,
    is_same,
    level_of,
    level_run,
    pays,
    pooled,
    remembered_level,
)  # fmt: skip

LINEAR_RATIO = 1.25
"""More tasks cannot do more than so many times their number: then an earlier run's tasks were other ones."""
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
DOUBT = 0.7
"""The part of the rise that is expected to go on above the best level."""
LOSS = 0.2
"""Part of the rate that a level above all others is assumed to lose if it does not gain: between the published curves,
which lose nothing, and half of the peaked ones of tests/bench/tuning_runs.py."""
FREE, EVEN = "free", "even"
"""Parts of the multiprocessors: no limit, and one divided by the number of tasks; the others are percentages."""
HEADROOM = 1.5
"""The guess of a part is this many times the measured load: the least part with at most 10 % loss is 1.3 to 1.7 times
the part of the cores that is used (Pan 2021, Figure 2)."""
LEAST_PERCENT = 10
STEP_PERCENT = 5
STP_SAME, ANTT_GAIN = 0.03, 0.90
"""A part with so many times the mean slowdown wins if the aggregate speeds differ by at most STP_SAME."""
BAD_RATIO, BAD_WINDOWS = 1.25, 3
"""A slowdown of this multiple of the predicted one over so many windows shows that a part is too small."""


class SearchTerms(Struct, frozen=True):
    """Figures by which a search judges levels: the difference between the kinds of search."""

    choice_ratio: float
    choice_errors: float
    """A level is chosen instead of one before it only if its rate is higher by this part and by so many errors."""
    trials: int = 1
    """Trials of each listed level."""
    gain: float = 0.0
    """Part of a task's time that the best of the listed levels may gain for each task that is left."""
    loss: float = 0.0
    """Part of a task's time that each task under trial may lose."""


TERMS: dict[SearchKind, SearchTerms] = {
    "tasks": SearchTerms(0.03, 0.5),  # each task takes memory; gain and loss follow from the levels around
    # Half is lost by one task at a time against MPS in published figures.
    "sharing": SearchTerms(0.0, 0.0, gain=GAIN - 1.0, loss=0.5),
    # With a gain of 0.05, chance chose parts up to 3.2 % worse than no limit (tests/bench/measured.py). The loss is
    # assumed for an even part beside a task that needs more.
    "part": SearchTerms(0.06, 0.0, trials=2, gain=0.06, loss=0.10),
}


def part_levels(load: Load | None, clients: int, pool: Iterable[Level] = ()) -> list[Level]:
    """Return the parts to be tried for a task: no limit, a percentage, and an even part.

    clients: tasks on its GPU with it. pool: the parts that were tried; their percentage stays when the load changes.
    """
    known = next((level for level in pool if level.part not in (FREE, EVEN)), None)
    percent = guess_percent(load)
    found = [Level(1, "mps", FREE)]
    if known is not None or percent < 100:
        found.append(known or Level(1, "mps", str(percent)))
    if clients > 1 and found[-1].part != str(100 // clients):
        found.append(Level(1, "mps", EVEN))
    return found


def percent_of(level: Level, clients: int) -> float | None:
    """Return the percentage of a part; None: no limit. clients: tasks on the GPU."""
    return None if level.part == FREE else round(100.0 / clients, 1) if level.part == EVEN else float(level.part)


def guess_percent(load: Load | None) -> int:
    """Return the first guess for a task; 100: its load was not measured."""
    if load is None:
        return 100
    wanted = math.ceil(100.0 * load.sm_ratio * HEADROOM / STEP_PERCENT - 1e-9) * STEP_PERCENT
    return min(100, max(LEAST_PERCENT, wanted))


class Search:
    """The search for the best level: of one node, or of a kind of task beside others on a GPU."""

    def __init__(
        self,
        kind: SearchKind,
        levels: Sequence[Level],
        tasks: int,
        *,
        gpus: int = 1,
        default: Level | None = None,
        measured: Iterable[LevelRun] = (),
        known: SearchRun | None = None,
        now: float = 0.0,
    ) -> None:
        """Begin the search, or go on with one that was cut off.

        levels: the listed ones; for a search of the kind `tasks`, the first only. tasks: to be done by the node. gpus:
        of the node, at least one. default: the level without a result; None: the first. measured: results of this run.
        known: result of an earlier run on such GPUs. now: Unix time.
        """
        self.kind, self.terms = kind, TERMS[kind]
        self.gpus = gpus
        self.tasks = tasks
        self.default = levels[0] if default is None else default
        self.listed: Sequence[Level] = () if kind == "tasks" else levels
        self.levels: list[LevelRun] = list(measured)
        """The levels that this run has measured, in the order of their trials."""
        self.hi = None if kind == "tasks" else self.default.tasks
        """Most tasks that the node can have, a multiple of its GPUs; None: not known yet."""
        self.end: SearchEnd | None = None
        """Why the search ended; None: it goes on."""
        self.next = 0
        """Tasks at once with which a later run goes on; 0: the search is finished."""
        self.finished = 0
        """Tasks that were done during the search."""
        self.level = self.default
        """The level that should run now."""
        self.pool: dict[Level, LevelRun] = {level_of(one): one for one in measured}
        """Measured rates of each level: of this run, and of earlier ones if they agree with it."""
        self._known: SearchRun | None = None
        self._waiting: int | None = None
        self._trials = 0
        self._bisections = 0
        self._under_trial: Counter[Level] = Counter()
        """Tasks that try a part now."""
        self._refused: set[Level] = set()
        """Parts that slow tasks too much."""
        if known is not None and now - known.when <= FRESH_S and known.gpus == gpus:
            found = {level_of(one): one for one in known.levels}
            found = {one: found[one] for one in found if one in self.listed or self._is_number(one)}
            self._known = known if found else None
            self.pool = found | self.pool
        self._measure = Measure(self.level.tasks)
        if kind == "tasks":
            self._begin_with(remembered_level(known, gpus, tasks, now) or self.default.tasks)
        elif kind == "sharing":
            self._begin_listed()

    def _begin_with(self, tasks: int) -> None:
        """Begin with a number of tasks, or with the best known one if the other does not pay."""
        best = self.best
        if best is not None and tasks > best.level and self._at(tasks) not in self.pool:
            self.level, self._waiting = self._at(best.level), max(self.tasks - best.level, 0)
            tasks = tasks if self._pays(tasks) else best.level
        self._go(self._at(tasks))

    def _begin_listed(self) -> None:
        """Begin with the best level of a finished search, or with the first level that was not tried."""
        self._waiting = self.tasks
        wanted, reason = self._decide_listed()
        if self._known is not None and reason == "all tried" and self.best is not None:
            wanted = level_of(self.best)
        if wanted is None:
            self._stop(reason)
        else:
            self._go(wanted)

    @property
    def is_done(self) -> bool:
        return self.end is not None

    @property
    def is_finished(self) -> bool:
        """Return whether the search ended and leaves no level for a later run."""
        return self.is_done and not self.next

    @property
    def best(self) -> LevelRun | None:
        """Return the best known level. One after others, with more tasks, has to have a clearly higher rate."""
        found: LevelRun | None = None
        for run in self.known_levels:
            if found is None or self._is_better(run, found):
                found = run
        return found

    def _is_better(self, run: LevelRun, before: LevelRun) -> bool:
        ratio, error = compare(run, before)
        if run.slowdown and abs(ratio - 1.0) <= STP_SAME and run.slowdown <= ANTT_GAIN * before.slowdown:
            return True
        return ratio > 1.0 + max(self.terms.choice_ratio, self.terms.choice_errors * error)

    @property
    def known_levels(self) -> list[LevelRun]:
        """Return what is known of the levels that have room, the lowest first."""
        if self.kind != "tasks":
            return [self.pool[one] for one in self.listed if one in self.pool and one not in self._refused]
        return [self.pool[one] for one in sorted(self.pool) if self.hi is None or one.tasks <= self.hi]

    @property
    def untried(self) -> list[Level]:
        """Return the listed levels without enough trials."""
        return [one for one in self.listed if self._missing(one)]

    def _missing(self, level: Level) -> int:
        """Return how many trials of a listed level are to be made."""
        made = self.pool[level].windows if level in self.pool else 0
        return 0 if level in self._refused else max(self.terms.trials - made, 0)

    @property
    def has_rates(self) -> bool:
        return bool(self._measure.rates)

    @property
    def is_new(self) -> bool:
        """Return whether this run has found something for the user's history."""
        return bool(self.levels) and self.best is not None and self.end != "same"

    def forget(self) -> None:
        """Drop the rates of earlier runs, which are of another unit or of other tasks."""
        own = {level_of(one) for one in self.levels}
        self.pool = {level: run for level, run in self.pool.items() if level in own}
        self._known = None

    def bound(self, hi: int) -> None:
        """Set the most tasks that the node can have, by memory, MPS clients, cores and host memory."""
        self.hi = max(hi - hi % self.gpus, self.gpus)
        if self.level.tasks > self.hi and not self.is_done:
            self._go(self._at(self.hi))

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
        self._waiting = max(self.tasks - self.finished - self.level.tasks, 0) if waiting is None else waiting
        if measure.is_blind:
            self._stop("no rates", self.level)
            return
        if self.hi is None or not measure.rates:
            return
        run = level_run(self.level, measure.rates)
        if self._is_decided(run, measure):
            self._take(run)
            self._next(run)

    def _is_decided(self, run: LevelRun, measure: Measure) -> bool:
        """Return whether the next step is known: a rise goes on at once, and so does the way back from a loss."""
        others = [one for one in self.known_levels if level_of(one) != self.level]
        best = max(others, key=lambda one: one.per_s, default=None)
        has_room = self.kind == "tasks" and self.hi is not None and self.level.tasks < self.hi
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
        wanted: Level | None = self.level
        if self._measure.is_usable and self.hi is not None:
            run = level_run(self.level, self._measure.rates)
            self._take(run)
            wanted, reason = self._decide(run)
            end = end if wanted else reason
        self._stop(end, wanted)

    def _stop(self, end: SearchEnd, wanted: Level | None = None) -> None:
        self.end, self.next = end, 0 if wanted is None else wanted.tasks
        best = self.best
        if best is not None and end != "same":
            self.level = level_of(best)
        if self.listed and len(self.known_levels) < 2:
            self.level = self.default

    @property
    def _is_part_spent(self) -> bool:
        """Return whether the tasks are done that this and the earlier trials may take for precision."""
        most = len(self.listed) or LEVELS_MAX
        return self.finished * most > TASKS_RATIO * self.tasks * (self._trials + 1)

    def _pays(self, tasks: int) -> bool:
        """Return whether the tasks that are left can pay back a trial of a number of tasks at once.

        What it may gain for each of them follows from its rate, if it was measured, or from the rise below the best
        level. What it may lose is the time that its places need for a task, if it does less than the best level.
        """
        best = self.best
        if best is None or self._waiting is None or tasks == best.level:
            return True
        ordered = self.known_levels
        below = [one for one in ordered if one.level < best.level]
        above = [one for one in ordered if one.level > best.level]
        measured = self.pool.get(self._at(tasks))
        if measured is not None:
            ratio, error = compare(measured, best)
            gain, loss = ratio + error - 1.0, 1.0 - ratio + error
        elif tasks > best.level:
            rise = exponent(best, below[-1]) if below else PRIOR
            gain = DOUBT * ((tasks / best.level) ** rise - 1.0)
            loss = 1.0 - above[0].per_s / best.per_s if above else LOSS
        else:
            gain = GAIN - 1.0
            loss = 1.0 - (below[-1].per_s / best.per_s if below else tasks / best.level)
        left = self._waiting + (self.level.tasks if tasks > self.level.tasks else 0)
        return pays(left, gain, tasks, loss)

    # ---- The next level ----

    def _at(self, tasks: int) -> Level:
        return self.default._replace(tasks=tasks)

    def _is_number(self, level: Level) -> bool:
        """Return whether a level differs by the number of tasks only."""
        return self.kind == "tasks" and level == self._at(level.tasks)

    def _take(self, run: LevelRun) -> None:
        """Add a measured level to what is known, or replace what does not agree with it."""
        self._trials += 1
        level = level_of(run)
        self.levels = [one for one in self.levels if level_of(one) != level]
        before = self.pool.get(level)
        if before is not None and not is_same(run, before):
            self.forget()
            before = None
        elif self.kind == "tasks" and any(
            run.per_s > LINEAR_RATIO * one.per_s * run.level / one.level
            for one in self.pool.values()
            if one.level < run.level
        ):
            self.forget()
        self.pool[level] = run if before is None else pooled(run, before)
        self.levels.append(self.pool[level])

    def _next(self, run: LevelRun) -> None:
        wanted, reason = self._decide(run)
        if wanted is None:
            # A listed level that was not tried for lack of tasks is left for a later run.
            self._stop(reason, None if reason != "cost" else self.default)
        elif self.listed:
            self._go(wanted)
        elif self._trials >= LEVELS_MAX:
            self._stop("levels", wanted)
        elif wanted > self.level and self._waiting is not None and self._waiting < self.gpus:
            self._stop("few tasks", wanted)
        elif not self._pays(wanted.tasks):
            self._stop("cost", wanted)
        else:
            is_between = wanted.tasks < self.known_levels[-1].level
            self._bisections += is_between and wanted not in self.pool
            if wanted > self.level and self._waiting is not None:  # all that are left
                most = self.level.tasks + self._waiting - self._waiting % self.gpus
                wanted = min(wanted, self._at(most))
            self._go(wanted)

    def _decide(self, run: LevelRun) -> tuple[Level | None, SearchEnd]:
        """Return the level to try after `run`; None, and why the search is finished."""
        known, self._known = self._known, None
        is_confirmed = known is not None and not known.next and len(self.levels) == 1
        if self.listed:
            wanted, reason = self._decide_listed()
            return wanted, "same" if is_confirmed and wanted is None else reason
        if is_confirmed and known is not None and run.level == known.best:
            if known.end != "no room" or run.level >= (self.hi or self.gpus):
                return None, "same"
            return self._at(min(2 * run.level, self.hi or self.gpus)), "no room"
        tasks, reason = self._decide_number()
        return None if tasks is None else self._at(tasks), reason

    def _decide_listed(self) -> tuple[Level | None, SearchEnd]:
        """Return the listed level with the fewest trials; None: each has enough, or the others do not pay."""
        left = {one: self._missing(one) - self._under_trial[one] for one in self.listed if one not in self._refused}
        tasks = sum(one.tasks * max(missing, 0) for one, missing in left.items())
        if not tasks or len(left) < 2:
            return None, "all tried"
        is_paid = pays(self._waiting or 0, self.terms.gain, tasks, self.terms.loss)
        return max(left, key=lambda one: left[one]) if is_paid else None, "cost"

    def _decide_number(self) -> tuple[int | None, SearchEnd]:
        hi = self.hi or self.gpus
        ordered = self.known_levels
        top, below = ordered[-1], ordered[:-1]
        best = self.best
        assert best is not None
        rival = max(below, key=lambda one: one.per_s, default=top)
        gain = self._gain(top, rival) if below else True
        if gain and top.level < hi:
            is_steep = not below or exponent(top, rival) >= STEEP
            return min((STEEP_STEP if is_steep else STEP) * top.level, hi), "no gain"
        if gain is None and self._pays(rougher := self._rougher(top, rival)):
            return rougher, "no gain"
        if best is top and top.level >= hi:
            if not gain and (middle := self._middle(rival)) is not None and self._pays(middle):
                return middle, "no room"  # the rate may fall before the bound
            # The bound is also the number of tasks: a run of more tasks may have room for more.
            return (2 * top.level if hi + self.gpus > self.tasks else None), "no room"
        if level_of(best) not in map(level_of, self.levels):
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

    def _go(self, level: Level) -> None:
        self.level = level
        self._measure = Measure(level.tasks)

    # ---- Parts: one task is one trial ----

    def begin_task(self, levels: Sequence[Level], left: int, *, may_try: bool = True) -> tuple[Level, bool]:
        """Return the level of a task that starts now, and whether it is a trial.

        levels: those to be tried. left: tasks that are left, with this one. may_try: False if a neighbour is under
        trial, because the two results would mix.
        """
        self.listed, self._waiting = levels, left
        if not self.untried and (best := self.best) is not None:
            return level_of(best), False
        wanted, _ = self._decide_listed()
        if wanted is None or not may_try:
            return self.default, False
        self._under_trial[wanted] += 1
        return wanted, True

    def end_task(self, level: Level, run: LevelRun | None = None) -> None:
        """Add what a task under trial has measured; None: nothing."""
        self._under_trial[level] -= 1
        if run is not None:
            self.add(run)

    def add(self, run: LevelRun) -> None:
        """Add the trial of a part, of this run or of an earlier one."""
        before, run = self.pool.get(level_of(run)), replace(run, windows=1)
        self.pool[level_of(run)] = run if before is None else pooled(run, before)

    def refuse(self, level: Level, ratio: float, windows: int) -> bool:
        """Record the slowdown of a running task over the predicted one. Return whether its part is newly refused."""
        if level.part in ("", FREE) or ratio <= BAD_RATIO or windows < BAD_WINDOWS or level in self._refused:
            return False
        self._refused.add(level)
        return True
