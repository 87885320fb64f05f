"""Learn the speeds of tasks, alone and beside each other: beliefs about loads, rates alone, and measured pairs.

The state uses no clock or file, like `estimate.estimator.Estimator` for memory.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from ..history_records import TaskRun
from ..records import TaskAsk, TaskKey
from ..speed_records import Belief, PairRun, PairView, Rate, RateSource, SharingMethod
from . import interference
from .loads import UTIL_FACTOR, Load, Loads, load_of
from .pair_model import PairModel

BAN_S = 30 * 86400.0
"""A ban ends after 30 days, because programs, drivers and machines change."""
FAMILY_BANS = 2
"""Two families are banned when this many pairs of their commands are banned, and at least half of the measured pairs.
One size of a program may harm a neighbour that other sizes do not: in simulations with three sizes of each program,
banning whole families at the first pair also kept half of the useful pairs apart."""
RATES_MOST = 4096
EARLIER_ERROR_RATIO = 0.05
"""Assumed standard error of a rate from an earlier run, of which only the mean is kept: half of the difference of about
10 % between two runs of a program (Pan 2021)."""
FINISHED_WEIGHT = 0.25
"""Weight, in windows, of a finished task without a measured rate."""
ANSWERS_MOST = 20_000
"""Number of cached corrections until the next fit."""
PAIRS_MOST = 64
"""Most corrections of pairs in one view, the largest first; bans are always included."""
TRIFLE = 0.02
"""Smaller corrections are left out of views."""
GROUPS_MOST = 300
HELD_OUT = 100
REFIT_EVERY = 30
EXPONENTS = (1.5, 2.0, 2.5, 3.0, 4.0)
UTIL_FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
BETTER_RATIO = 0.95
"""New constants are used only if their error on held-out groups is at least 5 % smaller."""
_SOURCES: frozenset[str] = frozenset({"progress", "log", "output", "finished"})


class Member(Struct, frozen=True, kw_only=True):
    """One task of a measured group."""

    ask: TaskAsk
    slowdown: float
    """Time for a unit of work over the time alone."""
    windows: int


class Speeds:
    """Speeds of tasks, from the user's history and this run."""

    def __init__(self, runs: Iterable[TaskRun] = (), pairs: Iterable[PairRun] = (), *, now: float = 0.0) -> None:
        """Learn from the user's history (`runs`, `pairs`, oldest first). `now`: Unix time."""
        self.version = 0
        """Changes whenever an answer may change."""
        self.pairs_version = 0
        """Changes whenever an answer about pairs may change."""
        self._loads = Loads()
        self._corrections = PairModel()
        self._constants = Constants()
        self._rates: dict[tuple[str, str], Rate] = {}
        self._alone_s: dict[tuple[str, str], float] = {}
        """(command, GPU model) -> duration of its newest run alone."""
        self._bans: dict[str, dict[str, None]] = {}
        """Command or family -> those with which it must not share a GPU."""
        self._banned_pairs: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """Two families -> the banned pairs of their commands."""
        self._measured_pairs: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """Two families -> all measured pairs of their commands."""
        self._fits = 0
        """Number of the fit of the corrections for which the next three caches hold."""
        self._factors: dict[tuple[str, str], tuple[float, float]] = {}
        """(family, command) -> factor and pressure."""
        self._corrected: dict[tuple[str, str], tuple[Belief, Belief]] = {}
        """(family, command) -> belief from loads, and the same with factor and pressure."""
        self._pair_views: dict[tuple[str, ...], tuple[PairView, float]] = {}
        """Two families, or two commands with their families -> the view, and the size of its correction."""
        for run in runs:
            self.learn(run)
        for pair in pairs:
            self._learn_pair(pair, now)

    # ---- Answers ----

    @property
    def exponent(self) -> float:
        return self._constants.exponent

    def belief(self, ask: TaskAsk, gpu_model: str) -> Belief:
        key = ask.key
        found = self._loads.belief(key, gpu_model)
        if key is None:
            return found
        self._settle()
        name = key.family, key.exact
        known = self._corrected.get(name)
        if known is not None and known[0] is found:
            return known[1]
        factors = self._factors.get(name)
        if factors is None:
            factors = round(self._corrections.factor(key), 2), round(self._corrections.pressure(key), 2)
            self._factors[name] = factors
        corrected = found if factors == (1.0, 1.0) else replace(found, factor=factors[0], pressure=factors[1])
        self._corrected[name] = found, corrected
        return corrected

    def _settle(self) -> None:
        """Drop cached answers of an earlier fit."""
        self._corrections.settle()
        is_full = len(self._factors) + len(self._pair_views) > ANSWERS_MOST
        if is_full or self._fits != self._corrections.fits:
            self._fits = self._corrections.fits
            for kept in (self._factors, self._corrected, self._pair_views):
                kept.clear()

    def rate_alone(self, key: TaskKey | None, gpu_model: str) -> Rate | None:
        """Return the rate of a command alone on a GPU model; None: not known."""
        return None if key is None or not key.exact else self._rates.get((key.exact, gpu_model))

    def seconds_alone(self, key: TaskKey | None, gpu_model: str) -> float | None:
        """Return the duration of a command alone on a GPU model; None: not known."""
        return None if key is None or not key.exact else self._alone_s.get((key.exact, gpu_model))

    def pairs(self, keys: Iterable[TaskKey]) -> tuple[PairView, ...]:
        """Return the measured pairs of these commands and their families, sorted by (a, b)."""
        self._settle()
        known = self._corrections
        asked = sorted(keys, key=lambda key: (key.exact, key.family))  # a set has another order in each process
        commands = {key.exact: key for key in asked}
        families = {key.family for key in asked} - {""}
        exact = set(commands) - {""}
        found: dict[tuple[str, str], PairView] = {}
        sizes: list[tuple[float, tuple[str, str]]] = []
        for names in (exact, families):
            for name in names:
                for other in known.neighbours(name) & names:
                    pair = (min(name, other), max(name, other))
                    if pair in found:
                        continue
                    view, size = self._pair_view(pair, commands if names is exact else None)
                    if size >= TRIFLE:
                        found[pair] = view
                        sizes.append((-size, pair))
        for _, pair in sorted(sizes)[PAIRS_MOST:]:
            del found[pair]
        for name in exact | families:
            for other in self._bans.get(name, ()):
                if other in exact or other in families:
                    pair = (min(name, other), max(name, other))
                    found[pair] = replace(found.get(pair) or PairView(a=pair[0], b=pair[1]), is_banned=True)
        return tuple(found[pair] for pair in sorted(found))

    def _pair_view(self, pair: tuple[str, str], commands: Mapping[str, TaskKey] | None) -> tuple[PairView, float]:
        """Return the view of two commands, or of two families (`commands` None), and the size of its correction."""
        known = self._corrections
        place: tuple[str, ...] = pair
        if commands is not None:
            one, two = commands[pair[0]], commands[pair[1]]
            place = (*pair, one.family, two.family)
        answer = self._pair_views.get(place)
        if answer is None:
            if commands is None:
                factors = known.families(*pair), known.families(pair[1], pair[0])
            else:
                factors = known.pair(one, two), known.pair(two, one)
            view = PairView(a=pair[0], b=pair[1], factor_a=round(factors[0], 2), factor_b=round(factors[1], 2))
            size = max(abs(math.log(view.factor_a)), abs(math.log(view.factor_b)))
            answer = self._pair_views[place] = view, size
        return answer

    # ---- Learning ----

    def learn(self, run: TaskRun, predicted: float | None = None) -> None:
        """Learn from a finished attempt. `predicted`: the mean slowdown that the model predicts for its neighbours;
        None: it had none, or it is not known."""
        key = TaskKey(exact=run.exact, family=run.family)
        if (load := load_of(run)) is not None:
            self._loads.add(key, run.gpu_model, load)
            self.version += 1
        if run.rate_alone is not None and run.rate_source in _SOURCES:
            source: RateSource = run.rate_source  # type: ignore[assignment]
            known = self.rate_alone(key, run.gpu_model)
            if known is None or (known.per_s, known.source) != (run.rate_alone, source):
                error = EARLIER_ERROR_RATIO * run.rate_alone
                rate = Rate(per_s=run.rate_alone, error_per_s=error, windows=1, source=source)
                self.note_alone(key, run.gpu_model, rate)
        if run.kind != "done" or not run.exact or run.seconds <= 0:
            return
        if run.alone_seconds >= 0.95 * run.seconds:
            _keep(self._alone_s, (run.exact, run.gpu_model), run.seconds)
        elif predicted is not None and run.rate_alone is None:
            alone_s = self._alone_s.get((run.exact, run.gpu_model))
            if alone_s and math.isfinite(predicted) and predicted >= 1.0:
                self._correct(key, (), run.seconds / alone_s / predicted, FINISHED_WEIGHT)

    def note_load(self, key: TaskKey | None, gpu_model: str, load: Load) -> None:
        if key is not None:
            self._loads.add(key, gpu_model, load)
            self.version += 1

    def note_alone(self, key: TaskKey | None, gpu_model: str, rate: Rate) -> None:
        """Record the rate of a command alone on a GPU model."""
        if key is not None and key.exact and math.isfinite(rate.per_s) and rate.per_s > 0:
            _keep(self._rates, (key.exact, gpu_model), rate)
            self.version += 1

    def predict(self, asks: Sequence[TaskAsk], gpu_model: str, sharing: SharingMethod) -> list[float]:
        """Return the slowdowns of tasks on one GPU that the model predicts, without corrections."""
        return interference.slowdowns(self._plain(asks, gpu_model), sharing, exponent=self.exponent)

    def learn_group(
        self, members: Sequence[Member], gpu_model: str, sharing: SharingMethod, *, when: float
    ) -> tuple[PairRun, ...]:
        """Learn from tasks that ran together on a GPU, all with measured rates. `when`: Unix time.

        Return the record for the history if there are two tasks. A larger group says less about each pair, and is used
        in this run only.
        """
        seen = [one.slowdown for one in members]
        if len(members) < 2 or not all(math.isfinite(one) and one > 0 for one in seen):
            return ()
        asks = [one.ask for one in members]
        beliefs = self._plain(asks, gpu_model)
        said = interference.slowdowns(beliefs, sharing, exponent=self.exponent)
        keys = [ask.key for ask in asks]
        for position, (key, one) in enumerate(zip(keys, members, strict=True)):
            others = [other for at, other in enumerate(keys) if at != position and other is not None]
            if key is not None:
                self._correct(key, others, one.slowdown / said[position], float(one.windows))
        group = Group(tuple(beliefs), tuple(seen), sharing, self._constants.util_factor)
        if self._constants.add(group):
            self._loads.util_factor = self._constants.util_factor
            self.version += 1
        if len(members) != 2 or keys[0] is None or keys[1] is None:
            return ()
        self._note_measured(keys[0], keys[1])
        windows = min(one.windows for one in members)
        pair = pair_run(
            keys[0], keys[1], gpu_model, sharing, when=when, slowdowns=seen, predicted=said, windows=windows
        )  # fmt: skip
        return (pair,)

    def ban(self, a: TaskKey, b: TaskKey) -> None:
        """Ban two commands from sharing a GPU; if one command is not known, ban their families."""
        if a.exact and b.exact:
            self._forbid(a.exact, b.exact)
            if a.family and b.family:
                self._banned_pairs.setdefault(_pair(a.family, b.family), set()).add(_pair(a.exact, b.exact))
                self._judge_families(a, b)
        else:
            self._forbid(a.family or a.exact, b.family or b.exact)
        self.version += 1
        self.pairs_version += 1

    def is_banned(self, a: TaskKey | None, b: TaskKey | None) -> bool:
        if a is None or b is None or not self._bans:
            return False
        return b.exact in self._bans.get(a.exact, ()) or b.family in self._bans.get(a.family, ())

    def _forbid(self, one: str, two: str) -> None:
        if one and two:
            self._bans.setdefault(one, {})[two] = None
            self._bans.setdefault(two, {})[one] = None

    def _judge_families(self, a: TaskKey, b: TaskKey) -> None:
        """Ban two families, or lift their ban, by the pairs of their commands."""
        families = _pair(a.family, b.family)
        banned = self._banned_pairs.get(families)
        if not banned:
            return
        measured = self._measured_pairs.get(families, set()) | banned
        if len(banned) >= FAMILY_BANS and 2 * len(banned) >= len(measured):
            self._forbid(*families)
        else:
            for one, two in (families, families[::-1]):
                self._bans.get(one, {}).pop(two, None)

    def _note_measured(self, a: TaskKey, b: TaskKey) -> None:
        if a.exact and b.exact and a.family and b.family:
            known = self._measured_pairs.setdefault(_pair(a.family, b.family), set())
            pair = _pair(a.exact, b.exact)
            if pair not in known and len(known) < RATES_MOST:
                known.add(pair)
                self._judge_families(a, b)

    def _plain(self, asks: Sequence[TaskAsk], gpu_model: str) -> list[Belief]:
        return [self._loads.belief(ask.key, gpu_model) for ask in asks]

    def _correct(self, key: TaskKey, others: Sequence[TaskKey], ratio: float, weight: float) -> None:
        self._corrections.add(key, others, ratio, weight)
        if self._corrections.is_due:
            self.version += 1
            self.pairs_version += 1

    def _learn_pair(self, pair: PairRun, now: float) -> None:
        a, b = TaskKey(exact=pair.a, family=pair.family_a), TaskKey(exact=pair.b, family=pair.family_b)
        if pair.is_banned and now - pair.when <= BAN_S:
            self.ban(a, b)
        if pair.windows > 0:
            self._note_measured(a, b)
        if pair.windows > 0 and pair.predicted_a > 0 and pair.predicted_b > 0:
            self._correct(a, (b,), pair.slowdown_a / pair.predicted_a, float(pair.windows))
            self._correct(b, (a,), pair.slowdown_b / pair.predicted_b, float(pair.windows))


