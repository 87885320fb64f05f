"""Decide which waiting task starts on which GPU, and why not on the others.

The policy `gain` is here; `booked`, the default of llsub, is in its own module. The common base is in `policy`, and the
reasons for which a task does not start are in `refusals`. A board gets another policy as a function like `decide`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..decision_records import Decision, StartRefusal
from ..records import PackView, TaskAsk, WaitingView
from ..speed_records import Load, PairView, SharingMethod
from . import interference, refusals, undo
from .booked import BookedPolicy, Need, seconds_of
from .room import Place

LEAST_GAIN = 0.10
"""A task waits if it would add less to the aggregate speed of a GPU, by what was measured. Programs differ by about
10 % between two runs (Pan 2021)."""
PREDICTED_MOST = 4
"""In one decision, predictions order the GPUs for at most this many tasks: with 16 GPUs of 8 tasks, more of them would
exceed the 5 ms that a decision may take."""
UNMEASURED_GAIN = 0.5
"""Aggregate speed that a task is taken to add to other tasks if it is not known. It orders GPUs only."""


def decide(view: PackView) -> Decision:
    """Return the actions and refusals that follow from a view, by `booked` or `gain`.

    Uses no clock and no randomness; ties go to the lower GPU index, then to the lower task number.
    """
    return (GainPolicy if view.settings.policy == "gain" else BookedPolicy)(view).decide()


class _GpuTasks:
    """The tasks of a GPU that are not paused, as `gain` sees them."""

    __slots__ = ("loads", "names", "stp")

    def __init__(self) -> None:
        self.names: list[str] = []
        """Their commands."""
        self.loads: list[Load | None] = []
        self.stp: float | None = None
        """Their predicted aggregate speed; None: it has to be predicted again."""

    def add(self, ask: TaskAsk, load: Load | None) -> None:
        self.names.append(_command(ask))
        self.loads.append(load)
        self.stp = None


class GainPolicy(BookedPolicy):
    """Place tasks by booked memory, on the GPU where a task adds most to the aggregate speed (STP).

    A GPU without a task of this launcher is best. For the others, what counts is the measured delays of each pair, else
    the capacity model of `interference` if the loads of all tasks were measured. Only what was measured refuses: a task
    waits for other neighbours if it would add less than LEAST_GAIN, or if it did less than one at a time beside one of
    them. To measure this, one task of each command is left alone on a GPU until its rate is known.
    """

    def __init__(self, view: PackView) -> None:
        super().__init__(view)
        self._beside: dict[str, dict[str, PairView]] = {}
        """Command -> commands beside which it was measured."""
        for pair in view.pairs:
            self._beside.setdefault(pair.a, {})[pair.b] = pair
            self._beside.setdefault(pair.b, {})[pair.a] = pair
        self._groups: dict[str, _GpuTasks] = {}
        for place in self.places:
            group = self._groups[place.uuid] = _GpuTasks()
            for one in place.running:
                if not one.is_paused:
                    group.add(one.ask, one.load)
        self._waiting = undo.repeats(view)
        self._new = {_command(task.ask) for task in view.waiting if task.is_new}
        self._left_alone = undo.left_alone(view, self._waiting)
        self._predicted_for: set[int] = set()
        """Tasks whose gain was predicted in this decision."""

    def run(self) -> None:
        """Undo harmful placements, then decide about the waiting tasks."""
        undone = undo.actions(self.view)
        self.actions += undone
        changed = {action.gpu for action in undone}
        for place in self.places:
            place.is_closed = place.is_closed or place.uuid in changed  # the next decision sees the result
        super().run()

    # ---- Overrides ----

    def _place(self, task: WaitingView) -> bool:
        """Start a task; if that pays, one of a new command waits for an empty GPU, on which it is measured alone."""
        number = task.ask.task
        if self._wants_empty(task):
            if self.holder is None and not any(place.is_idle for place in self.served):
                usable = [one for one in self.served if not one.view.problem and one.uuid not in self._left_alone]
                place = min(usable, key=lambda one: (one.count, one.booked, one.index), default=None)
                if place is not None:
                    self._hold(task, place, f"GPU {place.index} is kept free for task {number}, to measure it alone")
            if self.holder == number and not any(one.held_for == number and one.is_idle for one in self.places):
                self.refused.append(StartRefusal(number, "", refusals.MEASURED_FIRST))
                return False
        return super()._place(task)

    def _wants_empty(self, task: WaitingView) -> bool:
        name = _command(task.ask)
        if not task.is_new or self._waiting[name] <= undo.REPEATS_LEAST:
            return False
        is_measured = any(_command(ask) == name for ask in self._left_alone.values())
        return not is_measured and undo.pays_empty(self.view, seconds_of(task), len(self._new))

    def unsuited_reason(self, task: WaitingView, place: Place) -> str:
        """Return why a task that has room on a GPU may not join the tasks there; empty: it may."""
        if place.uuid in self._left_alone:
            return refusals.MEASURED
        if self._refuses(_command(task.ask), self._groups[place.uuid].names):
            return refusals.REFUSED
        gain = self._measured_gain(task, place)
        return refusals.LITTLE_GAIN.format(gain) if gain is not None and gain < LEAST_GAIN else ""

    def rank(self, task: WaitingView, place: Place) -> tuple[float, ...]:
        """Return the aggregate speed that a task adds to a GPU, then the room there. A GPU without tasks is best."""
        if place.is_idle:
            return math.inf, place.room
        measured = self._measured_gain(task, place)
        return self._predicted_gain(task, place) if measured is None else measured, place.room

    def signature(self, task: WaitingView, need: Need) -> object:
        """Return the signature of `booked` with the task's loads, and its command if pairs of it are known."""
        name = _command(task.ask)
        return super().signature(task, need), task.loads, name if name in self._beside else None

    def suits_text(self, task: WaitingView, place: Place) -> str:
        """Return the predicted speeds with the task: "; both keep ~0.84, together 1.7 of one"."""
        if place.is_idle or not self._groups[place.uuid].names:
            return ""
        slowdowns = self._predicted(task, place)
        if slowdowns is None:
            return "; loads not known"
        return f"; {interference.speeds_text([1.0 / one for one in slowdowns])}"

    def begun(self, task: WaitingView, place: Place) -> None:
        group, others = self._groups[place.uuid], self._left_alone.values()
        self._waiting[_command(task.ask)] -= 1
        is_first = task.is_new and not group.names
        if is_first and undo.pays_alone(self.view, task.ask, seconds_of(task), others, self._waiting):
            self._left_alone[place.uuid] = task.ask
        group.add(task.ask, dict(task.loads).get(place.model))

    # ---- The tasks of a GPU ----

    def _predicted(self, task: WaitingView, place: Place) -> list[float] | None:
        """Return the predicted slowdown of each task on a GPU with one more task; None: a load was not measured."""
        loads = [*self._groups[place.uuid].loads, dict(task.loads).get(place.model)]
        known = [load for load in loads if load is not None]
        return interference.slowdowns(known, _sharing(place)) if len(known) == len(loads) else None

    def _predicted_gain(self, task: WaitingView, place: Place) -> float:
        self._predicted_for.add(task.ask.task)
        slowdowns = self._predicted(task, place) if len(self._predicted_for) <= PREDICTED_MOST else None
        if slowdowns is None:
            return UNMEASURED_GAIN
        group = self._groups[place.uuid]
        if group.stp is None:
            group.stp = interference.stp(interference.slowdowns([one for one in group.loads if one], _sharing(place)))
        return round(interference.stp(slowdowns) - group.stp, 2)

    def _measured_gain(self, task: WaitingView, place: Place) -> float | None:
        """Return the aggregate speed that a task adds by the measured pairs; None: a pair was not measured."""
        names, new = self._groups[place.uuid].names, _command(task.ask)
        known = self._beside.get(new, {})
        if not names or any(other not in known for other in names):
            return None
        own, stp, before = 1.0, 0.0, 0.0
        for at, name in enumerate(names):
            slowdown = 1.0
            for other_at, other in enumerate(names):
                pair = self._beside[name].get(other)
                if other_at != at and pair is None:
                    return None
                slowdown += 0.0 if other_at == at or pair is None else pair.extra_of(name)
            own += known[name].extra_of(new)
            before += 1.0 / slowdown
            stp += 1.0 / (slowdown + known[name].extra_of(name))
        return round(stp + 1.0 / own - before, 2)

    def _refuses(self, name: str, others: Iterable[str]) -> bool:
        """Return whether a command did less than one at a time beside one of the others."""
        known = self._beside.get(name)
        return known is not None and any(other in known and known[other].is_refused for other in others)


def _command(ask: TaskAsk) -> str:
    return "" if ask.key is None else ask.key.exact


def _sharing(place: Place) -> SharingMethod:
    return "mps" if place.facts.is_mps else "time-slicing"
