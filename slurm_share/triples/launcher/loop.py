"""Start a node's tasks, watch them, record how each ended, and retry failed ones.

One thread makes all decisions and waits in one place: the signals in SIGNALS are blocked and taken with sigwaitinfo(2),
so no handler runs between two lines. Other threads only start tasks (task_process.py). A task costs one posix_spawn,
two waits and one line in results.jsonl; the lines of tasks that end together are one write.

Timeouts come from a timer's SIGALRM. sigtimedwait(2) with a timeout does not work: when SIGSTOP and SIGCONT (`scontrol
suspend`) interrupt it at its end, CPython returns an uninitialized siginfo (seen with 3.11 and 3.14).
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections import deque
from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from ...core import names
from ...core.errors import StateError
from ...core.process import Deadline
from ...core.text import fold
from ...packing import Attempt, EndFacts, Progress, ProgressReader, has_signal, may_be_host_memory
from .. import run_folder
from ..records import ENV_ATTEMPT, ENV_TASK, ENV_TASKS, Ended, Outcome
from ..rules import checkpoint, deal, failing, moved, outcomes, together
from . import environment, leftovers, task_logs, task_process, time_limits
from .job_end import JobEnd, end_text
from .node import blank_result, on_gpu
from .rates import Rates
from .slots import SlotStrategy
from .strategy import LauncherState, Strategy
from .task_logs import TaskLogs
from .task_process import NO_PROCESSES
from .time_limits import TimeLimits
from .turns import Turns

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from .rank_group import RankGroup

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end the run: no further task starts, and running tasks are told to end."""
COMMAND_SIGNALS = (*STOPS, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that users and Slurm send to a launcher."""
SIGNALS = (*COMMAND_SIGNALS, signal.SIGCHLD, signal.SIGALRM)
"""Signals that the launcher blocks and waits for."""
ONCE_S = 0.5
"""Seconds within which a repeated signal is ignored: slurmstepd signals every process of a step, and the guard forwards
its own signal too."""
DOUBT_S = 0.1
"""Seconds to wait for our own signal when one of STOPS has ended a task: the task may receive it before us."""
LEFT_S = 2.0
"""Seconds in which processes that a task left behind (such as a `tee` of its output) may end by themselves."""
ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
START_S = 0.1
"""Longest wait for the next pending start, in seconds."""
PROBLEM_S = 60.0
"""Seconds until the launcher gives up if nothing runs, and nothing can start because processes, descriptors, memory or
disk space are exhausted."""
GRACE_S = 25.0
"""Seconds from the request to end until SIGKILL. Less than Slurm's KillWait (30 s), to leave time to record all
results."""
TERM_S = 5.0
"""Seconds between SIGTERM and SIGKILL for tasks that were told to save their state first."""
TICK_S = 1.0
SETTLE_S = 10.0
"""Seconds between two fsyncs of the results, which protect against a power loss. (A killed launcher loses nothing.)
An fsync waits for the file system's journal, which includes every log created in the meantime."""
MEMORY_TICK_S = 0.25
"""Seconds between two ticks while an attempt waits for memory."""
NEVER_STARTED_MAX = 100
"""Failed starts in a row after which a node starts nothing more. A node that has lost the script's file system would
otherwise empty the queue that all nodes share."""
_ENV_TASK, _ENV_ATTEMPT, _ENV_TASKS = ENV_TASK.encode(), ENV_ATTEMPT.encode(), ENV_TASKS.encode()
_PYTHONPATH = b"PYTHONPATH"
_ENV_GIVEN = names.ENV_GIVEN.encode()


class Loop:
    """Runs the tasks of one node."""

    def __init__(self, shared: LauncherState) -> None:
        self.run = run = shared.run
        self.began = round(time.time(), 3)
        self.rates = Rates(run, shared.node, shared.say)
        self.node = node = replace(shared.node, progress_folder=self.rates.folder)
        self.shared = shared = replace(shared, node=node)
        self.feeder = shared.feeder
        self.growth = shared.growth
        self.results = shared.results
        self.others = ProgressReader(node.folder.parent)
        self.table = table = shared.table
        self.say = shared.say
        self.running = shared.running
        self.starting = shared.starting
        self.free: deque[int] = deque(range(len(node.workers)))
        self.logs = TaskLogs(run, was_here=shared.was_here)
        self.folder = str(node.folder)
        self.place = _identity(self.folder)
        self.shell = task_process.find_shell()
        self.strategy: Strategy
        if run.pack is None:
            self.strategy = SlotStrategy(shared)
        else:
            from .packed import PackStrategy  # imported here: other runs start faster without it

            self.strategy = PackStrategy(shared)
        self.limits = self._find_limits()
        """None: no task has a time limit."""
        self.turns = None if run.slot_s is None else Turns(run.slot_s, self._signal_to_save, shared.say)
        """None: tasks run to their end."""
        self.ranks: RankGroup | None = None
        """None: the run has no ranks that send messages."""
        if shared.rendezvous is not None:
            from .rank_group import RankGroup

            self.ranks = RankGroup(shared, shared.rendezvous)
        common = self.strategy.common
        self.environments = [
            task_process.Environment(environment.of_worker(common, run, node, worker)) for worker in node.workers
        ]
        self.env_ranks = [worker.rank for worker in node.workers]
        """Worker -> the rank that its environment has now."""
        self.cpus = [frozenset(worker.place.cpus) if run.bind else None for worker in node.workers]
        self.starter = task_process.Starter(self.cpus, [table.pid_of(worker) for worker in range(len(node.workers))])
        self.is_on_its_cores = [True] * len(node.workers)
        self.blanks = [blank_result(run, node, worker) for worker in node.workers]

        # Counters and deadlines
        self.unwritten: dict[int, Ended] = {}
        """Worker -> the result that is not written yet."""
        self.own_peak_kib = 0
        """The launcher's own peak memory at its last reading."""
        self.done = 0
        self.failed = 0
        self.given_up = 0
        self.unfinished = 0
        self.saved = 0
        self.host_kills = self.shared.host.kills()
        self.unblamed_kills = 0
        self.host_lost: list[int | None] = []
        """Peaks, in MiB, of the tasks that ran out of host memory and have no attempt left; None: not known."""
        self.last_signals: dict[signal.Signals, float] = {}
        """When each signal was last received (monotonic clock, seconds)."""
        self.problem_deadline: Deadline | None = None
        """When to give up after a start that failed for a temporary reason; None: no such failure."""
        self.is_problem_logged = False
        self.is_held_up = False
        """True: nothing starts before the next tick."""
        self.streak = 0
        """Tasks in a row that failed in less than INSTANT_S."""
        self.pause: Deadline | None = None
        """Nothing starts before this deadline."""
        self.job_failed = 0
        """Tasks that have failed on other nodes."""
        self.never_started = 0
        self.stopping: Deadline | None = None
        """When running tasks get SIGKILL; None: the run is not ending."""
        self.stop_with = signal.SIGTERM
        self.telling: Deadline | None = None
        """When running tasks that were told to save their state are told to end; None: they have been, or are not."""
        self.asked_end: JobEnd | None = None
        """None: the end of the job was not asked for, or its answer is used."""
        self.is_saving = False
        """True: the signal of --checkpoint-signal has come: tasks save their state and end, and nothing more starts."""
        self.lingering: dict[int, Deadline] = {}
        """Process groups without their leader, and until when their processes may run."""
        self.disk_full = False
        self.settle = Deadline.after(SETTLE_S)

    # ---- The loop ----

    def run_tasks(self) -> int:
        """Run the tasks; return 0 if all tasks of this node are done, else 1."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self.strategy.sampler.start()
            self.starter.make_threads()
        except RuntimeError:  # Python gives no further reason
            self._close(f"{self.node.name} cannot make the launcher's threads: {NO_PROCESSES}; no task starts there")
        tick, armed = time.monotonic(), None
        while True:
            self._take_signals()
            self._note_starts()
            self._fill()
            if not (self.starting or self.running or self.lingering or self._is_waiting() or self._is_paused()):
                if self._may_end():
                    break
                continue
            now = time.monotonic()
            if now >= tick:
                self._tick()
                tick = now + (MEMORY_TICK_S if self._is_waiting() or self.lingering else TICK_S)
            if not self._reap():
                if armed != tick:
                    signal.setitimer(signal.ITIMER_REAL, max(tick - now, 0.001))
                    armed = tick
                signo = signal.sigwaitinfo(SIGNALS).si_signo
                if signo == signal.SIGALRM:
                    armed = None  # the timer may fire a moment too early
                self._handle(signo)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.strategy.use.finish()
        self.strategy.sampler.stop()
        leftovers.end_children(LEFT_S, lambda pid, status: None)
        self.rates.close()
        if self.ranks is not None:
            self.ranks.close()
        for sentence in (*self.strategy.sentences(), *self.strategy.use.sentences()):
            self.say(sentence)
        self._advise_on_host_memory()
        self._tick(ended=True)
        is_left = self.failed or self.given_up or self.unfinished or self.saved or self.feeder.left()
        is_left = is_left or (self.feeder.needs is not None and self.feeder.needs.left)
        return 0 if not (is_left or self.feeder.closed) else 1

    def _may_end(self) -> bool:
        """Return whether nothing was added to the run, so that a launcher with nothing left to do ends."""
        try:
            return self.growth.may_end(self.feeder)
        except StateError as error:
            self._close(f"{error}; {self.node.name} takes no added task any more")
            return True

    def _look_at_needs(self) -> None:
        """See which tasks that others wait for have ended on other nodes."""
        needs = self.feeder.needs
        if needs is None or self.feeder.closed:
            return
        is_running = bool(self.running or self.starting or self.strategy.waiting or self._is_paused())
        sentence = needs.look(is_running=is_running, progress=self.others.read())
        if sentence:
            self.say(f"{self.node.name}: {sentence}; {together.unfinished_text(self.run)}")

    def _look_for_added(self) -> None:
        """Take in the tasks that were added to the run."""
        try:
            if self.growth.look(self.feeder) and self.limits is None:
                self.limits = self._find_limits()
        except StateError as error:
            self._close(f"{error}; no further task starts on {self.node.name}")

    def _find_limits(self) -> TimeLimits | None:
        """Return the time limits of the tasks; None: there are none, so that none is looked at."""
        run, specs = self.run, self.shared.specs
        if not time_limits.has_limits(run, specs):
            return None
        return TimeLimits(run, specs, self._tell_to_save, self.say)

    def _is_waiting(self) -> bool:
        """Return whether something may still start or be done although no task runs."""
        if not self.feeder.closed and (
            self.growth.is_open or (self.feeder.needs is not None and self.feeder.needs.is_waiting)
        ):
            return True
        return self.strategy.waiting > 0 or (self.ranks is not None and self.ranks.is_awaited())

    def _advise_on_host_memory(self) -> None:
        if not self.host_lost:
            return
        said = outcomes.host_memory_advice(
            len(self.host_lost),
            self.shared.host.limit(),
            max(filter(None, self.host_lost), default=None),
            len(self.node.workers),
            self.run.retries,
            can_ask_more=run_folder.asks_for_memory(self.run),
        )
        self.say(f"{self.node.name}: {said}")

    def _fill(self) -> None:
        """Start tasks in the free workers until no free worker has a task that may start."""
        if self.feeder.closed:
            return
        idle: list[int] = []
        is_in_place = False
        try:
            while self.free and not self.feeder.closed and not self.is_held_up and not self._is_paused():
                is_in_place = is_in_place or self._is_in_place()  # asked once for the starts of a turn
                if not is_in_place:
                    self._close(
                        f"{self.shared.folder} {moved.WHILE_RUNNING}: no further task starts on {self.node.name}, "
                        "running tasks go on; llsub --resume and its present folder run what is left"
                    )
                    break
                found = self.strategy.next(self.free, idle)
                if found is None:
                    break
                if not self._start(*found):
                    self._free_workers(found[1])
        except StateError as error:
            self._close(f"{error}; no further task starts on {self.node.name}")
        self.free.extend(idle)
        self._note_given_up()
        if self.ranks is not None:
            parked = self.strategy.parked_workers()
            self.ranks.not_started(parked, "could not be started: its GPU or its MPS daemon has failed")
        if not (self.free or self.starting or self.running or self.feeder.closed) and self.node.workers:
            self._close(f"no worker of {self.node.name} is left in service; no further task starts there")

    def _note_given_up(self) -> None:
        """Record the waiting tasks that get no further attempt."""
        needs, found = self.feeder.needs, list(self.strategy.take_given_up())
        if needs is not None and not self.feeder.closed:
            found += needs.take_given_up()
        for one in found:
            self.results.write(
                replace(
                    self.blanks[0],
                    slot=None,
                    gpu=None,
                    gpu_uuid=None,
                    cpus="",
                    task=one.task,
                    rank=deal.rank_of(self.run, one.task, self.node.workers[0].rank),
                    attempt=one.attempt,
                    outcome=one.outcome,
                    started=round(time.time(), 3),
                    why=one.why,
                )
            )
            if needs is not None:
                needs.ended(one.task, one.outcome, one.why, is_again=False)
            if one.outcome == "given up":
                self.given_up += 1
                continue
            self.failed += 1
            self._stop_if_too_many_failed()

    def _is_paused(self) -> bool:
        return self.pause is not None and not self.feeder.closed and self.pause.left() > 0

    def _slow_down(self, outcome: Outcome, seconds: float) -> None:
        """Pause starts after many instant failures in a row, and log the first pause."""
        self.streak = failing.streak(self.streak, outcome, seconds)
        pause_s = failing.pause_s(self.streak, len(self.node.workers))
        if pause_s and self.pause is None:
            self.say(
                f"{self.streak} tasks in a row failed in less than {failing.INSTANT_S:g} s on {self.node.name}; "
                f"tasks start after pauses of up to {failing.PAUSE_MOST_S:g} s until a task is done or runs longer"
            )
        if pause_s:
            self.pause = Deadline.after(pause_s)

    def _stop_if_too_many_failed(self) -> None:
        """Start nothing more if as many tasks of the run have failed as --max-failures says; running tasks go on."""
        failed = self.failed + self.job_failed
        if failing.is_too_much(failed, self.growth.run.max_failures) and not self.feeder.closed:
            self._close(
                f"{failing.too_much_text(failed, self.growth.run)}: no further task starts on "
                f"{self.node.name}, running tasks go on"
            )

    def _close(self, sentence: str) -> None:
        self.say(sentence)
        self.feeder.closed = True

    def _is_in_place(self) -> bool:
        """Return whether the node's folder is still at its path.

        Otherwise another run may have taken the path, and would get logs and progress of ours. Open logs and results
        move along.
        """
        return self.place is None or _identity(self.folder) in (None, self.place)

    # ---- A task's start ----

    def _start(self, worker: int, task: Attempt) -> bool:
        """Request the start of an attempt; record the failure and return False if that is not possible."""
        rank = deal.rank_of(self.run, task.task, self.node.workers[worker].rank)
        task.worker, task.rank, task.started, task.clock = worker, rank, time.time(), time.monotonic()
        task.log = f"{self.folder}/{run_folder.log_name(self.run, rank, task.task)}"
        if self.ranks is not None:
            self.ranks.begun(rank)
        env = self.strategy.environment(task)
        if env is None:
            env = self.environments[worker]
            if rank != self.env_ranks[worker]:
                env.update(environment.of_rank(self.run, self.node, rank))
                self.env_ranks[worker] = rank
        if self.growth.run.added != self.run.added:
            env[_ENV_TASKS] = b"%d" % self.growth.run.tasks
        env[_ENV_TASK] = b"%d" % task.task
        env[_ENV_ATTEMPT] = b"%d" % task.attempt
        if self.shared.specs:
            own = environment.of_params(self.shared.specs[task.task].params)
            if env.set_own(own):
                env[_ENV_GIVEN] = environment.with_own(env.get(_ENV_GIVEN), own)
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.table.begin(worker, task.task, task.attempt, task.started, since_boot, task.gpu)
        try:
            task.log_start, task.out = self.logs.open(task)
            self.rates.before(task)
            argv = self._argv(task.task, env)
            cpus = frozenset(self.strategy.worker_of(task).place.cpus) if task.more_workers and self.run.bind else None
            self.starter.start(worker, argv, env, task.out, cpus)
        except (OSError, ValueError) as error:
            self._did_not_start(task, error)
            return False
        self.starting[worker] = task
        return True

    def _free_workers(self, task: Attempt) -> None:
        """Give back the workers of an attempt that does not run."""
        self.free.append(task.worker)
        self.free.extend(task.more_workers)
        task.more_workers = ()

    def _argv(self, task: int, env: task_process.Environment) -> Sequence[str]:
        """Return program and arguments of a task; for a kept script that imports from its own folder, change `env`."""
        argv = deal.argv_of(self.run, self.shared.lines, task, self.shell)
        script = self.shared.script
        executed = script.executed(argv)
        if executed is not argv and script.is_python:
            path = self.strategy.common.get(_PYTHONPATH, b"")
            env[_PYTHONPATH] = os.fsencode(script.folder) + (b":" + path if path else b"")
        return executed

    def _note_starts(self, patience_s: float = 0.0) -> None:
        """Process the starts that have succeeded or failed; wait up to `patience_s` for the first one."""
        while (begun := self.starter.begun(patience_s)) is not None:
            patience_s = 0.0
            task = self.starting.pop(begun.worker)
            if begun.error is not None:
                self._did_not_start(task, begun.error)
                self._free_workers(task)
                continue
            self.logs.close(task)
            self.never_started = 0
            self.problem_deadline = None
            task.pid = begun.pid
            self.running[task.pid] = task
            self.rates.began(task.gpus)
            if begun.is_on_its_cores != self.is_on_its_cores[task.worker]:
                self._note_cores(task.worker, is_on_them=begun.is_on_its_cores)
            if self.is_told_to_end:
                task_process.tell_to_end(task.pid, self.stop_with)
            elif self.is_saving:
                self._tell_to_save(task)

    def _note_cores(self, worker: int, *, is_on_them: bool) -> None:
        """Omit the cores from results while a worker's tasks cannot have them; log the first time."""
        blank = blank_result(self.run, self.node, self.node.workers[worker])
        if not is_on_them and all(self.is_on_its_cores):
            self.say(
                f"the job has lost the cores {blank.cpus} of {self.node.name}; tasks for these cores run on others"
            )
        self.is_on_its_cores[worker] = is_on_them
        self.blanks[worker] = blank if is_on_them else replace(blank, cpus="")

    def _await_starts(self) -> bool:
        """Wait for pending starts; return False if none completes within START_S, as with a hanging file server."""
        self._note_starts()
        while (before := len(self.starting)) > 0:
            self._note_starts(START_S)
            if len(self.starting) == before:
                return False
        return True

    def _did_not_start(self, task: Attempt, error: OSError | ValueError) -> None:
        self.logs.close(task)
        if isinstance(error, OSError) and error.errno in task_process.PASSING:
            self._hold_up(task, error)
            return
        program = self.shared.script.program() if self.run.command else self.shell
        why = task_process.why_not_started(program, task.log, error)
        self._ended(task, "not started", why)
        self._write_down()
        self.never_started += 1
        if self.never_started >= NEVER_STARTED_MAX and not self.feeder.closed:
            self._close(
                f"{self.never_started} tasks in a row could not be started on {self.node.name} ({why}); no further "
                "task starts there"
            )

    def _hold_up(self, task: Attempt, error: OSError) -> None:
        """Put the attempt back and start nothing until the next tick."""
        self.table.clear(task.worker)
        self.strategy.put_back(task)
        if self.ranks is not None:
            self.ranks.put_back(task.rank)
        self.is_held_up = True
        if self.problem_deadline is None:
            self.problem_deadline = Deadline.after(PROBLEM_S)
        if not self.is_problem_logged:
            self.is_problem_logged = True
            self.say(f"{self.node.name} cannot start a task now ({error.strerror}); it tries again every second")
        elif self.problem_deadline.left() == 0 and not (self.running or self.starting or self.feeder.closed):
            self._close(f"{self.node.name} could start nothing for {PROBLEM_S:g} s ({error.strerror}); it gives up")

    # ---- A task's end ----

    def _reap(self) -> bool:
        """Collect every task that has ended; return False if none has."""
        found = False
        while (seen := self._next_ended()) is not None:
            found = True
            if self.stopping is None and seen.si_code != os.CLD_EXITED and seen.si_status in STOPS:
                self._write_down()
                self._take_signals(DOUBT_S)
            elif self.run.checkpoint_signal is not None and not self.is_saving:
                self._take_signals()  # Slurm may have signalled the task before us
            task = self.running.pop(seen.si_pid, None)
            code = seen.si_status if seen.si_code == os.CLD_EXITED else None
            number = None if code is not None else seen.si_status
            if task is not None:
                # First the table, then wait4: if the launcher dies in between, the guard records this end exactly once.
                self.table.end(task.worker, code, number)
            try:
                _, _, usage = os.wait4(seen.si_pid, 0)
            except ChildProcessError:
                continue  # a failed start: its thread has already waited for the process
            if task is None:
                continue  # an adopted descendant of a task
            if task_process.signal_group(task.pid, 0):
                self.lingering[task.pid] = (self.stopping if self.is_told_to_end else None) or Deadline.after(LEFT_S)
            if usage.ru_maxrss > self.own_peak_kib:
                self.own_peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # read rarely: it only grows
            task.rss_mib = usage.ru_maxrss // 1024 if usage.ru_maxrss > self.own_peak_kib else None
            task.cpu_s = usage.ru_utime + usage.ru_stime
            self.rates.ended(task)
            self.strategy.use.ended(task)
            outcome, why = self._outcome(task, code, number)
            self._ended(task, outcome, why, code, number)
            self._free_workers(task)
        self._write_down()
        return found

    def _next_ended(self) -> os.waitid_result | None:
        """Return an ended child without waiting for it (WNOWAIT); None: there is none that can be processed now."""
        try:
            seen = os.waitid(os.P_ALL, 0, ENDED)
            if seen is None or seen.si_pid in self.running:
                return seen
            # Either a task that ended before its start was processed, or an adopted descendant of a task.
            if self._await_starts() or seen.si_pid in self.running:
                return seen
            return next(filter(None, (os.waitid(os.P_PID, pid, ENDED) for pid in self.running)), None)
        except ChildProcessError:
            return None

    def _outcome(self, task: Attempt, code: int | None, number: int | None) -> tuple[Outcome, str]:
        is_told = task.is_moving or task.is_told_to_save or bool(task.turn_over) or task.over_time_s is not None
        if code == 0 and self.stopping is None and not is_told:
            return "done", ""
        # Slurm may have signalled the task before us.
        was_signalled = has_signal(code, number, self.run.checkpoint_signal)
        facts = EndFacts(
            task=task.task,
            now_s=time.monotonic(),
            code=code,
            signal=number,
            is_stopped_by_us=self.is_told_to_end,
            is_told_to_save=task.is_told_to_save or bool(task.turn_over) or was_signalled,
            over_time="" if self.limits is None else self.limits.text(task),
            is_host_memory=task.over_time_s is None
            and may_be_host_memory(code, number)
            and self._was_killed_for_memory(code, number),
            log_tail=task_logs.read_tail(task.log, task.log_start),
        )
        outcome, why = self.strategy.judge(task, facts)
        if self.ranks is not None:
            outcome, why = self.ranks.outcome(task, facts, outcome, why)
        if outcome == "host memory":
            why += outcomes.host_memory_text(self.shared.host.limit(), task.rss_mib)
        return outcome, why

    def _was_killed_for_memory(self, code: int | None, number: int | None) -> bool:
        """Return whether one of the kernel's memory kills is attributed to this end.

        The kernel counts its kills and does not name the processes. An end by SIGKILL takes any kill that is not yet
        attributed; any other failure takes only a kill since the last reading.
        """
        kills = self.shared.host.kills()
        risen, self.host_kills = max(kills - self.host_kills, 0), max(kills, self.host_kills)
        self.unblamed_kills += risen
        if self.unblamed_kills and (risen or has_signal(code, number, signal.SIGKILL)):
            self.unblamed_kills -= 1
            return True
        return False

    def _ended(
        self, task: Attempt, outcome: Outcome, why: str, code: int | None = None, number: int | None = None
    ) -> None:
        seconds = time.monotonic() - task.clock
        self._slow_down(outcome, seconds)
        if self.ranks is not None:
            self.ranks.ended(task.rank, outcome, code, number)
        is_again = self.strategy.finished(task, outcome)
        if self.feeder.needs is not None:
            self.feeder.needs.ended(task.task, outcome, why, is_again=is_again)
        blank = self.blanks[task.worker]
        if task.gpu is not None:
            blank = on_gpu(self.node, blank, task.gpu)
        if task.more_workers and blank.cpus:
            blank = replace(blank, cpus=fold(self.strategy.worker_of(task).place.cpus))
        self.unwritten[task.worker] = replace(
            blank,
            task=task.task,
            rank=task.rank,
            attempt=task.attempt,
            outcome=outcome,
            started=round(task.started, 3),
            seconds=round(seconds, 3),
            code=code,
            signal=number,
            peak_gpu_mib=task.gpu_peak_mib,
            gpu_cap_mib=task.cap_mib,
            gpu_booked_mib=UNSET if self.run.pack is None else task.start_mib,
            gpu_needs_mib=UNSET if task.needs_mib is None else task.needs_mib,
            units=task.units,
            rate_per_s=task.rate_per_s,
            rate_source=task.rate_source,
            speed_ratio=task.speed_ratio,
            energy_j=task.energy_j,
            energy_rule=task.energy_rule,
            gpu_sm_percent=task.gpu_sm_percent,
            gpu_idle_s=task.gpu_idle_s,
            turn_over=round(task.turn_over, 3) or UNSET,
            peak_rss_mib=task.rss_mib,
            cpu_seconds=None if task.cpu_s is None else round(task.cpu_s, 3),
            why=why,
            again=True if is_again else UNSET,
            gpu_guaranteed_mib=UNSET if task.least_mib is None else task.least_mib,
        )
        if outcome == "done":
            self.done += 1
        elif outcome == "unfinished":
            self.unfinished += not is_again
        elif outcome == "saved":
            self.saved += not is_again
        elif not is_again:
            self.failed += 1
            if outcome == "host memory":
                self.host_lost.append(task.rss_mib)
            self._stop_if_too_many_failed()

    def _write_down(self) -> None:
        """Write the results of all ended tasks. Call it before their workers start other tasks.

        Until then the guard finds the ended tasks in the table.
        """
        if not self.unwritten:
            return
        self.results.write(*self.unwritten.values())
        for worker in self.unwritten:
            self.table.clear(worker)
        self.unwritten.clear()

    # ---- Signals ----

    def _take_signals(self, patience_s: float = 0.0) -> None:
        """Handle pending signals; with `patience_s`, wait until one of STOPS arrives or the time is over."""
        deadline = Deadline.after(patience_s)
        while True:
            received = signal.sigtimedwait(COMMAND_SIGNALS, 0)
            if received is not None:
                self._handle(received.si_signo)
            elif deadline.left() == 0 or self.stopping is not None:
                return
            else:
                time.sleep(0.01)

    def _handle(self, signo: int) -> None:
        if signo not in COMMAND_SIGNALS:
            return
        number, now = signal.Signals(signo), time.monotonic()
        if now - self.last_signals.get(number, -ONCE_S) < ONCE_S:
            return
        self.last_signals[number] = now
        self._await_starts()  # tasks that are being started get the signal too
        if number == self.run.checkpoint_signal and number not in STOPS:
            self._begin_to_save(number)
        elif number not in STOPS:
            # For the tasks only; what they do then, and whether they end, is not known here.
            for pid in self.running:
                task_process.signal_group(pid, number)
        elif self.stopping is None:
            self._begin_to_stop(number)
        elif number is signal.SIGINT:
            self._tell_to_end()
            self.stopping = Deadline.after(0)  # a second Ctrl-C: SIGKILL at once
            self.lingering = dict.fromkeys(self.lingering, self.stopping)
        elif number is signal.SIGTERM and self.telling is not None:
            # The grace of a preemption is over, and KillWait begins. A repetition of the first one changes nothing.
            self.telling, self.stopping = self.telling.at_most(GRACE_S - TERM_S), self.stopping.at_most(GRACE_S)

    @property
    def is_told_to_end(self) -> bool:
        """Return whether the run ends and tasks are told to end; they may have been told to save their state before."""
        return self.stopping is not None and self.telling is None

    def _begin_to_save(self, number: signal.Signals, *, again: bool = True) -> None:
        """Start nothing more, because the job ends soon, and tell all tasks to save their state.

        `again`: also those that have been told before.
        """
        if not self.is_saving:
            self.is_saving = True
            self.feeder.closed = True
            self.strategy.resume_all()
            running = fold(task.task for task in (*self.running.values(), *self.starting.values()))
            self.say(
                f"{number.name}: no further task starts on {self.node.name}; told to save their state and end: "
                f"{running or 'none'}; {together.unfinished_text(self.run)}"
            )
            if self.asked_end is None and (self.node.index == 0 or number in STOPS):
                self.asked_end = JobEnd.ask(self.node.job)
        for task in self.running.values():
            if again or not task.is_told_to_save:
                self._tell_to_save(task)

    def _end_turns(self) -> None:
        """Tell tasks to save their state whose turn is over, if others wait."""
        if self.turns is None or self.feeder.closed or self.is_held_up or self._is_paused():
            return
        try:
            waiting = self.strategy.count_waiting()
        except StateError:
            return  # the next start says so
        self.turns.check(self.running, waiting, self.strategy.paused)

    def _signal_to_save(self, task: Attempt) -> None:
        assert self.run.checkpoint_signal is not None
        task_process.signal_group(task.pid, self.run.checkpoint_signal)

    def _tell_to_save(self, task: Attempt) -> None:
        assert self.run.checkpoint_signal is not None
        task.is_told_to_save = True
        task_process.signal_group(task.pid, self.run.checkpoint_signal)

    def _begin_to_stop(self, number: signal.Signals) -> None:
        """Start nothing more, forward the signal to all tasks, and set the deadline for SIGKILL."""
        self.stopping = Deadline.after(GRACE_S)
        self.feeder.closed = True
        self.stop_with = signal.SIGTERM if number is signal.SIGHUP else number
        self.strategy.resume_all()
        has_failed = self.ranks is not None and self.ranks.is_ending
        if self.run.checkpoint_signal is not None and number is signal.SIGTERM and not has_failed:
            # At a preemption, at scancel and at a time limit without @SECONDS, SIGTERM is the only notice.
            self.telling = Deadline.after(GRACE_S - TERM_S)
            self._begin_to_save(number, again=False)
            return
        for pid in self.running:
            task_process.tell_to_end(pid, self.stop_with)
        running = fold(task.task for task in (*self.running.values(), *self.starting.values()))
        self.say(
            f"{number.name}: no further task starts on {self.node.name}; told to end: {running or 'none'}; "
            f"{together.unfinished_text(self.run)}"
        )

    def _tell_to_end(self) -> None:
        """Send the stop signal to tasks that have only been told to save their state."""
        if self.telling is None:
            return
        self.telling = None
        for pid in self.running:
            task_process.tell_to_end(pid, self.stop_with)

    def _use_job_end(self) -> None:
        """Say when the job ends as soon as Slurm has answered; at a preemption, give the tasks until then."""
        if self.asked_end is None or not self.asked_end.is_answered:
            return
        asked, self.asked_end = self.asked_end, None
        end = asked.answer()
        if asked.problem is not None:
            self.say(f"when the job ends is not known, so no task has more than {GRACE_S:g} s: {asked.problem}")
        if end is None:
            return
        self.say(end_text(end, time.time()))
        left_s = checkpoint.preemption_left_s(end, time.time())
        # A late answer also helps tasks that have been told to end and still save their state.
        if self.stop_with is signal.SIGTERM and self.stopping is not None and left_s > self.stopping.left() > 0:
            self.stopping = Deadline.after(left_s)
            if self.telling is not None:
                self.telling = Deadline.after(left_s - TERM_S)

    def _tick(self, *, ended: bool = False) -> None:
        """Do what is due about once a second: sample, check disk and limits, write the progress."""
        self.is_held_up = False
        if not ended:
            self._look_for_added()
            self._look_at_needs()
        self.logs.close_unused(self.starting.values())
        self._end_what_lingers()
        self._use_job_end()
        if self.telling is not None and self.telling.left() == 0:
            self._tell_to_end()
        if self.stopping is not None and self.stopping.left() == 0:
            for pid in self.running:
                task_process.kill(pid)
        self._end_turns()
        if self.limits is not None and self.stopping is None and not self.is_saving:
            self.limits.check(self.running, time.monotonic(), self.strategy.paused)
        self.rates.update(self.running, self.strategy, self.done)
        self.strategy.tick()
        self._name_leases()
        if ended or self.settle.left() == 0:
            self.settle = Deadline.after(SETTLE_S)
            self.results.settle()
        self._check_disk()
        if self.ranks is not None:
            self.ranks.tick()
        work = self.rates.work_rate(self.strategy)
        is_in_place = self._is_in_place()
        self.strategy.use.tick(None if work is None else work.per_s, may_write=is_in_place, ended=ended)
        progress = Progress(
            node=self.node.name,
            job=self.node.job,
            processes=len(self.node.workers),
            running=len(self.running) + len(self.starting),
            done=self.done,
            failed=self.failed,
            saved=self.saved,
            given_up=self.given_up,
            left=self.strategy.left(),
            at=round(time.time(), 3),
            began=self.began,
            ended=ended,
            work=work,
            waits=() if self.ranks is None else self.ranks.waits(),
            exit_code=0 if self.ranks is None else self.ranks.exit_code,
            tasks=self.growth.run.tasks,
        )
        if is_in_place:
            self.shared.events.progress(progress)
        self.shared.show(progress)
        if self.run.max_failures is not None and self.node.count > 1:
            others = [one for one in self.others.read() if one.job == self.node.job and one.node != self.node.name]
            self.job_failed = sum(one.failed for one in others)
            self._stop_if_too_many_failed()

    def _check_disk(self) -> None:
        try:
            room = os.statvfs(self.folder)
        except OSError:
            return
        error = self.results.write_error
        if ((room.f_blocks and room.f_bavail == 0) or error is not None) and not self.disk_full:
            self.disk_full = True
            why = "is full" if error is None else f"cannot be written ({error.strerror})"
            self.say(
                f"the disk of {self.folder} {why}: logs of tasks that run from {time.strftime('%H:%M:%S')} on at "
                f"{self.node.name} may be incomplete or missing"
            )

    def _name_leases(self) -> None:
        """Write the task of each slot into its lease, for `slurm-share status`. Too slow for every start."""
        if self.node.leases is None:
            return
        for task in self.running.values():
            slot = self.node.workers[task.worker].slot
            if slot is not None:
                self.node.leases.name(slot, task.pid)

    def _end_what_lingers(self) -> None:
        """End processes left in the groups of ended tasks: SIGTERM after half of their time, SIGKILL at its end.

        The kernel does not reuse a PID while a group has it. So if a process with that PID exists, the group is gone.
        """
        for leader, deadline in list(self.lingering.items()):
            if not task_process.signal_group(leader, 0) or os.path.exists(f"/proc/{leader}"):  # noqa: PTH110
                del self.lingering[leader]
            elif deadline.left() == 0:
                task_process.signal_group(leader, signal.SIGKILL)
            elif not self.is_told_to_end and deadline.left() < LEFT_S / 2:
                task_process.signal_group(leader, signal.SIGTERM)


def _identity(folder: str) -> tuple[int, int] | None:
    """Return device and inode of a folder, (0, 0) if it is gone; None: not known, as with a lost file server."""
    try:
        found = os.stat(folder)  # noqa: PTH116  # before starts; a Path costs more than the call
    except FileNotFoundError:
        return 0, 0
    except OSError:
        return None
    return found.st_dev, found.st_ino
