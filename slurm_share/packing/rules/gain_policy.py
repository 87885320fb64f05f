"""The policy `gain`: as `booked`, on the GPU where a further task adds most to the aggregate speed (STP).

Memory is booked first, as there. Among the GPUs with room, one that nothing of this launcher runs on adds 1; beside
others, the capacity model of `interference` says how much is added and what each task keeps of its speed. A task waits
where it would add too little, but never while a GPU without tasks has room for it, nor for loads that nobody has
measured: in simulations of the thesis' traces, to wait for a load that was only assumed cost up to 7 % of completion
time (tests/bench/measured.py).

The SM guard of `booked` is not set here either: the gain is small on a GPU whose multiprocessors are full.
"""

from __future__ import annotations

from ..records import PackView, WaitingView
from ..speed_records import Belief
from . import refusals, undo
from .booked_policy import Booked, Need
from .predicted_speeds import GroupTask, Pairs, PredictedGroup, belief_on, speeds_text
from .room import Place

MEASURED_S = 120.0
"""So long after its start, at most, a task is left alone so that its rate alone becomes known."""
MEASURED_WINDOWS = 2
"""With so many windows it is."""
LONG_S = 600.0
"""A task that is expected to take less is not left alone to be measured."""
TRIED_MOST = 12
"""So many tasks of one decision are compared with the tasks of GPUs and refused. Those behind them start on GPUs
without tasks only: with 16 GPUs, more would take longer than the 5 ms that a decision may take."""
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
        """GPUs on which two tasks run that are not to share one."""

    def run(self) -> None:
        """Undo what did not pay, then decide about the waiting tasks."""
        undone = undo.actions(self.view)
        self.actions += undone
        self._harmful = undo.harmful_gpus(self.view)
        changed = {action.gpu for action in undone}
        for place in self.places:
            place.is_closed = place.is_closed or place.uuid in changed  # the next decision sees what has become of it
        super().run()

    # ---- What `booked` asks ----

    def unsuited_reason(self, task: WaitingView, place: Place) -> str:
        """Return why a task is not to run beside those of a GPU, by speed; empty: it may."""
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
            return ""  # nothing speaks against it that was measured: memory decides, as with `booked`
        speeds = group.speeds(member)
        least = min(speeds)
        if least < settings.min_speed:
            if speeds[-1] == least:
                return refusals.IT_KEEPS.format(least)
            return refusals.KEEPS.format(group.members[speeds.index(least)].ask.task, least)
        gain = sum(speeds) - group.stp
        return refusals.LITTLE_GAIN.format(gain) if gain < settings.min_gain else ""

    def rank(self, task: WaitingView, place: Place) -> tuple[float, ...]:
        """Return what the best GPU for a task has most of: the speed that it adds, then room."""
        if place.is_idle:
            return 1.0, place.room
        group = self._group(place)
        return round(sum(group.speeds(self._member(task, place))) - group.stp, 6), place.room

    def signature(self, task: WaitingView, need: Need) -> object:
        """Return what decides where a task may start; here also its load, and its command where pairs are known."""
        key = task.ask.key
        has_pairs = key is not None and bool(self.pairs.neighbours((key.exact, key.family)))
        return super().signature(task, need), task.beliefs, key if has_pairs else None

    def suits_text(self, task: WaitingView, place: Place) -> str:
        """Return what is expected of the GPU with the task: "; both keep ~0.84, together 1.7 of one"."""
        text = "" if place.is_idle else speeds_text(self._group(place).speeds(self._member(task, place)))
        return f"; {text}" if text else ""

    def begun(self, task: WaitingView, place: Place) -> None:
        """Note a start."""
        self._tried.discard(task.ask.task)
        self._group(place).add(self._member(task, place))
        self._members = {key: member for key, member in self._members.items() if key[0] != task.ask.task}

    # ---- The tasks of a GPU ----

    def _is_measured(self, place: Place) -> bool:
        """Return whether a GPU's only task is just being measured alone, which its neighbour would end.

        Without a rate alone, nothing that is done to the task can be undone. It costs one window of one GPU, once for a
        command, so tasks of less than ten minutes are not worth it; nor is a task that has shown no rate yet, for most
        programs show none. What starts all at once on few GPUs is therefore not measured.
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
                if not one.is_paused:  # a paused task keeps its memory and takes nothing else
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
