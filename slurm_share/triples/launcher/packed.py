"""The strategy of a packed run: each task starts on a GPU on which its memory can be booked.

A worker provides cores and a log only. `packing` decides which task starts on which GPU, from the queue, the samples
and the ends of attempts that this module collects.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET
from msgspec.structs import replace

from ... import packing
from ...core import names
from ...core.text import fold, fold_some
from ...packing import Attempt, GpuFacts, Start
from ...share import BACKEND_TIME_SLICING, Assignment, Slot, allocation, limits, registry
from ..records import Outcome, Run, Worker
from ..rules import deal, turns
from ..rules.account import OUTCOME_TEXTS
from . import environment, strategy, task_process
from .daemons import Daemons
from .node import Node
from .pack_learning import PackLearning
from .pack_signals import Hangs, PackUndo
from .pauses import Pauses
from .sampler import Sampler
from .share_trials import ShareTrials
from .task_use import TaskUses
from .tuning import Tuning

ENV_GPU_MEM = "LLSUB_GPU_MEM_MIB"
"""GPU memory booked for the task on each of its GPUs, in MiB."""
ENV_NEIGHBOURS = b"LLSUB_NEIGHBOURS"
"""Number of other tasks of the run on its GPU when it started."""
ENVIRONMENTS_MOST = 512
"""Most environments in the cache, each for one worker, GPU and cap."""


class PackEnvironments:
    """A cache of environments. Most starts have the worker, GPU and cap of an earlier one."""

    def __init__(self, run: Run, node: Node, common: Mapping[bytes, bytes]) -> None:
        """`common`: the variables that are the same for all tasks."""
        self._run = run
        self._node = node
        self._common = common
        self._facts: dict[str, GpuFacts] = {facts.uuid: facts for facts in node.gpu_facts}
        self._kept: dict[object, task_process.Environment] = {}
        self._ranks: dict[int, int] = {}
        """id of an environment that is kept -> the rank whose variables it has."""

    def find(self, task: Attempt, worker: Worker, *, threads: int | None, cpus: int | None) -> task_process.Environment:
        """Return the environment of a task in a worker. `threads`: OMP_NUM_THREADS of each process; None: not set here.
        `cpus`: that it asks for."""
        key = (
            task.worker, task.gpus, task.cap_mib, task.least_mib, task.start_mib, task.is_alone, task.sharing,
            task.sm_percent, task.partition, threads, task.more_workers, cpus,
        )  # fmt: skip
        env = self._kept.get(key)
        if env is None:
            if len(self._kept) >= ENVIRONMENTS_MOST:
                self._kept.clear()
                self._ranks.clear()
            env = self._kept[key] = self._make(task, worker, threads, cpus)
        env[ENV_NEIGHBOURS] = b"%d" % task.neighbours
        if self._ranks.get(id(env)) != task.rank:
            env.update(environment.of_rank(self._run, self._node, task.rank))
            self._ranks[id(env)] = task.rank
        return env

    def _make(self, task: Attempt, worker: Worker, threads: int | None, cpus: int | None) -> task_process.Environment:
        slot, more = self._slot_of(task)
        variables: tuple[Assignment, ...] = ()
        if self._node.plan is not None:
            variables = (*registry.slot_environment(self._node.plan, slot), *more)
        other = replace(worker, rank=task.rank, gpu_slot=slot, environment=variables)
        of_start = {ENV_GPU_MEM: str(task.start_mib), os.fsdecode(ENV_NEIGHBOURS): "0"}
        if cpus is not None:
            of_start[names.ENV_THREADS] = str(cpus)
        return task_process.Environment(
            environment.of_worker(self._common, self._run, self._node, other, threads=threads, more=of_start)
        )

    def _slot_of(self, task: Attempt) -> tuple[Slot, tuple[Assignment, ...]]:
        """Return the slot of a start, and the variables that do not come from the slot."""
        template = self._node.gpu_slots[self._facts[task.gpus[0]].index]
        own = self._node.workers[task.worker].gpu_slot
        slot = own if own is not None and own.gpu.uuid == template.gpu.uuid else template
        if len(task.gpus) > 1 or self._is_without_mps(task):
            slot = replace(
                slot, backend=BACKEND_TIME_SLICING, mps_directory=None, sm_percent=None, variables=(),
                memory_cap_mib=None, memory_ratio=None, memory_least_mib=None, partition=None, sm_count=None,
                is_cap_of_driver=False, mps_namespace=None,
            )  # fmt: skip
            return slot, (Assignment(names.ENV_VISIBLE_DEVICES, ",".join(task.gpus)),)
        # The memory ratio for frameworks follows from the booked memory, or from the most of a task with a range.
        booked = None if task.is_alone or not task.start_mib else max(task.start_mib, packing.most_of(task.ask) or 0)
        percent = slot.sm_percent if task.sm_percent is None else task.sm_percent
        ratio = limits.memory_ratio(slot.gpu, booked)
        cap_mib, has_limit = task.cap_mib, slot.is_cap_of_driver and task.cap_mib is not None
        if cap_mib is not None and has_limit:
            cap_mib *= max(task.estimate.processes, 1)  # the driver counts all processes of its cgroup together
        # The daemon of a GPU with static partitions serves no task without one, and applies no percentage.
        percent = percent if task.partition is None else None
        capped = allocation.with_sm_percent(allocation.with_memory_cap(slot, cap_mib), percent)
        slot = replace(
            capped,
            memory_least_mib=task.least_mib,
            memory_ratio=ratio,
            partition=task.partition,
            is_cap_of_driver=has_limit,
        )
        return slot, ()

    def _is_without_mps(self, task: Attempt) -> bool:
        """Return whether a task runs without MPS on a GPU that has an MPS daemon. A task that has a GPU alone does so,
        too, where a static partition would give it a part of the GPU only."""
        facts = self._facts[task.gpus[0]]
        is_whole = facts.partitions > 0 and (task.is_alone or task.partition is None)
        is_apart = is_whole or task.sharing in ("time-slicing", "exclusive")
        return facts.is_mps and not facts.takes_only_mps and is_apart


FIRST_SAMPLE_S = 3.0
"""Most seconds that the first start waits for the first sample, which shows the memory that others use."""
SAY_S = 0.95
"""Seconds between two writes to the job's log; slightly less than the second between two ticks."""
STARTS_MOST = 3
EVENTS_MOST = 4


