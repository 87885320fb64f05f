"""The state of one node: its GPUs, running tasks and waiting tasks. The live packer and the simulator both use it.

It has no clock, file or process: the caller reports each event with its time, and carries out the actions of `decide`.
Each decision is made by a function of a `PackView`, such as `place.decide`, so that a journal of views can be replayed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ..decision_records import Action, Ban, Decision, GiveUp, Hold, Move, Pause, Reserve, Resume, Start
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
from .gpu_state import OTHERS_WINDOW_S, GpuState, TaskState
from .place import MEASURED_S
from .policy import Decide, closes_gpu
from .room import capacity, usable
from .speeds import Speeds
from .waiting_estimates import Wait, WaitingEstimates


class Board:
    """The state of one node of a run."""

    def __init__(
        self,
        gpus: Sequence[GpuFacts],
        workers: int,
        settings: PackSettings,
        estimator: Estimator,
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
        self._running: dict[int, TaskState] = {}
        self._waiting: dict[int, Wait] = {}
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
    ) -> None:
        """Put a task at the end of the queue. `attempt`, `tries`, `floor_mib`: from an earlier job of the same run."""
        tries = tries or Tries()
        view = WaitingView(ask=ask, attempt=attempt, tries=tries, floor_mib=floor_mib, waits_since_s=now_s)
        self._enqueue(Wait(self._with_floor(view), self._next_seq))
        self._next_seq += 1

    def _with_floor(self, view: WaitingView) -> WaitingView:
        """Return the view of a task with the least need that attempts at the same command have shown."""
        floor_mib, had_room_mib = self._floors.get(_same(view.ask), (0, 0))
        if floor_mib <= view.floor_mib:
            return view
        return replace(view, floor_mib=floor_mib, had_room_mib=max(had_room_mib, view.had_room_mib))

    def put_back(self, task: int, now_s: float) -> None:
        """Return a started task to the queue, because a temporary problem (no free processes) prevented its start."""
        run = self._leave(task)
        self._enqueue(Wait(run.waiting, run.seq))

    def sample_task(self, task: int, memory_mib: Mapping[str, int], clients: int, now_s: float) -> None:
        """Record the memory of a running task on each GPU (UUID -> MiB) and its number of CUDA processes.

        Updates peak, plateau and reservation. A plateau informs the estimator, for the task's siblings.
        """
        run = self._running.get(task)
        if run is None:
            return  # the task ended while the sample was taken
        view = run.view
        memory = max((mib for uuid, mib in memory_mib.items() if uuid in view.gpus), default=0)
        if memory <= 0 and view.memory_mib is None:
            return  # the task has shown no memory yet
        run.memory = dict(memory_mib)
        peak = max(view.peak_mib or 0, memory)
        if not run.peaks or peak > run.peaks[-1][1]:
            run.peaks.append((now_s, peak))
        age_s = now_s - view.started_s
        was_flat = view.is_flat
        flat = was_flat or reservation.is_flat(run.peaks, age_s, now_s, self.settings.flat_after_s)
        is_elastic = view.is_elastic or elastic.takes_everything(
            source=view.estimate.source,
            memory_mib=memory,
            start_mib=run.start_mib,
            total_mib=run.gpus[0].facts.total_mib,
            age_s=age_s,
            peak_mib=peak,
            cap_mib=view.cap_mib,
            is_flat=flat,
        )
        self._ask_growth(run, age_s, flat)
        due = self._due(run, peak, flat, is_elastic)
        clients = max(clients, 1)
        now = (memory, peak, flat, is_elastic, clients, due)
        if now != (view.memory_mib, view.peak_mib, was_flat, view.is_elastic, view.clients, view.due_mib):
            run.view = replace(
                view, memory_mib=memory, peak_mib=peak, is_flat=flat, is_elastic=is_elastic, clients=clients,
                due_mib=due,
            )  # fmt: skip
            self._running_views = None
            for gpu in run.gpus:
                gpu.view = None
        if view.memory_mib is None:
            for gpu in run.gpus:
                if gpu.closed_by == task:
                    self._open_after_memory(gpu, now_s)
        if flat and not was_flat and not is_elastic:
            self._tell_siblings(run, peak, age_s, now_s)

    def rate_task(self, task: int, rate: Rate | None, now_s: float) -> None:
        """Record the rate of a running task since its neighbours last changed; None: not known."""
        self._change(task, rate=rate)

    def _change(self, task: int, **fields: Any) -> None:
        run = self._running.get(task)
        if run is not None and any(getattr(run.view, name) != value for name, value in fields.items()):
            run.view = replace(run.view, **fields)
            self._running_views = None

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
        self._leave(facts.task)
        if kind == "done":
            insort(self._durations, facts.now_s - run.view.started_s)
        if verdict.is_moved:
            coming = recover.after_move(run.gpus[0].facts.index, run.view.tries, run.floor_mib)
        else:
            largest = max((capacity(one.facts) for one in self._gpus.values() if not one.is_out), default=0)
            end = recover.End(
                kind, verdict.reason, verdict.had, run.view.tries, run.floor_mib, self.settings, largest
            )  # fmt: skip
            coming = recover.after(end)
        self._teach(run, kind, coming, facts.now_s)
        if coming.is_retried:
            self._enqueue(_again(run, verdict, coming, facts.now_s))
        return After(
            kind=kind,
            is_retried=coming.is_retried,
            why=coming.why,
            needs_mib=coming.floor_mib or None if kind in endings.MEMORY_KINDS else None,
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
        newest = [Wait(run.waiting, run.seq) for run in list(self._running.values())[-1:]]
        for wait in [self._waiting[task] for _, task in self._queue[:1]] or newest:
            view = self._estimates.update(wait)
            for model, estimate in view.estimates:
                if estimate.safe_mib is not None:
                    sizes[model] = max(sizes.get(model, 0), estimate.safe_mib, view.floor_mib, reservation.LEAST_MIB)
        for run in self._running.values():
            if run.view.is_flat or run.view.estimate.source in ("user", "exact"):
                model = run.gpus[0].facts.model
                sizes[model] = max(sizes.get(model, 0), run.view.reserved_mib)
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
            clients = max((run.view.clients for run in gpu.running.values()), default=1)
            found.append(min(usable(gpu.make_view(is_blind=self._is_blind)) // size, gpu.facts.clients_max // clients))
        return max(min(found), 1) if found else None

    def estimate(self, task: int, gpu_model: str) -> Estimate | None:
        """Return the estimate of a waiting task on a GPU model of this node."""
        return dict(self._estimates.update(self._waiting[task]).estimates).get(gpu_model)

    def find(self, task: int) -> RunningView | None:
        """Return a running task; None: it does not run."""
        run = self._running.get(task)
        return None if run is None else run.view

    def running(self) -> tuple[RunningView, ...]:
        if self._running_views is None:
            self._running_views = tuple(self._running[task].view for task in sorted(self._running))
        return self._running_views

    # ---- Decisions ----

    def would_act(self, ask: TaskAsk, now_s: float, *, floor_mib: int = 0) -> bool:
        """Return whether a decision now would start or give up a task that is not in the queue."""
        view = WaitingView(ask=ask, floor_mib=floor_mib, waits_since_s=now_s)
        wait = Wait(self._with_floor(view), self._next_seq)
        actions = self._policy(self.view(now_s, self._updated(wait))).actions
        return any(isinstance(one, Start | GiveUp) and one.task == ask.task for one in actions)

    def view(self, now_s: float, *further: WaitingView) -> PackView:
        """Return the view for a decision now. `further`: tasks that are not in the queue, as the last ones."""
        for gpu in self._gpus.values():
            if gpu.closed_by is not None and now_s >= gpu.closed_until_s:
                gpu.open()
        if self._has_speeds and self._speeds_version != self.speeds.version:
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
            exponent=self.speeds.exponent,
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
                case Ban():
                    self._ban(action)
                case Pause() | Resume():
                    self._set_paused(action.task, now_s, is_paused=isinstance(action, Pause))
                case Move():
                    self._change(action.task, is_moving=True)

    def resumed(self, task: int, now_s: float) -> None:
        self._set_paused(task, now_s, is_paused=False)

    def next_s(self, now_s: float) -> float | None:
        """Return when a decision can change without an event; None: never.

        It can change when a GPU opens again, a task grows old, memory may be flat, or a pause has lasted long enough.
        """
        times = [run.view.pause_s + self.settings.pause_max_s for run in self._running.values() if run.view.is_paused]
        if self._queue:
            if self._has_given_up:
                return now_s
            times += [gpu.closed_until_s for gpu in self._gpus.values() if gpu.closed_by is not None]
            patience_s = max(self.settings.patience_s, 2 * (self._median_s() or 0.0))
            window = self._queue[: self.settings.window]
            times += [self._waiting[task].view.waits_since_s + patience_s for _, task in window]
            flat_after_s = self.settings.flat_after_s
            times += [
                max(run.view.started_s, run.peaks[-1][0]) + flat_after_s
                for run in self._running.values()
                if run.peaks and not run.view.is_flat
            ]
            times += [run.view.started_s + MEASURED_S for run in self._running.values() if self._has_speeds]
        return min((at for at in times if at > now_s), default=None)

    def _median_s(self) -> float | None:
        return self._durations[len(self._durations) // 2] if self._durations else None

    # ---- The queue ----

    def _enqueue(self, wait: Wait) -> None:
        task = wait.view.ask.task
        self._waiting[task] = wait
        insort(self._queue, (wait.seq, task))
        self._waiting_views = None

    def withdraw(self, task: int) -> Wait:
        wait = self._waiting.pop(task)
        del self._queue[bisect_left(self._queue, (wait.seq, task))]
        self._waiting_views = None
        for gpu in self._gpus.values():
            if gpu.held_for == task:
                gpu.held_for, gpu.view = None, None
        return wait

    def _window(self) -> tuple[WaitingView, ...]:
        if self._waiting_views is None:
            tasks = self._queue[: self.settings.window]
            self._waiting_views = tuple([self._updated(self._waiting[task]) for _, task in tasks])
        return self._waiting_views

    def _updated(self, wait: Wait) -> WaitingView:
        """Return the view of a waiting task with current estimates, and why it is given up."""
        view = self._estimates.update(wait)
        why = self._dead.why_hopeless(view)
        if why != view.hopeless:
            view = wait.view = replace(view, hopeless=why)
        return view

    # ---- Speed ----

    def _with_speed(self, view: RunningView, gpu_model: str) -> RunningView:
        belief = self.speeds.belief(view.ask, gpu_model)
        alone = self.speeds.rate_alone(view.ask.key, gpu_model)
        if belief == view.belief and alone == view.rate_alone:
            return view
        return replace(view, belief=belief, rate_alone=alone)

    def _refresh_speeds(self) -> None:
        self._speeds_version = self.speeds.version
        for run in self._running.values():
            new = self._with_speed(run.view, run.gpus[0].facts.model)
            if new is not run.view:
                run.view = new
                self._running_views = None

    def _pairs_in(self, running: Sequence[RunningView], waiting: Sequence[WaitingView]) -> tuple[PairView, ...]:
        """Return what was measured of pairs of the tasks in a view."""
        version = self.speeds.pairs_version
        if not version:
            return ()  # the usual case: no pair was measured
        asks = [*(one.ask for one in running), *(one.ask for one in waiting)]
        keys = frozenset(ask.key for ask in asks if ask.key is not None)
        if self._pairs_of != (version, keys):
            self._pairs_of = version, keys
            self._pairs = self.speeds.pairs(keys)
        return self._pairs

    # ---- Running tasks ----

    def _start(self, action: Start, now_s: float) -> None:
        wait = self.withdraw(action.task)
        waiting = self._estimates.update(wait)
        gpus = [self._gpus[uuid] for uuid in action.gpus]
        estimates = dict(waiting.estimates)
        estimate = estimates.get(gpus[0].facts.model) or _UNKNOWN
        view = RunningView(
            ask=waiting.ask,
            gpus=action.gpus,
            started_s=now_s,
            attempt=waiting.attempt,
            tries=waiting.tries,
            estimate=estimate,
            reserved_mib=action.reserve_mib,
            cap_mib=action.cap_mib,
            is_alone=action.is_alone,
            is_elastic=estimate.is_elastic,
            clients=max(estimate.processes, 1),
            ends_s=None if estimate.seconds is None else now_s + estimate.seconds,
            can_move=self._can_move and len(gpus) == 1,
        )
        if self._has_speeds:
            view = self._with_speed(view, gpus[0].facts.model)
        run = TaskState(view, gpus, wait.seq, waiting)
        self._running[action.task] = run
        self._running_views = None
        self.free_workers -= 1
        closes = not action.is_alone and closes_gpu(self.settings, estimate)
        for gpu in gpus:
            for other in gpu.running.values():
                run.was_joined = other.was_joined = True
            gpu.running[action.task] = run
            gpu.view = None
            if closes:
                gpu.closed_by = action.task
                gpu.closed_until_s = now_s + (self.settings.settle_s if self._is_blind else self.settings.settle_max_s)
        self._last_gpu = gpus[-1].facts.index

    def _leave(self, task: int) -> TaskState:
        run = self._running.pop(task)
        self._running_views = None
        self.free_workers += 1
        for gpu in run.gpus:
            gpu.running.pop(task)
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
        is_growth = action.reserve_mib > run.view.reserved_mib
        run.view = replace(run.view, reserved_mib=action.reserve_mib, due_mib=None)
        self._running_views = None
        for gpu in run.gpus:
            gpu.view = None
        has_room = all(gpu.room_mib(is_blind=self._is_blind) >= 0 for gpu in run.gpus)
        if not is_growth or has_room:
            run.granted_mib = action.reserve_mib

    def _ban(self, action: Ban) -> None:
        pair = [self._running.get(task) for task in (action.task, action.other)]
        keys = [run.view.ask.key for run in pair if run is not None]
        if len(keys) == 2 and keys[0] is not None and keys[1] is not None:
            self.speeds.ban(keys[0], keys[1])

    def _set_paused(self, task: int, now_s: float, *, is_paused: bool) -> None:
        """Record that a task is paused or resumed; the rates of its neighbours have to be measured again."""
        run = self._running.get(task)
        if run is None:
            return
        ends_s = run.view.ends_s
        if run.view.is_paused and not is_paused and ends_s is not None:
            ends_s += now_s - run.view.pause_s
        run.view = replace(run.view, is_paused=is_paused, pause_s=now_s, ends_s=ends_s)
        for other in {number: one for gpu in run.gpus for number, one in gpu.running.items()}.values():
            other.view = replace(other.view, rate=None)
        self._running_views = None

    def _due(self, run: TaskState, peak_mib: int, is_flat: bool, is_elastic: bool) -> int | None:
        view = run.view
        if self.settings.policy not in BOOKING and not self.settings.uses_booking:
            return None
        due = reservation.due(
            source=view.estimate.source,
            reserved_mib=view.reserved_mib,
            peak_mib=peak_mib,
            is_flat=is_flat,
            is_elastic=is_elastic,
            is_alone=view.is_alone,
            growth=run.growth,
            guard=self.settings.guard,
            floor_mib=run.waiting.had_room_mib or run.floor_mib,
        )
        return None if due == view.reserved_mib else due

    def _ask_growth(self, run: TaskState, age_s: float, is_flat: bool) -> None:
        """Update how much a flat peak may still grow. This is slow: repeat it only when the task is a quarter older."""
        if is_flat and (run.growth_at_s is None or age_s >= 1.25 * run.growth_at_s):
            model = run.gpus[0].facts.model
            run.growth = max(self.estimator.growth(run.view.ask.key, model, age_s), 1.0)
            run.growth_at_s = age_s

    def _tell_siblings(self, run: TaskState, peak_mib: int, age_s: float, now_s: float) -> None:
        key = run.view.ask.key
        if key is None or not key.family:
            return
        self.estimator.sibling(key, run.gpus[0].facts.model, peak_mib, age_s)
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

    def _teach(self, run: TaskState, kind: EndKind, coming: recover.Next, now_s: float) -> None:
        """Apply what an end shows to the waiting tasks of the same command or family."""
        ask = run.view.ask
        key = ask.key
        if key is None:
            return
        same = _same(ask)
        if kind in endings.MEMORY_KINDS:
            self._floors[same] = max(self._floors.get(same, (0, 0)), (coming.floor_mib, coming.had_room_mib))
            for wait in self._waiting.values():
                if _same(wait.view.ask) == same:
                    wait.view = self._with_floor(wait.view)
                    self._waiting_views = None
        elif kind == "done":
            if ask.gpu_mem_mib is None:  # a user's number stays too small
                self._floors.pop(same, None)
            self._dead.done(ask, run.view.estimate)
        if coming.is_dead_alone:
            self._dead.died(ask, run.view.estimate, coming.had_room_mib)
            self._waiting_views = None
        if key.family:
            is_memory = kind in endings.MEMORY_KINDS
            if self._estimates.ended(key.family, now_s, is_memory=is_memory):
                self._estimates.freshen(key.family, now_s)
                self._waiting_views = None


_UNKNOWN = Estimate(point_mib=None, safe_mib=None, source="unknown")


def _again(run: TaskState, verdict: blame.Verdict, coming: recover.Next, now_s: float) -> Wait:
    """Return an ended task as one that waits for its next attempt."""
    old = run.waiting
    not_on = old.not_on
    if verdict.is_moved or verdict.kind in endings.MEMORY_KINDS:
        not_on = tuple(dict.fromkeys((*not_on, *run.view.gpus)))
    again = replace(
        old,
        attempt=old.attempt + 1,
        tries=coming.tries,
        floor_mib=max(coming.floor_mib, old.floor_mib),
        had_room_mib=max(coming.had_room_mib, old.had_room_mib),
        not_on=not_on,
        wants_alone=coming.wants_alone or old.wants_alone,
        waits_since_s=now_s,
        after=verdict.kind,
    )
    return Wait(again, run.seq)


def _same(ask: TaskAsk) -> object:
    """Return a value that is equal for tasks that need the same memory; without a key, the task's own number."""
    key: TaskKey | None = ask.key
    if key is None:
        return ask.task
    return key.exact or (key.family, key.numbers), ask.gpu_mem_mib
