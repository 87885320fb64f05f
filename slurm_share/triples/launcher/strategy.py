"""The interface between the loop and a strategy, which chooses each start, its GPU and its memory cap.

The loop starts and watches tasks in the same way for both strategies: `slots.SlotStrategy` for workers that have a
fixed GPU and cap, `packed.PackStrategy` for tasks that get a GPU when they start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from ...node.memory import HostMemory
from ...packing import Attempt, EventLog, LevelRun, Progress, Rate
from ..kept_script import ScriptChoice
from ..records import Ended, Outcome, Run
from ..result_files import Results
from . import environment, task_process
from .feeder import Feeder
from .node import Node
from .sampler import Sampler
from .table import Table
from .watchdog import Watchdog

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from ...packing import EndFacts, TaskSpec
    from .rendezvous import Rendezvous


class LauncherState(Struct, frozen=True, kw_only=True):
    """The state that the loop and its strategy share."""

    run: Run
    folder: Path
    """The run's folder."""
    node: Node
    feeder: Feeder
    results: Results
    events: EventLog
    """Only the loop writes to it."""
    table: Table
    environ: Mapping[str, str]
    lines: Sequence[str]
    """The tasks file."""
    specs: Sequence[TaskSpec]
    """The requests of each task of a packed run; empty: all tasks request the same."""
    out_of_memory: Mapping[int, Ended]
    """The last attempt of tasks that ran out of GPU memory in earlier jobs."""
    was_here: bool
    """True: logs of an earlier job may exist and are appended to."""
    say: Callable[[str], None]
    """Writes a sentence to the job's log."""
    show: Callable[[Progress], None]
    """Gets the progress about once a second."""
    watchdog: Watchdog | None
    """None: no task may be paused."""
    script: ScriptChoice
    rendezvous: Rendezvous | None = None
    """None: the run has no ranks."""
    host: HostMemory = field(default_factory=HostMemory)
    running: dict[int, Attempt] = {}
    """Pid -> its task."""
    starting: dict[int, Attempt] = {}
    """Worker -> the task that is being started in it."""


class GivenUp(Struct, frozen=True):
    """A waiting task that gets no further attempt."""

    task: int
    attempt: int
    """The number of the attempt that was due."""
    outcome: Outcome
    why: str


class Strategy(ABC):
    """The decisions of one launcher. Only the thread of the loop calls it.

    The defaults are those of workers with fixed GPUs: nothing is placed by speed, tried or paused.
    """

    sampler: Sampler
    """The thread that samples GPUs and host; the loop starts and stops it."""

    def __init__(self, shared: LauncherState) -> None:
        self.shared = shared
        self.run = shared.run
        self.folder = shared.folder
        self.node = shared.node
        self.feeder = shared.feeder
        self.common = environment.of_run(shared.run, shared.folder, shared.environ)
        """The variables of all tasks."""
        self.running = shared.running
        self.starting = shared.starting
        self.say = shared.say

    @property
    def levels(self) -> tuple[LevelRun, ...]:
        """Return what trials have measured so far: numbers of tasks at once, and ways of sharing."""
        return ()

    @abstractmethod
    def next(self, free: deque[int], idle: list[int]) -> tuple[int, Attempt] | None:
        """Return a free worker and the attempt that starts in it; None: nothing starts now.

        Takes the returned worker, and workers that are out of service, from `free`. Moves workers without an attempt to
        `idle`. Raises StateError when the queue cannot be used.
        """

    @abstractmethod
    def environment(self, task: Attempt) -> task_process.Environment | None:
        """Return a start's variables without task number and attempt; None: its worker's. Set the cap of `task`."""

    @abstractmethod
    def judge(self, task: Attempt, facts: EndFacts) -> tuple[Outcome, str]:
        """Return the outcome of an attempt, and the reason as text. Not called for exit code 0 in a normal run."""

    @abstractmethod
    def finished(self, task: Attempt, outcome: Outcome) -> bool:
        """Record the end of an attempt; return whether the task runs again."""

    @abstractmethod
    def gpus(self, task: Attempt) -> tuple[str, ...]:
        """Return the GPUs (UUIDs) of a running task."""

    @abstractmethod
    def kind_of_work(self, task: Attempt) -> str | None:
        """Return the name shared by all tasks that count the same units of work; None: not known."""

    def rated(self, task: Attempt, rate: Rate | None) -> None:  # noqa: B027
        """Record the rate of a running task since its neighbours last changed; None: not known yet."""

    def speed_ratio(self, task: Attempt) -> float | None:
        """Return the rate of a running task since its neighbours last changed, over `rate_alone`; None: not known."""
        return None

    def rate_alone(self, task: Attempt) -> Rate | None:
        """Return the rate of a task's command alone on such a GPU; None: not known."""
        return None

    def parked_workers(self) -> Iterable[int]:
        """Return the workers that start nothing because their GPU or its daemon has failed."""
        return ()

    def take_given_up(self) -> Sequence[GivenUp]:
        """Return the waiting tasks that get no further attempt, each once."""
        return ()

    def put_back(self, task: Attempt) -> None:
        """Put back an attempt that could not start for a passing reason, such as a lack of processes."""
        self.feeder.put_back(task)

    @abstractmethod
    def tick(self) -> None:
        """Do what is due about once a second."""

    @property
    def waiting(self) -> int:
        """Return how many attempts wait at this node; 0 if nothing starts any more."""
        return self.feeder.waiting

    def left(self) -> int | None:
        """Return how many tasks of this node have not begun; None: nodes share a queue."""
        return self.feeder.left()

    @property
    def paused(self) -> frozenset[int]:
        """Return the numbers of the tasks that the launcher has stopped with SIGSTOP."""
        return frozenset()

    def resume_all(self) -> None:  # noqa: B027
        """Continue all paused tasks, and pause none from now on."""

    @abstractmethod
    def sentences(self) -> list[str]:
        """Return sentences for the job's log at the end of the run."""
