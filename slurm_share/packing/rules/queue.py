"""The waiting attempts of a board: their order, estimates, known least needs, and why some are given up.

A task is given up if tasks like it ran out of memory with a whole GPU to themselves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ...core.text import gib_text
from ..attempt import Attempt
from ..records import Estimate, GpuFacts, Source, TaskAsk, TaskKey, WaitingView
from ..speed_records import Load
from . import endings, recover
from .estimate.estimator import Estimator
from .room import UNKNOWN_MIB, size_basis
from .speeds import Speeds

FRESH_ENDS = 8
FRESH_S = 30.0
"""Tasks of a family are estimated again after each of its first FRESH_ENDS ends, then at each doubling and after
FRESH_S: one run among many changes little, and an estimate costs more than a decision."""
ESTIMATES_MOST = 4096
"""Most cached estimates: a run may have a hundred thousand commands."""
DEAD_LEAST = 3
"""Number of tasks of a family that have to run out of memory with a GPU to themselves before others are given up."""
SIZED_BY: frozenset[Source] = frozenset({"exact", "line", "other-gpu", "static", "probe"})
"""Estimates of the task itself. Those of its family or of a running sibling are the same for all its tasks."""


class Queue:
    """The attempts that wait for their start: by priority, then in the order of their tasks' first attempts."""

    def __init__(self, estimates: WaitingEstimates) -> None:
        """Start with an empty queue."""
        self._estimates = estimates
        self._waiting: dict[int, Attempt] = {}
        self._order: list[tuple[int, int, int]] = []
        """(negative priority, seq, task), sorted."""
        self._next_seq = 0
        self._floors: dict[object, tuple[int, int]] = {}
        """Result of `_same` -> the least need, and the memory that was too small, in MiB."""
        self._dead = DeadTasks()
        self._views: tuple[WaitingView, ...] | None = ()
        self._current: set[int] = set()
        """Waiting tasks that were refreshed since something was learned: most decisions find few others."""
        self.retries = 0
        """Waiting tasks that have had an attempt."""

    @property
    def waiting(self) -> Mapping[int, Attempt]:
        """Return task -> its waiting attempt."""
        return self._waiting

    def __len__(self) -> int:
        return len(self._order)

    def first(self) -> Attempt | None:
        return self._waiting[self._order[0][2]] if self._order else None

    def in_order(self) -> Iterator[Attempt]:
        """Return the waiting attempts in their order; do not change the queue meanwhile."""
        return (self._waiting[task] for *_, task in self._order)

    def window(self, most: int) -> list[Attempt]:
        """Return the attempts that one decision considers."""
        waiting = self._waiting
        return [waiting[place[2]] for place in self._order[:most]]

    # ---- Changes ----

    def make(self, ask: TaskAsk, now_s: float, floor_mib: int = 0) -> Attempt:
        """Return a first attempt that is not in the queue, with the least need that its command has shown."""
        attempt = Attempt(ask=ask, floor_mib=floor_mib, waits_since_s=now_s, seq=self._next_seq)
        self._raise_floor(attempt)
        return attempt

    def append(self, attempt: Attempt) -> None:
        """Put a first attempt at the end."""
        self.number(attempt)
        self.insert(attempt)

    def number(self, attempt: Attempt) -> None:
        """Give a first attempt the place at the end, which its retries keep."""
        attempt.seq = self._next_seq
        self._next_seq += 1

    def insert(self, attempt: Attempt) -> None:
        """Put an attempt in its place."""
        task = attempt.ask.task
        self._waiting[task] = attempt
        self._current.discard(task)
        insort(self._order, (-attempt.ask.priority, attempt.seq, task))
        self.retries += attempt.after is not None
        self._views = None

    def remove(self, task: int) -> Attempt:
        attempt = self._waiting.pop(task)
        del self._order[bisect_left(self._order, (-attempt.ask.priority, attempt.seq, task))]
        self.retries -= attempt.after is not None
        self._views = None
        return attempt

    # ---- Views ----

    def views(self, most: int) -> tuple[WaitingView, ...]:
        """Return the views of the attempts that one decision considers."""
        if self._views is None:
            waiting, current, found = self._waiting, self._current, []
            for _, _, task in self._order[:most]:
                attempt = waiting[task]
                if task not in current:
                    self.refresh(attempt)
                    current.add(task)
                found.append(attempt.waiting_view or attempt.render_waiting())
            self._views = tuple(found)
        return self._views

    def view(self, attempt: Attempt) -> WaitingView:
        """Return the view of a waiting attempt with current estimates, and why it is given up."""
        self.refresh(attempt)
        return attempt.render_waiting()

    def refresh(self, attempt: Attempt) -> None:
        """Bring the estimates of a waiting attempt up to date, and why it is given up."""
        self._estimates.update(attempt)
        why = self._dead.why_hopeless(attempt)
        if why != attempt.hopeless:
            attempt.hopeless, attempt.waiting_view = why, None

    # ---- What is learned ----

    def learned(self, family: str) -> None:
        """Estimate the waiting tasks of a family again, or all of them if `family` is empty."""
        self._estimates.learned(family)
        self._forget_views()

    def freshen(self, family: str, now_s: float) -> None:
        """The same, and note the time."""
        self._estimates.freshen(family, now_s)
        self._forget_views()

    def _forget_views(self) -> None:
        self._views = None
        self._current.clear()

    def ended(self, run: Attempt, coming: recover.RetryDecision, now_s: float) -> None:
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
            self._forget_views()
        elif run.kind == "done":
            if self._floors and not ask.is_sized:  # a user's number stays too small
                self._floors.pop(_same(ask), None)
            self._dead.done(ask, run.estimate)
            if self._dead:
                self._current.clear()  # a task that was given up may be tried again
        if coming.is_dead_alone:
            self._dead.died(ask, run.estimate, coming.had_room_mib)
            self._forget_views()
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
    """Return a key that tasks of equal memory needs have in common; if the command is not known, the task's number."""
    key: TaskKey | None = ask.key
    if key is None:
        return ask.task
    return key.exact or (key.family, key.numbers), ask.gpu_mem_mib, ask.gpu_mem_least_mib, ask.gpu_mem_percent


