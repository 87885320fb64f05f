"""The placement policy `slots`, of runs without --pack: the GPU of a task is that of its worker.

The cap of each slot is an even part of its GPU, so a first attempt needs no decision. A task that ran out of memory
under its cap runs again with a larger cap, then alone on a GPU (`recover`). While a larger cap is in force, an attempt
starts on that GPU only if the sum of all caps fits, so no task loses memory within its cap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ...node.records import MemoryUse
from ..attempt import Attempt
from ..records import EndFacts, EndKind, GpuFacts, Growth, PackSettings, Tries
from . import blame, endings, recover
from .gpu_state import GpuState
from .room import UNKNOWN_MIB

GROWTH = Growth(sized=2.0, silent=2.0, wanted=1.1, peak_mib=0)
"""A larger cap is that of two slots. `wanted`: allocators ask for blocks, and may ask several times."""
ALONE_AFTER = 2
"""Attempts out of memory after which the next attempt has a GPU alone."""
LEARN_AFTER = 3
"""Tasks out of memory under the slots' cap after which further tasks begin with a larger cap, if fewer are done."""
RESERVE = 0.02
"""Part of a memory kept free for driver and fragmentation, as in `Settings.memory_reserve_percent`."""


def settings_of(retries: int) -> PackSettings:
    """Return how the failures of a plain run are retried: --retries pays for all of them."""
    return PackSettings(policy="slots", retries=retries, oom_retries=ALONE_AFTER, pays="retries", growth=GROWTH)


class Budget(Struct, frozen=True):
    """The memory of one GPU that a launcher divides among its slots there."""

    cap_mib: int
    """Cap of each slot."""
    total_mib: int
    """Limit of the sum of all caps."""
    slots: int
    is_whole: bool
    """True: no other step or job has a slot of this GPU, so a task alone on it needs no cap."""

    @property
    def is_overcommitted(self) -> bool:
        """Return whether the slots' caps together exceed the GPU's memory, as with `--share-gpu=4,mem=40G`."""
        return self.cap_mib * self.slots > self.total_mib


class RetryNeed(Struct, frozen=True):
    """The need of a task that earlier attempts have shown."""

    tries: Tries = Tries()
    floor_mib: int = 0
    """Its known least need; 0: it has not run out of memory."""
    wants_alone: bool = False
    """Its next attempt gets a GPU without other tasks of the run."""
    cap_mib: int | None = None
    """Largest cap under which it ran out of memory; None: there was no cap."""

    @property
    def failures(self) -> int:
        """Return the number of attempts that ran out of GPU memory."""
        return self.tries.own_memory

    @property
    def known_mib(self) -> int | None:
        """Return its known least need; None: no attempt has shown one."""
        return self.floor_mib if self.floor_mib > self.failures else None  # `recover.floor` rises by at least 1


class Allowance(Struct, frozen=True):
    """The memory that an attempt may use on a GPU."""

    cap_mib: int | None
    """None: no cap."""
    booked_mib: int
    """Its part of the sum of all caps."""
    is_alone: bool = False
    """True: no other task of the launcher runs on the GPU."""


def need_of(attempt: Attempt) -> RetryNeed:
    """Return what the attempts before this one have shown."""
    return RetryNeed(attempt.tries, attempt.floor_mib, attempt.wants_alone, attempt.had_room_mib or None)


def need_from_before(cap_mib: int | None, peak_mib: int | None) -> RetryNeed:
    """Return the need of a task whose last attempt, in an earlier job, ran out of GPU memory under a cap."""
    had = recover.AttemptMemory(
        reserved_mib=cap_mib or 0, cap_mib=cap_mib, peak_mib=peak_mib, room_mib=0, is_alone=False, by_user=False,
        wanted_mib=peak_mib,
    )  # fmt: skip
    return RetryNeed(Tries(own_memory=1), recover.floor(had, 0, GROWTH), cap_mib=cap_mib)


def allowance(budget: Budget, need: RetryNeed) -> Allowance:
    """Return the allowance of a task's next attempt on a GPU.

    The first attempt has the slot's cap, the next one a larger cap. An attempt has the GPU alone if the larger cap was
    too small too, or would leave no room for another task.
    """
    if need.failures == 0:
        return Allowance(budget.cap_mib, budget.cap_mib)
    larger = max(int(GROWTH.silent * budget.cap_mib), need.floor_mib)
    if not need.wants_alone and larger + budget.cap_mib <= budget.total_mib:
        return Allowance(larger, larger)
    return Allowance(None if budget.is_whole else budget.total_mib, budget.total_mib, is_alone=True)


