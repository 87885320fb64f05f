"""Learn by how much the capacity model is wrong: for a task, for two tasks beside each other, and in its constants.

Each correction is a bounded number: the mean of the logarithms of measured over predicted slowdowns, pulled to 1 while
it rests on few windows, and kept between 0.5 and 2.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ..records import Belief, SharingMethod
from . import interference
from .loads import UTIL_FACTOR

FACTOR_WINDOWS = 4.0
"""With so many windows, half of what was measured of a task counts."""
PAIR_WINDOWS = 2.0
LEAST, MOST = 0.5, 2.0
RATIO_LEAST, RATIO_MOST = 0.1, 10.0
"""A measured ratio beyond these is taken to be these."""
WEIGHT_MOST = 100.0
"""More windows than these let old ones count less: programs change."""
KEYS_MOST = 4096
GROUPS_MOST = 300
HELD_OUT = 100
REFIT_EVERY = 30
EXPONENTS = (1.5, 2.0, 2.5, 3.0, 4.0)
UTIL_FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
BETTER_RATIO = 0.95
"""Other constants have to have an error that is smaller by 5 % on groups that they were not chosen by."""


_Key = TypeVar("_Key", str, tuple[str, str])


class Group(Struct, frozen=True):
    """Tasks that ran together on a GPU, as they were measured."""

    beliefs: tuple[Belief, ...]
    """Without corrections."""
    slowdowns: tuple[float, ...]
    sharing: SharingMethod
    util_factor: float = UTIL_FACTOR
    """With which the beliefs were made that rest on utilisation."""


class _Mean:
    """A weighted mean of logarithms, of which each stands for one of several neighbours."""

    __slots__ = ("logs", "parts", "weight")

    def __init__(self) -> None:
        self.weight = self.logs = self.parts = 0.0

    def add(self, log_ratio: float, weight: float, neighbours: int = 1) -> None:
        if self.weight > WEIGHT_MOST:
            self.weight, self.logs, self.parts = 0.5 * self.weight, 0.5 * self.logs, 0.5 * self.parts
        self.weight += weight
        self.logs += weight * log_ratio / neighbours
        self.parts += weight / neighbours

    def correction(self, half: float, less_log: float = 0.0) -> float:
        """Return the factor. `half`: the windows with which half of it counts. `less_log`: what is known already."""
        if self.weight <= 0:
            return 1.0
        mean = (self.logs - less_log * self.parts) / self.weight
        return min(MOST, max(LEAST, math.exp(mean * self.weight / (self.weight + half))))


class Corrections:
    """The corrections of tasks and pairs, by the hash of a command or of a family."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Mean] = {}
        self._pairs: dict[tuple[str, str], _Mean] = {}
        """(Task, neighbour) -> what the task's ratio was beside it."""
        self._beside: dict[str, dict[str, None]] = {}
        """Task -> its neighbours."""

    def add(self, name: str, neighbours: Sequence[str], ratio: float, weight: float) -> None:
        """Note a measured over a predicted slowdown of a task. `weight`: windows that it rests on."""
        if not name or not math.isfinite(ratio) or ratio <= 0 or not math.isfinite(weight) or weight <= 0:
            return
        log_ratio = math.log(min(RATIO_MOST, max(RATIO_LEAST, ratio)))
        _touch(self._tasks, name).add(log_ratio, weight)
        for other in neighbours:
            if other:
                _touch(self._pairs, (name, other)).add(log_ratio, weight, len(neighbours))
                self._beside.setdefault(name, {})[other] = None
        while len(self._tasks) > KEYS_MOST:
            del self._tasks[next(iter(self._tasks))]
        while len(self._pairs) > KEYS_MOST:
            task, other = next(iter(self._pairs))
            del self._pairs[task, other]
            del self._beside[task][other]
            if not self._beside[task]:
                del self._beside[task]

    def factor(self, *names: str) -> float:
        """Return the correction of a task: of the first of its names that is known; 1: none is."""
        for name in names:
            if (known := self._tasks.get(name)) is not None:
                return round(known.correction(FACTOR_WINDOWS), 3)
        return 1.0

    def pair(self, name: str, other: str) -> float:
        """Return the correction of a task beside another, after its own; 1: not known."""
        known = self._pairs.get((name, other))
        return 1.0 if known is None else round(known.correction(PAIR_WINDOWS, math.log(self.factor(name))), 3)

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Return those beside which a task was measured."""
        return tuple(self._beside.get(name, ()))


def _touch(means: dict[_Key, _Mean], key: _Key) -> _Mean:
    """Return the mean of a key, and make it the last to be dropped."""
    found = means.pop(key, None) or _Mean()
    means[key] = found
    return found


class Constants:
    """The constants of the capacity model, fitted to the groups of this run where that is better on other groups."""

    def __init__(self) -> None:
        self.exponent = interference.EXPONENT
        self.util_factor = UTIL_FACTOR
        self._groups: deque[Group] = deque(maxlen=GROUPS_MOST + HELD_OUT)
        self._count = 0
        self._next = REFIT_EVERY + HELD_OUT // 2

    def add(self, group: Group) -> bool:
        """Note a measured group. Return whether the constants have changed."""
        self._groups.append(group)
        self._count += 1
        if self._count < self._next:
            return False
        # It takes a tenth of a second with many groups, and then 30 more say little.
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