# ---- Estimates ----


class _WaitingFamily(Struct):
    """Events that make the estimates of a family's tasks outdated."""

    epoch: int = 0
    ends: int = 0
    fresh_s: float = 0.0


class WaitingEstimates:
    """The estimates of one board's waiting tasks."""

    def __init__(
        self,
        estimator: Estimator | None,
        speeds: Speeds,
        gpus: Sequence[GpuFacts],
        *,
        has_speeds: bool,
    ) -> None:
        """Start without estimates. `has_speeds`: the policy uses speeds. `estimator` None: sizes are not estimated."""
        self._estimator = estimator
        self._speeds = speeds
        self._gpus = gpus
        self._models = tuple(dict.fromkeys(gpu.model for gpu in gpus))
        self._has_speeds = has_speeds
        self._families: dict[str, _WaitingFamily] = {}
        self._kept: dict[object, tuple[int, tuple[tuple[str, Estimate], ...], tuple[tuple[str, Load], ...], bool]] = {}

    def update(self, attempt: Attempt) -> None:
        """Give a waiting attempt the current estimates of its task."""
        if self._estimator is None:
            return
        ask = attempt.ask
        family = self._families.get(ask.key.family) if ask.key is not None else None
        epoch = 0 if family is None else family.epoch
        if attempt.epoch == epoch:
            return
        known = (ask.key, ask.gpu_mem_mib, ask.gpu_mem_least_mib, ask.gpu_mem_percent, ask.gpus)
        kept = self._kept.get(known)
        if kept is None or kept[0] != epoch:
            estimate = self._estimator.estimate
            found = tuple((model, estimate(ask, model, mib)) for model, mib in size_basis(ask, self._gpus).items())
            kept = (epoch, found, self._loads(ask), self._has_speeds and self._speeds.is_new(ask, self._models))
            if len(self._kept) >= ESTIMATES_MOST:
                self._kept.clear()
            self._kept[known] = kept
        attempt.epoch = epoch
        if (attempt.estimates, attempt.loads, attempt.is_new) != kept[1:]:
            attempt.estimates, attempt.loads, attempt.is_new = kept[1:]
            attempt.waiting_view = None

    def learned(self, family: str) -> None:
        """Renew the estimates of a family's waiting tasks, or of all if `family` is empty."""
        for name in [family] if family else list(self._families):
            self._families.setdefault(name, _WaitingFamily()).epoch += 1

    def freshen(self, name: str, now_s: float) -> None:
        """Renew the estimates of a family's waiting tasks, and note the time."""
        family = self._families.setdefault(name, _WaitingFamily())
        family.epoch += 1
        family.fresh_s = now_s

    def ended(self, name: str, now_s: float, *, is_memory: bool) -> bool:
        """Count the end of a task of a family. Return whether the family's estimates should be renewed.

        `is_memory`: the task ran out of GPU memory, which always renews them.
        """
        family = self._families.setdefault(name, _WaitingFamily())
        family.ends += 1
        is_few = family.ends <= FRESH_ENDS or family.ends & (family.ends - 1) == 0
        return is_few or now_s - family.fresh_s >= FRESH_S or is_memory

    def _loads(self, ask: TaskAsk) -> tuple[tuple[str, Load], ...]:
        """Return the measured load of a task on each GPU model on which it is known."""
        if not self._has_speeds:
            return ()
        found = ((model, self._speeds.load(ask, model)) for model in self._models)
        return tuple((model, load) for model, load in found if load is not None)


