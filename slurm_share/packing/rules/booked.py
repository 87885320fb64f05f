"""The policy `booked`, llsub's default: place tasks by booked memory, on the GPU with most room."""

from __future__ import annotations

from msgspec import Struct

from ...core.text import gib_text
from ..decision_records import StartRefusal
from ..records import Estimate, PackView, WaitingView
from . import guarantee, refusals, reservation
from .policy import MEMORY_ENDS, Policy, closes_gpu, is_above, neighbours_text
from .room import UNKNOWN_MIB, Place

DETAILED_ROWS = 128
"""Number of refusals in one decision that are recorded per GPU. After that, a task that fits on no GPU gets one refusal
for all GPUs: decisions are made at every start and end of a task, and have to stay small."""


def seconds_of(task: WaitingView) -> float | None:
    for _, estimate in task.estimates:
        if estimate.seconds is not None:
            return estimate.seconds
    return None


class Need(Struct, frozen=True):
    """The needs of one waiting task."""

    estimates: dict[str, Estimate]
    """By GPU model."""
    at_least_mib: int
    """Least room on its GPU, even if it reserves less: it ran out of memory with less."""
    is_alone: bool
    seconds: float | None


class BookedPolicy(Policy):
    """Place tasks by booked memory: on the GPU with most room. Later tasks may start before one that does not fit."""

    def __init__(self, view: PackView) -> None:
        super().__init__(view)
        self.started_on: dict[str, list[int]] = {}
        self.patience_s = self._patience_s()
        self.stuck: dict[object, int] = {}
        self.models = {place.model for place in self.places}
        self._measure()

    def _measure(self) -> None:
        """Update the most room and the least usable memory of any GPU."""
        self.most_room = max((place.room for place in self.served), default=0)
        self.least_usable = min((place.usable for place in self.served), default=0)

    def _stops_behind(self, task: WaitingView) -> bool:
        is_exclusive = self.settings.recovery == "exclusive"
        return not self.settings.backfills or (is_exclusive and task.after in MEMORY_ENDS)

    def _ordered(self) -> list[WaitingView]:
        """Return the waiting tasks in order: those that ran out of memory, old tasks, the rest."""
        waiting = self.view.waiting
        order = self.settings.order
        middle = 0.0
        if order != "fifo":
            known = sorted(seconds for seconds in map(seconds_of, waiting) if seconds is not None)
            middle = known[len(known) // 2] if known else 0.0

        def key(numbered: tuple[int, WaitingView]) -> tuple[int, int, float, int]:
            position, task = numbered
            if task.after in MEMORY_ENDS:
                rank = 0
            elif self._is_old(task):
                rank = 1
            else:
                rank = 2
            if order == "fifo":
                return rank, -task.ask.priority, 0.0, position
            seconds = seconds_of(task)
            seconds = middle if seconds is None else seconds
            return rank, -task.ask.priority, seconds if order == "short" else -seconds, position

        return [task for _, task in sorted(enumerate(waiting), key=key)]

    def _is_old(self, task: WaitingView) -> bool:
        return self.now_s - task.waits_since_s >= self.patience_s

    # ---- Overridden by `gain` ----

    def unsuited_reason(self, task: WaitingView, place: Place) -> str:
        """Return why a task that has room on a GPU may not join the tasks there; empty: it may."""
        return ""

    def rank(self, task: WaitingView, place: Place) -> tuple[float, ...]:
        """Return the rank of a GPU for a task: the largest is best, and the first of equal ones is taken."""
        return (place.room,)

    def suits_text(self, task: WaitingView, place: Place) -> str:
        """Return the part about neighbours in the sentence of a start."""
        return ""

    def begun(self, task: WaitingView, place: Place) -> None:
        """Record a start on a GPU."""

    # ---- One task ----

    def _place(self, task: WaitingView) -> bool:
        """Start a task, or hold a GPU for it if it is old or needs one alone; return whether it started."""
        number = task.ask.task
        if task.ask.gpus > 1:
            if self.whole(task):
                self.stuck.clear()
                self._measure()
                return True
            # Hold GPUs for an old task only: GPUs that drain do less, and enough GPUs are often empty before that.
            if self.holder == number or (self.holder is None and self._is_old(task)):
                self._hold_whole(task)
            return False
        need = self._need(task)
        signature = self.signature(task, need)
        before = self.stuck.get(signature)
        is_temporary = False
        if before is not None and self.holder != number:
            self.refused.append(StartRefusal(number, "", refusals.SAME_AS.format(before)))
        elif len(self.refused) >= DETAILED_ROWS and not need.is_alone and self._least(task, need) > self.most_room:
            self.refused.append(
                StartRefusal(number, "", refusals.NO_ROOM_ANYWHERE, self.most_room, self._least(task, need))
            )
            self.stuck.setdefault(signature, number)
        else:
            best: Place | None = None
            best_rank: tuple[float, ...] = ()
            eligible: list[Place] = []
            for place in self.places:
                why, needs = self._refusal(task, need, place)
                if why:
                    self._refuse(task, place, why, needs)
                    is_temporary = is_temporary or (why == refusals.CLOSED and self._would_fit(task, need, place))
                    continue
                eligible.append(place)
                rank = self.rank(task, place)
                if best is None or rank > best_rank:
                    best, best_rank = place, rank
            if best is not None:
                for place in eligible:
                    if place is not best:
                        self._refuse(task, place, refusals.NOT_CHOSEN, self._reserve_on(task, need, place))
                self._begin(task, need, best)
                return True
            self.stuck.setdefault(signature, number)
        wants_hold = need.is_alone or self._is_old(task)
        if wants_hold and self.holder is None and not is_temporary:
            self._hold_one(task, need)
        return False

    def _least(self, task: WaitingView, need: Need) -> int:
        """Return the smallest need of a task over all GPUs, in MiB."""
        guess = int(self.least_usable * self.settings.probe_ratio)
        sizes = [guess if one.safe_mib is None else one.safe_mib for one in need.estimates.values()]
        if not self.models <= need.estimates.keys():
            sizes.append(guess)
        return max(min(sizes, default=guess), need.at_least_mib, reservation.LEAST_MIB)

    def _need(self, task: WaitingView) -> Need:
        estimates = dict(task.estimates)
        is_alone = task.wants_alone
        if not is_alone:
            least = min((max(one.safe_mib or 0, task.floor_mib) for one in estimates.values()), default=task.floor_mib)
            is_alone = least > self.largest_mib
        at_least = task.floor_mib
        if task.had_room_mib and not task.wants_alone:
            at_least = max(at_least, reservation.roomier_mib(task.had_room_mib))
        return Need(estimates, at_least, is_alone, seconds_of(task))

    def signature(self, task: WaitingView, need: Need) -> object:
        """Return a value that is equal for tasks that are refused for the same reasons."""
        sizes = tuple((model, one.safe_mib, one.processes) for model, one in task.estimates)
        return (
            sizes, need.at_least_mib, need.is_alone, need.seconds, task.ask.is_half,
            task.tries.was_alone and task.had_room_mib, task.not_on if task.tries.moved else (),
        )  # fmt: skip

    def _reserve_on(self, task: WaitingView, need: Need, place: Place) -> int:
        if need.is_alone:
            return 0 if place.capacity >= UNKNOWN_MIB else place.usable
        if place.capacity >= UNKNOWN_MIB:
            estimate = need.estimates.get(place.model)
            return max(0 if estimate is None else estimate.safe_mib or 0, task.floor_mib)
        return reservation.at_start(
            need.estimates.get(place.model), task.floor_mib, place.usable, self.settings.probe_ratio
        )

    def _refusal(self, task: WaitingView, need: Need, place: Place) -> tuple[str, int | None]:
        """Return the first reason why a task may not start on a GPU, and its need there; empty: it may start."""
        why = self.closed_reason(place, task)
        if why == refusals.HELD and self._fits_before_hold(need, place):
            why = self.closed_reason(place, task, fits_before_hold=True)
        if why:
            return why, None
        if need.is_alone:
            return self._refusal_alone(task, need, place)
        reserve = self._reserve_on(task, need, place)
        if reserve > place.capacity:
            return refusals.TOO_SMALL, reserve
        if place.capacity < UNKNOWN_MIB:
            if reserve > place.room:
                return refusals.NO_ROOM, reserve
            if need.at_least_mib > place.room:
                return refusals.NOT_ROOMIER, need.at_least_mib
        estimate = need.estimates.get(place.model)
        why = self.crowd_reason(place, 1 if estimate is None else estimate.processes)
        if why:
            return why, reserve
        if not place.is_idle:
            if is_above(place.view.sm_ratio, self.settings.sm_guard):
                return refusals.SM_BUSY, reserve
            if is_above(place.view.dram_ratio, self.settings.dram_guard):
                return refusals.DRAM_BUSY, reserve
            return self.unsuited_reason(task, place), reserve
        return "", reserve

    def _would_fit(self, task: WaitingView, need: Need, place: Place) -> bool:
        """Return whether a temporarily closed GPU has room for a task. Then no other GPU is held for it."""
        wanted = max(self._reserve_on(task, need, place), need.at_least_mib)
        return not need.is_alone and place.room >= wanted

    def _refusal_alone(self, task: WaitingView, need: Need, place: Place) -> tuple[str, int | None]:
        why = self._too_small_alone(task, need, place)
        if why:
            return why, None
        return ("", None) if place.is_empty else (refusals.NOT_IDLE, None)

    def _too_small_alone(self, task: WaitingView, need: Need, place: Place) -> str:
        if place.capacity >= UNKNOWN_MIB:
            return ""
        if task.tries.was_alone and place.capacity <= task.had_room_mib:
            return refusals.NOT_ROOMIER
        estimate = need.estimates.get(place.model)
        safe = 0 if estimate is None else estimate.safe_mib or 0
        return refusals.TOO_SMALL if place.capacity < min(max(safe, task.floor_mib), self.largest_mib) else ""

    def _begin(self, task: WaitingView, need: Need, place: Place) -> None:
        estimate = need.estimates.get(place.model)
        reserve = self._reserve_on(task, need, place)
        cap_mib = reservation.cap_at_start(
            estimate,
            reserve,
            place.room,
            guard=self.settings.guard,
            is_mps=place.facts.is_mps,
            # A GPU of unknown size takes one task at a time, so there is no neighbour to protect.
            is_alone=need.is_alone or place.capacity >= UNKNOWN_MIB,
            most_mib=guarantee.most_of(task.ask),
        )
        number = task.ask.task
        started = self.started_on.setdefault(place.uuid, [])
        if need.is_alone:
            why = f"GPU {place.index} to itself"
        elif place.capacity >= UNKNOWN_MIB:
            why = f"GPU {place.index}, whose size is not known"
        else:
            beside = neighbours_text(place, started)
            why = f"GPU {place.index}{beside}: {reserve / 1024:.1f} of {gib_text(place.room)} free booked"
            why += guarantee.start_text(task.ask, task.tries) + self.suits_text(task, place)
        was_held = place.held_for == number
        self._start(
            task,
            [place],
            reserve,
            cap_mib,
            is_alone=need.is_alone,
            closes=closes_gpu(self.settings, estimate) and not need.is_alone,
            processes=1 if estimate is None else estimate.processes,
            why=why,
        )
        started.append(number)
        self.begun(task, place)
        self._measure()
        if was_held:
            self.stuck.clear()  # other tasks may now start on GPUs that were held

    # ---- Holds ----

    def _fits_before_hold(self, need: Need, place: Place) -> bool:
        """Return whether a task ends before a held GPU is free for its holder (EASY backfill, Lifka 1995).

        Both durations have to be known.
        """
        if need.seconds is None or need.is_alone:
            return False
        ends = self.now_s + need.seconds
        # If the holder waits for several GPUs, each may stay in use until the last of them is free.
        free = (self._free_s(held) for held in self.places if held.held_for == place.held_for)
        return any(free_s is not None and ends <= free_s for free_s in free)

    def _free_s(self, place: Place) -> float | None:
        """Return when all tasks on a GPU are expected to have ended; None: not known."""
        ends = self.now_s
        for task in place.running:
            if task.ends_s is None:
                return None
            ends = max(ends, task.ends_s)
        return ends

    def _hold_one(self, task: WaitingView, need: Need) -> None:
        """Hold the GPU where a task can start first; if that is not known, the one where least memory is missing."""
        best: tuple[float, int, int] | None = None
        chosen: Place | None = None
        for place in self.served:
            if place.view.problem or place.held_for is not None:
                continue
            if need.is_alone:
                if self._too_small_alone(task, need, place):
                    continue
                wanted = place.usable
            else:
                wanted = max(self._reserve_on(task, need, place), need.at_least_mib)
                if wanted > place.capacity:
                    continue
            ready, missing = self._ready_s(place, wanted, is_alone=need.is_alone)
            rank = (ready, missing, place.index)
            if best is None or rank < best:
                best, chosen = rank, place
        if chosen is not None:
            reason = "gets it to itself" if need.is_alone else "has waited long"
            self._hold(task, chosen, f"GPU {chosen.index} is kept free for task {task.ask.task}, which {reason}")

    def _ready_s(self, place: Place, wanted_mib: int, *, is_alone: bool) -> tuple[float, int]:
        """Return when a GPU is expected to have this room (infinite: not known), and how much is missing now."""
        if is_alone:
            free_s = self._free_s(place)
            return (float("inf") if free_s is None else free_s), place.booked
        missing = max(wanted_mib - place.room, 0)
        free, at = place.room, self.now_s
        for task in sorted(place.running, key=lambda one: (one.ends_s is None, one.ends_s or 0.0)):
            if free >= wanted_mib:
                break
            if task.ends_s is None:
                return float("inf"), missing
            at = max(at, task.ends_s)
            free += max(task.reserved_mib, task.memory_mib or 0)
        return (at if free >= wanted_mib else float("inf")), missing

    def _hold_whole(self, task: WaitingView) -> None:
        """Hold as many GPUs as a task wants: those that are expected to be empty first."""
        ranked: list[tuple[float, int, int, Place]] = []
        for place in self.served:
            if place.view.problem:
                continue
            if place.held_for == task.ask.task:
                ranked.append((-1.0, 0, place.index, place))
            else:
                free_s = self._free_s(place)
                ranked.append((float("inf") if free_s is None else free_s, place.booked, place.index, place))
        ranked.sort(key=lambda one: one[:3])
        for *_, place in ranked[: task.ask.gpus]:
            why = f"GPU {place.index} is kept free for task {task.ask.task}, which wants {task.ask.gpus} whole GPUs"
            self._hold(task, place, why)
