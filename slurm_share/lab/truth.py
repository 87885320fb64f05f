"""Compute the truth of a simulation: interference, growth of memory, power of GPUs; estimators that know or ignore it.

It uses the formula of `rules.interference` with its own demands, exponent and noise, which policies do not know. What
slows two tasks beyond that is a resource that both fill, such as a cache or the host's memory. A full resource gives
its tasks together what it gives two of them, however many they are: throughput saturates, it does not vanish.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import msgspec

from ..packing.history_records import TaskRun
from ..packing.records import Estimate, TaskAsk, TaskKey
from ..packing.rules.estimate.estimator import Estimator
from ..packing.rules.interference import BUSY_FACTOR, soft
from .records import Assumptions, SimTask, Trace

LEAST_SPEED = 0.01
"""Least speed of a task beside a neighbour; a rate of 0 in a table is taken for a failed measurement."""
HARMFUL_STP = (0.6, 0.95)
"""Range of the aggregate speed of a harmful pair."""
NEIGHBOURS_EXPONENT = 1.7
"""Exponent by which the slowdowns of measured pairs add up over several neighbours. Pan 2021, Table 4: n x ResNet-18
are 1.13, 1.45, 1.81 and 2.83 times slower for n = 2, 3, 4, 7; from the pair alone it gives 1.13, 1.40, 1.72, 2.85."""
RAMP_STEPS = 8
"""Number of equal steps in which a task's memory rises to its size."""


class TrueLoad:
    """The demands of one task on a GPU, with precomputed values."""

    __slots__ = ("busy", "dram", "name", "of_soft", "sm", "soft_dram", "soft_sm", "stretched")

    def __init__(self, task: SimTask, assumed: Assumptions) -> None:
        self.name = task.name
        self.sm = min(1.0, task.sm_ratio * assumed.alpha)
        self.dram = task.dram_ratio
        self.busy = task.busy_ratio
        self.stretched = min(1.0, BUSY_FACTOR * task.busy_ratio)
        self.soft_sm = soft(self.sm, assumed.capacity_exponent)
        self.soft_dram = soft(self.dram, assumed.capacity_exponent)
        self.of_soft = self.stretched * max(self.sm / self.soft_sm, self.dram / self.soft_dram)
        """Part of a GPU's capacity that it takes at full speed, by the model."""


