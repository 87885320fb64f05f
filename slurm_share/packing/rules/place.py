"""Decide which waiting task starts on which GPU.

The default, `booked`, books memory: a task starts on the GPU with most room among those that have what it reserves, and
tasks behind it go on where it cannot start. The other policies are those of Yousefzadeh 2025, 6.2.2 and 6.3.3: strictly
in order, by the driver's free memory, or by what is not booked (`uses_booking`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct

from ..records import (
    Action,
    Decision,
    EndKind,
    Estimate,
    GiveUp,
    Hold,
    PackSettings,
    PackView,
    Refused,
    Reserve,
    RunningView,
    Start,
    WaitingView,
)
from . import cap, reservation
from .room import UNKNOWN_MIB, Place

MEMORY_ENDS: tuple[EndKind, ...] = ("gpu memory", "gpu memory likely", "gpu memory suspected", "neighbour's memory")
"""Ends after which a task goes before all others, and with RAD-RM has a GPU to itself."""

ROOMIER_MIB = 5120
ROOMIER_RATIO = 0.20
"""After a task ran out of memory, its next GPU has more room than the last one had, by the lesser of the two.
Yousefzadeh 2025, 7.2, proposes 5 GB for such a retry."""

NO_SEAT = "no cores are free for a further task"
IN_ORDER = "an earlier task goes first"
PROBLEM = "the GPU has a problem"
OUT = "the GPU is out of service"
HELD = "the GPU is kept free for another task"
SHUT = "a task has the GPU to itself"
CLOSED = "a task has just begun there"
NOT_IDLE = "other tasks run there"
NO_FIGURES = "the driver gives no figures, and other tasks run there"
SINGLE = "the GPU takes one process at a time"
UNSIZED = "the driver does not say the GPU's size, and other tasks run there"
NO_ROOM = "not enough room"
NOT_ROOMIER = "no roomier than where it ran out of memory"
TOO_SMALL = "the GPU is too small for it"
CLIENTS = "too many CUDA processes"
MAX_PER_GPU = "as many tasks as are allowed on one GPU"
SM_BUSY = "its multiprocessors are busy"
DRAM_BUSY = "its memory bandwidth is used up"
LITTLE_FREE = "too little free memory"
NOT_CHOSEN = "another GPU was preferred"
SAME_AS = "as task {}, which needs the same"
NO_ROOM_ANYWHERE = "no GPU has enough room"

DETAILED_ROWS = 128
"""So many refusals of one decision are said for each GPU. Waiting tasks behind that need more room than any GPU has get
one for all GPUs: a decision is made at every end and every start of a task, and its record has to stay small."""


def decide(view: PackView) -> Decision:
    """Return the starts, holds, reservations and final ends that follow from a view.

    Has no clock and no randomness; ties go to the lower GPU index, then to the lower task number.
    """
    one = _Booked(view) if view.settings.policy == "booked" else _Thesis(view)
    one.run()
    return Decision(actions=tuple(one.actions), refused=tuple(one.refused))


def closes_gpu(settings: PackSettings, estimate: Estimate | None) -> bool:
    """Return whether a start closes its GPU until the task's first memory is seen.

    Policies that read free memory would put the next task onto memory that this one is about to take. With booking,
    only a task of unknown size closes its GPU: its share of it is a guess.
    """
    if settings.policy != "booked":
        return True
    return estimate is None or estimate.safe_mib is None


def gib(mib: float) -> str:
    """Return a size for people: "6.7 GiB"."""
    return f"{mib / 1024:.1f} GiB"


def seconds_of(task: WaitingView) -> float | None:
    """Return how long a waiting task is expected to run; None: not known."""
    for _, estimate in task.estimates:
        if estimate.seconds is not None:
            return estimate.seconds
    return None


class _Need(Struct, frozen=True):
    """What one waiting task needs, on each GPU model."""

    estimates: dict[str, Estimate]
    at_least_mib: int
    """Room that its GPU has to have, beyond what it reserves: it ran out of memory with less."""
    largest_mib: int
    """The most that any GPU of the node could give; larger needs are met by that GPU alone."""
    is_alone: bool
    seconds: float | None


class _Pass:
    """One decision: the view, and what has been decided so far."""

    def __init__(self, view: PackView) -> None:
        self.view = view
        self.now_s = view.now_s
        self.settings = view.settings
        self.seats = view.seats
        self.actions: list[Action] = []
        self.refused: list[Refused] = []
        running: dict[str, list[RunningView]] = {gpu.facts.uuid: [] for gpu in view.gpus}
        for task in view.running:
            if task.due_mib is not None and task.due_mib != task.reserved_mib:
                task = self._reserve(task, task.due_mib)
            for uuid in task.gpus:
                if uuid in running:
                    running[uuid].append(task)
        by_index = sorted(view.gpus, key=lambda gpu: gpu.facts.index)
        self.places = [Place(gpu, running[gpu.facts.uuid], view.now_s) for gpu in by_index]
        self.served = [place for place in self.places if not place.view.is_out]
        self.largest_mib = max((place.capacity for place in self.served), default=0)
        sizes = [UNKNOWN_MIB if place.facts.total_mib is None else place.facts.total_mib for place in self.served]
        self.largest_total_mib = max(sizes, default=0)
        waiting = {task.ask.task for task in view.waiting}
        for place in self.places:
            if place.held_for is not None and (place.held_for not in waiting or place.view.is_out):
                self._release(place, "its task does not wait any more")
        self.holder: int | None = None
        """The task for which GPUs are held; there is one at most."""
        self._find_holder()

    def _find_holder(self) -> None:
        self.holder = next((place.held_for for place in self.places if place.held_for is not None), None)

    # ---- What has been decided ----

    def _reserve(self, task: RunningView, mib: int) -> RunningView:
        grows = mib > task.reserved_mib
        why = f"{gib(task.reserved_mib)} -> {gib(mib)}: " + (
            "it has grown" if grows else f"its memory is flat at {gib(task.peak_mib or 0)}"
        )
        self.actions.append(Reserve(task=task.ask.task, reserve_mib=mib, is_flat=task.is_flat, why=why))
        return RunningView(
            ask=task.ask, gpus=task.gpus, started_s=task.started_s, attempt=task.attempt, tries=task.tries,
            estimate=task.estimate, reserved_mib=mib, cap_mib=task.cap_mib, is_alone=task.is_alone,
            memory_mib=task.memory_mib, peak_mib=task.peak_mib, is_flat=task.is_flat, is_elastic=task.is_elastic,
            clients=task.clients, ends_s=task.ends_s,
        )  # fmt: skip

    def _release(self, place: Place, why: str) -> None:
        place.held_for = None
        self.actions.append(Hold(task=None, gpu=place.uuid, why=why))

    def _hold(self, task: WaitingView, place: Place, why: str) -> None:
        if place.held_for != task.ask.task:
            place.held_for = self.holder = task.ask.task
            self.actions.append(Hold(task=task.ask.task, gpu=place.uuid, why=why))

    def _refuse(self, task: WaitingView, place: Place, why: str, needs_mib: int | None = None) -> None:
        room = place.room if place.capacity < UNKNOWN_MIB else None
        self.refused.append(Refused(task.ask.task, place.uuid, why, room, needs_mib))

    def _give_up(
        self, task: WaitingView, why: str, outcome: Literal["gpu memory", "not started"] = "not started"
    ) -> None:
        self.actions.append(GiveUp(task=task.ask.task, outcome=outcome, why=why))
        self._free_holds(task.ask.task)

    def _free_holds(self, task: int) -> None:
        if self.holder == task:
            for place in self.places:
                if place.held_for == task:
                    place.held_for = None
            self._find_holder()

    def _start(
        self, task: WaitingView, places: Sequence[Place], reserve_mib: int, cap_mib: int | None, *,
        is_alone: bool, closes: bool, processes: int = 1, why: str,
    ) -> None:  # fmt: skip
        number = task.ask.task
        self.actions.append(
            Start(
                task=number,
                gpus=tuple(place.uuid for place in places),
                reserve_mib=reserve_mib,
                cap_mib=cap_mib,
                is_alone=is_alone,
                why=why,
            )
        )
        for place in places:
            place.book(reserve_mib, processes, is_alone=is_alone, closes=closes)
        self._free_holds(number)
        self.seats -= 1

    # ---- What both kinds of policy ask ----

    def run(self) -> None:
        raise NotImplementedError

    def is_hopeless(self, task: WaitingView) -> bool:
        """Give a task up that no GPU of the node can ever take, and return whether that was done."""
        ask = task.ask
        key = ask.key
        if key is not None and key.family in self.view.dead_families and not self.settings.keep_going:
            why = "not tried: several tasks of its kind ran out of GPU memory with a GPU to themselves (--keep-going)"
            self._give_up(task, why, "gpu memory")
        elif not self.served:
            self._give_up(task, "no GPU of this node works any more")
        elif ask.gpus > len(self.served):
            have = "1 GPU" if len(self.served) == 1 else f"{len(self.served)} GPUs"
            self._give_up(task, f"wants {ask.gpus} GPUs; this node has {have}")
        elif ask.gpu_mem_mib is not None and ask.gpu_mem_mib > self.largest_total_mib:
            largest = gib(self.largest_total_mib)
            self._give_up(task, f"wants {gib(ask.gpu_mem_mib)}; the largest GPU of this node has {largest}")
        elif task.tries.was_alone and self.largest_mib < UNKNOWN_MIB and self.largest_mib <= task.had_room_mib:
            why = f"needs more than {gib(task.had_room_mib)} with a GPU to itself; the largest GPU of this node gives "
            self._give_up(task, why + gib(self.largest_mib), "gpu memory")
        else:
            return False
        return True

    def closed_reason(self, place: Place, task: WaitingView, *, fits_before_hold: bool = False) -> str:
        """Return why no task, or not this one, may start on a GPU now whatever its memory; empty: it may."""
        if place.view.is_out:
            return OUT
        if place.view.problem:
            return PROBLEM
        if place.held_for is not None and place.held_for != task.ask.task and not fits_before_hold:
            return HELD
        if place.is_shut:
            return SHUT
        if place.is_closed:
            return CLOSED
        if not place.is_empty:
            if place.facts.is_single:
                return SINGLE
            if place.facts.total_mib is None:
                return UNSIZED
            if not place.view.can_measure:
                return NO_FIGURES
        return ""

    def crowd_reason(self, place: Place, processes: int) -> str:
        """Return which limit on the number of tasks or processes a further task would pass; empty: none."""
        if not place.is_idle and place.clients + processes > place.facts.clients_max:
            return CLIENTS
        if self.settings.max_per_gpu is not None and place.count >= self.settings.max_per_gpu:
            return MAX_PER_GPU
        return ""

    def whole(self, task: WaitingView) -> bool:
        """Start a task on whole empty GPUs, if there are enough of them."""
        wanted = task.ask.gpus
        reasons = [(place, self.closed_reason(place, task)) for place in self.places]
        free = [place for place, why in reasons if not why and place.is_empty]
        if len(free) < wanted:
            for place, why in reasons:
                if why or not place.is_empty:
                    self._refuse(task, place, why or NOT_IDLE)
            return False
        free.sort(key=lambda place: (place.held_for != task.ask.task, place.index))
        chosen = sorted(free[:wanted], key=lambda place: place.index)
        smallest = min(place.usable for place in chosen)
        self._start(
            task,
            chosen,
            0 if smallest >= UNKNOWN_MIB // 2 else smallest,
            None,
            is_alone=True,
            closes=False,
            why=f"whole {_names(chosen)}",
        )
        return True


def _names(places: Sequence[Place]) -> str:
    if len(places) == 1:
        return f"GPU {places[0].index}"
    return "GPUs " + ", ".join(str(place.index) for place in places)


def _beside(place: Place, started: Iterable[int]) -> str:
    """Return the tasks that a new one joins on a GPU: " beside 7, 12"; empty where there are none."""
    numbers = sorted({task.ask.task for task in place.running} | set(started))
    if not numbers:
        return ""
    shown = ", ".join(str(number) for number in numbers[:4])
    return f" beside {shown}" + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")


# ---- booked ----


class _Booked(_Pass):
    """The default policy."""

    def __init__(self, view: PackView) -> None:
        super().__init__(view)
        self.started_on: dict[str, list[int]] = {}
        self.patience_s = max(self.settings.patience_s, 2 * (view.median_s or 0.0))
        self.stuck: dict[object, int] = {}
        self.models = {place.model for place in self.places}
        self._measure()

    def _measure(self) -> None:
        """Find the most room and the least usable memory of any GPU: what no task can exceed, or stay below."""
        self.most_room = max((place.room for place in self.served), default=0)
        self.least_usable = min((place.usable for place in self.served), default=0)

    def run(self) -> None:
        is_exclusive = self.settings.recovery == "exclusive"
        is_stopped = False
        for task in self._ordered():
            if is_stopped:
                self.refused.append(Refused(task.ask.task, "", IN_ORDER))
                return
            if self.is_hopeless(task):
                continue
            if self.seats <= 0:
                self.refused.append(Refused(task.ask.task, "", NO_SEAT))
                return
            if self._place(task):
                continue
            is_stopped = not self.settings.backfills or (is_exclusive and task.after in MEMORY_ENDS)

    def _ordered(self) -> list[WaitingView]:
        """Sort the waiting tasks: after running out of memory, old ones, the rest; each in the chosen order."""
        waiting = self.view.waiting
        order = self.settings.order
        middle = 0.0
        if order != "fifo":
            known = sorted(seconds for seconds in map(seconds_of, waiting) if seconds is not None)
            middle = known[len(known) // 2] if known else 0.0

        def key(numbered: tuple[int, WaitingView]) -> tuple[int, float, int]:
            position, task = numbered
            if task.after in MEMORY_ENDS:
                rank = 0
            elif self._is_old(task):
                rank = 1
            else:
                rank = 2
            if order == "fifo":
                return rank, 0.0, position
            seconds = seconds_of(task)
            seconds = middle if seconds is None else seconds
            return rank, seconds if order == "short" else -seconds, position

        return [task for _, task in sorted(enumerate(waiting), key=key)]

    def _is_old(self, task: WaitingView) -> bool:
        return self.now_s - task.waits_since_s >= self.patience_s

    # ---- One task ----

    def _place(self, task: WaitingView) -> bool:
        """Start a task, or hold GPUs for it where it has a right to that; return whether it started."""
        number = task.ask.task
        if task.ask.gpus > 1:
            if self.whole(task):
                self.stuck.clear()
                self._measure()
                return True
            # Not before it is old: GPUs that drain for it do less, and often enough of them are empty by then anyway.
            if self.holder == number or (self.holder is None and self._is_old(task)):
                self._hold_whole(task)
            return False
        need = self._need(task)
        signature = self._signature(task, need)
        before = self.stuck.get(signature)
        is_temporary = False
        if before is not None and self.holder != number:
            self.refused.append(Refused(number, "", SAME_AS.format(before)))
        elif len(self.refused) >= DETAILED_ROWS and not need.is_alone and self._least(task, need) > self.most_room:
            self.refused.append(Refused(number, "", NO_ROOM_ANYWHERE, self.most_room, self._least(task, need)))
            self.stuck.setdefault(signature, number)
        else:
            best: Place | None = None
            best_room = 0
            eligible: list[Place] = []
            for place in self.places:
                why, needs = self._refusal(task, need, place)
                if why:
                    self._refuse(task, place, why, needs)
                    is_temporary = is_temporary or (why == CLOSED and self._would_fit(task, need, place))
                    continue
                eligible.append(place)
                if best is None or place.room > best_room:
                    best, best_room = place, place.room
            if best is not None:
                for place in eligible:
                    if place is not best:
                        self._refuse(task, place, NOT_CHOSEN, self._reserve_on(task, need, place))
                self._begin(task, need, best)
                return True
            self.stuck.setdefault(signature, number)
        wants_hold = need.is_alone or self._is_old(task)
        if wants_hold and self.holder is None and not is_temporary:
            self._hold_one(task, need)
        return False

    def _least(self, task: WaitingView, need: _Need) -> int:
        """Return the least that a task can need on any GPU, in MiB."""
        guess = int(self.least_usable * self.settings.probe_ratio)
        sizes = [guess if one.safe_mib is None else one.safe_mib for one in need.estimates.values()]
        if not self.models <= need.estimates.keys():
            sizes.append(guess)
        return max(min(sizes, default=guess), need.at_least_mib, reservation.LEAST_MIB)

    def _need(self, task: WaitingView) -> _Need:
        estimates = dict(task.estimates)
        is_alone = task.wants_alone
        if not is_alone:
            least = min((max(one.safe_mib or 0, task.floor_mib) for one in estimates.values()), default=task.floor_mib)
            is_alone = least > self.largest_mib
        at_least = task.floor_mib
        if task.had_room_mib and not task.wants_alone:
            at_least = max(at_least, task.had_room_mib + int(min(ROOMIER_MIB, ROOMIER_RATIO * task.had_room_mib)))
        return _Need(estimates, at_least, self.largest_mib, is_alone, seconds_of(task))

    def _signature(self, task: WaitingView, need: _Need) -> object:
        """What decides where a task may start: tasks with the same one are refused for the same reasons."""
        sizes = tuple((model, one.safe_mib, one.processes) for model, one in task.estimates)
        return (
            sizes, need.at_least_mib, need.is_alone, need.seconds, task.tries.was_alone and task.had_room_mib,
        )  # fmt: skip

    def _reserve_on(self, task: WaitingView, need: _Need, place: Place) -> int:
        if need.is_alone:
            return 0 if place.capacity >= UNKNOWN_MIB else place.usable
        if place.capacity >= UNKNOWN_MIB:
            estimate = need.estimates.get(place.model)
            return max(0 if estimate is None else estimate.safe_mib or 0, task.floor_mib)
        return reservation.at_start(
            need.estimates.get(place.model), task.floor_mib, place.usable, self.settings.probe_ratio
        )

    def _refusal(self, task: WaitingView, need: _Need, place: Place) -> tuple[str, int | None]:
        """Return the first reason for which a task may not start on a GPU, and what it needs there; "": it may."""
        why = self.closed_reason(place, task)
        if why == HELD and self._fits_before_hold(need, place):
            why = self.closed_reason(place, task, fits_before_hold=True)
        if why:
            return why, None
        if need.is_alone:
            return self._refusal_alone(task, need, place)
        reserve = self._reserve_on(task, need, place)
        if reserve > place.capacity:
            return TOO_SMALL, reserve
        if place.capacity < UNKNOWN_MIB:
            if reserve > place.room:
                return NO_ROOM, reserve
            if need.at_least_mib > place.room:
                return NOT_ROOMIER, need.at_least_mib
        estimate = need.estimates.get(place.model)
        why = self.crowd_reason(place, 1 if estimate is None else estimate.processes)
        if why:
            return why, reserve
        if not place.is_idle:
            settings, seen = self.settings, place.view
            if settings.sm_guard is not None and seen.sm_ratio is not None and seen.sm_ratio > settings.sm_guard:
                return SM_BUSY, reserve
            if (
                settings.dram_guard is not None
                and seen.dram_ratio is not None
                and seen.dram_ratio > settings.dram_guard
            ):
                return DRAM_BUSY, reserve
        return "", reserve

    def _would_fit(self, task: WaitingView, need: _Need, place: Place) -> bool:
        """Return whether a GPU that is closed for a moment has the room: then no other has to be held."""
        wanted = max(self._reserve_on(task, need, place), need.at_least_mib)
        return not need.is_alone and place.room >= wanted

    def _refusal_alone(self, task: WaitingView, need: _Need, place: Place) -> tuple[str, int | None]:
        why = self._too_small_alone(task, need, place)
        if why:
            return why, None
        return ("", None) if place.is_empty else (NOT_IDLE, None)

    def _too_small_alone(self, task: WaitingView, need: _Need, place: Place) -> str:
        if place.capacity >= UNKNOWN_MIB:
            return ""
        if task.tries.was_alone and place.capacity <= task.had_room_mib:
            return NOT_ROOMIER
        estimate = need.estimates.get(place.model)
        safe = 0 if estimate is None else estimate.safe_mib or 0
        return TOO_SMALL if place.capacity < min(max(safe, task.floor_mib), need.largest_mib) else ""

    def _begin(self, task: WaitingView, need: _Need, place: Place) -> None:
        estimate = need.estimates.get(place.model)
        reserve = self._reserve_on(task, need, place)
        cap_mib = cap.at_start(
            estimate,
            reserve,
            place.room,
            guard=self.settings.guard,
            is_mps=place.facts.is_mps,
            # A GPU of unknown size takes one task at a time: there is no neighbour to protect.
            is_alone=need.is_alone or place.capacity >= UNKNOWN_MIB,
        )
        number = task.ask.task
        started = self.started_on.setdefault(place.uuid, [])
        if need.is_alone:
            why = f"GPU {place.index} to itself"
        elif place.capacity >= UNKNOWN_MIB:
            why = f"GPU {place.index}, whose size is not known"
        else:
            why = f"GPU {place.index}{_beside(place, started)}: {reserve / 1024:.1f} of {gib(place.room)} free booked"
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
        self._measure()
        if was_held:
            self.stuck.clear()  # GPUs that were held are not any more

    # ---- Holds ----

    def _fits_before_hold(self, need: _Need, place: Place) -> bool:
        """Return whether a task ends before the held GPU is free for the one that it is held for (EASY backfill).

        The same rule as backfill in batch schedulers (Lifka 1995); both durations have to be known.
        """
        if need.seconds is None or need.is_alone:
            return False
        ends = self.now_s + need.seconds
        # Where a task waits for several GPUs, each may stay in use until the last of them is free.
        free = (self._free_s(held) for held in self.places if held.held_for == place.held_for)
        return any(free_s is not None and ends <= free_s for free_s in free)

    def _free_s(self, place: Place) -> float | None:
        """Return when all that runs on a GPU is expected to have ended; None: not known."""
        ends = self.now_s
        for task in place.running:
            if task.ends_s is None:
                return None
            ends = max(ends, task.ends_s)
        return ends

    def _hold_one(self, task: WaitingView, need: _Need) -> None:
        """Hold the GPU where the task can start first; where that is not known, where least memory is missing."""
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
            if need.is_alone:
                why = f"GPU {chosen.index} is kept free for task {task.ask.task}, which gets it to itself"
            else:
                why = f"GPU {chosen.index} is kept free for task {task.ask.task}, which has waited long"
            self._hold(task, chosen, why)

    def _ready_s(self, place: Place, wanted_mib: int, *, is_alone: bool) -> tuple[float, int]:
        """Return when a GPU is expected to have that room (infinite: not known), and how much is missing now."""
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
        """Hold as many GPUs as a task wants, those first that are expected to be empty first."""
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


# ---- The thesis' policies ----


class _Thesis(_Pass):
    """RAD-RM's policies: first in, first out; one task after the other; GPUs without a task before others.

    Yousefzadeh 2025, 6.2.2 and 6.3.3, and the code that was published with it (CARMA).
    """

    def __init__(self, view: PackView) -> None:
        super().__init__(view)
        self.last = view.last_gpu

    def run(self) -> None:
        waiting = self.view.waiting
        recovering = [task for task in waiting if task.after in MEMORY_ENDS or task.wants_alone]
        rest = [task for task in waiting if not (task.after in MEMORY_ENDS or task.wants_alone)]
        is_stopped = False
        for task in recovering + rest:
            if is_stopped:
                self.refused.append(Refused(task.ask.task, "", IN_ORDER))
                return
            if self.is_hopeless(task):
                continue
            if self.seats <= 0:
                self.refused.append(Refused(task.ask.task, "", NO_SEAT))
                return
            is_stopped = not self._place(task, is_recovery=task.after in MEMORY_ENDS or task.wants_alone)

    def _place(self, task: WaitingView, *, is_recovery: bool) -> bool:
        policy = self.settings.policy
        if task.ask.gpus > 1:
            return self.whole(task)
        if policy == "exclusive" or is_recovery:
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
        # The most utilised GPU first is the one policy that wants GPUs with tasks before those without.
        among = (busy or idle) if policy == "mug" else (idle or busy)
        best = min(among, key=self._rank())
        for place in eligible:
            if place is not best:
                self._refuse(task, place, NOT_CHOSEN)
        self._begin(task, estimates.get(best.model), best)
        return True

    def _rank(self) -> Callable[[Place], tuple[float, ...]]:
        """Return the order in which GPUs are preferred, the least first."""
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
            return LITTLE_FREE, needs
        is_limited = settings.smact_max is not None and place.view.sm_ratio is not None and not place.is_idle
        if is_limited and (place.view.sm_ratio or 0.0) > (settings.smact_max or 0.0):
            return SM_BUSY, needs
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
            cap_mib = cap.at_start(
                estimate, reserve, place.room, guard=settings.guard, is_mps=place.facts.is_mps, is_alone=False
            )
        else:
            point = None if estimate is None else estimate.point_mib
            reserve, cap_mib = point or 0, None
        beside = _beside(place, ())
        self._start(
            task,
            [place],
            reserve,
            cap_mib,
            is_alone=False,
            closes=True,
            processes=1 if estimate is None else estimate.processes,
            why=f"GPU {place.index}{beside} by {settings.policy}: {gib(free)} free",
        )
        self.last = place.index

    def _exclusive(self, task: WaitingView) -> bool:
        """Start a task on the first GPU that nothing runs on."""
        chosen: Place | None = None
        for place in self.places:
            why = self.closed_reason(place, task) or ("" if place.is_empty else NOT_IDLE)
            if not why and task.tries.was_alone and place.capacity <= task.had_room_mib:
                why = NOT_ROOMIER
            if why:
                self._refuse(task, place, why)
            elif chosen is None:
                chosen = place
            else:
                self._refuse(task, place, NOT_CHOSEN)
        if chosen is None:
            return False
        self._start(
            task,
            [chosen],
            0 if chosen.capacity >= UNKNOWN_MIB else chosen.usable,
            None,
            is_alone=True,
            closes=False,
            why=f"GPU {chosen.index} to itself",
        )
        self.last = chosen.index
        return True
