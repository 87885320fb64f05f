"""Correct predicted slowdowns by measured ones: how touchy a task is, how much it disturbs others, and single pairs.

The logarithm of measured over predicted slowdown is a sum of terms: one of the GPU; of a family and of a command as
those who are slowed; of a family and of a command as neighbours; of a pair of families, and of a pair of commands. Each
term is the mean of what the others leave, drawn towards 0 where it rests on little. So a pair that has never run
together is predicted by what each of both did beside others.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator

from ..records import TaskKey

RATIO_LEAST, RATIO_MOST = 0.25, 4.0
"""Limits of a correction: a single wrong rate is not to decide everything."""
PAIRS_MOST = 400
"""So many pairs of commands are kept, those that were measured last: each fit goes through all of them."""
_WEIGHTS = (4.0, 0.3, 0.3, 1.0, 1.0, 0.5, 2.0)
"""Of each term: so many measurements count as much as the assumption that there is nothing to correct. In the order
of `_terms`. Ours, rounded; on rates of pairs that Gavel (Narayanan 2020) published, half and double of them predict as
well (tests/bench/measured.py)."""
_FIRST_ROUNDS, _ROUNDS = 20, 6
"""Rounds of the first fit, and of one that begins with the terms of the last."""
_WEIGHT_MOST = 20.0
"""Of one pair of commands: a hundred windows of one run are not a hundred runs."""


class PairModel:
    """What was measured of pairs on one GPU model, in one way of sharing."""

    def __init__(self) -> None:
        self._seen: dict[tuple[tuple[str, str], tuple[str, str]], tuple[float, float]] = {}
        """((family, command), the same of the neighbour) -> (sum of weighted logarithms, weight)."""
        self._found: tuple[dict[Hashable, float], ...] = tuple({} for _ in _WEIGHTS)
        self._is_due = False
        self._is_first = True

    def __bool__(self) -> bool:
        """Return whether anything was measured."""
        return bool(self._seen)

    def add(self, task: TaskKey, neighbour: TaskKey, ratio: float, weight: float = 1.0) -> None:
        """Note a measured slowdown of a task beside a neighbour over the predicted one without any correction.

        With several neighbours, add it for each of them with a part of the weight.
        """
        if not (math.isfinite(ratio) and ratio > 0.0 and weight > 0.0):
            return
        pair = (_names(task), _names(neighbour))
        total, over = self._seen.pop(pair, (0.0, 0.0))
        logarithm = math.log(min(max(ratio, RATIO_LEAST), RATIO_MOST))
        total, over = total + weight * logarithm, over + weight
        if over > _WEIGHT_MOST:
            total, over = total * _WEIGHT_MOST / over, _WEIGHT_MOST
        self._seen[pair] = (total, over)
        while len(self._seen) > PAIRS_MOST:
            del self._seen[next(iter(self._seen))]
        self._is_due = True

    def ratio(self, task: TaskKey, neighbour: TaskKey) -> float:
        """Return by what the predicted slowdown of a task beside a neighbour is to be multiplied."""
        if self._is_due:
            self._fit()
        terms = _terms(_names(task), _names(neighbour))
        logarithm = sum(found.get(name, 0.0) for found, name in zip(self._found, terms, strict=True))
        return min(max(math.exp(logarithm), RATIO_LEAST), RATIO_MOST)

    def weight(self, task: TaskKey, neighbour: TaskKey) -> float:
        """Return how many measurements of exactly this pair there are."""
        return self._seen.get((_names(task), _names(neighbour)), (0.0, 0.0))[1]

    def _rows(self) -> Iterator[tuple[tuple[Hashable, ...], float, float]]:
        for (task, neighbour), (total, over) in self._seen.items():
            yield _terms(task, neighbour), total / over, over

    def _fit(self) -> None:
        """Fit all terms, one after the other, each to what the others leave (backfitting with shrinkage)."""
        rows = list(self._rows())
        before = self._found
        found = tuple({name: old.get(name, 0.0) for name in {row[0][at] for row in rows}}
                      for at, old in enumerate(before))  # fmt: skip
        rests = [value - sum(term[name] for term, name in zip(found, names, strict=True)) for names, value, _ in rows]
        for _ in range(_FIRST_ROUNDS if self._is_first else _ROUNDS):
            for at, (term, least) in enumerate(zip(found, _WEIGHTS, strict=True)):
                sums: dict[Hashable, float] = {}
                overs: dict[Hashable, float] = {}
                for (names, _, over), rest in zip(rows, rests, strict=True):
                    name = names[at]
                    sums[name] = sums.get(name, 0.0) + over * (rest + term[name])
                    overs[name] = overs.get(name, 0.0) + over
                changes = {name: sums[name] / (overs[name] + least) - term[name] for name in sums}
                rests = [rest - changes[names[at]] for (names, _, _), rest in zip(rows, rests, strict=True)]
                for name, change in changes.items():
                    term[name] += change
        self._found = found
        self._is_due = self._is_first = False


def _names(key: TaskKey) -> tuple[str, str]:
    return key.family or key.exact, key.exact


def _terms(task: tuple[str, str], neighbour: tuple[str, str]) -> tuple[Hashable, ...]:
    """Return the names of the terms of a task beside a neighbour."""
    return "", task[0], neighbour[0], task[1], neighbour[1], (task[0], neighbour[0]), (task[1], neighbour[1])
