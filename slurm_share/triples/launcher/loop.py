"""Start a node's tasks, watch them, record how each ended, and retry those that may be retried.

One thread decides, with one wait: all signals that matter are blocked and taken from sigwaitinfo(2), so that no handler
ever runs between two lines. Other threads only start what they are told to (task_process.py). A task costs one
posix_spawn, two waits and one line in results.jsonl; lines of tasks that end together are one write.

Not sigtimedwait(2) with a timeout: interrupted by SIGSTOP and SIGCONT (`scontrol suspend`) when the time is over,
CPython answers with a siginfo that nobody has filled in (seen with 3.11 and 3.14). A timer's SIGALRM is one more signal
to wait for.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from ...core.errors import StateError
from ...core.process import Deadline, end
from ...core.text import fold
from ...node import descendants
from ...node.memory import HostMemory
from .. import run_folder
from ..records import (
    ENV_ATTEMPT,
    ENV_TASK,
    Ended,
    Outcome,
    Progress,
    Run,
)
from ..result_files import Results
from ..rules import deal, failing, outcomes, task_command, together
from . import environment, leftovers, start_errors, task_logs, task_process
from .even_caps import EvenCaps
from .feeder import Feeder, Turn
from .node import Node, blank_result, on_gpu
from .pauses import Pauses
from .rates import Rates
from .running import Running
from .start_errors import NO_PROCESSES
from .strategy import Strategy
from .table import Table
from .task_logs import TaskLogs
from .watchdog import Watchdog

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from ...packing import TaskSpec
    from .rendezvous import Rendezvous

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""No further task, and those that run are told to end."""
COMMAND_SIGNALS = (*STOPS, signal.SIGUSR1, signal.SIGUSR2)
"""What others tell us."""
SIGNALS = (*COMMAND_SIGNALS, signal.SIGCHLD, signal.SIGALRM)
"""Blocked in the launcher, and waited for."""
ONCE_S = 0.5
"""slurmstepd signals the processes of a step one by one, and the guard passes on what it gets: the same word twice in
so short a time is one word."""
DOUBT_S = 0.1
"""A task that one of STOPS ended may have received it just before us: its end is not recorded for this long."""
LEFT_S = 2.0
"""For what a task has started and left behind (a `tee` of its output, say) to come to its end by itself."""
ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
START_S = 0.1
"""For the next of the starts under way to come back, where somebody has to wait for it."""
PROBLEM_S = 60.0
"""How long the run goes on, seconds, while nothing runs and nothing can be started for want of processes,
descriptors, memory or disk space."""
GRACE_S = 25.0
"""From the request to end until SIGKILL: less than Slurm's KillWait (30 s), so that there is time to write down what
became of every task."""
TICK_S = 1.0
SETTLE_S = 10.0
"""Between two fsyncs of the results: what the machine may forget when it loses power, not what a killed launcher may.
Each waits for the journal, and with it for every log that was made meanwhile."""
MEMORY_TICK_S = 0.25
"""While an attempt waits for memory."""
NEVER_STARTED_MAX = 100
"""A node that has lost the script's file system fails tasks faster than the others can do them, and would empty a queue
that nodes share."""
_ENV_TASK, _ENV_ATTEMPT = ENV_TASK.encode(), ENV_ATTEMPT.encode()


