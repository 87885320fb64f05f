"""Fit the constants of the capacity model to the groups measured in a run. For tasks and pairs, see `pair_model`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from ..speed_records import Belief, SharingMethod
from . import interference
from .loads import UTIL_FACTOR

GROUPS_MOST = 300
HELD_OUT = 100
REFIT_EVERY = 30
EXPONENTS = (1.5, 2.0, 2.5, 3.0, 4.0)
UTIL_FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
BETTER_RATIO = 0.95
"""New constants are used only if their error on held-out groups is at least 5 % smaller."""


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
