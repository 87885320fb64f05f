"""The strategy of triples without --pack: each worker has a fixed GPU and an even part of its memory as its cap.

A task that ran out of GPU memory runs again with a larger cap (without caps: on a GPU with room), then alone on a GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from ...node.records import MemoryUse
from ...packing import EndFacts, EndKind, GpuFacts, GpuState, asked_mib, classify, judge_device
from ...share import allocation, registry
from ..records import Outcome
from ..rules import memory_caps, outcomes
from ..rules.memory_caps import Allowance, Budget, Memory
from . import environment, strategy, task_process
from .daemons import Daemons
from .feeder import Turn
from .running import Running
from .sampler import Sampler


class EvenCaps(strategy.Strategy):
    """Choose the next start of a node whose workers have fixed GPUs and even caps."""

    def __init__(self, shared: strategy.Shared) -> None:
        super().__init__(shared)
        workers = self.node.workers
        self._gpus = [() if worker.gpu is None else (worker.gpu.uuid,) for worker in workers]
        self._states = {
            gpu.uuid: GpuState(GpuFacts(uuid=gpu.uuid, index=place, model=gpu.name, total_mib=gpu.memory_total_mib))
            for place, gpu in ((worker.place.gpu, worker.gpu) for worker in workers)
            if gpu is not None and place is not None
        }
        """GPU UUID -> whether it is in service."""
        self._out_of_service: dict[str, list[int]] = {}
        """GPU UUID -> workers that start nothing because it has failed."""
        self.sampler = Sampler(self.running, bool(self._states), shared.host)
        self.crowded: set[int | None] = set()
        """GPUs on which a task ran out of memory below its cap. Tasks start there only if enough memory is free."""
        self.has_larger_caps = bool(self.feeder.known)
        """True: attempts may have a larger cap than their worker's."""
        self.caps_too_small = 0
        """Attempts that ran out of memory under the cap of their worker."""
        self.done_under_cap = 0
        """Tasks that were done under the cap of their worker."""
        self.assumed = Memory(1)
        """Assumed memory of a first attempt, once most tasks have run out of memory under the caps of the workers."""
        self.is_assumption_logged = False
        self.given_up: list[Memory] = []
        """Memory of each task that ran out of memory under a cap, or alone on a GPU, and has no attempt left."""
        self.host_crowded = False
        self.daemons = Daemons([worker.gpu_slot for worker in workers])
        self.unusable: set[int | None] = set()
        """GPUs that have failed or whose daemon has ended. No task starts there."""
        self.gpu_peak_mib = self.host_peak_mib = 0
        """Largest peaks of this node's tasks that have ended; 0: not known."""
        self.reserved: int | None = None
        """The GPU kept free for an attempt that needs more memory than a worker's cap."""

    # ---- The next start ----

    def next(self, free: deque[int], idle: list[int]) -> tuple[int, Turn] | None:
        self._return_workers(free)
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
        """Return whether the worker's GPU and daemon work; log once for each daemon if not."""
        gpu = self.node.workers[worker].gpu
        if gpu is not None and self._states[gpu.uuid].is_out:
            self._out_of_service.setdefault(gpu.uuid, []).append(worker)
            return False
        why = self.daemons.why_gone(worker)
        if why is None:
            return True
        place = self.node.workers[worker].place.gpu
        if place not in self.unusable:
            self.unusable.add(place)
            self.say(f"{why}; no further task starts on GPU {place} of {self.node.name}: it would run without a cap")
        return False

    def _return_workers(self, free: deque[int]) -> None:
        """Free the workers of GPUs that are back in service."""
        for uuid in [uuid for uuid in self._out_of_service if not self._states[uuid].is_out]:
            free.extend(self._out_of_service.pop(uuid))

    def _may_run(self, turn: Turn, worker: int) -> bool:
        """Return whether an attempt has room. First attempts are checked only after a task has run out of memory."""
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
        return [*self.running.values(), *self.starting.values()]

    def _on_same_gpu(self, worker: int) -> list[Running]:
        """Return the tasks that run, or are being started, on the GPU of a worker."""
        gpu = self.node.workers[worker].place.gpu
        return [one for one in self._running_tasks() if self.node.workers[one.worker].place.gpu == gpu]

    def _has_cap_for(self, turn: Turn, worker: int, budget: Budget) -> bool:
        """Return whether the cap of an attempt fits on its GPU, together with the caps of the tasks there."""
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
        """Return the known memory need of an attempt; for a first attempt, the need learned from other tasks."""
        if turn.memory.failures == 0 and memory_caps.is_too_small(self.caps_too_small, self.done_under_cap):
            return self.assumed
        return turn.memory

    def _largest_budget_mib(self) -> int:
        budgets = self.node.budgets.items()
        return max((one.total_mib for gpu, one in budgets if gpu not in self.unusable), default=0)

    def _room(self, worker: int, others: list[Running]) -> MemoryUse | None:
        gpu = self.node.workers[worker].gpu
        return None if gpu is None else self.sampler.gpu(gpu.uuid, list(others))

    # ---- A start ----

    def environment(self, task: Running) -> task_process.Environment | None:
        task.allowed = allowed = self._larger_allowance(task.turn, task.worker) if self.has_larger_caps else None
        if allowed is None:
            budget = self._budget(task.worker)
            task.cap_mib = None if budget is None else budget.cap_mib
            return None
        task.cap_mib = allowed.cap_mib
        worker = self.node.workers[task.worker]
        if worker.gpu_slot is None or self.node.plan is None:
            return None
        gpu_slot = allocation.with_memory_cap(worker.gpu_slot, allowed.cap_mib)
        variables = registry.slot_environment(self.node.plan, gpu_slot)
        worker = replace(worker, rank=task.rank, gpu_slot=gpu_slot, environment=variables)
        return task_process.Environment(environment.of_worker(self.common, self.run, self.node, worker))

    def _larger_allowance(self, turn: Turn, worker: int) -> Allowance | None:
        """Return the allowance of an attempt; None: the cap of its worker."""
        budget = self._budget(worker)
        if budget is None:
            return None
        allowed = memory_caps.allowance(budget, self._memory(turn))
        return None if allowed.cap_mib == budget.cap_mib else allowed

    # ---- An end ----

    def judge(self, task: Running, facts: EndFacts) -> tuple[Outcome, str]:
        if facts.code != 0:
            self.daemons.clear()
            facts = replace(facts, is_daemon_lost=self.daemons.why_gone(task.worker) is not None)
        facts = self.sampler.with_sample(facts, self.gpus(task))
        cap_mib, now_mib = task.cap_mib, task.gpu_now_mib
        kind, why = classify(facts, now_mib / cap_mib if cap_mib and now_mib is not None else None)
        if kind == "device":
            kind, why = self._judge_device(why, facts, self.gpus(task))
        found = outcomes.OUTCOMES[kind]
        if found == "gpu memory":
            task.asked_mib = asked_mib(facts.log_tail)
            is_alone = task.turn.alone if task.allowed is None else task.allowed.is_alone
            why += "; " + memory_caps.seen(task.cap_mib, task.gpu_peak_mib, task.asked_mib, is_alone=is_alone)
        return found, why

    def _judge_device(self, why: str, facts: EndFacts, uuids: Sequence[str]) -> tuple[EndKind, str]:
        """Return whether the GPU of a task has failed; take it out of service, or give others back to it."""
        its = [self._states[uuid] for uuid in uuids]
        new = [gpu for gpu in its if not gpu.is_out]
        kind, why, returned = judge_device(why, facts, its, self._states.values())
        for gpu in new:
            if gpu.is_out:
                self._take_out(gpu, f"task {facts.task}: {why}")
        for uuid in returned:
            place = self._states[uuid].facts.index
            self.unusable.discard(place)
            self.say(f"GPU {place} of {self.node.name} is in service again: {why}")
        return kind, why

    def _take_out(self, gpu: GpuState, why: str) -> None:
        self.unusable.add(gpu.facts.index)
        self.say(f"{why}; no further task starts on GPU {gpu.facts.index} of {self.node.name}")

    def finished(self, task: Running, outcome: Outcome) -> bool:
        turn = task.turn
        self.gpu_peak_mib = max(task.gpu_peak_mib or 0, self.gpu_peak_mib)
        if outcome == "done":
            self.done_under_cap += task.allowed is None
            return False
        memory = self._learn(task) if outcome == "gpu memory" else turn.memory
        if outcome == "host memory":
            self.host_peak_mib = max(task.rss_mib or 0, self.host_peak_mib)
            self.host_crowded = self.sampler.watch_host = True
        if not (outcome == "gpu memory" and self._had_most(task)) and self.feeder.again(turn, outcome, memory):
            return True
        if outcome == "gpu memory" and (memory.cap_mib is not None or memory.was_alone):
            self.given_up.append(memory)
        return False

    def _had_most(self, task: Running) -> bool:
        """Return whether a task that ran out of memory had as much as it can have on this node; a retry cannot help."""
        budget, budgets = self._budget(task.worker), tuple(self.node.budgets.values())
        if budget is None or len(budgets) < len(self._gpus_of_node()):
            return False  # some GPU has no cap
        return memory_caps.had_most(budgets, budget, task.allowed)

    def _gpus_of_node(self) -> set[int]:
        return {worker.place.gpu for worker in self.node.workers if worker.place.gpu is not None}

    def gpus(self, task: Running) -> tuple[str, ...]:
        return self._gpus[task.worker]

    def kind_of_work(self, task: Running) -> str | None:
        return None if self.run.task_kind == "command" else self.run.name  # commands may count different units

    def _learn(self, task: Running) -> Memory:
        """Return the known memory need of a task that ran out of memory, and update what is assumed for other tasks."""
        budget, cap_mib = self._budget(task.worker), task.cap_mib
        if budget is None or (task.allowed is None and budget.is_overcommitted):
            self.crowded.add(self.node.workers[task.worker].place.gpu)
        if budget is None or task.allowed is not None:
            # A first attempt with more than its worker's cap (`assumed`) has already had the larger cap.
            before = task.turn.memory if task.turn.memory.failures or task.allowed is None else Memory(1)
            is_alone = task.allowed is not None and task.allowed.is_alone
            return memory_caps.after_failure(before, cap_mib, task.gpu_peak_mib, task.asked_mib, is_alone=is_alone)
        memory = memory_caps.after_failure(task.turn.memory, cap_mib, task.gpu_peak_mib, task.asked_mib)
        self.has_larger_caps = True
        self.caps_too_small += 1
        self.assumed = Memory(1, None, max(self.assumed.need_mib or 0, memory.need_mib or 0) or None)
        if not self.is_assumption_logged and self._memory(Turn(-1)) is self.assumed and self.feeder.left() != 0:
            self.is_assumption_logged = True
            allowed = memory_caps.allowance(budget, self.assumed)
            more = "alone on a GPU" if allowed.is_alone else f"with {allowed.cap_mib} MiB, fewer at a time,"
            self.say(
                f"{self.caps_too_small} tasks of {self.node.name} ran out of GPU memory under a cap of {cap_mib} MiB, "
                f"more than were done; tasks start {more} until that changes"
            )
        return memory

    # ---- The run ----

    def tick(self) -> None:
        for uuid, problem in self.sampler.broken(self._states).items():
            gpu = self._states[uuid]
            if not gpu.is_out:
                gpu.is_out, gpu.problem = True, problem
                self._take_out(gpu, f"the driver says: {problem}")
            gpu.out_by = None
        self._reserve()

    def sentences(self) -> list[str]:
        if not self.given_up:
            return []
        budgets = tuple(self.node.budgets.values())
        # With a plan of the Prolog, the user's own number of tasks on a GPU keeps the caps as they are.
        is_number_fixed = self.run.share is not None and not self.run.is_share_computed and self.node.leases is not None
        said = memory_caps.advice(self.given_up, budgets, self.run.retries, is_number_fixed=is_number_fixed)
        return [f"{self.node.name}: {said}"]

    def _reserve(self) -> None:
        """Reserve the GPU with the fewest tasks while an attempt waits for more memory than a worker's cap."""
        if self.feeder.memory_failures < (1 if self.node.budgets else memory_caps.ALONE_AFTER):
            self.reserved = None
        elif self.reserved is None or self.reserved in self.unusable:
            gpus = self._gpus_of_node() - self.unusable
            if budgets := self.node.budgets:
                largest = self._largest_budget_mib()
                gpus = {gpu for gpu in gpus if gpu in budgets and budgets[gpu].total_mib == largest}
            busy = [self.node.workers[task.worker].place.gpu for task in self._running_tasks()]
            self.reserved = min(gpus, key=busy.count, default=None)
