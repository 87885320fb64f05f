"""Pass samples and ends of tasks from the loop to its board, and the next starts from the board to the loop.

The loop starts and watches all tasks alike. `slots.SlotStrategy` asks the board for workers that have a fixed GPU,
`packed.PackStrategy` for tasks that get a GPU when they start.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from ...node.memory import HostMemory
from ...packing import Attempt, Board, EndFacts, EventLog, LevelRun, Progress, Rate, has_room, need_mib
from ..kept_script import ScriptChoice
from ..records import Ended, GivenUp, Outcome, Run, Worker
from ..result_files import Results
from ..rules import deal, outcomes, parts
from . import environment, task_process
from .daemons import Daemons
from .feeder import Feeder
from .growth import Growth
from .node import Node
from .sampler import Sampler
from .table import Table
from .task_use import TaskUses
from .watchdog import Watchdog

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from ...packing import TaskSpec
    from .rendezvous import RendezvousClient


class LauncherState(Struct, frozen=True, kw_only=True):
    """The state that the loop and its strategy share."""

    run: Run
    folder: Path
    """The run's folder."""
    node: Node
    feeder: Feeder
    growth: Growth
    results: Results
    events: EventLog
    """Only the loop writes to it."""
    table: Table
    environ: Mapping[str, str]
    lines: Sequence[str]
    """The tasks file."""
    specs: Sequence[TaskSpec]
    """The options of each task; empty: all tasks have the same (`rules.deal.spec_of`)."""
    out_of_memory: Mapping[int, Ended]
    """Task that is not done -> its last attempt that ran out of GPU memory in earlier jobs."""
    was_here: bool
    """True: logs of an earlier job may exist and are appended to."""
    say: Callable[[str], None]
    """Writes a sentence to the job's log."""
    show: Callable[[Progress], None]
    """Gets the progress about once a second."""
    watchdog: Watchdog | None
    """None: no task may be paused."""
    script: ScriptChoice
    rendezvous: RendezvousClient | None = None
    """None: the run has no ranks."""
    host: HostMemory = field(default_factory=HostMemory)
    running: dict[int, Attempt] = {}
    """Pid -> its task."""
    starting: dict[int, Attempt] = {}
    """Worker -> the task that is being started in it."""