class Interference:
    """Speeds of tasks that share a GPU, from the measured pairs of a trace, else from the capacity model with noise."""

    def __init__(self, assumed: Assumptions, seed: int, measured: Mapping[tuple[str, str], float] = {}) -> None:
        self._assumed = assumed
        self._seed = seed
        self._measured = measured
        self._noise: dict[tuple[str, str], float] = {}
        self._harm: dict[tuple[str, str], float] = {}

    def speeds(self, loads: Sequence[TrueLoad]) -> list[float]:
        """Return the speed of each task on one GPU; 1 is its speed alone."""
        if len(loads) < 2:
            return [1.0] * len(loads)
        if self._measured:
            found = self._from_pairs(loads)
            if found is not None:
                return found
        p = self._assumed.capacity_exponent
        if self._assumed.sharing == "time-slicing":
            stretch = max(1.0, sum(load.busy for load in loads))
            slow = [1.0 - load.stretched + load.stretched * stretch for load in loads]
        else:
            sm = soft(sum(load.sm for load in loads), p)
            dram = soft(sum(load.dram for load in loads), p)
            slow = [
                1.0 - load.stretched + load.stretched * max(sm / load.soft_sm, dram / load.soft_dram) for load in loads
            ]
        speeds = [1.0 / max(1.0, one * self._of_pairs(index, loads)) for index, one in enumerate(slow)]
        if self._assumed.harmful_ratio:
            speeds = [speed * self._kept(index, loads, speeds) for index, speed in enumerate(speeds)]
        return speeds

    def _kept(self, index: int, loads: Sequence[TrueLoad], speeds: Sequence[float]) -> float:
        """Return the part of its speed that a task keeps beside harmful neighbours.

        It and all neighbours that fill the same resource do together what it does with the worst of them alone.
        """
        pairs = [(self._stp_of_pair(loads[index], other), at) for at, other in enumerate(loads) if at != index]
        harmful = [(stp, at) for stp, at in pairs if stp < 1.0]
        if not harmful:
            return 1.0
        return min(1.0, min(harmful)[0] / (speeds[index] + sum(speeds[at] for _, at in harmful)))

    def _stp_of_pair(self, one: TrueLoad, other: TrueLoad) -> float:
        """Return the drawn aggregate speed of a harmful pair, at most what its loads give; 1 of any other pair."""
        pair = (min(one.name, other.name), max(one.name, other.name))
        stp = self._harm.get(pair)
        if stp is None:
            draw = random.Random(f"{self._seed} harm {pair[0]} {pair[1]}")
            stp = draw.uniform(*HARMFUL_STP) if draw.random() < self._assumed.harmful_ratio else 1.0
            self._harm[pair] = stp
        return stp

    def _of_pairs(self, index: int, loads: Sequence[TrueLoad]) -> float:
        """Return the noise of a task: the mean over its neighbours, so that it does not grow with their number."""
        if not self._assumed.pair_sigma:
            return 1.0
        own = loads[index].name
        return math.exp(
            sum(self._of_pair(own, other.name) for at, other in enumerate(loads) if at != index) / (len(loads) - 1)
        )

    def _of_pair(self, name: str, other: str) -> float:
        noise = self._noise.get((name, other))
        if noise is None:
            noise = random.Random(f"{self._seed} {name} {other}").gauss(0.0, self._assumed.pair_sigma)
            self._noise[name, other] = noise
        return noise

    def _from_pairs(self, loads: Sequence[TrueLoad]) -> list[float] | None:
        """Return the measured speeds of two tasks, or speeds that follow for more; None: a pair was not measured.

        The slowdowns by single neighbours add up (NEIGHBOURS_EXPONENT), but all tasks together do at least as much as
        the worst two of them.
        """
        measured = self._measured
        rows = [
            [measured.get((load.name, other.name)) for at, other in enumerate(loads) if at != index]
            for index, load in enumerate(loads)
        ]
        known = [[speed for speed in row if speed is not None] for row in rows]
        if any(len(few) < len(row) for few, row in zip(known, rows, strict=True)):
            return None
        speeds = [_of_neighbours(row) for row in known]
        if len(loads) == 2:
            return speeds
        least = min(
            measured[one.name, other.name] + measured[other.name, one.name] for one, other in combinations(loads, 2)
        )
        return [speed * max(1.0, least / sum(speeds)) for speed in speeds]


def _of_neighbours(speeds: Sequence[float]) -> float:
    """Return the speed of a task from its speeds beside each neighbour alone; faster than alone counts as alone."""
    if len(speeds) == 1:
        return max(speeds[0], LEAST_SPEED)
    p = NEIGHBOURS_EXPONENT
    parts = sum((max(1.0 / max(speed, LEAST_SPEED), 1.0) ** p - 1.0) ** (1.0 / p) for speed in speeds)
    return float((1.0 + parts**p) ** (-1.0 / p))


def realised(trace: Trace, assumed: Assumptions, seed: int) -> Trace:
    """Return a trace with noise in the durations; it is the same for every policy."""
    if not assumed.run_sigma:
        return trace
    tasks = tuple(
        msgspec.structs.replace(
            task, work_s=task.work_s * math.exp(random.Random(f"{seed} {task.task}").gauss(0.0, assumed.run_sigma))
        )
        for task in trace.tasks
    )
    return msgspec.structs.replace(trace, tasks=tasks)


