"""The state of a simulation: its nodes, their GPUs, and the running tasks. The world changes it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from ..decision_records import Start
from ..group_speeds import GroupSpeeds
from ..records import GpuFacts, Source
from ..rules.board import Board
from ..rules.speeds import Speeds
from ..running_task import RunningTask
from ..speed_records import PairRun
from . import truth
from .rates import TaskRates
from .records import SimTask

BEGIN_UNIX_S = 1.7e9
"""Unix time at which simulations begin, since histories use Unix time."""


class Attempt(Struct, eq=False):
    """A running attempt at a task."""

    task: SimTask
    load: truth.Load
    start: Start
    number: int
    gpus: tuple[SimGpu, ...]
    started_s: float
    updated_s: float = 0.0
    remaining_s: float = 0.0
    speed: float = 1.0
    version: int = 0
    memory_mib: int = 0
    sampled_peak_mib: int | None = None
    sampled_s: float = 0.0
    reserved_mib: int = 0
    granted_mib: int = 0
    """The reservation that had room; growth that found none is not in it."""
    history: list[tuple[float, int]] = []
    estimate: tuple[Source, int | None, int | None] = ("unknown", None, None)
    alone_s: float = 0.0
    is_paused: bool = False
    rates: TaskRates | None = None
    """None: the policy does not use rates."""

    def __post_init__(self) -> None:
        self.updated_s = self.sampled_s = self.started_s
        self.remaining_s = self.task.work_s
        self.reserved_mib = self.granted_mib = self.start.reserve_mib
        self.history = [(self.started_s, 0)]


class SimGpu(Struct, eq=False):
    """A GPU, and its integrals over time."""

    facts: GpuFacts
    index: int
    watts: list[float]
    """Power for each exponent."""
    energy_j: list[float]
    running: list[Attempt] = []
    memory_mib: int = 0
    sm: float = 0.0
    noise: float = 0.0
    updated_s: float = 0.0
    integral: float = 0.0
    points: deque[tuple[float, float, float]] = field(default_factory=lambda: deque([(0.0, 0.0, 0.0)]))
    """(time, integral of the SM activity up to then, SM activity from then on)"""
    busy_s: float = 0.0
    stp: float | None = None
    """Aggregate speed of the tasks that are not paused; None: there are fewer than two."""
    shared_s: float = 0.0
    harmful_s: float = 0.0
    epoch: int = 0
    """Number of changes of its tasks."""
    changed_s: float = 0.0

    def settle(self, now: float) -> float:
        """Update the integrals and the work of the tasks until now; return the seconds for which tasks were paused."""
        passed = now - self.updated_s
        if passed > 0.0:
            self.integral += self.sm * passed
            for index, watts in enumerate(self.watts):
                self.energy_j[index] += watts * passed
            if self.running:
                self.busy_s += passed
            if self.stp is not None:
                self.shared_s += passed
                if self.stp < 1.0:
                    self.harmful_s += passed
            elif len(self.running) == 1:
                self.running[0].alone_s += passed / self.running[0].task.gpus
            self.updated_s = now
        paused_s = 0.0
        for attempt in self.running:
            if attempt.updated_s < now:
                if attempt.is_paused:
                    paused_s += now - attempt.updated_s
                attempt.remaining_s -= attempt.speed * (now - attempt.updated_s)
                attempt.updated_s = now
        return paused_s

    def mean_sm(self, now: float, window: float) -> float:
        begin = now - window
        points = self.points
        while len(points) > 1 and points[1][0] <= begin:
            points.popleft()
        time, integral, sm = points[0]
        before = integral + sm * (begin - time) if begin > time else 0.0
        return (self.integral + self.sm * (now - self.updated_s) - before) / window


class SimNode:
    """A node: its board, its GPUs, and the times of its next decisions."""

    def __init__(self, board: Board, gpus: Sequence[SimGpu], speeds: Speeds, keep: Callable[[PairRun], None]) -> None:
        self.board = board
        self.its: dict[int, RunningTask] = {}
        """Running tasks in the form of the packer, for the policy `gain`."""
        facts = {gpu.facts.uuid: gpu.facts for gpu in gpus}
        self.groups = GroupSpeeds(speeds, facts, self.its, unix_s=BEGIN_UNIX_S, keep=keep)
        self.gpus = {gpu.facts.uuid: gpu for gpu in gpus}
        self.running: dict[int, Attempt] = {}
        self.waiting: set[int] = set()
        self.decide_now = False
        self.wake_s = math.inf
        self.wake_version = 0
        self.is_ticking = False
        self.hot: tuple[bool, ...] = ()