class Loop:
    """Run one node's tasks, from the first to the last."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        node: Node,
        feeder: Feeder,
        results: Results,
        table: Table,
        *,
        environ: Mapping[str, str],
        lines: Sequence[str],
        specs: Sequence[TaskSpec] = (),
        out_of_memory: Mapping[int, Ended] | None = None,
        was_here: bool,
        say: Callable[[str], None],
        show: Callable[[Progress], None],
        watchdog: Watchdog | None = None,
        rendezvous: Rendezvous | None = None,
    ) -> None:
        """`folder` is the run's, `lines` are those of the tasks file. `specs`: what each task of a packed run asks for;
        empty: all the same. `out_of_memory`: the last attempt of tasks that ran out of GPU memory in earlier jobs.
        `was_here`: logs of an earlier job may be there, and are appended to. `say` gives a sentence to the person who
        reads the job's log; `show` is given the progress about once a second. `watchdog` None: no task may be paused.
        `rendezvous`: of a run of ranks.
        """
        self.what = run
        self.began = round(time.time(), 3)
        self.rates = Rates(run, node, say)
        self.node = node = replace(node, progress_folder=self.rates.folder)
        self.feeder = feeder
        self.results = results
        self.table = table
        self.lines = lines
        self.say = say
        self.show = show
        self.running: dict[int, Running] = {}
        """By pid."""
        self.starting: dict[int, Running] = {}
        """Worker -> the task that is being started in it."""
        self.free: deque[int] = deque(range(len(node.workers)))
        self.logs = TaskLogs(run, was_here=was_here)
        self.host = HostMemory()
        self._begin()
        self.folder = str(node.folder)
        self.run_folder = folder
        common = environment.of_run(run, folder, environ)
        self.strategy: Strategy
        if rendezvous is not None:
            from .together import Together

            of_even_caps = (run, node, feeder, common, self.host, self.running, self.starting, say)
            self.strategy = Together(*of_even_caps, rendezvous=rendezvous, folder=folder)
        elif run.pack is None:
            self.strategy = EvenCaps(run, node, feeder, common, self.host, self.running, self.starting, say)
        else:
            from .packed import Packed  # here: a plain run need not wait for what it does not use

            self.strategy = Packed(
                run, folder, node, feeder, common, self.host, self.running, lines, specs, out_of_memory or {}, say,
                Pauses(table, watchdog, say),
            )  # fmt: skip
        self.environments = [
            task_process.Environment(environment.of_worker(common, run, node, worker)) for worker in node.workers
        ]
        self.env_ranks = [worker.rank for worker in node.workers]
        """Worker -> the rank that is in its environment now."""
        self.cpus = [frozenset(worker.place.cpus) if run.bind else None for worker in node.workers]
        self.starter = task_process.Starter(self.cpus, [table.pid_of(worker) for worker in range(len(node.workers))])
        self.is_on_its_cores = [True] * len(node.workers)
        self.blanks = [blank_result(run, node, worker) for worker in node.workers]

    def _begin(self) -> None:
        """Begin with nothing done, and nothing heard."""
        self.unwritten: dict[int, Ended] = {}
        """Worker -> the result of the attempt that ended there."""
        self.own_peak_kib = 0
        """The launcher's own peak memory when it was last read."""
        self.done = 0
        self.failed = 0
        self.unfinished = 0
        self.host_kills = self.host.kills()
        self.unblamed_kills = 0
        self.heard: dict[signal.Signals, float] = {}
        """When each word came last."""
        self.problem_deadline: Deadline | None = None
        """Since a start has failed of something that may pass."""
        self.is_problem_told = False
        self.is_held_up = False
        """Nothing starts before the next tick."""
        self.streak = 0
        """Tasks in a row that failed at once."""
        self.pause: Deadline | None = None
        """Nothing starts before it is over."""
        self.job_failed = 0
        """Tasks that have failed on other nodes."""
        self.never_started = 0
        """Tasks in a row that could not even be started."""
        self.stopping: Deadline | None = None
        self.stop_with = signal.SIGTERM
        """What the tasks are told when it is time to end."""
        self.lingering: dict[int, Deadline] = {}
        """Groups whose leader has ended while other processes still run, and for how long they may."""
        self.disk_full = False
        self.settle = Deadline.after(SETTLE_S)

    # ---- The loop ----

    def run(self) -> int:
        """Run the tasks; return 0 if every task that this node took is done, else 1."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self.strategy.sampler.start()
            self.starter.make_threads()
        except RuntimeError:  # Python says no more of it
            self._close(f"{self.node.name} cannot make the launcher's threads: {NO_PROCESSES}; no task starts there")
        tick, armed = time.monotonic(), None
        while True:
            self._listen()
            self._note_starts()
            self._fill()
            if not (self.starting or self.running or self.lingering or self.strategy.waiting or self._is_paused()):
                break
            now = time.monotonic()
            if now >= tick:
                self._tick()
                tick = now + (MEMORY_TICK_S if self.strategy.waiting or self.lingering else TICK_S)
            if not self._reap():
                if armed != tick:
                    signal.setitimer(signal.ITIMER_REAL, max(tick - now, 0.001))
                    armed = tick
                signo = signal.sigwaitinfo(SIGNALS).si_signo
                if signo == signal.SIGALRM:
                    armed = None  # it may come a moment too early
                self._hear(signo)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.strategy.sampler.stop()
        leftovers.end_children(LEFT_S, lambda pid, status: None)
        self.rates.close()
        for sentence in self.strategy.sentences():
            self.say(sentence)
        self._tick(ended=True)
        return 0 if not (self.failed or self.unfinished or self.strategy.lost_workers or self.feeder.closed) else 1

    def _fill(self) -> None:
        """Start tasks in the free workers."""
        if self.feeder.closed:
            return
        idle: list[int] = []
        try:
            while self.free and not self.feeder.closed and not self.is_held_up and not self._is_paused():
                found = self.strategy.next(self.free, idle)
                if found is None:
                    break
                if not self._start(*found):
                    self.free.append(found[0])
        except StateError as error:
            self._close(f"{error}; no further task starts on {self.node.name}")
        self.free.extend(idle)
        self._note_given_up()
        if not (self.free or self.starting or self.running or self.feeder.closed) and self.node.workers:
            self._close(f"no worker of {self.node.name} is left; no further task starts there")

    def _note_given_up(self) -> None:
        """Record the waiting tasks that get no further attempt."""
        for one in self.strategy.take_given_up():
            first = self.node.workers[0]
            rank = deal.rank_of(self.what, one.task, first.rank)
            nowhere = replace(self.blanks[0], slot=None, gpu=None, gpu_uuid=None, cpus="")
            started = round(time.time(), 3)
            self.results.write(
                replace(
                    nowhere,
                    task=one.task,
                    rank=rank,
                    attempt=one.attempt,
                    outcome=one.outcome,
                    started=started,
                    why=one.why,
                )
            )
            self.failed += 1
            self._stop_if_too_many_failed()

    def _is_paused(self) -> bool:
        return self.pause is not None and not self.feeder.closed and self.pause.left() > 0

    def _slow_down(self, outcome: Outcome, seconds: float) -> None:
        """Pause the starts after many tasks in a row that failed at once, and say so the first time."""
        self.streak = failing.streak(self.streak, outcome, seconds)
        pause_s = failing.pause_s(self.streak, len(self.node.workers))
        if pause_s and self.pause is None:
            self.say(
                f"{self.streak} tasks in a row failed in less than {failing.INSTANT_S:g} s on {self.node.name}; from "
                f"now on they start after pauses of up to {failing.PAUSE_MOST_S:g} s, until one does better"
            )
        if pause_s:
            self.pause = Deadline.after(pause_s)

    def _stop_if_too_many_failed(self) -> None:
        """Start nothing more if more tasks of the run have failed than --max-failures allows; what runs goes on."""
        failed = self.failed + self.job_failed
        if failing.is_too_much(failed, self.what.max_failures) and not self.feeder.closed:
            self._close(
                f"{failing.too_much_text(failed, self.what.max_failures)}: no further task starts on "
                f"{self.node.name}, what runs goes on"
            )

    def _close(self, sentence: str) -> None:
        self.say(sentence)
        self.feeder.closed = True

    # ---- A task's beginning ----

    def _start(self, worker: int, turn: Turn) -> bool:
        """Start an attempt; return False if it could not start, which is recorded."""
        rank = deal.rank_of(self.what, turn.task, self.node.workers[worker].rank)
        log = f"{self.folder}/{run_folder.log_name(self.what, rank, turn.task)}"
        task = Running(worker, turn, rank, log, 0, time.time())
        env = self.strategy.environment(task)
        if env is None:
            env = self.environments[worker]
            if rank != self.env_ranks[worker]:
                env.update(environment.of_rank(self.what, self.node, rank))
                self.env_ranks[worker] = rank
        env[_ENV_TASK] = b"%d" % turn.task
        env[_ENV_ATTEMPT] = b"%d" % turn.attempt
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.table.begin(worker, turn.task, turn.attempt, task.started, since_boot, task.gpu)
        try:
            task.log_start, task.out = self.logs.open(turn, log)
            self.rates.before(task)
            self.starter.start(worker, self._argv(turn.task), env, task.out)
        except (OSError, ValueError) as error:
            self._did_not_start(task, error)
            return False
        self.starting[worker] = task
        return True

    def _note_starts(self, patience_s: float = 0.0) -> None:
        """Note what has started, and what has not; wait for one of them that long."""
        while (begun := self.starter.begun(patience_s)) is not None:
            patience_s = 0.0
            task = self.starting.pop(begun.worker)
            if begun.error is not None:
                self._did_not_start(task, begun.error)
                self.free.append(task.worker)
                continue
            self.logs.close(task)
            self.never_started = 0
            self.problem_deadline = None
            task.pid = begun.pid
            self.running[task.pid] = task
            self.rates.began(self.strategy.gpus(task))
            if begun.is_on_its_cores != self.is_on_its_cores[task.worker]:
                self._note_cores(task.worker, is_on_them=begun.is_on_its_cores)
            if self.stopping is not None:
                self._tell_to_stop(task.pid)

    def _note_cores(self, worker: int, *, is_on_them: bool) -> None:
        """Record no cores of a worker for as long as its tasks cannot have them; say so the first time."""
        blank = blank_result(self.what, self.node, self.node.workers[worker])
        if not is_on_them and all(self.is_on_its_cores):
            self.say(
                f"the job has lost the cores {blank.cpus} of {self.node.name}; tasks that should be there run on others"
            )
        self.is_on_its_cores[worker] = is_on_them
        self.blanks[worker] = blank if is_on_them else replace(blank, cpus="")

    def _await_starts(self) -> bool:
        """Wait for pending starts; return False if one takes longer, as on a file server that does not answer.
        It is not to hold up others.
        """
        self._note_starts()
        while (before := len(self.starting)) > 0:
            self._note_starts(START_S)
            if len(self.starting) == before:
                return False
        return True

    def _did_not_start(self, task: Running, error: OSError | ValueError) -> None:
        self.logs.close(task)
        if isinstance(error, OSError) and start_errors.is_passing(error):
            self._hold_up(task.turn, task.worker, error)
            return
        program = self.what.command[0] if self.what.command else "/bin/sh"
        why = start_errors.why_not_started(program, task.log, error)
        self._ended(task, "not started", why)
        self._write_down()
        self.never_started += 1
        if self.never_started >= NEVER_STARTED_MAX and not self.feeder.closed:
            self._close(
                f"{self.never_started} tasks in a row could not be started on {self.node.name} ({why}); no further one "
                "is tried there"
            )

    def _hold_up(self, turn: Turn, worker: int, error: OSError) -> None:
        """Put the attempt back and start nothing until the next tick."""
        self.table.clear(worker)
        self.strategy.put_back(turn)
        self.is_held_up = True
        if self.problem_deadline is None:
            self.problem_deadline = Deadline.after(PROBLEM_S)
        if not self.is_problem_told:
            self.is_problem_told = True
            self.say(f"{self.node.name} cannot start a task now ({error.strerror}); it is tried again every second")
        elif self.problem_deadline.left() == 0 and not (self.running or self.starting or self.feeder.closed):
            self._close(f"{self.node.name} could start nothing for {PROBLEM_S:g} s ({error.strerror}); it gives up")

    def _argv(self, task: int) -> tuple[str, ...]:
        return task_command.argv_of(self.what, self.lines, task)

    # ---- A task's end ----

    def _reap(self) -> bool:
        """Collect every task that has ended; return False if none has."""
        found = False
        while True:
            seen = self._next_ended()
            if seen is None:
                break
            found = True
            if self.stopping is None and seen.si_code != os.CLD_EXITED and seen.si_status in STOPS:
                self._write_down()
                self._listen(DOUBT_S)
            task = self.running.pop(seen.si_pid, None)
            code = seen.si_status if seen.si_code == os.CLD_EXITED else None
            number = None if code is not None else seen.si_status
            if task is not None:
                # In this order a launcher that dies at any point leaves enough for its guard to write it down once.
                self.table.end(task.worker, code, number)
            try:
                _, _, usage = os.wait4(seen.si_pid, 0)
            except ChildProcessError:
                continue  # a start that failed: the thread of that start has waited for its process
            if task is None:
                continue  # a grandchild whose parents are gone
            if task_process.group_is_there(task.pid):
                self.lingering[task.pid] = self.stopping or Deadline.after(LEFT_S)
            if usage.ru_maxrss > self.own_peak_kib:
                self.own_peak_kib = _own_peak_kib()  # it only grows
            task.rss_mib = usage.ru_maxrss // 1024 if usage.ru_maxrss > self.own_peak_kib else None
            task.cpu_s = usage.ru_utime + usage.ru_stime
            self.rates.ended(task, self.strategy)
            outcome, why = self._outcome(task, code, number)
            self._ended(task, outcome, why, code, number)
            self.free.append(task.worker)
        self._write_down()
        return found

    def _next_ended(self) -> os.waitid_result | None:
        """Return a child that has ended and that nobody has waited for."""
        try:
            seen = os.waitid(os.P_ALL, 0, ENDED)
            if seen is None or seen.si_pid in self.running:
                return seen
            # A task that has ended before we heard that it had begun, or a grandchild whose parents are gone.
            if self._await_starts() or seen.si_pid in self.running:
                return seen
            return next(filter(None, (os.waitid(os.P_PID, pid, ENDED) for pid in self.running)), None)
        except ChildProcessError:
            return None

    def _outcome(self, task: Running, code: int | None, number: int | None) -> tuple[Outcome, str]:
        if code == 0 and self.stopping is None and not task.is_moving:
            return "done", ""
        ending = outcomes.Ending(code, number, stopped_by_us=self.stopping is not None)
        host_oom = outcomes.may_be_memory(ending) and self._was_killed_for_memory(ending)
        tail = task_logs.read_tail(task.log, task.log_start)
        return self.strategy.judge(task, replace(ending, host_oom=host_oom, log_tail=tail))

    def _was_killed_for_memory(self, ending: outcomes.Ending) -> bool:
        """The kernel counts its kills and does not say whom. A kill is a SIGKILL, so such an end comes first for the
        blame; another failure has it only where the count has just risen."""
        kills = self.host.kills()
        risen, self.host_kills = max(kills - self.host_kills, 0), max(kills, self.host_kills)
        self.unblamed_kills += risen
        if self.unblamed_kills and (risen or outcomes.is_sigkill(ending)):
            self.unblamed_kills -= 1
            return True
        return False

    def _ended(
        self,
        task: Running,
        outcome: Outcome,
        why: str,
        code: int | None = None,
        number: int | None = None,
    ) -> None:
        turn = task.turn
        seconds = time.monotonic() - task.clock
        self._slow_down(outcome, seconds)
        is_again = self.strategy.finished(task, outcome)
        blank = self.blanks[task.worker]
        if task.gpu is not None:
            blank = on_gpu(self.node, blank, task.gpu)
        self.unwritten[task.worker] = replace(
            blank,
            task=turn.task,
            rank=task.rank,
            attempt=turn.attempt,
            outcome=outcome,
            started=round(task.started, 3),
            seconds=round(seconds, 3),
            code=code,
            signal=number,
            peak_gpu_mib=task.gpu_peak_mib,
            gpu_cap_mib=task.cap_mib,
            gpu_booked_mib=task.booked_mib,
            gpu_needs_mib=task.needs_mib,
            units=task.units,
            rate_per_s=task.rate_per_s,
            rate_source=task.rate_source,
            speed_ratio=task.speed_ratio,
            peak_rss_mib=task.rss_mib,
            cpu_seconds=None if task.cpu_s is None else round(task.cpu_s, 3),
            why=why,
        )
        if outcome == "done":
            self.done += 1
        elif outcome == "unfinished":
            self.unfinished += not is_again
        elif not is_again:
            self.failed += 1
            self._stop_if_too_many_failed()

    def _write_down(self) -> None:
        """Write the results of all tasks that have ended, before another one starts in their workers.

        Until then the guard finds them in the table.
        """
        if not self.unwritten:
            return
        self.results.write(*self.unwritten.values())
        for worker in self.unwritten:
            self.table.clear(worker)
        self.unwritten.clear()

    # ---- Words from outside ----

    def _listen(self, patience_s: float = 0.0) -> None:
        """Handle pending signals; with `patience_s`, wait until one of STOPS comes or the time is over."""
        deadline = Deadline.after(patience_s)
        while True:
            received = signal.sigtimedwait(COMMAND_SIGNALS, 0)
            if received is not None:
                self._hear(received.si_signo)
            elif deadline.left() == 0 or self.stopping is not None:
                return
            else:
                time.sleep(0.01)

    def _hear(self, signo: int) -> None:
        if signo not in COMMAND_SIGNALS:
            return
        number, now = signal.Signals(signo), time.monotonic()
        is_echo = now - self.heard.get(number, -ONCE_S) < ONCE_S
        if is_echo:
            return
        self.heard[number] = now
        self._await_starts()  # those that are on the way are to hear it as well
        if number not in STOPS:
            # Such as "write a checkpoint" (sbatch --signal=USR1@60): a word to the tasks; we go on.
            for pid in self.running:
                task_process.signal_group(pid, number)
        elif self.stopping is None:
            self._begin_to_stop(number)
        elif number is signal.SIGINT:
            self.stopping = Deadline.after(0)  # Ctrl-C once more: at once
            self.lingering = dict.fromkeys(self.lingering, self.stopping)

    def _begin_to_stop(self, number: signal.Signals) -> None:
        """Start nothing more, pass the signal on, and have all ended within GRACE_S."""
        self.stopping = Deadline.after(GRACE_S)
        self.feeder.closed = True
        self.stop_with = signal.SIGTERM if number is signal.SIGHUP else number
        self.strategy.resume_all()
        for pid in self.running:
            self._tell_to_stop(pid)
        running = fold(task.turn.task for task in (*self.running.values(), *self.starting.values()))
        self.say(
            f"{number.name}: no further task starts on {self.node.name}; told to end: {running or 'none'}; "
            f"{together.unfinished_text(self.what)}"
        )

    def _tell_to_stop(self, pid: int) -> None:
        task_process.signal_group(pid, self.stop_with)
        task_process.signal_group(pid, signal.SIGCONT)  # a stopped process takes it only when it goes on

    def _tick(self, *, ended: bool = False) -> None:
        """Do what is due about once a second."""
        self.is_held_up = False
        self.logs.close_unused(self.starting.values())
        self._end_what_lingers()
        if self.stopping is not None and self.stopping.left() == 0:
            for pid in self.running:
                task_process.signal_group(pid, signal.SIGKILL)
                for known in descendants.read_session(pid):
                    end(known, signal.SIGKILL)
        self.rates.look(self.running, self.strategy, self.done)
        self.strategy.tick()
        self._name_leases()
        if ended or self.settle.left() == 0:
            self.settle = Deadline.after(SETTLE_S)
            self.results.settle()
        self._check_disk()
        progress = Progress(
            node=self.node.name,
            job=self.node.job,
            processes=len(self.node.workers),
            running=len(self.running) + len(self.starting),
            done=self.done,
            failed=self.failed,
            waiting_for_memory=self.strategy.waiting_for_memory,
            left=self.strategy.left(),
            at=round(time.time(), 3),
            began=self.began,
            ended=ended,
            work=self.rates.work_rate(self.strategy),
        )
        run_folder.write_progress(self.node.folder, progress)
        self.show(progress)
        if self.what.max_failures is not None and self.node.count > 1:
            parts = run_folder.read_progress(self.run_folder, self.what, self.node.job)
            self.job_failed = sum(one.failed for one in parts if one.node != self.node.name)
            self._stop_if_too_many_failed()

    def _check_disk(self) -> None:
        try:
            room = os.statvfs(self.folder)
        except OSError:
            return
        if ((room.f_blocks and room.f_bavail == 0) or self.results.write_error is not None) and not self.disk_full:
            self.disk_full = True
            why = (
                "is full"
                if self.results.write_error is None
                else f"takes nothing more ({self.results.write_error.strerror})"
            )
            self.say(
                f"the disk of {self.folder} {why}: logs of tasks that ran since {time.strftime('%H:%M:%S')} on "
                f"{self.node.name} may be cut off or missing"
            )

    def _name_leases(self) -> None:
        """Write the task of each slot into its lease, for slurm-share status.

        Not at every start: a short task has ended before anybody could ask.
        """
        if self.node.leases is None:
            return
        for task in self.running.values():
            slot = self.node.workers[task.worker].slot
            if slot is not None:
                self.node.leases.name(slot, task.pid)

    def _end_what_lingers(self) -> None:
        """End processes left in tasks' groups: SIGTERM at half time, SIGKILL at the end.

        A group keeps its leader's number from being given to a new process; if there is a process of that number
        again, the group has gone and the number is another process's.
        """
        for leader, deadline in list(self.lingering.items()):
            if not task_process.group_is_there(leader) or os.path.exists(f"/proc/{leader}"):  # noqa: PTH110
                del self.lingering[leader]
            elif deadline.left() == 0:
                task_process.signal_group(leader, signal.SIGKILL)
            elif self.stopping is None and deadline.left() < LEFT_S / 2:
                task_process.signal_group(leader, signal.SIGTERM)


def _own_peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
