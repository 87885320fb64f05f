"""Estimate a task's peak from runs of the same command with other numbers, such as another batch size.

A number matters unless runs that differ only in it have the same peak. By the numbers that matter, the estimate is, in
this order: the peak of runs with equal numbers; a point between two runs that differ in one number; a point on the
straight line through the last two of them; the smallest peak of a run with larger numbers; the peak of a run times the
ratio of their numbers. From batches 32 and 64 the line predicts the peak at 128 within 2 % for 11 of 12
published trainings (Yousefzadeh 2025, Table 6.2, and its author's measurements of September 2025).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from ..fingerprint import tag

REACH = 4.0
"""A line is used up to this factor outside the known numbers, and a ratio up to this factor."""
RUNS_MOST = 100
"""Newest runs of a series that are kept: an estimate from them takes about 0.2 ms."""
COMPARED = 20
"""Newest runs of a series that a further one is compared with."""
NEAR = 1.05
"""Peaks within this factor count as equal: sampling and the allocator's rounding change them by a few percent."""
MATTERS_RATIO = 0.2
"""A number matters if more than this part of the pairs of runs that differ only in it have unlike peaks."""

Numbers = dict[str, float]
How = Literal["same", "inside", "batch", "near", "far", "scaled"]
"""same: equal numbers. inside: between two runs, or below one with larger numbers. near, far: a line up to twice, up to
REACH times the known numbers; batch: up to twice, where the number is a batch size. scaled: a ratio of numbers. Each
has its own errors."""
BATCHES = frozenset(
    tag(dashes + name.replace("-", mark))
    for name in ("b", "bs", "batch", "batchsize", "batch-size", "train-batch-size", "per-device-train-batch-size")
    for mark in "-_"
    for dashes in ("", "-", "--")
)
"""Memory is nearly a straight line in these: activations are for one sample."""


class LineEstimate(Struct, frozen=True):
    """An estimate from runs with other numbers."""

    point_mib: float
    how: How
    name: str
    """The tag of the number that differs; empty: none or several do."""
    runs: int
    most_mib: float = math.inf
    """The peak of a run with larger numbers, which a task does not exceed where memory rises with each of them."""


class Relevance(Struct):
    """Which numbers of a script matter, by pairs of runs that differ in one number."""

    pairs: dict[str, tuple[int, int]] = {}
    """Tag of a number -> pairs with equal and with unlike peaks."""
    equal_up_to: Numbers = {}
    """Tag of a number -> its largest value in a pair with equal peaks: small batches may hide behind the context."""
    most: Numbers = {}
    """Tag of a number -> its largest value."""
    fractions: set[str] = field(default_factory=set)
    """Tags of numbers that were not whole."""

    def see(self, numbers: Numbers) -> None:
        for name, x in numbers.items():
            self.most[name] = max(self.most.get(name, x), x)
            if x % 1:
                self.fractions.add(name)

    def compare(self, numbers: Numbers, peak: float, other: Numbers, other_peak: float) -> None:
        """Note a pair of runs of one series. Numbers that do not matter may differ as well."""
        names = [name for name, x in numbers.items() if other[name] != x]
        if len(names) > 1:
            names = [name for name in names if self.matters(name, numbers[name])]
        if len(names) == 1:
            equal, unlike = self.pairs.get(names[0], (0, 0))
            is_equal = max(peak, other_peak) <= NEAR * min(peak, other_peak)
            self.pairs[names[0]] = (equal + is_equal, unlike + (not is_equal))
            if is_equal:
                larger = max(numbers[names[0]], other[names[0]])
                self.equal_up_to[names[0]] = max(larger, self.equal_up_to.get(names[0], larger))

    def matters(self, name: str, x: float) -> bool:
        """Return whether a number matters. Without a pair of runs, whole numbers do: sizes of batches, layers and
        images are whole, learning rates are not."""
        equal, unlike = self.pairs.get(name, (0, 0))
        if not equal + unlike:
            return self._is_whole(name, x)
        return unlike > MATTERS_RATIO * (equal + unlike)

    def _is_whole(self, name: str, x: float) -> bool:
        return x % 1 == 0 and name not in self.fractions

    def above(self, numbers: Numbers) -> float:
        """Return the largest factor by which a whole number exceeds all known ones; at least 1."""
        whole = {name: x for name, x in numbers.items() if name in self.most and name not in self.fractions}
        return max((x / self.most[name] for name, x in whole.items() if x > self.most[name] >= 1), default=1.0)

    def relevant(self, numbers: Numbers) -> Numbers:
        """Return the numbers of a task that matter. A whole one always does above the values that were compared."""
        return {
            name: x
            for name, x in numbers.items()
            if self.matters(name, x) or (self._is_whole(name, x) and x > self.equal_up_to.get(name, -math.inf))
        }