def fits(budget: Budget, booked_mib: Sequence[int], wanted: Allowance) -> bool:
    """Return whether an attempt may start on a GPU with these bookings; always True on an empty GPU."""
    if not booked_mib:
        return True
    return not wanted.is_alone and sum(booked_mib) + wanted.booked_mib <= budget.total_mib


def need_mib(own_peak_mib: int | None, peaks_mib: Sequence[int]) -> int | None:
    """Return the expected need of a task: the largest peak of it and of other tasks of the run; None: not known."""
    seen = [peak for peak in (own_peak_mib, *peaks_mib) if peak]
    return max(seen) if seen else None


def has_room(need: int | None, room: MemoryUse | None, running: int) -> bool:
    """Return whether a task with a need (None: not known) fits into the free memory.

    Running tasks may grow to the same need, so each counts with the larger of its use and `need`. Always True if no
    task of ours runs there: there is nothing to wait for.
    """
    if running == 0:
        return True
    if need is None or room is None:
        return False
    # A task that started after the last sample counts with 0.
    ours = list(room.tasks_mib) + [0] * (running - len(room.tasks_mib))
    others = max(room.used_mib - sum(ours), 0)
    committed = sum(max(need, one) for one in ours)
    return room.total_mib * (1 - RESERVE) - others - committed >= need


