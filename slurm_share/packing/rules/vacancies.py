"""The places of done tasks, which tasks of the same command take without a decision.

A decision would have the same result: one was made recently for this family, both tasks have the same estimate, and no
other task has to start first. The booking does not change.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..attempt import Attempt, signature_of
from ..decision_records import Start
from ..records import BOOKING, PackSettings, TaskAsk
from .gpu_state import GpuState
from .queue import Queue
from .speeds import Speeds
from .undo import is_short

AGAIN_S = 1.0
"""For this time after a decision, tasks of the same command take the place of an ended one without a decision. Then a
decision is needed, because sizes are learned meanwhile."""


class Vacancies:
    """The tasks of a board that were done since its last decision, and its last decisions about tasks like them."""

    def __init__(
        self, queue: Queue, gpus: Mapping[str, GpuState], running: Mapping[int, Attempt], speeds: Speeds
    ) -> None:
        """Start without places. All arguments are the board's own."""
        self._queue = queue
        self._gpus = gpus
        self._running = running
        self._speeds = speeds
        self._ended: list[Attempt] = []
        self._decided: dict[object, tuple[float, Start]] = {}
        """Signature of a task -> time and result of its last decision."""

    def add(self, run: Attempt) -> None:
        """Add the place of a task that was done."""
        self._ended.append(run)

    def clear(self) -> None:
        """Drop all places, because a decision considers them."""
        self._ended.clear()

    def decided(self, run: Attempt, start: Start, now_s: float) -> None:
        """Record that a decision has started a task."""
        self._decided[run.signature] = now_s, start

    def takes(self, ask: TaskAsk, settings: PackSettings, now_s: float) -> bool:
        """Return whether a task that is not in the queue may take a place."""
        if not self._ended or not self._may_repeat(settings):
            return False
        ended = self._ended[-1]
        return ask.key == ended.ask.key and self._repeats(ask, ended, settings, now_s)

    def find(self, settings: PackSettings, now_s: float) -> tuple[int, Start] | None:
        """Return the first waiting task's start in the place of a done task, and that one; None: there is none."""
        if not self._ended:
            return None
        if not self._may_repeat(settings):
            self._ended.clear()
            return None
        ended, waiting = self._ended.pop(), self._queue.first()
        if waiting is None or not self._repeats(waiting.ask, ended, settings, now_s):
            return None
        self._queue.refresh(waiting)
        if waiting.hopeless and not settings.keep_going:
            return None  # a decision gives it up
        if waiting.ask.key != ended.ask.key and not self._is_alike(waiting, ended):
            return None
        return ended.task, Start(
            task=waiting.task,
            gpus=ended.gpus,
            reserve_mib=ended.reserved_mib,
            cap_mib=ended.cap_mib,
            why=f"in the place of task {ended.task}",
        )

    def _may_repeat(self, settings: PackSettings) -> bool:
        """Return whether no task but the first waiting one may have to start first."""
        if settings.policy not in BOOKING or settings.order != "fifo" or self._queue.retries:
            return False
        for gpu in self._gpus.values():  # loops, and no generators: asked for every start of a short task
            if gpu.held_for is not None:
                return False
        for one in self._running.values():  # noqa: SIM110
            if one.is_paused:
                return False
        return True

    def _repeats(self, ask: TaskAsk, ended: Attempt, settings: PackSettings, now_s: float) -> bool:
        """Return whether a decision about a task with the estimate of a done one would give it the same place."""
        signature = signature_of(ask)
        decided_s, start = self._decided.get(signature, (0.0, None))
        if start is None or now_s - decided_s > AGAIN_S or signature != ended.signature:
            return False
        if (start.reserve_mib, start.cap_mib) != (ended.reserved_mib, ended.cap_mib):
            return False
        gpu, most = self._gpus[ended.gpus[0]], settings.max_per_gpu
        if most is not None and len(gpu.running) >= most:
            return False  # the limit has been lowered
        if settings.policy != "gain":
            return True
        # It has to suit the neighbours equally well, and neither it nor one of them may be left alone.
        has_pairs = self._speeds.has_pairs
        if has_pairs and ask.key != ended.ask.key:
            return False
        if len(gpu.running) < 2 and self._speeds.is_new(ask, (gpu.facts.model,)):
            # Short tasks are never left alone.
            alone = (ended, *gpu.running.values())
            if not all(is_short(one.estimate.seconds, settings) for one in alone):
                return False
        return not has_pairs or not any(self._speeds.is_refused(ask.key, one.ask.key) for one in gpu.running.values())

    def _is_alike(self, waiting: Attempt, ended: Attempt) -> bool:
        """Return whether a waiting task with current estimates has the same one as a done one."""
        found, before = dict(waiting.estimates).get(self._gpus[ended.gpus[0]].facts.model), ended.estimate
        return found is not None and (
            (found.source, found.safe_mib, found.floor_mib) == (before.source, before.safe_mib, before.floor_mib)
        )
