"""The state of a simulation: its nodes, GPUs, running attempts and their rates. The world changes it."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence

from msgspec import Struct, field

from ..packing.attempt import Attempt
from ..packing.decider import Decider
from ..packing.records import GpuFacts
from ..packing.rules.rates import RateMeter
from ..packing.speed_records import Rate
from . import truth
from .records import Assumptions, SimTask

BEGIN_UNIX_S = 1.7e9
"""Unix time at which simulations begin, since histories use Unix time."""
STEP_S = 2.0
"""Time after a change of neighbours at which a task finishes its current step, and its windows begin."""
WINDOWS = (3, 6, 12)
ALONE_WINDOWS = (1, 2, 3)
"""The board gets the rates of a GPU's tasks at each decision and at these numbers of closed windows: when `rules.undo`
tests and groups are learned or, for a task alone on its GPU, until its rate alone is known."""
LATER = (4, 8, 16)
"""Further numbers of windows if windows are missing."""


class TaskRates:
    """The rate of one attempt as a launcher would measure it: noisy windows, some of which are missing.

    A unit of work is a second of the task alone. The meter of the live launcher closes the windows.
    """

    def __init__(self, assumed: Assumptions, window_s: float, draw: random.Random) -> None:
        self._assumed = assumed
        self._draw = draw
        self._meter = RateMeter("progress", window_s)
        self._units = 0.0
        self._speed = 0.0
        self._begin_s = 0.0
        self.next_s = 0.0
        """End of the open window; the rate is constant until then."""
        self.is_reported = False
        """The board has the rate of all closed windows."""
        self._closed = 0
        self.reported: Rate | None = None
        """The last rate that the board got."""

    def restart(self, now: float, speed: float) -> None:
        """Start new windows after a change of neighbours. `speed`: the true speed from now on; 0: paused."""
        self.catch_up(now)
        self._meter.restart(now)
        self._begin_s, self._closed, self._speed = now + STEP_S, -1, speed
        self.next_s = self._begin_s
        self.is_reported = False

    def catch_up(self, now: float) -> None:
        """Pass the work of the windows that have ended since then to the meter."""
        if self._speed <= 0.0:
            return
        window = self._meter.window_s
        while (at := self.next_s) <= now:
            self._closed += 1
            self.is_reported = False
            self.next_s = self._begin_s + (self._closed + 1) * window
            passed = window if self._closed else STEP_S
            self._units += self._speed * passed * math.exp(self._draw.gauss(0.0, self._assumed.rate_sigma))
            is_missing = self._assumed.missing_ratio > 0.0 and self._draw.random() < self._assumed.missing_ratio
            if not is_missing:
                self._meter.add(at, self._units)

    def rate(self, now: float) -> Rate | None:
        """Return the mean over the closed windows; None: there is none yet."""
        self.catch_up(now)
        return self._meter.rate() if self._speed > 0.0 else None


def report_times_s(changed_s: float, window_s: float, *, is_alone: bool = False, has_gaps: bool = False) -> list[float]:
    """Return when the board gets the rates of a GPU whose tasks have changed. `has_gaps`: windows are missing."""
    counts = ALONE_WINDOWS if is_alone else WINDOWS
    return [changed_s + STEP_S + count * window_s for count in sorted((*counts, *(LATER if has_gaps else ())))]


class SimAttempt(Struct, eq=False):
    """The truth about a running attempt."""

    task: SimTask
    load: truth.TrueLoad
    its: Attempt
    """The attempt as the board knows it."""
    gpus: tuple[SimGpu, ...]
    updated_s: float = 0.0
    remaining_s: float = 0.0
    speed: float = 1.0
    version: int = 0
    memory_mib: int = 0
    sampled_s: float = 0.0
    granted_mib: int = 0
    """The reservation that had room; growth that found none is not in it."""
    history: list[tuple[float, int]] = []
    alone_s: float = 0.0
    is_paused: bool = False
    rates: TaskRates | None = None
    """None: the policy does not use rates."""

    def __post_init__(self) -> None:
        self.updated_s = self.sampled_s = self.its.started_s
        self.remaining_s = self.task.work_s
        self.granted_mib = self.its.reserved_mib
        self.history = [(self.its.started_s, 0)]


class SimGpu(Struct, eq=False):
    """A GPU, and its integrals over time."""

    facts: GpuFacts
    index: int
    watts: list[float]
    """Power for each exponent."""
    energy_j: list[float]
    speed: float = 1.0
    """The speed of a task alone, over that on the GPU of the trace."""
    is_broken: bool = False
    running: list[SimAttempt] = []
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

    def __init__(self, decider: Decider, gpus: Sequence[SimGpu]) -> None:
        self.decider = decider
        self.board = decider.board
        self.gpus = {gpu.facts.uuid: gpu for gpu in gpus}
        self.running: dict[int, SimAttempt] = {}
        self.decide_now = False
        self.wake_s = math.inf
        self.wake_version = 0
        self.is_ticking = False
        self.hot: tuple[bool, ...] = ()