# ---- Tasks that no GPU can hold ----


class _Dead(Struct, frozen=True):
    """A task that ran out of memory with a GPU to itself."""

    task: int
    exact: str
    size_mib: int
    """The user's own number or its estimate at its start; if there was none, the memory that it had."""
    had_mib: int


class DeadTasks:
    """The tasks of one run and node that no GPU could hold, and what others of their families have shown."""

    def __init__(self) -> None:
        self._dead: dict[str, list[_Dead]] = {}
        self._done: dict[str, int] = {}
        """Family -> largest size of a task that was done in this run, in MiB."""
        self._done_commands: set[str] = set()

    def __bool__(self) -> bool:
        """Return whether a task has died."""
        return bool(self._dead)

    def died(self, ask: TaskAsk, estimate: Estimate, had_mib: int) -> None:
        """Record a task that ran out of memory with a GPU to itself, which gave it `had_mib`."""
        key = ask.key
        if key is not None and key.family:
            size_mib = own_size_mib(ask, (estimate,))
            dead = _Dead(ask.task, key.exact, had_mib if size_mib is None else min(size_mib, had_mib), had_mib)
            self._dead.setdefault(key.family, []).append(dead)

    def done(self, ask: TaskAsk, estimate: Estimate) -> None:
        """Record a task that was done."""
        key = ask.key
        if key is None:
            return
        if key.exact:
            self._done_commands.add(key.exact)
        size_mib = own_size_mib(ask, (estimate,))
        if key.family and size_mib is not None:
            self._done[key.family] = max(size_mib, self._done.get(key.family, 0))

    def why_hopeless(self, waiting: Attempt) -> str:
        """Return why a waiting task is given up; empty: it is tried.

        It is given up after DEAD_LEAST dead tasks of its family if it is the command of one of them, or if its own
        number or its estimate is at least the size of one of them. A command with a done run is always tried, and so is
        a task that is not larger than one that was done.
        """
        ask, key = waiting.ask, waiting.ask.key
        dead = () if key is None else self._dead.get(key.family, ())
        if key is None or len(dead) < DEAD_LEAST or key.exact in self._done_commands:
            return ""
        estimates = [estimate for _, estimate in waiting.estimates]
        if any(estimate.was_done for estimate in estimates):
            return ""
        same = next((one for one in dead if key.exact and one.exact == key.exact), None)
        if same is not None:
            return f"task {same.task}, the same command, {_died_text(same)}"
        size_mib = own_size_mib(ask, estimates)
        if size_mib is None or size_mib <= self._done.get(key.family, 0):
            return ""
        smallest = min(dead, key=lambda one: (one.size_mib, one.task))
        if size_mib < smallest.size_mib:
            return ""
        size = "--gpu-mem" if ask.is_sized else "estimate"
        return (
            f"its {size} is {gib_text(size_mib)}, and task {smallest.task} of the same script, with "
            f"{gib_text(smallest.size_mib)}, {_died_text(smallest)}"
        )


def own_size_mib(ask: TaskAsk, estimates: Sequence[Estimate]) -> int | None:
    """Return the user's own number for a task, or the smallest estimate of the task itself; None: not known."""
    if ask.is_sized and ask.gpu_mem_mib is not None:
        return ask.gpu_mem_mib
    sizes = [
        one.point_mib
        for one in estimates
        if (one.source in SIZED_BY or ask.is_sized) and not one.is_elastic and one.point_mib is not None
    ]
    return min(sizes, default=None)


def _died_text(dead: _Dead) -> str:
    size = f" ({gib_text(dead.had_mib)})" if dead.had_mib < UNKNOWN_MIB else ""
    return f"ran out of GPU memory with a GPU to itself{size}"
