"""Judge numbers of tasks by their rates of work: of the same command with fewer and with more tasks on a node.

Rates come from successive surveys with different numbers of tasks, and from the trials of a run of llsub. If there are
any to compare, they decide before load does: a busy GPU may run tasks that only slow each other down, or may do more
work with more tasks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from ....core.text import counted, rate_text
from ...snapshot import Advice, JobProgress, LevelRate
from .. import thresholds
from .evidence import Evidence

RESOURCE: Literal["rate"] = "rate"
NOT_KNOWN = "the rate of its tasks is not known: set LLSUB_PROGRESS or use llsub --progress"


class MeasuredRates(Struct, frozen=True, kw_only=True):
    """The measured rates of one command with different numbers of tasks on a node."""

    source: str = ""
    """The source of the count; empty: nothing is known."""
    family: str = ""
    levels: tuple[LevelRate, ...] = ()
    """The rates in order of the number of tasks."""

    def at(self, level: int) -> LevelRate | None:
        """Return the rate of that many tasks; None: not measured."""
        return next((one for one in self.levels if one.level == level), None)


class Judgement(Struct, frozen=True, kw_only=True):
    """The verdict of the rates on the number of tasks."""

    verdict: Literal["more", "stay", "fewer"]
    level: int | None
    """The number of tasks on a node with the best rate; None: no larger number than now was tried."""
    why: str
    windows: int
    """Windows of the compared level that has fewer of them."""


def measured(nodes: Sequence[Evidence], now: int, previous: Advice | None) -> MeasuredRates:
    """Return the rates of this survey together with those of the surveys before. `now`: tasks on a node."""
    fresh, tried = _of_now(nodes, now), _tried(nodes, now)
    before = MeasuredRates()
    if previous is not None and previous.gpus == min((node.gpus for node in nodes), default=0):
        before = MeasuredRates(source=previous.rate_source, family=previous.rate_family, levels=previous.rates)
    known = next((one for one in (fresh, tried, before) if one.levels), MeasuredRates())
    levels: dict[int, LevelRate] = {}
    for one in (before, tried, fresh):
        # Trials are always of the run's own command.
        if one.source == known.source and (one.family == known.family or one is tried):
            levels |= {level.level: level for level in one.levels}
    family = known.family or (before.family if known is tried and before.source == known.source else "")
    return MeasuredRates(source=known.source, family=family, levels=tuple(levels[level] for level in sorted(levels)))


def judged(known: MeasuredRates, now: int) -> Judgement | None:
    """Return the verdict of the rates; None if there is nothing to compare the present tasks with."""
    here = known.at(now)
    others = [one for one in known.levels if one.level != now]
    if here is None or not others:
        return None
    best = functools.reduce(lambda best, one: one if is_gain(best, one) else best, known.levels)
    lower, higher = [one for one in others if one.level < now], [one for one in others if one.level > now]
    if best.level < now:
        if _is_unclear(best, here):
            return _judgement("stay", now, here, best, _unclear(here, best, known.source))
        return _judgement("fewer", best.level, here, best, _no_more(here, best, known.source))
    if best.level > now and is_gain(here, best):
        return _judgement("more", best.level, best, here, _times(best, here, known.source))
    if not higher:
        return _judgement("more", None, here, lower[-1], _times(here, lower[-1], known.source))
    above = higher[0]
    said = _unclear(above, here, known.source) if _is_unclear(here, above) else _no_more(above, here, known.source)
    return _judgement("stay", now, above, here, said)


def does_not_fall(nodes: Sequence[Evidence], now: int, previous: Advice | None) -> bool:
    """Return whether the tasks of all nodes have a measured rate that is not lower than at the survey before, by more
    than noise: such tasks do not wait."""
    for node in nodes:
        one = node.progress
        if one is None or not one.rate_per_s or one.windows < thresholds.RATE_WINDOWS:
            return False
    fresh = _of_now(nodes, now)
    if previous is None or (previous.rate_source, previous.rate_family) != (fresh.source, fresh.family):
        return True
    here, before = fresh.at(now), MeasuredRates(levels=previous.rates).at(now)
    return here is None or before is None or not is_gain(here, before)


def is_gain(fewer: LevelRate, more: LevelRate) -> bool:
    """Return whether the rate of more tasks is higher by at least a tenth, and by more than noise."""
    noise = thresholds.RATE_SPREADS * max(fewer.spread_per_s, more.spread_per_s)
    return _is_tenth(fewer, more) and more.per_s - fewer.per_s > noise


def _is_unclear(fewer: LevelRate, more: LevelRate) -> bool:
    """Return whether the difference would be a gain if it were more than noise."""
    return _is_tenth(fewer, more) and not is_gain(fewer, more)


def _is_tenth(fewer: LevelRate, more: LevelRate) -> bool:
    # The tolerance makes 11 a tenth more than 10 in binary fractions.
    return more.per_s >= thresholds.RATE_GAIN * fewer.per_s * (1 - 1e-9) and more.per_s > 0


def _judgement(
    verdict: Literal["more", "stay", "fewer"], level: int | None, one: LevelRate, other: LevelRate, why: str
) -> Judgement:
    return Judgement(verdict=verdict, level=level, why=why, windows=min(one.windows, other.windows))


def _times(more: LevelRate, fewer: LevelRate, source: str) -> str:
    times = f"{more.per_s / fewer.per_s:.2g} x of {fewer.level}" if fewer.per_s else f"something, {fewer.level} nothing"
    return f"{_do(more)} {times} {_figures(more, fewer, source)}"


def _no_more(more: LevelRate, fewer: LevelRate, source: str) -> str:
    less = "less" if is_gain(more, fewer) else "no more"
    return f"{_do(more)} {less} than {fewer.level} {_figures(more, fewer, source)}"


def _unclear(more: LevelRate, fewer: LevelRate, source: str) -> str:
    spread = rate_text(max(more.spread_per_s, fewer.spread_per_s))
    return f"{_times(more, fewer, source)}, which may be noise (the windows differ by {spread})"


def _do(one: LevelRate) -> str:
    return f"{one.level} task{' does' if one.level == 1 else 's do'}"


def _figures(one: LevelRate, other: LevelRate, source: str) -> str:
    return f"({rate_text(one.per_s)} against {rate_text(other.per_s)}, {source})"


def _of_now(nodes: Sequence[Evidence], now: int) -> MeasuredRates:
    """Return the rate of the present tasks, the mean over the nodes. It is not known if one of them has no rate, is
    paused, does not run at the moment, or has run for too few windows."""
    found = [one for node in nodes if (one := node.progress) is not None and _is_whole(node, one, now)]
    kinds = {(one.source, one.family) for one in found}
    if not found or len(found) < len(nodes) or len(kinds) > 1:
        return MeasuredRates()
    ((source, family),) = kinds
    rates = [
        LevelRate(level=now, per_s=one.rate_per_s or 0.0, spread_per_s=one.spread_per_s or 0.0, windows=one.windows)
        for one in found
    ]
    return MeasuredRates(source=source, family=family, levels=(_mean(rates),))


def _mean(rates: Sequence[LevelRate]) -> LevelRate:
    """Return the mean of several nodes' rates with the same number of tasks."""
    return LevelRate(
        level=rates[0].level,
        per_s=sum(one.per_s for one in rates) / len(rates),
        spread_per_s=math.hypot(*(one.spread_per_s for one in rates)) / len(rates),
        windows=min(one.windows for one in rates),
    )