def is_same(wanted: Numbers, known: Numbers, named: Sequence[object]) -> bool:
    """Return whether a task has the numbers that matter. `named`: all numbers of the other task."""
    return len(known) == len(named) and all(known.get(name) == x for name, x in wanted.items())


class Series(Struct):
    """Runs of commands that differ in numbers only, on one GPU model."""

    runs: deque[tuple[Numbers, float]] = field(default_factory=lambda: deque(maxlen=RUNS_MOST))
    """Numbers and peak of each finished run, newest last."""
    running: dict[str, tuple[Numbers, float, float]] = {}
    """`exact` of a running task with flat memory -> its numbers, its peak, the factor by which it may still grow."""

    def learn(self, numbers: Numbers, peak: float, relevance: Relevance) -> None:
        for other, other_peak in list(self.runs)[-COMPARED:]:
            if other.keys() == numbers.keys():
                relevance.compare(numbers, peak, other, other_peak)
        self.runs.append((numbers, peak))

    def find(self, numbers: Numbers, relevance: Relevance) -> LineEstimate | None:
        """Return the estimate for a task; None: no run is near. Running tasks count if finished ones are too few."""
        found = _find(self.runs, numbers, relevance)
        if found is not None or not self.running:
            return found
        found = _find([*self.runs, *((known, peak) for known, peak, _ in self.running.values())], numbers, relevance)
        if found is None:
            return None
        growth = max(growth for *_, growth in self.running.values())
        return replace(found, point_mib=found.point_mib * growth, most_mib=found.most_mib * growth)


def _find(runs: Iterable[tuple[Numbers, float]], numbers: Numbers, relevance: Relevance) -> LineEstimate | None:
    wanted = relevance.relevant(numbers)
    same: list[float] = []
    lines: dict[str, dict[float, float]] = {}
    above: list[float] = []
    scaled = math.inf
    count = 0
    for known, peak in runs:
        if known.keys() != numbers.keys():
            continue
        count += 1
        differing = [name for name, x in wanted.items() if known[name] != x]
        if not differing:
            same.append(peak)
            continue
        if len(differing) == 1:
            points = lines.setdefault(differing[0], {})
            x = known[differing[0]]
            points[x] = max(points.get(x, 0.0), peak)
        ratio = _ratio(wanted, known, differing)
        if ratio == 1.0:
            above.append(peak)
        elif ratio <= REACH:
            scaled = min(scaled, peak * ratio)
    if same:
        return LineEstimate(max(same[-10:]), "same", "", len(same))
    rises = all(points[a] <= NEAR * points[b] for points in lines.values() for a, b in pairwise(sorted(points)))
    most = min(above, default=math.inf) if rises else math.inf  # memory falls with a number such as --tensor-parallel
    found = [_on_line(name, points, wanted[name]) for name, points in lines.items() if len(points) > 1]
    best = max((one for one in found if one is not None), key=lambda one: (one.how == "inside", one.runs), default=None)
    if best is not None:
        return LineEstimate(min(best.point_mib, most), best.how, best.name, best.runs, most)
    if most < math.inf and most <= scaled:
        return LineEstimate(most, "inside", "", count, most)
    return LineEstimate(scaled, "scaled", "", count, most) if scaled < math.inf else None


def _ratio(wanted: Numbers, known: Numbers, differing: Iterable[str]) -> float:
    """Return the product of the ratios of the larger numbers; 1: the task has no larger number; infinite: not known."""
    ratio = 1.0
    for name in differing:
        x, before = wanted[name], known[name]
        if x > before:
            ratio *= x / before if before > 0 else math.inf
    return ratio


def _on_line(name: str, points: dict[float, float], x: float) -> LineEstimate | None:
    """Return the point at `x` between its two neighbours, or on the line through the two nearest ones."""
    xs = sorted(points)
    runs = len(points)
    inside = next(((a, b) for a, b in pairwise(xs) if a < x < b), None)
    low, high = inside or ((xs[0], xs[1]) if x < xs[0] else (xs[-2], xs[-1]))
    slope = (points[high] - points[low]) / (high - low)
    if inside:
        return LineEstimate(points[low] + slope * (x - low), "inside", name, runs)
    if x < low:
        near = low / x if x > 0 else math.inf
        point = max(points[low] + slope * (x - low), points[low] * max(x, 0.0) / low if low > 0 else 0.0)
    else:
        near = x / high if high > 0 else math.inf
        point = points[high] + max(slope, 0.0) * (x - high)
    if near > REACH or not math.isfinite(point):
        return None
    how: How = "far" if near > 2 else "batch" if name in BATCHES else "near"
    return LineEstimate(point, how, name, runs)
