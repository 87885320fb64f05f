"""The strategy of a packed run: each start gets the GPU on which the task's memory can be booked.

A worker is cores and a log. What starts where is decided by `packing`, from values that are gathered here: the queue,
the sampler's figures, and how attempts ended.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET
from msgspec.structs import replace

from ...core import names
from ...core.text import fold
from ...node.memory import HostMemory
from ...packing import (
    After,
    Ban,
    EndFacts,
    EndKind,
    Estimator,
    GiveUp,
    GpuSample,
    History,
    Hold,
    Journal,
    LevelRun,
    Move,
    NodeSizes,
    OutsideSizes,
    Packer,
    PackRequest,
    PairRun,
    Pause,
    Rate,
    Reserve,
    Resume,
    ShareRun,
    SpeedHistory,
    Speeds,
    SpeedWriter,
    Start,
    TaskAsk,
    TaskKey,
    TaskRun,
    TaskSpec,
    TunedRun,
    Writer,
    append_groups,
    key_of,
    name_software,
    read_history,
    read_site,
    read_speed_history,
)
from ...share import BACKEND_TIME_SLICING, Assignment, Slot, limits, registry
from ..records import Ended, Outcome, Run
from ..rules import outcomes, pack_sentences, task_command
from ..rules.account import OUTCOME_TEXTS
from ..rules.outcomes import Ending
from . import environment, task_process
from .daemons import Daemons
from .feeder import Feeder, Turn
from .hangs import Hangs
from .moves import Moves
from .node import Node
from .pack_sampler import PackSampler
from .pauses import Pauses
from .running import Running
from .share_trials import ShareTrials
from .strategy import GivenUp
from .tuning import Tuning

ENV_GPU_MEM = b"LLSUB_GPU_MEM_MIB"
"""What is booked for the task on each of its GPUs, in MiB."""
ENV_NEIGHBOURS = b"LLSUB_NEIGHBOURS"
"""How many tasks of the run were on its GPU when it started."""
ENVIRONMENTS_MOST = 512
"""Environments that are kept for later starts with the same worker, GPU and cap."""
SAY_S = 0.95
"""Between two lines in the job's log; ticks are a second apart, or less."""
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
        self.common = common
        self.lines = lines
        self.specs = specs
        self.known = known
        self.say = say
        self.running = running
        self.lost_workers = 0
        self.sampler = PackSampler(running, host)
        self.daemons = Daemons(node.gpu_slots)
        self.pauses = pauses
        self.moves = Moves(run.pack.checkpoint_signal)
        self.hangs = Hangs(run.pack.hang_s, is_killing=run.pack.hang == "kill", say=say)
        self._say_at = 0.0
        self._looked_s = -LOOK_S
        self._events: list[str] = []
        """For the job's log, at the next tick."""
        self._begun: list[tuple[int, str]] = []
        """Tasks started since the last tick, and why where."""
        self._place = {facts.uuid: facts.index for facts in node.gpu_facts}
        self._zero = time.monotonic()
        unix_s = time.time()
        history = read_history(now=unix_s) if run.pack.estimate != "none" else History()
        for note in history.notes:
            self._tell(note)
        self._speed_history = read_speed_history(now=unix_s) if run.pack.estimate != "none" else SpeedHistory()
        for note in self._speed_history.notes:
            self._tell(note)
        self._writer = Writer()
        self._to_keep: list[TaskRun] = []
        self._speed_writer = SpeedWriter()
        self._pairs_to_keep: list[PairRun] = []
        self._sizes = NodeSizes(node.folder, is_alone=node.count == 1)
        variables = {os.fsdecode(name): os.fsdecode(value) for name, value in common.items()}
        software = name_software(variables)
        site, notes = read_site(node.estimate_history) if run.pack.estimate != "none" else ((), ())
        for note in notes:
            self._tell(note)
        self._outside = None
        if run.pack.estimate in ("static", "learned", "probe"):
            self._outside = OutsideSizes(run.pack.estimate, variables)
        self.packer = Packer(
            node.gpu_facts,
            len(node.workers),
            run.pack,
            estimator=Estimator(history.runs, now=unix_s, software=software, site=site),
            journal=Journal(node.folder, node.job, unix_s),
            bookings=node.bookings,
            unix_s=unix_s,
            sharing=node.gpu_slots[0].backend,
            software=software,
            say=self._tell,
            keep=self._to_keep.append,
            tell=self._tell_size,
            speeds=Speeds(history.runs, self._speed_history.pairs, now=unix_s),
            keep_pair=self._pairs_to_keep.append,
        )
        self.share_trials: ShareTrials | None = None
        if run.pack.is_sm_tried:
            self.share_trials = ShareTrials(self.packer, self._speed_history)
        self.tuning: Tuning | None = None
        if run.pack.is_tuned or run.pack.is_compared:
            self.tuning = self._make_tuning(run.pack)
        self._window = run.pack.settings.window
        self._ready: deque[Start] = deque()
        self._cwd = Path(run.cwd)
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
        self._environments: dict[object, task_process.Environment] = {}
        self._sample_at = 0.0

    def _now(self) -> float:
        return time.monotonic() - self._zero

    def _make_tuning(self, request: PackRequest) -> Tuning:
        triple = self.what.triple
        self.sampler.watch_host = True
        return Tuning(
            request,
            self.packer,
            workers=len(self.node.workers),
            cores=self.node.cores,
            nodes=self.node.count,
            per_node=len(self.node.workers) if triple is None else triple.per_node,
            node_name=self.node.name,
            window_s=self.what.rate_window_s,
        )

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
                self._begun.append((start.task, start.why))
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
        wanted = self._window - len(self.packer.waiting)
        if self.node.count > 1:
            wanted = min(wanted, 2 * free - len(self.packer.waiting))
        while wanted > 0 and (task := self.feeder.take()) is not None:
            wanted -= 1
            if self._is_impossible(task):
                continue
            ended = self.known.get(task)
            floor = 0 if ended is None or ended.gpu_needs_mib is UNSET else ended.gpu_needs_mib
            ask = self._ask(task, now)
            if self.tuning is not None and not self.tuning.has_begun:
                self._begin_tuning(self.tuning, ask.key)
            self.packer.add(ask, now, floor_mib=floor)

    def _begin_tuning(self, tuning: Tuning, key: TaskKey | None) -> None:
        left = self.left()
        count = 1 + (self.what.tasks // self.node.count if left is None else left)
        tuning.begin(key, count, self._speed_history, time.time())

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
        self._tell(f"task {task} gets no further attempt: {why}")

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
        if self._outside is not None and self.packer.is_unknown(ask):
            self._outside.ask(self._argv(task), self._cwd, key)
            self._take_outside()  # a description is read at once: the first decision is to know it
        return ask

    def _argv(self, task: int) -> Sequence[str]:
        return task_command.task_argv(self.what, "" if self.what.task_kind == "rank" else self.lines[task])

    def _decide(self, now: float) -> None:
        self._take_sample(now)
        if not self._sample_at and now < FIRST_SAMPLE_S:
            return
        for action in self.packer.decide(now):
            if isinstance(action, Start):
                self._ready.append(self._shared(action))
            elif isinstance(action, GiveUp):
                self._give_up(action.task, action.outcome, action.why)
            elif isinstance(action, Hold):
                if action.task is not None:
                    self._tell(action.why)
            elif not isinstance(action, Reserve):
                self._undo(action, now)

    def _undo(self, action: Ban | Pause | Resume | Move, now: float) -> None:
        """Carry out what undoes a choice of neighbours, and say it."""
        self._tell(action.why)
        if isinstance(action, Ban):
            return
        task = next((one for one in self.running.values() if one.turn.task == action.task), None)
        if isinstance(action, Resume):
            self.pauses.resume(action.task)
            self.hangs.forget(action.task)
        elif task is None:
            self.packer.resumed(action.task, now)  # it has just ended, or is just being started
        elif isinstance(action, Move):
            self.moves.begin(task)
        elif not self.pauses.pause(task):
            self.packer.resumed(action.task, now)

    @property
    def paused(self) -> frozenset[int]:
        """See Strategy."""
        return frozenset(self.pauses.tasks)

    def resume_all(self) -> None:
        """See Strategy: also, none is paused from now on."""
        for number in list(self.pauses.tasks):
            self.packer.resumed(number, self._now())
        self.pauses.resume_all()
        self.packer.pause_no_more()

    def _look_at_pauses(self) -> None:
        """Keep what is paused as it is; let it go on for good where nobody would do so if this launcher was killed."""
        if self.packer.board.settings.undo == "pause" and not self.pauses.is_possible:
            self.resume_all()
            self._tell(
                f"no further task is paused on {self.node.name}: the process that would let it go on without this "
                "launcher is gone"
            )
        self.pauses.look()
        self.moves.look()

    def _shared(self, start: Start) -> Start:
        """Return a start with what is tried on it. Decisions do not have that: they are replayed without the trials."""
        if self.tuning is not None and len(start.gpus) == 1:
            start = replace(start, sharing=self.tuning.method)
        if self.share_trials is not None and start.sharing in (None, "mps"):
            start = replace(start, sm_percent=self.share_trials.start(start))
        return start

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
        threads = None if self.tuning is None else self.tuning.threads
        key = (
            task.worker, start.gpus, start.cap_mib, start.reserve_mib, start.is_alone, start.sharing, start.sm_percent,
            threads,
        )  # fmt: skip
        env = self._environments.get(key)
        if env is None:
            if len(self._environments) >= ENVIRONMENTS_MOST:
                self._environments.clear()
            env = self._environments[key] = self._make_environment(task, start)
        its = self.packer.running[start.task]
        env[ENV_NEIGHBOURS] = b"%d" % its.neighbours
        env.update(environment.of_rank(self.what, self.node, task.rank))
        return env

    def _make_environment(self, task: Running, start: Start) -> task_process.Environment:
        worker = self.node.workers[task.worker]
        template = self.node.gpu_slots[self._place[start.gpus[0]]]
        own = worker.gpu_slot
        slot = own if own is not None and own.gpu.uuid == template.gpu.uuid else template
        more: tuple[Assignment, ...] = ()
        if len(start.gpus) > 1 or self._is_without_mps(start):
            slot = replace(
                slot, backend=BACKEND_TIME_SLICING, mps_directory=None, sm_percent=None, variables=(),
                memory_cap_mib=None, memory_ratio=None,
            )  # fmt: skip
            more = (Assignment(names.ENV_VISIBLE_DEVICES, ",".join(start.gpus)),)
        else:
            slot = self._with_memory(slot, start)
            if start.sm_percent is not None:
                slot = replace(slot, sm_percent=start.sm_percent)
        variables: tuple[Assignment, ...] = ()
        if self.node.plan is not None:
            variables = (*registry.slot_environment(self.node.plan, slot), *more)
        other = replace(worker, rank=task.rank, gpu_slot=slot, environment=variables)
        found = environment.of_worker(self.common, self.what, self.node, other)
        found[ENV_GPU_MEM] = b"%d" % start.reserve_mib
        found[ENV_NEIGHBOURS] = b"0"
        said = self.what.triple is not None and self.what.triple.threads is not None
        if self.tuning is not None and not said and names.ENV_THREADS.encode() not in self.common:
            found[names.ENV_THREADS.encode()] = b"%d" % self.tuning.threads
        return task_process.Environment(found)

    def _is_without_mps(self, start: Start) -> bool:
        """Return whether a task shares its GPU without MPS, though there is a daemon."""
        facts = self.packer.facts[start.gpus[0]]
        return facts.is_mps and not facts.takes_only_mps and start.sharing in ("time-slicing", "exclusive")

    def _with_memory(self, slot: Slot, start: Start) -> Slot:
        """Return the slot with this start's cap. What frameworks are told to take follows what is booked."""
        booked = None if start.is_alone or not start.reserve_mib else start.reserve_mib
        return replace(
            slot, memory_cap_mib=start.cap_mib, memory_ratio=limits.memory_ratio(slot.gpu, booked)
        )  # fmt: skip

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
        self.moves.forget(number)
        self.pauses.resume(number)  # what is left of it
        if self.tuning is not None:
            seconds = time.monotonic() - task.clock
            self.tuning.ended(task, seconds, self._now(), is_done=after.kind == "done")
        if self.share_trials is not None:
            self.share_trials.ended(number, time.time())
        if after.kind not in ("done", "unfinished") or (after.kind == "unfinished" and after.is_retried):
            self._tell(f"task {number} {pack_sentences.ended(after)}")
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

    def put_back(self, turn: Turn) -> None:
        """See Strategy."""
        del self._starts[turn.task]
        self._drop_start(turn.task, self._now())

    def _drop_start(self, task: int, now: float) -> None:
        self.packer.put_back(task, now)
        if self.share_trials is not None:
            self.share_trials.dropped(task)

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
        if self.tuning is not None:
            tasks = list(self.running.values())
            self.tuning.tick(self.running, self.sampler.host(tasks), now)
            self._tell_tuning(self.tuning)
        if self.share_trials is not None:
            self.share_trials.tick()
            self._tell_shares(self.share_trials)
        self._decide(now)
        self._learn(now)
        self._look_at_pauses()
        paused = self.pauses.tasks
        self.hangs.look([one for one in self.running.values() if one.turn.task not in paused], self._is_busy)
        self._stop_without_gpus()
        self.flush()

    def _tell_tuning(self, tuning: Tuning) -> None:
        """Say what trials have found, and write it to the user's history."""
        for sentence in tuning.to_say:
            self._tell(sentence)
        tuning.to_say.clear()
        record, tuning.record = tuning.record, None
        if record is not None and self.what.pack is not None and self.what.pack.learns:
            self._keep_speed(replace(record, when=round(time.time(), 3)))

    def _tell_shares(self, trials: ShareTrials) -> None:
        for sentence in trials.to_say:
            self._tell(sentence)
        trials.to_say.clear()
        runs, trials.to_keep = trials.to_keep, []
        if runs and self.what.pack is not None and self.what.pack.learns:
            self._keep_speed(*runs)

    def _keep_speed(self, *records: TunedRun | ShareRun) -> None:
        problem = self._speed_writer.append(*records)
        if problem is not None:
            self._tell(problem)

    @property
    def levels(self) -> tuple[LevelRun, ...]:
        """See Strategy."""
        return () if self.tuning is None else self.tuning.levels

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

    def _tell(self, sentence: str) -> None:
        self._events.append(sentence)

    def flush(self, *, is_last: bool = False) -> None:
        """Say what has happened, at most once a second, in one line for starts and one for all else."""
        if not is_last and time.monotonic() < self._say_at:
            return
        self._say_at = time.monotonic() + SAY_S
        begun, self._begun = self._begun, []
        events, self._events = self._events, []
        at = time.strftime("%H:%M:%S")
        if begun:
            self.say(f"{at} {pack_sentences.started(begun)}")
        if events:
            self.say(f"{at} {pack_sentences.several(events)}")

    def sentences(self) -> list[str]:
        """See Strategy: say what packing did, as far as it was measured."""
        self._learn(self._now())
        if self.share_trials is not None:
            self._tell_shares(self.share_trials)
        self.packer.journal.flush()
        if self.packer.journal.problem:
            self._tell(f"the journal of decisions is not complete: {self.packer.journal.problem}")
        self.flush(is_last=True)
        self.packer.journal.close()
        tables = [] if self.tuning is None else self.tuning.sentences()
        said = self.packer.sentences(self.folder.name, self._now())
        append_groups(self.node.folder, self.packer.groups.take_new())
        return [*tables, *(f"{self.node.name}: {one}" for one in said)]

    # ---- What is learned ----

    def _tell_size(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> None:
        """Tell the other nodes of the run."""
        if self.node.count > 1 and (problem := self._sizes.append(key, gpu_model, peak_mib, age_s)) is not None:
            self._tell(problem)

    def _take_outside(self) -> None:
        """Give the packer the sizes that descriptions and dry runs have given since the last call."""
        if self._outside is not None:
            for figure in self._outside.take():
                self.packer.offered(figure.key, figure.source, figure.mib)
            for note in self._outside.take_notes():
                self._tell(note)

    def _learn(self, now: float) -> None:
        """Write what has ended to the user's history, and read what other nodes have told."""
        if self._to_keep:
            problem = self._writer.append(*self._to_keep)
            self._to_keep.clear()
            if problem is not None:
                self._tell(problem)
        if self._pairs_to_keep:
            problem = self._speed_writer.append(*self._pairs_to_keep)
            self._pairs_to_keep.clear()
            if problem is not None:
                self._tell(problem)
        append_groups(self.node.folder, self.packer.groups.take_new())
        if self._sizes.is_due(now):
            for size in self._sizes.read_others(now):
                self.packer.heard(size.key, size.gpu_model, size.peak_mib, size.age_s)
        self._take_outside()
        for note in self.packer.estimator.take_notes():
            self._tell(note)
