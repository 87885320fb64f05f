"""Predict the speeds of the tasks on one GPU with one more task, fast enough for every waiting task and GPU.

The results equal those of `interference.slowdowns`, which a test compares. Values that do not depend on the waiting
task are computed once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

from ..records import TaskAsk
from ..speed_records import Belief, PairView, SharingMethod
from . import interference

_soft = lru_cache(maxsize=8192)(interference.soft)


class Pairs:
    """Measured corrections and bans of pairs, by command or family."""

    def __init__(self, views: Sequence[PairView]) -> None:
        self._beside: dict[str, dict[str, float]] = {}
        """Command or family -> neighbour -> correction beside it."""
        self._banned: set[tuple[str, str]] = set()
        for one in views:
            self._beside.setdefault(one.a, {})[one.b] = one.factor_a
            self._beside.setdefault(one.b, {})[one.a] = one.factor_b
            if one.is_banned:
                self._banned |= {(one.a, one.b), (one.b, one.a)}
        self.has_bans = bool(self._banned)

    def neighbours(self, names: Sequence[str]) -> Collection[str]:
        """Return the commands and families beside which any of these was measured."""
        found = [name for one in names for name in self._beside.get(one, ())]
        return frozenset(found) if found else ()

    def correction(self, task: TaskAsk, other: TaskAsk) -> float:
        """Return the slowdown of a task beside another over the model's; the commands count before the families."""
        one, two = task.key, other.key
        if one is None or two is None:
            return 1.0
        known = self._beside.get(one.exact)
        if known is not None and (found := known.get(two.exact)) is not None:
            return found
        known = self._beside.get(one.family)
        return 1.0 if known is None else known.get(two.family, 1.0)

    def is_banned(self, task: TaskAsk, other: TaskAsk) -> bool:
        one, two = task.key, other.key
        if not self._banned or one is None or two is None:
            return False
        return (one.exact, two.exact) in self._banned or (one.family, two.family) in self._banned


class GroupTask:
    """One task with the values that the model needs."""

    __slots__ = ("ask", "busy", "demands", "factor", "is_known", "names", "neighbours", "pressure", "row")

    def __init__(self, ask: TaskAsk, belief: Belief, exponent: float, pairs: Pairs) -> None:
        self.ask = ask
        self.is_known = belief.source != "default" or belief.factor != 1.0 or belief.pressure != 1.0
        """Its load or its effect on neighbours was measured."""
        self.demands = (belief.sm_ratio, belief.dram_ratio, belief.pcie_ratio)
        self.busy = belief.busy_ratio
        sm, dram, pcie = [1.0 / _soft(demand, exponent) for demand in self.demands]
        stretched = min(1.0, interference.BUSY_FACTOR * belief.busy_ratio)
        self.row = (sm, dram, pcie, stretched)
        """The inverse stretch of each resource when the task is alone, and the part of its time that is stretched."""
        self.factor = belief.factor
        self.pressure = belief.pressure
        self.names = () if ask.key is None else (ask.key.exact, ask.key.family)
        self.neighbours = pairs.neighbours(self.names)


class PredictedGroup:
    """The tasks on one GPU with their predicted speeds."""

    def __init__(self, sharing: SharingMethod, exponent: float, pairs: Pairs) -> None:
        self.members: list[GroupTask] = []
        self._is_sliced = sharing == "time-slicing"
        self._exponent = exponent
        self._pairs = pairs
        self._rows: list[tuple[float, float, float, float]] = []
        self._corrections: list[float] = []
        """For each member: its factor times the pressures of its neighbours and the corrections of their pairs."""
        self._pressure = 1.0
        """Product of the pressures of all members."""
        self._names: set[str] = set()
        self._sums = (0.0, 0.0, 0.0)
        self._busy = 0.0
        self.stp = 0.0
        """Current aggregate speed."""

    def add(self, member: GroupTask) -> None:
        self._corrections = self._with_pairs(member)
        self._pressure *= member.pressure
        self._sums = self._with(member)
        self._busy += member.busy
        self._rows.append(member.row)
        self.members.append(member)
        self._names.update(member.names)
        self.stp = sum(self.speeds())

    def speeds(self, more: GroupTask | None = None) -> list[float]:
        """Return the speed of each task, 1 being its speed alone. `more`: one more task, the last of the result."""
        if more is None:
            rows, corrections, sums, busy = self._rows, self._corrections, self._sums, self._busy
        else:
            rows, corrections = [*self._rows, more.row], self._with_pairs(more)
            sums, busy = self._with(more), self._busy + more.busy
        if len(rows) < 2:
            return [1.0] * len(rows)
        if self._is_sliced:
            turns = max(1.0, busy)
            slowdowns = [(1.0 + row[3] * (turns - 1.0)) * factor for row, factor in zip(rows, corrections, strict=True)]
        else:
            sm, dram, pcie = [_soft(total, self._exponent) if total else 0.0 for total in sums]
            if pcie:
                slowdowns = [
                    (1.0 + stretched * (max(sm * one, dram * two, pcie * three, 1.0) - 1.0)) * factor
                    for (one, two, three, stretched), factor in zip(rows, corrections, strict=True)
                ]
            else:  # most tasks have no PCIe figures, and `max` would take half of the time
                slowdowns = [
                    (1.0 + stretched * ((by_sm if (by_sm := sm * one) > (by_dram := dram * two) else by_dram) - 1.0))
                    * factor
                    for (one, two, _, stretched), factor in zip(rows, corrections, strict=True)
                ]
        return [1.0 if slowdown < 1.0 else 1.0 / slowdown for slowdown in slowdowns]

    def is_banned(self, more: GroupTask) -> bool:
        if not self._pairs.has_bans:
            return False
        return any(self._pairs.is_banned(more.ask, member.ask) for member in self.members)

    def _with_pairs(self, more: GroupTask) -> list[float]:
        """Return the corrections of all members and of one more task, the last."""
        own, pressure = more.factor * self._pressure, more.pressure
        if self._names.isdisjoint(more.neighbours):
            if pressure == 1.0:
                return [*self._corrections, own]
            return [*[before * pressure for before in self._corrections], own]
        found = []
        correction = self._pairs.correction
        for member, before in zip(self.members, self._corrections, strict=True):
            own *= correction(more.ask, member.ask)
            found.append(before * pressure * correction(member.ask, more.ask))
        found.append(own)
        return found

    def _with(self, more: GroupTask) -> tuple[float, float, float]:
        one, two, three = self._sums
        sm, dram, pcie = more.demands
        return one + sm, two + dram, three + pcie


def speeds_text(speeds: Sequence[float]) -> str:
    """Return predicted speeds as text: "both keep ~0.84, together 1.7 of one"."""
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
    return dict(beliefs).get(gpu_model) or Belief()
