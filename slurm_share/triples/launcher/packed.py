"""The strategy of a packed run: each start gets the GPU on which the task's memory can be booked.

A worker is cores and a log. What starts where is decided by `packing`, from values that are gathered here: the queue,
the sampler's figures, and how attempts ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET

from ...core.text import fold
from ...node.memory import HostMemory
from ...packing import (
    After,
    EndFacts,
    EndKind,
    GiveUp,
    GpuSample,
    Hold,
    Journal,
    LevelRun,
    Packer,
    PackRequest,
    Rate,
    Reserve,
    Start,
    TaskAsk,
    TaskKey,
    TaskSpec,
    key_of,
)
from ..records import Ended, Outcome, Run
from ..rules import outcomes, pack_sentences, task_command
from ..rules.account import OUTCOME_TEXTS
from ..rules.outcomes import Ending
from . import task_process
from .daemons import Daemons
from .feeder import Feeder, Turn
from .hangs import Hangs
from .node import Node
from .pack_environments import PackEnvironments
from .pack_learning import PackLearning
from .pack_log import PackLog
from .pack_sampler import PackSampler
from .pack_trials import PackTrials
from .pack_undo import PackUndo
from .pauses import Pauses
from .running import Running
from .strategy import GivenUp

OUTCOMES: Mapping[EndKind, Outcome] = {
    "done": "done",
    "gpu memory": "gpu memory",
    "gpu memory likely": "gpu memory",
    "gpu memory suspected": "gpu memory",
    "neighbour's memory": "disturbed",
    "neighbour's fault": "disturbed",
    "device": "disturbed",
    "host memory": "host memory",
    "signal": "signal",
    "failed": "failed",
    "not started": "not started",
    "unfinished": "unfinished",
}
LOST = "GPU is lost"
"""NVML's GPU_IS_LOST, as the reader of GPUs writes it."""
FIRST_SAMPLE_S = 3.0
"""How long the first start waits for the first sample: what others have on the GPUs is not known before."""
LOOK_S = 0.25
"""The driver is not asked again within this time because of another failed task."""
LOOK_PATIENCE_S = 0.2
"""For its answer; the other tasks' ends wait meanwhile."""


