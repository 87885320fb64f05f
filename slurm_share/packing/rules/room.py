"""Say how much memory of a GPU is free to be booked.

Room is what is usable less what is booked. Memory that is free now says little: tasks that have just begun still grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..records import GpuFacts, GpuView, RunningView

UNKNOWN_MIB = 1 << 40
"""Stands for the size of a GPU that the driver does not say. Such a GPU takes one task at a time, of any size."""


def capacity(facts: GpuFacts) -> int:
    """Return what a task can have of an empty GPU, in MiB; `UNKNOWN_MIB` where the driver does not say its size."""
    return UNKNOWN_MIB if facts.total_mib is None else max(facts.total_mib - facts.reserve_mib, 0)


def others(used_mib: int | None, running: Iterable[RunningView]) -> int:
    """Return the memory of a GPU that is in use and is not of `running`, in MiB; 0 where the use is not known.

    Memory in use that no task is seen with yet is taken to belong to the tasks that have just begun, up to what they
    have reserved: it is on the books already.
    """
    if used_mib is None:
        return 0
    ours = sum(one.reserved_mib if one.memory_mib is None else one.memory_mib for one in running)
    return max(used_mib - ours, 0)


def usable(gpu: GpuView) -> int:
    """Return what this launcher may book on a GPU, in MiB: its size less the reserve, others' memory and bookings."""
    return max(capacity(gpu.facts) - gpu.others_mib - gpu.booked_elsewhere_mib, 0)


def booked(task: RunningView) -> int:
    """Return what a running task takes from the room of each of its GPUs, in MiB.

    That is its reservation, or more where it has outgrown it.
    """
    return task.reserved_mib if task.memory_mib is None else max(task.reserved_mib, task.memory_mib)


def room(gpu: GpuView, running: Iterable[RunningView]) -> int:
    """Return what is free to be booked on a GPU, in MiB; negative where tasks have outgrown their reservations.
    `running`: the tasks on that GPU."""
    return usable(gpu) - sum(booked(task) for task in running)


class Place:
    """One GPU while a decision is made: what `decide` reads often, and changes with each start."""

    __slots__ = (
        "booked",
        "capacity",
        "clients",
        "count",
        "facts",
        "has_paused",
        "held_for",
        "index",
        "is_closed",
        "is_shut",
        "model",
        "room",
        "running",
        "usable",
        "uuid",
        "view",
    )

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
        self.is_shut = False  # a task has it to itself
        self.has_paused = False
        for task in running:
            self.booked += booked(task)
            self.clients += task.clients
            self.is_shut = self.is_shut or task.is_alone
            self.has_paused = self.has_paused or task.is_paused
        self.capacity = capacity(facts)
        self.usable = usable(view)
        self.room = self.usable - self.booked
        self.held_for = view.held_for
        self.is_closed = now_s < view.closed_until_s

    @property
    def is_idle(self) -> bool:
        """Return whether nothing of this launcher runs on it."""
        return self.count == 0

    @property
    def is_empty(self) -> bool:
        """Return whether nothing of any launcher of this user runs on it."""
        return self.count == 0 and not self.view.booked_elsewhere_mib and not self.view.clients_elsewhere

    def book(self, mib: int, clients: int, *, is_alone: bool, closes: bool) -> None:
        """Note a start that has just been decided."""
        self.count += 1
        self.booked += mib
        self.room -= mib
        self.clients += clients
        self.is_shut = self.is_shut or is_alone
        self.is_closed = self.is_closed or closes
