"""Correct predicted slowdowns by measured ones: per task, per neighbour and per pair.

The logarithm of measured over predicted slowdown is a sum of terms: one for all tasks; one each for the family and the
command of the slowed task; and for each neighbour one for its family, its command, the two families and the two
commands. The terms are fitted together by ridge regression, one coordinate after the other: each is the mean of the
residuals, shrunk towards 0 if it has few measurements. So a pair that has never run together is predicted from what
both tasks did beside others.
"""

from __future__ import annotations

import math
from collections.abc import KeysView, Sequence

from msgspec import Struct

from ..records import TaskKey

LEAST, MOST = 0.5, 2.0
"""Limits of a correction, so that a single wrong rate has a limited effect."""
RATIO_LEAST, RATIO_MOST = 0.1, 10.0
"""A measured ratio is clamped to this range."""
ROWS_MOST = 400
"""Number of groups of commands that are kept, the last measured ones: each fit goes through all of them."""
WEIGHT_MOST = 20.0
"""Largest weight of one group of commands. Beyond it, old measurements count less, since programs change."""
WINDOWS_OF_ONE = 4.0
"""This many windows count as one measurement: two runs of a program differ more than the windows of one run."""
FITS_PER_ROWS = 4
"""The terms are fitted again when the new measurements reach a quarter of the groups: with all groups, a fit takes
longer than a decision may, and one more measurement changes little."""
_FIRST_ROUNDS, _ROUNDS = 20, 3
"""Rounds of the first fit, and of each later one, which starts from the last terms."""
_ALL, _FAMILY, _TASK, _FAMILY_PRESSES, _PRESSES, _FAMILIES, _PAIR = range(7)
_RIDGE = {_ALL: 4.0, _FAMILY: 0.3, _TASK: 1.0, _FAMILY_PRESSES: 0.3, _PRESSES: 1.0, _FAMILIES: 0.5, _PAIR: 2.0}
"""Number of measurements that weigh as much as the assumption of no correction. Chosen by us and rounded. On the rates
of pairs that Gavel (Narayanan 2020) published, half and double these values predict as well
(tests/bench/measured.py)."""

_Term = tuple[int, str, str]
"""(kind, name, name of the neighbour or "")"""


class _Row(Struct):
    """All measurements of a task beside the same neighbours."""

    terms: tuple[tuple[_Term, float], ...]
    """(term, how often it counts)"""
    total: float = 0.0
    """Weighted sum of logarithms of ratios."""
    weight: float = 0.0


