"""Choose the next task for a free worker of this node, without processes or clocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping

from ...packing import Attempt, RetryNeed, TaskAsk, need_from_before
from ..records import Ended, Outcome, Run
from ..rules import deal
from .claims import Claims

NEW = Attempt(ask=TaskAsk(task=-1))
"""Stands for any first attempt."""


class Feeder:
    """Choose tasks for a node's processes: assigned beforehand (block, cyclic), or from the job's queue (dynamic)."""

    def __init__(
        self,
        run: Run,
        ranks: range,
        done: Container[int],
        claims: Claims | None,
        known: Mapping[int, RetryNeed] | None = None,
    ) -> None:
        """Prepare the tasks of `ranks`. `known`: tasks whose last attempt, in an earlier job, ran out of GPU memory."""
        self.known: Mapping[int, RetryNeed] = known or {}
        self._run = run
        self._done = done
        self._claims = claims
        self._own: Mapping[int, Iterator[int]] = (
            {} if claims is not None else {rank: iter(deal.tasks_of(run, rank)) for rank in ranks}
        )
        self._claimed: deque[int] = deque()
        self._again: deque[Attempt] = deque()
        self._back: deque[Attempt] = deque()
        self._dealt = 0
        self._total = (
            None
            if claims is not None
            else sum(1 for rank in ranks for task in deal.tasks_of(run, rank) if task not in done)
        )
        self.closed = False
        """True: nothing starts any more."""

    def next(self, rank: int, may_run: Callable[[Attempt], bool]) -> Attempt | None:
        """Return the next attempt for the worker of a rank; None: there is none now.

        Retries come first, so that repeated failures show early. `may_run`: whether the worker has room for an attempt.
        Raises StateError when the queue cannot be used.
        """
        if self.closed:
            return None
        if self._back and may_run(self._back[0]):
            return self._back.popleft()
        for attempt in self._again:
            if may_run(attempt):
                self._again.remove(attempt)
                return attempt
        if self._claimed or self._own.get(rank) is not None or self._claims is not None:
            if not may_run(NEW):
                return None
            if self.known and self._again and self._claims is not None:
                return None  # do not claim more tasks that wait for memory: other nodes may have room for them
            task = self._next_new(rank)
            if task is not None:
                self._dealt += 1
                if task not in self.known:
                    return Attempt(ask=TaskAsk(task=task))
                attempt = _attempt(TaskAsk(task=task), 1, "gpu memory", self.known[task])
                if may_run(attempt):
                    return attempt
                self._again.append(attempt)
        return None

    def take(self) -> int | None:
        """Return a task of any process of this node that has not begun; None: there is none now. Raises StateError."""
        if self.closed:
            return None
        ranks = (0,) if self._claims is not None else self._own
        task = next((task for rank in ranks if (task := self._next_new(rank)) is not None), None)
        self._dealt += task is not None
        return task

    def peek(self) -> int | None:
        """Return the task of the shared queue that `take` returns next if no other node is faster; None: there is none.

        Raises StateError.
        """
        if self.closed or self._claims is None:
            return None
        while not self._claimed:
            chunk = self._claims.peek()
            if chunk is None:
                return None
            task = next((task for task in chunk if task not in self._done), None)
            if task is not None:
                return task
            self._claim()
        return self._claimed[0]

    def _next_new(self, rank: int) -> int | None:
        if self._claims is None:
            return next((task for task in self._own[rank] if task not in self._done), None)
        while not self._claimed:
            if not self._claim():
                return None
        return self._claimed.popleft()

    def _claim(self) -> bool:
        """Claim the next tasks of the shared queue; return False if there are none."""
        chunk = None if self._claims is None else self._claims.take()
        self._claimed.extend(task for task in chunk or () if task not in self._done)
        return chunk is not None

    def put_back(self, attempt: Attempt) -> None:
        """Put an attempt back at the head of the queue, because it could not start for a passing reason."""
        self._back.append(attempt)

    def again(self, attempt: Attempt, outcome: Outcome, need: RetryNeed) -> bool:
        """Queue the next attempt of a task; return False if the feeder is closed. `need`: what is known now."""
        if self.closed:
            return False
        self._again.append(_attempt(attempt.ask, attempt.attempt + 1, outcome, need))
        return True

    @property
    def memory_failures(self) -> int:
        """Return the most out-of-GPU-memory attempts of one task, among the tasks that wait to run again."""
        return max((attempt.tries.own_memory for attempt in self._again), default=0)

    @property
    def waiting(self) -> int:
        """Return how many attempts wait to run again, for room or for a free worker."""
        return 0 if self.closed else len(self._again) + len(self._back)

    def left(self) -> int | None:
        """Return how many tasks of this node have not begun; None: nodes share a queue."""
        return None if self._total is None else self._total - self._dealt


def known_needs(last: Mapping[int, Ended]) -> dict[int, RetryNeed]:
    """Return the needs of tasks from their last attempts (`last`) in earlier jobs, if they ran out of GPU memory."""
    found = {task: one for task, one in last.items() if one.outcome == "gpu memory"}
    return {task: need_from_before(one.gpu_cap_mib, one.peak_gpu_mib) for task, one in found.items()}


def _attempt(ask: TaskAsk, number: int, outcome: Outcome, need: RetryNeed) -> Attempt:
    """Return the next attempt at a task. `outcome`, `need`: of the one before."""
    return Attempt(
        ask=ask,
        attempt=number,
        after=outcome if outcome in ("gpu memory", "host memory") else "failed",
        tries=need.tries,
        floor_mib=need.floor_mib,
        wants_alone=need.wants_alone,
        had_room_mib=need.cap_mib or 0,
    )
