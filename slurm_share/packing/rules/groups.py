"""Learn from the rates of running tasks: of one that is alone on its GPU, and of those that share one.

The launcher and the simulator call it with each view of a decision. What was learned of a group counts once: of a rate
that rests on twice as many windows as the last time, only the new windows are added. More often would change little,
and each change of what is known is work for the next decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..records import PairRun, Rate, RunningView, SharingMethod
from .speeds import Member, Speeds

WINDOWS_LEAST = 3
"""So many windows a group needs."""
ALONE_WINDOWS = 2


class Groups:
    """What was learned so far of the tasks that run."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._learned: dict[str, tuple[frozenset[tuple[int, int]], int]] = {}
        """GPU -> (its tasks with their attempts, windows that were learned)."""

    def learn(
        self, running: Sequence[RunningView], models: Mapping[str, str], sharing: SharingMethod, unix_s: float
    ) -> list[PairRun]:
        """Learn, and return what is to be written to the history. `models`: GPU -> its model. `unix_s`: Unix time."""
        there: dict[str, list[RunningView]] = {}
        for task in running:
            for uuid in task.gpus:
                there.setdefault(uuid, []).append(task)
        found: list[PairRun] = []
        for uuid, tasks in there.items():
            active = [task for task in tasks if not task.is_paused]
            group = frozenset((task.ask.task, task.attempt) for task in active)
            before, counted = self._learned.get(uuid, (frozenset(), 0))
            if group != before:
                counted = 0
            rates = [task.rate for task in active if task.rate is not None]
            windows = min((rate.windows for rate in rates), default=0)
            if len(rates) < len(active) or windows < 2 * counted:
                continue
            if len(active) == 1 and windows >= ALONE_WINDOWS and len(active[0].gpus) == 1:
                self._speeds.note_alone(active[0].ask.key, models[uuid], rates[0])
            elif len(active) > 1 and windows >= WINDOWS_LEAST:
                found += self._group(active, rates, windows - counted, models[uuid], sharing, unix_s)
            else:
                continue
            self._learned[uuid] = group, windows
        return found

    def _group(
        self,
        tasks: Sequence[RunningView],
        rates: Sequence[Rate],
        windows: int,
        gpu_model: str,
        sharing: SharingMethod,
        unix_s: float,
    ) -> tuple[PairRun, ...]:
        speeds = [
            None if task.rate_alone is None else rate.ratio_to(task.rate_alone)
            for task, rate in zip(tasks, rates, strict=True)
        ]
        members = [
            Member(ask=task.ask, slowdown=1.0 / speed, windows=windows)
            for task, speed in zip(tasks, speeds, strict=True)
            if speed is not None and speed > 0.0
        ]
        if len(members) < len(tasks):
            return ()
        return self._speeds.learn_group(members, gpu_model, sharing, when=unix_s)