class PackLog:
    """The job's log of a packed run: at most once a second, one line for starts and one for other events."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._say_at = 0.0
        self._events: list[str] = []
        self._started: list[tuple[int, str]] = []
        """Tasks started since the last line, and the reasons for their places."""

    def tell(self, sentence: str) -> None:
        self._events.append(sentence)

    def started(self, task: int, why: str) -> None:
        self._started.append((task, why))

    def flush(self, *, is_last: bool = False) -> None:
        """Write the collected sentences, unless the last write was less than SAY_S ago. `is_last`: in any case."""
        if not is_last and time.monotonic() < self._say_at:
            return
        self._say_at = time.monotonic() + SAY_S
        started, self._started = self._started, []
        events, self._events = self._events, []
        at = time.strftime("%H:%M:%S")
        if len(started) > STARTS_MOST:
            self._say(f"{at} {len(started)} tasks started: {fold_some(sorted({task for task, _ in started}), 20)}")
        elif started:
            self._say(f"{at} {'; '.join(f'task {task} -> {why}' for task, why in started)}")
        if events:
            more = len(events) - EVENTS_MOST
            self._say(f"{at} {'; '.join(events[:EVENTS_MOST])}{f'; and {more} more like these' if more > 0 else ''}")


class PackStrategy(strategy.Strategy):
    """Choose the next start of a node by packing."""

    def __init__(self, shared: strategy.LauncherState) -> None:
        """Prepare the board, its histories and its trials."""
        super().__init__(shared)
        run, node, say = self.run, self.node, self.say
        assert run.pack is not None
        self.pack = run.pack
        self.sampler = Sampler(self.running, True, shared.host, [slot.gpu for slot in self.node.gpu_slots])
        self.daemons = Daemons(dict(zip([one.uuid for one in node.gpu_facts], node.gpu_slots, strict=True)))
        self.hangs = Hangs(run.pack.hang_s, is_killing=run.pack.hang == "kill", say=say)
        self.log = PackLog(say)
        self._cwd = Path(run.cwd)
        self._place = {facts.uuid: facts.index for facts in node.gpu_facts}
        self._only_mps = [facts.index for facts in node.gpu_facts if facts.takes_only_mps]
        """GPUs that take MPS clients only, by position."""
        unix_s = shared.events.unix_s = time.time()
        self.learning = PackLearning(run.pack, node, shared.events, self.common, unix_s, self.log.tell)
        self.board = packing.Board(
            node.gpu_facts,
            len(node.workers),
            run.pack.settings,
            self.learning.make_estimator(),
            self.learning.make_speeds(),
            can_move=run.pack.checkpoint_signal is not None,
            unix_s=unix_s,
            host_mib=self.parts.host_mib,
            sharing=node.gpu_slots[0].backend,
            software=self.learning.software,
            runs=self.learning.runs if run.pack.learns else None,
            pairs=self.learning.pairs if run.pack.learns else None,
        )
        self.use = TaskUses(run, node, self.board, self.sampler, shared.host)
        self.learning.take_sizes(self.board, 0.0)
        self.decider = packing.Decider(self.board, shared.events, node.bookings, self.log.tell)
        tell, keep = self.log.tell, self.learning.keep_trials
        is_sm_tried = run.pack.is_sm_tried and not node.partitions
        self.shares = ShareTrials(self.board, self.learning.history, tell, keep) if is_sm_tried else None
        if run.pack.is_sm_tried and node.partitions:
            tell("no parts of the multiprocessors are tried (sm=auto): each task here has a static partition of them")
        is_tuned = run.pack.is_tuned or run.pack.is_compared
        self.tuning = Tuning(run, node, self.board, tell, keep, self._has_shared) if is_tuned else None
        self.sampler.watch_host = self.tuning is not None
        pauses = Pauses(shared.table, shared.watchdog, say)
        self.undo = PackUndo(self.board, pauses, self.hangs, run.pack.checkpoint_signal, node.name, self.log.tell)
        self.environments = PackEnvironments(run, node, self.common)
        self._ready: deque[tuple[packing.Attempt, str]] = deque()
        """Starts that were decided and wait for a free worker."""
        self._same: packing.TaskAsk | None = None
        """The request of every task but for number and time, if all tasks are the same command."""
        self._all_fit = False
        """All tasks have the same options, and one of them can run on this node."""
        self._asked: packing.TaskAsk | None = None
        """The last request that was made: of the next task of the list, until a node takes it."""
        self._attempts: dict[int, int] = {}
        """Task -> the number of its next attempt, from the second on."""
        self._has_said_guarantee = False

    # ---- The next start ----

    def next(self, free: deque[int], idle: list[int]) -> tuple[int, packing.Attempt] | None:
        while free:
            now = self.now()
            if self.lacks_host_memory():
                return None
            if not self._ready:
                self._take_new(now)
                self._decide(now)
            if not self._ready:
                return None
            task, why = self._ready.popleft()
            if self._may_start(task, now):
                self.log.started(task.task, why)
                worker = self._worker_for(task, free)
                self.take_more_workers(task, worker, free)
                return worker, task
        return None

    def _take_new(self, now: float) -> None:
        """Take new tasks for the board's window; if nodes share the list, one task that `Board.takes` chooses."""
        wanted = self.board.settings.window - len(self.board.waiting)
        if self.node.count > 1:
            wanted = 1 if self._takes_next(now) else 0
        while wanted > 0 and (task := self.feeder.take()) is not None:
            wanted -= 1
            if self.specs or not self._all_fit:
                if self._is_impossible(task):
                    continue
                self._all_fit = not self.specs
            ask = self._ask(task, now)
            if self.tuning is not None and not self.tuning.has_begun:
                left = self.left()
                tasks = 1 + (self.run.tasks // self.node.count if left is None else left)
                self.tuning.begin(ask.key, tasks, self.learning.history)
            self.board.add(ask, now, floor_mib=self._floor(task))

        if self.board.turns and (self.node.count == 1 or self.feeder.peek() is None):
            for _ in range(min(len(self.board.turns), self.board.settings.window - len(self.board.waiting))):
                self.board.queue_turn(now)

    def count_waiting(self) -> int:
        now, slot_s = self.now(), self.run.slot_s or 0.0
        first = self.board.queue.first()
        has_waited = first is not None and now - first.waits_since_s >= min(turns.WAITED_S, slot_s)
        return super().count_waiting() if has_waited and not self._ready else 0

    def _takes_next(self, now: float) -> bool:
        """Return whether this node takes the next task of the list that all nodes share."""
        task = self.feeder.peek()
        return task is not None and self.board.takes(self._ask(task, now), now, floor_mib=self._floor(task))

    def _has_shared(self) -> bool:
        """Return whether the list that all nodes share has a task that no node has taken."""
        return self.node.count > 1 and self.feeder.peek() is not None

    def _floor(self, task: int) -> int:
        """Return the least need of a task that earlier jobs of the run have shown, in MiB."""
        ended, seen_mib = self.shared.out_of_memory.get(task), self.learning.seen_mib(task)
        return seen_mib if ended is None or ended.gpu_needs_mib is UNSET else max(ended.gpu_needs_mib, seen_mib)

    def _is_impossible(self, task: int) -> bool:
        """Return whether a task can never run on this node; give it up if so."""
        never = self.parts.why_never(self.spec_of(task))
        if never:
            self._give_up(task, "not started", never)
            return True
        only_mps = self._only_mps
        if not only_mps or self.spec_of(task).gpus == 1:
            return False
        why = (
            f"GPU {fold(only_mps)} of {self.node.name} takes MPS clients only (compute mode EXCLUSIVE_PROCESS), and a "
            "task of several GPUs runs without MPS; ask an administrator for compute_mode = default"
        )
        self._give_up(task, "not started", why)
        return True

    def _give_up(self, task: int, outcome: Outcome, why: str) -> None:
        self.give_up(task, self._attempts.pop(task, 1), why, outcome)
        self.log.tell(f"task {task} gets no further attempt: {why}")

    def _say_guarantee(self, ask: packing.TaskAsk) -> None:
        """Log once what the two numbers of --gpu-mem=8G:20G mean on GPUs whose driver guarantees none."""
        without = [facts.index for facts in self.node.gpu_facts if not facts.has_limits]
        if ask.gpu_mem_least_mib is None or not without or self._has_said_guarantee:
            return
        self._has_said_guarantee = True
        self.say(
            f"the driver guarantees tasks no memory on GPU {fold(without)} of {self.node.name}: there the first number "
            "of --gpu-mem is booked for a task and the second is its cap, so a task above its booking can make "
            "another one run out of memory"
        )

    def _ask(self, task: int, now: float) -> packing.TaskAsk:
        if self._asked is not None and self._asked.task == task:
            return self._asked
        if self._same is not None and not self.specs:
            ask = replace(self._same, task=task, submitted_s=now)
        else:
            spec = self.spec_of(task)
            key = packing.key_of(
                self._argv(task), self._cwd, spec.name, run_folder=self.folder, kept=self.shared.script.kept
            )
            ask = deal.ask_of(spec, task, key, now, workers=self.parts.workers_for(spec))
            if self.run.task_kind == "rank" and not self.specs:
                self._same = ask
        self.learning.ask_outside(ask, lambda: self.shared.script.executed(self._argv(task)), self._cwd, self.board)
        self._asked = ask
        self._say_guarantee(ask)
        return ask

    def _argv(self, task: int) -> Sequence[str]:
        return deal.argv_of(self.run, self.shared.lines, task)

    def _decide(self, now: float) -> None:
        self.take_sample(now)
        if not self._sample_at and now < FIRST_SAMPLE_S:
            return
        for action in self.decider.decide(now):
            if isinstance(action, Start):
                self._ready.append((self._with_trials(action), action.why))
            elif isinstance(action, packing.GiveUp):
                self._give_up(action.task, action.outcome, action.why)
            elif isinstance(action, packing.Hold):
                if action.task is not None:
                    self.log.tell(action.why)
            elif not isinstance(action, packing.Reserve):
                self.undo.carry_out(action, self.running, now)

    def _with_trials(self, start: packing.Start) -> packing.Attempt:
        """Return a started attempt with the method and part under trial, which the recorded decisions leave out."""
        task = self.board.running[start.task]
        if self.tuning is not None and len(start.gpus) == 1:
            task.sharing = self.tuning.method
        if self.shares is not None and task.sharing in (None, "mps"):
            task.sm_percent = self.shares.start(start)
        return task

    @property
    def paused(self) -> frozenset[int]:
        return self.undo.paused

    def resume_all(self) -> None:
        self.undo.resume_all(self.now())

    def _may_start(self, task: packing.Attempt, now: float) -> bool:
        """Return whether the daemons of a start's GPUs are alive; else put the task back."""
        if all(self.has_daemon(uuid, now) for uuid in task.gpus):
            return True
        self._drop_start(task.task, now)
        return False

    def _worker_for(self, task: packing.Attempt, free: deque[int]) -> int:
        """Take a free worker, preferably one with a slot on the start's GPU, so that `slurm-share status` is right."""
        place = self._place[task.gpus[0]]
        uuid = self.node.gpu_slots[place].gpu.uuid
        for worker in free:
            slot = self.node.workers[worker].gpu_slot
            if slot is not None and slot.gpu.uuid == uuid:
                free.remove(worker)
                return worker
        return free.popleft()

    # ---- A start ----

    def environment(self, task: packing.Attempt) -> task_process.Environment | None:
        task.gpu = self._place[task.gpus[0]]
        task.partition = self._free_partition(task)
        threads = None if self.tuning is None else self.tuning.threads
        cpus = self.spec_of(task.task).cpus
        return self.environments.find(task, self.worker_of(task), threads=threads, cpus=cpus)

    def _free_partition(self, task: packing.Attempt) -> str | None:
        """Return the first static partition of a start's GPU that no other task has; None: it has none."""
        slots = self.node.partitions.get(task.gpus[0], ()) if len(task.gpus) == 1 else ()
        taken = {one.partition for one in self.board.running.values() if one is not task}
        return next((slot.partition for slot in slots if slot.partition not in taken), None)

    # ---- An end ----

    def judge(self, task: packing.Attempt, facts: packing.EndFacts) -> tuple[Outcome, str]:
        outcome, why = super().judge(task, facts)
        hung = self.hangs.why_ended(task.task)
        if hung and task.kind in ("signal", "failed"):
            return "failed", hung
        return outcome, why.removeprefix(f"{OUTCOME_TEXTS[outcome]} ")

    def finished(self, task: packing.Attempt, outcome: Outcome) -> bool:
        number, is_again = task.task, super().finished(task, outcome)
        self.hangs.drop(number)
        self.undo.ended(number)
        if self.tuning is not None:
            self.tuning.ended(task, self.now(), is_done=task.kind == "done")
        if self.shares is not None:
            self.shares.ended(number, time.time())
        if task.kind not in ("done", "saved", "unfinished") or (task.kind != "done" and task.is_retried):
            again = "; it runs again" if task.is_retried and "again" not in task.why else ""
            self.log.tell(f"task {number} {task.why}{again}")
        if is_again:
            self._attempts[number] = task.attempt + 1
        elif not task.is_retried:
            self._attempts.pop(number, None)
        return is_again

    def kind_of_work(self, task: packing.Attempt) -> str | None:
        return task.family or None

    def put_back(self, task: packing.Attempt) -> None:
        self._drop_start(task.task, self.now())

    def _drop_start(self, task: int, now: float) -> None:
        self.board.put_back(task, now)
        if self.shares is not None:
            self.shares.dropped(task)

    # ---- The run ----

    @property
    def waiting(self) -> int:
        return 0 if self.feeder.closed else super().waiting + len(self._ready)

    def tick(self) -> None:
        super().tick()
        now = self.now()
        if self.board.check_driver(now):
            self.log.tell("the driver gives no figures of the GPUs; until it does, only booked memory counts")
        self.shared.events.flush()
        if self.tuning is not None:
            self.tuning.tick(self.running, self.sampler.host(list(self.running.values())), now)
        if self.shares is not None:
            self.shares.tick()
        self._decide(now)
        self.learning.update(self.board, now)
        self.undo.check(now)
        paused = self.undo.paused
        self.hangs.check([one for one in self.running.values() if one.task not in paused], self._is_busy)
        self._stop_without_gpus()
        self.log.flush()

    @property
    def levels(self) -> tuple[packing.LevelRun, ...]:
        return () if self.tuning is None else self.tuning.levels

    def _is_busy(self, task: packing.Attempt) -> bool:
        """Return whether a process computes on the GPUs of a task; True if that is not known."""
        latest = self.sampler.latest
        if latest is None:
            return True
        loads = [latest.gpus[uuid].load_percent_windows for uuid in task.gpus if uuid in latest.gpus]
        return any(means is None or means.m1 > 1 for means in loads)

    def _stop_without_gpus(self) -> None:
        if (
            self.board.unusable == self._place.keys()
            and not self.running
            and not self._ready
            and not self.feeder.closed
        ):
            self.say(f"no GPU of {self.node.name} is left in service; no further task starts there")
            self.feeder.closed = True

    def sentences(self) -> list[str]:
        self.learning.update(self.board, self.now())
        if self.shares is not None:
            self.shares.flush()
        if self.tuning is not None:
            self.tuning.finish()
        tables = [] if self.tuning is None else self.tuning.sentences()
        if not self.learning.is_kept:
            self.board.learner.totals.learned.clear()
        said = self.board.learner.sentences(self.folder.name, self.now())
        self.shared.events.groups(self.board.learner.groups.take_new())
        if self.shared.events.problem:
            self.log.tell(f"{packing.EVENTS} is not complete: {self.shared.events.problem}")
        self.log.flush(is_last=True)
        return [*tables, *(f"{self.node.name}: {one}" for one in said)]
