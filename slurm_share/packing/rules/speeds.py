"""What is known of how fast tasks are, alone and beside each other: beliefs about their load, and measured pairs.

A state without clock or file, as `estimate.estimator.Estimator` is for memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..records import Belief, PairRun, PairView, Rate, TaskAsk, TaskKey, TaskRun


class Speeds:
    """What the user's history and this run have shown of speed."""

    def __init__(self, runs: Iterable[TaskRun] = (), pairs: Iterable[PairRun] = (), *, now: float = 0.0) -> None:
        """`runs`, `pairs`: the user's history, oldest first. `now`: Unix time."""

    def belief(self, ask: TaskAsk, gpu_model: str) -> Belief:
        """Return what a task is believed to take of a GPU."""
        return Belief()

    def rate_alone(self, key: TaskKey | None, gpu_model: str) -> Rate | None:
        """Return how fast a command is alone on such a GPU; None: not known."""
        return None

    def pairs(self, keys: Iterable[TaskKey]) -> tuple[PairView, ...]:
        """Return what was measured of these commands in pairs, by (a, b)."""
        return ()

    def learn(self, run: TaskRun) -> None:
        """Note a finished attempt."""

    def ban(self, a: TaskKey, b: TaskKey) -> None:
        """Note that two kinds of tasks are not to share a GPU again."""
