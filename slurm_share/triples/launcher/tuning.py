"""Trials of a run of equal tasks: the level (number of tasks at once on the node) and the sharing method.

About once a second it measures the running tasks and closes windows. The rules in `packing` choose the next level from
these. It sets the limit of tasks per GPU and never ends a task: to lower the level, it starts fewer tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import UNSET

from ...core.text import counted
from ...node.records import MemoryUse
from ...packing import (
    Attempt,
    Board,
    Comparison,
    History,
    LevelRun,
    SearchRun,
    SharingMethod,
    TaskKey,
    Tuner,
    newest_search,
    tuned_text,
)
from ..records import Run
from .node import Node

FULL_RATIO = 0.8
"""Part of the level from which on the node counts as full: between short tasks, some places are always free."""
COUNTED_RATIO = 0.8
"""Part of the running tasks that has to report progress, for progress to be the source of rates."""
STUCK_WINDOWS = 6
"""Windows after which a level that was not reached is taken to have no room."""
LATE_FACTOR = 10.0
"""A window is closed after this factor times its length, even without progress."""
EARLY_TICKS = 3
"""Fewest counts of running tasks of a window that ends early, because each place has finished a task."""
ALMOST_RATIO = 0.9
"""A finished task counts for a level if the node was full for this part of its time."""
HOST_RATIO = 0.97
"""Part of the host's memory that tasks may use."""


