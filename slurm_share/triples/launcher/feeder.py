"""Which task of the list comes next on this node. Retries are the board's (packing/rules/board.py)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from ...packing import TaskSpec
from ..records import Run
from ..rules import deal
from .claims import Claims
from .need_queue import NeedQueue


class _Either:
    """The tasks that are in one of two containers."""

    def __init__(self, one: Container[int], other: Container[int]) -> None:
        self._one, self._other = one, other

    def __contains__(self, task: object) -> bool:
        return task in self._one or task in self._other


class Feeder:
    """The tasks of a node that have not begun: dealt to its ranks (block, cyclic), or from a queue (dynamic).

    Added tasks always come from a queue: they go to whichever process is free.
    """

    def __init__(
        self,
        run: Run,
        ranks: range,
        done: Container[int],
        claims: Claims | None,
        specs: Sequence[TaskSpec] = (),
        needs: NeedQueue | None = None,
    ) -> None:
        """Prepare the tasks of `ranks`, except those that are `done`. `claims`: None, if all tasks are dealt. `specs`:
        of each task, if they differ; the caller appends those of added tasks."""
        is_dealt = run.distribution != "dynamic"
        self._run = run
        self._specs = specs
        self._first = deal.order_of(run, specs, 0, run.first_tasks)
        """Place -> task, of the tasks with which the run was submitted."""
        self._added: dict[int, int] = {}
        """The same of added tasks that are not in their places."""
        self._claims = claims
        self.needs = needs
        """The tasks that wait for others; None: the run has none."""
        self._done = done if needs is None else _Either(done, needs)
        self._own: Mapping[int, Iterator[int]] = (
            {rank: iter(self._ordered(deal.tasks_of(run, rank))) for rank in ranks} if is_dealt else {}
        )
        self._claimed: deque[int] = deque()
        self._dealt = 0
        self._total = (
            sum(1 for rank in ranks for task in deal.tasks_of(run, rank) if task not in self._done)
            if is_dealt
            else None
        )
        if claims is not None and deal.has_priorities(specs, 0, run.first_tasks):
            claims.sort(self._priority)
        self.closed = False
        """True: nothing starts any more."""

    @property
    def is_shared(self) -> bool:
        """Return whether the nodes of the run share a queue."""
        return self._claims is not None

    def extend(self, chunks: Sequence[range], make: Callable[[], Claims | None]) -> None:
        """Put the chunks of added tasks at the end of the queue. `make` makes the queue if there is none."""
        if self._claims is None:
            self._claims = make()
        if self._claims is None or not chunks:
            return
        first, count = chunks[0].start, chunks[-1].stop - chunks[0].start
        order = deal.order_of(self._run, self._specs, first, count)
        self._added |= {place: task for place, task in enumerate(order, first) if place != task}
        self._claims.extend(chunks)
        if deal.has_priorities(self._specs, 0, first + count):
            self._claims.sort(self._priority)

    def _ordered(self, tasks: range) -> Sequence[int]:
        """Return the tasks of a process in the order of the run."""
        return (
            tasks
            if isinstance(self._first, range) and self._first.step == 1
            else [task for task in self._first if task in tasks]
        )

    def _task(self, place: int) -> int:
        """Return the task at a place of the list."""
        return self._first[place] if place < len(self._first) else self._added.get(place, place)

    def _priority(self, chunk: range) -> int:
        """Return the highest priority of a chunk: that of its first task."""
        return self._specs[self._task(chunk.start)].priority if self._specs else 0

    def hold(self, needs: NeedQueue) -> None:
        """Take the tasks that wait for others from `needs`, and not where they stand in the list."""
        self.needs = needs
        self._done = _Either(self._done, needs)

    def take(self, rank: int | None = None) -> int | None:
        """Return a task that has not begun; None: there is none now. Raises StateError.

        `rank`: of the process for which the task is; None: any process of this node.
        """
        if self.closed:
            return None
        if self.needs is not None and (task := self.needs.take()) is not None:
            return task
        if self._total is not None:
            ranks = self._own if rank is None else (rank,)
            task = next((task for one in ranks if (task := self._next_dealt(one)) is not None), None)
            if task is not None:
                self._dealt += 1
                return task
        return None if self._claims is None else self._next_claimed()

    def peek(self) -> int | None:
        """Return the task of the shared queue that `take` returns next if no other node is faster; None: there is none.

        Raises StateError.
        """
        if self.closed:
            return None
        if self.needs is not None and (task := self.needs.peek()) is not None:
            return task
        if self._claims is None:
            return None
        while not self._claimed:
            chunk = self._claims.peek()
            if chunk is None:
                return None
            task = next((task for task in map(self._task, chunk) if task not in self._done), None)
            if task is not None:
                return task
            self._claim()
        return self._claimed[0]

    def _next_dealt(self, rank: int) -> int | None:
        return next((task for task in self._own[rank] if task not in self._done), None)

    def _next_claimed(self) -> int | None:
        while not self._claimed:
            if not self._claim():
                return None
        return self._claimed.popleft()

    def _claim(self) -> bool:
        """Claim the next tasks of the shared queue; return False if there are none."""
        chunk = None if self._claims is None else self._claims.take()
        self._claimed.extend(task for task in map(self._task, chunk or ()) if task not in self._done)
        return chunk is not None

    def count_waiting(self, most: int) -> int:
        """Return how many tasks wait that this node could start, counted up to `most`. Raises StateError."""
        if self.closed:
            return 0
        found = len(self._claimed) + (self.left() or 0)
        found += self.needs is not None and self.needs.peek() is not None
        if found < most and self.peek() is not None and self._claims is not None:
            for chunk in self._claims.unclaimed():
                found += sum(task not in self._done for task in map(self._task, chunk))
                if found >= most:
                    break
        return min(found, most)

    def left(self) -> int | None:
        """Return how many of the tasks that were dealt to this node have not begun; None: nodes share a queue."""
        return None if self._total is None else self._total - self._dealt