def _is_whole(node: Evidence, one: JobProgress, now: int) -> bool:
    is_told = one.rate_per_s is not None and one.spread_per_s is not None and bool(one.source)
    is_all = {one.tasks, one.rated, node.running, node.now} == {now}
    return is_told and is_all and not one.paused and one.windows >= thresholds.RATE_WINDOWS


def _tried(nodes: Sequence[Evidence], now: int) -> MeasuredRates:
    """Return the rates from the runs' own trials; for several nodes, the mean of each level that all have tried."""
    found = [one for node in nodes if (one := node.progress) is not None and one.levels]
    sources = {one.levels_source for one in found}
    if not found or len(found) < len(nodes) or len(sources) > 1:
        return MeasuredRates()
    by_node = [_of_one_way(one.levels, now) for one in found]
    both = set.intersection(*(set(one) for one in by_node))
    levels = tuple(_mean([one[level] for one in by_node]) for level in sorted(both))
    return MeasuredRates(source=sources.pop(), levels=levels)


def _of_one_way(levels: Iterable[LevelRate], now: int) -> Mapping[int, LevelRate]:
    """Return the levels of one way of sharing: the one that tried the present number of tasks, else the one with the
    most levels."""
    by_way: dict[str, dict[int, LevelRate]] = {}
    for one in levels:
        by_way.setdefault(one.sharing, {})[one.level] = one
    return max(by_way.values(), key=lambda one: (now in one, len(one)), default={})


def ways_of_sharing(nodes: Sequence[Evidence]) -> str:
    """Return the best rate of each way of sharing in a run's trials, on the node that tried the most; empty if fewer
    than two were tried. `exclusive` is one task at a time on each GPU."""
    found: dict[str, LevelRate] = {}
    for node in nodes:
        best: dict[str, LevelRate] = {}
        for one in node.progress.levels if node.progress is not None else ():
            known = best.get(one.sharing)
            if one.sharing and (known is None or one.per_s > known.per_s):
                best[one.sharing] = one
        found = best if len(best) > len(found) else found
    if len(found) < 2:
        return ""
    alone = found.get("exclusive")
    said = []
    for sharing, one in sorted(found.items(), key=lambda item: -item[1].per_s):
        if alone is None or one is alone or alone.per_s <= 0:
            said.append(f"{sharing} {rate_text(one.per_s)} with {counted(one.level, 'task')}")
        else:
            said.append(f"{sharing} {one.per_s / alone.per_s:.2g} x of exclusive with {counted(one.level, 'task')}")
    return f"ways of sharing that its run tried on a node: {', '.join(said)}"
