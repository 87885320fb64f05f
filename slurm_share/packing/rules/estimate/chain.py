"""Estimate a task's GPU memory from the first source that has enough evidence."""

from __future__ import annotations

from collections.abc import Iterable

from ...records import Estimate, TaskAsk, TaskKey, TaskRun


class Estimator:
    """What is known of the sizes of tasks: the history's runs, and the tasks of this run."""

    def __init__(self, runs: Iterable[TaskRun] = (), *, now: float = 0.0, software: str = "") -> None:
        """Learn from `runs`, oldest first.

        `now`: Unix time; runs older than 180 days, or of other software than `software`, count less.
        """
        raise NotImplementedError

    def estimate(self, ask: TaskAsk, gpu_model: str, gpu_total_mib: int | None) -> Estimate:
        """Return what is expected of a task on a GPU model."""
        raise NotImplementedError

    def learn(self, run: TaskRun) -> None:
        """Learn from a finished attempt."""
        raise NotImplementedError

    def sibling(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> None:
        """Note a running task whose memory is flat, for its siblings that wait. Also of other nodes of the run."""
        raise NotImplementedError

    def growth(self, key: TaskKey | None, gpu_model: str, age_s: float) -> float:
        """Return by which factor a peak that was flat at that age may still grow."""
        raise NotImplementedError