class Packed:
    """Choose the next start of a node by packing."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        node: Node,
        feeder: Feeder,
        common: Mapping[bytes, bytes],
        host: HostMemory,
        running: Mapping[int, Running],
        lines: Sequence[str],
        specs: Sequence[TaskSpec],
        known: Mapping[int, Ended],
        say: Callable[[str], None],
        pauses: Pauses,
    ) -> None:
        """`folder`: the run's. `specs`: what each task asks for; empty: all ask for the same. `known`: the last attempt
        of tasks that ran out of GPU memory in earlier jobs of the run."""
        if run.pack is None:
            raise ValueError("the run is not packed")
        self.what = run
        self.folder = folder
        self.node = node
        self.feeder = feeder
        self.lines = lines
        self.specs = specs
        self.known = known
        self.say = say
        self.running = running
        self.lost_workers = 0
        self.sampler = PackSampler(running, host)
        self.daemons = Daemons(node.gpu_slots)
        self.hangs = Hangs(run.pack.hang_s, is_killing=run.pack.hang == "kill", say=say)
        self.log = PackLog(say)
        self._cwd = Path(run.cwd)
        self._place = {facts.uuid: facts.index for facts in node.gpu_facts}
        self._zero = time.monotonic()
        unix_s = time.time()
        self.learning = PackLearning(run.pack, node, common, unix_s, self.log.tell)
        self.packer = self._make_packer(run.pack, unix_s)
        self.trials = PackTrials(run.pack, run, node, self.packer, self.learning, self.log.tell)
        if self.trials.needs_host:
            self.sampler.watch_host = True
        self.undo = PackUndo(self.packer, pauses, self.hangs, run.pack.checkpoint_signal, node.name, self.log.tell)
        self.environments = PackEnvironments(run, node, common)
        self._begin()

    def _begin(self) -> None:
        """Begin without any task."""
        self._ready: deque[Start] = deque()
        self._key: TaskKey | None = None
        """Of every task, where all of them are the same command."""
        self._starts: dict[int, Start] = {}
        """Task -> its start, for those that run or are being started."""
        self._given_up: list[GivenUp] = []
        self._attempts: dict[int, int] = {}
        """Task -> the number of its next attempt, where that is not the first."""
        self._is_host_crowded = False
        self._host_peak_mib = 0
        """The largest task that ran out of the host's memory; 0: not known."""
        self._out_of_memory: set[int] = set()
        """Tasks that wait to run again because they ran out of GPU memory."""
        self._afters: dict[int, After] = {}
        """Task that has just ended -> what follows."""
        self._sample_at = 0.0
        self._looked_s = -LOOK_S

    def _make_packer(self, request: PackRequest, unix_s: float) -> Packer:
        node, learning = self.node, self.learning
        return Packer(
            node.gpu_facts,
            len(node.workers),
            request,
            estimator=learning.make_estimator(),
            journal=Journal(node.folder, node.job, unix_s),
            bookings=node.bookings,
            unix_s=unix_s,
            sharing=node.gpu_slots[0].backend,
            software=learning.software,
            say=self.log.tell,
            keep=learning.runs.append,
            tell=learning.tell_size,
            speeds=learning.make_speeds(),
            keep_pair=learning.pairs.append,
        )

    def _now(self) -> float:
        return time.monotonic() - self._zero

    # ---- The next start ----

    def next(self, free: deque[int], idle: list[int]) -> tuple[int, Turn] | None:
        """See Strategy."""
        while free:
            now = self._now()
            if self._is_host_crowded and not self._has_host_room():
                return None
            if not self._ready:
                self._take_new(now, len(free))
                self._decide(now)
            if not self._ready:
                return None
            start = self._ready.popleft()
            if self._has_daemon(start, now):
                self._starts[start.task] = start
                its = self.packer.running[start.task]
                self._out_of_memory.discard(start.task)
                self.log.started(start.task, start.why)
                return self._worker_for(start, free), Turn(start.task, its.attempt)
        return None

    def _has_host_room(self) -> bool:
        """Return whether the host has room for one more task as large as the one that ran out of its memory."""
        tasks = list(self.running.values())
        need = outcomes.need_mib(None, [self._host_peak_mib])
        return outcomes.has_room(need, self.sampler.host(tasks), len(self._starts))

    def _take_new(self, now: float, free: int) -> None:
        """Take tasks that have not begun, as many as a decision looks at; where nodes share the queue, no more than can
        start soon."""
        wanted = self.packer.request.settings.window - len(self.packer.waiting)
        if self.node.count > 1:
            wanted = min(wanted, 2 * free - len(self.packer.waiting))
        while wanted > 0 and (task := self.feeder.take()) is not None:
            wanted -= 1
            if self._is_impossible(task):
                continue
            ended = self.known.get(task)
            floor = 0 if ended is None or ended.gpu_needs_mib is UNSET else ended.gpu_needs_mib
            ask = self._ask(task, now)
            if self.trials.is_to_begin:
                left = self.left()
                self.trials.begin(ask.key, 1 + (self.what.tasks // self.node.count if left is None else left))
            self.packer.add(ask, now, floor_mib=floor)

    def _is_impossible(self, task: int) -> bool:
        """Return whether a task can never run here; it is recorded then."""
        only_mps = [facts.index for facts in self.node.gpu_facts if facts.takes_only_mps]
        if self._spec(task).gpus == 1 or not only_mps:
            return False
        why = (
            f"GPU {fold(only_mps)} of {self.node.name} takes MPS clients only (compute mode EXCLUSIVE_PROCESS), and a "
            "task of several GPUs runs without MPS; ask an administrator for compute_mode = default"
        )
        self._give_up(task, "not started", why)
        return True

    def _give_up(self, task: int, outcome: Outcome, why: str) -> None:
        self._out_of_memory.discard(task)
        self._given_up.append(GivenUp(task, self._attempts.pop(task, 1), outcome, why))
        self.log.tell(f"task {task} gets no further attempt: {why}")

    def _spec(self, task: int) -> TaskSpec:
        if self.specs:
            return self.specs[task]
        return TaskSpec() if self.what.pack is None else self.what.pack.spec

    def _ask(self, task: int, now: float) -> TaskAsk:
        spec = self._spec(task)
        key = self._key
        if key is None:
            key = key_of(self._argv(task), self._cwd, spec.name, run_folder=self.folder)
            if self.what.task_kind == "rank" and not self.specs:
                self._key = key  # all tasks are the same command
        ask = TaskAsk(task=task, gpus=spec.gpus, gpu_mem_mib=spec.gpu_mem_mib, name=spec.name, submitted_s=now, key=key)
        if self.learning.asks_outside and self.packer.is_unknown(ask):
            self.learning.ask_outside(self._argv(task), self._cwd, key, self.packer)
        return ask

    def _argv(self, task: int) -> Sequence[str]:
        return task_command.argv_of(self.what, self.lines, task)

    def _decide(self, now: float) -> None:
        self._take_sample(now)
        if not self._sample_at and now < FIRST_SAMPLE_S:
            return
        for action in self.packer.decide(now):
            if isinstance(action, Start):
                self._ready.append(self.trials.start(action))
            elif isinstance(action, GiveUp):
                self._give_up(action.task, action.outcome, action.why)
            elif isinstance(action, Hold):
                if action.task is not None:
                    self.log.tell(action.why)
            elif not isinstance(action, Reserve):
                self.undo.carry_out(action, self.running, now)

    @property
    def paused(self) -> frozenset[int]:
        """See Strategy."""
        return self.undo.paused

    def resume_all(self) -> None:
        """See Strategy: also, none is paused from now on."""
        self.undo.resume_all(self._now())

    def _has_daemon(self, start: Start, now: float) -> bool:
        """Return whether the daemons of a start's GPUs live; take the GPU out of service and put the task back if not.

        A program beside a daemon that is gone would run on without a cap.
        """
        for uuid in start.gpus:
            place = self._place[uuid]
            why = self.daemons.why_gone(place)
            if why is not None:
                self._put_out(uuid, why, now)
                self._drop_start(start.task, now)
                return False
        return True

    def _put_out(self, uuid: str, why: str, now: float) -> None:
        self.packer.out_of_service(uuid, why, now)
        self.say(f"{why}; no further task starts on GPU {self._place[uuid]} of {self.node.name}")

    def _worker_for(self, start: Start, free: deque[int]) -> int:
        """Take a free worker, one whose own slot is on that GPU if there is one: so slots that people see are right."""
        place = self._place[start.gpus[0]]
        uuid = self.node.gpu_slots[place].gpu.uuid
        for worker in free:
            slot = self.node.workers[worker].gpu_slot
            if slot is not None and slot.gpu.uuid == uuid:
                free.remove(worker)
                return worker
        return free.popleft()

    # ---- A start ----

    def environment(self, task: Running) -> task_process.Environment | None:
        """See Strategy: return the variables of a start on the GPU that was chosen for it."""
        start = self._starts[task.turn.task]
        task.gpu = self._place[start.gpus[0]]
        task.cap_mib = start.cap_mib
        task.booked_mib = start.reserve_mib
        neighbours = self.packer.running[start.task].neighbours
        return self.environments.find(task, start, neighbours=neighbours, threads=self.trials.threads)

    # ---- An end ----

    def judge(self, task: Running, ending: Ending) -> tuple[Outcome, str]:
        """See Strategy."""
        after = self._end(task, ending)
        hung = self.hangs.why_ended(task.turn.task)
        if hung and after.kind in ("signal", "failed"):
            return "failed", hung
        outcome = OUTCOMES[after.kind]
        return outcome, after.why.removeprefix(f"{OUTCOME_TEXTS[outcome]} ")

    def _end(self, task: Running, ending: Ending, *, was_started: bool = True) -> After:
        number, now = task.turn.task, self._now()
        start = self._starts[number]
        latest = self.sampler.latest
        samples = [] if latest is None else [latest.gpus[uuid] for uuid in start.gpus if uuid in latest.gpus]
        rooms = [
            1 - sample.used_mib / total
            for sample in samples
            if sample.used_mib is not None and (total := self.packer.facts[sample.uuid].total_mib)
        ]
        is_failed = was_started and ending.code != 0
        if is_failed:
            self.daemons.forget()
        gone = [uuid for uuid in start.gpus if is_failed and self.daemons.why_gone(self._place[uuid]) is not None]
        seconds = max(time.monotonic() - task.clock, 1e-3)
        facts = EndFacts(
            task=number,
            now_s=now,
            code=ending.code,
            signal=ending.signal,
            is_stopped_by_us=ending.stopped_by_us,
            is_host_memory=ending.host_oom,
            was_started=was_started,
            log_tail=ending.log_tail,
            room_ratio=min(rooms, default=None),
            sample_age_s=None if latest is None else time.monotonic() - latest.at,
            is_device_lost=is_failed and not ending.stopped_by_us and self._is_lost(start, samples),
            is_daemon_lost=bool(gone),
        )
        cores = None if task.cpu_s is None else round(task.cpu_s / seconds, 3)
        after = self._afters[number] = self.packer.ended(facts, time.time(), cores)
        task.needs_mib = UNSET if after.needs_mib is None else after.needs_mib
        for uuid in gone:
            self._put_out(uuid, self.daemons.why_gone(self._place[uuid]) or "its MPS daemon is gone", now)
        return after

    def _is_lost(self, start: Start, samples: Sequence[GpuSample]) -> bool:
        """Return whether the driver says that a GPU of a failed task is lost: at the last sample, or now.

        What ran on it fails at once, and what waits would be started there until the next sample.
        """
        if any(sample.problem == LOST for sample in samples):
            return True
        now = self._now()
        if now - self._looked_s < LOOK_S:
            return False
        self._looked_s = now
        found = self.sampler.look(LOOK_PATIENCE_S)
        return found is not None and any(found.gpus[uuid].problem == LOST for uuid in start.gpus if uuid in found.gpus)

    def finished(self, task: Running, outcome: Outcome) -> bool:
        """See Strategy."""
        number = task.turn.task
        after = self._afters.pop(number, None)
        if after is None:
            code = 0 if outcome == "done" else None
            after = self._end(task, Ending(code), was_started=outcome != "not started")
            del self._afters[number]
        del self._starts[number]
        self.hangs.forget(number)
        self.undo.ended(number)
        self.trials.ended(task, self._now(), is_done=after.kind == "done")
        if after.kind not in ("done", "unfinished") or (after.kind == "unfinished" and after.is_retried):
            self.log.tell(f"task {number} {pack_sentences.ended(after)}")
        if outcome == "host memory":
            self._host_peak_mib = max(task.rss_mib or 0, self._host_peak_mib)
            self._is_host_crowded = self.sampler.watch_host = True
        if not after.is_retried:
            self._attempts.pop(number, None)
            return False
        if self.feeder.closed:
            return False
        self._attempts[number] = task.turn.attempt + 1
        if outcome == "gpu memory":
            self._out_of_memory.add(number)
        return True

    def gpus(self, task: Running) -> tuple[str, ...]:
        """See Strategy."""
        start = self._starts.get(task.turn.task)
        return () if start is None else start.gpus

    def kind_of_work(self, task: Running) -> str | None:
        """See Strategy."""
        its = self.packer.running.get(task.turn.task)
        return None if its is None or its.ask.key is None else its.ask.key.family or None

    def rated(self, task: Running, rate: Rate | None) -> None:
        """See Strategy."""
        self.packer.rated(task.turn.task, rate, self._now())

    def speed_ratio(self, task: Running) -> float | None:
        """See Strategy."""
        return self.packer.speed_ratio(task.turn.task)

    def rate_alone(self, task: Running) -> Rate | None:
        """See Strategy."""
        return self.packer.rate_alone(task.turn.task)

    def put_back(self, turn: Turn) -> None:
        """See Strategy."""
        del self._starts[turn.task]
        self._drop_start(turn.task, self._now())

    def _drop_start(self, task: int, now: float) -> None:
        self.packer.put_back(task, now)
        self.trials.dropped(task)

    def take_given_up(self) -> list[GivenUp]:
        """See Strategy."""
        found, self._given_up = self._given_up, []
        return found

    # ---- The run ----

    @property
    def waiting(self) -> int:
        """See Strategy."""
        return 0 if self.feeder.closed else len(self.packer.waiting) + len(self._ready)

    @property
    def waiting_for_memory(self) -> int:
        """See Strategy."""
        return len(self._out_of_memory)

    def left(self) -> int | None:
        """See Strategy: tasks that have been taken and have not begun count, too."""
        left = self.feeder.left()
        return None if left is None else left + len(self.packer.waiting) - len(self.packer.retried)

    def tick(self) -> None:
        """See Strategy: read the sampler, look for hung tasks, and say what has happened."""
        now = self._now()
        self._take_sample(now)
        self.packer.look(now)
        self.packer.journal.flush()
        self.trials.tick(self.running, lambda: self.sampler.host(list(self.running.values())), now)
        self._decide(now)
        self.learning.update(self.packer, now)
        self.undo.check(now)
        paused = self.undo.paused
        self.hangs.look([one for one in self.running.values() if one.turn.task not in paused], self._is_busy)
        self._stop_without_gpus()
        self.log.flush()

    @property
    def levels(self) -> tuple[LevelRun, ...]:
        """See Strategy."""
        return self.trials.levels

    def _take_sample(self, now: float) -> None:
        """Tell the packer of the newest sample, if it has not seen it yet."""
        latest = self.sampler.latest
        if latest is not None and latest.at != self._sample_at:
            self._sample_at = latest.at
            gpus = {uuid: one for uuid, one in latest.gpus.items() if uuid in self._place}
            self.packer.sampled(gpus, latest.tasks, latest.at - self._zero, now)

    def _is_busy(self, task: Running) -> bool:
        """Return whether anything computes on the GPUs of a task, or that is not known."""
        start, latest = self._starts.get(task.turn.task), self.sampler.latest
        if start is None or latest is None:
            return True
        ratios = [latest.gpus[uuid].sm_ratio for uuid in start.gpus if uuid in latest.gpus]
        return any(ratio is None or ratio > 0.01 for ratio in ratios)

    def _stop_without_gpus(self) -> None:
        if self.packer.is_out_of_gpus and not self.running and not self._ready and not self.feeder.closed:
            self.say(f"no GPU of {self.node.name} is left in service; no further task starts there")
            self.feeder.closed = True

    def sentences(self) -> list[str]:
        """See Strategy: say what packing did, as far as it was measured."""
        self.learning.update(self.packer, self._now())
        self.trials.take_shares()
        self.packer.journal.flush()
        if self.packer.journal.problem:
            self.log.tell(f"the journal of decisions is not complete: {self.packer.journal.problem}")
        self.packer.journal.close()
        tables = self.trials.sentences()
        said = self.packer.sentences(self.folder.name, self._now())
        self.learning.write_groups(self.packer)
        self.log.flush(is_last=True)
        return [*tables, *(f"{self.node.name}: {one}" for one in said)]
