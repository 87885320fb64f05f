"""The state of one node's GPUs, running and waiting tasks: what the live packer and the simulator have in common.

It has no clock, file or process: the caller reports what happened and when, and carries out the actions of `decide`.
Each decision is made by `place.decide` from a `PackView`, so that a journal of views can be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..records import Action, After, Decision, EndFacts, GpuFacts, PackSettings, PackView, TaskAsk, Tries
from .estimate.chain import Estimator


class Board:
    """One node of a run."""

    def __init__(self, gpus: Sequence[GpuFacts], seats: int, settings: PackSettings, estimator: Estimator) -> None:
        """Begin with idle GPUs and `seats` free seats."""
        raise NotImplementedError

    # ---- What happened ----

    def add(
        self, ask: TaskAsk, now_s: float, *, attempt: int = 1, tries: Tries | None = None, floor_mib: int = 0
    ) -> None:
        """Put a task at the end of the queue. `attempt`, `tries`, `floor_mib`: from an earlier job of the same run."""
        raise NotImplementedError

    def withdraw(self, task: int) -> None:
        """Take a waiting task out of the queue."""
        raise NotImplementedError

    def put_back(self, task: int, now_s: float) -> None:
        """Put a task back that `decide` started and that could not be started for a passing reason (no processes)."""
        raise NotImplementedError

    def sample_task(self, task: int, memory_mib: Mapping[str, int], clients: int, now_s: float) -> None:
        """Note the memory of a running task on each GPU (UUID -> MiB), and how many CUDA processes it has.

        Updates peak, plateau and reservation; a plateau tells the estimator about the task's siblings.
        """
        raise NotImplementedError

    def sample_gpu(
        self,
        uuid: str,
        now_s: float,
        *,
        used_mib: int | None,
        sm_ratio: float | None = None,
        dram_ratio: float | None = None,
        problem: str | None = None,
    ) -> None:
        """Note the figures of a GPU. `sm_ratio`, `dram_ratio`: means over the caller's window. None: not known.
        `problem`: None leaves it as it is, "" says that there is none."""
        raise NotImplementedError

    def elsewhere(self, uuid: str, booked_mib: int, memory_mib: int, clients: int) -> None:
        """Note what other launchers of the user have booked on a GPU, what of it they use now, and their processes."""
        raise NotImplementedError

    def blind(self, now_s: float, *, is_blind: bool) -> None:
        """Note that the driver gives no figures, or that it does again."""
        raise NotImplementedError

    def ended(self, facts: EndFacts) -> After:
        """Note the end of a running task: free its booking, classify the end, and put it back where it is to run again.

        Also teaches the queue: siblings of a task that ran out of memory get its floor.
        """
        raise NotImplementedError

    # ---- Decisions ----

    def view(self, now_s: float) -> PackView:
        """Return what a decision sees now."""
        raise NotImplementedError

    def decide(self, now_s: float) -> tuple[PackView, Decision]:
        """Decide by `place.decide`, apply the answer to this state, and return the view with it.

        Started tasks count as running from now on. One call may start several tasks; call it again at the next event.
        """
        raise NotImplementedError

    def apply(self, actions: Sequence[Action], now_s: float) -> None:
        """Apply actions to this state, as after `decide`; also those of a journal."""
        raise NotImplementedError

    def next_s(self, now_s: float) -> float | None:
        """Return when a decision can change without any event: a GPU opens again, a task grows old, memory may be flat.

        None: not before something happens.
        """
        raise NotImplementedError
