"""Pack the tasks of one node of a live run: its board with the bookings of other launchers, events and learning.

The launcher passes in values: waiting tasks, samples, and ends of attempts. The packer returns actions. All times are
seconds of the launcher's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from ..core.errors import StateError
from .attempt import Attempt, signature_of
from .bookings import Booking, Bookings, BookingsBusyError
from .decision_records import Action, GiveUp, Hold, Pause, Reserve, Resume, Start
from .events import EventLog
from .group_speeds import GroupSpeeds
from .history_records import TaskRun
from .records import (
    BOOKING,
    After,
    EndFacts,
    GpuFacts,
    GpuSample,
    PackRequest,
    Source,
    TaskAsk,
    TaskKey,
    TaskSample,
    Tries,
)
from .rules import place
from .rules.board import Board
from .rules.endings import MEMORY_KINDS
from .rules.estimate.estimator import Estimator
from .rules.policy import Decide
from .rules.speeds import Speeds
from .run_totals import RunTotals
from .speed_records import PairRun, Rate

AGAIN_S = 1.0
"""For this time after a decision, tasks of the same command take the place of an ended one without a decision. Then a
decision is needed, because sizes are learned meanwhile."""
BLIND_S = 10.0
"""After this time without a sample, the driver counts as hanging."""
LEFT_S = 5.0
"""A node takes a task that it cannot start from the list of all nodes only if no node has taken it for this time. An
idle node takes it within a second, unless its launcher has just begun."""
UNSEEN_LEARNED = 25
"""Runs of a command without any sample are learned from up to this number; more of them add nothing."""


class Packer:
    """The packing of one node of a run."""

    def __init__(
        self,
        gpus: Sequence[GpuFacts],
        workers: int,
        request: PackRequest,
        *,
        estimator: Estimator,
        events: EventLog,
        bookings: Bookings | None,
        unix_s: float,
        sharing: str = "",
        software: str = "",
        say: Callable[[str], None],
        keep: Callable[[TaskRun], None],
        tell: Callable[[TaskKey, str, int, float], None] = lambda key, model, peak_mib, age_s: None,
        speeds: Speeds | None = None,
        keep_pair: Callable[[PairRun], None] = lambda pair: None,
        policy: Decide = place.decide,
    ) -> None:
        """Start with idle GPUs. `unix_s`: Unix time of the clock's second 0. `bookings` None: ignore other launchers.
        `say` writes a sentence to the job's log. `keep` and `keep_pair` write a run, and a measured pair, to
        the user's history. `tell` sends the size of a task with flat memory to the other nodes: key, GPU model, peak in
        MiB, age. `speeds` None: no speeds are known. `policy` makes the decisions."""
        self.request = request
        self.facts = {gpu.uuid: gpu for gpu in gpus}
        can_move = request.checkpoint_signal is not None
        self.speeds = Speeds() if speeds is None else speeds
        self.board = Board(gpus, workers, request.settings, estimator, self.speeds, can_move=can_move, policy=policy)
        self.estimator = estimator
        self.events = events
        self.bookings = bookings
        self.totals = RunTotals(gpus)
        self.running = self.board.attempts
        learns = request.learns
        self.groups = GroupSpeeds(
            self.speeds, self.facts, self.running, unix_s=unix_s, say=say,
            keep=lambda pair: keep_pair(pair) if learns else None,
        )  # fmt: skip
        self.waiting: dict[int, TaskAsk] = {}
        """In the order of arrival."""
        self.retried: set[int] = set()
        """Waiting tasks that have had an attempt."""
        self.held: dict[str, tuple[int, float]] = {}
        """GPU that is kept free -> (task, since when as Unix time)."""
        self._say = say
        self._keep = keep
        self._tell = tell
        self._unix_s = unix_s
        self._sharing, self._software = sharing, software
        self._is_due = True
        self._next_s: float | None = 0.0
        self._vacant: list[Attempt] = []
        """Tasks that were done since the last decision, whose place a task of the same command may take."""
        self._answers: dict[object, tuple[float, Start]] = {}
        """Signature of a task -> time and result of its last decision."""
        self._unseen: dict[str, int] = {}
        """Family -> number of its runs without any sample."""
        self._dry_runs: dict[str, float] = {}
        """Command -> size from a dry run with fake tensors, in MiB."""
        self._is_blind = False
        self._out: dict[str, str] = {}
        """GPU that is out of service -> reason."""
        self._sampled_s: float | None = None
        self._refused: tuple[int, float] | None = None
        """The next task of the list of all nodes, if it cannot start here, and since when."""

    # ---- Events ----

    def add(
        self, ask: TaskAsk, now_s: float, *, attempt: int = 1, tries: Tries | None = None, floor_mib: int = 0
    ) -> None:
        """Put a task at the end of the queue, see `Board.add`."""
        self.board.add(ask, now_s, attempt=attempt, tries=tries, floor_mib=floor_mib)
        self.waiting[ask.task] = ask
        self._is_due = True

    def takes(self, ask: TaskAsk, now_s: float, *, floor_mib: int = 0) -> bool:
        """Return whether this node takes the next task of a list that several nodes share.

        It takes what its GPUs can start now, because another node may be idle. It also takes a task if it has no other.
        A task that all nodes have left in the list for LEFT_S waits here, at most one for each GPU, so that smaller
        tasks go on behind it.
        """
        if not (self.running or self.waiting):
            return True
        is_new = self._refused is None or self._refused[0] != ask.task
        is_due = is_new or self._is_due or (self._next_s is not None and now_s >= self._next_s)
        if is_due and self.board.would_act(ask, now_s, floor_mib=floor_mib):
            self._refused = None
            return True
        if is_new:
            self._refused = ask.task, now_s
        if self._refused is None or now_s - self._refused[1] < LEFT_S or len(self.waiting) >= len(self.facts):
            return False
        self._refused = None
        return True

    def put_back(self, task: int, now_s: float) -> None:
        """Return a task to the queue whose start failed for a temporary reason."""
        its = self.running[task]
        self.board.put_back(task, now_s)
        self.waiting[task] = its.ask
        self.groups.changed(its.gpus, now_s)
        self._is_due = True

    def sampled(self, gpus: Mapping[str, GpuSample], tasks: Iterable[TaskSample], taken_s: float, now_s: float) -> None:
        """Record a sample of the node: its GPUs by UUID, and the running tasks. `taken_s`: time of the sample."""
        for one in tasks:
            self.sample_task(one, taken_s, now_s)
        for gpu in gpus.values():
            self.sample_gpu(gpu, now_s)
        self.totals.sample(gpus, self.running, taken_s)
        self._note_loads()
        self._sampled_s = taken_s

    def sample_task(self, sample: TaskSample, taken_s: float, now_s: float) -> None:
        """Record the memory of a running task."""
        if sample.memory_mib:
            self.board.sample_task(sample.task, sample.memory_mib, sample.clients, now_s)
        self._is_due = True

    def sample_gpu(self, gpu: GpuSample, now_s: float) -> None:
        """Record the figures of a GPU."""
        self.board.sample_gpu(
            gpu.uuid,
            now_s,
            used_mib=gpu.used_mib,
            sm_ratio=gpu.sm_ratio,
            dram_ratio=gpu.dram_ratio,
            problem=self._out.get(gpu.uuid) or gpu.problem,
        )
        self._is_due = True

    def sized_elsewhere(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> None:
        """Record the size of a task on another node of the run."""
        self.estimator.sibling(key, gpu_model, peak_mib, age_s)
        self.board.learned(key.family)
        self._is_due = True

    def is_unknown(self, ask: TaskAsk) -> bool:
        """Return whether the size of a task is unknown, or known only from running tasks of its script."""
        models = {facts.model: facts.total_mib for facts in self.facts.values()}
        found = (self.estimator.estimate(ask, model, total) for model, total in models.items())
        return any(one.source in ("unknown", "sibling") for one in found)

    def offered(self, key: TaskKey, source: Source, mib: float) -> None:
        """Record the size of a command from a formula or a dry run, in MiB."""
        if source == "probe":
            self._dry_runs[key.exact] = mib
        for model in {facts.model for facts in self.facts.values()}:
            self.estimator.offer(key, model, source, mib)
        self.board.learned(key.family)
        self._is_due = True

    def rated(self, task: int, rate: Rate | None, now_s: float) -> None:
        """Record the rate of a running task since its neighbours last changed; None: not known yet."""
        its = self.running.get(task)
        if its is None:
            return
        self.board.rate_task(task, rate, now_s)
        self.groups.rated(its, rate)
        for family in self.groups.take_families():
            self.board.learned(family)
        self._is_due = True

    def _note_loads(self) -> None:
        """Record the loads of tasks that are alone."""
        for its in self.running.values():
            if len(its.gpus) == 1 and its.ask.key is not None and (load := its.new_load()) is not None:
                self.speeds.note_load(its.ask.key, self.facts[its.gpus[0]].model, load)
                self.board.learned(its.ask.key.family)

    def speed_ratio(self, task: int) -> float | None:
        """Return the speed of a running task over that of its command alone; None: not known."""
        view = self.board.find(task)
        return None if view is None else view.render_running().speed_ratio

    def rate_alone(self, task: int) -> Rate | None:
        """Return the rate that the command of a running task has alone; None: not known."""
        view = self.board.find(task)
        return None if view is None else view.rate_alone

    def resumed(self, task: int, now_s: float) -> None:
        """Record that a paused task was resumed without a decision of the packer."""
        if task in self.running:
            self.board.resumed(task, now_s)
            self._regroup(task, now_s)
            self._is_due = True

    def pause_no_more(self) -> None:
        """Pause no task from now on; harmful pairs are still kept apart."""
        self.board.settings = replace(self.board.settings, undo="off")

    def check_driver(self, now_s: float) -> None:
        """Check the age of the last sample: a driver that hangs gives no figures. Call it about once a second."""
        is_blind = now_s - (self._sampled_s or 0.0) > BLIND_S
        if is_blind != self._is_blind:
            self._is_blind, self._is_due = is_blind, True
            self.board.blind(now_s, is_blind=is_blind)
            if is_blind:
                self._say("the driver gives no figures of the GPUs; until it does, only booked memory counts")

    def out_of_service(self, uuid: str, why: str, now_s: float) -> None:
        """Take a GPU out of service: no further task starts there."""
        self._out[uuid] = why
        self.board.sample_gpu(uuid, now_s, used_mib=None, problem=why)
        self._is_due = True

    def ended(self, facts: EndFacts, unix_s: float, cpu_cores: float | None = None) -> After:
        """Record the end of a running task, and return what follows. `cpu_cores`: mean number of cores that it used."""
        its = self.running[facts.task]
        after = self.board.ended(facts)
        self.groups.changed(its.gpus, facts.now_s)
        self._forget_rates(its.gpus, facts.now_s)
        self.totals.ended(its)
        if after.kind == "device":
            self._out.update(dict.fromkeys(its.gpus, after.why))
        for uuid in after.returned:
            self._out.pop(uuid, None)
        self._learn(its, facts, unix_s, cpu_cores)
        if after.is_retried:
            self.waiting[facts.task] = its.ask
            self.retried.add(facts.task)
        elif after.kind == "done" and its.is_plain:
            self._vacant.append(its)
        self._is_due = True
        return after

    @property
    def is_out_of_gpus(self) -> bool:
        return len(self._out) == len(self.facts)

    def _forget_rates(self, gpus: Sequence[str], now_s: float) -> None:
        """Discard the rates of the tasks on these GPUs, because their neighbours have changed."""
        for its in self._on(gpus):
            self.board.rate_task(its.ask.task, None, now_s)

    def withdraw(self, task: int) -> None:
        if self.waiting.pop(task, None) is not None:
            self.retried.discard(task)
            self.board.withdraw(task)

    def sentences(self, folder: str, now_s: float) -> list[str]:
        """Return the summary at the end of the run. `folder`: of the run, as its user writes it."""
        return self.totals.sentences(folder, self.groups.finish(now_s))

    # ---- Decisions ----

    def limit(self, per_gpu: int | None) -> None:
        """Limit the tasks on each GPU from the next start on, see `Board.limit`."""
        self.board.limit(per_gpu)
        self._is_due = True

    def decide(self, now_s: float) -> tuple[Action, ...]:
        """Return the actions that are due. The caller carries them out."""
        if (found := self._repeat(now_s)) is not None:
            return (found,)
        if not self._is_due and (self._next_s is None or now_s < self._next_s):
            return ()
        self._is_due = False
        self._vacant.clear()
        if self.bookings is None:
            return self._decide(now_s)
        try:
            with self.bookings.section():
                self._ask_others(self.bookings)
                actions = self._decide(now_s)
                self._book(self.bookings)
                return actions
        except BookingsBusyError:
            self._is_due = True  # try again at the next call
            return ()

    def _decide(self, now_s: float) -> tuple[Action, ...]:
        view, decision = self.board.decide(now_s)
        self._note(decision.actions, now_s)
        self.events.decide(view, decision)
        self._next_s = self.board.next_s(now_s)
        return decision.actions

    def _ask_others(self, bookings: Bookings) -> None:
        try:
            for uuid, other in bookings.others().items():
                self.board.elsewhere(uuid, other.booked_mib, other.memory_mib, other.clients)
        except StateError as error:
            self._go_on_alone(error)

    def _book(self, bookings: Bookings) -> None:
        if self.bookings is None:
            return
        try:
            bookings.write(self._booked())
        except StateError as error:
            self._go_on_alone(error)

    def _go_on_alone(self, error: StateError) -> None:
        """Continue without the bookings of other launchers, whose folder cannot be used. Their used memory still
        counts, since the driver shows it."""
        self._say(f"{error}; the bookings of your other launchers on this node are ignored from now on")
        self.bookings = None
        for uuid in self.facts:
            self.board.elsewhere(uuid, 0, 0, 0)

    def _note(self, actions: Sequence[Action], now_s: float) -> None:
        for action in actions:
            match action:
                case Start():
                    self._start(action, now_s)
                case Reserve():
                    self._reserve(action, now_s)
                case GiveUp():
                    self._leave_queue(action.task)
                case Hold(task=None):
                    self.held.pop(action.gpu, None)
                case Hold(task=int(task)):
                    self.held[action.gpu] = (task, round(self._unix_s + now_s, 3))
                case Pause() | Resume():
                    self._regroup(action.task, now_s)

    def _start(self, action: Start, now_s: float) -> None:
        is_first = action.task not in self.retried
        self._leave_queue(action.task)
        its = self.running[action.task]
        self._begin(its, now_s)
        self.totals.started(now_s if is_first else None)
        if its.is_plain:
            self._answers[its.signature] = (now_s, action)

    def _leave_queue(self, task: int) -> TaskAsk:
        """Remove a task that starts or ends from the queue, with the holds for it: these end without an action."""
        self.retried.discard(task)
        if self.held:
            self.held = {uuid: hold for uuid, hold in self.held.items() if hold[0] != task}
        return self.waiting.pop(task)

    def _regroup(self, task: int, now_s: float) -> None:
        self.groups.changed(self.running[task].gpus, now_s)

    def _begin(self, its: Attempt, now_s: float) -> None:
        self.groups.changed(its.gpus, now_s)
        self._forget_rates(its.gpus, now_s)

    def _reserve(self, action: Reserve, now_s: float) -> None:
        its = self.running.get(action.task)
        if its is None:
            return
        key = its.ask.key
        if action.is_flat and not its.is_told and key is not None and its.peak_mib:
            its.is_told = True
            self._tell(key, self.facts[its.gpus[0]].model, its.peak_mib, now_s - its.started_s)

    def _on(self, gpus: Sequence[str]) -> list[Attempt]:
        return [one for one in self.running.values() if not set(gpus).isdisjoint(one.gpus)]

    def _booked(self) -> dict[str, Booking]:
        """Return the booking of this launcher on each GPU."""
        found = dict.fromkeys(self.facts, Booking())
        for its in self.running.values():
            for uuid in its.gpus:
                before = found[uuid]
                memory = its.memory.get(uuid, 0)
                found[uuid] = replace(
                    before,
                    booked_mib=before.booked_mib + max(its.reserved_mib, memory),
                    memory_mib=before.memory_mib + memory,
                    clients=before.clients + its.clients,
                    tasks=before.tasks + 1,
                )
        for uuid, (task, since) in self.held.items():
            found[uuid] = replace(found[uuid], held_for=task, held_since=since)
        return found

    def _repeat(self, now_s: float) -> Start | None:
        """Return a start of the first waiting task in the place of a finished task of the same family, if there is one.

        A full decision would have the same result: it was made recently for this family, both tasks have the same
        estimate, and no other task has to start first. The booking does not change.
        """
        if not self._vacant or self.request.settings.policy not in BOOKING or self.request.settings.order != "fifo":
            return None
        if self.retried or self.held or any(one.is_paused for one in self.running.values()):
            self._vacant.clear()
            return None
        task = next(iter(self.waiting), None)
        its = self._vacant.pop()
        if task is None:
            return None
        ask = self.waiting[task]
        decided_s, answer = self._answers.get(its.signature, (0.0, None))
        if (
            answer is None
            or now_s - decided_s > AGAIN_S
            or (ask.key != its.ask.key and not self._is_alike(ask, its))
            or signature_of(ask) != its.signature
            or not self._suits_as(ask, its)
            or (answer.reserve_mib, answer.cap_mib) != (its.reserved_mib, its.cap_mib)
        ):
            return None
        most = self.board.settings.max_per_gpu
        if most is not None and len(self._on(its.gpus)) >= most:
            return None  # the limit has been lowered
        start = Start(
            task=task,
            gpus=its.gpus,
            reserve_mib=its.reserved_mib,
            cap_mib=its.cap_mib,
            why=f"in the place of task {its.ask.task}",
        )
        self.board.apply((start,), now_s)
        del self.waiting[task]
        self._begin(self.running[task], now_s)
        self.totals.started(now_s)
        self.events.repeat(now_s, its.ask.task, task)
        return start

    def _is_alike(self, ask: TaskAsk, its: Attempt) -> bool:
        """Return whether a waiting task has the same estimate as a finished one."""
        found, before = self.board.estimate(ask.task, self.facts[its.gpus[0]].model), its.estimate
        return (
            found is not None
            and before is not None
            and ((found.source, found.safe_mib, found.floor_mib) == (before.source, before.safe_mib, before.floor_mib))
        )

    def _suits_as(self, ask: TaskAsk, its: Attempt) -> bool:
        """Return whether a waiting task suits the neighbours of a finished one equally well."""
        if self.request.settings.policy != "gain":
            return True
        model = self.facts[its.gpus[0]].model
        if self.speeds.load(ask, model) != self.speeds.load(its.ask, model):
            return False
        others = self._on(its.gpus)
        if self.speeds.is_new(ask, (model,)) and len(others) < 2:
            return False  # one of the two may be left alone
        return not any(self.speeds.is_refused(ask.key, one.ask.key) for one in others)

    # ---- Learning ----

    def _learn(self, its: Attempt, facts: EndFacts, unix_s: float, cpu_cores: float | None) -> None:
        """Let the estimator learn from an attempt, and write it to the user's history if it shows its memory."""
        key = its.ask.key
        is_seen = bool(its.peak_mib)
        is_cut = its.kind in ("saved", "unfinished")
        if key is None or not facts.was_started or its.kind == "not started" or (is_cut and not is_seen):
            return
        is_own = its.kind in MEMORY_KINDS
        if not is_seen and not is_own:
            count = self._unseen[key.family] = self._unseen.get(key.family, 0) + 1
            if count > UNSEEN_LEARNED:
                return
        run = its.run(
            facts,
            self.facts[its.gpus[0]],
            unix_s=unix_s,
            sharing=self._sharing,
            software=self._software,
            cpu_cores=cpu_cores,
            probe_mib=self._dry_runs.get(key.exact),
        )
        self.estimator.learn(run)
        self.speeds.learn(run)
        if is_seen:
            self.totals.learned.add(key.exact)
        if self.request.learns and (is_seen or is_own):
            self._keep(run)
