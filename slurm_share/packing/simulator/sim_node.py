"""The nodes of a simulation, their GPUs, and the tasks that run there: plain state, which the world changes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

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
"""Unix time at which simulations begin: histories count in days."""


class Attempt:
    """A task that runs."""

    __slots__ = (
        "alone_s",
        "cap_mib",
        "estimate",
        "gpus",
        "granted_mib",
        "history",
        "is_alone",
        "is_paused",
        "load",
        "memory_mib",
        "number",
        "peak_seen_mib",
        "rates",
        "remaining_s",
        "reserved_mib",
        "sampled_s",
        "speed",
        "started_s",
        "task",
        "updated_s",
        "version",
    )

    def __init__(self, task: SimTask, load: truth.Load, start: Start, number: int, gpus: Sequence[SimGpu], now: float):
        self.task = task
        self.load = load
        self.number = number
        self.gpus = tuple(gpus)
        self.started_s = now
        self.updated_s = now
        self.remaining_s = task.work_s
        self.speed = 1.0
        self.version = 0
        self.memory_mib = 0
        self.peak_seen_mib: int | None = None
        self.sampled_s = now
        self.reserved_mib = start.reserve_mib
        self.granted_mib = start.reserve_mib  # what there was room for: growth that found none is not in it
        self.cap_mib = start.cap_mib
        self.is_alone = start.is_alone
        self.history: list[tuple[float, int]] = [(now, 0)]
        self.estimate: tuple[Source, int | None, int | None] = ("unknown", None, None)
        self.alone_s = 0.0
        self.is_paused = False
        self.rates: TaskRates | None = None  # the policy does not ask for it


class SimGpu:
    """A GPU, and its integrals over time."""

    __slots__ = (
        "busy_s",
        "changed_s",
        "energy_j",
        "epoch",
        "facts",
        "harmful_s",
        "index",
        "integral",
        "memory_mib",
        "noise",
        "points",
        "running",
        "shared_s",
        "sm",
        "stp",
        "updated_s",
        "watts",
    )

    def __init__(self, facts: GpuFacts, index: int, exponents: int):
        self.facts = facts
        self.index = index
        self.running: list[Attempt] = []
        self.memory_mib = 0
        self.sm = 0.0
        self.noise = 0.0
        self.updated_s = 0.0
        self.integral = 0.0
        self.points: deque[tuple[float, float, float]] = deque([(0.0, 0.0, 0.0)])
        """(time, integral of the SM activity up to then, SM activity from then on)"""
        self.watts = [0.0] * exponents
        self.energy_j = [0.0] * exponents
        self.busy_s = 0.0
        self.stp: float | None = None  # of tasks that are not paused; None: there are fewer than two
        self.shared_s = self.harmful_s = 0.0
        self.epoch = 0
        """Counts the changes of its tasks."""
        self.changed_s = 0.0

    def settle(self, now: float) -> float:
        """Bring its integrals, and the work of its tasks, up to now; return the seconds that tasks were paused."""
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
        """Return the mean SM activity over the window that ends now."""
        begin = now - window
        points = self.points
        while len(points) > 1 and points[1][0] <= begin:
            points.popleft()
        time, integral, sm = points[0]
        before = integral + sm * (begin - time) if begin > time else 0.0
        return (self.integral + self.sm * (now - self.updated_s) - before) / window


class SimNode:
    """A node: a board, its GPUs, and what is known of its next decisions."""

    __slots__ = (
        "board", "decide_now", "gpus", "groups", "hot", "is_ticking", "its", "running", "waiting", "wake_s",
        "wake_version",
    )  # fmt: skip

    def __init__(self, board: Board, gpus: Sequence[SimGpu], speeds: Speeds, keep: Callable[[PairRun], None]):
        self.board = board
        self.its: dict[int, RunningTask] = {}
        """Running tasks as the packer keeps them, for the policy `gain`."""
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
