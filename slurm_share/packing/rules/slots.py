"""The placement policy `slots`, of runs without --pack: the GPU of a task is that of its worker.

The cap of each slot is an even part of its GPU, so a first attempt needs no decision. A task that ran out of memory
under its cap runs again with a larger cap, then alone on a GPU (`recover`). While a larger cap is in force, an attempt
starts on that GPU only if the sum of all caps fits, so no task loses memory within its cap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...node.records import MemoryUse
from ..attempt import Attempt
from ..decision_records import Start
from ..records import Growth, PackSettings, TaskAsk, Tries
from . import endings, guarantee, log_messages, recover
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


def slot_settings(retries: int) -> PackSettings:
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
    least_mib: int | None = None
    """The guaranteed part of each slot's cap (`mem=8G:20G`), which is booked; None: all of it is."""
    has_limits: bool = False
    """The driver limits the memory of each task on its cgroup, and so holds its guaranteed part (driver 615)."""

    @property
    def booked_mib(self) -> int:
        """Return what a task with the cap of its slot books."""
        return self.cap_mib if self.least_mib is None else self.least_mib

    @property
    def is_overcommitted(self) -> bool:
        """Return whether the slots' caps together exceed the GPU's memory, as with `--share-gpu=4,mem=40G`."""
        return self.cap_mib * self.slots > self.total_mib


def known_mib(attempt: Attempt) -> int | None:
    """Return the known least need of an attempt; None: no attempt before it has shown one."""
    failures = attempt.tries.own_memory
    return attempt.floor_mib if attempt.floor_mib > failures else None  # `recover.floor` rises by at least 1


def floor_before(cap_mib: int | None, peak_mib: int | None) -> int:
    """Return the least need of a task whose last attempt, in an earlier job, ran out of GPU memory under a cap."""
    had = recover.AttemptMemory(
        reserved_mib=cap_mib or 0, cap_mib=cap_mib, peak_mib=peak_mib, room_mib=0, is_alone=False, by_user=False,
        wanted_mib=peak_mib,
    )  # fmt: skip
    return recover.floor(had, 0, GROWTH)


def start_with_cap(attempt: Attempt, gpu: str, budget: Budget) -> Start:
    """Return the start of an attempt on a GPU with caps: its cap, and its part of the sum of all caps.

    The first attempt has the slot's cap, the next one a larger cap. An attempt has the GPU alone if the larger cap was
    too small too, or would leave no room for another task. One that the driver ended above its guaranteed memory has
    the same cap, and more of it guaranteed; so has one of a range that ran out of memory below the slot's cap.
    """
    cap_mib: int | None = budget.cap_mib
    booked_mib, is_alone = budget.booked_mib, False
    has_failed = bool(attempt.tries.own_memory or attempt.tries.reclaimed)
    if has_failed and budget.least_mib is not None and attempt.floor_mib <= budget.cap_mib and not attempt.wants_alone:
        booked_mib = min(max(booked_mib, attempt.floor_mib), budget.total_mib)
    elif attempt.tries.own_memory:
        larger_mib = max(int(GROWTH.silent * budget.cap_mib), attempt.floor_mib)
        if not attempt.wants_alone and larger_mib + budget.cap_mib <= budget.total_mib:
            cap_mib = booked_mib = larger_mib
        else:
            cap_mib, booked_mib = None if budget.is_whole else budget.total_mib, budget.total_mib
            is_alone = attempt.wants_alone or cap_mib != budget.cap_mib
    return _start(attempt, (gpu,), booked_mib, cap_mib, is_alone=is_alone)


def _start(attempt: Attempt, gpus: tuple[str, ...], booked_mib: int, cap_mib: int | None, *, is_alone: bool) -> Start:
    return Start(
        task=attempt.task, gpus=gpus, reserve_mib=booked_mib, cap_mib=cap_mib, is_alone=is_alone, why="in a slot"
    )


