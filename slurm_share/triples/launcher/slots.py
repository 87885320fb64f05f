"""The strategy of triples without --pack: each worker has a fixed GPU and an even part of its memory as its cap.

`packing.SlotPolicy` decides about caps, waiting and retries; this module collects what it needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec.structs import replace

from ...node.records import MemoryUse
from ...packing import (
    Allowance,
    Attempt,
    Budget,
    EndFacts,
    EndKind,
    GpuFacts,
    RetryNeed,
    SlotPolicy,
    asked_mib,
    has_room,
    need_mib,
    need_of,
    wanted_mib,
)
from ...share import allocation, registry
from ..records import Outcome
from ..rules import outcomes
from ..rules.outcomes import MemoryFailure
from . import environment, strategy, task_process
from .daemons import Daemons
from .sampler import Sampler


class SlotStrategy(strategy.Strategy):
    """Choose the next start of a node whose workers have fixed GPUs and even caps."""

    def __init__(self, shared: strategy.LauncherState) -> None:
        super().__init__(shared)
        workers = self.node.workers
        self._gpus = [() if worker.gpu is None else (worker.gpu.uuid,) for worker in workers]
        self._places = [worker.place.gpu for worker in workers]
        """Worker -> the position of its GPU; None: it has none."""
        known = {worker.place.gpu: worker.gpu for worker in workers if worker.place.gpu is not None}
        facts = [
            GpuFacts(uuid="", index=place, model="", total_mib=None)
            if gpu is None
            else GpuFacts(uuid=gpu.uuid, index=place, model=gpu.name, total_mib=gpu.memory_total_mib)
            for place, gpu in known.items()
        ]
        has_known = bool(self.feeder.known)
        self.policy = SlotPolicy(self.node.budgets, facts, self.run.retries, has_known=has_known)
        self._listed = {one.uuid: one.index for one in facts if one.uuid}
        """GPU UUID -> its position."""
        self._parked: dict[int, list[int]] = {}
        """GPU -> workers that start nothing because it, or its daemon, has failed."""
        self.sampler = Sampler(self.running, bool(facts), shared.host)
        self.given_up: list[MemoryFailure] = []
        """Tasks that ran out of memory under a cap, or alone on a GPU, and have no attempt left."""
        self.host_crowded = False
        self.daemons = Daemons([worker.gpu_slot for worker in workers])
        self.allowed: dict[int, Allowance] = {}
        """Task -> its allowance of GPU memory, if it is not the cap of its slot."""
        self._sample_at = 0.0
        self.gpu_peak_mib = self.host_peak_mib = 0
        """Largest peaks of this node's tasks that have ended; 0: not known."""
        self._judged: dict[int, tuple[EndKind, int | None]] = {}
        """Task that has just ended -> how, and the memory that its log says it needed."""

    # ---- The next start ----

    def next(self, free: deque[int], idle: list[int]) -> tuple[int, Attempt] | None:
        if self._parked:
            self._return_workers(free)
        while free:
            worker = free.popleft()
            if not self._is_in_service(worker):
                continue
            rank = self.node.workers[worker].rank
            task = self.feeder.next(rank, lambda one, worker=worker: self._may_run(one, worker))  # type: ignore[misc]
            if task is not None:
                return worker, task
            idle.append(worker)
        return None

    def _is_in_service(self, worker: int) -> bool:
        """Return whether the worker's GPU and daemon work; log once for each daemon if not."""
        place = self._places[worker]
        if place is None:
            return True
        gpu = self.policy.gpus[place]
        if not (gpu.is_out or gpu.problem) and (why := self.daemons.why_gone(worker)) is not None:
            gpu.problem = why
            self.say(f"{why}; no further task starts on GPU {place} of {self.node.name}: it would run without a cap")
        if gpu.is_out or gpu.problem:
            self._parked.setdefault(place, []).append(worker)
            return False
        return True

    def _return_workers(self, free: deque[int]) -> None:
        """Free the workers of GPUs that are back in service."""
        for place in self._parked.keys() - self.policy.unusable:
            free.extend(self._parked.pop(place))

    def parked_workers(self) -> Iterable[int]:
        return [worker for workers in self._parked.values() for worker in workers]

    def _may_run(self, task: Attempt, worker: int) -> bool:
        """Return whether an attempt has room. First attempts are checked only after a task has run out of memory."""
        place, policy = self._places[worker], self.policy
        if place is not None and self._budget(worker) is not None:
            if policy.has_larger_caps:
                there = [self.allowed.get(one.task) for one in self._on_same_gpu(worker)]
                if not policy.has_cap_for(place, need_of(task), there, self.feeder.memory_failures):
                    return False
            needs_room = place in policy.crowded and not task.tries.own_memory
        else:
            if policy.reserved is not None or task.wants_alone:
                running = len(self._on_same_gpu(worker))
                if not policy.may_try_without_cap(place, need_of(task), running):
                    return False
                if task.wants_alone:
                    return True
            needs_room = task.after == "gpu memory" or place in policy.crowded
        if needs_room and place is not None:
            others = self._on_same_gpu(worker)
            peaks = [self.gpu_peak_mib, *(one.gpu_peak_mib or 0 for one in self.running.values())]
            if not has_room(need_mib(need_of(task).known_mib, peaks), self._room(worker, others), len(others)):
                return False
        if task.after == "host memory" or self.host_crowded:
            tasks = self._running_tasks()
            return has_room(need_mib(None, [self.host_peak_mib]), self.sampler.host(tasks), len(tasks))
        return True

    def _budget(self, worker: int) -> Budget | None:
        place = self._places[worker]
        return None if place is None else self.node.budgets.get(place)

    def _running_tasks(self) -> list[Attempt]:
        return [*self.running.values(), *self.starting.values()]

    def _on_same_gpu(self, worker: int) -> list[Attempt]:
        """Return the tasks that run, or are being started, on the GPU of a worker."""
        place = self._places[worker]
        return [one for one in self._running_tasks() if self._places[one.worker] == place]

    def _room(self, worker: int, others: list[Attempt]) -> MemoryUse | None:
        gpu = self.node.workers[worker].gpu
        return None if gpu is None else self.sampler.gpu(gpu.uuid, list(others))

    # ---- A start ----

    def environment(self, task: Attempt) -> task_process.Environment | None:
        self.allowed.pop(task.task, None)
        allowed = None
        if self.policy.has_larger_caps:
            allowed = self.policy.larger_allowance(self._places[task.worker], need_of(task))
        if allowed is None:
            budget = self._budget(task.worker)
            task.cap_mib = None if budget is None else budget.cap_mib
            return None
        self.allowed[task.task] = allowed
        task.cap_mib = allowed.cap_mib
        worker = self.node.workers[task.worker]
        if worker.gpu_slot is None or self.node.plan is None:
            return None
        gpu_slot = allocation.with_memory_cap(worker.gpu_slot, allowed.cap_mib)
        variables = registry.slot_environment(self.node.plan, gpu_slot)
        worker = replace(worker, rank=task.rank, gpu_slot=gpu_slot, environment=variables)
        return task_process.Environment(environment.of_worker(self.common, self.run, self.node, worker))

    # ---- An end ----

    def judge(self, task: Attempt, facts: EndFacts) -> tuple[Outcome, str]:
        if facts.code != 0:
            self.daemons.clear()
            facts = replace(facts, is_daemon_lost=self.daemons.why_gone(task.worker) is not None)
        facts = self.sampler.with_sample(facts, self.gpus(task))
        self._take_sample(task)
        cap_mib, now_mib = task.cap_mib, task.gpu_now_mib
        before = self.policy.unusable if facts.code != 0 else set()
        cap_ratio = now_mib / cap_mib if cap_mib and now_mib is not None else None
        kind, why = self.policy.judge(facts, self._places[task.worker], cap_ratio)
        if facts.code != 0:
            self._say_changes(before, f"task {facts.task}: {why}")
        found = outcomes.OUTCOMES[kind]
        asked = asked_mib(facts.log_tail) if found == "gpu memory" else None
        if found == "gpu memory":
            allowed = self.allowed.get(task.task)
            is_alone = task.wants_alone if allowed is None else allowed.is_alone
            why += "; " + outcomes.gpu_memory_text(cap_mib, task.gpu_peak_mib, asked, is_alone=is_alone)
        self._judged[task.task] = kind, wanted_mib(facts.log_tail, task.gpu_peak_mib) or task.gpu_peak_mib
        return found, why

    def _say_changes(self, before: set[int], why: str) -> None:
        """Log which GPUs have left the service, or are back in it. `before`: those that were out of it."""
        now = self.policy.unusable
        for place in sorted(now - before):
            self.say(f"{why}; no further task starts on GPU {place} of {self.node.name}")
        for place in sorted(before - now):
            self.say(f"GPU {place} of {self.node.name} is in service again: {why}")

    def finished(self, task: Attempt, outcome: Outcome) -> bool:
        self._take_sample(task)
        place, allowed = self._places[task.worker], self.allowed.pop(task.task, None)
        kind, needed_mib = self._judged.pop(task.task, (None, None))
        self.gpu_peak_mib = max(task.gpu_peak_mib or 0, self.gpu_peak_mib)
        if outcome == "done":
            self.policy.done_under_cap += allowed is None
            return False
        if outcome == "host memory":
            self.host_peak_mib = max(task.rss_mib or 0, self.host_peak_mib)
            self.host_crowded = self.sampler.watch_host = True
        need = need_of(task)
        had = self.policy.had(place, need, allowed, task.gpu_peak_mib, needed_mib)
        coming = self.policy.recover(kind or "not started", need, had)
        caps = [cap for cap in (need.cap_mib, had.cap_mib) if outcome == "gpu memory" and cap is not None]
        cap_mib = max(caps, default=need.cap_mib)
        if outcome == "gpu memory" and self.policy.learn(place, allowed, coming.floor_mib):
            self._say_assumption(task.worker)
        had_larger = outcome == "gpu memory" and allowed is not None
        wants_alone = coming.wants_alone or need.wants_alone or had_larger
        shown = RetryNeed(coming.tries, max(coming.floor_mib, need.floor_mib), wants_alone, cap_mib)
        if coming.is_retried and self.feeder.again(task, outcome, shown):
            return True
        if outcome == "gpu memory" and (cap_mib is not None or had.is_alone):
            self.given_up.append(MemoryFailure(cap_mib, needed_mib, was_alone=had.is_alone))
        return False

    def _say_assumption(self, worker: int) -> None:
        """Log that first attempts now begin with more memory than their slot's."""
        allowed = self.policy.larger_allowance(self._places[worker], RetryNeed())
        budget = self._budget(worker)
        if allowed is None or budget is None or self.feeder.left() == 0:
            return
        more = "alone on a GPU" if allowed.is_alone else f"with {allowed.cap_mib} MiB, fewer at a time,"
        self.say(
            f"{self.policy.too_small} tasks of {self.node.name} ran out of GPU memory under a cap of {budget.cap_mib} "
            f"MiB, more than were done; tasks start {more} until that changes"
        )

    def gpus(self, task: Attempt) -> tuple[str, ...]:
        return self._gpus[task.worker]

    def kind_of_work(self, task: Attempt) -> str | None:
        return None if self.run.task_kind == "command" else self.run.name  # commands may count different units

    # ---- The run ----

    def _take_sample(self, *ended: Attempt) -> None:
        """Give each task its memory at the newest sample, once. `ended`: tasks that have just ended."""
        latest = self.sampler.latest
        if latest is None or latest.at == self._sample_at:
            return
        self._sample_at = latest.at
        tasks = {one.task: one for one in (*self.running.values(), *ended) if one.clock <= latest.at}
        for sample in latest.tasks:
            if sample.task in tasks:
                tasks[sample.task].see(sample.memory_mib, sample.clients, latest.at)

    def tick(self) -> None:
        self._take_sample()
        for uuid, problem in self.sampler.broken(self._listed).items():
            before = self.policy.unusable
            self.policy.fail(self._listed[uuid], problem)
            self._say_changes(before, f"the driver says: {problem}")
        self.policy.reserve(self.feeder.memory_failures, [self._places[task.worker] for task in self._running_tasks()])

    def sentences(self) -> list[str]:
        if not self.given_up:
            return []
        budgets = tuple(self.node.budgets.values())
        # With a plan of the Prolog, the user's own number of tasks on a GPU keeps the caps as they are.
        is_number_fixed = self.run.share is not None and not self.run.is_share_computed and self.node.leases is not None
        said = outcomes.gpu_memory_advice(self.given_up, budgets, self.run.retries, is_number_fixed=is_number_fixed)
        return [f"{self.node.name}: {said}"]