# ---- Constants of the capacity model ----


class Group(Struct, frozen=True):
    """Measured tasks that ran together on a GPU."""

    beliefs: tuple[Belief, ...]
    """Without corrections."""
    slowdowns: tuple[float, ...]
    sharing: SharingMethod
    util_factor: float = UTIL_FACTOR
    """The factor used in those beliefs that rest on utilisation."""


class Constants:
    """The constants of the capacity model, refitted when that improves the prediction of held-out groups."""

    def __init__(self) -> None:
        self.exponent = interference.EXPONENT
        self.util_factor = UTIL_FACTOR
        self._groups: deque[Group] = deque(maxlen=GROUPS_MOST + HELD_OUT)
        self._count = 0
        self._next = REFIT_EVERY + HELD_OUT // 2

    def add(self, group: Group) -> bool:
        """Record a measured group. Return whether the constants have changed."""
        self._groups.append(group)
        self._count += 1
        if self._count < self._next:
            return False
        # With many groups a fit takes a tenth of a second, and 30 more groups change little.
        self._next += REFIT_EVERY if self._count < GROUPS_MOST else GROUPS_MOST
        return self._refit()

    def _refit(self) -> bool:
        groups = list(self._groups)
        held = groups[-min(HELD_OUT, len(groups) // 2) :]
        shown = groups[: -len(held)][-GROUPS_MOST:]
        now = self.exponent, self.util_factor
        has_util = any(belief.is_from_util for group in shown for belief in group.beliefs)
        grid = [(p, c) for p in EXPONENTS for c in (UTIL_FACTORS if has_util else (self.util_factor,))]
        best = min(grid, key=lambda one: (self._error(shown, *one), one))
        if best == now or self._error(held, *best) > BETTER_RATIO * self._error(held, *now):
            return False
        self.exponent, self.util_factor = best
        return True

    def _error(self, groups: Sequence[Group], exponent: float, util_factor: float) -> float:
        """Return the median error of the logarithm of a slowdown."""
        errors = []
        for group in groups:
            part = util_factor / group.util_factor
            beliefs = [
                replace(one, sm_ratio=min(1.0, part * one.sm_ratio)) if one.is_from_util and part != 1.0 else one
                for one in group.beliefs
            ]
            predicted = interference.slowdowns(beliefs, group.sharing, exponent=exponent)
            errors += [abs(math.log(seen / said)) for seen, said in zip(group.slowdowns, predicted, strict=True)]
        return median(errors) if errors else 0.0


# ---- Helpers ----


def pair_run(
    a: TaskKey,
    b: TaskKey,
    gpu_model: str,
    sharing: SharingMethod,
    *,
    when: float,
    slowdowns: Sequence[float],
    predicted: Sequence[float],
    windows: int,
    stp: float | None = None,
    error: float = 0.0,
    is_banned: bool = False,
) -> PairRun:
    """Return the history record of two measured tasks. `stp` None: computed from their slowdowns."""
    return PairRun(
        when=round(when, 3),
        a=a.exact,
        b=b.exact,
        family_a=a.family,
        family_b=b.family,
        gpu_model=gpu_model,
        sharing=sharing,
        slowdown_a=round(slowdowns[0], 4),
        slowdown_b=round(slowdowns[1], 4),
        predicted_a=round(predicted[0], 4),
        predicted_b=round(predicted[1], 4),
        stp=round(interference.stp(slowdowns) if stp is None else stp, 4),
        stp_error=round(error, 4),
        windows=windows,
        is_banned=is_banned,
    )


def _pair(one: str, two: str) -> tuple[str, str]:
    return (one, two) if one <= two else (two, one)


def _keep(known: dict, name: tuple[str, str], value: object) -> None:  # type: ignore[type-arg]
    """Store a value as the newest one, and drop the oldest if there are too many."""
    known.pop(name, None)
    known[name] = value
    if len(known) > RATES_MOST:
        del known[next(iter(known))]
