"""Collect the ends of tasks and attempts in a simulation, and compute its result."""

from __future__ import annotations

from collections.abc import Sequence

from ..packing.history_records import TaskRun
from ..packing.records import EndKind
from ..packing.speed_records import PairRun
from . import truth
from .records import Assumptions, Bar, ComparedPolicy, Result, SimOutcome, Trace
from .sim_node import SimAttempt, SimGpu

WORKERS_PER_GPU = 16
"""Most tasks at once on a node, per GPU."""


class Totals:
    """Counts and times of one simulation."""

    def __init__(
        self, trace: Trace, policy: ComparedPolicy, assumed: Assumptions, seed: int, *, has_bars: bool
    ) -> None:
        """Start with zero counts. `has_bars`: collect the bars of a picture."""
        self._trace = trace
        self._policy = policy
        self._assumed = assumed
        self._seed = seed
        self._has_bars = has_bars
        self.outcomes = {task.task: SimOutcome(task=task.task, submitted_s=task.submitted_s) for task in trace.tasks}
        self.wastes: list[float] = []
        """For each finished task: booked memory beyond its peak, over the peak."""
        self.last_end = 0.0
        self.oom_own = 0
        self.oom_neighbour = 0
        self.wasted_gpu_s = 0.0
        self.decisions = 0
        self.paused_s = 0.0
        self.bars: list[Bar] = []
        self.runs: list[TaskRun] = []
        self.pairs: list[PairRun] = []

    def add_bars(self, attempt: SimAttempt, kind: EndKind, now: float) -> None:
        """Record an ended attempt for the picture, if there is to be one."""
        if not self._has_bars:
            return
        task, its = attempt.task, attempt.its
        history = (*attempt.history, (now, attempt.memory_mib))
        self.bars += [
            Bar(
                gpu=gpu.index,
                task=task.task,
                attempt=its.attempt,
                start_s=its.started_s,
                end_s=now,
                memory=history,
                reserved_mib=its.reserved_mib,
                outcome=kind,
                name=task.name,
            )
            for gpu in attempt.gpus
        ]

    def result(self, gpus: Sequence[SimGpu]) -> Result:
        """Return the result of the simulation. `gpus`: all GPUs, at the time of the last end."""
        tasks = self._trace.tasks
        sized = [run for run in self.runs if _is_sized(run)]
        outcomes = tuple(self.outcomes.values())
        ended = [one for one in outcomes if one.end_s is not None and one.first_start_s is not None]
        done_s = sum(task.work_s * task.gpus for task, one in zip(tasks, outcomes, strict=True) if one.kind == "done")
        busy_s = sum(gpu.busy_s for gpu in gpus)
        most = WORKERS_PER_GPU * self._trace.gpus
        return Result(
            policy=self._policy.name,
            seed=self._seed,
            assumptions=self._assumed,
            make_span_s=self.last_end - tasks[0].submitted_s if ended else 0.0,
            wait_s=_mean([(one.first_start_s or 0.0) - one.submitted_s for one in ended]),
            jct_s=_mean([(one.end_s or 0.0) - one.submitted_s for one in ended]),
            oom_own=self.oom_own,
            oom_neighbour=self.oom_neighbour,
            unfinished=sum(one.kind != "done" for one in outcomes),
            stp=done_s / busy_s if busy_s else 0.0,
            antt=_mean([one.slowdown for one in outcomes if one.slowdown is not None]),
            shared_s=sum(gpu.shared_s for gpu in gpus),
            harmful_s=sum(gpu.harmful_s for gpu in gpus),
            paused_s=self.paused_s,
            pairs=tuple(self.pairs),
            energy_j=tuple(
                (exponent, sum(gpu.energy_j[index] for gpu in gpus))
                for index, exponent in enumerate(self._assumed.power_exponents)
            ),
            lower_bound_s=truth.lower_bound_s(
                self._trace, self._assumed, min(most, self._policy.settings.max_per_gpu or most)
            ),
            wasted_s=self.wasted_gpu_s,
            waste=_mean(self.wastes) if self.wastes else None,
            sized=len(sized),
            covered=sum(run.kind == "done" and (run.peak_mib or 0) <= (run.safe_mib or 0) for run in sized),
            decisions=self.decisions,
            outcomes=outcomes,
            bars=tuple(self.bars),
            runs=tuple(self.runs),
        )


def _is_sized(run: TaskRun) -> bool:
    """Return whether a run shows if its estimate was right. A number of the user's is no estimate."""
    has_need = run.is_censored or (run.kind == "done" and run.peak_mib is not None)
    return has_need and run.safe_mib is not None and not run.is_elastic and run.source not in ("user", "unknown")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
