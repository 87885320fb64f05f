"""The state of one node: its GPUs, running tasks and waiting tasks. Launchers and the simulator both use it.

It has no clock, file or process: the caller reports each event with its time, and carries out the actions of `decide`.
Each decision is made by a function of a `PackView`, such as `place.decide`, so that a journal of views can be replayed.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from ...node.gpu_figures import GpuLoad
from ..attempt import UNKNOWN, Attempt
from ..decision_records import Action, Decision, GiveUp, Hold, Move, Pause, Reserve, Resume, Start
from ..history_records import TaskRun
from ..records import (
    BOOKING,
    EndFacts,
    EndKind,
    GpuFacts,
    PackSettings,
    PackView,
    RunningView,
    Source,
    TaskAsk,
    TaskKey,
    TaskSample,
    Tries,
    WaitingView,
)
from ..speed_records import PairRun, PairView, Rate
from . import blame, endings, guarantee, place, recover, reservation, slots
from .estimate import elastic
from .estimate.estimator import Estimator
from .gpu_state import OTHERS_WINDOW_S, GpuState
from .learner import Learner
from .loads import minute_ratio
from .policy import Decide, closes_gpu
from .queue import Queue, WaitingEstimates
from .room import capacity, size_basis, usable
from .slots import Budget, SlotPolicy
from .speeds import Speeds
from .undo import alone_most_s
from .vacancies import Vacancies

BLIND_S = 10.0
"""After this time without a sample, the driver counts as hanging."""
LEFT_S = 5.0
"""A node takes a task that it cannot start from the list of all nodes only if no node has taken it for this time. An
idle node takes it within a second, unless its launcher has just begun."""


class Board:
    """The state of one node of a run: its queue, its running attempts and its GPUs.

    The loop reports events (`add`, `sampled`, `rate_task`, `ended`) and carries out the actions of `decide`. An
    `Attempt` is made by `add`, or by `ended` for a retry; it waits in the queue, runs, and has ended.

    A placement policy is a function of a `PackView` that returns actions, by default the class of `place` or `booked`
    that `settings.policy` names. With the policy `slots`, of runs without --pack, the GPU of an attempt is that of its
    worker, and `start_waiting` and `start_new` take the place of `decide`. `estimator` None: no sizes are estimated.
    """

    def __init__(
        self,
        gpus: Sequence[GpuFacts],
        workers: int,
        settings: PackSettings,
        estimator: Estimator | None,
        speeds: Speeds | None = None,
        *,
        can_move: bool = False,
        policy: Decide = place.decide,
        unix_s: float = 0.0,
        sharing: str = "",
        software: str = "",
        runs: list[TaskRun] | None = None,
        pairs: list[PairRun] | None = None,
        budgets: Mapping[str, Budget] | None = None,
        host_mib: int | None = None,
    ) -> None:
        """Create a node with idle GPUs and `workers` free workers. `speeds` None: no speeds are known yet. `can_move`:
        tasks save their state on a signal. `policy`: makes the decisions. `unix_s`: Unix time of second 0. `sharing`,
        `software`: of the runs in the user's history. `runs`, `pairs` get what is for the history; None: it is not
        kept. `budgets`: with the policy `slots`, GPU -> the memory that its slots divide, for GPUs with caps.
        `host_mib`: host memory that tasks book, an even part for each worker; None: they book none."""
        self._policy = policy
        self._can_move = can_move
        self.settings = settings
        self.max_per_gpu = settings.max_per_gpu
        """The limit of the user's settings."""
        self.estimator = estimator
        self.speeds = Speeds() if speeds is None else speeds
        self.free_workers = workers
        self._free_host_mib = host_mib
        self._worker_host_mib = (host_mib or 0) // max(workers, 1)
        self.unix_s = unix_s
        self.facts = {gpu.uuid: gpu for gpu in sorted(gpus, key=lambda one: one.index)}
        self._gpus = {uuid: GpuState(facts) for uuid, facts in self.facts.items()}
        self._models = {facts.model: facts.total_mib for facts in gpus}
        self._running: dict[int, Attempt] = {}
        self._has_speeds = settings.policy == "gain"
        estimates = WaitingEstimates(estimator, self.speeds, gpus, has_speeds=self._has_speeds)
        self._estimates = estimates
        self.queue = Queue(estimates)
        self._has_slots = settings.policy == "slots"
        self.slots = SlotPolicy(budgets or {}, self._gpus, self.queue.waiting, self._running)
        """Decides in place of `policy` if that is `slots`."""
        self.learner = Learner(
            gpus, self._running, estimator, self.speeds, unix_s=unix_s, sharing=sharing, software=software, runs=runs,
            pairs=pairs,
        )  # fmt: skip
        self.notes: list[str] = self.learner.notes
        """Sentences for the job's log; the caller clears it."""
        self.sized: list[Attempt] = []
        """Attempts whose memory has become flat (`is_told`), or has risen above their bookings: for the other nodes of
        the run, and for the next job if this one is killed; the caller clears it."""
        self._last_gpu = -1
        self._is_blind = False
        self._sampled_s = 0.0
        self._durations: list[float] = []
        self._running_views: tuple[RunningView, ...] | None = ()
        self._has_given_up = False
        self._speeds_version = -1
        self._pairs: tuple[PairView, ...] = ()
        self._pairs_of: tuple[int, frozenset[TaskKey]] = (0, frozenset())
        """The version and tasks for which `_pairs` holds."""
        self._is_due = True
        self._next_s: float | None = 0.0
        self._vacancies = Vacancies(self.queue, self._gpus, self._running, self.speeds)
        self.turns: deque[Attempt] = deque()
        """Attempts at tasks whose turn was over (--slot): they come after all tasks that have not begun."""
        self._refused: tuple[int, float] | None = None
        """The next task of the list of all nodes, if it cannot start here, and since when."""

    @property
    def running(self) -> Mapping[int, Attempt]:
        """Return task -> its attempt, for tasks that run or are being started."""
        return self._running

    @property
    def waiting(self) -> Mapping[int, Attempt]:
        """Return task -> its attempt, for tasks in the queue."""
        return self.queue.waiting

    # ---- Events ----

    def add(
        self, ask: TaskAsk, now_s: float, *, attempt: int = 1, tries: Tries | None = None, floor_mib: int = 0
    ) -> Attempt:
        """Put a task at the end of the queue. `attempt`, `tries`, `floor_mib`: from an earlier job of the same run."""
        made = self.queue.make(ask, now_s, floor_mib)
        made.attempt, made.tries = attempt, tries or made.tries
        self.queue.append(made)
        self._is_due = True
        return made

    def takes(self, ask: TaskAsk, now_s: float, *, floor_mib: int = 0) -> bool:
        """Return whether this node takes the next task of a list that several nodes share.

        It takes what its GPUs can start now, because another node may be idle. It also takes a task if it has no other.
        A task that all nodes have left in the list for LEFT_S waits here, at most one for each GPU, so that smaller
        tasks go on behind it. A node without a GPU in service takes none.
        """
        if all(gpu.is_out for gpu in self._gpus.values()):
            return False
        if not (self._running or self.queue):
            return True
        is_new = self._refused is None or self._refused[0] != ask.task
        if (is_new or self.is_due(now_s)) and self._would_start(ask, now_s, floor_mib):
            self._refused = None
            return True
        if is_new:
            self._refused = ask.task, now_s
        if self._refused is None or now_s - self._refused[1] < LEFT_S or len(self.queue) >= len(self._gpus):
            return False
        self._refused = None
        return True

    def _would_start(self, ask: TaskAsk, now_s: float, floor_mib: int) -> bool:
        """Return whether a decision now would start or give up a task that is not in the queue."""
        if not self.queue and not floor_mib and self._vacancies.takes(ask, self.settings, now_s):
            return True
        return self.would_act(ask, now_s, floor_mib=floor_mib)

    def put_back(self, task: int, now_s: float) -> None:
        """Return a started task to the queue, because a temporary problem (no free processes) prevented its start."""
        run = self._leave(task, now_s)
        fresh = run.again(now_s=run.waits_since_s, tries=run.tries)
        fresh.attempt, fresh.after = run.attempt, run.after
        self.queue.insert(fresh)
        if not self._has_slots:
            self.learner.groups.changed(run.gpus, now_s)
        self._is_due = True

    # ---- The policy `slots`: the GPU of an attempt is that of its worker ----

    def add_after_memory(self, ask: TaskAsk, now_s: float, cap_mib: int | None, peak_mib: int | None) -> None:
        """Put a task into the queue whose last attempt, in an earlier job, ran out of GPU memory under a cap."""
        made = self.queue.make(ask, now_s, slots.floor_before(cap_mib, peak_mib))
        made.tries, made.after, made.had_room_mib = Tries(own_memory=1), "gpu memory", cap_mib or 0
        self.queue.append(made)
        self.slots.has_larger_caps = True

    def start_waiting(self, gpus: tuple[str, ...], now_s: float, free_workers: int = 1) -> Attempt | None:
        """Start the first waiting attempt that may run in a slot of `gpus`; None: none may, or none waits.

        `free_workers`: with that slot.
        """
        for run in self.queue.in_order():
            if not self.has_node_room(run.ask, free_workers):
                if now_s - run.waits_since_s >= self.settings.patience_s:
                    return None
                continue
            start = self.slots.place(run, gpus, is_blind=self._is_blind)
            if start is not None:
                self.withdraw(run.task)
                run.begin(start, UNKNOWN, now_s)
                return self._enter(run)
        return None

    def start_turn(self, gpus: tuple[str, ...], now_s: float, free_workers: int = 1) -> Attempt | None:
        """Start the first of `turns` that may run in a slot of `gpus`; None: none may, or there is none.

        `free_workers`: with that slot.
        """
        for number, run in enumerate(self.turns):
            if not self.has_node_room(run.ask, free_workers):
                continue
            start = self.slots.place(run, gpus, is_blind=self._is_blind)
            if start is not None:
                del self.turns[number]
                run.begin(start, UNKNOWN, now_s)
                return self._enter(run)
        return None

    def may_start_new(self, gpus: tuple[str, ...]) -> bool:
        """Return whether a first attempt may start in a slot of `gpus`."""
        return not self.slots.is_checking or self.slots.place(slots.FIRST, gpus, is_blind=self._is_blind) is not None

    def start_new(self, ask: TaskAsk, gpus: tuple[str, ...], now_s: float) -> Attempt:
        """Start a first attempt in a slot, after `may_start_new`. It has the slot's cap, which needs no decision."""
        run, policy = Attempt(ask=ask, gpus=gpus, started_s=now_s), self.slots
        self.queue.number(run)
        start = policy.place(run, gpus, is_blind=self._is_blind) if policy.is_checking else None
        budget = policy.budgets.get(gpus[0]) if gpus else None
        if start is not None:
            run.begin(start, UNKNOWN, now_s)
        elif budget is not None:
            run.cap_mib, run.reserved_mib = budget.cap_mib, budget.booked_mib
        return self._enter(run)

    def has_node_room(self, ask: TaskAsk, free_workers: int) -> bool:
        """Return whether the cores and the host memory that a task asks for are free."""
        if ask.workers > free_workers:
            return False
        mib = self._worker_host_mib if ask.host_mib is None else ask.host_mib
        return self._free_host_mib is None or mib <= self._free_host_mib

    def is_held_back(self, now_s: float, free_workers: int) -> bool:
        """Return whether nothing may start, so that a task which has waited long gets the cores or memory it needs."""
        return any(
            now_s - run.waits_since_s >= self.settings.patience_s and not self.has_node_room(run.ask, free_workers)
            for run in self.queue.in_order()
        )

    def _take_parts(self, ask: TaskAsk, sign: int = 1) -> None:
        """Book the cores and the host memory of a task; with sign -1, give them back."""
        self.free_workers -= sign * ask.workers
        if self._free_host_mib is not None:
            self._free_host_mib -= sign * (self._worker_host_mib if ask.host_mib is None else ask.host_mib)

    def _enter(self, run: Attempt) -> Attempt:
        self._running[run.task] = run
        run.least_mib = self.slots.held_mib(run)
        for uuid in run.gpus:
            self._gpus[uuid].running[run.task] = run
        self._take_parts(run.ask)
        return run

    def done(self, run: Attempt, now_s: float) -> None:
        """Record that an attempt in a slot was done, which needs no judgement."""
        self._leave(run.task, now_s)
        run.kind = "done"
        self.slots.done(run)

    def queue_turn(self, now_s: float) -> None:
        """Put the first of `turns` at the end of the queue, after all tasks that have not begun are in it."""
        run = self.turns.popleft()
        run.waits_since_s, run.epoch, run.waiting_view = now_s, -1, None
        self.queue.append(run)
        self._is_due = True

    # ---- Samples ----

    def sampled(self, gpus: Mapping[str, GpuLoad], tasks: Iterable[TaskSample], taken_s: float, now_s: float) -> None:
        """Record a sample of the node: its GPUs by UUID, and the running tasks. `taken_s`: time of the sample."""
        for task in tasks:
            its = self._running.get(task.task)
            if task.memory_mib and its is not None and its.started_s <= taken_s:
                self.sample_task(task.task, task.memory_mib, task.clients, now_s)
        for gpu in gpus.values():
            self.sample_gpu(
                gpu.uuid,
                now_s,
                used_mib=gpu.memory_used_mib,
                sm_ratio=minute_ratio(gpu.load_percent_windows),
                dram_ratio=minute_ratio(gpu.dram_percent_windows),
                problem=gpu.problem or "",
            )
        self._sampled_s = taken_s
        if not self._has_slots:
            for family in self.learner.sampled(gpus, taken_s):
                self.learned(family)

    def sample_task(self, task: int, memory_mib: Mapping[str, int], clients: int, now_s: float) -> None:
        """Record the memory of a running task on each GPU (UUID -> MiB) and its number of CUDA processes.

        Updates peak, plateau and reservation. A plateau informs the estimator, for the task's siblings.
        """
        run = self._running.get(task)
        if run is None:
            return  # the task ended while the sample was taken
        if self._has_slots:
            run.see(memory_mib, clients, now_s)
            return
        self._is_due = True
        before = (run.memory_mib, run.peak_mib, run.is_flat, run.is_elastic, run.clients, run.due_mib)
        is_first, was_flat = run.memory_mib is None, run.is_flat
        if not run.see(memory_mib, clients, now_s):
            return  # the task has shown no memory yet
        memory, peak = run.memory_mib or 0, run.peak_mib or 0
        age_s = now_s - run.started_s
        run.is_flat = was_flat or reservation.is_flat(run.peaks, age_s, now_s, self.settings.flat_after_s)
        run.is_elastic = run.is_elastic or elastic.takes_everything(
            source=run.estimate.source,
            memory_mib=memory,
            start_mib=run.start_mib,
            total_mib=self.facts[run.gpus[0]].total_mib,
            age_s=age_s,
            peak_mib=peak,
            cap_mib=run.cap_mib,
            is_flat=run.is_flat,
            floor_mib=max(run.estimate.floor_mib, run.floor_mib),
        )
        self._ask_growth(run, age_s)
        run.due_mib = self._due(run)
        if before != (run.memory_mib, run.peak_mib, run.is_flat, run.is_elastic, run.clients, run.due_mib):
            self._changed(run)
        if is_first:
            for gpu in self._on(run):
                if gpu.closed_by == task:
                    self._open_after_memory(gpu, now_s)
        if run.is_flat:
            run.settle()
        if run.is_flat and not was_flat and not run.is_elastic:
            self._tell_siblings(run, peak, age_s, now_s)

    def _on(self, run: Attempt) -> list[GpuState]:
        return [self._gpus[uuid] for uuid in run.gpus]

    def _changed(self, run: Attempt) -> None:
        """Drop what was rendered of a running task and its GPUs."""
        run.running_view = self._running_views = None
        for gpu in self._on(run):
            gpu.view = None

    def rate_task(self, task: int, rate: Rate | None) -> None:
        """Record the rate of a running task since its neighbours last changed; None: not known."""
        run = self._running.get(task)
        if run is None or self._has_slots:
            return
        if run.rate != rate:
            run.rate, run.running_view, self._running_views = rate, None, None
        for family in self.learner.rated(run, rate):
            self.learned(family)
        self._is_due = True

    def sample_gpu(
        self,
        uuid: str,
        now_s: float,
        *,
        used_mib: int | None,
        sm_ratio: float | None = None,
        dram_ratio: float | None = None,
        problem: str | None = None,
    ) -> None:
        """Record the figures of a GPU. `sm_ratio`, `dram_ratio`: means over the caller's window; None: not known.
        `problem`: None leaves it unchanged, an empty string clears it."""
        gpu = self._gpus[uuid]
        gpu.used, gpu.sm, gpu.dram = used_mib, sm_ratio, dram_ratio
        if problem is not None and not gpu.is_out:
            gpu.problem = problem
        gpu.view, self._is_due = None, True
        unbooked = gpu.unbooked()
        seen = gpu.unbooked_samples
        if unbooked or seen:
            seen.append((now_s, unbooked))
            while seen[0][0] < now_s - OTHERS_WINDOW_S:
                seen.popleft()

    def note_elsewhere(self, uuid: str, booked_mib: int, memory_mib: int, clients: int) -> None:
        """Record what other launchers of the user have booked and use on a GPU, and their number of processes."""
        gpu = self._gpus[uuid]
        if (booked_mib, memory_mib, clients) != (gpu.booked_elsewhere, gpu.memory_elsewhere, gpu.clients_elsewhere):
            gpu.booked_elsewhere, gpu.memory_elsewhere, gpu.clients_elsewhere = booked_mib, memory_mib, clients
            gpu.view = None

    def set_blind(self, now_s: float, *, is_blind: bool) -> None:
        """Record that the driver has stopped giving figures, or gives them again."""
        if is_blind == self._is_blind:
            return
        self._is_blind, self._is_due = is_blind, True
        for gpu in self._gpus.values():
            gpu.view = None
            if is_blind and gpu.closed_by is not None:  # the memory of its newest task will not be seen
                gpu.closed_until_s = min(gpu.closed_until_s, now_s + self.settings.settle_s)

    def check_driver(self, now_s: float) -> bool:
        """Record whether the driver gives figures; return whether it has just stopped. Call it about once a second."""
        was_blind = self._is_blind
        self.set_blind(now_s, is_blind=now_s - self._sampled_s > BLIND_S)
        return self._is_blind and not was_blind

    def out_of_service(self, uuid: str, why: str, now_s: float) -> None:
        """Take a GPU out of service: no further task starts there."""
        gpu = self._gpus[uuid]
        gpu.is_out, gpu.out_by, gpu.problem = True, None, why
        self.sample_gpu(uuid, now_s, used_mib=None)

    def is_out(self, uuid: str) -> bool:
        """Return whether a GPU is out of service."""
        return self._gpus[uuid].is_out

    @property
    def unusable(self) -> frozenset[str]:
        """Return the GPUs (UUIDs) that are out of service."""
        return frozenset([uuid for uuid, gpu in self._gpus.items() if gpu.is_out])

    def learned(self, family: str = "") -> None:
        """Estimate the waiting tasks of a family, or all of them, again.

        Call it after the estimator has learned something without this board, such as the sizes on other nodes.
        """
        self.queue.learned(family)
        self._is_due = True

    def sized_elsewhere(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> None:
        """Record the size of a task on another node of the run."""
        if self.estimator is not None:
            self.estimator.sibling(key, gpu_model, peak_mib, age_s)
            self.learned(key.family)

    def is_unknown(self, ask: TaskAsk) -> bool:
        """Return whether the size of a task is unknown, or known only from running tasks of its script."""
        if self.estimator is None:
            return True
        basis = size_basis(ask, self.facts.values())
        found = [self.estimator.estimate(ask, model, mib) for model, mib in basis.items()]
        return any(one.source in ("unknown", "sibling") for one in found)

    def offered(self, key: TaskKey, source: Source, mib: float) -> None:
        """Record the size of a command from a formula or a dry run, in MiB."""
        self.learner.offered(key, source, mib)
        if self.estimator is not None:
            for model in self._models:
                self.estimator.offer(key, model, source, mib)
            self.learned(key.family)

    def pause_no_more(self) -> None:
        """Pause no task from now on; harmful pairs are still kept apart."""
        self.settings = replace(self.settings, undo="off")

    def ended(self, facts: EndFacts, cpu_cores: float | None = None) -> Attempt:
        """Record the end of a running task, and return its attempt, which says what follows.

        Frees its booking, classifies the end, learns from it, and queues the next attempt if the task is retried.
        `cpu_cores`: mean number of cores that it used.
        """
        run = self._running[facts.task]
        is_done = facts.code == 0 and facts.was_started and not run.is_moving
        if is_done and not (facts.is_stopped_by_us or facts.is_told_to_save or facts.over_time):
            verdict = None
            coming = recover.RetryDecision(is_retried=False, why="", tries=run.tries, floor_mib=run.floor_mib)
            run.kind = "done"
        else:
            verdict, coming = self._judge(run, facts)
            run.kind = verdict.kind
        self._leave(facts.task, facts.now_s)
        run.set_paused(facts.now_s, is_paused=False)
        run.seconds = max(facts.now_s - run.started_s - run.paused_s, 0.0)
        run.why, run.is_retried = coming.why, coming.is_retried
        if self._has_slots and verdict is not None:
            run.why = coming.why if run.kind == guarantee.ABOVE else verdict.reason
            coming = self.slots.ended(run, coming)
        elif run.kind in endings.MEMORY_KINDS:
            run.needs_mib = coming.floor_mib or None
        if run.kind == "done":
            insort(self._durations, facts.now_s - run.started_s)
            if run.is_plain:
                self._vacancies.add(run)
        if not self._has_slots:
            self.queue.ended(run, coming, facts.now_s)
            self.learner.ended(run, facts, cpu_cores)
        if verdict is not None and coming.is_retried:
            again = _again(run, verdict, coming, facts.now_s)
            if _is_turn_over(run, facts, verdict.kind):
                again.keeps_turn = run.keeps_turn or verdict.kind != "saved"
                self.turns.append(again)
            else:
                self.queue.insert(again)
        self._is_due = True
        return run

    def _judge(self, run: Attempt, facts: EndFacts) -> tuple[blame.EndCause, recover.RetryDecision]:
        """Return how an attempt ended that still counts as running, and what follows."""
        had = self.slots.had(run, facts.log_tail) if self._has_slots else None
        verdict = blame.judge(facts, run, self._gpus.values(), is_blind=self._is_blind, had=had)
        if verdict.is_moved:
            return verdict, recover.after_move(self.facts[run.gpus[0]].index, run.tries, run.floor_mib)
        if _is_turn_over(run, facts, verdict.kind):
            has_saved = verdict.kind == "saved"
            return verdict, recover.after_turn(verdict.reason, run.tries, run.floor_mib, has_saved=has_saved)
        if self._has_slots:
            largest = self.slots.largest_mib
        else:
            largest = max((capacity(one.facts) for one in self._gpus.values() if not one.is_out), default=0)
        end = recover.AttemptEnd(
            verdict.kind, verdict.reason, verdict.had, run.tries, run.floor_mib, self.settings, largest
        )  # fmt: skip
        return verdict, recover.recover(end)

    def limit(self, per_gpu: int | None) -> None:
        """Limit the tasks on each GPU from the next start on; None: the limit of the user's settings, 0: no starts.
        The limit is part of each view's settings, so that decisions can be replayed."""
        if per_gpu is not None and self.max_per_gpu is not None:
            per_gpu = min(per_gpu, self.max_per_gpu)
        self.settings = replace(self.settings, max_per_gpu=self.max_per_gpu if per_gpu is None else per_gpu)
        self._is_due = True

    def most_on_a_gpu(self) -> int | None:
        """Return how many tasks of the current size have room on each GPU; None: their size is not known."""
        sizes: dict[str, int] = {}
        # Nodes that share a list take a task when it can start, so none waits: the newest one stands for the next.
        newest = list(self._running.values())[-1:]
        for next_ in self.queue.window(1) or newest:
            self._estimates.update(next_)
            for model, estimate in next_.estimates:
                if estimate.safe_mib is not None:
                    sizes[model] = max(sizes.get(model, 0), estimate.safe_mib, next_.floor_mib, reservation.LEAST_MIB)
        for run in self._running.values():
            if run.is_flat or run.estimate.source in ("user", "exact"):
                model = self.facts[run.gpus[0]].model
                sizes[model] = max(sizes.get(model, 0), run.reserved_mib)
        found: list[int] = []
        for gpu in self._gpus.values():
            if gpu.is_out or gpu.problem:
                continue
            if gpu.facts.total_mib is None or gpu.facts.is_single:
                found.append(1)
                continue
            size = sizes.get(gpu.facts.model)
            if not size:
                return None
            clients = max((run.clients for run in gpu.running.values()), default=1)
            most = gpu.facts.clients_max // clients
            most = min(most, gpu.facts.partitions or most)
            found.append(min(usable(gpu.make_view(is_blind=self._is_blind)) // size, most))
        return max(min(found), 1) if found else None

    def find(self, task: int) -> Attempt | None:
        """Return a running task; None: it does not run."""
        return self._running.get(task)

    def running_views(self) -> tuple[RunningView, ...]:
        if self._running_views is None:
            self._running_views = tuple([self._running[task].render_running() for task in sorted(self._running)])
        return self._running_views

    def on(self, gpus: Iterable[str]) -> list[Attempt]:
        """Return the attempts that run on any of these GPUs."""
        return list({task: one for uuid in gpus for task, one in self._gpus[uuid].running.items()}.values())

    def holds(self) -> dict[str, tuple[int, float]]:
        """Return the GPUs that are kept free -> (task, since when)."""
        return {uuid: (gpu.held_for, gpu.held_since_s) for uuid, gpu in self._gpus.items() if gpu.held_for is not None}

    # ---- Decisions ----

    def is_due(self, now_s: float) -> bool:
        """Return whether a decision now may differ from the last one."""
        return self._is_due or (self._next_s is not None and now_s >= self._next_s)

    def would_act(self, ask: TaskAsk, now_s: float, *, floor_mib: int = 0) -> bool:
        """Return whether a decision now would start or give up a task that is not in the queue."""
        new = self.queue.make(ask, now_s, floor_mib)
        actions = self._policy(self.view(now_s, self.queue.view(new))).actions
        return any(isinstance(one, Start | GiveUp) and one.task == ask.task for one in actions)

    def view(self, now_s: float, *further: WaitingView) -> PackView:
        """Return the view for a decision now. `further`: tasks that are not in the queue, as the last ones."""
        for gpu in self._gpus.values():
            if gpu.closed_by is not None and now_s >= gpu.closed_until_s:
                gpu.open()
        if self._has_speeds:
            self._note_silent(now_s)
            if self._speeds_version != self.speeds.version:
                self._refresh_speeds()
        running, waiting = self.running_views(), (*self.queue.views(self.settings.window), *further)
        return PackView(
            now_s=now_s,
            gpus=tuple([gpu.make_view(is_blind=self._is_blind) for gpu in self._gpus.values()]),
            running=running,
            waiting=waiting,
            free_workers=self.free_workers,
            free_host_mib=self._free_host_mib,
            worker_host_mib=self._worker_host_mib,
            settings=self.settings,
            last_gpu=self._last_gpu,
            median_s=self._median_s(),
            pairs=self._pairs_in(running, waiting) if self._has_speeds else (),
        )

    def decide(self, now_s: float) -> tuple[PackView, Decision]:
        """Decide by the policy, apply the decision to this state, and return it with its view.

        Started tasks count as running from now on. One call may start several tasks; call it again at the next event.
        """
        self._is_due = False
        self._vacancies.clear()
        view = self.view(now_s)
        decision = self._policy(view)
        self.apply(decision.actions, now_s)
        for action in decision.actions:
            if isinstance(action, Start) and (run := self._running[action.task]).is_plain:
                self._vacancies.decided(run, action, now_s)
        self._next_s = self.next_s(now_s)
        return view, decision

    def apply(self, actions: Sequence[Action], now_s: float) -> None:
        """Apply the actions of a decision, or of a journal, to this state."""
        self._has_given_up = False
        for action in actions:
            match action:
                case Start():
                    self._start(action, now_s)
                case Hold():
                    gpu = self._gpus[action.gpu]
                    gpu.held_for, gpu.held_since_s, gpu.view = action.task, now_s, None
                case GiveUp():
                    self.withdraw(action.task)
                    self._has_given_up = True
                case Reserve():
                    self._reserve(action)
                case Pause() | Resume():
                    self._set_paused(action.task, now_s, is_paused=isinstance(action, Pause))
                case Move():
                    run = self._running.get(action.task)
                    if run is not None:
                        run.is_moving, run.running_view, self._running_views = True, None, None

    def resumed(self, task: int, now_s: float) -> None:
        """Record that a paused task was resumed without a decision."""
        self._is_due = True
        self._set_paused(task, now_s, is_paused=False)

    def next_s(self, now_s: float) -> float | None:
        """Return when a decision can change without an event; None: never.

        It can change when a GPU opens again, a task grows old, memory may be flat, or a pause has lasted long enough.
        """
        times = [run.pause_s + self.settings.pause_max_s for run in self._running.values() if run.is_paused]
        if self.queue:
            if self._has_given_up:
                return now_s
            times += [gpu.closed_until_s for gpu in self._gpus.values() if gpu.closed_by is not None]
            patience_s = max(self.settings.patience_s, 2 * (self._median_s() or 0.0))
            times += [one.waits_since_s + patience_s for one in self.queue.window(self.settings.window)]
            flat_after_s = self.settings.flat_after_s
            times += [
                max(run.started_s, run.peaks[-1][0]) + flat_after_s
                for run in self._running.values()
                if run.peaks and not run.is_flat
            ]
            alone_s = alone_most_s(self.settings)
            times += [
                run.alone_since_s + alone_s
                for run in self._running.values()
                if run.is_new and run.alone_since_s is not None
            ]
        return min((at for at in times if at > now_s), default=None)

    def _median_s(self) -> float | None:
        return self._durations[len(self._durations) // 2] if self._durations else None

    def withdraw(self, task: int) -> Attempt:
        """Take a task out of the queue, and end the holds for it."""
        for gpu in self._gpus.values():
            if gpu.held_for == task:
                gpu.held_for, gpu.view = None, None
        return self.queue.remove(task)

    def repeat(self, now_s: float) -> tuple[int, Start] | None:
        """Start the first waiting task in the place of a done one of the same command, without a decision.

        Return the done task and the start; None: a decision is needed.
        """
        found = self._vacancies.find(self.settings, now_s)
        if found is not None:
            self.apply((found[1],), now_s)
        return found

    # ---- Speed ----

    def _note_speed(self, run: Attempt) -> None:
        """Give a running task what is known of its speed."""
        model = self.facts[run.gpus[0]].model
        load, alone = self.speeds.load(run.ask, model), self.speeds.rate_alone(run.ask.key, model)
        is_new = self.speeds.is_new(run.ask, (model,))
        if (load, alone, is_new) != (run.load, run.rate_alone, run.is_new):
            run.load, run.rate_alone, run.is_new = load, alone, is_new
            run.running_view = self._running_views = None

    def _note_silent(self, now_s: float) -> None:
        """Record the programs that were left alone and have shown no rate."""
        due_s = now_s - alone_most_s(self.settings)
        for run in self._running.values():
            since_s, key = run.alone_since_s, run.ask.key
            if run.is_new and run.rate is None and since_s is not None and since_s <= due_s and key is not None:
                self.speeds.note_silent(key)
                self.learned(key.family)

    def _refresh_speeds(self) -> None:
        self._speeds_version = self.speeds.version
        for run in self._running.values():
            self._note_speed(run)

    def _pairs_in(self, running: Sequence[RunningView], waiting: Sequence[WaitingView]) -> tuple[PairView, ...]:
        """Return what was measured of pairs of the tasks in a view."""
        if not self.speeds.has_pairs:
            return ()  # the usual case, which needs no keys of all tasks
        version = self.speeds.version
        asks = [*(one.ask for one in running), *(one.ask for one in waiting)]
        keys = frozenset(ask.key for ask in asks if ask.key is not None)
        if self._pairs_of != (version, keys):
            self._pairs_of = version, keys
            self._pairs = self.speeds.pairs(keys)
        return self._pairs

    # ---- Running tasks ----

    def _start(self, action: Start, now_s: float) -> None:
        run = self.withdraw(action.task)
        self._estimates.update(run)
        self.begin(run, action, now_s)
        self.learner.totals.started(now_s if run.after is None else None)

    def begin(self, run: Attempt, action: Start, now_s: float) -> None:
        """Start an attempt that is not in the queue."""
        gpus = [self._gpus[uuid] for uuid in action.gpus]
        estimate = dict(run.estimates).get(gpus[0].facts.model) or UNKNOWN
        run.begin(action, estimate, now_s)
        run.can_move = self._can_move and len(gpus) == 1
        if self._has_speeds:
            self._note_speed(run)
        run.least_mib = guarantee.held_mib(run, gpus[0].facts)
        run.neighbours = sum([len(gpu.running) for gpu in gpus])
        run.alone_since_s = now_s if len(gpus) == 1 and not run.neighbours else None
        self._running[action.task] = run
        self._running_views = None
        self._take_parts(run.ask)
        closes = not action.is_alone and closes_gpu(self.settings, estimate)
        for gpu in gpus:
            for other in gpu.running.values():
                run.was_joined = other.was_joined = True
                other.alone_since_s = other.running_view = None
            gpu.running[action.task] = run
            gpu.view = None
            if closes:
                gpu.closed_by = action.task
                gpu.closed_until_s = now_s + (self.settings.settle_s if self._is_blind else self.settings.settle_max_s)
        self._last_gpu = gpus[-1].facts.index
        self.learner.groups.changed(action.gpus, now_s)

    def _leave(self, task: int, now_s: float) -> Attempt:
        run = self._running.pop(task)
        self._running_views = None
        self._take_parts(run.ask, -1)
        for gpu in self._on(run):
            gpu.running.pop(task)
            if len(gpu.running) == 1:
                (left,) = gpu.running.values()
                left.alone_since_s, left.running_view = now_s, None
            if gpu.used is not None:
                # The driver's figure is older than the end: count the task's memory as free until the next figure.
                gpu.used = max(gpu.used - run.memory.get(gpu.facts.uuid, 0), 0)
            gpu.view = None
            if gpu.closed_by == task:
                gpu.open()
        return run

    def _reserve(self, action: Reserve) -> None:
        run = self._running.get(action.task)
        if run is None:
            return
        is_growth = action.reserve_mib > run.reserved_mib
        run.reserved_mib, run.due_mib = action.reserve_mib, None
        self._changed(run)
        has_room = all(gpu.room_mib(is_blind=self._is_blind) >= 0 for gpu in self._on(run))
        if not is_growth or has_room:
            run.granted_mib = action.reserve_mib
        is_news = action.is_flat and not run.is_told
        if (is_news or is_growth) and run.ask.key is not None and run.peak_mib:
            run.is_told = run.is_told or is_news
            self.sized.append(run)

    def _set_paused(self, task: int, now_s: float, *, is_paused: bool) -> None:
        """Record that a task is paused or resumed; the rates of its neighbours have to be measured again."""
        run = self._running.get(task)
        if run is None:
            return
        run.set_paused(now_s, is_paused=is_paused)
        for gpu in self._on(run):
            for other in gpu.running.values():
                other.rate = other.running_view = None
        self._running_views = None
        self.learner.groups.changed(run.gpus, now_s)

    def _due(self, run: Attempt) -> int | None:
        if self.settings.policy not in BOOKING and not self.settings.uses_booking:
            return None
        due = reservation.due(
            source=run.estimate.source,
            reserved_mib=run.reserved_mib,
            peak_mib=run.peak_mib or 0,
            is_flat=run.is_flat,
            is_elastic=run.is_elastic,
            is_alone=run.is_alone,
            growth=run.growth,
            guard=self.settings.guard,
            floor_mib=run.had_room_mib or run.floor_mib,
        )
        due = guarantee.due(due, run)
        return None if due == run.reserved_mib else due

    def _ask_growth(self, run: Attempt, age_s: float) -> None:
        """Update how much a flat peak may still grow. This is slow: repeat it only when the task is a quarter older."""
        if run.is_flat and self.estimator is not None and (run.growth_at_s is None or age_s >= 1.25 * run.growth_at_s):
            model = self.facts[run.gpus[0]].model
            run.growth = max(self.estimator.growth(run.ask.key, model, age_s), 1.0)
            run.growth_at_s = age_s

    def _tell_siblings(self, run: Attempt, peak_mib: int, age_s: float, now_s: float) -> None:
        key = run.ask.key
        if key is None or not key.family or self.estimator is None:
            return
        self.estimator.sibling(key, self.facts[run.gpus[0]].model, peak_mib, age_s)
        self.queue.freshen(key.family, now_s)

    # ---- GPUs ----

    def _open_after_memory(self, gpu: GpuState, now_s: float) -> None:
        """Open a GPU whose newest task shows memory; for policies that read free memory, after the warm-up."""
        if self.settings.policy in BOOKING:
            gpu.open()
        else:
            gpu.closed_until_s, gpu.view = now_s + self.settings.warm_up_s, None


def _is_turn_over(run: Attempt, facts: EndFacts, kind: EndKind) -> bool:
    """Return whether an attempt ended because its turn was over, and not with its job or by a problem of its own."""
    is_ours = run.turn_over > 0 and not (facts.is_stopped_by_us or run.is_told_to_save)
    return is_ours and kind in ("saved", "unfinished")


def _again(run: Attempt, verdict: blame.EndCause, coming: recover.RetryDecision, now_s: float) -> Attempt:
    """Return an ended task as one that waits for its next attempt."""
    again = run.again(now_s=now_s, tries=coming.tries)
    if verdict.is_moved or verdict.kind in endings.MEMORY_KINDS:
        again.not_on = tuple(dict.fromkeys((*again.not_on, *run.gpus)))
    again.floor_mib = max(coming.floor_mib, again.floor_mib)
    again.had_room_mib = max(coming.had_room_mib, again.had_room_mib)
    again.wants_alone = coming.wants_alone or again.wants_alone
    return again
