"""Read the progress that launchers of llsub on this node report, and find the task of a process.

A launcher's file belongs to its user, so invalid figures are left out, and it counts only for that user's processes
and jobs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.records import MOST, JobStart
from ..node.progress_figures import LevelRate, RunProgress, TaskProgress
from ..node.step_trees import with_parents

if TYPE_CHECKING:
    from ..packing import LevelRun, NodeRates, TaskRate

ReadRates = Callable[[Path, frozenset[int]], "dict[int, tuple[NodeRates, ...]]"]
STALE_S = 60.0
"""Age from which a file is ignored. A launcher writes every few seconds, unless it hangs or is stopped."""
MOST_TASKS, MOST_LEVELS = 1024, 32
"""Limits for one launcher, above the tasks that it starts on a node and the numbers of tasks that it tries."""
NO_PROGRESS = "finished"
"""Source of rates if no task shows progress: finished tasks are counted."""
_NAME_MOST = 64
_TASK, _LEVELS = 10**9, 10**6


class RunRates:
    """The progress that launchers report at one sample."""

    def __init__(self, runs: Iterable[RunProgress], leaders: dict[tuple[int, int], TaskProgress]) -> None:
        self.runs = tuple(runs)
        self._leaders = leaders
        """By (uid, pid of the session's leader)."""
        self._uids = {uid for uid, _ in leaders}

    def of_process(self, pid: int, uid: int, proc: str) -> TaskProgress | None:
        """Return the progress of the task to which a process belongs: the one whose session the process, or a parent of
        it, is in. None: there is none."""
        if uid not in self._uids:
            return None
        for one, fields in with_parents(pid, proc):
            found = self._leaders.get((uid, int(fields[3]))) or self._leaders.get((uid, one))
            if found is not None:
                return found
        return None


def read_run_rates(read: ReadRates, tmp: Path, uids: frozenset[int], now_s: float) -> RunRates:
    """Return the progress that these users' launchers report, if their files may be read. `now_s`: Unix time."""
    runs: list[RunProgress] = []
    leaders: dict[tuple[int, int], TaskProgress] = {}
    for uid, of_user in sorted(read(tmp, uids).items()):
        for rates in of_user:
            if not abs(now_s - rates.unix_s) <= STALE_S:
                continue
            tasks = {one.pid: task for one in islice(rates.tasks, MOST_TASKS) if (task := _task(one, rates.run))}
            leaders |= {(uid, pid): task for pid, task in tasks.items()}
            runs.append(
                RunProgress(
                    uid=uid,
                    job=JobStart.parse(rates.job).number,
                    source=rates.source or NO_PROGRESS,
                    tasks=tuple(tasks.values()),
                    finished_per_h=_figure(rates.finished_per_h),
                    levels=tuple(level for one in rates.levels[:MOST_LEVELS] if (level := _level(one))),
                )
            )
    return RunRates(runs, leaders)


def _task(one: TaskRate, run: str) -> TaskProgress | None:
    if not (0 <= one.task <= _TASK and 1 < one.pid <= _TASK):
        return None
    rate = one.rate
    per_s = None if rate is None else _figure(rate.per_s)
    return TaskProgress(
        task=one.task,
        run=run[:_NAME_MOST],
        family=_short(one.family),
        rate_per_s=per_s,
        rate_error_per_s=None if rate is None or per_s is None else _figure(rate.error_per_s),
        rate_windows=0 if rate is None or per_s is None else max(0, min(_LEVELS, rate.windows)),
        rate_source="" if rate is None or per_s is None else rate.source,
        speed_ratio=_figure(one.speed_ratio),
        units=_figure(one.units),
        is_paused=one.is_paused,
    )


def _short(family: str) -> str:
    """Return a name of at most _NAME_MOST characters for tasks of the same command; a long one becomes its hash."""
    if len(family) <= _NAME_MOST:
        return family
    return hashlib.sha256(family.encode("utf-8", "surrogatepass")).hexdigest()[:_NAME_MOST]


def _level(one: LevelRun) -> LevelRate | None:
    per_s, spread = _figure(one.per_s), _figure(one.spread_per_s)
    if per_s is None or spread is None or not 0 < one.level <= _LEVELS or not 0 <= one.windows <= _LEVELS:
        return None
    return LevelRate(level=one.level, per_s=per_s, spread_per_s=spread, windows=one.windows, sharing=one.sharing)


def _figure(value: float | None) -> float | None:
    """Return the value if a snapshot can hold it, else None."""
    return None if value is None or not math.isfinite(value) or not 0 <= value <= MOST else float(value)
