"""The state that a board keeps of one GPU."""

from __future__ import annotations

from collections import deque

from msgspec import Struct, field

from ..attempt import Attempt
from ..records import GpuFacts, GpuView
from .room import others, room

OTHERS_WINDOW_S = 60.0
OTHERS_GROWTH_MIB = 256
OTHERS_FACTOR = 1.2
"""Memory of processes that no launcher has booked (a notebook) is multiplied by OTHERS_FACTOR if it grew by more than
OTHERS_GROWTH_MIB within OTHERS_WINDOW_S. Chosen by us."""


class GpuState(Struct, eq=False):
    """One GPU with its last figures, bookings and tasks."""

    facts: GpuFacts
    used: int | None = None
    sm: float | None = None
    dram: float | None = None
    problem: str = ""
    """Why no task starts there now; empty: tasks may start."""
    is_out: bool = False
    """The end of a task, the driver, or its MPS daemon has shown that it failed: no figure of it brings it back."""
    out_by: int | None = None
    """The task whose log alone took the GPU out of service; None: another source confirms it, or it is in service."""
    doubted: set[int] = set()
    """Tasks whose logs had taken the GPU out of service, and then said the same of another GPU."""
    booked_elsewhere: int = 0
    memory_elsewhere: int = 0
    clients_elsewhere: int = 0
    closed_until_s: float = 0.0
    closed_by: int | None = None
    held_for: int | None = None
    held_since_s: float = 0.0
    running: dict[int, Attempt] = {}
    unbooked_samples: deque[tuple[float, int]] = field(default_factory=deque)
    fault: tuple[float, int] | None = None
    """Time and task of the last CUDA fault."""
    view: GpuView | None = None
    """The view for the next decision; None: it has to be made again."""

    def open(self) -> None:
        self.closed_by, self.closed_until_s, self.view = None, 0.0, None

    def unbooked(self) -> int:
        """Return the memory in use that no launcher of this user has booked, in MiB."""
        return max(others(self.used, self.running.values()) - self.memory_elsewhere, 0)

    def room_mib(self, *, is_blind: bool) -> int:
        """Return the memory that can still be booked, in MiB."""
        return room(self.make_view(is_blind=is_blind), self.running.values())

    def make_view(self, *, is_blind: bool) -> GpuView:
        """Return the view for a decision. `is_blind`: the driver gives no figures."""
        if self.view is None:
            unbooked = self.unbooked()
            if self.unbooked_samples and unbooked - min(seen[1] for seen in self.unbooked_samples) > OTHERS_GROWTH_MIB:
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
                problem=self.problem,
                can_measure=not is_blind,
                is_out=self.is_out,
            )
        return self.view
