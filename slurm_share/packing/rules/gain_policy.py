"""The policy `gain`: as `booked`, but choose the GPU where a task adds most to the aggregate speed (STP).

Memory is booked as in `booked`. Among the GPUs with room, a GPU without a task of this launcher adds 1. For the others,
the capacity model of `interference` predicts the gain and the speed that each task keeps. A task waits if it would add
too little, but not while a GPU without tasks has room, and not because of loads that were only assumed: in simulations
of the thesis' traces, waiting for assumed loads cost up to 7 % of completion time (tests/bench/measured.py).

`gain` needs no SM guard: the gain is small on a GPU whose multiprocessors are full.
"""

from __future__ import annotations

from ..records import PackView, WaitingView
from ..speed_records import Belief
from . import refusals, undo
from .booked_policy import Booked, Need
from .predicted_speeds import GroupTask, Pairs, PredictedGroup, belief_on, speeds_text
from .room import Place

MEASURED_S = 120.0
"""Longest time after its start for which a task is left alone to measure its rate."""
MEASURED_WINDOWS = 2
"""The rate alone is known after this many windows."""
LONG_S = 600.0
"""A task with a shorter expected duration is not left alone to be measured."""
TRIED_MOST = 12
"""In one decision, at most this many tasks are compared with the tasks on GPUs. Later ones start only on GPUs without
tasks: with 16 GPUs, more comparisons would exceed the 5 ms that a decision may take."""
_NOTHING = Belief()


class Gain(Booked):
    """Place tasks by booked memory, beside neighbours that suit."""

    def __init__(self, view: PackView) -> None:
        super().__init__(view)
        self.pairs = Pairs(view.pairs)
        self._groups: dict[str, PredictedGroup] = {}
        self._members: dict[tuple[int, str], GroupTask] = {}
        self._tried: set[int] = set()
        self._harmful: frozenset[str] = frozenset()
        """GPUs with two tasks of a banned pair."""

    def run(self) -> None:
        """Undo harmful placements, then decide about the waiting tasks."""
        undone = undo.actions(self.view)
        self.actions += undone
        self._harmful = undo.harmful_gpus(self.view)
        changed = {action.gpu for action in undone}
        for place in self.places:
            place.is_closed = place.is_closed or place.uuid in changed  # the next decision sees the result
        super().run()

    # ---- Overrides ----

    def unsuited_reason(self, task: WaitingView, place: Place) -> str:
        if place.is_idle:
            return ""
        if self._is_measured(place):
            return refusals.MEASURED
        number = task.ask.task
        if number not in self._tried:
            if len(self._tried) >= TRIED_MOST:
                return refusals.TRIED
            self._tried.add(number)
        group, member = self._group(place), self._member(task, place)
        settings = self.settings
        if group.is_banned(member):
            return refusals.BANNED
        if place.uuid in self._harmful:
            return refusals.HARMFUL
        if not (member.is_known and all(one.is_known for one in group.members)):
            return ""  # without measured loads, memory alone decides
        speeds = group.speeds(member)
        least = min(speeds)
        if least < settings.min_speed:
            if speeds[-1] == least:
                return refusals.IT_KEEPS.format(least)
            return refusals.KEEPS.format(group.members[speeds.index(least)].ask.task, least)
        gain = sum(speeds) - group.stp
        return refusals.LITTLE_GAIN.format(gain) if gain < settings.min_gain else ""

    def rank(self, task: WaitingView, place: Place) -> tuple[float, ...]:
        """Return the speed that a task adds to a GPU, then the room there."""
        if place.is_idle:
            return 1.0, place.room
        group = self._group(place)
        return round(sum(group.speeds(self._member(task, place))) - group.stp, 6), place.room

    def signature(self, task: WaitingView, need: Need) -> object:
        """Return the signature of `booked` with the task's load, and its key if pairs of it are known."""
        key = task.ask.key
        has_pairs = key is not None and bool(self.pairs.neighbours((key.exact, key.family)))
        return super().signature(task, need), task.beliefs, key if has_pairs else None

    def suits_text(self, task: WaitingView, place: Place) -> str:
        """Return the predicted speeds with the task: "; both keep ~0.84, together 1.7 of one"."""
        text = "" if place.is_idle else speeds_text(self._group(place).speeds(self._member(task, place)))
        return f"; {text}" if text else ""

    def begun(self, task: WaitingView, place: Place) -> None:
        self._tried.discard(task.ask.task)
        self._group(place).add(self._member(task, place))
        self._members = {key: member for key, member in self._members.items() if key[0] != task.ask.task}

    # ---- The tasks of a GPU ----

    def _is_measured(self, place: Place) -> bool:
        """Return whether a GPU's only task is being measured alone, which a neighbour would end.

        Without a rate alone, no harm to the task can be detected. Measuring costs one window of one GPU, once per
        command: it is not worth it for tasks of less than ten minutes, or for a task that has shown no rate yet, since
        most programs never do. Tasks that all start at once on few GPUs are therefore not measured.
        """
        if place.count != 1 or len(place.running) != 1:
            return False
        one = place.running[0]
        if one.rate is None or one.rate_alone is not None or one.rate.windows >= MEASURED_WINDOWS or one.is_paused:
            return False
        expected = one.estimate.seconds if one.estimate.seconds is not None else self.view.median_s
        return self.now_s < one.started_s + MEASURED_S and (expected is None or expected >= LONG_S)

    def _group(self, place: Place) -> PredictedGroup:
        group = self._groups.get(place.uuid)
        if group is None:
            group = PredictedGroup("mps" if place.facts.is_mps else "time-slicing", self.view.exponent, self.pairs)
            for one in place.running:
                if not one.is_paused:  # a paused task uses memory only
                    group.add(GroupTask(one.ask, one.belief or _NOTHING, self.view.exponent, self.pairs))
            self._groups[place.uuid] = group
        return group

    def _member(self, task: WaitingView, place: Place) -> GroupTask:
        key = (task.ask.task, place.model)
        member = self._members.get(key)
        if member is None:
            member = self._members[key] = GroupTask(
                task.ask, belief_on(task.beliefs, place.model), self.view.exponent, self.pairs
            )
        return member
