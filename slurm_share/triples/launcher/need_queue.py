"""The tasks of a run that wait for other tasks (`after`), as one launcher starts them.

Every launcher knows how all tasks that others need have ended: of its own node at once, of the other nodes from their
results, which it reads about once a second. A task that has all it needs goes to whichever process is free, on all
nodes and in every distribution: a launcher claims it as it claims a chunk of the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path

from ...packing import Progress, TaskSpec
from ..records import Ended, GivenUp, Outcome
from ..result_files import ResultFollower
from ..rules.needs import Needs

HOPELESS_S = 60.0
"""Seconds without a running task on any node after which tasks wait no longer: the task that they need was taken by a
launcher that was killed."""
LOST_S = 300.0
"""Seconds without news after which a launcher that ran tasks counts as lost."""
_LEFT: frozenset[Outcome] = frozenset({"saved", "unfinished"})
"""Outcomes after which another job goes on with a task."""


class NeedQueue:
    """The tasks that wait for others, on one node. The guard makes it, then only the thread of the loop calls it."""

    def __init__(
        self, done: Container[int], logs: Path, job: str, node: str, nodes: int, claim: Callable[[int], bool]
    ) -> None:
        """`done`: the tasks that were done in earlier jobs. `logs`: the folder with the nodes' folders.

        `job`: this start. `node`: the name of this one of `nodes`. `claim` claims a task for this launcher.
        """
        self._needs = Needs(done)
        self._results = ResultFollower(logs, job)
        self._job, self._node, self._nodes = job, node, nodes
        self._claim = claim
        self._is_first = True
        self._hope_s = time.monotonic()
        """When a task ran, or a result came, for the last time."""
        self._news: dict[str, tuple[float, float]] = {}
        """Other node -> (time stamp of its last progress, when that was first read)."""

    def __contains__(self, task: object) -> bool:
        return task in self._needs

    def add(self, specs: Sequence[TaskSpec]) -> None:
        """Add the next tasks of the run."""
        self._needs.add(specs)

    # ---- What starts ----

    def take(self) -> int | None:
        """Claim and return a task that has all it needs; None: there is none now. Raises StateError."""
        while (task := self._needs.first()) is not None:
            self._needs.drop_first()
            if self._claim(task):
                return task
        return None

    def peek(self) -> int | None:
        """Return the task that `take` returns if no other node is faster; None: there is none."""
        return self._needs.first()

    def take_given_up(self) -> list[GivenUp]:
        """Return the tasks that do not run because one that they need has failed, each once on one of the nodes.

        Raises StateError.
        """
        return [one for one in self._needs.take_given_up() if self._claim(one.task)]

    @property
    def left(self) -> int:
        """Return how many tasks are left for another job, because one that they need is."""
        return self._needs.left

    @property
    def is_waiting(self) -> bool:
        """Return whether tasks wait, or may start."""
        return self._needs.is_waiting

    # ---- What happens ----

    def ended(self, task: int, outcome: Outcome, why: str, *, is_again: bool) -> None:
        """Note the end of an attempt."""
        if not is_again:
            how = "done" if outcome == "done" else "left" if outcome in _LEFT else "failed"
            self._needs.ended(task, how, f"which {'was given up' if outcome == 'given up' else 'failed'} ({why})")

    def look(self, *, is_running: bool, progress: Sequence[Progress]) -> str:
        """Read the results of the other nodes; return a sentence if tasks wait no longer, else nothing.

        `is_running`: a task runs here, or may start. `progress`: of all nodes.
        """
        if self._nodes > 1 or self._is_first:
            self._is_first = False
            for ended in self._results.read():
                self._hope_s = time.monotonic()
                self._note(ended)
        if not self._needs.waiting:
            return ""
        now = time.monotonic()
        if is_running or self._is_busy(progress, now):
            self._hope_s = now
            return ""
        others = [one for one in progress if one.job == self._job and one.node != self._node]
        is_alone = len(others) == self._nodes - 1 and all(one.ended for one in others)
        if not is_alone and now - self._hope_s < HOPELESS_S:
            return ""
        count = self._needs.leave_all()
        wait = "task waits for one" if count == 1 else "tasks wait for others"
        return f"{count} {wait} that no launcher of this job runs, and {'is' if count == 1 else 'are'} left"

    def _note(self, ended: Ended) -> None:
        self.ended(ended.task, ended.outcome, ended.why, is_again=ended.again is True)

    def _is_busy(self, progress: Sequence[Progress], now: float) -> bool:
        """Return whether another launcher of this job runs tasks, as far as its last progress shows."""
        for one in progress:
            if one.job == self._job and one.node != self._node and not one.ended:
                if self._news.get(one.node, (0.0, 0.0))[0] != one.at:
                    self._news[one.node] = (one.at, now)
                if one.running and now - self._news[one.node][1] < LOST_S:
                    return True
        return False
