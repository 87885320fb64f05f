"""Trials of a run of equal tasks: the number of tasks at once on the node, and the sharing method.

About once a second it measures the running tasks and closes windows. `packing.Search` chooses the next level from
these. It sets the limit of tasks per GPU and never ends a task: to lower the level, it starts fewer tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import UNSET

from ... import packing
from ...node.records import MemoryUse
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
        board: packing.Board,
        tell: Callable[[str], None],
        keep: Callable[[packing.SearchRun], None],
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
        self.base: packing.SharingMethod = "mps" if all(one.is_mps for one in self.facts) else "time-slicing"
        self.source = ""
        """Source of the rates; empty: not known yet."""
        self.searches: list[packing.Search] = []
        """The searches of this run: for the number of tasks, and for the sharing method. The last one goes on."""
        self._tell = tell
        self._keep_result = keep
        self.level = packing.Level(self.workers if run.triple is None else run.triple.per_node, self.base)
        """Tasks at once, and sharing method of the tasks that start now."""
        self._key: packing.TaskKey | None = None
        self._history = packing.History()
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
        self._spent: list[tuple[packing.Level, float]] = []
        """Seconds of each trial."""
        self._tasks = 0
        """Number of tasks of this node at the beginning."""
        self._done_tasks = 0
        """Tasks done since then."""
        self._known_source = ""
        """Source of the rates of the earlier run whose search this one continues; empty: none, or compared."""
        self._has_begun_early = False
        """Whether the open window has no window before it in which tasks may load their data."""

    # ---- Events ----

    def begin(self, key: packing.TaskKey | None, tasks: int, history: packing.History) -> None:
        """Begin the trials. `key`: of the first task. `tasks`: number of tasks of this node."""
        self._key, self._history = key, history
        self._tasks = tasks
        if self.is_tuned:
            self._begin("tasks", [packing.Level(self.gpus, self.base)], tasks)
            self._set(self.searches[-1].level)
        else:
            self._begin_methods(tasks)

    def _begin(self, kind: packing.SearchKind, levels: Sequence[packing.Level], tasks: int) -> None:
        now = time.time()
        known = self._known(kind, levels, now)
        measured = [one for one in self.levels if packing.Level(one.level, one.sharing) in levels]
        default = packing.Level(self.level.tasks if kind == "sharing" else self.gpus, self.base)
        search = packing.Search(
            kind, levels, tasks, gpus=self.gpus, default=default, measured=measured, known=known, now=now
        )
        self.searches.append(search)
        if known is not None:
            self._known_source = known.rate_source
            self._tell(packing.tuned_text.begin_sentence(known, search.level, now))

    def _begin_methods(self, tasks: int) -> None:
        """Begin to compare sharing methods, the one without trials last; log the methods that this node has not."""
        wanted = self.level
        levels = [packing.Level(min(self.gpus, wanted.tasks), "exclusive")]
        if any(one.takes_only_mps for one in self.facts):
            self._tell("time-slicing is not tried: the GPUs take MPS clients only (EXCLUSIVE_PROCESS)")
        elif any(one.is_single for one in self.facts):
            self._tell("time-slicing is not tried: the GPUs take one process at a time (EXCLUSIVE_PROCESS)")
        else:
            levels.append(packing.Level(wanted.tasks, "time-slicing"))
        if self.base == "mps":
            levels.append(packing.Level(wanted.tasks, "mps"))
        else:
            self._tell(f"MPS is not tried: there is none on the GPUs of {self.node.name}")
        is_first = not self.searches
        self._begin("sharing", levels, tasks)
        if is_first:
            self._set(self.searches[-1].level)
        if is_first and self.is_over:
            self._end()

    def _known(self, kind: packing.SearchKind, levels: Sequence[packing.Level], now: float) -> packing.SearchRun | None:
        """Return the search of an earlier run with which this one goes on. levels: of this one."""
        key = self._key
        if key is None:
            return None
        models, methods = {one.model for one in self.facts}, {level.sharing for level in levels}
        found = [
            one
            for one in self._history.searches
            if one.kind == kind
            if (one.exact and one.exact == key.exact) or (one.family and one.family == key.family)
            if {one.gpu_model} == models and one.gpus == self.gpus and any(run.sharing in methods for run in one.levels)
        ]
        return packing.newest_search(found, now)

    def ended(self, task: packing.Attempt, now: float, *, is_done: bool) -> None:
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

    def _count(self, task: packing.Attempt) -> None:
        units = task.units
        if units is UNSET:
            return
        before = self._units.get(task.task)
        if before is not None:  # the first value may include work of an earlier time or attempt
            self._done_units += max(units - before, 0.0)
            if units > before:
                self._risen.add(task.task)
        self._units[task.task] = units

    def tick(self, running: Mapping[int, packing.Attempt], host: MemoryUse | None, now: float) -> None:
        """Measure the running tasks, close a window that is over, and set the next level or method."""
        if not self.searches or (self.is_over and not self._is_draining):
            return
        for task in running.values():
            self._count(task)
        count = len(self.board.running)
        self._most_here = max(self._most_here, count)
        if self._is_draining:
            self._end_drain(count, now)
            return
        self._bound(host)
        target = min(self.level.tasks, self.workers)
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

    @property
    def _waiting(self) -> int:
        """Return the number of tasks of this node that have not started."""
        return max(self._tasks - self._done_tasks - len(self.board.running), 0)

    def _has_waiting(self) -> bool:
        return bool(self.board.waiting) or self._has_shared()

    def _is_over(self, target: int, running: Mapping[int, packing.Attempt], seconds: float) -> bool:
        """Return whether the open window ends. If only finished tasks show a rate, one of each place is enough."""
        if seconds >= self.window_s and self._have_risen(running, seconds):
            return True
        return not self._is_by_progress and len(self._seconds) >= target and len(self._counts) >= EARLY_TICKS

    def _have_risen(self, running: Mapping[int, packing.Attempt], seconds: float) -> bool:
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

    def _close(self, target: int, running: Mapping[int, packing.Attempt], now: float) -> None:
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
        search = self.searches[-1]
        if rates and self._known_source not in ("", self.source):
            self._known_source = ""
            search.forget()
        search.window(rates, finished, self._waiting)
        self._follow(now)

    def _choose_source(self, running: Mapping[int, packing.Attempt], finished: int) -> None:
        """Choose progress as the source of rates if most tasks report it, else finished tasks.

        The source is kept, because rates of two sources cannot be compared. Tasks shorter than a window are counted
        when they are done, because a part of their progress is missed.
        """
        has_rates = bool(self.levels) or self.searches[-1].has_rates
        if self.source and (self.source != "finished" or has_rates):
            return
        sources = [task.rate_source for task in running.values() if task.units is not UNSET]
        is_counted = bool(sources) and len(sources) >= COUNTED_RATIO * len(running) and finished < len(running)
        found = sources[0] if is_counted else UNSET
        self.source = "finished" if found is UNSET else found

    def _run_dry(self, running: Mapping[int, packing.Attempt], target: int, now: float) -> None:
        """End the trials if too few tasks are left to fill the level. What the open window has measured counts."""
        if self._full_s is None and self._most_here == 0:
            return
        is_measured = bool(self._seconds) and not self._is_by_progress
        if self._opened_s is not None and (is_measured or now - self._opened_s >= self.window_s / 2):
            self._close(target, running, now)
        if not self.is_over:
            self.searches[-1].stop("few tasks")
            self._follow(now)

    # ---- Bounds ----

    def _bound(self, host: MemoryUse | None) -> None:
        search = self.searches[-1]
        if search.kind != "tasks" or search.is_done:
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
        if most != search.hi:
            search.bound(most)
            if search.level != self.level:
                self._set(search.level)

    def _check_room(self, count: int, target: int, now: float) -> None:
        """Take the number of running tasks as the bound if tasks wait but none has started for long."""
        if self._level_s == 0.0:
            self._level_s = now
        is_stuck = now - self._level_s > STUCK_WINDOWS * self.window_s and count < target and self._has_waiting()
        search = self.searches[-1]
        if is_stuck and search.kind == "tasks" and not search.is_done and count >= self.gpus:
            self._tell(f"{self.level.tasks} tasks at once have no room on {self.node.name}: {count} run")
            search.bound(count)
            self._level_s = now
            self._set(search.level)

    # ---- The next level or method ----

    def _follow(self, now: float) -> None:
        """Set the level that the search has chosen; where it ends, say so and keep what it has found."""
        search = self.searches[-1]
        if search.level != self.level or search.is_done:
            self._spent.append((self.level, now - self._level_s))
        if search.level != self.level:
            self._level_s = now
            if search.level.sharing != self.level.sharing:
                self._is_draining = True
                self._set_limit()
            else:
                self._set(search.level)
            if not search.is_done:
                self._keep(search)  # for the next run, if this one is killed
        if search.is_done:
            self._end()
            if search.kind == "tasks" and self.is_compared and search.levels:
                self._begin_methods(self._waiting)
                self._follow(now)

    def _end(self) -> None:
        for sentence in packing.tuned_text.end_sentences(self.searches[-1]):
            self._tell(sentence)
        self._keep(self.searches[-1])

    def _end_drain(self, count: int, now: float) -> None:
        """Begin with the next method when no task of the last one runs: methods are never mixed on a GPU."""
        if count:
            return
        self._is_draining = False
        self._spent.append((self.level._replace(tasks=0), now - self._level_s))  # it counts as time without work
        self._level_s = now
        self._set(self.searches[-1].level)

    def _set(self, level: packing.Level) -> None:
        self.level = level
        self._most_here = 0
        self._reset()
        self._set_limit()

    def _reset(self) -> None:
        self._full_s = self._opened_s = None

    def _set_limit(self) -> None:
        limit = 0 if self._is_draining else -(-self.level.tasks // self.gpus)
        if limit != self._limit:
            self._limit = limit
            self.board.limit(limit)

    def finish(self) -> None:
        """End a search that goes on at the end of the run, and keep what it has found for the next run."""
        if self.searches and not self.is_over:
            self.searches[-1].stop("stopped")
            self._keep(self.searches[-1])

    def _keep(self, search: packing.Search) -> None:
        """Keep what a search has found for the next run, and where that is to go on."""
        models = {one.model for one in self.facts}
        best = search.best
        if not search.is_new or best is None or self._key is None or len(models) != 1:
            return
        self._keep_result(
            packing.SearchRun(
                kind=search.kind,
                when=round(time.time(), 3),
                exact=self._key.exact,
                family=self._key.family,
                gpu_model=models.pop(),
                gpus=self.gpus,
                rate_source=self.source,
                levels=tuple(search.pool[level] for level in sorted(search.pool)),
                best=best.level,
                end=search.end or "stopped",
                next=search.next if search.is_done else search.level.tasks,
            )
        )

    # ---- State and results ----

    @property
    def has_begun(self) -> bool:
        return bool(self.searches)

    @property
    def is_over(self) -> bool:
        return bool(self.searches) and self.searches[-1].is_done

    @property
    def levels(self) -> tuple[packing.LevelRun, ...]:
        """Return the levels and methods measured so far."""
        return tuple(dict.fromkeys(one for search in self.searches for one in search.levels))

    @property
    def threads(self) -> int:
        """Return the mean number of cores per task at this level, at least 1."""
        return max(1, self.node.cores // max(self.level.tasks, 1))

    @property
    def method(self) -> packing.SharingMethod | None:
        """Return the sharing method of the next task; None: the method for which the GPU is set up."""
        return None if self.level.sharing == self.base else self.level.sharing

    def sentences(self) -> list[str]:
        """Return the tables for the end of the run, as lines."""
        simulated = " (simulated GPUs)" if any(one.is_simulated for one in self.facts) else ""
        where = self.node.name + simulated
        found = []
        for search in self.searches:
            found += packing.tuned_text.result_lines(
                search, where, self.source, self.node.count, is_idle=not self._done_tasks
            )
        best = None if not self.is_over else self.searches[-1].best
        if best is not None and all(one.is_finished and one.end != "same" for one in self.searches):
            cost = packing.tuned_text.cost_s(self._spent, self.levels, best)
            found.append(f"the trials cost as much work as {best.level} tasks at once do in {cost:.0f} s")
        return found
