"""What a board keeps of one GPU and of one running task: what was last seen of them, and what was promised."""

from __future__ import annotations

from collections import deque

from ..records import GpuFacts, GpuView, RunningView, WaitingView
from .room import others, room

OTHERS_WINDOW_S = 60.0
OTHERS_GROWTH_MIB = 256
OTHERS_FACTOR = 1.2
"""Memory of processes that nobody has booked (a notebook) counts by the factor while it grew by more than that within
the window. Ours."""


class GpuState:
    """One GPU: what was last said of it."""

    __slots__ = (
        "booked_elsewhere",
        "clients_elsewhere",
        "closed_by",
        "closed_until_s",
        "dram",
        "facts",
        "fault",
        "held_for",
        "held_since_s",
        "is_out",
        "memory_elsewhere",
        "others_seen",
        "out_by",
        "problem",
        "running",
        "sm",
        "used",
        "view",
    )  # fmt: skip

    def __init__(self, facts: GpuFacts) -> None:
        self.facts = facts
        self.used: int | None = None
        self.sm: float | None = None
        self.dram: float | None = None
        self.problem = ""
        self.is_out = False
        self.out_by: int | None = None  # the task whose log took it out of service, while nobody else has said so
        self.booked_elsewhere = 0
        self.memory_elsewhere = 0
        self.clients_elsewhere = 0
        self.closed_until_s = 0.0
        self.closed_by: int | None = None
        self.held_for: int | None = None
        self.held_since_s = 0.0
        self.running: dict[int, TaskState] = {}
        self.others_seen: deque[tuple[float, int]] = deque()
        self.fault: tuple[float, int] | None = None
        self.view: GpuView | None = None

    @property
    def running_views(self) -> list[RunningView]:
        """Return the views of its tasks."""
        return [one.view for one in self.running.values()]

    def open(self) -> None:
        """Let tasks start on it: what closed it is over."""
        self.closed_by, self.closed_until_s, self.view = None, 0.0, None

    def unbooked(self) -> int:
        """Return the memory in use on it that no launcher of this user has booked, in MiB."""
        return max(others(self.used, self.running_views) - self.memory_elsewhere, 0)

    def room_mib(self, *, is_blind: bool) -> int:
        """Return the room beside its tasks."""
        return room(self.make_view(is_blind=is_blind), self.running_views)

    def make_view(self, *, is_blind: bool) -> GpuView:
        """Return what a decision sees of it. `is_blind`: the driver gives no figures."""
        if self.view is None:
            unbooked = self.unbooked()
            if self.others_seen and unbooked - min(seen[1] for seen in self.others_seen) > OTHERS_GROWTH_MIB:
                unbooked = int(unbooked * OTHERS_FACTOR)
            self.view = GpuView(
                facts=self.facts,
                used_mib=self.used,
                others_mib=unbooked,
                booked_elsewhere_mib=max(self.booked_elsewhere, self.memory_elsewhere),
                clients_elsewhere=self.clients_elsewhere,
                sm_ratio=self.sm,
                dram_ratio=self.dram,
                closed_until_s=self.closed_until_s,
                held_for=self.held_for,
                held_since_s=self.held_since_s,
                problem=self.problem,
                can_measure=not is_blind,
                is_out=self.is_out,
            )
        return self.view


class TaskState:
    """One running task."""

    __slots__ = (
        "floor_mib",
        "gpus",
        "granted_mib",
        "growth",
        "growth_at_s",
        "memory",
        "peaks",
        "seq",
        "told_mib",
        "view",
        "waiting",
        "was_joined",
    )  # fmt: skip

    def __init__(self, view: RunningView, gpus: list[GpuState], seq: int, waiting: WaitingView) -> None:
        self.view = view
        self.gpus = gpus
        self.seq = seq
        self.waiting = waiting
        self.floor_mib = waiting.floor_mib
        self.was_joined = False  # another task of ours was on one of its GPUs
        self.granted_mib = view.reserved_mib  # what it was promised: growth that found no room is not in it
        self.told_mib = view.reserved_mib  # what JAX and TensorFlow are told to take at most
        self.memory: dict[str, int] = {}
        self.peaks: list[tuple[float, int]] = []
        self.growth = 1.0
        self.growth_at_s: float | None = None
