"""How a launcher chooses the next start, its GPU and its cap, and what follows from the end of an attempt.

The loop starts and watches tasks in the same way whatever the strategy is: `even_caps.EvenCaps` for a run whose workers
each have a GPU and a cap of their own, `packed.Packed` for one whose tasks are packed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from ...packing import LevelRun, Rate
from ..records import Outcome
from ..rules.outcomes import Ending
from . import task_process
from .feeder import Turn
from .running import Running
from .sampler import Sampler


class GivenUp(Struct, frozen=True):
    """A waiting task that gets no further attempt."""

    task: int
    attempt: int
    """The one that was due."""
    outcome: Outcome
    why: str


class Strategy(Protocol):
    """The decisions of one launcher. The loop calls all of it from its one thread."""

    lost_workers: int
    """Workers that are out of service, whose tasks are left for a resumed run."""

    @property
    def levels(self) -> tuple[LevelRun, ...]:
        """Return what trials have measured so far: numbers of tasks at once, and ways of sharing."""

    @property
    def sampler(self) -> Sampler:
        """Return the thread that samples GPUs and host; the loop starts and stops it."""

    def next(self, free: deque[int], idle: list[int]) -> tuple[int, Turn] | None:
        """Return a free worker and the attempt that starts in it; None: nothing starts now.

        A worker that is returned, or is out of service, is taken from `free`; one for which there is nothing goes to
        `idle`. Raises StateError when the queue cannot be used.
        """

    def environment(self, task: Running) -> task_process.Environment | None:
        """Return the variables of a start without task number and attempt, and note the start's cap in `task`.

        None: those of its worker.
        """

    def judge(self, task: Running, ending: Ending) -> tuple[Outcome, str]:
        """Return the outcome of an attempt that is not plainly done, and the reason as text."""

    def finished(self, task: Running, outcome: Outcome) -> bool:
        """Note the end of an attempt; return whether the task runs again."""

    def gpus(self, task: Running) -> tuple[str, ...]:
        """Return the GPUs (UUIDs) that a running task has."""

    def kind_of_work(self, task: Running) -> str | None:
        """Return a word that tasks have in common which count the same units of work; None: not known."""

    def rated(self, task: Running, rate: Rate | None) -> None:
        """Note how fast a running task is since its neighbours last changed; None: that is not known yet."""

    def speed_ratio(self, task: Running) -> float | None:
        """Return the speed of a running task, since its neighbours last changed, over that of its command alone; None:
        not known."""

    def rate_alone(self, task: Running) -> Rate | None:
        """Return the rate alone of a running task's command; None: not known."""

    def take_given_up(self) -> Sequence[GivenUp]:
        """Return the waiting tasks that get no further attempt, each once."""

    def put_back(self, turn: Turn) -> None:
        """Put an attempt back that could not start for a passing reason, through no fault of its task."""

    def tick(self) -> None:
        """Do what is due about once a second."""

    @property
    def waiting(self) -> int:
        """Return how many attempts wait at this node; 0 if nothing starts any more."""

    @property
    def waiting_for_memory(self) -> int:
        """Return how many of them ran out of memory."""

    def left(self) -> int | None:
        """Return how many tasks of this node have not begun; None where nodes share a queue."""

    @property
    def paused(self) -> frozenset[int]:
        """Return the numbers of the running tasks that stand still because we have stopped them."""

    def resume_all(self) -> None:
        """Let all tasks go on that we have stopped: they are to end."""

    def sentences(self) -> list[str]:
        """Return what is to be said at the end of the run."""
