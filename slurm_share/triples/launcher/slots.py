"""The starts of triples without --pack: each worker has a fixed GPU and an even part of its memory as its cap.

The board decides by its policy `slots`; a first attempt costs no decision until a task has run out of memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec.structs import replace

from ...core import names
from ...packing import Attempt, Board, EndFacts, GpuFacts, TaskAsk, asked_mib, slot_settings, wanted_mib
from ...share import allocation, registry
from ..records import Outcome
from ..rules import outcomes
from ..rules.outcomes import MemoryFailure
from . import environment, strategy, task_process
from .daemons import Daemons
from .sampler import Sampler
from .task_use import TaskUses


class SlotStrategy(strategy.Strategy):
    """Choose the next start of a node whose workers have fixed GPUs and even caps."""

    def __init__(self, shared: strategy.LauncherState) -> None:
        super().__init__(shared)
        node = self.node
        uuids: dict[int, str] = {}
        """Position of a GPU -> its UUID; a text in its place if the driver does not describe it."""
        facts = []
        for worker in node.workers:
            place, gpu = worker.place.gpu, worker.gpu
            if place is not None and place not in uuids:
                uuids[place] = uuid = f"GPU {place}" if gpu is None else gpu.uuid
                model, total_mib = ("", None) if gpu is None else (gpu.name, gpu.memory_total_mib)
                facts.append(GpuFacts(uuid=uuid, index=place, model=model, total_mib=total_mib))
        self._gpus = [() if worker.place.gpu is None else (uuids[worker.place.gpu],) for worker in node.workers]
        """Worker -> its GPU, none if it has none."""
        self.board = Board(
            facts,
            len(node.workers),
            slot_settings(self.run.retries),
            None,
            budgets={uuids[place]: budget for place, budget in node.budgets.items()},
            host_mib=self.parts.host_mib,
        )
        slots = {gpu: worker.gpu_slot for worker, gpus in zip(node.workers, self._gpus, strict=True) for gpu in gpus}
        self.daemons = Daemons(slots)
        self.sampler = Sampler(
            self.running, bool(facts), shared.host, [worker.gpu for worker in node.workers if worker.gpu]
        )
        self.use = TaskUses(self.run, node, self.board, self.sampler, shared.host)
        self._parked: dict[str, list[int]] = {}
        """GPU -> workers that start nothing because it, or its daemon, has failed."""
        self._has_parts = False
        """A task has asked for more cores or memory than its process has."""
        self._lost: list[MemoryFailure] = []
        """Tasks that ran out of memory under a cap, or alone on a GPU, and have no attempt left."""

    # ---- The next start ----

    def next(self, free: deque[int], idle: list[int]) -> tuple[int, Attempt] | None:
        if self._parked:
            self._return_workers(free)
        if self.lacks_host_memory():
            return None
        while free:
            worker = free.popleft()
            if not self._is_in_service(worker):
                continue
            task = self._next_for(worker, 1 + len(free) + len(idle))
            if task is not None:
                self.take_more_workers(task, worker, free, idle)
                return worker, task
            idle.append(worker)
        return None

    def _next_for(self, worker: int, free: int) -> Attempt | None:
        """Return the attempt that starts in a worker; None: none may. Attempts that wait come first.

        `free`: number of workers without a task, with this one.
        """
        board, feeder, gpus, now = self.board, self.feeder, self._gpus[worker], self.now()
        if feeder.closed:
            return None
        if board.queue:
            task = board.start_waiting(gpus, now, free)
            if task is not None:
                return task
            if self._has_parts and board.is_held_back(now, free):
                return None
            if feeder.is_shared and self.shared.out_of_memory:
                return None  # do not claim more tasks that wait for memory: other nodes may have room for them
        if not board.may_start_new(gpus):
            return None
        while len(board.queue) - board.queue.retries < len(self.node.workers):
            number = feeder.take(self.node.workers[worker].rank)
            if number is None:
                return board.start_turn(gpus, now, free)
            ask = self._ask(number)
            if ask is None:
                continue
            before = self.shared.out_of_memory.get(number)
            if before is not None:
                board.add_after_memory(ask, now, before.gpu_cap_mib, before.peak_gpu_mib)
                return board.start_waiting(gpus, now, free)
            if board.has_node_room(ask, free):
                return board.start_new(ask, gpus, now)
            board.add(ask, now)  # smaller tasks go on, until it has waited long
        return None

    def _ask(self, task: int) -> TaskAsk | None:
        """Return the request of a task; None: it is given up, because it can never start here."""
        spec = self.specs[task] if self.specs else self._base_spec
        if spec.cpus is None and spec.mem_mib is None:  # the usual case, at every start
            return TaskAsk(task=task)
        never = self.parts.why_never(spec)
        if never:
            self.give_up(task, 1, never)
            return None
        self._has_parts = True
        return TaskAsk(task=task, workers=self.parts.workers_for(spec), host_mib=spec.mem_mib)

    def _give_up_stuck(self) -> None:
        """Give up the waiting tasks for which too few workers are left in service, once nothing else runs."""
        left = len(self.node.workers) - sum(len(workers) for workers in self._parked.values())
        for attempt in [one for one in self.board.waiting.values() if one.ask.workers > left]:
            self.board.withdraw(attempt.task)
            self.give_up(attempt.task, attempt.attempt, f"it needs the cores of {attempt.ask.workers} processes, and "
                         f"{left} of {self.node.name} are left in service")  # fmt: skip

    def _is_in_service(self, worker: int) -> bool:
        """Return whether the worker's GPU and daemon work; park it if not."""
        for gpu in self._gpus[worker]:
            if self.board.is_out(gpu) or not self.has_daemon(gpu, self.now()):
                self._parked.setdefault(gpu, []).append(worker)
                return False
        return True

    def _return_workers(self, free: deque[int]) -> None:
        """Free the workers of GPUs that are back in service."""
        for gpu in self._parked.keys() - self.board.unusable:
            free.extend(self._parked.pop(gpu))

    def parked_workers(self) -> Iterable[int]:
        return [worker for workers in self._parked.values() for worker in workers]

    def environment(self, task: Attempt) -> task_process.Environment | None:
        has_own_caps = self.board.slots.has_own_caps(task)
        if not (has_own_caps or self._has_parts):
            return None
        worker, cpus = self.worker_of(task), self.spec_of(task.task).cpus
        more = {} if cpus is None else {names.ENV_THREADS: str(cpus)}
        if worker.gpu_slot is None or self.node.plan is None or not has_own_caps:
            if cpus is None:
                return None
            worker = replace(worker, rank=task.rank)
            return task_process.Environment(environment.of_worker(self.common, self.run, self.node, worker, more=more))
        gpu_slot = allocation.with_memory_cap(worker.gpu_slot, task.cap_mib, task.least_mib)
        variables = registry.slot_environment(self.node.plan, gpu_slot)
        worker = replace(worker, rank=task.rank, gpu_slot=gpu_slot, environment=variables)
        return task_process.Environment(environment.of_worker(self.common, self.run, self.node, worker, more=more))

    # ---- An end ----

    def judge(self, task: Attempt, facts: EndFacts) -> tuple[Outcome, str]:
        was_too_small = self.board.slots.is_too_small
        outcome, why = super().judge(task, facts)
        if outcome != "gpu memory":
            return outcome, why
        if self.board.slots.is_too_small and not was_too_small:
            self._say_assumption(task.gpus[0])
        asked = asked_mib(facts.log_tail)
        why += "; " + outcomes.gpu_memory_text(task.cap_mib, task.gpu_peak_mib, asked, is_alone=task.is_alone)
        cap_mib = max(task.cap_mib or 0, task.had_room_mib) or None
        if (cap_mib is not None or task.is_alone) and not (task.is_retried and not self.feeder.closed):
            needed_mib = wanted_mib(facts.log_tail, task.gpu_peak_mib) or task.gpu_peak_mib
            self._lost.append(MemoryFailure(cap_mib, needed_mib, was_alone=task.is_alone))
        return outcome, why

    def finished(self, task: Attempt, outcome: Outcome) -> bool:
        if outcome != "done":
            return super().finished(task, outcome)
        now = self.now()
        self.take_sample(now)
        self.board.done(task, now)
        return False

    def _say_assumption(self, gpu: str) -> None:
        """Log that first attempts now begin with more memory than their slot's."""
        policy = self.board.slots
        start = policy.slot_start(gpu)
        if start is None or self.feeder.left() == 0:
            return
        more = "alone on a GPU" if start.is_alone else f"with {start.cap_mib} MiB, fewer at a time,"
        self.say(
            f"{policy.too_small} tasks of {self.node.name} ran out of GPU memory under a cap of "
            f"{policy.budgets[gpu].cap_mib} MiB, more than were done; tasks start {more} until that changes"
        )

    def kind_of_work(self, task: Attempt) -> str | None:
        return None if self.run.task_kind == "command" else self.run.name  # commands may count different units

    # ---- The run ----

    def tick(self) -> None:
        super().tick()
        self.board.check_driver(self.now())
        self.board.slots.reserve()
        if self._parked and self.board.queue and not (self.running or self.starting):
            self._give_up_stuck()

    def sentences(self) -> list[str]:
        if not self._lost:
            return []
        budgets = tuple(self.node.budgets.values())
        # With a plan of the Prolog, the user's own number of tasks on a GPU keeps the caps as they are.
        is_number_fixed = self.run.share is not None and not self.run.is_share_computed and self.node.leases is not None
        said = outcomes.gpu_memory_advice(self._lost, budgets, self.run.retries, is_number_fixed=is_number_fixed)
        return [f"{self.node.name}: {said}"]