def steps(task: SimTask, assumed: Assumptions) -> tuple[tuple[float, int], ...]:
    """Return the growth of a task's memory as (age, MiB from then on), without the late peak."""
    context = min(assumed.context_mib, task.memory_mib)
    found = [(assumed.context_s, context)]
    if task.memory_mib > context:
        span = max(0.0, assumed.ramp_s - assumed.context_s)
        found += [
            (
                assumed.context_s + span * step / RAMP_STEPS,
                context + round((task.memory_mib - context) * step / RAMP_STEPS),
            )
            for step in range(1, RAMP_STEPS + 1)
        ]
    return tuple(found)


def watts(sm: float, exponent: float, assumed: Assumptions) -> float:
    return assumed.idle_w + (assumed.full_w - assumed.idle_w) * (sm**exponent if sm > 0.0 else 0.0)


def lower_bound_s(trace: Trace, assumed: Assumptions, most_per_gpu: int = 2) -> float:
    """Return a lower bound of the make-span: the longest task, or all work at the full capacity of all GPUs.

    most_per_gpu: tasks on a GPU, for measured interference; the capacity model holds for any number.

    At full speed, a task with demand d takes d / soft(d) of a GPU's capacity, not d: in the capacity model, the sum of
    demand x speed of shared tasks can exceed 1. The noise of pairs is ignored.
    """
    tasks = trace.tasks
    if not tasks:
        return 0.0
    first = tasks[0].submitted_s
    gpus = trace.node_gpus
    longest = max(task.submitted_s - first + task.work_s for task in tasks) / max(gpu.speed for gpu in gpus)
    capacity = trace.nodes * sum(gpu.speed for gpu in gpus)
    if trace.speeds:
        best = _best_measured(trace, most_per_gpu)
        return max(longest, sum(task.work_s * task.gpus for task in tasks) / best / capacity)
    if assumed.sharing == "time-slicing":
        work = sum(
            task.work_s * task.gpus * min(1.0, BUSY_FACTOR * task.busy_ratio) * task.busy_ratio for task in tasks
        )
    else:
        work = sum(task.work_s * task.gpus * TrueLoad(task, assumed).of_soft for task in tasks)
    return max(longest, work / capacity)


def _best_measured(trace: Trace, most_per_gpu: int) -> float:
    """Return the most work per second of the tasks of a trace on one GPU, by their measured pairs.

    The speed of each of n tasks is at most that beside n - 1 of the neighbour that slows least.
    """
    names = {task.name for task in trace.tasks}
    pairs = {pair: speed for pair, speed in trace.speeds.items() if names.issuperset(pair)}
    highest = max(pairs.values(), default=0.0)
    return max(
        1.0,
        max((speed + pairs.get((other, name), 0.0) for (name, other), speed in pairs.items()), default=1.0),
        max((count * _of_neighbours([highest] * (count - 1)) for count in range(3, most_per_gpu + 1)), default=1.0),
    )


# ---- Estimators ----


class NoEstimates(Estimator):
    """An estimator that never gives or learns a size, for Yousefzadeh's policies with recovery only."""

    def estimate(self, ask: TaskAsk, gpu_model: str, gpu_total_mib: int | None) -> Estimate:
        return Estimate(point_mib=None, safe_mib=None, source="unknown")

    def learn(self, run: TaskRun) -> None:
        pass

    def sibling(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> None:
        pass


class Oracle(NoEstimates):
    """An estimator that knows the true sizes and durations, which never change."""

    def __init__(self, tasks: Iterable[SimTask]) -> None:
        super().__init__()
        self._tasks = {task.task: task for task in tasks}

    def estimate(self, ask: TaskAsk, gpu_model: str, gpu_total_mib: int | None) -> Estimate:
        task = self._tasks[ask.task]
        text = "known to the simulation"
        return Estimate(
            point_mib=task.peak_mib, safe_mib=task.peak_mib, source="exact", runs=1, seconds=task.work_s, text=text
        )

    def growth(self, key: TaskKey | None, gpu_model: str, age_s: float) -> float:
        return 1.0
