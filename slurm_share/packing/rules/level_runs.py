"""Compare measured levels: what a level's rates say, how far two levels differ, and whether another trial pays.

Source of the rules: throughput against the number of tasks rises to a plateau in all published measurements (Pan 2021,
Table 4; LLSC's triples), and programs differ by about 10 % between two runs (Pan 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ..speed_records import LevelRun, SearchRun, SharingMethod

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
UNCLEAR_MAX = 16
"""Most rates of a level whose gain is not clear."""
PRIOR = 0.7
"""Assumed exponent of the rate over the number of tasks, for a rise that was not measured yet."""
FRESH_S = 30 * 86400.0
"""An older result is not adopted: the search begins with half of its level."""
SAME_RATIO = 0.20
"""A remembered level is adopted only if its rate differs by at most this part from the remembered one."""
PRECISE_RATIO = 0.04
"""A level is measured until its standard error is at most this part of its rate, or it has UNCLEAR_MAX rates."""
STEADY_RATIO = 0.01
"""If the rates spread by at most this part, WINDOWS_MIN of them are enough; otherwise twice as many are needed."""
_MAD_SIGMA = 1.4826
"""Standard deviation over median absolute deviation, for normal errors."""


class Level(NamedTuple):
    """The settings of a trial: the number of tasks at once, their sharing method, a part of the multiprocessors."""

    tasks: int
    sharing: SharingMethod
    part: str = ""


def level_of(run: LevelRun) -> Level:
    return Level(run.level, run.sharing, run.part)


def level_run(level: Level, rates: Sequence[float]) -> LevelRun:
    """Return the result of a level from the rates of its closed windows, at least one, in units a second."""
    mean = fmean(rates)
    spread = median(abs(rate - mean) for rate in rates)
    return LevelRun(*level[:2], per_s=mean, spread_per_s=spread, windows=len(rates), part=level.part)


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
    mine = {level_of(one): one for one in run.levels}
    theirs = {level_of(one): one for one in other.levels}
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

    def mean(one: float, two: float) -> float:
        return (one * run.windows + two * other.windows) / windows

    return replace(
        run,
        per_s=mean(run.per_s, other.per_s),
        spread_per_s=mean(run.spread_per_s, other.spread_per_s),
        windows=windows,
        slowdown=mean(run.slowdown, other.slowdown),
    )


def exponent(run: LevelRun, below: LevelRun) -> float:
    """Return by which power of the number of tasks the rate rises between two levels, from 0 to 1."""
    if below.per_s <= 0 or run.per_s <= 0:
        return PRIOR
    return min(max(math.log(run.per_s / below.per_s) / math.log(run.level / below.level), 0.0), 1.0)


def pays(left: float, gain: float, tasks: float, loss: float) -> bool:
    """Return whether the tasks that are left can pay back a trial: the one rule by which all trials end.

    left: tasks that would gain by its result. gain: part of a task's time that each may gain. tasks: those under trial.
    loss: part of a task's time that each of them may lose.
    """
    return left * gain >= tasks * loss - 1e-9  # products of equal value may differ in the last digit


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
