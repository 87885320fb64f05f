"""Compute how much memory of a GPU can still be booked.

Room is the usable memory minus the booked memory. Memory that is free now is no measure: new tasks still grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..attempt import Attempt
from ..records import GpuFacts, GpuView, RunningView, TaskAsk

UNKNOWN_MIB = 1 << 40
"""Stands for an unknown size of a GPU. Such a GPU takes one task at a time, of any size."""


def capacity(facts: GpuFacts) -> int:
    """Return the memory that one task can have on an empty GPU, in MiB; UNKNOWN_MIB: its size is not known."""
    return UNKNOWN_MIB if facts.total_mib is None else max(facts.total_mib - facts.reserve_mib, 0)


def size_basis(ask: TaskAsk, gpus: Iterable[GpuFacts]) -> dict[str, int | None]:
    """Return the memory of each GPU model of which a task's size is estimated, in MiB; None: not known.

    It is that of the GPU. For a size that is a part of it, it is what one task can have there, on the smallest of them.
    """
    found: dict[str, int | None] = {}
    for facts in gpus:
        mib = facts.total_mib
        if mib is not None and ask.gpu_mem_percent is not None:
            mib = min(capacity(facts), found.get(facts.model) or mib)
        found[facts.model] = mib
    return found


def others(used_mib: int | None, running: Iterable[RunningView | Attempt]) -> int:
    """Return the memory in use on a GPU that does not belong to `running`, in MiB; 0: the use is not known.

    A task that has shown no memory yet counts with its reservation, because its memory may already be in use.
    """
    if used_mib is None:
        return 0
    ours = sum(one.reserved_mib if one.memory_mib is None else one.memory_mib for one in running)
    return max(used_mib - ours, 0)


def usable(gpu: GpuView) -> int:
    """Return what this launcher may book on a GPU, in MiB: its size without reserve, others' memory and bookings."""
    return max(capacity(gpu.facts) - gpu.others_mib - gpu.booked_elsewhere_mib, 0)


def booked(task: RunningView | Attempt) -> int:
    """Return what a running task takes from the room of each of its GPUs, in MiB: its reservation or its memory."""
    return task.reserved_mib if task.memory_mib is None else max(task.reserved_mib, task.memory_mib)


def room(gpu: GpuView, running: Iterable[RunningView | Attempt]) -> int:
    """Return what can still be booked on a GPU, in MiB; negative: tasks have outgrown their reservations. `running`:
    the tasks on that GPU."""
    return usable(gpu) - sum(booked(task) for task in running)


class Place:
    """One GPU during a decision: the values that `decide` reads often and that change with each start."""

    def __init__(self, view: GpuView, running: Sequence[RunningView], now_s: float) -> None:
        facts = view.facts
        self.view = view
        self.facts = facts
        self.uuid = facts.uuid
        self.index = facts.index
        self.model = facts.model
        self.running = running
        self.count = len(running)
        self.clients = view.clients_elsewhere
        self.booked = 0
        self.is_shut = False
        """A task has the GPU to itself."""
        self.has_paused = False
        self.halves = 0
        """Tasks that take half of it (`TaskAsk.is_half`)."""
        for task in running:
            self.booked += booked(task)
            self.clients += task.clients
            self.halves += task.ask.is_half
            self.is_shut = self.is_shut or task.is_alone
            self.has_paused = self.has_paused or task.is_paused
        self.capacity = capacity(facts)
        self.usable = usable(view)
        self.room = self.usable - self.booked
        self.held_for = view.held_for
        self.is_closed = now_s < view.closed_until_s

    @property
    def is_idle(self) -> bool:
        """Return whether no task of this launcher runs on the GPU."""
        return self.count == 0

    @property
    def is_empty(self) -> bool:
        """Return whether no launcher of this user has a task on the GPU."""
        return self.count == 0 and not self.view.booked_elsewhere_mib and not self.view.clients_elsewhere

    def book(self, mib: int, clients: int, *, is_alone: bool, closes: bool) -> None:
        """Record a start of this decision."""
        self.count += 1
        self.booked += mib
        self.room -= mib
        self.clients += clients
        self.is_shut = self.is_shut or is_alone
        self.is_closed = self.is_closed or closes
