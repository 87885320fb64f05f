"""Measure groups of tasks on a GPU from their rates, and let `Speeds` learn from them.

A group is the period in which the same tasks run on a GPU. All times are seconds of the launcher's clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from .attempt import Attempt
from .records import GpuFacts
from .rules import interference
from .rules.speed_account import GroupResult
from .rules.speeds import Member, Speeds, pair_run
from .speed_records import PairRun, Rate, SharingMethod

WINDOWS = 3
"""A group is measured when each of its tasks has this many windows, and again whenever the number has doubled."""
ALONE_WINDOWS = 2
GROUPS_MOST = 1000
"""Number of results that are kept for the end of the run: those with most windows."""
LEFT_MOST = 256


class _Measured(Struct, frozen=True):
    """The last measurement of a group, in the order of its tasks."""

    rates: list[tuple[Rate, Rate]]
    """(rate, rate alone)"""
    slowdowns: list[float]
    alone_s: list[float | None]
    """Duration of each command alone; None: not known."""
    windows: int

    def error(self) -> float:
        squares = 0.0
        for (rate, alone), slowdown in zip(self.rates, self.slowdowns, strict=True):
            parts = (rate.error_per_s / rate.per_s, alone.error_per_s / alone.per_s)
            squares += sum((part / slowdown) ** 2 for part in parts)
        return round(math.sqrt(squares), 4)


class _Group(Struct):
    """The tasks that run on a GPU now."""

    tasks: tuple[int, ...]
    since_s: float
    learned: int = 0
    """Windows from which `Speeds` has learned."""
    predicted: float | None = None
    slowdowns: Sequence[float] = ()
    """Predicted slowdown of each task."""
    measured: _Measured | None = None


class GroupSpeeds:
    """The groups of tasks on the GPUs of a node."""

    def __init__(
        self,
        speeds: Speeds,
        gpus: Mapping[str, GpuFacts],
        running: Mapping[int, Attempt],
        *,
        unix_s: float,
        keep: Callable[[PairRun], None],
    ) -> None:
        """Start without groups. `running`: the board's running attempts. `unix_s`: Unix time of second 0. `keep`
        writes a pair to the user's history."""
        self.results: list[GroupResult] = []
        self._new: list[GroupResult] = []
        self.families: set[str] = set()
        """Families with new measurements since the last `take_families`."""
        self._speeds = speeds
        self._gpus = gpus
        self._running = running
        self._unix_s = unix_s
        self._keep = keep
        self._groups: dict[str, _Group] = {}
        self._left: dict[int, tuple[Attempt, float]] = {}
        """Ended tasks with their last speed: the step of a GPU's figures after their end is known a minute later."""

    # ---- Events ----

    def changed(self, gpus: Sequence[str], now_s: float) -> None:
        """Begin new groups on these GPUs, because a task has started, ended, paused or resumed there."""
        for uuid in gpus:
            self._close(uuid, now_s)
            its_tasks = self._members(uuid)
            for its in its_tasks:
                its.rate = its.running_view = None
            self._groups[uuid] = group = _Group(tuple(its.ask.task for its in its_tasks), now_s)
            if len(its_tasks) > 1:
                asks = [its.ask for its in its_tasks]
                facts = self._gpus[uuid]
                group.slowdowns = self._speeds.predict(asks, facts.model, sharing_of(facts))
                group.predicted = interference.stp(group.slowdowns)

    def ended(self, its: Attempt, now_s: float) -> None:
        """Record the end of a task that the packer has already removed."""
        for uuid in its.gpus:
            if (group := self._groups.get(uuid)) is not None:
                self._left[its.ask.task] = its, self._speed(uuid, its, group)
            self._close(uuid, now_s, leaving=its)
        while len(self._left) > LEFT_MOST:
            del self._left[next(iter(self._left))]
        self.changed(its.gpus, now_s)

    def rated(self, its: Attempt, rate: Rate | None) -> None:
        """Record the rate of a task since its neighbours last changed; None: not known."""
        its.rate = rate
        if rate is None or len(its.gpus) != 1 or rate.per_s <= 0 or not math.isfinite(rate.per_s):
            return
        uuid = its.gpus[0]
        members = self._members(uuid)
        if len(members) == 1 and members[0] is its:
            if rate.windows >= ALONE_WINDOWS:
                its.own_rate_alone = rate
                self._speeds.note_alone(its.ask.key, self._gpus[uuid].model, rate)
        elif len(members) > 1:
            self._measure(uuid, members)

    def ban(self, uuid: str, task: int, other: int, stp: float, error: float, now_s: float) -> None:
        """Write a ban to the history, with 0 windows, since the measurements are in the record of the group."""
        pair = [
            (its, its.ask.key)
            for number in (task, other)
            if (its := self._running.get(number)) is not None and its.ask.key is not None
        ]
        if len(pair) != 2:
            return
        facts = self._gpus[uuid]
        predicted = self._speeds.predict([its.ask for its, _ in pair], facts.model, sharing_of(facts))
        slow = [self._slowdown(its, facts.model) or said for (its, _), said in zip(pair, predicted, strict=True)]
        self._keep(
            pair_run(
                pair[0][1],
                pair[1][1],
                facts.model,
                sharing_of(facts),
                when=self._unix_s + now_s,
                slowdowns=slow,
                predicted=predicted,
                windows=0,
                stp=stp,
                error=error,
                is_banned=True,
            )
        )

    def speed_of(self, uuid: str, task: int) -> tuple[Attempt | None, float]:
        """Return a task that runs on a GPU or recently ended there, and its speed beside the others over its speed
        alone: measured if possible, else predicted."""
        if (left := self._left.get(task)) is not None:
            return left
        its, group = self._running.get(task), self._groups.get(uuid)
        return its, 1.0 if its is None or group is None else self._speed(uuid, its, group)

    def _speed(self, uuid: str, its: Attempt, group: _Group) -> float:
        if its.ask.task not in group.tasks or len(group.tasks) < 2:
            return 1.0
        slowdown = self._slowdown(its, self._gpus[uuid].model)
        return 1.0 / (slowdown or group.slowdowns[group.tasks.index(its.ask.task)])

    def take_families(self) -> set[str]:
        found, self.families = self.families, set()
        return found

    def take_new(self) -> list[GroupResult]:
        """Return the groups that have ended since the last call."""
        found, self._new = self._new, []
        return found

    def finish(self, now_s: float) -> list[GroupResult]:
        """Return the results of all groups, including the running ones, in the order in which they began."""
        for uuid in list(self._groups):
            self._close(uuid, now_s)
        return sorted(self.results, key=lambda one: (one.from_s, one.gpu))

    # ---- One GPU ----

    def _members(self, uuid: str) -> list[Attempt]:
        there = [task for task, its in self._running.items() if uuid in its.gpus and not its.is_paused]
        return [self._running[task] for task in sorted(there)]

    def _rates(self, its: Attempt, gpu_model: str) -> tuple[Rate, Rate] | None:
        """Return the rate of a task and its rate alone; None: one is not known, or they have different sources."""
        alone = its.own_rate_alone or self._speeds.rate_alone(its.ask.key, gpu_model)
        if its.rate is None or alone is None or not (its.rate.ratio_to(alone) or 0.0) > 0.0:
            return None
        return its.rate, alone

    def _slowdown(self, its: Attempt, gpu_model: str) -> float | None:
        rates = self._rates(its, gpu_model)
        return None if rates is None else rates[1].per_s / rates[0].per_s

    def _measure(self, uuid: str, members: Sequence[Attempt]) -> None:
        """Learn from a group if all its tasks are measured."""
        group, facts = self._groups.get(uuid), self._gpus[uuid]
        if group is None or group.tasks != tuple(its.ask.task for its in members):
            return
        windows = min(0 if its.rate is None else its.rate.windows for its in members)
        if windows < WINDOWS:
            return
        rates = [both for its in members if (both := self._rates(its, facts.model)) is not None]
        if len(rates) < len(members):
            return
        known = [alone.per_s / rate.per_s for rate, alone in rates]
        alone_s = [self._speeds.seconds_alone(its.ask.key, facts.model) for its in members]
        group.measured = _Measured(rates, known, alone_s, windows)
        if windows < 2 * group.learned:
            return
        fresh, group.learned = windows - group.learned, windows
        found = [Member(ask=its.ask, slowdown=one, windows=fresh) for its, one in zip(members, known, strict=True)]
        sharing = sharing_of(facts)
        when = self._unix_s + group.since_s + 1.0
        for pair in self._speeds.learn_group(found, facts.model, sharing, when=when):
            self._keep(replace(pair, stp_error=group.measured.error()))
        self.families.update(its.ask.key.family for its in members if its.ask.key is not None)

    def _result(self, facts: GpuFacts, group: _Group, measured: _Measured, seconds: float) -> GroupResult:
        known = [one for one in measured.alone_s if one is not None]
        slowdowns = measured.slowdowns
        return GroupResult(
            gpu=facts.index,
            tasks=group.tasks,
            from_s=round(group.since_s, 3),
            seconds=round(seconds, 3),
            windows=measured.windows,
            stp=round(interference.stp(slowdowns), 4),
            error=measured.error(),
            delta=round(interference.delta(known, slowdowns), 4) if len(known) == len(slowdowns) else None,
            predicted=round(group.predicted or 0.0, 4),
            slowdowns=tuple(round(one, 4) for one in slowdowns),
        )

    def _close(self, uuid: str, now_s: float, leaving: Attempt | None = None) -> None:
        """End a group: add its time to its tasks, and keep its result."""
        group = self._groups.pop(uuid, None)
        if group is None or not group.tasks:
            return
        seconds = max(now_s - group.since_s, 0.0)
        found = group.measured
        measured = None if found is None else self._result(self._gpus[uuid], group, found, seconds)
        for position, task in enumerate(group.tasks):
            its = self._running.get(task)
            if its is None and leaving is not None and leaving.ask.task == task:
                its = leaving
            if its is None or its.gpus[0] != uuid:
                continue
            its.model_s += seconds / group.slowdowns[position] if group.slowdowns else seconds
            if len(group.tasks) == 1:
                its.measured_s += seconds
            elif measured is not None:
                its.measured_s += seconds / measured.slowdowns[position]
            else:
                its.unmeasured_s += seconds
        if measured is not None:
            self.results.append(measured)
            self._new.append(measured)
            if len(self.results) > 2 * GROUPS_MOST:
                self.results.sort(key=lambda one: (-one.windows, one.from_s))
                del self.results[GROUPS_MOST:]


def sharing_of(facts: GpuFacts) -> SharingMethod:
    return "mps" if facts.is_mps else "time-slicing"
