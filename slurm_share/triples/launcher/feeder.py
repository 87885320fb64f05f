"""Choose the next task for a free worker of this node. Uses no process and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping

from msgspec import Struct

from ..records import Outcome, Run
from ..rules import deal
from ..rules.memory_caps import ALONE_AFTER, Memory
from .claims import Claims

MEMORY: tuple[Outcome, ...] = ("gpu memory", "host memory")


class Turn(Struct, frozen=True):
    """An attempt that is due to start."""

    task: int
    attempt: int = 1
    after: Outcome | None = None
    """How the attempt before it ended."""
    memory: Memory = Memory()
    """What the earlier attempts have shown."""

    @property
    def alone(self) -> bool:
        """Twice out of GPU memory: what it needs was guessed too small, as of a program that dies asking for much at
        once and was never seen with it. The next attempt has a GPU on which nothing else of the run is."""
        return self.memory.failures >= ALONE_AFTER


class Feeder:
    """Choose tasks for a node's processes: assigned beforehand (block, cyclic), or from the job's queue (dynamic)."""

    def __init__(
        self,
        run: Run,
        ranks: range,
        done: Container[int],
        claims: Claims | None,
        known: Mapping[int, Memory] | None = None,
    ) -> None:
        """Prepare the tasks of `ranks`. `known`: tasks whose last attempt, in an earlier job, ran out of GPU memory."""
        self.known: Mapping[int, Memory] = known or {}
        self._run = run
        self._done = done
        self._claims = claims
        self._own: Mapping[int, Iterator[int]] = (
            {} if claims is not None else {rank: iter(deal.tasks_of(run, rank)) for rank in ranks}
        )
        self._claimed: deque[int] = deque()
        self._again: deque[Turn] = deque()
        self._back: deque[Turn] = deque()
        self._dealt = 0
        self._total = (
            None
            if claims is not None
            else sum(1 for rank in ranks for task in deal.tasks_of(run, rank) if task not in done)
        )
        self.closed = False
        """True: nothing starts any more."""

    def next(self, rank: int, may_run: Callable[[Turn], bool]) -> Turn | None:
        """Return the next attempt for the worker of that rank; None: nothing for it now.

        Retries come first: what fails again should be known early. `may_run` says whether the worker has room for one.

        Raises StateError when the queue cannot be used.
        """
        if self.closed:
            return None
        if self._back and may_run(self._back[0]):
            return self._back.popleft()
        for turn in self._again:
            if may_run(turn):
                self._again.remove(turn)
                return turn
        if self._claimed or self._own.get(rank) is not None or self._claims is not None:
            if not may_run(Turn(-1)):
                return None
            if self.known and self._again and self._claims is not None:
                return None  # else those that wait would all be claimed here, while other nodes may have room
            task = self._next_new(rank)
            if task is not None:
                self._dealt += 1
                if task not in self.known:
                    return Turn(task)
                turn = Turn(task, 1, "gpu memory", self.known[task])
                if may_run(turn):
                    return turn
                self._again.append(turn)
        return None

    def take(self) -> int | None:
        """Return a task that has not begun, of any process of this node; None: there is none for now.

        Raises StateError when the queue cannot be used.
        """
        if self.closed:
            return None
        ranks = (0,) if self._claims is not None else self._own
        task = next((task for rank in ranks if (task := self._next_new(rank)) is not None), None)
        self._dealt += task is not None
        return task

    def _next_new(self, rank: int) -> int | None:
        if self._claims is None:
            return next((task for task in self._own[rank] if task not in self._done), None)
        while not self._claimed:
            chunk = self._claims.take()
            if chunk is None:
                return None
            self._claimed.extend(task for task in chunk if task not in self._done)
        return self._claimed.popleft()

    def put_back(self, turn: Turn) -> None:
        """Put an attempt back at the head of the queue: it could not start, through no fault of its task."""
        self._back.append(turn)

    def again(self, turn: Turn, outcome: Outcome, memory: Memory) -> bool:
        """Put a failed attempt back in the queue, with what is known of its memory now; return False if its
        retries are used up, or nothing starts any more."""
        if self.closed or outcome in ("done", "unfinished") or turn.attempt > self._run.retries:
            return False
        self._again.append(Turn(turn.task, turn.attempt + 1, outcome, memory))
        return True

    @property
    def memory_failures(self) -> int:
        """Return the highest number of attempts out of GPU memory, among the tasks that wait to run again."""
        return max((turn.memory.failures for turn in self._again), default=0)

    @property
    def waiting(self) -> int:
        """Return how many attempts are due again; those out of memory wait for room."""
        return 0 if self.closed else len(self._again) + len(self._back)

    @property
    def waiting_for_memory(self) -> int:
        """Return how many of them ran out of memory."""
        return sum(turn.after in MEMORY for turn in self._again)

    def left(self) -> int | None:
        """Return how many tasks of this node have not begun; None where nodes share a queue."""
        return None if self._total is None else self._total - self._dealt
