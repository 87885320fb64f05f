"""The trials of a packed run: number of tasks at once, sharing method, and parts of the multiprocessors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from ...node.records import MemoryUse
from ...packing import LevelRun, Packer, PackRequest, Start, TaskKey
from ..records import Run
from .node import Node
from .pack_learning import PackLearning
from .running import Running
from .share_trials import ShareTrials
from .tuning import Tuning


class PackTrials:
    """The trials that the user has requested; often none. Times are in seconds since the strategy was made."""

    def __init__(
        self,
        request: PackRequest,
        run: Run,
        node: Node,
        packer: Packer,
        learning: PackLearning,
        tell: Callable[[str], None],
    ) -> None:
        """`tell` gets sentences for the job's log."""
        self._learning = learning
        self._tell = tell
        self._shares = ShareTrials(packer, learning.speeds) if request.is_sm_tried else None
        self._tuning: Tuning | None = None
        if request.is_tuned or request.is_compared:
            self._tuning = Tuning(
                request,
                packer,
                workers=len(node.workers),
                cores=node.cores,
                nodes=node.count,
                per_node=len(node.workers) if run.triple is None else run.triple.per_node,
                node_name=node.name,
                window_s=run.rate_window_s,
            )

    @property
    def needs_host(self) -> bool:
        """Return whether the trials need samples of the host's memory."""
        return self._tuning is not None

    @property
    def is_to_begin(self) -> bool:
        """Return whether `begin` has to be called with the first task of the run."""
        return self._tuning is not None and not self._tuning.has_begun

    @property
    def levels(self) -> tuple[LevelRun, ...]:
        """Return the levels measured so far."""
        return () if self._tuning is None else self._tuning.levels

    @property
    def threads(self) -> int | None:
        """Return OMP_NUM_THREADS for a process; None: the trials do not set it."""
        return None if self._tuning is None else self._tuning.threads

    def begin(self, key: TaskKey | None, tasks: int) -> None:
        """Begin the trials. `tasks`: how many tasks of the command this node has."""
        if self._tuning is not None:
            self._tuning.begin(key, tasks, self._learning.speeds, time.time())

    def start(self, start: Start) -> Start:
        """Return a start with the method and part under trial, which the recorded decisions leave out."""
        if self._tuning is not None and len(start.gpus) == 1:
            start = replace(start, sharing=self._tuning.method)
        if self._shares is not None and start.sharing in (None, "mps"):
            start = replace(start, sm_percent=self._shares.start(start))
        return start

    def dropped(self, task: int) -> None:
        """Cancel the trial of a start that was not carried out."""
        if self._shares is not None:
            self._shares.dropped(task)

    def ended(self, task: Running, now: float, *, is_done: bool) -> None:
        """Record the end of an attempt."""
        if self._tuning is not None:
            self._tuning.ended(task, time.monotonic() - task.clock, now, is_done=is_done)
        if self._shares is not None:
            self._shares.ended(task.turn.task, time.time())

    def tick(self, running: Mapping[int, Running], host: Callable[[], MemoryUse | None], now: float) -> None:
        """Measure the running tasks, and keep results of trials. `host` returns the host's memory."""
        if self._tuning is not None:
            self._tuning.tick(running, host(), now)
            self._take_tuned(self._tuning)
        if self._shares is not None:
            self._shares.tick()
            self.take_shares()

    def sentences(self) -> list[str]:
        """Return the tables for the end of the run, as lines."""
        return [] if self._tuning is None else self._tuning.sentences()

    def _take_tuned(self, tuning: Tuning) -> None:
        """Log the results of trials of numbers and methods, and write them to the user's history."""
        for sentence in tuning.to_say:
            self._tell(sentence)
        tuning.to_say.clear()
        record, tuning.record = tuning.record, None
        if record is not None:
            self._learning.keep_trials(replace(record, when=round(time.time(), 3)))

    def take_shares(self) -> None:
        """Log the results of trials of multiprocessor parts, and write them to the user's history."""
        if self._shares is None:
            return
        for sentence in self._shares.to_say:
            self._tell(sentence)
        self._shares.to_say.clear()
        runs, self._shares.to_keep = self._shares.to_keep, []
        self._learning.keep_trials(*runs)
