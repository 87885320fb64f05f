"""The policies of Yousefzadeh 2025, 6.2.2 and 6.3.3 (RAD-RM): strictly in order, by free memory.

Free memory is the driver's figure, or with `uses_booking` the memory that is not booked.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from ..core.text import gib_text
from ..packing.decision_records import Decision
from ..packing.records import BOOKING, Estimate, PackView, WaitingView
from ..packing.rules import booked, refusals, reservation
from ..packing.rules import place as own_policies
from ..packing.rules.policy import MEMORY_ENDS, Policy, is_above, neighbours_text
from ..packing.rules.room import Place


def _is_recovery(task: WaitingView) -> bool:
    return task.after in MEMORY_ENDS or task.wants_alone


def decide(view: PackView) -> Decision:
    """Return the actions and refusals of any policy, those of llsub included."""
    return own_policies.decide(view) if view.settings.policy in BOOKING else ThesisPolicy(view).decide()


def decide_at_random(view: PackView) -> Decision:
    """Return the actions of `booked`, but for the GPU: any that has room, by chance."""
    return RandomGpu(view).decide()


class RandomGpu(booked.BookedPolicy):
    """Place tasks by booked memory on any GPU with room, which shows what the choice of a GPU is worth."""

    def rank(self, task: WaitingView, place: Place) -> tuple[float, ...]:
        return (zlib.crc32(f"{task.ask.task} {task.attempt} {place.index} {self.now_s:.3f}".encode()),)


class ThesisPolicy(Policy):
    """Place tasks by RAD-RM's policies: one after the other in the order of submission, idle GPUs first.

    Source: Yousefzadeh 2025, 6.2.2 and 6.3.3, and the code that was published with it (CARMA).
    """

    def __init__(self, view: PackView) -> None:
        super().__init__(view)
        self.last = view.last_gpu

    def _ordered(self) -> list[WaitingView]:
        """Return the waiting tasks, first those that get a GPU to themselves after they ran out of memory."""
        return sorted(self.view.waiting, key=lambda task: not _is_recovery(task))

    def _stops_behind(self, task: WaitingView) -> bool:
        return True

    def _place(self, task: WaitingView) -> bool:
        policy = self.settings.policy
        if task.ask.gpus > 1:
            return self.whole(task)
        if policy == "exclusive" or _is_recovery(task):
            return self._exclusive(task)
        estimates = dict(task.estimates)
        eligible: list[Place] = []
        for place in self.places:
            why, needs = self._refusal(task, estimates.get(place.model), place)
            if why:
                self._refuse(task, place, why, needs)
            else:
                eligible.append(place)
        if not eligible:
            return False
        idle = [place for place in eligible if place.is_idle]
        busy = [place for place in eligible if not place.is_idle]
        # Only the policy for the most utilised GPU prefers GPUs with tasks.
        among = (busy or idle) if policy == "mug" else (idle or busy)
        best = min(among, key=self._rank())
        for place in eligible:
            if place is not best:
                self._refuse(task, place, refusals.NOT_CHOSEN)
        self._begin(task, estimates.get(best.model), best)
        return True

    def _rank(self) -> Callable[[Place], tuple[float, ...]]:
        """Return the key by which GPUs are ranked; the smallest is best."""
        policy = self.settings.policy
        count = max(len(self.places), 1)
        if policy == "rr":
            return lambda place: ((place.index - self.last - 1) % count, place.index)
        if policy in ("magm", "worst-fit"):
            return lambda place: (-self._free(place), place.index)
        if policy in ("mug", "best-fit"):
            return lambda place: (self._free(place), place.index)
        if policy in ("lug", "oracle-lug"):
            return lambda place: (1.0 if place.view.sm_ratio is None else place.view.sm_ratio, place.index)
        return lambda place: (place.index,)

    def _free(self, place: Place) -> int:
        """Return the free memory that the policy sees, in MiB: the driver's figure, or what is not booked."""
        used, total = place.view.used_mib, place.facts.total_mib
        if self.settings.uses_booking or used is None or total is None:
            return place.room
        return total - used

    def _refusal(self, task: WaitingView, estimate: Estimate | None, place: Place) -> tuple[str, int | None]:
        why = self.closed_reason(place, task) or self.crowd_reason(place, 1 if estimate is None else estimate.processes)
        if why:
            return why, None
        settings = self.settings
        point = None if estimate is None else estimate.point_mib
        needs = 0
        if settings.policy in ("first-fit", "best-fit", "worst-fit", "oracle-lug"):
            needs = (settings.free_min_mib or 0) if point is None else point + settings.fit_margin_mib
        elif point is not None and settings.policy != "rr":
            needs = point
        elif settings.free_min_mib is not None:
            needs = settings.free_min_mib
        if settings.uses_booking:
            needs = max(needs, self._booking(task, estimate, place))
        needs = min(needs, place.capacity)
        if needs > self._free(place):
            return refusals.LITTLE_FREE, needs
        if not place.is_idle and is_above(place.view.sm_ratio, settings.smact_max):
            return refusals.SM_BUSY, needs
        return "", needs

    def _booking(self, task: WaitingView, estimate: Estimate | None, place: Place) -> int:
        return min(
            reservation.at_start(estimate, task.floor_mib, place.usable, self.settings.probe_ratio), place.capacity
        )

    def _begin(self, task: WaitingView, estimate: Estimate | None, place: Place) -> None:
        settings = self.settings
        free = self._free(place)
        if settings.uses_booking:
            reserve = self._booking(task, estimate, place)
            cap_mib = reservation.cap_at_start(
                estimate, reserve, place.room, guard=settings.guard, is_mps=place.facts.is_mps, is_alone=False
            )
        else:
            point = None if estimate is None else estimate.point_mib
            reserve, cap_mib = point or 0, None
        beside = neighbours_text(place, ())
        self._start(
            task,
            [place],
            reserve,
            cap_mib,
            is_alone=False,
            closes=True,
            processes=1 if estimate is None else estimate.processes,
            why=f"GPU {place.index}{beside} by {settings.policy}: {gib_text(free)} free",
        )
        self.last = place.index

    def _exclusive(self, task: WaitingView) -> bool:
        """Start a task on the first empty GPU, and return whether it started."""
        chosen: Place | None = None
        for place in self.places:
            why = self.closed_reason(place, task) or ("" if place.is_empty else refusals.NOT_IDLE)
            if not why and task.tries.was_alone and place.capacity <= task.had_room_mib:
                why = refusals.NOT_ROOMIER
            if why:
                self._refuse(task, place, why)
            elif chosen is None:
                chosen = place
            else:
                self._refuse(task, place, refusals.NOT_CHOSEN)
        if chosen is None:
            return False
        self._start_alone(task, [chosen], f"GPU {chosen.index} to itself")
        self.last = chosen.index
        return True
