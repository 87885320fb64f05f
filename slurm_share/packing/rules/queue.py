"""The waiting attempts of a board: their order, estimates, known least needs, and why some are given up."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping

from ..attempt import Attempt
from ..records import TaskAsk, TaskKey, WaitingView
from . import endings, recover
from .dead_tasks import DeadTasks
from .waiting_estimates import WaitingEstimates


class Queue:
    """The attempts that wait for their start, in the order of their tasks' first attempts."""

    def __init__(self, estimates: WaitingEstimates) -> None:
        """Start with an empty queue."""
        self._estimates = estimates
        self._waiting: dict[int, Attempt] = {}
        self._order: list[tuple[int, int]] = []
        """(seq, task), sorted."""
        self._next_seq = 0
        self._floors: dict[object, tuple[int, int]] = {}
        """What `_same` returns -> the least need, and the memory that was too small."""
        self._dead = DeadTasks()
        self._views: tuple[WaitingView, ...] | None = ()
        self.retries = 0
        """Waiting tasks that have had an attempt."""

    @property
    def waiting(self) -> Mapping[int, Attempt]:
        """Return task -> its waiting attempt."""
        return self._waiting

    def __len__(self) -> int:
        return len(self._order)

    def first(self) -> Attempt | None:
        return self._waiting[self._order[0][1]] if self._order else None

    def window(self, most: int) -> list[Attempt]:
        """Return the attempts that one decision considers."""
        return [self._waiting[task] for _, task in self._order[:most]]

    # ---- Changes ----

    def make(self, ask: TaskAsk, now_s: float, floor_mib: int = 0) -> Attempt:
        """Return a first attempt that is not in the queue, with the least need that its command has shown."""
        attempt = Attempt(ask=ask, floor_mib=floor_mib, waits_since_s=now_s, seq=self._next_seq)
        self._raise_floor(attempt)
        return attempt

    def append(self, attempt: Attempt) -> None:
        """Put a first attempt at the end."""
        attempt.seq = self._next_seq
        self._next_seq += 1
        self.insert(attempt)

    def insert(self, attempt: Attempt) -> None:
        """Put an attempt in its place."""
        task = attempt.ask.task
        self._waiting[task] = attempt
        insort(self._order, (attempt.seq, task))
        self.retries += attempt.after is not None
        self._views = None

    def remove(self, task: int) -> Attempt:
        attempt = self._waiting.pop(task)
        del self._order[bisect_left(self._order, (attempt.seq, task))]
        self.retries -= attempt.after is not None
        self._views = None
        return attempt

    # ---- Views ----

    def views(self, most: int) -> tuple[WaitingView, ...]:
        """Return the views of the attempts that one decision considers."""
        if self._views is None:
            self._views = tuple([self.view(attempt) for attempt in self.window(most)])
        return self._views

    def view(self, attempt: Attempt) -> WaitingView:
        """Return the view of a waiting attempt with current estimates, and why it is given up."""
        self._estimates.update(attempt)
        why = self._dead.why_hopeless(attempt)
        if why != attempt.hopeless:
            attempt.hopeless, attempt.waiting_view = why, None
        return attempt.render_waiting()

    # ---- What is learned ----

    def learned(self, family: str) -> None:
        """Estimate the waiting tasks of a family again, or all of them if `family` is empty."""
        self._estimates.learned(family)
        self._views = None

    def freshen(self, family: str, now_s: float) -> None:
        """The same, and note the time."""
        self._estimates.freshen(family, now_s)
        self._views = None

    def ended(self, run: Attempt, coming: recover.Next, now_s: float) -> None:
        """Apply what an end shows to the waiting tasks of the same command or family."""
        ask, key = run.ask, run.ask.key
        if key is None:
            return
        is_memory = run.kind in endings.MEMORY_KINDS
        if is_memory:
            same = _same(ask)
            self._floors[same] = max(self._floors.get(same, (0, 0)), (coming.floor_mib, coming.had_room_mib))
            for other in self._waiting.values():
                if _same(other.ask) == same:
                    self._raise_floor(other)
            self._views = None
        elif run.kind == "done":
            if self._floors and ask.gpu_mem_mib is None:  # a user's number stays too small
                self._floors.pop(_same(ask), None)
            self._dead.done(ask, run.estimate)
        if coming.is_dead_alone:
            self._dead.died(ask, run.estimate, coming.had_room_mib)
            self._views = None
        if key.family and self._estimates.ended(key.family, now_s, is_memory=is_memory):
            self.freshen(key.family, now_s)

    def _raise_floor(self, attempt: Attempt) -> None:
        """Give an attempt the least need that attempts at the same command have shown."""
        if not self._floors:
            return
        floor_mib, had_room_mib = self._floors.get(_same(attempt.ask), (0, 0))
        if floor_mib > attempt.floor_mib:
            attempt.floor_mib, attempt.waiting_view = floor_mib, None
            attempt.had_room_mib = max(had_room_mib, attempt.had_room_mib)


def _same(ask: TaskAsk) -> object:
    """Return a value that is equal for tasks that need the same memory; without a key, the task's own number."""
    key: TaskKey | None = ask.key
    if key is None:
        return ask.task
    return key.exact or (key.family, key.numbers), ask.gpu_mem_mib
