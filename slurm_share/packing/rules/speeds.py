"""What is known of how fast tasks are, alone and beside each other: beliefs about their load, and measured pairs.

A state without clock or file, as `estimate.estimator.Estimator` is for memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..history_records import TaskRun
from ..records import TaskAsk, TaskKey
from ..speed_records import Belief, PairRun, PairView, Rate, RateSource, SharingMethod
from . import interference
from .corrections import Constants, Group
from .loads import Load, Loads, load_of
from .pair_model import PairModel

BAN_S = 30 * 86400.0
"""Programs, drivers and machines change; then a pair is tried again."""
FAMILY_BANS = 2
"""Of two families, so many different pairs of commands, and at least half of those that were measured, have to be
banned before the families are. One size of a program may harm where the others suit: in simulations with three sizes of
each program, bans of whole families at the first pair kept half of the pairs apart that pay."""
RATES_MOST = 4096
EARLIER_ERROR_RATIO = 0.05
"""Standard error of a rate from an earlier run, of which only the mean is kept. Programs differ by about 10 % between
two runs (Pan 2021); half of that is taken."""
FINISHED_WEIGHT = 0.25
"""A task that is done without any rate teaches as much as a quarter of a window."""
ANSWERS_MOST = 20_000
"""Answers about corrections that are kept until the next fit."""
PAIRS_MOST = 64
"""Corrections of pairs in one view, the largest first; bans are always there."""
TRIFLE = 0.02
"""A smaller correction is left out of views."""
_SOURCES: frozenset[str] = frozenset({"progress", "log", "output", "finished"})


class Member(Struct, frozen=True, kw_only=True):
    """One task of a group that was measured."""

    ask: TaskAsk
    slowdown: float
    """Time for a unit of work over the time alone."""
    windows: int


class Speeds:
    """What the user's history and this run have shown of speed."""

    def __init__(
        self,
        runs: Iterable[TaskRun] = (),
        pairs: Iterable[PairRun] = (),
        *,
        now: float = 0.0,
        cores: float | None = None,
    ) -> None:
        """`runs`, `pairs`: the user's history, oldest first. `now`: Unix time. `cores`: those that the tasks of a GPU
        share; None: each task has its own."""
        self.version = 0
        """It changes with what is known."""
        self.pairs_version = 0
        """It changes with what is known of pairs."""
        self._loads = Loads(cores)
        self._corrections = PairModel()
        self._constants = Constants()
        self._rates: dict[tuple[str, str], Rate] = {}
        self._alone_s: dict[tuple[str, str], float] = {}
        """Command, GPU model -> the duration of its newest run that was alone."""
        self._bans: dict[str, dict[str, None]] = {}
        """Command or family -> those that it is not to share a GPU with."""
        self._banned_pairs: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """Two families -> their pairs of commands that are banned."""
        self._measured_pairs: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """The same of pairs that were measured, banned or not."""
        self._fits = 0
        """Fits of the corrections, up to which the next three hold."""
        self._factors: dict[tuple[str, str], tuple[float, float]] = {}
        """Of a family and a command: the factor and the pressure."""
        self._corrected: dict[tuple[str, str], tuple[Belief, Belief]] = {}
        """Of the same: a belief from loads, and what it is with both."""
        self._pair_views: dict[tuple[str, ...], tuple[PairView, float]] = {}
        """Of two families, or two commands with their families: the view, and how large its correction is."""
        for run in runs:
            self.learn(run)
        for pair in pairs:
            self._learn_pair(pair, now)

    # ---- What is known ----

    @property
    def exponent(self) -> float:
        """Return p of the capacity model."""
        return self._constants.exponent

    def belief(self, ask: TaskAsk, gpu_model: str) -> Belief:
        """Return what a task is believed to take of a GPU."""
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
        """Forget answers that rest on an earlier fit."""
        self._corrections.settle()
        is_full = len(self._factors) + len(self._pair_views) > ANSWERS_MOST
        if is_full or self._fits != self._corrections.fits:
            self._fits = self._corrections.fits
            for kept in (self._factors, self._corrected, self._pair_views):
                kept.clear()

    def rate_alone(self, key: TaskKey | None, gpu_model: str) -> Rate | None:
        """Return how fast a command is alone on such a GPU; None: not known."""
        return None if key is None or not key.exact else self._rates.get((key.exact, gpu_model))

    def seconds_alone(self, key: TaskKey | None, gpu_model: str) -> float | None:
        """Return how long a command took when it was alone on such a GPU; None: not known."""
        return None if key is None or not key.exact else self._alone_s.get((key.exact, gpu_model))

    def pairs(self, keys: Iterable[TaskKey]) -> tuple[PairView, ...]:
        """Return what was measured of these commands in pairs, by (a, b)."""
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
        """Return what was measured of two commands, or families (None), and how large its correction is."""
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

    # ---- What happens ----

    def learn(self, run: TaskRun, predicted: float | None = None) -> None:
        """Note a finished attempt. `predicted`: its slowdown as the model says it of the neighbours that it had, mean
        over its time; None: it had none, or that is not known."""
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
        """Note the load of a task that still runs."""
        if key is not None:
            self._loads.add(key, gpu_model, load)
            self.version += 1

    def note_alone(self, key: TaskKey | None, gpu_model: str, rate: Rate) -> None:
        """Note how fast a command is alone on a GPU."""
        if key is not None and key.exact and math.isfinite(rate.per_s) and rate.per_s > 0:
            _keep(self._rates, (key.exact, gpu_model), rate)
            self.version += 1

    def predict(self, asks: Sequence[TaskAsk], gpu_model: str, sharing: SharingMethod) -> list[float]:
        """Return the slowdowns of tasks on one GPU as the model says them, without corrections."""
        return interference.slowdowns(self._plain(asks, gpu_model), sharing, exponent=self.exponent)

    def learn_group(
        self, members: Sequence[Member], gpu_model: str, sharing: SharingMethod, *, when: float
    ) -> tuple[PairRun, ...]:
        """Note tasks that ran together on a GPU, all with measured rates. `when`: Unix time.

        Return what is to be written to the history: of two tasks, the pair. What more tasks did together says less of
        each two of them, and teaches this run only.
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
        """Note that two commands are not to share a GPU again; of commands that are not known, their families."""
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
        """Return whether two commands are not to share a GPU, or all of their families."""
        if a is None or b is None or not self._bans:
            return False
        return b.exact in self._bans.get(a.exact, ()) or b.family in self._bans.get(a.family, ())

    def _forbid(self, one: str, two: str) -> None:
        if one and two:
            self._bans.setdefault(one, {})[two] = None
            self._bans.setdefault(two, {})[one] = None

    def _judge_families(self, a: TaskKey, b: TaskKey) -> None:
        """Ban two families, or no longer, by what is known of their commands in pairs."""
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
    """Return two tasks that were measured as a line of the history. `stp` None: what their slowdowns make."""
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
    """Note a value, as the last to be dropped."""
    known.pop(name, None)
    known[name] = value
    if len(known) > RATES_MOST:
        del known[next(iter(known))]