def fits(budget: Budget, booked_mib: Sequence[int], start: Start) -> bool:
    """Return whether an attempt may start on a GPU with these bookings; always True on an empty GPU."""
    if not booked_mib:
        return True
    return not start.is_alone and sum(booked_mib) + start.reserve_mib <= budget.total_mib


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
    """Which attempts may start in the slots of a node's GPUs, with which cap, and what ends say about the caps.

    Part of a `Board`, whose GPUs, queue and running attempts it sees.
    """

    def __init__(
        self,
        budgets: Mapping[str, Budget],
        gpus: Mapping[str, GpuState],
        waiting: Mapping[int, Attempt],
        running: Mapping[int, Attempt],
    ) -> None:
        """`budgets`: GPU (UUID) -> its budget, for GPUs with caps."""
        self.budgets = budgets
        self._gpus = gpus
        self._waiting = waiting
        self._running = running
        self.crowded: set[str] = set()
        """GPUs on which a task ran out of memory below its cap. Tasks start there only if enough memory is free."""
        self.reserved: str | None = None
        """The GPU kept free for an attempt that needs more memory than a slot's cap."""
        self.has_larger_caps = False
        """True: attempts may have a larger cap, or more guaranteed memory, than their slot's."""
        self.too_small = 0
        """Attempts that ran out of memory under the cap of their slot."""
        self.done_under_cap = 0
        self._assumed_mib = 0
        """Assumed least need of a first attempt while most tasks have run out of memory under the caps of the slots."""
        self._peak_mib = 0
        """Largest peak of an attempt that has ended; 0: not known."""

    # ---- The next start ----

    @property
    def is_checking(self) -> bool:
        """Return whether a first attempt needs a decision: some task has run out of GPU memory."""
        return self.has_larger_caps or bool(self.crowded) or self.reserved is not None

    @property
    def is_too_small(self) -> bool:
        """Return whether first attempts should have a larger cap than the slot's."""
        return self.too_small >= LEARN_AFTER and self.too_small > self.done_under_cap

    def place(self, attempt: Attempt, gpus: tuple[str, ...], *, is_blind: bool = False) -> Start | None:
        """Return the start of an attempt in a slot of `gpus`, the GPU of a worker; None: it has to wait.

        `gpus` is empty for a worker without a GPU. `is_blind`: the driver gives no figures.
        """
        gpu = gpus[0] if gpus else None
        there = self._on(gpu)
        budget = None if gpu is None else self.budgets.get(gpu)
        if gpu is not None and budget is not None:
            start = self._start_with_cap(attempt, gpu, budget, there)
            needs_room = gpu in self.crowded and not attempt.tries.own_memory
        else:
            start = self._start_without_cap(attempt, gpus, there)
            is_retry = attempt.after in endings.MEMORY_KINDS and not attempt.wants_alone
            needs_room = is_retry or (gpu in self.crowded and not attempt.wants_alone)
        if start is None or gpu is None or not needs_room:
            return start
        peaks = [self._peak_mib, *(one.gpu_peak_mib or 0 for one in self._running.values())]
        use = None if is_blind else _use(self._gpus[gpu], there)
        return start if has_room(need_mib(known_mib(attempt), peaks), use, len(there)) else None

    def slot_start(self, gpu: str) -> Start | None:
        """Return the start of a first attempt on a GPU with caps if that differs from its slot's; None: it does not."""
        budget = self.budgets.get(gpu)
        start = None if budget is None else start_with_cap(self._expected(FIRST), gpu, budget)
        return None if start is None or budget is None or start.cap_mib == budget.cap_mib else start

    def _on(self, gpu: str | None) -> Collection[Attempt]:
        if gpu is not None:
            return self._gpus[gpu].running.values()
        return [one for one in self._running.values() if not one.gpus]

    def _expected(self, attempt: Attempt) -> Attempt:
        """Return an attempt with its known need; a first attempt with the need learned from other tasks."""
        if attempt.tries.own_memory or not self.is_too_small:
            return attempt
        return Attempt(ask=attempt.ask, tries=Tries(own_memory=1), floor_mib=self._assumed_mib)

    def _start_with_cap(self, attempt: Attempt, gpu: str, budget: Budget, there: Collection[Attempt]) -> Start | None:
        """Return the start of an attempt if its cap fits on its GPU, on which the attempts `there` run."""
        if not self.has_larger_caps:
            return _start(attempt, (gpu,), budget.booked_mib, budget.cap_mib, is_alone=attempt.wants_alone)
        expected = self._expected(attempt)
        failures = _failures(expected)
        start = start_with_cap(expected, gpu, budget)
        most = self.failures_waiting() if gpu == self.reserved else 0
        if most > failures and (failures == 0 or most >= ALONE_AFTER):
            return None  # the GPU is kept for an attempt that waits for more of it
        if start.is_alone and budget.total_mib < self._largest_mib():
            return None
        own = budget.booked_mib, budget.cap_mib
        if failures == 0 and all((one.reserved_mib, one.cap_mib) == own for one in there):
            return start
        return start if fits(budget, [one.reserved_mib for one in there], start) else None

    def _start_without_cap(self, attempt: Attempt, gpus: tuple[str, ...], there: Collection[Attempt]) -> Start | None:
        """Return the start of an attempt on a GPU without caps, as far as attempts that want one alone allow it."""
        is_reserved = (gpus[0] if gpus else None) == self.reserved
        may_start = is_reserved and not there if attempt.wants_alone else self.reserved is None or not is_reserved
        return _start(attempt, gpus, 0, None, is_alone=attempt.wants_alone) if may_start else None

    def failures_waiting(self) -> int:
        """Return the most attempts of one task for which its memory was too small, among the tasks that wait."""
        return max(map(_failures, self._waiting.values()), default=0)

    def reserve(self) -> None:
        """Reserve the GPU with the fewest tasks while an attempt waits for more memory than a slot's cap."""
        unusable = {uuid for uuid, gpu in self._gpus.items() if gpu.is_out or gpu.problem}
        if self.failures_waiting() < (1 if self.budgets else ALONE_AFTER):
            self.reserved = None
        elif self.reserved is None or self.reserved in unusable:
            gpus = [uuid for uuid in self._gpus if uuid not in unusable]
            if self.budgets:
                largest = self._largest_mib()
                gpus = [uuid for uuid in gpus if uuid in self.budgets and self.budgets[uuid].total_mib == largest]
            self.reserved = min(gpus, key=lambda uuid: len(self._gpus[uuid].running), default=None)

    def _largest_mib(self) -> int:
        found = (one.total_mib for uuid, one in self.budgets.items() if not self._gpus[uuid].problem)
        return max(found, default=0)

    # ---- An end ----

    def has_larger_cap(self, run: Attempt) -> bool:
        """Return whether an attempt has another cap than its slot's."""
        budget = self._budget_of(run)
        return budget is not None and run.cap_mib != budget.cap_mib

    def has_own_caps(self, run: Attempt) -> bool:
        """Return whether an attempt has another cap, or more guaranteed memory, than its slot."""
        budget = self._budget_of(run)
        return self.has_larger_cap(run) or (budget is not None and run.least_mib not in (None, budget.least_mib))

    def had(self, run: Attempt, log_tail: bytes) -> recover.AttemptMemory:
        """Return the memory that an attempt had. `log_tail`: the end of its log."""
        budget = self._budget_of(run)
        if budget is None:
            room_mib = UNKNOWN_MIB if run.is_alone else 0
        elif run.least_mib is not None:
            room_mib = run.cap_mib or 0  # below that it would not have run out of memory by its own need
        elif budget.is_overcommitted and not run.is_alone:
            room_mib = 0  # other tasks may have had its memory
        else:
            room_mib = run.reserved_mib
        return recover.AttemptMemory(
            reserved_mib=_given(run, budget),
            cap_mib=run.cap_mib,
            peak_mib=run.gpu_peak_mib,
            room_mib=room_mib,
            is_alone=run.is_alone,
            by_user=False,
            wanted_mib=log_messages.wanted_mib(log_tail, run.gpu_peak_mib) or run.gpu_peak_mib,
            least_mib=run.least_mib,
            most_mib=run.cap_mib,
        )

    def held_mib(self, run: Attempt) -> int | None:
        """Return the memory that the driver guarantees an attempt, which is what it books; None: none."""
        budget = self._budget_of(run)
        is_held = budget is not None and budget.has_limits and budget.least_mib is not None and run.cap_mib is not None
        return run.reserved_mib if is_held else None

    def _budget_of(self, run: Attempt) -> Budget | None:
        return self.budgets.get(run.gpus[0]) if run.gpus else None

    @property
    def largest_mib(self) -> int:
        """Return the memory that the largest GPU gives to one task; UNKNOWN_MIB: not every GPU has caps."""
        has_all_caps = self._gpus.keys() <= set(self.budgets) and bool(self.budgets)
        return max(one.total_mib for one in self.budgets.values()) if has_all_caps else UNKNOWN_MIB

    def done(self, run: Attempt) -> None:
        """Record an attempt that was done."""
        self._peak_mib = max(run.gpu_peak_mib or 0, self._peak_mib)
        self.done_under_cap += not self.has_larger_cap(run)

    def ended(self, run: Attempt, coming: recover.RetryDecision) -> recover.RetryDecision:
        """Learn from an attempt that was not done; return what follows from its end."""
        self._peak_mib = max(run.gpu_peak_mib or 0, self._peak_mib)
        if run.kind == guarantee.ABOVE:
            self.has_larger_caps = True
        if run.kind not in endings.MEMORY_KINDS:
            return coming
        if self.has_larger_cap(run):
            return replace(coming, wants_alone=True)
        budget = self._budget_of(run)
        if run.gpus and (budget is None or (budget.is_overcommitted and run.least_mib is None)):
            self.crowded.add(run.gpus[0])
        if budget is not None:
            self.has_larger_caps = True
            self.too_small += 1
            self._assumed_mib = max(self._assumed_mib, coming.floor_mib)
        return coming


def _given(run: Attempt, budget: Budget | None) -> int:
    """Return the memory that was too small for an attempt: its cap, or what it booked if it did not reach the cap."""
    cap_mib = run.cap_mib or 0
    is_below = budget is not None and budget.least_mib is not None
    is_below = is_below and (run.gpu_peak_mib or 0) < endings.NEAR_CAP * cap_mib
    return min(run.reserved_mib, cap_mib) if is_below else cap_mib


def _failures(attempt: Attempt) -> int:
    """Return for how many attempts of a task its memory was too small; 1 if the driver ended some for that."""
    return max(attempt.tries.own_memory, min(attempt.tries.reclaimed, 1))


FIRST = Attempt(ask=TaskAsk(task=-1))
"""Stands for any first attempt."""


def _use(gpu: GpuState, there: Iterable[Attempt]) -> MemoryUse | None:
    """Return the memory of a GPU at the last sample; None: not known."""
    if gpu.used is None or gpu.facts.total_mib is None:
        return None
    return MemoryUse(gpu.facts.total_mib, gpu.used, tuple(one.gpu_now_mib or 0 for one in there))