class SlotPolicy:
    """Caps, waiting and retries of the tasks of one node whose workers have fixed GPUs."""

    def __init__(
        self, budgets: Mapping[int, Budget], gpus: Iterable[GpuFacts], retries: int, *, has_known: bool
    ) -> None:
        """`budgets`: GPU position -> its budget, for GPUs with caps. `gpus`: of the workers, with an empty UUID if the
        driver does not list it. `has_known`: tasks ran out of memory in an earlier job."""
        self.settings = settings_of(retries)
        self.budgets = budgets
        self.gpus = {facts.index: GpuState(facts) for facts in gpus}
        """Position -> whether it is in service. `problem`: its daemon has ended, or it has failed."""
        self.crowded: set[int] = set()
        """GPUs on which a task ran out of memory below its cap. Tasks start there only if enough memory is free."""
        self.reserved: int | None = None
        """The GPU kept free for an attempt that needs more memory than a slot's cap."""
        self.has_larger_caps = has_known
        """True: attempts may have a larger cap than their slot's."""
        self.too_small = 0
        """Attempts that ran out of memory under the cap of their slot."""
        self.done_under_cap = 0
        self._assumed_mib = 0
        """Assumed least need of a first attempt while most tasks have run out of memory under the caps of the slots."""

    # ---- The next start ----

    def expected(self, need: RetryNeed) -> RetryNeed:
        """Return the known need of an attempt; for a first attempt, the need learned from other tasks."""
        if need.failures == 0 and self.is_too_small:
            return RetryNeed(Tries(own_memory=1), self._assumed_mib)
        return need

    @property
    def is_too_small(self) -> bool:
        """Return whether first attempts should have a larger cap than the slot's."""
        return self.too_small >= LEARN_AFTER and self.too_small > self.done_under_cap

    def larger_allowance(self, gpu: int | None, need: RetryNeed) -> Allowance | None:
        """Return the allowance of an attempt; None: the cap of its slot."""
        budget = None if gpu is None else self.budgets.get(gpu)
        if budget is None or not self.has_larger_caps:
            return None
        allowed = allowance(budget, self.expected(need))
        return None if allowed.cap_mib == budget.cap_mib else allowed

    def has_cap_for(self, gpu: int, need: RetryNeed, there: Sequence[Allowance | None], waiting: int) -> bool:
        """Return whether the cap of an attempt fits on its GPU. `there`: the allowances of the tasks on it.

        `waiting`: the most failures of one task that waits to run again.
        """
        budget = self.budgets[gpu]
        if not self.has_larger_caps:
            return True
        expected = self.expected(need)
        allowed = allowance(budget, expected)
        most = waiting if gpu == self.reserved else 0
        if most > expected.failures and (expected.failures == 0 or most >= ALONE_AFTER):
            return False  # the GPU is kept for an attempt that waits for more of it
        if allowed.is_alone and budget.total_mib < self._largest_mib():
            return False
        if expected.failures == 0 and all(one is None for one in there):
            return True
        return fits(budget, [budget.cap_mib if one is None else one.booked_mib for one in there], allowed)

    def may_try_without_cap(self, gpu: int | None, need: RetryNeed, running: int) -> bool:
        """Return whether an attempt may start on a GPU without caps, as far as tasks that want one alone allow it."""
        if need.wants_alone:
            return gpu == self.reserved and running == 0
        return self.reserved is None or gpu != self.reserved

    def reserve(self, waiting: int, busy: Sequence[int | None]) -> None:
        """Reserve the GPU with the fewest tasks while an attempt waits for more memory than a slot's cap.

        `busy`: the GPU of each running task.
        """
        if waiting < (1 if self.budgets else ALONE_AFTER):
            self.reserved = None
        elif self.reserved is None or self.reserved in self.unusable:
            gpus = self.gpus.keys() - self.unusable
            if self.budgets:
                largest = self._largest_mib()
                gpus = {gpu for gpu in gpus if gpu in self.budgets and self.budgets[gpu].total_mib == largest}
            self.reserved = min(sorted(gpus), key=busy.count, default=None)

    def _largest_mib(self) -> int:
        found = (one.total_mib for gpu, one in self.budgets.items() if gpu not in self.unusable)
        return max(found, default=0)

    # ---- An end ----

    @property
    def unusable(self) -> set[int]:
        """Return the GPUs on which no task starts."""
        return {place for place, gpu in self.gpus.items() if gpu.is_out or gpu.problem}

    def fail(self, place: int, problem: str) -> None:
        """Take a GPU out of service that is broken by the driver's own report."""
        gpu = self.gpus[place]
        gpu.is_out, gpu.out_by, gpu.problem = True, None, gpu.problem or problem

    def judge(self, facts: EndFacts, place: int | None, cap_ratio: float | None) -> tuple[EndKind, str]:
        """Return how an attempt ended, and the reason. Takes a failed GPU out of service, or gives others back to it.

        `place`: its GPU. `cap_ratio`: see `endings.classify`.
        """
        kind, reason = endings.classify(facts, cap_ratio)
        if kind == "device":
            its = [] if place is None else [self.gpus[place]]
            kind, reason, _ = blame.judge_device(reason, facts, its, self.gpus.values())
        return kind, reason

    def had(
        self, gpu: int | None, need: RetryNeed, allowed: Allowance | None, peak_mib: int | None, wanted_mib: int | None
    ) -> recover.AttemptMemory:
        """Return the memory that an attempt had. `allowed`: None: the cap of its slot."""
        budget = None if gpu is None else self.budgets.get(gpu)
        is_alone = need.wants_alone if allowed is None else allowed.is_alone
        cap_mib = allowed.cap_mib if allowed is not None else None if budget is None else budget.cap_mib
        if budget is None:
            room_mib = UNKNOWN_MIB if is_alone else 0
        elif budget.is_overcommitted and not is_alone:
            room_mib = 0  # other tasks may have had its memory
        else:
            room_mib = budget.cap_mib if allowed is None else allowed.booked_mib
        return recover.AttemptMemory(
            reserved_mib=cap_mib or 0,
            cap_mib=cap_mib,
            peak_mib=peak_mib,
            room_mib=room_mib,
            is_alone=is_alone,
            by_user=False,
            wanted_mib=wanted_mib,
        )

    def recover(self, kind: EndKind, need: RetryNeed, had: recover.AttemptMemory) -> recover.RetryDecision:
        """Return what follows from the end of an attempt, as `recover.recover` decides."""
        has_all_caps = self.gpus.keys() <= set(self.budgets) and bool(self.budgets)
        largest_mib = max(one.total_mib for one in self.budgets.values()) if has_all_caps else UNKNOWN_MIB
        return recover.recover(
            recover.AttemptEnd(kind, "", had, need.tries, need.floor_mib, self.settings, largest_mib)
        )

    def learn(self, gpu: int | None, allowed: Allowance | None, floor_mib: int) -> bool:
        """Learn from an attempt that ran out of GPU memory; return whether first attempts now begin with more."""
        budget = None if gpu is None else self.budgets.get(gpu)
        if gpu is not None and (budget is None or (allowed is None and budget.is_overcommitted)):
            self.crowded.add(gpu)
        if budget is None or allowed is not None:
            return False
        self.has_larger_caps = True
        was_too_small = self.is_too_small
        self.too_small += 1
        self._assumed_mib = max(self._assumed_mib, floor_mib)
        return self.is_too_small and not was_too_small