class Tuning:
    """The trials of one launcher. Only the thread of the loop calls it. Times are seconds of the strategy."""

    def __init__(
        self,
        run: Run,
        node: Node,
        board: Board,
        tell: Callable[[str], None],
        keep: Callable[[SearchRun], None],
        has_shared: Callable[[], bool] = lambda: False,
    ) -> None:
        """`tell` gets sentences for the job's log, `keep` the result for the user's history. `has_shared`: whether the
        list that several nodes share still has tasks, of which the board does not know."""
        assert run.pack is not None
        self.board = board
        self._has_shared = has_shared
        self.facts = tuple(board.facts.values())
        self.gpus = len(self.facts)
        self.node = node
        self.workers = len(node.workers)
        self.window_s = run.rate_window_s
        self.is_tuned, self.is_compared = run.pack.is_tuned, run.pack.is_compared
        self.base: SharingMethod = "mps" if all(one.is_mps for one in self.facts) else "time-slicing"
        self.sharing: SharingMethod = self.base
        """Sharing method of the tasks that start now."""
        self.source = ""
        """Source of the rates; empty: not known yet."""
        self.tuner: Tuner | None = None
        """The search for the best level; None: not begun, or the user chose the level."""
        self.comparison: Comparison | None = None
        self._tell = tell
        self._keep_result = keep
        self.has_begun = False
        per_node = self.workers if run.triple is None else run.triple.per_node
        self._level = self._shared_level = per_node
        """The present level, and the level of methods that share GPUs."""
        self._key: TaskKey | None = None
        self._limit: int | None = None
        """Limit of tasks per GPU last passed to the board."""
        self._is_draining = False
        """True: nothing starts until the tasks of the last method have ended."""
        self._level_s = 0.0
        """When the level was set."""
        self._most_here = 0
        """Most tasks that ran at the same time since then."""
        self._full_s: float | None = None
        """Since when the level is full; None: it is not."""
        self._opened_s: float | None = None
        """When the open window began; None: no window is open."""
        self._counts: list[int] = []
        """Number of running tasks at each tick of the open window."""
        self._units: dict[int, float] = {}
        """Task -> its units of work at the last tick."""
        self._risen: set[int] = set()
        """Tasks that made progress in the open window."""
        self._done_units = 0.0
        """Units of work of all tasks so far."""
        self._units_then = 0.0
        """The same when the open window began."""
        self._seconds: list[float] = []
        """Durations of tasks done in the open window that ran at this level only."""
        self._finished = 0
        """Tasks done in the open window."""
        self._spent: list[tuple[SharingMethod, int, float]] = []
        """Method, level and seconds of each trial."""
        self._next: tuple[SharingMethod, int] = (self.base, per_node)
        """Method and level after draining."""
        self._tasks = 0
        """Number of tasks of this node at the beginning."""
        self._done_tasks = 0
        """Tasks done since then."""
        self._known_source = ""
        """Source of the rates of the earlier run whose search this one continues; empty: none, or compared."""
        self._has_begun_early = False
        """Whether the open window has no window before it in which tasks may load their data."""

    # ---- Events ----

    def begin(self, key: TaskKey | None, tasks: int, history: History) -> None:
        """Begin the trials. `key`: of the first task. `tasks`: number of tasks of this node."""
        self.has_begun = True
        self._key = key
        self._tasks = tasks
        if self.is_tuned:
            now = time.time()
            known = self._known(history, now)
            self.tuner = Tuner(self.gpus, tasks, sharing=self.base, known=known, now=now)
            self._level = self.tuner.level
            if known is not None:
                self._known_source = known.rate_source
                self._tell(tuned_text.begin_sentence(known, self._level, now))
        else:
            self._begin_comparison(())
        self._set_limit()

    def _known(self, history: History, now: float) -> SearchRun | None:
        key = self._key
        if key is None:
            return None
        models = {one.model for one in self.facts}
        found = [
            one
            for one in history.searches
            if not one.neighbours
            if (one.exact and one.exact == key.exact) or (one.family and one.family == key.family)
            if {one.gpu_model} == models
            and one.gpus == self.gpus
            and any(run.sharing == self.base for run in one.levels)
        ]
        return newest_search(found, now)

    def ended(self, task: Attempt, now: float, *, is_done: bool) -> None:
        """Record the end of a task."""
        self._count(task)
        self._units.pop(task.task, None)
        if not is_done:
            return
        self._finished += 1
        self._done_tasks += 1
        seconds = time.monotonic() - task.clock
        if self._full_s is not None and now - self._full_s >= ALMOST_RATIO * seconds:
            self._seconds.append(max(seconds, 1e-3))

    def _count(self, task: Attempt) -> None:
        units = task.units
        if units is UNSET:
            return
        before = self._units.get(task.task)
        if before is not None:  # the first value may include work of an earlier time or attempt
            self._done_units += max(units - before, 0.0)
            if units > before:
                self._risen.add(task.task)
        self._units[task.task] = units

    def tick(self, running: Mapping[int, Attempt], host: MemoryUse | None, now: float) -> None:
        """Measure the running tasks, close a window that is over, and set the next level or method."""
        if not self.has_begun or (self.is_over and not self._is_draining):
            return
        for task in running.values():
            self._count(task)
        count = len(self.board.running)
        self._most_here = max(self._most_here, count)
        if self._is_draining:
            self._end_drain(count, now)
            return
        self._bound(host)
        target = min(self._level, self.workers)
        is_full = FULL_RATIO * target <= count <= target
        if self._opened_s is not None:
            self._counts.append(count)
        if self._full_s is None:
            if is_full:
                self._full_s = now
                self._open(now)
                self._has_begun_early = True
            else:
                self._check_room(count, target, now)
        elif count > target:
            self._reset()
        elif self._opened_s is not None and self._is_over(target, running, now - self._opened_s):
            self._close(target, running, now)
        if count < FULL_RATIO * target and not self._has_waiting():
            self._run_dry(running, target, now)

    def _has_waiting(self) -> bool:
        return bool(self.board.waiting) or self._has_shared()

    def _is_over(self, target: int, running: Mapping[int, Attempt], seconds: float) -> bool:
        """Return whether the open window ends. If only finished tasks show a rate, one of each place is enough."""
        if seconds >= self.window_s and self._have_risen(running, seconds):
            return True
        return not self._is_by_progress and len(self._seconds) >= target and len(self._counts) >= EARLY_TICKS

    def _have_risen(self, running: Mapping[int, Attempt], seconds: float) -> bool:
        """Return whether enough tasks made progress in the open window, or it is very late.

        With steps longer than a window, windows would otherwise contain no step or two steps.
        """
        if seconds >= LATE_FACTOR * self.window_s:
            return True
        shown = [task.task for task in running.values() if task.units is not UNSET]
        return self.source == "finished" or sum(one in self._risen for one in shown) >= COUNTED_RATIO * len(shown)

    @property
    def _is_by_progress(self) -> bool:
        return self.source not in ("", "finished")

    def _open(self, now: float) -> None:
        self._opened_s, self._units_then = now, self._done_units
        self._counts, self._seconds, self._finished = [], [], 0
        self._risen.clear()

    def _close(self, target: int, running: Mapping[int, Attempt], now: float) -> None:
        assert self._opened_s is not None
        seconds, mean = now - self._opened_s, sum(self._counts) / max(len(self._counts), 1)
        done_units, durations, finished = self._done_units - self._units_then, self._seconds, self._finished
        self._open(now)
        is_first, self._has_begun_early = self._has_begun_early, False
        if mean < FULL_RATIO * target:
            return
        self._choose_source(running, finished)
        if is_first and self.source != "finished":
            return  # tasks load their data in this window
        # At the end of the list, places stay empty for lack of tasks: a full level would do more.
        full = 1.0 if self._has_waiting() else max(target / mean, 1.0)
        rates = [full * mean / one for one in durations] if self.source == "finished" else [full * done_units / seconds]
        if self.tuner is not None and rates and self._known_source not in ("", self.source):
            self._known_source = ""
            self.tuner.forget()
        if self.tuner is not None and not self.tuner.is_done:
            waiting = max(self._tasks - self._done_tasks - len(self.board.running), 0)
            self.tuner.window(rates, finished, waiting)
            self._follow_tuner(now)
        elif self.comparison is not None:
            self.comparison.window(rates, finished)
            self._follow_comparison(now)

    def _choose_source(self, running: Mapping[int, Attempt], finished: int) -> None:
        """Choose progress as the source of rates if most tasks report it, else finished tasks.

        The source is kept, because rates of two sources cannot be compared. Tasks shorter than a window are counted
        when they are done, because a part of their progress is missed.
        """
        has_rates = bool(self.levels) or (self.tuner is not None and self.tuner.has_rates)
        if self.source and (self.source != "finished" or has_rates):
            return
        sources = [task.rate_source for task in running.values() if task.units is not UNSET]
        is_counted = bool(sources) and len(sources) >= COUNTED_RATIO * len(running) and finished < len(running)
        found = sources[0] if is_counted else UNSET
        self.source = "finished" if found is UNSET else found

    def _run_dry(self, running: Mapping[int, Attempt], target: int, now: float) -> None:
        """End the trials if too few tasks are left to fill the level. What the open window has measured counts."""
        if self._full_s is None and self._most_here == 0:
            return
        is_measured = bool(self._seconds) and not self._is_by_progress
        if self._opened_s is not None and (is_measured or now - self._opened_s >= self.window_s / 2):
            self._close(target, running, now)
        if self.tuner is not None and not self.tuner.is_done:
            self.tuner.stop("few tasks")
            self._follow_tuner(now)
        elif self.comparison is not None and self.comparison.now is not None:
            self.comparison.stop()
            self._follow_comparison(now)

    # ---- Bounds ----

    def _bound(self, host: MemoryUse | None) -> None:
        if self.tuner is None or self.tuner.is_done:
            return
        per_gpu = self.board.most_on_a_gpu()
        if per_gpu is None:
            return
        most = min(per_gpu * self.gpus, max(self.workers, self.gpus))
        limit = self.board.max_per_gpu
        if limit is not None:
            most = min(most, limit * self.gpus)
        if host is not None and any(host.tasks_mib):
            others = max(host.used_mib - sum(host.tasks_mib), 0)
            most = min(most, int((HOST_RATIO * host.total_mib - others) // max(host.tasks_mib)))
        if most != self.tuner.hi:
            self.tuner.bound(most)
            if self.tuner.level != self._level:
                self._go(self.tuner.level)

    def _check_room(self, count: int, target: int, now: float) -> None:
        """Take the number of running tasks as the bound if tasks wait but none has started for long."""
        if self._level_s == 0.0:
            self._level_s = now
        is_stuck = now - self._level_s > STUCK_WINDOWS * self.window_s and count < target and self._has_waiting()
        if is_stuck and self.tuner is not None and not self.tuner.is_done and count >= self.gpus:
            self._tell(f"{self._level} tasks at once have no room on {self.node.name}: {count} run")
            self.tuner.bound(count)
            self._go(self.tuner.level, now)

    # ---- The next level or method ----

    def _follow_tuner(self, now: float) -> None:
        tuner = self.tuner
        assert tuner is not None
        if tuner.level != self._level or tuner.is_done:
            self._spend(now)
        if not tuner.is_done:
            if tuner.level != self._level:
                self._go(tuner.level, now)
                self._keep(tuner)  # for the next run, if this one is killed
            return
        self._go(tuner.level, now)
        assert tuner.end is not None
        self._tell(f"{counted(tuner.level, 'task')} at once from now on: {tuned_text.WHY[tuner.end]}")
        self._keep(tuner)
        if self.is_compared and tuner.levels:
            self._begin_comparison(tuner.levels)
            self._follow_comparison(now)

    def _begin_comparison(self, measured: Sequence[LevelRun]) -> None:
        """Plan the trials of sharing methods; log the methods that this node does not have."""
        self._shared_level = self._level
        trials: list[tuple[SharingMethod, int]] = [("exclusive", min(self.gpus, self._level))]
        if any(one.takes_only_mps for one in self.facts):
            self._tell("time-slicing is not tried: the GPUs take MPS clients only (EXCLUSIVE_PROCESS)")
        elif any(one.is_single for one in self.facts):
            self._tell("time-slicing is not tried: the GPUs take one process at a time (EXCLUSIVE_PROCESS)")
        else:
            trials.append(("time-slicing", self._level))
        if self.base == "mps":
            trials.append(("mps", self._level))
        else:
            self._tell(f"MPS is not tried: there is none on the GPUs of {self.node.name}")
        same = [one for one in measured if one.level == self._level and one.sharing == self.base]
        self.comparison = Comparison(trials, self._tasks, same)
        if self.comparison.now is not None and not measured:
            self.sharing, self._level = self.comparison.now

    def _follow_comparison(self, now: float) -> None:
        compared = self.comparison
        assert compared is not None
        is_comparable = len({one.sharing for one in compared.runs}) > 1
        best = compared.best if is_comparable else None
        wanted = compared.now
        if wanted is None:
            wanted = (self.base, self._shared_level) if best is None else (best.sharing, best.level)
        if wanted != (self.sharing, self._level):
            self._spend(now)
            if wanted[0] != self.sharing:
                self._is_draining, self._level_s = True, now
            self._next = wanted
            if not self._is_draining:
                self._go(wanted[1], now)
            else:
                self._set_limit()
        if compared.now is None:
            if compared.untried:
                untried = ", ".join(compared.untried)
                self._tell(f"not compared for lack of tasks: {untried}; that takes a run with more tasks")
            if best is None:
                self._tell(
                    f"{self.base} from now on, {counted(self._shared_level, 'task')} at once, as without a comparison"
                )
            else:
                why = "it is the fastest of those compared" if compared.untried else "it is fastest"
                self._tell(f"{best.sharing} from now on, {counted(best.level, 'task')} at once: {why}")

    def _end_drain(self, count: int, now: float) -> None:
        """Begin with the next method when no task of the last one runs: methods are never mixed on a GPU."""
        if count:
            return
        self._is_draining = False
        self._spent.append((self.sharing, 0, now - self._level_s))  # draining counts as time without work
        self.sharing, level = self._next
        self._go(level, now)

    def _spend(self, now: float) -> None:
        self._spent.append((self.sharing, self._level, now - self._level_s))

    def _go(self, level: int, now: float | None = None) -> None:
        self._level = level
        if now is not None:
            self._level_s = now
        self._most_here = 0
        self._reset()
        self._set_limit()

    def _reset(self) -> None:
        self._full_s = self._opened_s = None

    def _set_limit(self) -> None:
        limit = 0 if self._is_draining else -(-self._level // self.gpus)
        if limit != self._limit:
            self._limit = limit
            self.board.limit(limit)

    def finish(self) -> None:
        """End a search that goes on at the end of the run, and keep what it has found for the next run."""
        if self.tuner is not None and not self.tuner.is_done:
            self.tuner.stop("stopped")
            self._keep(self.tuner)

    def _keep(self, tuner: Tuner) -> None:
        """Keep what a search has found for the next run, and where that is to go on."""
        models = {one.model for one in self.facts}
        best = tuner.best
        if not tuner.is_new or best is None or self._key is None or len(models) != 1:
            return
        self._keep_result(
            SearchRun(
                when=round(time.time(), 3),
                exact=self._key.exact,
                family=self._key.family,
                gpu_model=models.pop(),
                gpus=self.gpus,
                rate_source=self.source,
                levels=tuple(tuner.pool[level] for level in sorted(tuner.pool)),
                best=best.level,
                end=tuner.end or "stopped",
                next=tuner.next if tuner.is_done else tuner.level,
            )
        )

    # ---- State and results ----

    @property
    def is_over(self) -> bool:
        is_tuning = self.tuner is not None and not self.tuner.is_done
        is_comparing = self.comparison is not None and self.comparison.now is not None
        return self.has_begun and not is_tuning and not is_comparing

    @property
    def levels(self) -> tuple[LevelRun, ...]:
        """Return the levels and methods measured so far."""
        tuned = [] if self.tuner is None else self.tuner.levels
        compared = [] if self.comparison is None else self.comparison.runs
        return (*tuned, *(one for one in compared if one not in tuned))

    @property
    def threads(self) -> int:
        """Return the mean number of cores per task at this level, at least 1."""
        return max(1, self.node.cores // max(self._level, 1))

    @property
    def method(self) -> SharingMethod | None:
        """Return the sharing method of the next task; None: the method for which the GPU is set up."""
        return None if self.sharing == self.base else self.sharing

    def sentences(self) -> list[str]:
        """Return the tables for the end of the run, as lines."""
        found: list[str] = []
        simulated = " (simulated GPUs)" if any(one.is_simulated for one in self.facts) else ""
        tuner = self.tuner
        if tuner is not None and tuner.levels:
            found.append(f"tasks at once on {self.node.name}{simulated}:")
            own = {one.level for one in tuner.levels}
            earlier = [one for one in tuner.known_levels if one.level not in own]
            found += tuned_text.levels_table(tuner.levels, tuner.level, self.gpus, self.source, earlier)
            if tuner.end is not None:
                found.append(
                    tuned_text.best_sentence(tuner.known_levels, tuner.level, tuner.end, tuner.next, self.node.count)
                )
        elif tuner is not None:
            why = "the run was too short" if self._done_tasks else "no task was done"
            if tuner.end == "no rates":
                why = tuned_text.WHY[tuner.end]
            found.append(f"no number of tasks at once was measured: {why}")
        compared = self.comparison
        if compared is not None and compared.runs:
            found.append(f"ways of sharing on {self.node.name}{simulated}:")
            found += tuned_text.methods_table(compared.runs, self.gpus, self.source)
        elif self.is_compared:
            found.append("no way of sharing was measured: the run was too short")
        runs = self.levels
        best = max(runs, key=lambda one: one.per_s, default=None)
        if tuner is not None and (compared is None or not compared.runs):
            best = tuner.best
        is_known = tuner is None or (tuner.is_finished and tuner.end != "same")
        if best is not None and self.is_over and is_known:
            cost = tuned_text.cost_s(self._spent, runs, best)
            found.append(f"the trials cost as much work as {best.level} tasks at once do in {cost:.0f} s")
        return found
