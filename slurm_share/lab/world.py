"""Simulate tasks, GPUs and time with discrete events, and decide with the code of live runs.

Each node has a `Board` like a live launcher. The world passes simulated samples to it, calls `decide` after events,
and carries out the actions. Between two events all speeds are constant.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from ..core.errors import SlurmShareError
from ..node.gpu_figures import Activity, GpuLoad
from ..packing.decider import Decider
from ..packing.decision_records import GiveUp, Move, Pause, Reserve, Resume, Start
from ..packing.events import EventLog
from ..packing.history_records import TaskRun
from ..packing.records import BOOKING, EndFacts, GpuFacts, TaskAsk, TaskKey
from ..packing.rules.board import LEFT_S, Board
from ..packing.rules.estimate.estimator import Estimator
from ..packing.rules.speeds import Speeds
from ..packing.speed_records import PairRun
from . import thesis_policies, truth
from .records import Assumptions, ComparedPolicy, Result, SimTask, Trace
from .sim_node import BEGIN_UNIX_S, SimAttempt, SimGpu, SimNode, TaskRates, report_times_s
from .totals import WORKERS_PER_GPU, Totals

RESERVE_RATIO = 0.02
"""Part of each GPU that is kept back for the driver and fragmentation."""
TICK_S = 5.0
"""Interval of samples of SM activity while tasks wait and the mean changes."""
SAMPLE_S = 1.0
RESAMPLE_S = 5.0
"""Before a decision, the memory of a task is sampled again if the last sample is older than this. Sampling every second
would give the same result, since memory is constant between two growths."""
RESAMPLE_FLAT_S = 60.0
"""The same for a task whose memory was flat at the last sample."""
ECC_ERROR = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
EVENTS_MOST = 2000
"""Most events per task; a simulation with more events is taken to be endless."""
_ARRIVE, _END, _GROW, _SAMPLE, _WAKE, _TICK, _RATES = range(7)


class Simulation:
    """One simulation: `run` plays a trace to its end."""

    def __init__(
        self,
        trace: Trace,
        policy: ComparedPolicy,
        assumed: Assumptions,
        seed: int,
        *,
        history: Iterable[TaskRun] = (),
        pairs: Iterable[PairRun] = (),
        has_bars: bool = False,
        events: EventLog | None = None,
    ) -> None:
        """Start with idle GPUs. `history`, `pairs`: the user's history. `has_bars`: collect the bars of a picture.
        `events`: of all decisions; None: there is none."""
        history = tuple(history)
        self._trace = trace = truth.realised(trace, assumed, seed)
        self._policy = policy
        self._assumed = assumed
        self._random = random.Random(f"{seed} samples")
        self._order = random.Random(f"{seed} nodes")
        self._interference = truth.Interference(assumed, seed, trace.speeds)
        self._tasks = {task.task: task for task in trace.tasks}
        self._loads = {task.task: truth.TrueLoad(task, assumed) for task in trace.tasks}
        self._steps = {task.task: truth.steps(task, assumed) for task in trace.tasks}
        self._estimator: Estimator
        if policy.knows_sizes:
            self._estimator = truth.Oracle(trace.tasks)
        elif policy.estimates:
            self._estimator = Estimator(history, now=BEGIN_UNIX_S)
        else:
            self._estimator = truth.NoEstimates()
        self._settings = policy.settings
        self._is_gain = policy.settings.policy == "gain"
        self._is_rated = self._is_gain and assumed.has_rates
        self._rates_random = random.Random(f"{seed} rates")
        knows_speeds = self._is_gain and policy.estimates
        self._speeds = Speeds(history, pairs, now=BEGIN_UNIX_S) if knows_speeds else Speeds()
        self._totals = Totals(trace, policy, assumed, seed, has_bars=has_bars)
        self._events = EventLog(None, "", BEGIN_UNIX_S) if events is None else events
        self._nodes = [self._node(number) for number in range(trace.nodes)]
        self._gpus = [gpu for node in self._nodes for gpu in node.gpus.values()]
        self._threshold = policy.settings.sm_guard if policy.settings.policy in BOOKING else policy.settings.smact_max
        """SM activity at which the policy's decision changes; None: it does not depend on SM activity."""
        if policy.settings.policy == "exclusive":
            self._threshold = None
        self._unclaimed: deque[SimTask] = deque()
        self._asks_s = -math.inf
        """When the nodes are asked again about the next task, which none of them took."""
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        """(time, kind, number, what happens then); events of the same time are processed by kind."""
        self._count = 0
        self._now = 0.0
        self._left_s: dict[int, float] = {}
        """Task -> remaining work of a task that saved its state to continue on another GPU."""

    def _node(self, number: int) -> SimNode:
        trace = self._trace
        gpus = [
            SimGpu(
                GpuFacts(
                    uuid=f"GPU-{number}-{index}",
                    index=index,
                    model=kind.model,
                    total_mib=kind.mib,
                    reserve_mib=math.ceil(kind.mib * RESERVE_RATIO),
                    is_mps=self._assumed.sharing == "mps",
                ),
                number * trace.gpus + index,
                [0.0] * len(self._assumed.power_exponents),
                [0.0] * len(self._assumed.power_exponents),
                kind.speed,
            )
            for index, kind in enumerate(trace.node_gpus)
        ]
        board = Board(
            [gpu.facts for gpu in gpus],
            WORKERS_PER_GPU * trace.gpus,
            self._settings,
            self._estimator,
            self._speeds,
            policy=thesis_policies.decide_at_random if self._policy.is_random else thesis_policies.decide,
            unix_s=BEGIN_UNIX_S,
            sharing=self._assumed.sharing,
            runs=self._totals.runs,
            pairs=self._totals.pairs,
        )
        return SimNode(Decider(board, self._events), gpus)

    # ---- Events ----

    def run(self) -> Result:
        """Process all events and return the result. Raises SimulationError if there are too many events."""
        for task in self._trace.tasks:
            self._push(task.submitted_s, _ARRIVE, partial(self._unclaimed.append, task))
        for time, index in self._trace.breaks:
            self._push(time, _END, partial(self._break, self._gpus[index]))
        if self._trace.tasks:
            self._now = self._trace.tasks[0].submitted_s
            for gpu in self._gpus:
                gpu.updated_s = self._now
                gpu.points = deque([(self._now, 0.0, 0.0)])
                self._set_watts(gpu)
        most = EVENTS_MOST * (len(self._trace.tasks) + 10)
        heap = self._heap
        events = 0
        while heap:
            time = heap[0][0]
            self._now = max(self._now, time)
            while heap and heap[0][0] <= self._now:
                *_, happen = heapq.heappop(heap)
                happen()
                events += 1
            self._claim()
            for node in self._nodes:
                if node.decide_now:
                    self._decide(node)
            if events > most:
                raise SimulationError(
                    f"the simulation of {self._trace.name} with {self._policy.name} has had {events} events at "
                    f"{self._now:.0f} s and does not come to an end: {self._left()}"
                )
        self._now = max(self._totals.last_end, self._now if not self._trace.tasks else self._trace.tasks[0].submitted_s)
        # The energy integral ends with the last task; later events (a tick) do not count.
        self._settle(self._gpus)
        return self._totals.result(self._gpus)

    def _left(self) -> str:
        left = [task for task, one in self._totals.outcomes.items() if one.end_s is None]
        return f"{len(left)} tasks are left, task {left[0]} among them" if left else "no task is left"

    def _push(self, time: float, kind: int, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, kind, self._count, happen))

    def _claim(self) -> None:
        """Give submitted tasks to nodes as launchers take them, in the order of the list.

        A launcher takes one task after the other for as long as it can start them. Which one is the first is chance:
        jobs do not begin on all nodes at the same moment, and taking a task is faster than that.
        """
        if len(self._nodes) == 1:
            while self._unclaimed:
                self._give(self._nodes[0], _ask(self._unclaimed.popleft()))
            return
        for node in self._order.sample(self._nodes, len(self._nodes)) if self._unclaimed else ():
            while self._unclaimed and node.board.takes(ask := _ask(self._unclaimed[0]), self._now):
                self._unclaimed.popleft()
                self._give(node, ask)
                self._decide(node)
        may_wait = any(len(one.board.waiting) < self._trace.gpus for one in self._nodes)
        if self._unclaimed and may_wait and self._asks_s <= self._now:
            self._asks_s = self._now + LEFT_S
            self._push(self._asks_s, _WAKE, lambda: None)

    def _give(self, node: SimNode, ask: TaskAsk) -> None:
        node.board.add(ask, self._now)
        node.decide_now = True

    # ---- Decisions ----

    def _decide(self, node: SimNode) -> None:
        node.decide_now = False
        if not self._has_decisions(node):
            return
        now = self._now
        if self._is_rated:
            self._tell_rates(node.running.values())
        for attempt in node.running.values():
            quiet = attempt.sampled_s - attempt.history[-1][0] > self._settings.flat_after_s
            if now - attempt.sampled_s >= (RESAMPLE_FLAT_S if quiet else RESAMPLE_S):
                self._sample(attempt)
        for gpu in node.gpus.values():
            used_mib = None if self._is_missing() else gpu.memory_mib
            sm_ratio = None if self._is_missing() else self._sm_true(gpu)
            node.board.sample_gpu(gpu.facts.uuid, now, used_mib=used_mib, sm_ratio=sm_ratio)
        self._totals.decisions += 1
        while actions := node.decider.decide(now):
            for action in actions:
                match action:
                    case Start():
                        self._start(node, action)
                    case GiveUp():
                        outcome = self._totals.outcomes[action.task]
                        outcome.kind, outcome.end_s = action.outcome, now
                    case Reserve():
                        self._reserve(node, action)
                    case Pause() | Resume():
                        self._pause(node, action)
                    case Move():
                        self._move(node, action)
        self._plan(node)

    def _has_decisions(self, node: SimNode) -> bool:
        """Return whether tasks wait, or the rates of running tasks may lead to an action."""
        return bool(node.board.waiting or (self._is_rated and node.running))

    def _plan(self, node: SimNode) -> None:
        """Schedule the next decision that is due without an event."""
        if not self._has_decisions(node):
            return
        at = node.board.next_s(self._now)
        if at is not None and at < node.wake_s:
            node.wake_s = max(at, self._now + 0.01)
            node.wake_version += 1
            self._push(node.wake_s, _WAKE, partial(self._wake, node, node.wake_version))
        if self._threshold is not None:
            node.hot = self._hot(node)
            self._want_tick(node)

    def _wake(self, node: SimNode, version: int) -> None:
        if version == node.wake_version:
            node.wake_s = math.inf
            node.decide_now = True

    def _want_tick(self, node: SimNode) -> None:
        """Schedule a tick while the mean SM activity of a GPU changes."""
        if not node.is_ticking and any(
            gpu.points[-1][0] > self._now - self._assumed.window_s for gpu in node.gpus.values()
        ):
            node.is_ticking = True
            self._push(self._now + TICK_S, _TICK, partial(self._tick, node))

    def _tick(self, node: SimNode) -> None:
        node.is_ticking = False
        if not node.board.waiting or self._threshold is None:
            return
        if self._hot(node) != node.hot:
            node.decide_now = True
        else:
            self._want_tick(node)

    def _hot(self, node: SimNode) -> tuple[bool, ...]:
        """Return which GPUs are above the policy's limit of SM activity."""
        limit = self._threshold or 1.0
        return tuple(self._sm_true(gpu) > limit for gpu in node.gpus.values())

    def _sm_true(self, gpu: SimGpu) -> float:
        mean = gpu.mean_sm(self._now, self._assumed.window_s) + gpu.noise
        return min(1.0, max(0.0, mean)) if gpu.running else max(0.0, mean - gpu.noise)

    def _is_missing(self) -> bool:
        ratio = self._assumed.missing_ratio
        return ratio > 0.0 and self._random.random() < ratio

    # ---- Tasks ----

    def _reserve(self, node: SimNode, action: Reserve) -> None:
        attempt = node.running[action.task]
        if action.reserve_mib < attempt.granted_mib or all(
            sum(one.its.reserved_mib for one in gpu.running) <= (gpu.facts.total_mib or 0) * (1.0 - RESERVE_RATIO)
            for gpu in attempt.gpus
        ):
            attempt.granted_mib = action.reserve_mib

    def _start(self, node: SimNode, start: Start) -> None:
        now = self._now
        task = self._tasks[start.task]
        its = node.board.running[start.task]
        gpus = [node.gpus[uuid] for uuid in start.gpus]
        attempt = SimAttempt(task, self._loads[task.task], its, tuple(gpus))
        attempt.remaining_s = self._left_s.pop(task.task, attempt.remaining_s)
        if self._is_rated:
            attempt.rates = TaskRates(self._assumed, self._settings.rate_window_s, self._rates_random)
        node.running[task.task] = attempt
        outcome = self._totals.outcomes[task.task]
        outcome.attempts = its.attempt
        if outcome.first_start_s is None:
            outcome.first_start_s = now
        self._settle(gpus)
        for gpu in gpus:
            gpu.running.append(attempt)
        self._respeed(gpus)
        for age, mib in self._steps[task.task]:
            self._push(now + age, _GROW, partial(self._grow, attempt, mib))
        if any(gpu.is_broken for gpu in gpus):
            self._push(now + self._assumed.context_s, _END, partial(self._broken, attempt))

    def _settle(self, gpus: Iterable[SimGpu]) -> None:
        for gpu in gpus:
            self._totals.paused_s += gpu.settle(self._now)

    def _respeed(self, gpus: Iterable[SimGpu]) -> None:
        """Update the speeds and ends of the tasks on these GPUs. Tasks of several GPUs have no neighbours."""
        now = self._now
        for gpu in gpus:
            active = [attempt for attempt in gpu.running if not attempt.is_paused]
            speeds = self._interference.speeds([attempt.load for attempt in active])
            gpu.stp = sum(speeds) if len(speeds) > 1 else None
            sm = 0.0
            for attempt in gpu.running:
                attempt.speed = 0.0
                attempt.version += 1
            for attempt, relative in zip(active, speeds, strict=True):
                speed = attempt.speed = relative * min(one.speed for one in attempt.gpus)
                sm += attempt.load.sm * relative
                end = partial(self._done, attempt, attempt.version)
                self._push(now + max(0.0, attempt.remaining_s) / speed, _END, end)
                self._plan_late(attempt)
            if self._is_rated:
                self._restart_rates(gpu)
            gpu.sm = min(1.0, sm)
            gpu.points.append((now, gpu.integral, gpu.sm))
            gpu.noise = self._random.uniform(-1.0, 1.0) * self._assumed.sm_noise
            self._set_watts(gpu)

    def _set_watts(self, gpu: SimGpu) -> None:
        gpu.watts = [truth.watts(gpu.sm, exponent, self._assumed) for exponent in self._assumed.power_exponents]

    def _plan_late(self, attempt: SimAttempt) -> None:
        """Schedule the late rise of a task's memory, which comes after a part of its work."""
        late = attempt.task.late_at_ratio
        if late is None or attempt.memory_mib >= attempt.task.late_mib:
            return
        left = attempt.remaining_s - attempt.task.work_s * (1.0 - late)
        if left >= 0.0:
            self._push(self._now + left / attempt.speed, _GROW, partial(self._grow, attempt, -attempt.version))

    def _grow(self, attempt: SimAttempt, to_mib: int) -> None:
        if attempt.version < 0:
            return  # it has ended
        if to_mib <= 0:  # the late rise, scheduled for a speed that may have changed since
            if -to_mib != attempt.version:
                return
            to_mib = attempt.task.late_mib
        more = to_mib - attempt.memory_mib
        if more <= 0:
            return
        cap = attempt.its.cap_mib
        if (cap is not None and to_mib > cap) or any(
            gpu.memory_mib + more > (gpu.facts.total_mib or 0) for gpu in attempt.gpus
        ):
            self._out_of_memory(attempt, more)
            return
        attempt.memory_mib = to_mib
        attempt.history.append((self._now, to_mib))
        for gpu in attempt.gpus:
            gpu.memory_mib += more
        self._push(math.floor(self._now) + SAMPLE_S, _SAMPLE, partial(self._sampled, attempt))

    def _sampled(self, attempt: SimAttempt) -> None:
        """Sample the memory of a task after its first or a later growth."""
        if attempt.version < 0:
            return
        is_first = attempt.its.peak_mib is None
        if not self._sample(attempt) and self._assumed.missing_ratio < 1.0:  # a launcher tries again a second later
            self._push(self._now + SAMPLE_S, _SAMPLE, partial(self._sampled, attempt))
        node = self._node_of(attempt)
        if is_first:
            node.decide_now = True
        else:
            self._plan(node)

    def _sample(self, attempt: SimAttempt) -> bool:
        """Pass on a sample of a task's memory; False: it is missing."""
        if not attempt.memory_mib or self._is_missing():
            return False
        attempt.sampled_s = self._now
        memory = {gpu.facts.uuid: attempt.memory_mib for gpu in attempt.gpus}
        self._node_of(attempt).board.sample_task(attempt.task.task, memory, 1, self._now)
        return True

    def _node_of(self, attempt: SimAttempt) -> SimNode:
        return self._node_of_gpu(attempt.gpus[0])

    def _node_of_gpu(self, gpu: SimGpu) -> SimNode:
        return self._nodes[gpu.index // self._trace.gpus]

    # ---- Rates and their actions ----

    def _tell_rates(self, attempts: Iterable[SimAttempt]) -> None:
        for attempt in attempts:
            rates = attempt.rates
            if rates is None or (rates.is_reported and self._now < rates.next_s):
                continue
            rate = rates.rate(self._now)
            rates.is_reported = True
            if rate != rates.reported:
                rates.reported = rate
                self._node_of(attempt).board.rate_task(attempt.task.task, rate)

    def _restart_rates(self, gpu: SimGpu) -> None:
        gpu.epoch += 1
        gpu.changed_s = self._now
        for attempt in gpu.running:
            if attempt.rates is not None:
                attempt.rates.restart(self._now, attempt.speed)
        self._tell_rates(gpu.running)
        self._plan_rates(gpu)

    def _plan_rates(self, gpu: SimGpu) -> None:
        """Schedule the next time at which the board gets the rates of a GPU's tasks."""
        times = report_times_s(
            gpu.changed_s,
            self._settings.rate_window_s,
            is_alone=gpu.stp is None,
            has_gaps=self._assumed.missing_ratio > 0.0,
        )
        at = next((time for time in times if time > self._now), None) if gpu.running else None
        if at is not None:
            self._push(at, _RATES, partial(self._rates_due, gpu, gpu.epoch))

    def _rates_due(self, gpu: SimGpu, epoch: int) -> None:
        if epoch == gpu.epoch:
            self._node_of_gpu(gpu).decide_now = True  # the decision passes the rates to the board
            self._plan_rates(gpu)

    def _pause(self, node: SimNode, action: Pause | Resume) -> None:
        attempt = node.running[action.task]
        self._settle(attempt.gpus)
        attempt.is_paused = isinstance(action, Pause)
        self._respeed(attempt.gpus)

    def _move(self, node: SimNode, action: Move) -> None:
        """End a task that moves to another GPU; it keeps its work if it can save its state."""
        attempt = node.running[action.task]
        self._settle(attempt.gpus)
        if self._assumed.can_move:
            self._left_s[action.task] = attempt.remaining_s
        self._end(attempt, EndFacts(task=action.task, now_s=self._now, code=0))

    def _out_of_memory(self, attempt: SimAttempt, more: int) -> None:
        if attempt.memory_mib + more > attempt.granted_mib:
            self._totals.oom_own += 1
        else:
            self._totals.oom_neighbour += 1
        log = (
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {more}.00 MiB. GPU 0 has a total capacity "
            f"of {(attempt.gpus[0].facts.total_mib or 0) / 1024:.2f} GiB. Including non-PyTorch memory, this process "
            f"has {attempt.memory_mib}.00 MiB memory in use.\n"
        )
        self._end(attempt, EndFacts(task=attempt.task.task, now_s=self._now, code=1, log_tail=log.encode()))

    def _break(self, gpu: SimGpu) -> None:
        """Break a GPU: its tasks end now, and any later one at its first use of it."""
        gpu.is_broken = True
        for attempt in list(gpu.running):
            self._broken(attempt)

    def _broken(self, attempt: SimAttempt) -> None:
        if attempt.version >= 0:
            facts = EndFacts(task=attempt.task.task, now_s=self._now, code=1, log_tail=ECC_ERROR)
            self._end(attempt, facts)

    def _done(self, attempt: SimAttempt, version: int) -> None:
        if attempt.version != version:
            return  # its speed has changed since
        its = attempt.its
        if its.reserved_mib and its.peak_mib and not its.is_alone:
            self._totals.wastes.append(max(0.0, its.reserved_mib / its.peak_mib - 1.0))
        self._totals.outcomes[attempt.task.task].slowdown = (
            max(1.0, (self._now - its.started_s) / attempt.task.work_s) if attempt.task.work_s > 0.0 else 1.0
        )
        self._end(attempt, EndFacts(task=attempt.task.task, now_s=self._now, code=0))

    def _end(self, attempt: SimAttempt, facts: EndFacts) -> None:
        now = self._now
        task = attempt.task
        node = self._node_of(attempt)
        if self._is_rated:
            self._tell_rates(one for gpu in attempt.gpus for one in gpu.running)
        room = [(gpu.facts.total_mib or 0) - gpu.memory_mib for gpu in attempt.gpus]
        facts = msgspec.structs.replace(
            facts,
            room_ratio=min(room) / (attempt.gpus[0].facts.total_mib or 1),
            sample_age_s=now - math.floor(now / SAMPLE_S) * SAMPLE_S,
        )
        self._settle(attempt.gpus)
        for gpu in attempt.gpus:
            gpu.running.remove(attempt)
            gpu.memory_mib -= attempt.memory_mib
        attempt.version = -1
        del node.running[task.task]
        self._see_alone(attempt)
        after = node.board.ended(facts)
        self._respeed(attempt.gpus)
        self._totals.add_bars(attempt, after.kind, now)
        self._totals.last_end = max(self._totals.last_end, now)
        outcome = self._totals.outcomes[task.task]
        if after.kind != "done":
            lost = now - attempt.its.started_s
            outcome.wasted_s += lost
            self._totals.wasted_gpu_s += lost * task.gpus
        if not after.is_retried:
            outcome.kind, outcome.end_s = after.kind, now
        node.decide_now = True

    def _see_alone(self, attempt: SimAttempt) -> None:
        """Pass on what a launcher has measured while the task was alone on its GPU."""
        gpu = GpuLoad(uuid=attempt.gpus[0].facts.uuid, index=0, name="")
        if attempt.alone_s >= self._settings.rate_window_s:
            noise = self._rates_random.uniform(-1.0, 1.0) * self._assumed.sm_noise
            load = attempt.load
            sm = min(1.0, max(0.0, load.sm + noise))
            activity = Activity(sm_percent=100 * sm, dram_percent=None if load.dram is None else 100 * load.dram)
            busy = None if load.busy is None else 100 * load.busy
            gpu = msgspec.structs.replace(gpu, activity=activity, utilization_percent=busy)
        attempt.its.see_alone(gpu, attempt.alone_s)


class SimulationError(SlurmShareError):
    """Raised for a simulation that does not end, because of a defect in the rules or the simulator."""


def _ask(task: SimTask) -> TaskAsk:
    return TaskAsk(
        task=task.task,
        gpus=task.gpus,
        gpu_mem_mib=task.gpu_mem_mib,
        gpu_mem_least_mib=task.gpu_mem_least_mib,
        submitted_s=task.submitted_s,
        key=TaskKey(
            exact=task.command or task.name,
            family=task.family or task.name,
            numbers=task.numbers,
            series=task.family or task.name,
        ),
    )


def simulate(
    trace: Trace,
    policy: ComparedPolicy,
    assumed: Assumptions,
    seed: int,
    *,
    history: Iterable[TaskRun] = (),
    has_bars: bool = False,
) -> Result:
    """Simulate a trace under a policy. A policy with history has the history of a first run with other noise."""
    pairs: tuple[PairRun, ...] = ()
    if policy.has_history:
        first = Simulation(trace, msgspec.structs.replace(policy, has_history=False), assumed, seed + 1_000_003).run()
        history, pairs = (*history, *first.runs), first.pairs
    return Simulation(trace, policy, assumed, seed, history=history, pairs=pairs, has_bars=has_bars).run()
