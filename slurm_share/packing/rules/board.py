"""The state of one node: its GPUs, running tasks and waiting tasks. The live packer and the simulator both use it.

It has no clock, file or process: the caller reports each event with its time, and carries out the actions of `decide`.
Each decision is made by a function of a `PackView`, such as `place.decide`, so that a journal of views can be replayed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ..attempt import UNKNOWN, Attempt
from ..decision_records import Action, Decision, GiveUp, Hold, Move, Pause, Reserve, Resume, Start
from ..records import (
    BOOKING,
    After,
    EndFacts,
    EndKind,
    Estimate,
    GpuFacts,
    PackSettings,
    PackView,
    RunningView,
    TaskAsk,
    TaskKey,
    Tries,
    WaitingView,
)
from ..speed_records import PairView, Rate
from . import blame, endings, place, recover, reservation
from .dead_tasks import DeadTasks
from .estimate import elastic
from .estimate.estimator import Estimator
from .gpu_state import OTHERS_WINDOW_S, GpuState
from .policy import Decide, closes_gpu
from .room import capacity, usable
from .speeds import Speeds
from .undo import alone_most_s
from .waiting_estimates import WaitingEstimates


class Board:
    """The state of one node of a run: its queue, its running attempts and its GPUs.

    The loop reports events (`add`, `sample_task`, `sample_gpu`, `rate_task`, `ended`) and carries out the actions of
    `decide`. An `Attempt` is made by `add`, or by `ended` for a retry; it waits in the queue, runs, and has ended.

    A placement policy is a class of `place` that reads a `PackView` and returns actions, chosen by `settings.policy`.
    The policy `slots` needs no decision for a task whose GPU is fixed by its worker: `begin` starts an attempt that is
    not in the queue, with the reservation and cap of its `Start` (the even part), and without an estimate. Only retries
    that need more are queued and decided. `estimator` None: no sizes are estimated.
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
    ) -> None:
        """Create a node with idle GPUs and `workers` free workers. `speeds` None: no speeds are known yet. `can_move`:
        tasks save their state on a signal. `policy`: makes the decisions."""
        self._policy = policy
        self._can_move = can_move
        self.settings = settings
        self._max_per_gpu = settings.max_per_gpu
        self.estimator = estimator
        self.speeds = Speeds() if speeds is None else speeds
        self.free_workers = workers
        self._gpus = {facts.uuid: GpuState(facts) for facts in sorted(gpus, key=lambda one: one.index)}
        self._models = {facts.model: facts.total_mib for facts in gpus}
        self._running: dict[int, Attempt] = {}
        self.attempts: Mapping[int, Attempt] = self._running
        """Task -> its attempt, for tasks that run or are being started."""
        self._waiting: dict[int, Attempt] = {}
        self._queue: list[tuple[int, int]] = []  # (sequence, task), sorted
        self._next_seq = 0
        self._last_gpu = -1
        self._is_blind = False
        self._floors: dict[object, tuple[int, int]] = {}
        """What `_same` returns -> the least need, and the memory that was too small."""
        self._dead = DeadTasks()
        self._durations: list[float] = []
        self._running_views: tuple[RunningView, ...] | None = ()
        self._waiting_views: tuple[WaitingView, ...] | None = ()
        self._has_given_up = False
        self._has_speeds = settings.policy == "gain"
        self._estimates = WaitingEstimates(estimator, self.speeds, self._models, has_speeds=self._has_speeds)
        self._speeds_version = -1
        self._pairs: tuple[PairView, ...] = ()
        self._pairs_of: tuple[int, frozenset[TaskKey]] = (0, frozenset())
        """The version and tasks for which `_pairs` holds."""

    # ---- Events ----

    def add(
        self, ask: TaskAsk, now_s: float, *, attempt: int = 1, tries: Tries | None = None, floor_mib: int = 0
    ) -> Attempt:
        """Put a task at the end of the queue. `attempt`, `tries`, `floor_mib`: from an earlier job of the same run."""
        made = Attempt(
            ask=ask,
            attempt=attempt,
            tries=tries or Tries(),
            floor_mib=floor_mib,
            waits_since_s=now_s,
            seq=self._next_seq,
        )
        self._raise_floor(made)
        self._next_seq += 1
        self._enqueue(made)
        return made

    def _raise_floor(self, attempt: Attempt) -> None:
        """Give an attempt the least need that attempts at the same command have shown."""
        floor_mib, had_room_mib = self._floors.get(_same(attempt.ask), (0, 0))
        if floor_mib > attempt.floor_mib:
            attempt.floor_mib, attempt.waiting_view = floor_mib, None
            attempt.had_room_mib = max(had_room_mib, attempt.had_room_mib)

    def put_back(self, task: int, now_s: float) -> None:
        """Return a started task to the queue, because a temporary problem (no free processes) prevented its start."""
        run = self._leave(task, now_s)
        fresh = run.again(now_s=run.waits_since_s, tries=run.tries)
        fresh.attempt, fresh.after = run.attempt, run.after
        self._enqueue(fresh)

    def sample_task(self, task: int, memory_mib: Mapping[str, int], clients: int, now_s: float) -> None:
        """Record the memory of a running task on each GPU (UUID -> MiB) and its number of CUDA processes.

        Updates peak, plateau and reservation. A plateau informs the estimator, for the task's siblings.
        """
        run = self._running.get(task)
        if run is None:
            return  # the task ended while the sample was taken
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
            total_mib=self._gpus[run.gpus[0]].facts.total_mib,
            age_s=age_s,
            peak_mib=peak,
            cap_mib=run.cap_mib,
            is_flat=run.is_flat,
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

    def rate_task(self, task: int, rate: Rate | None, now_s: float) -> None:
        """Record the rate of a running task since its neighbours last changed; None: not known."""
        run = self._running.get(task)
        if run is not None and run.rate != rate:
            run.rate, run.running_view, self._running_views = rate, None, None

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
        if problem is not None:
            gpu.problem = problem
        gpu.view = None
        unbooked = gpu.unbooked()
        seen = gpu.unbooked_samples
        if unbooked or seen:
            seen.append((now_s, unbooked))
            while seen[0][0] < now_s - OTHERS_WINDOW_S:
                seen.popleft()

    def elsewhere(self, uuid: str, booked_mib: int, memory_mib: int, clients: int) -> None:
        """Record what other launchers of the user have booked and use on a GPU, and their number of processes."""
        gpu = self._gpus[uuid]
        if (booked_mib, memory_mib, clients) != (gpu.booked_elsewhere, gpu.memory_elsewhere, gpu.clients_elsewhere):
            gpu.booked_elsewhere, gpu.memory_elsewhere, gpu.clients_elsewhere = booked_mib, memory_mib, clients
            gpu.view = None

    def blind(self, now_s: float, *, is_blind: bool) -> None:
        """Record that the driver has stopped giving figures, or gives them again."""
        if is_blind == self._is_blind:
            return
        self._is_blind = is_blind
        for gpu in self._gpus.values():
            gpu.view = None
            if is_blind and gpu.closed_by is not None:  # the memory of its newest task will not be seen
                gpu.closed_until_s = min(gpu.closed_until_s, now_s + self.settings.settle_s)

    def learned(self, family: str = "") -> None:
        """Estimate the waiting tasks of a family, or all of them, again.

        Call it after the estimator has learned something without this board, such as the sizes on other nodes.
        """
        self._estimates.learned(family)
        self._waiting_views = None

    def ended(self, facts: EndFacts) -> After:
        """Record the end of a running task: free its booking, classify the end, and enqueue it again if it is retried.

        Also updates the queue: siblings of a task that ran out of memory get its floor.
        """
        run = self._running[facts.task]
        verdict = blame.judge(facts, run, self._gpus.values(), is_blind=self._is_blind)
        kind = verdict.kind
        self._leave(facts.task, facts.now_s)
        run.set_paused(facts.now_s, is_paused=False)
        run.seconds = max(facts.now_s - run.started_s - run.paused_s, 0.0)
        if kind == "done":
            insort(self._durations, facts.now_s - run.started_s)
        if verdict.is_moved:
            coming = recover.after_move(self._gpus[run.gpus[0]].facts.index, run.tries, run.floor_mib)
        else:
            largest = max((capacity(one.facts) for one in self._gpus.values() if not one.is_out), default=0)
            end = recover.End(
                kind, verdict.reason, verdict.had, run.tries, run.floor_mib, self.settings, largest
            )  # fmt: skip
            coming = recover.after(end)
        run.kind, run.why, run.is_retried = kind, coming.why, coming.is_retried
        run.needs_mib = coming.floor_mib or None if kind in endings.MEMORY_KINDS else None
        self._teach(run, kind, coming, facts.now_s)
        if coming.is_retried:
            self._enqueue(_again(run, verdict, coming, facts.now_s))
        return After(
            kind=kind,
            is_retried=coming.is_retried,
            why=coming.why,
            needs_mib=run.needs_mib,
            returned=verdict.returned,
        )

    def limit(self, per_gpu: int | None) -> None:
        """Limit the tasks on each GPU from the next start on; None: the limit of the user's settings, 0: no starts.
        The limit is part of each view's settings, so that decisions can be replayed."""
        if per_gpu is not None and self._max_per_gpu is not None:
            per_gpu = min(per_gpu, self._max_per_gpu)
        self.settings = replace(self.settings, max_per_gpu=self._max_per_gpu if per_gpu is None else per_gpu)

    def most_on_a_gpu(self) -> int | None:
        """Return how many tasks of the current size have room on each GPU; None: their size is not known."""
        sizes: dict[str, int] = {}
        # Nodes that share a list take a task when it can start, so none waits: the newest one stands for the next.
        newest = list(self._running.values())[-1:]
        for next_ in [self._waiting[task] for _, task in self._queue[:1]] or newest:
            self._estimates.update(next_)
            for model, estimate in next_.estimates:
                if estimate.safe_mib is not None:
                    sizes[model] = max(sizes.get(model, 0), estimate.safe_mib, next_.floor_mib, reservation.LEAST_MIB)
        for run in self._running.values():
            if run.is_flat or run.estimate.source in ("user", "exact"):
                model = self._gpus[run.gpus[0]].facts.model
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
            found.append(min(usable(gpu.make_view(is_blind=self._is_blind)) // size, gpu.facts.clients_max // clients))
        return max(min(found), 1) if found else None

    def estimate(self, task: int, gpu_model: str) -> Estimate | None:
        """Return the estimate of a waiting task on a GPU model of this node."""
        waiting = self._waiting[task]
        self._estimates.update(waiting)
        return dict(waiting.estimates).get(gpu_model)

    def find(self, task: int) -> Attempt | None:
        """Return a running task; None: it does not run."""
        return self._running.get(task)

    def running(self) -> tuple[RunningView, ...]:
        if self._running_views is None:
            self._running_views = tuple([self._running[task].render_running() for task in sorted(self._running)])
        return self._running_views

    # ---- Decisions ----

    def would_act(self, ask: TaskAsk, now_s: float, *, floor_mib: int = 0) -> bool:
        """Return whether a decision now would start or give up a task that is not in the queue."""
        new = Attempt(ask=ask, floor_mib=floor_mib, waits_since_s=now_s, seq=self._next_seq)
        self._raise_floor(new)
        actions = self._policy(self.view(now_s, self._updated(new))).actions
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
        running, waiting = self.running(), (*self._window(), *further)
        return PackView(
            now_s=now_s,
            gpus=tuple([gpu.make_view(is_blind=self._is_blind) for gpu in self._gpus.values()]),
            running=running,
            waiting=waiting,
            free_workers=self.free_workers,
            settings=self.settings,
            last_gpu=self._last_gpu,
            median_s=self._median_s(),
            pairs=self._pairs_in(running, waiting) if self._has_speeds else (),
        )

    def decide(self, now_s: float) -> tuple[PackView, Decision]:
        """Decide by the policy, apply the decision to this state, and return it with its view.

        Started tasks count as running from now on. One call may start several tasks; call it again at the next event.
        """
        view = self.view(now_s)
        decision = self._policy(view)
        self.apply(decision.actions, now_s)
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
                    gpu.held_for, gpu.view = action.task, None
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
        self._set_paused(task, now_s, is_paused=False)

    def next_s(self, now_s: float) -> float | None:
        """Return when a decision can change without an event; None: never.

        It can change when a GPU opens again, a task grows old, memory may be flat, or a pause has lasted long enough.
        """
        times = [run.pause_s + self.settings.pause_max_s for run in self._running.values() if run.is_paused]
        if self._queue:
            if self._has_given_up:
                return now_s
            times += [gpu.closed_until_s for gpu in self._gpus.values() if gpu.closed_by is not None]
            patience_s = max(self.settings.patience_s, 2 * (self._median_s() or 0.0))
            window = self._queue[: self.settings.window]
            times += [self._waiting[task].waits_since_s + patience_s for _, task in window]
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

    # ---- The queue ----

    def _enqueue(self, attempt: Attempt) -> None:
        task = attempt.ask.task
        self._waiting[task] = attempt
        insort(self._queue, (attempt.seq, task))
        self._waiting_views = None

    def withdraw(self, task: int) -> Attempt:
        """Take a task out of the queue, and end the holds for it."""
        attempt = self._waiting.pop(task)
        del self._queue[bisect_left(self._queue, (attempt.seq, task))]
        self._waiting_views = None
        for gpu in self._gpus.values():
            if gpu.held_for == task:
                gpu.held_for, gpu.view = None, None
        return attempt

    def _window(self) -> tuple[WaitingView, ...]:
        if self._waiting_views is None:
            tasks = self._queue[: self.settings.window]
            self._waiting_views = tuple([self._updated(self._waiting[task]) for _, task in tasks])
        return self._waiting_views

    def _updated(self, attempt: Attempt) -> WaitingView:
        """Return the view of a waiting task with current estimates, and why it is given up."""
        self._estimates.update(attempt)
        why = self._dead.why_hopeless(attempt)
        if why != attempt.hopeless:
            attempt.hopeless, attempt.waiting_view = why, None
        return attempt.render_waiting()

    # ---- Speed ----

    def _note_speed(self, run: Attempt) -> None:
        """Give a running task what is known of its speed."""
        model = self._gpus[run.gpus[0]].facts.model
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

    def begin(self, run: Attempt, action: Start, now_s: float) -> None:
        """Start an attempt that is not in the queue."""
        gpus = [self._gpus[uuid] for uuid in action.gpus]
        estimate = dict(run.estimates).get(gpus[0].facts.model) or UNKNOWN
        run.begin(action, estimate, now_s)
        run.can_move = self._can_move and len(gpus) == 1
        if self._has_speeds:
            self._note_speed(run)
        run.neighbours = sum(1 for gpu in gpus for _ in gpu.running)
        run.alone_since_s = now_s if len(gpus) == 1 and not run.neighbours else None
        self._running[action.task] = run
        self._running_views = None
        self.free_workers -= 1
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

    def _leave(self, task: int, now_s: float) -> Attempt:
        run = self._running.pop(task)
        self._running_views = None
        self.free_workers += 1
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
        return None if due == run.reserved_mib else due

    def _ask_growth(self, run: Attempt, age_s: float) -> None:
        """Update how much a flat peak may still grow. This is slow: repeat it only when the task is a quarter older."""
        if run.is_flat and self.estimator is not None and (run.growth_at_s is None or age_s >= 1.25 * run.growth_at_s):
            model = self._gpus[run.gpus[0]].facts.model
            run.growth = max(self.estimator.growth(run.ask.key, model, age_s), 1.0)
            run.growth_at_s = age_s

    def _tell_siblings(self, run: Attempt, peak_mib: int, age_s: float, now_s: float) -> None:
        key = run.ask.key
        if key is None or not key.family or self.estimator is None:
            return
        self.estimator.sibling(key, self._gpus[run.gpus[0]].facts.model, peak_mib, age_s)
        self._estimates.freshen(key.family, now_s)
        self._waiting_views = None

    # ---- GPUs ----

    def _open_after_memory(self, gpu: GpuState, now_s: float) -> None:
        """Open a GPU whose newest task shows memory; for policies that read free memory, after the warm-up."""
        if self.settings.policy in BOOKING:
            gpu.open()
        else:
            gpu.closed_until_s, gpu.view = now_s + self.settings.warm_up_s, None

    # ---- Ends ----

    def _teach(self, run: Attempt, kind: EndKind, coming: recover.Next, now_s: float) -> None:
        """Apply what an end shows to the waiting tasks of the same command or family."""
        ask = run.ask
        key = ask.key
        if key is None:
            return
        same = _same(ask)
        if kind in endings.MEMORY_KINDS:
            self._floors[same] = max(self._floors.get(same, (0, 0)), (coming.floor_mib, coming.had_room_mib))
            for other in self._waiting.values():
                if _same(other.ask) == same:
                    self._raise_floor(other)
                    self._waiting_views = None
        elif kind == "done":
            if ask.gpu_mem_mib is None:  # a user's number stays too small
                self._floors.pop(same, None)
            self._dead.done(ask, run.estimate)
        if coming.is_dead_alone:
            self._dead.died(ask, run.estimate, coming.had_room_mib)
            self._waiting_views = None
        if key.family:
            is_memory = kind in endings.MEMORY_KINDS
            if self._estimates.ended(key.family, now_s, is_memory=is_memory):
                self._estimates.freshen(key.family, now_s)
                self._waiting_views = None


def _again(run: Attempt, verdict: blame.Verdict, coming: recover.Next, now_s: float) -> Attempt:
    """Return an ended task as one that waits for its next attempt."""
    again = run.again(now_s=now_s, tries=coming.tries)
    if verdict.is_moved or verdict.kind in endings.MEMORY_KINDS:
        again.not_on = tuple(dict.fromkeys((*again.not_on, *run.gpus)))
    again.floor_mib = max(coming.floor_mib, again.floor_mib)
    again.had_room_mib = max(coming.had_room_mib, again.had_room_mib)
    again.wants_alone = coming.wants_alone or again.wants_alone
    return again


def _same(ask: TaskAsk) -> object:
    """Return a value that is equal for tasks that need the same memory; without a key, the task's own number."""
    key: TaskKey | None = ask.key
    if key is None:
        return ask.task
    return key.exact or (key.family, key.numbers), ask.gpu_mem_mib
