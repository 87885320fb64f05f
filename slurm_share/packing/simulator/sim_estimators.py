"""Estimators for simulations: an oracle that knows the true sizes, and one without any estimates."""

from __future__ import annotations

from collections.abc import Iterable

from ..history_records import TaskRun
from ..records import Estimate, TaskAsk, TaskKey
from ..rules.estimate.estimator import Estimator
from .records import SimTask


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