class PairModel:
    """Corrections from measured tasks that shared a GPU."""

    def __init__(self) -> None:
        self._rows: dict[object, _Row] = {}
        self._found: dict[_Term, float] = {}
        self._beside: dict[str, dict[str, int]] = {}
        """Family or command -> neighbour -> number of rows."""
        self.fits = 0
        """Number of fits. Answers change only with a fit."""
        self.is_due = False
        """The next answer starts with a fit."""
        self._is_first = True
        self._fresh = 0
        """Measurements since the last fit."""

    def add(self, task: TaskKey, neighbours: Sequence[TaskKey], ratio: float, windows: float) -> None:
        """Record the measured slowdown of a task over the predicted one without corrections. No `neighbours`: they are
        not known. `windows`: the number of windows behind the measurement."""
        if not (math.isfinite(ratio) and ratio > 0.0 and math.isfinite(windows) and windows > 0.0):
            return
        own = _names(task)
        others = sorted(_names(one) for one in neighbours)
        name = (own, tuple(others))
        row = self._rows.pop(name, None)
        if row is None:
            row = _Row(terms=_terms(own, others))
            self._count(row, 1)
        weight = windows / WINDOWS_OF_ONE
        row.total += weight * math.log(min(max(ratio, RATIO_LEAST), RATIO_MOST))
        row.weight += weight
        if row.weight > WEIGHT_MOST:
            row.total, row.weight = row.total * WEIGHT_MOST / row.weight, WEIGHT_MOST
        self._rows[name] = row
        while len(self._rows) > ROWS_MOST:
            self._count(self._rows.pop(next(iter(self._rows))), -1)
        self._fresh += 1
        self.is_due = self.is_due or self._fresh * FITS_PER_ROWS >= len(self._rows)

    def factor(self, task: TaskKey) -> float:
        """Return the slowdown of a task over the predicted one, beside any neighbours."""
        family, exact = _names(task)
        return self._product((_ALL, "", ""), (_FAMILY, family, ""), (_TASK, exact, ""))

    def pressure(self, task: TaskKey) -> float:
        """Return the slowdown that a task causes over the predicted one, for any neighbour."""
        family, exact = _names(task)
        return self._product((_FAMILY_PRESSES, family, ""), (_PRESSES, exact, ""))

    def pair(self, task: TaskKey, neighbour: TaskKey) -> float:
        """Return the further correction of a task beside this neighbour, after its factor and the neighbour's
        pressure."""
        own, other = _names(task), _names(neighbour)
        return self._product((_FAMILIES, own[0], other[0]), (_PAIR, own[1], other[1]))

    def families(self, family: str, other: str) -> float:
        """Return the further correction for two families, if their commands are not known as a pair."""
        return self._product((_FAMILIES, family, other))

    def settle(self) -> None:
        if self.is_due:
            self._fit()

    def neighbours(self, name: str) -> KeysView[str]:
        """Return the families (or commands) beside which a family (or command) was measured."""
        return self._beside.get(name, {}).keys()

    def _count(self, row: _Row, more: int) -> None:
        """Count the neighbours of an added (1) or removed (-1) row."""
        for (kind, one, other), _ in row.terms:
            if kind in (_FAMILIES, _PAIR):
                others = self._beside.setdefault(one, {})
                others[other] = others.get(other, 0) + more
                if not others[other]:
                    del others[other]
                    if not others:
                        del self._beside[one]

    def _product(self, *terms: _Term) -> float:
        self.settle()
        return min(max(math.exp(sum([self._found.get(term, 0.0) for term in terms])), LEAST), MOST)

    def _fit(self) -> None:
        rows = list(self._rows.values())
        before = self._found
        found = {term: before.get(term, 0.0) for row in rows for term, _ in row.terms}
        rests = [row.total / row.weight - sum([times * found[term] for term, times in row.terms]) for row in rows]
        where: dict[_Term, list[tuple[int, float, float, float]]] = {}
        for at, row in enumerate(rows):
            for term, times in row.terms:
                weighted = row.weight * times
                where.setdefault(term, []).append((at, times, weighted, weighted * times))
        # The weights are the same in all rounds.
        in_turn = [
            (term, where[term], sum((one[3] for one in where[term]), _RIDGE[term[0]]))
            for term in sorted(where, key=lambda term: term[0])
        ]
        for _ in range(_FIRST_ROUNDS if self._is_first else _ROUNDS):
            for term, places, over in in_turn:
                now = found[term]
                total = 0.0
                for at, times, weighted, _squared in places:
                    total += weighted * (rests[at] + times * now)
                change = total / over - now
                found[term] = now + change
                for at, times, _weighted, _squared in places:
                    rests[at] -= times * change
        self._found = found
        self.fits += 1
        self.is_due = self._is_first = False
        self._fresh = 0


def _names(key: TaskKey) -> tuple[str, str]:
    return key.family or key.exact, key.exact


def _terms(own: tuple[str, str], others: Sequence[tuple[str, str]]) -> tuple[tuple[_Term, float], ...]:
    """Return the terms of a task beside its neighbours. An unknown family or command has no term."""
    counted: dict[_Term, float] = {(_ALL, "", ""): 1.0, (_FAMILY, own[0], ""): 1.0, (_TASK, own[1], ""): 1.0}
    for family, exact in others:
        for term in (
            (_FAMILY_PRESSES, family, ""), (_PRESSES, exact, ""), (_FAMILIES, own[0], family), (_PAIR, own[1], exact),
        ):  # fmt: skip
            counted[term] = counted.get(term, 0.0) + 1.0
    return tuple((term, times) for term, times in counted.items() if term[0] == _ALL or term[1])
