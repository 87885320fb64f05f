"""Measure groups of tasks on a GPU from their rates, and let `Speeds` learn from them.

A group is the period in which the same tasks run on a GPU. All times are seconds of the launcher's clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from .attempt import Attempt
from .records import GpuFacts
from .rules import interference, undo
from .rules.speed_account import GroupResult
from .rules.speeds import Speeds
from .speed_records import PairRun, Rate, SharingMethod

GROUPS_MOST = 1000
"""Number of results that are kept for the end of the run: those with most windows."""


class _Group(Struct):
    """The tasks that run on a GPU now."""

    since_s: float
    tasks: tuple[int, ...] = ()
    """Empty until they are measured."""
    speed: undo.GroupSpeed | None = None
    """The last measurement, and the slowdowns and durations alone of its tasks."""
    slowdowns: Sequence[float] = ()
    alone_s: Sequence[float | None] = ()
    learned: int = 0
    """Windows from which `Speeds` has learned."""


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
        say: Callable[[str], None],
    ) -> None:
        """Start without groups. `running`: the board's running attempts. `unix_s`: Unix time of second 0. `keep`
        writes a pair to the user's history, `say` a sentence to the job's log."""
        self.results: list[GroupResult] = []
        self._new: list[GroupResult] = []
        self._families: set[str] = set()
        self._speeds = speeds
        self._gpus = gpus
        self._running = running
        self._unix_s = unix_s
        self._keep = keep
        self._say = say
        self._groups: dict[str, _Group] = {}

    # ---- Events ----

    def changed(self, gpus: Sequence[str], now_s: float) -> None:
        """Begin new groups on these GPUs, because a task has started, ended, paused or resumed there."""
        for uuid in gpus:
            self._close(uuid, now_s)
            for its in self._running.values():
                if its.rate is not None and uuid in its.gpus and not its.is_paused:
                    its.rate = its.running_view = None
            self._groups[uuid] = _Group(now_s)

    def rated(self, its: Attempt, rate: Rate | None) -> None:
        """Record the rate of a task since its neighbours last changed; None: not known."""
        its.rate = rate
        if rate is None or len(its.gpus) != 1 or rate.per_s <= 0 or not math.isfinite(rate.per_s):
            return
        uuid = its.gpus[0]
        members = self._members(uuid)
        if len(members) == 1 and members[0] is its:
            if rate.windows >= undo.ALONE_WINDOWS and its.ask.key is not None:
                its.own_rate_alone = rate
                self._speeds.note_alone(its.ask.key, self._gpus[uuid].model, rate)
                self._families.add(its.ask.key.family)
        elif len(members) > 1:
            if rate.windows >= undo.WINDOWS_LEAST:
                self._speeds.note_shared(its.ask.key, self._gpus[uuid].model, rate)
            self._measure(uuid, members)

    def take_families(self) -> set[str]:
        """Return the families with new measurements since the last call."""
        found, self._families = self._families, set()
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

    def _measure(self, uuid: str, members: Sequence[Attempt]) -> None:
        """Measure a group if the rates of all its tasks are known, now and alone.

        For a rate alone that is not known, the highest one beside other tasks stands, which is less. So the group does
        at most what follows. Only that it does less than one at a time is learned then.
        """
        group, model = self._groups.get(uuid), self._gpus[uuid].model
        if group is None:
            return
        group.tasks = tuple(its.ask.task for its in members)
        rates, is_bound = [], False
        for its in members:
            alone = its.own_rate_alone or self._speeds.rate_alone(its.ask.key, model)
            if alone is None:
                alone, is_bound = self._speeds.least_alone(its.ask.key, model), True
            if its.rate is None or alone is None or not (its.rate.ratio_to(alone) or 0.0) > 0.0:
                return
            rates.append((its.rate, alone))
        speed = undo.measure(rates)
        if speed is None or (is_bound and not speed.is_harmful):
            return
        slowdowns = [alone.per_s / rate.per_s for rate, alone in rates]
        if not is_bound:
            group.speed, group.slowdowns = speed, slowdowns
            group.alone_s = [self._speeds.seconds_alone(its.ask.key, model) for its in members]
        if speed.upper is not None and speed.windows >= 2 * group.learned:
            group.learned = speed.windows
            self._learn(uuid, members, speed, slowdowns, is_bound=is_bound)

    def _learn(
        self, uuid: str, members: Sequence[Attempt], speed: undo.GroupSpeed, slowdowns: Sequence[float], *,
        is_bound: bool,
    ) -> None:  # fmt: skip
        """Learn from a measured group, and keep it in the history if it is a pair. `is_bound`: it does at most that."""
        keys = [its.ask.key for its in members if its.ask.key is not None and its.ask.key.exact]
        if len(keys) < len(members):
            return
        facts, when = self._gpus[uuid], round(self._unix_s + self._groups[uuid].since_s + 1.0, 3)
        was_refused = self._speeds.is_refused(keys[0], keys[1])
        self._speeds.learn_group(keys, slowdowns)
        self._families |= {key.family for key in keys}
        if len(keys) > 2:
            return
        a, b = keys
        self._speeds.refuse(a, b, is_refused=speed.is_harmful)
        self._keep(
            PairRun(
                when=when, a=a.exact, b=b.exact, family_a=a.family, family_b=b.family, gpu_model=facts.model,
                sharing=sharing_of(facts), slowdown_a=round(slowdowns[0], 4), slowdown_b=round(slowdowns[1], 4),
                stp=round(speed.stp, 4), stp_error=round(speed.error, 4), windows=speed.windows,
                is_refused=speed.is_harmful,
            )
        )  # fmt: skip
        if speed.is_harmful and not was_refused:
            text = undo.harm_text([its.ask.task for its in members], speed, is_bound=is_bound)
            self._say(f"GPU {facts.index}: {text}; --pack places no such pair again")

    def _close(self, uuid: str, now_s: float) -> None:
        """End a group, and keep its result."""
        group = self._groups.pop(uuid, None)
        if group is None or group.speed is None:
            return
        speed, slowdowns = group.speed, group.slowdowns
        known = [one for one in group.alone_s if one is not None]
        result = GroupResult(
            gpu=self._gpus[uuid].index,
            tasks=group.tasks,
            from_s=round(group.since_s, 3),
            seconds=round(max(now_s - group.since_s, 0.0), 3),
            windows=speed.windows,
            stp=round(speed.stp, 4),
            error=round(speed.error, 4),
            delta=round(interference.delta(known, slowdowns), 4) if len(known) == len(slowdowns) else None,
            slowdowns=tuple(round(one, 4) for one in slowdowns),
        )
        self.results.append(result)
        self._new.append(result)
        if len(self.results) > 2 * GROUPS_MOST:
            self.results.sort(key=lambda one: (-one.windows, one.from_s))
            del self.results[GROUPS_MOST:]


def sharing_of(facts: GpuFacts) -> SharingMethod:
    return "mps" if facts.is_mps else "time-slicing"
