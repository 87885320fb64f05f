"""Predict the speeds of one GPU's tasks with a further one, fast enough for every waiting task and GPU.

The same numbers as `interference.slowdowns`, which a test compares; what does not change from one waiting task to the
next is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from ..records import Belief, PairView, SharingMethod, TaskAsk
from . import interference

_RESOURCES = ("sm_ratio", "dram_ratio", "pcie_ratio", "cpu_ratio")
_soft = lru_cache(maxsize=8192)(interference.soft)


class Pairs:
    """What was measured of tasks in pairs, by their commands or families."""

    def __init__(self, views: Sequence[PairView]) -> None:
        self._corrections: dict[tuple[str, str], float] = {}
        self._banned: set[tuple[str, str]] = set()
        for one in views:
            self._corrections[one.a, one.b] = one.factor_a
            self._corrections[one.b, one.a] = one.factor_b
            if one.is_banned:
                self._banned |= {(one.a, one.b), (one.b, one.a)}
        self.is_empty = not views

    def correction(self, task: TaskAsk, beside: TaskAsk) -> float:
        """Return by how much a task is slower beside another than the model says; its command counts first."""
        one, two = task.key, beside.key
        if self.is_empty or one is None or two is None:
            return 1.0
        found = self._corrections.get((one.exact, two.exact))
        return self._corrections.get((one.family, two.family), 1.0) if found is None else found

    def is_banned(self, task: TaskAsk, beside: TaskAsk) -> bool:
        """Return whether two tasks are not to share a GPU."""
        one, two = task.key, beside.key
        if not self._banned or one is None or two is None:
            return False
        return (one.exact, two.exact) in self._banned or (one.family, two.family) in self._banned


class Part:
    """One task as the model sees it."""

    __slots__ = ("alone", "ask", "belief", "busy", "correction", "demands", "stretched")

    def __init__(self, ask: TaskAsk, belief: Belief, exponent: float) -> None:
        self.ask = ask
        self.belief = belief
        self.demands = tuple([getattr(belief, name) for name in _RESOURCES])
        self.alone = tuple([_soft(demand, exponent) for demand in self.demands])
        self.busy = belief.busy_ratio
        self.stretched = min(1.0, interference.BUSY_FACTOR * belief.busy_ratio)
        self.correction = belief.factor
        """Its factor times those of the pairs with its neighbours."""


class Mix:
    """The tasks that run on one GPU."""

    def __init__(self, sharing: SharingMethod, exponent: float, pairs: Pairs) -> None:
        self.parts: list[Part] = []
        self._is_sliced = sharing == "time-slicing"
        self._exponent = exponent
        self._pairs = pairs
        self._sums = (0.0, 0.0, 0.0, 0.0)
        self._busy = 0.0
        self.stp = 0.0
        """Aggregate speed now."""

    def add(self, part: Part) -> None:
        """Put a task on the GPU."""
        for other in self.parts:
            other.correction *= self._pairs.correction(other.ask, part.ask)
            part.correction *= self._pairs.correction(part.ask, other.ask)
        self._sums = self._with(part)
        self._busy += part.busy
        self.parts.append(part)
        self.stp = sum(self.speeds())

    def speeds(self, more: Part | None = None) -> list[float]:
        """Return the speed of each task, with one more the last; 1: as alone."""
        if more is None:
            if len(self.parts) < 2:
                return [1.0] * len(self.parts)
            totals = self._totals(self._sums, self._busy)
            return [self._speed(part, totals, part.correction) for part in self.parts]
        if not self.parts:
            return [1.0]
        totals = self._totals(self._with(more), self._busy + more.busy)
        if self._pairs.is_empty:
            found = [self._speed(part, totals, part.correction) for part in self.parts]
        else:
            found = [
                self._speed(part, totals, part.correction * self._pairs.correction(part.ask, more.ask))
                for part in self.parts
            ]
        return [*found, self._own(more, totals)]

    def own_speed(self, more: Part) -> float:
        """Return the speed that one more task would have: the most that it can add."""
        if not self.parts:
            return 1.0
        return self._own(more, self._totals(self._with(more), self._busy + more.busy))

    def is_banned(self, more: Part) -> bool:
        """Return whether one more task is not to share the GPU with one that is there."""
        return any(self._pairs.is_banned(more.ask, part.ask) for part in self.parts)

    def _own(self, more: Part, totals: tuple[float, ...]) -> float:
        correction = more.correction
        if not self._pairs.is_empty:
            for part in self.parts:
                correction *= self._pairs.correction(more.ask, part.ask)
        return self._speed(more, totals, correction)

    def _with(self, more: Part) -> tuple[float, float, float, float]:
        one, two, three, four = self._sums
        sm, dram, pcie, cpu = more.demands
        return one + sm, two + dram, three + pcie, four + cpu

    def _totals(self, sums: tuple[float, float, float, float], busy: float) -> tuple[float, ...]:
        """Return by how much the resources stretch with all tasks."""
        if self._is_sliced:
            return (max(1.0, busy),)
        return tuple([_soft(total, self._exponent) for total in sums])

    def _speed(self, part: Part, totals: tuple[float, ...], correction: float) -> float:
        if self._is_sliced:
            stretch = totals[0]
        else:
            sm, dram, pcie, cpu = totals
            own_sm, own_dram, own_pcie, own_cpu = part.alone
            stretch = sm / own_sm
            if dram > 1.0:
                stretch = max(stretch, dram / own_dram)
            if pcie > 1.0:
                stretch = max(stretch, pcie / own_pcie)
            if cpu > 1.0:
                stretch = max(stretch, cpu / own_cpu)
        slowdown = (1.0 - part.stretched + part.stretched * stretch) * correction
        return 1.0 if slowdown < 1.0 else 1.0 / slowdown


def speeds_text(speeds: Sequence[float]) -> str:
    """Return predicted speeds for people: "both keep ~0.84, together 1.7 of one"."""
    if len(speeds) < 2:
        return ""
    least, most = min(speeds), max(speeds)
    if len(speeds) == 2 and most - least <= 0.05:
        kept = f"both keep ~{sum(speeds) / 2:.2f}"
    elif round(least, 1) == round(most, 1):
        kept = f"{'both' if len(speeds) == 2 else 'they'} keep ~{sum(speeds) / len(speeds):.1f}"
    else:
        kept = f"they keep {least:.1f} to {most:.1f}"
    return f"{kept}, together {sum(speeds):.1f} of one"


def belief_on(beliefs: Sequence[tuple[str, Belief]], gpu_model: str) -> Belief:
    """Return what a waiting task is believed to take on a GPU model."""
    known: Mapping[str, Belief] = dict(beliefs)
    return known.get(gpu_model) or Belief()