class Strategy(ABC):
    """The starts and ends of one launcher's tasks on its board. Only the thread of the loop calls it.

    What is common to all runs is here: ends, retries, samples, GPUs that leave the service. The two implementations say
    which attempt starts next, and with which variables. Times are seconds since `zero_s`.
    """

    board: Board
    sampler: Sampler
    """The thread that samples GPUs and host; the loop starts and stops it."""
    daemons: Daemons
    use: TaskUses
    """The tasks' use of GPUs."""

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
        self.specs = shared.specs
        self._base_spec = deal.base_spec(shared.run)
        limit = shared.host.limit()
        self.parts = parts.parts_of(
            self.node.name, self.node.workers, None if limit is None else limit.mib, is_bound=self.run.bind
        )
        self._given_up: list[GivenUp] = []
        self.zero_s = time.monotonic()
        self._sample_at = 0.0
        self._is_host_crowded = False
        """A task has run out of host memory: further ones start only if it has room for them."""
        self._host_peak_mib = 0
        """Largest peak of a task that ran out of host memory; 0: not known."""

    def now(self) -> float:
        return time.monotonic() - self.zero_s

    # ---- The next start ----

    @abstractmethod
    def next(self, free: deque[int], idle: list[int]) -> tuple[int, Attempt] | None:
        """Return a free worker and the attempt that starts in it; None: nothing starts now.

        Takes the returned worker, and workers that are out of service, from `free`. Moves workers without an attempt to
        `idle`. Raises StateError when the queue cannot be used.
        """

    @abstractmethod
    def environment(self, task: Attempt) -> task_process.Environment | None:
        """Return a start's variables without task number and attempt; None: its worker's."""

    def put_back(self, task: Attempt) -> None:
        """Put back an attempt that could not start for a passing reason, such as a lack of processes."""
        self.board.put_back(task.task, self.now())

    def parked_workers(self) -> Iterable[int]:
        """Return the workers that start nothing because their GPU or its daemon has failed."""
        return ()

    def take_given_up(self) -> Sequence[GivenUp]:
        """Return the waiting tasks that get no further attempt, each once."""
        found, self._given_up = self._given_up, []
        return found

    def give_up(self, task: int, attempt: int, why: str, outcome: Outcome = "not started") -> None:
        """Record that a task gets no further attempt. `attempt`: the one that was due."""
        self._given_up.append(GivenUp(task, why, attempt, outcome))

    def spec_of(self, task: int) -> TaskSpec:
        """Return the options of a task."""
        return self.specs[task] if self.specs else self._base_spec

    def take_more_workers(self, task: Attempt, worker: int, *free: MutableSequence[int]) -> None:
        """Take the further workers whose cores an attempt has from `free`.

        Those with cores that it does not have yet come first (with more processes than cores, several have the same),
        then those of its GPU, then those near its cores.
        """
        if task.ask.workers <= 1:
            task.more_workers = ()
            return
        own = self.node.workers[worker].place
        cpus, found = set(own.cpus), list[int]()

        def distance(other: int) -> tuple[bool, bool, int]:
            place = self.node.workers[other].place
            return cpus.issuperset(place.cpus), place.gpu != own.gpu, abs(place.local - own.local)

        while len(found) < task.ask.workers - 1:
            nearest = min((other for one in free for other in one), key=distance, default=None)
            if nearest is None:
                break
            next(one for one in free if nearest in one).remove(nearest)
            cpus.update(self.node.workers[nearest].place.cpus)
            found.append(nearest)
        task.more_workers = tuple(found)

    def worker_of(self, task: Attempt) -> Worker:
        """Return the worker of an attempt, with the cores and threads that it has."""
        worker, cpus = self.node.workers[task.worker], self.spec_of(task.task).cpus
        if cpus is None:
            return worker
        all_cpus = {cpu for one in (task.worker, *task.more_workers) for cpu in self.node.workers[one].place.cpus}
        place = replace(worker.place, cpus=tuple(sorted(all_cpus)), threads=cpus)
        return replace(worker, place=place)

    @property
    def waiting(self) -> int:
        """Return how many attempts wait at this node; 0 if nothing starts any more."""
        return 0 if self.feeder.closed else len(self.board.queue) + len(self.board.turns)

    def count_waiting(self) -> int:
        """Return how many tasks wait that fit nowhere on this node, counted up to its workers. Raises StateError."""
        return self.waiting + self.feeder.count_waiting(len(self.node.workers))

    def left(self) -> int | None:
        """Return how many tasks of this node have not begun; None: nodes share a queue."""
        left = self.feeder.left()  # without the tasks that the board has taken and not started
        return None if left is None else left + len(self.board.queue) - self.board.queue.retries

    def lacks_host_memory(self) -> bool:
        """Return whether a task has run out of host memory, and there is no room for one more that is as large."""
        if not self._is_host_crowded:
            return False
        tasks = list(self.running.values())
        need = need_mib(None, [self._host_peak_mib])
        return not has_room(need, self.sampler.host(tasks), len(self.running) + len(self.starting))

    # ---- An end ----

    def judge(self, task: Attempt, facts: EndFacts) -> tuple[Outcome, str]:
        """Return the outcome of an attempt, and the reason as text. Not called for exit code 0 in a normal run."""
        self.end(task, facts)
        return outcomes.OUTCOMES[task.kind], task.why

    def finished(self, task: Attempt, outcome: Outcome) -> bool:
        """Record the end of an attempt, judged or not; return whether the task runs again."""
        if task.task in self.board.running:
            code, is_started = 0 if outcome == "done" else None, outcome != "not started"
            self.end(task, EndFacts(task=task.task, now_s=0.0, code=code, was_started=is_started))
        if outcome == "host memory":
            self._host_peak_mib = max(task.rss_mib or 0, self._host_peak_mib)
            self._is_host_crowded = self.sampler.watch_host = True
        return task.is_retried and not self.feeder.closed

    def end(self, task: Attempt, facts: EndFacts) -> None:
        """Report an end to the board, which judges it and queues the next attempt; log GPUs that leave the service."""
        now = self.now()
        self.take_sample(now)
        is_failed = facts.was_started and facts.code != 0
        if is_failed:
            self.daemons.clear()
            facts = self.sampler.with_sample(facts, task.gpus)
        gone = {uuid: why for uuid in task.gpus if is_failed and (why := self.daemons.why_gone(uuid)) is not None}
        facts = replace(facts, now_s=now, is_daemon_lost=bool(gone))
        seconds = max(time.monotonic() - task.clock, 1e-3)
        before = self.board.unusable
        self.board.ended(facts, None if task.cpu_s is None else round(task.cpu_s / seconds, 3))
        self._say_changes(before, f"task {task.task}: {task.why.removesuffix('; runs again')}")
        for uuid, why in gone.items():
            self.put_out(uuid, why, now)

    # ---- GPUs ----

    def has_daemon(self, uuid: str, now: float) -> bool:
        """Return whether the daemon of a GPU is alive, if its tasks need one; else take the GPU out of service."""
        why = self.daemons.why_gone(uuid)
        if why is not None:
            self.put_out(uuid, f"{why}, so a task would run without a cap", now)
        return why is None

    def put_out(self, uuid: str, why: str, now: float) -> None:
        """Take a GPU out of service, and log it."""
        before = self.board.unusable
        self.board.out_of_service(uuid, why, now)
        self._say_changes(before, why)

    def _say_changes(self, before: frozenset[str], why: str) -> None:
        """Log which GPUs have left the service, or are back in it. `before`: those that were out of it."""
        now, facts = self.board.unusable, self.board.facts
        for place in sorted(facts[uuid].index for uuid in now - before):
            self.say(f"{why}; no further task starts on GPU {place} of {self.node.name}")
        for place in sorted(facts[uuid].index for uuid in before - now):
            self.say(f"GPU {place} of {self.node.name} is in service again: {why}")

    # ---- The run ----

    def tick(self) -> None:
        """Do what is due about once a second."""
        now = self.now()
        self.take_sample(now)
        for uuid, problem in self.sampler.broken(self.board.facts.keys() - self.board.unusable).items():
            self.put_out(uuid, f"the driver says: {problem}", now)

    def take_sample(self, now: float) -> None:
        """Pass the newest sample to the board, each sample once."""
        latest = self.sampler.latest
        if latest is not None and latest.at != self._sample_at:
            self._sample_at = latest.at
            self.use.sampled(latest)
            gpus = {uuid: one for uuid, one in latest.gpus.items() if uuid in self.board.facts}
            self.board.sampled(gpus, latest.tasks, latest.at - self.zero_s, now)

    @abstractmethod
    def kind_of_work(self, task: Attempt) -> str | None:
        """Return the name shared by all tasks that count the same units of work; None: not known."""

    def rated(self, task: Attempt, rate: Rate | None) -> None:
        """Record the rate of a running task since its neighbours last changed; None: not known yet."""
        self.board.rate_task(task.task, rate)

    @property
    def levels(self) -> tuple[LevelRun, ...]:
        """Return what trials have measured so far: numbers of tasks at once, and ways of sharing."""
        return ()

    @property
    def paused(self) -> frozenset[int]:
        """Return the numbers of the tasks that the launcher has stopped with SIGSTOP."""
        return frozenset()

    def resume_all(self) -> None:  # noqa: B027
        """Continue all paused tasks, and pause none from now on."""

    @abstractmethod
    def sentences(self) -> list[str]:
        """Return sentences for the job's log at the end of the run."""
