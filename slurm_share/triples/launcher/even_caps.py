"""The strategy of plain triples: each worker has a fixed GPU, with an even part of its memory as cap.

An attempt that ran out of GPU memory runs again with a larger cap, or where there is room, and then alone on a GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from ...node.memory import HostMemory
from ...node.records import Room
from ...packing import LevelRun, Rate, asked_mib
from ...share import allocation, registry
from ..records import Outcome, Run
from ..rules import memory_caps, outcomes
from ..rules.memory_caps import Allowance, Budget, Memory
from ..rules.outcomes import Ending
from . import environment, task_process
from .daemons import Daemons
from .feeder import Feeder, Turn
from .node import Node
from .running import Running
from .sampler import Sampler
from .strategy import GivenUp


class EvenCaps:
    """Choose the next start of a node whose workers have fixed GPUs and even caps."""

    def __init__(
        self,
        run: Run,
        node: Node,
        feeder: Feeder,
        common: Mapping[bytes, bytes],
        host: HostMemory,
        running: Mapping[int, Running],
        starting: Mapping[int, Running],
        say: Callable[[str], None],
    ) -> None:
        """`common`: the variables of all tasks. `running`, `starting`: the loop's tasks, by pid and by worker."""
        self.what = run
        self.node = node
        self.feeder = feeder
        self.common = common
        self.running = running
        self.starting = starting
        self.say = say
        self.sampler = Sampler(running, any(worker.place.gpu is not None for worker in node.workers), host)
        self.lost_workers = 0
        self.levels: tuple[LevelRun, ...] = ()
        self._gpus = [() if worker.gpu is None else (worker.gpu.uuid,) for worker in node.workers]
        self.crowded: set[int | None] = set()
        """GPUs on which a task ran out of memory within its cap. Tasks start there only if there is room."""
        self.has_larger_caps = bool(feeder.known)
        """Whether attempts may have a larger cap than their worker."""
        self.caps_too_small = 0
        """Attempts that ran out of memory under the cap of their worker."""
        self.done_under_cap = 0
        """Tasks that were done under the cap of their worker."""
        self.lesson = Memory(1)
        """What a first attempt is assumed to need once the caps of the workers have proved too small."""
        self.is_lesson_told = False
        self.given_up: list[Memory] = []
        """One for each task that ran out of memory under a cap, or alone on a GPU, and has no attempt left."""
        self.host_crowded = False
        self.daemons = Daemons([worker.gpu_slot for worker in node.workers])
        self.without_daemon: set[int | None] = set()
        self.gpu_peak_mib = self.host_peak_mib = 0
        """The largest that a task of this node was seen with when it ended; 0: none was."""
        self.reserved: int | None = None
        """The GPU that is kept free for an attempt that needs more memory than its worker has."""

    # ---- The next start ----

    def next(self, free: deque[int], idle: list[int]) -> tuple[int, Turn] | None:
        """See Strategy: return the first free worker for which there is an attempt."""
        while free:
            worker = free.popleft()
            if not self._is_in_service(worker):
                continue
            rank = self.node.workers[worker].rank
            turn = self.feeder.next(rank, lambda turn, worker=worker: self._may_run(turn, worker))  # type: ignore[misc]
            if turn is not None:
                return worker, turn
            idle.append(worker)
        return None

    def _is_in_service(self, worker: int) -> bool:
        """Return whether a task may start in the worker; log once if not. Its tasks are left for a resumed run."""
        why = self.daemons.why_gone(worker)
        if why is None:
            return True
        self.lost_workers += 1
        gpu = self.node.workers[worker].place.gpu
        if gpu not in self.without_daemon:
            self.without_daemon.add(gpu)
            self.say(f"{why}; no further task starts on GPU {gpu} of {self.node.name}, for it would run without a cap")
        return False

    def _may_run(self, turn: Turn, worker: int) -> bool:
        """Return whether there is room for an attempt. A first one is checked only after another ran out of memory."""
        gpu = self.node.workers[worker].place.gpu
        budget = self._budget(worker)
        if budget is not None:
            if self.has_larger_caps and not self._has_cap_for(turn, worker, budget):
                return False
            needs_room = gpu in self.crowded and not turn.memory.failures
        else:
            if self.reserved is not None and gpu == self.reserved and not turn.alone:
                return False
            if turn.alone:
                return gpu == self.reserved and not self._on_same_gpu(worker)
            needs_room = turn.after == "gpu memory" or gpu in self.crowded
        if needs_room and gpu is not None:
            others = self._on_same_gpu(worker)
            peaks = [self.gpu_peak_mib, *(one.gpu_peak_mib or 0 for one in self.running.values())]
            need = outcomes.need_mib(turn.memory.need_mib, peaks)
            if not outcomes.has_room(need, self._room(worker, others), len(others)):
                return False
        if turn.after == "host memory" or self.host_crowded:
            tasks = self._running_tasks()
            need = outcomes.need_mib(None, [self.host_peak_mib])
            return outcomes.has_room(need, self.sampler.host(tasks), len(tasks))
        return True

    def _budget(self, worker: int) -> Budget | None:
        gpu = self.node.workers[worker].place.gpu
        return None if gpu is None else self.node.budgets.get(gpu)

    def _running_tasks(self) -> list[Running]:
        """Return the tasks that run, and those that are being started."""
        return [*self.running.values(), *self.starting.values()]

    def _on_same_gpu(self, worker: int) -> list[Running]:
        """Return the tasks that run on the GPU of that worker, or are being started there."""
        gpu = self.node.workers[worker].place.gpu
        return [one for one in self._running_tasks() if self.node.workers[one.worker].place.gpu == gpu]

    def _has_cap_for(self, turn: Turn, worker: int, budget: Budget) -> bool:
        """Return whether the cap of this attempt fits beside those in force on the GPU."""
        gpu = self.node.workers[worker].place.gpu
        memory = self._memory(turn)
        allowed = memory_caps.allowance(budget, memory)
        most = self.feeder.memory_failures if gpu == self.reserved else 0
        if most > memory.failures and (memory.failures == 0 or most >= memory_caps.ALONE_AFTER):
            return False  # the GPU is kept for an attempt that waits for more of it
        if allowed.is_alone and budget.total_mib < self._largest_budget_mib():
            return False
        others = self._on_same_gpu(worker)
        if memory.failures == 0 and all(one.allowed is None for one in others):
            return True
        booked = [budget.cap_mib if one.allowed is None else one.allowed.booked_mib for one in others]
        return memory_caps.fits(budget, booked, allowed)

    def _memory(self, turn: Turn) -> Memory:
        """Return what is known of the memory that an attempt needs; for a first one, what other tasks have shown."""
        if turn.memory.failures == 0 and memory_caps.is_too_small(self.caps_too_small, self.done_under_cap):
            return self.lesson
        return turn.memory

    def _largest_budget_mib(self) -> int:
        there = (one.total_mib for gpu, one in self.node.budgets.items() if gpu not in self.without_daemon)
        return max(there, default=0)

    def _room(self, worker: int, others: list[Running]) -> Room | None:
        gpu = self.node.workers[worker].gpu
        return None if gpu is None else self.sampler.gpu(gpu.uuid, list(others))

    # ---- A start ----

    def environment(self, task: Running) -> task_process.Environment | None:
        """See Strategy: return the variables of an attempt with a larger cap."""
        task.allowed = allowed = self._larger_allowance(task.turn, task.worker) if self.has_larger_caps else None
        if allowed is None:
            budget = self._budget(task.worker)
            task.cap_mib = None if budget is None else budget.cap_mib
            return None
        task.cap_mib = allowed.cap_mib
        its = self.node.workers[task.worker]
        if its.gpu_slot is None or self.node.plan is None:
            return None
        gpu_slot = allocation.with_memory_cap(its.gpu_slot, allowed.cap_mib)
        variables = registry.slot_environment(self.node.plan, gpu_slot)
        other = replace(its, rank=task.rank, gpu_slot=gpu_slot, environment=variables)
        return task_process.Environment(environment.of_worker(self.common, self.what, self.node, other))

    def _larger_allowance(self, turn: Turn, worker: int) -> Allowance | None:
        """Return what the attempt may take of its GPU, or None if that is the cap of its worker."""
        budget = self._budget(worker)
        if budget is None:
            return None
        allowed = memory_caps.allowance(budget, self._memory(turn))
        return None if allowed.cap_mib == budget.cap_mib else allowed

    # ---- An end ----

    def judge(self, task: Running, ending: Ending) -> tuple[Outcome, str]:
        """See Strategy: of an attempt that ran out of GPU memory, also say what it had and what it asked for."""
        found, why = outcomes.outcome(ending)
        if found == "gpu memory":
            task.asked_mib = asked_mib(ending.log_tail)
            is_alone = task.turn.alone if task.allowed is None else task.allowed.is_alone
            why += "; " + memory_caps.seen(task.cap_mib, task.gpu_peak_mib, task.asked_mib, is_alone=is_alone)
        return found, why

    def finished(self, task: Running, outcome: Outcome) -> bool:
        """See Strategy: run it again as long as it has retries left."""
        turn = task.turn
        self.gpu_peak_mib = max(task.gpu_peak_mib or 0, self.gpu_peak_mib)
        if outcome == "done":
            self.done_under_cap += task.allowed is None
            return False
        memory = self._learn(task) if outcome == "gpu memory" else turn.memory
        if outcome == "host memory":
            self.host_peak_mib = max(task.rss_mib or 0, self.host_peak_mib)
            self.host_crowded = self.sampler.watch_host = True
        if self.feeder.again(turn, outcome, memory):
            return True
        if outcome == "gpu memory" and (memory.cap_mib is not None or memory.was_alone):
            self.given_up.append(memory)
        return False

    def gpus(self, task: Running) -> tuple[str, ...]:
        """See Strategy."""
        return self._gpus[task.worker]

    def kind_of_work(self, task: Running) -> str | None:
        """See Strategy: tasks of one script count the same; of commands, that is not known."""
        return None if self.what.task_kind == "command" else self.what.name

    def rated(self, task: Running, rate: Rate | None) -> None:
        """See Strategy: places are fixed."""

    def speed_ratio(self, task: Running) -> float | None:
        """See Strategy: nothing is known of tasks alone."""
        return None

    def rate_alone(self, task: Running) -> Rate | None:
        """See Strategy: nothing is known of tasks alone."""
        return None

    def take_given_up(self) -> Sequence[GivenUp]:
        """See Strategy: a task that waits has an attempt left."""
        return ()

    def put_back(self, turn: Turn) -> None:
        """See Strategy."""
        self.feeder.put_back(turn)

    def _learn(self, task: Running) -> Memory:
        """Return what is known of the need of a task that ran out of memory; note what that says about other tasks."""
        budget, cap_mib = self._budget(task.worker), task.cap_mib
        if budget is None or (task.allowed is None and budget.is_overcommitted):
            self.crowded.add(self.node.workers[task.worker].place.gpu)
        if budget is None or task.allowed is not None:
            # A first attempt that had more than its worker's cap, because of the others, has had its larger cap.
            before = task.turn.memory if task.turn.memory.failures or task.allowed is None else Memory(1)
            is_alone = task.allowed is not None and task.allowed.is_alone
            return memory_caps.after_failure(before, cap_mib, task.gpu_peak_mib, task.asked_mib, is_alone=is_alone)
        memory = memory_caps.after_failure(task.turn.memory, cap_mib, task.gpu_peak_mib, task.asked_mib)
        self.has_larger_caps = True
        self.caps_too_small += 1
        self.lesson = Memory(1, None, max(self.lesson.need_mib or 0, memory.need_mib or 0) or None)
        if not self.is_lesson_told and self._memory(Turn(-1)) is self.lesson and self.feeder.left() != 0:
            self.is_lesson_told = True
            allowed = memory_caps.allowance(budget, self.lesson)
            more = "alone on a GPU" if allowed.is_alone else f"with {allowed.cap_mib} MiB, fewer at a time,"
            self.say(
                f"{self.caps_too_small} tasks of {self.node.name} ran out of GPU memory under a cap of {cap_mib} MiB, "
                f"more than were done; tasks start {more} until that changes"
            )
        return memory

    # ---- The run ----

    @property
    def waiting(self) -> int:
        """See Strategy."""
        return self.feeder.waiting

    @property
    def waiting_for_memory(self) -> int:
        """See Strategy."""
        return self.feeder.waiting_for_memory

    def left(self) -> int | None:
        """See Strategy."""
        return self.feeder.left()

    def tick(self) -> None:
        """See Strategy: keep a GPU free where an attempt needs more than its worker has."""
        self._reserve()

    @property
    def paused(self) -> frozenset[int]:
        """See Strategy: none ever is."""
        return frozenset()

    def resume_all(self) -> None:
        """See Strategy."""

    def sentences(self) -> list[str]:
        """See Strategy: say what to write next time, where caps were too small."""
        if not self.given_up:
            return []
        said = memory_caps.advice(self.given_up, tuple(self.node.budgets.values()), self.what.retries)
        return [f"{self.node.name}: {said}"]

    def _reserve(self) -> None:
        """Keep the emptiest GPU for an attempt that is to have more of one than a worker has, or all of it, as long as
        there is such an attempt."""
        if self.feeder.memory_failures < (1 if self.node.budgets else memory_caps.ALONE_AFTER):
            self.reserved = None
        elif self.reserved is None or self.reserved in self.without_daemon:
            there = {
                worker.place.gpu for worker in self.node.workers if worker.place.gpu is not None
            } - self.without_daemon
            if self.node.budgets:
                largest = self._largest_budget_mib()
                there = {
                    gpu for gpu in there if gpu in self.node.budgets and self.node.budgets[gpu].total_mib == largest
                }
            busy = [self.node.workers[task.worker].place.gpu for task in self._running_tasks()]
            self.reserved = min(there, key=busy.count, default=None)
