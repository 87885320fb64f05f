"""The base of all placement policies: the GPUs and the actions of one decision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec.structs import replace

from ...core.text import gib_text
from ..decision_records import Action, Decision, GiveUp, Hold, Reserve, Start, StartRefusal
from ..records import BOOKING, EndKind, Estimate, PackSettings, PackView, RunningView, WaitingView
from . import refusals
from .endings import MEMORY_KINDS
from .room import UNKNOWN_MIB, Place

Decide = Callable[[PackView], Decision]
"""A policy as a board gets it: `place.decide`, or that of another policy. It sees the view and nothing else."""
MEMORY_ENDS: tuple[EndKind, ...] = (*MEMORY_KINDS, "neighbour's memory")
"""After these ends a task is considered first, and with RAD-RM gets a GPU to itself."""


HALVES_MOST = 2
"""Most tasks on a GPU at once that take half of it."""


def closes_gpu(settings: PackSettings, estimate: Estimate | None) -> bool:
    """Return whether a start closes its GPU until the task shows its first memory.

    Policies that read free memory would give the next task memory that this one is about to take. With booking, only a
    task of unknown size closes its GPU, because its reservation is a guess.
    """
    if settings.policy not in BOOKING:
        return True
    return estimate is None or estimate.safe_mib is None


class Policy(ABC):
    """One decision in progress. A subclass chooses the next task, its GPU, and the tasks that wait."""

    def __init__(self, view: PackView) -> None:
        self.view = view
        self.now_s = view.now_s
        self.settings = view.settings
        self.free_workers = view.free_workers
        self.free_host_mib = view.free_host_mib
        self.actions: list[Action] = []
        self.refused: list[StartRefusal] = []
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
        """The task for which GPUs are held. At most one task holds GPUs."""
        self._find_holder()

    def _find_holder(self) -> None:
        self.holder = next((place.held_for for place in self.places if place.held_for is not None), None)

    # ---- Recording actions ----

    def _reserve(self, task: RunningView, mib: int) -> RunningView:
        grows = mib > task.reserved_mib
        why = f"{gib_text(task.reserved_mib)} -> {gib_text(mib)}: " + (
            "it has grown" if grows else f"its memory is flat at {gib_text(task.peak_mib or 0)}"
        )
        self.actions.append(Reserve(task=task.ask.task, reserve_mib=mib, is_flat=task.is_flat, why=why))
        return replace(task, reserved_mib=mib, due_mib=None)

    def _release(self, place: Place, why: str) -> None:
        place.held_for = None
        self.actions.append(Hold(task=None, gpu=place.uuid, why=why))

    def _hold(self, task: WaitingView, place: Place, why: str) -> None:
        if place.held_for != task.ask.task:
            place.held_for = self.holder = task.ask.task
            self.actions.append(Hold(task=task.ask.task, gpu=place.uuid, why=why))

    def _refuse(self, task: WaitingView, place: Place, why: str, needs_mib: int | None = None) -> None:
        room = place.room if place.capacity < UNKNOWN_MIB else None
        self.refused.append(StartRefusal(task.ask.task, place.uuid, why, room, needs_mib))

    def _give_up(
        self, task: WaitingView, why: str, outcome: Literal["gpu memory", "not started", "given up"] = "not started"
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
            place.halves += task.ask.is_half
        self._free_holds(number)
        self.free_workers -= task.ask.workers
        if self.free_host_mib is not None:
            self.free_host_mib -= self._host_mib(task)

    # ---- Steps of a decision ----

    def decide(self) -> Decision:
        """Return the actions and refusals that follow from the view."""
        self.run()
        return Decision(actions=tuple(self.actions), refused=tuple(self.refused))

    def run(self) -> None:
        """Decide about the waiting tasks, in the policy's order."""
        is_stopped = False
        for task in self._ordered():
            if is_stopped:
                self.refused.append(StartRefusal(task.ask.task, "", refusals.IN_ORDER))
                return
            if self.is_hopeless(task):
                continue
            if self.free_workers <= 0:
                self.refused.append(StartRefusal(task.ask.task, "", refusals.NO_CORES))
                return
            lacking = self._lacking(task)
            if lacking:
                # Smaller tasks go on, until this one has waited long: then the next free cores and memory are its own.
                self.refused.append(StartRefusal(task.ask.task, "", lacking))
                is_stopped = self.now_s - task.waits_since_s >= self._patience_s()
                continue
            is_stopped = not self._place(task) and self._stops_behind(task)

    def _lacking(self, task: WaitingView) -> str:
        """Return what is not free on the node for a task, besides a GPU; empty: nothing."""
        if task.ask.workers > self.free_workers:
            return refusals.FEW_CORES
        if self.free_host_mib is not None and self._host_mib(task) > self.free_host_mib:
            return refusals.HOST_FULL
        return ""

    def _host_mib(self, task: WaitingView) -> int:
        return self.view.worker_host_mib if task.ask.host_mib is None else task.ask.host_mib

    def _patience_s(self) -> float:
        """Return the time after which a waiting task is old."""
        return max(self.settings.patience_s, 2 * (self.view.median_s or 0.0))

    @abstractmethod
    def _ordered(self) -> list[WaitingView]:
        """Return the waiting tasks in the order in which they are considered."""

    @abstractmethod
    def _place(self, task: WaitingView) -> bool:
        """Start a task if it may start now, and return whether it did."""

    @abstractmethod
    def _stops_behind(self, task: WaitingView) -> bool:
        """Return whether the tasks after this one have to wait, because it did not start."""

    def is_hopeless(self, task: WaitingView) -> bool:
        """Give up a task that no GPU of the node can ever run, and return whether it was given up.

        Without a GPU in service none is given up: the launcher ends, and leaves them to other nodes and --resume.
        """
        ask = task.ask
        if not self.served:
            return False
        if task.hopeless and not self.settings.keep_going:
            self._give_up(task, f"{task.hopeless}; --keep-going tries it", "given up")
        elif ask.gpus > len(self.served):
            have = "1 GPU" if len(self.served) == 1 else f"{len(self.served)} GPUs"
            self._give_up(task, f"wants {ask.gpus} GPUs; this node has {have}")
        elif (wanted_mib := ask.gpu_mem_least_mib or ask.gpu_mem_mib or 0) > self.largest_total_mib:
            largest = gib_text(self.largest_total_mib)
            self._give_up(task, f"wants {gib_text(wanted_mib)}; the largest GPU of this node has {largest}")
        elif task.tries.was_alone and self.largest_mib < UNKNOWN_MIB and self.largest_mib <= task.had_room_mib:
            why = f"needs more than {gib_text(task.had_room_mib)} with a GPU to itself"
            largest = gib_text(self.largest_mib)
            self._give_up(task, f"{why}; the largest GPU of this node gives {largest}", "gpu memory")
        else:
            return False
        return True

    def closed_reason(self, place: Place, task: WaitingView, *, fits_before_hold: bool = False) -> str:
        """Return why a task may not start on a GPU now, memory aside; empty: it may."""
        if place.view.is_out:
            return refusals.OUT
        if place.view.problem:
            return refusals.PROBLEM
        if place.held_for is not None and place.held_for != task.ask.task and not fits_before_hold:
            return refusals.HELD
        if place.is_shut:
            return refusals.SHUT
        if place.is_closed:
            return refusals.CLOSED
        if place.has_paused:
            return refusals.PAUSED
        if task.ask.is_half and place.halves >= HALVES_MOST:
            return refusals.HALVES
        if was_moved_from(task, place) and not place.is_empty:
            return refusals.LEFT
        if not place.is_empty:
            if place.facts.is_single:
                return refusals.SINGLE
            if place.facts.total_mib is None:
                return refusals.UNSIZED
            if not place.view.can_measure:
                return refusals.NO_FIGURES
        return ""

    def crowd_reason(self, place: Place, processes: int) -> str:
        """Return which limit on the number of tasks or processes one more task would exceed; empty: none."""
        if not place.is_idle and place.clients + processes > place.facts.clients_max:
            return refusals.CLIENTS
        if place.facts.partitions and place.count >= place.facts.partitions:
            return refusals.PARTITIONS
        if self.settings.max_per_gpu is not None and place.count >= self.settings.max_per_gpu:
            return refusals.MAX_PER_GPU
        return ""

    def whole(self, task: WaitingView) -> bool:
        """Start a task on whole empty GPUs if there are enough, and return whether it started."""
        wanted = task.ask.gpus
        reasons = [(place, self.closed_reason(place, task)) for place in self.places]
        free = [place for place, why in reasons if not why and place.is_empty]
        if len(free) < wanted:
            for place, why in reasons:
                if why or not place.is_empty:
                    self._refuse(task, place, why or refusals.NOT_IDLE)
            return False
        free.sort(key=lambda place: (place.held_for != task.ask.task, place.index))
        chosen = sorted(free[:wanted], key=lambda place: place.index)
        self._start_alone(task, chosen, f"whole {gpus_text(chosen)}")
        return True

    def _start_alone(self, task: WaitingView, places: Sequence[Place], why: str) -> None:
        """Start a task that has empty GPUs to itself, with all their memory and without a cap."""
        smallest = min(place.usable for place in places)
        reserve_mib = 0 if smallest >= UNKNOWN_MIB // 2 else smallest
        self._start(task, places, reserve_mib, None, is_alone=True, closes=False, why=why)


def was_moved_from(task: WaitingView, place: Place) -> bool:
    """Return whether a task was moved away from a GPU because of its neighbours there."""
    return task.tries.moved > 0 and place.uuid in task.not_on


def is_above(figure: float | None, limit: float | None) -> bool:
    """Return whether a figure is above a limit; False if it is not known, or there is no limit."""
    return figure is not None and limit is not None and figure > limit


def gpus_text(places: Sequence[Place]) -> str:
    """Return the names of GPUs: "GPU 2", "GPUs 0, 1"."""
    if len(places) == 1:
        return f"GPU {places[0].index}"
    return "GPUs " + ", ".join(str(place.index) for place in places)


def neighbours_text(place: Place, started: Iterable[int]) -> str:
    """Return the tasks that a new one joins on a GPU: " beside 7, 12"; empty: none."""
    numbers = sorted({task.ask.task for task in place.running} | set(started))
    if not numbers:
        return ""
    shown = ", ".join(str(number) for number in numbers[:4])
    return f" beside {shown}" + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")
