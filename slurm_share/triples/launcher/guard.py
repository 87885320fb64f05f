"""The first process of a launcher: prepares the node, forks the loop, and cleans up if the loop is killed.

The loop can be killed by the kernel for memory, or by a person. Its tasks then become children of the guard
(PR_SET_CHILD_SUBREAPER). The guard reads the shared table: it records tasks that had ended with their outcome, and ends
tasks that still run, which count as unfinished. If the guard is killed, the loop gets SIGTERM (PR_SET_PDEATHSIG) and
ends its tasks.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from ...core.errors import CommandError, LaunchError, StateError
from ...core.paths import Paths
from ...core.process import Deadline
from ...core.records import JobStart
from ...core.settings import Settings
from ...core.text import fold
from ...node import descendants
from ...packing import EndFacts, EventLog, Progress, TaskSpec, classify
from ...slurm import signals
from .. import result_files, run_folder
from ..kept_script import ScriptChoice
from ..records import Run
from ..result_files import Results
from ..rules import deal, outcomes, together
from . import leftovers, pauses, task_process, watchdog
from . import node as nodes
from .claims import Claims
from .feeder import Feeder
from .growth import Growth, mark
from .loop import COMMAND_SIGNALS, SIGNALS, STOPS, Loop
from .node import Node
from .strategy import LauncherState
from .table import Row, Table
from .task_process import NO_PROCESSES
from .watchdog import Watchdog

EXIT_INTERRUPTED = 130
EXIT_BROKEN = 70
"""A defect in the loop (EX_SOFTWARE of sysexits.h); its traceback is in the job's log."""
EXIT_NODE_LOST = 3
"""Exit code of the loop, as 1: not all tasks are done, and a node that srun would wait for does not answer any more."""
EXIT_NOT_EXECUTED = 127
"""SPAWN_ERROR in glibc's sysdeps/unix/sysv/linux/spawni.c; the same in musl."""
LOST_NODE_S = 30.0
"""Seconds until the step of a run with a lost node is ended. If only its connection was lost, its launcher ends by
itself meanwhile."""
SUBMIT_S = 60.0
"""Longest wait for the submission of the next job at the end, in seconds."""
UNNAMED_S = 0.5
"""Seconds to search for a task that was being started when the loop was killed."""


def launch_node(
    run: Run,
    folder: Path,
    environ: Mapping[str, str],
    paths: Paths,
    settings: Settings,
    say: Callable[[str], None],
    show: Callable[[Progress], None],
) -> int:
    """Run this node's part of a run; return 0 if all of its tasks are done, 130 after Ctrl-C, else 1.

    Raises LaunchError if the node cannot run it, StateError if the run's folder cannot be used.
    """
    try:
        lines = _read_lines(run, folder)
        specs = list(run_folder.read_specs(folder, run))
        script = ScriptChoice(run, folder, say)
        with _deferred_signals() as received:
            node = nodes.prepare(run, folder, environ, paths, settings)
        try:
            for note in node.notes:
                say(note)
            was_here = node.folder.is_dir()
            results = _open_results(node)
            _go_to(run, node)
            # Read with the lock of the results held: another launcher may have written to them a moment ago.
            done, out_of_memory = result_files.read_before(folder, run)
            if received & set(STOPS):
                say(f"told to end before any task was started on {node.name}")
                nodes.tell_failed(run, folder, environ, "its launcher was told to end")
                return 1
            table = Table(len(node.workers))
            growth = Growth(run, folder, node, lines, specs, done, say)
            ranks = range(node.first_rank, node.last_rank + 1)
            feeder = Feeder(run, ranks, done, _claims(run, folder, node, specs), specs, growth.first_needs())
            growth.begin(feeder)
            shared = LauncherState(
                run=run,
                folder=folder,
                node=node,
                feeder=feeder,
                growth=growth,
                results=results,
                events=EventLog(node.folder, node.job),
                table=table,
                environ=environ,
                lines=lines,
                specs=specs,
                out_of_memory=out_of_memory,
                was_here=was_here,
                say=say,
                show=show,
                watchdog=_start_watchdog(run, node, table, say),
                script=script,
            )
            code = _guard_loop(shared, settings, received)
        finally:
            for problem in nodes.release(node, is_told_to_end=not received.isdisjoint(STOPS)):
                say(problem)
            while signal.sigtimedwait(COMMAND_SIGNALS, 0) is not None:
                pass  # drop signals that came after the end of the loop
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if code != EXIT_NODE_LOST:
            return code
        _end_step(environ, say)
        return 1
    except (LaunchError, StateError) as error:
        nodes.tell_failed(run, folder, environ, str(error))
        raise


def _start_watchdog(run: Run, node: Node, table: Table, say: Callable[[str], None]) -> Watchdog | None:
    is_pausing = run.pack is not None and run.pack.settings.undo == "pause"
    if not (is_pausing or run.together):
        return None
    pipe = watchdog.start(table, ends_all=run.together)
    if pipe is None and is_pausing:
        say(f"{node.name} cannot start the watchdog, so no task is paused there: {NO_PROCESSES}")
    return pipe


def _guard_loop(shared: LauncherState, settings: Settings, received: set[int]) -> int:
    """Fork the loop, wait for its end, and clean up after it; return the exit code of the launcher. Signals that came
    meanwhile are added to `received`."""
    task_process.become_subreaper()
    guard = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        why = NO_PROCESSES if error.errno == errno.EAGAIN else error.strerror
        raise LaunchError(f"{shared.node.name} cannot start the launcher: {why}") from error
    if pid == 0:
        _exit_with(lambda: _run_loop(shared, settings, guard))
    next_jobs: list[int] = []
    status, came = _watch(pid, lambda signo: next_jobs.extend(_submit_next(shared, signo)))
    received |= came
    if status not in (0, 1, EXIT_NODE_LOST):
        status = _take_over(shared, status)
        mark(shared.folder / run_folder.QUEUE / shared.node.job, shared.node)
    _await(next_jobs)
    if shared.watchdog is not None:
        shared.watchdog.close()
    leftovers.end_children(watchdog.GRACE_S, lambda pid, status: None)
    return EXIT_INTERRUPTED if status and signal.SIGINT in received else status


def _end_step(environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """End the launchers' step, of which this is the last live one.

    A node was lost, and its part of the step cannot end: srun, and so the job, would wait until Slurm gives the node up
    (SlurmdTimeout, 5 minutes).
    """
    job, step = (environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    if not job or not step:
        return
    time.sleep(LOST_NODE_S)
    say("the job's step is ended, because srun would wait for the lost node")
    try:
        refused = signals.cancel([f"{job}.{step}"])
    except CommandError as error:
        say(f"the step could not be ended: {error}")
    else:
        for why in refused.values():
            say(f"the step could not be ended: {why}")


def _run_loop(shared: LauncherState, settings: Settings, guard: int) -> int:
    """Run the tasks in the process of the loop; return its exit code."""
    _stay_with(guard)
    run, node = shared.run, shared.node
    if run.together:
        from . import rendezvous  # imported here: other runs start faster without it

        try:
            # This process alone holds the pipes of the rendezvous process, so that it ends with the loop.
            process, named = rendezvous.start(run, node, shared.environ, settings.messages, shared.say)
        except LaunchError as error:
            shared.say(str(error))
            nodes.tell_failed(run, shared.folder, shared.environ, str(error))
            return 1
        shared = replace(shared, node=named, rendezvous=process)
    loop = Loop(shared)
    code = loop.run_tasks()
    if code and node.index == 0 and loop.ranks is not None and loop.ranks.rendezvous.has_lost_node:
        code = EXIT_NODE_LOST
    shared.events.close()
    _say_lost(shared.results, shared.say)
    if os.getppid() != guard:
        nodes.release(node)  # the guard is gone and cannot do it
    return code


def _read_lines(run: Run, folder: Path) -> list[str]:
    if run.task_kind == "rank":
        return []
    lines = run_folder.read_lines(folder, run)
    if len(lines) != run.tasks:
        file = folder / run_folder.TASKS
        raise StateError(str(file), f"it has {len(lines)} lines, but the run has {run.tasks} tasks; submit it again")
    return lines


@contextmanager
def _deferred_signals() -> Iterator[set[int]]:
    """Collect signals while the node is prepared; then block them and send them again, for `_watch`.

    Handlers collect them: a signal that is blocked from the start would stay blocked in the daemons started here.
    """
    received: set[int] = set()
    before = {number: signal.signal(number, lambda signo, frame: received.add(signo)) for number in COMMAND_SIGNALS}
    try:
        yield received
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for number, handler in before.items():
            signal.signal(number, handler)
        for signo in received:
            os.kill(os.getpid(), signo)


def _exit_with(work: Callable[[], int]) -> NoReturn:
    """Run `work` in a forked child and exit in any case, so that no code of the parent runs in the child."""
    code = EXIT_BROKEN
    try:
        try:
            code = work()
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  (standard error itself cannot be written)
        pass
    finally:
        os._exit(code)


def _open_results(node: Node) -> Results:
    try:
        node.folder.mkdir(parents=True, exist_ok=True)
        return Results(node.folder)
    except BlockingIOError as error:
        raise LaunchError(
            f"another launcher of this run is active on {node.name}; wait until it ends, or tasks would run twice"
        ) from error
    except OSError as error:
        raise LaunchError(
            f"the folder {node.folder} cannot be written on {node.name} ({error.strerror}), so results would be lost; "
            "free space there, or submit from another folder"
        ) from error


def _go_to(run: Run, node: Node) -> None:
    """Change to the folder from which the run was submitted: tasks start there."""
    try:
        os.chdir(run.cwd)
    except OSError as error:
        raise LaunchError(
            f"{node.name} cannot change to {run.cwd}, from which the run was submitted ({error.strerror}); submit from "
            "a folder that all nodes have"
        ) from error


def _claims(run: Run, folder: Path, node: Node, specs: Sequence[TaskSpec]) -> Claims | None:
    if run.distribution != "dynamic":
        return None
    return Claims(folder / run_folder.QUEUE / node.job, f"{node.name}-{os.getpid()}", deal.chunks_of(run, specs))


def _stay_with(guard: int) -> None:
    """Prepare the process of the loop: it ends with the guard, and has its own group so that Ctrl-C reaches it once."""
    task_process.end_with_parent(signal.SIGTERM)
    if os.getppid() != guard:
        os._exit(EXIT_BROKEN)
    os.setpgid(0, 0)
    task_process.become_subreaper()


def _say_lost(results: Results, say: Callable[[str], None]) -> None:
    results.close()
    if results.lost:
        say(f"these results could not be written to {results.file} ({results.write_error}):")
        say(results.lost.decode(errors="replace").rstrip("\n"))


def _submit_next(shared: LauncherState, signo: int) -> list[int]:
    """Submit the next job of the run in a child process while tasks save their state; return its pid.

    The launcher of the first node does it, at the checkpoint signal and at SIGTERM.
    """
    run, job = shared.run, JobStart.parse(shared.node.job).number
    is_notice = signo in (run.checkpoint_signal, signal.SIGTERM)
    if run.until_done is None or shared.node.index > 0 or job is None or not is_notice:
        return []
    try:
        pid = os.fork()
    except OSError:
        return []  # the job's script does it at the end of the job
    if pid == 0:

        def submit() -> int:
            for number in COMMAND_SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # Slurm may signal every process of the step
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            from .. import next_job  # imported here: other runs start faster without it

            next_job.at_notice(shared.folder, run, job, shared.say, is_stopped=signo == signal.SIGTERM)
            return 0

        _exit_with(submit)
    return [pid]


def _await(pids: list[int]) -> None:
    """Wait for the processes that submit the next job."""
    deadline = Deadline.after(SUBMIT_S)
    while pids and deadline.left() > 0:
        try:
            pids = [pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0] != pid]
        except ChildProcessError:
            return
        time.sleep(0.01 if pids else 0.0)


def _watch(loop: int, also: Callable[[int], None]) -> tuple[int, set[int]]:
    """Forward signals until the loop ends; return its exit code, or minus its signal, and the signals received.

    `also` gets each signal the first time.
    """
    received: set[int] = set()
    while True:
        signo = signal.sigwaitinfo(SIGNALS).si_signo
        if signo != signal.SIGCHLD:
            os.kill(loop, signo)  # a child that was not waited for: its pid is not reused
            if signo not in received:
                received.add(signo)
                also(signo)
            continue
        pid, status = os.waitpid(loop, os.WNOHANG)
        if pid == loop:
            return os.waitstatus_to_exitcode(status), received


def _take_over(shared: LauncherState, status: int) -> int:
    """End the tasks of a loop that was killed, record how each ended, and return the exit code.

    It ends the processes before it writes files, because a file system may be the reason why the loop died.
    """
    run, node, results, say = shared.run, shared.node, shared.results, shared.say
    rows = shared.table.rows()
    # Tasks whose end the loop saw and may not have recorded.
    endings: _Endings = {row.pid: (row, row.code, row.signal, False) for row in rows if row.has_ended}
    unseen = _find_unnamed(run, node, rows)
    open_rows = {row.pid: row for row in unseen if row.pid}
    told: set[int] = set()

    def ended(pid: int, status: int) -> None:
        row = open_rows.get(pid)
        if row is not None:
            code = os.waitstatus_to_exitcode(status)
            endings[pid] = (row, code, None, pid in told) if code >= 0 else (row, None, -code, pid in told)

    leftovers.reap(ended)  # tasks that ended before they are signalled
    for pid in open_rows:
        if pid not in endings:
            task_process.tell_to_end(pid)
            told.add(pid)
    for row in rows:
        if row.paused_ticks and row.pid > 1:
            pauses.go_on(row.pid)
    leftovers.end_children(watchdog.GRACE_S, ended, asked=told)
    unfinished = [row.task for row in unseen if row.pid not in endings]
    known = _written(node, results)
    for row, code, number, ours in endings.values():
        if (row.task, row.attempt) in known:
            continue
        kind, why = classify(
            EndFacts(
                task=row.task,
                now_s=0.0,
                code=code,
                signal=number,
                is_stopped_by_us=ours,
            )
        )
        outcome = outcomes.OUTCOMES[kind]
        if outcome == "unfinished":
            unfinished.append(row.task)
            why = f"its launcher was killed ({why})"
        blank = nodes.blank_result(run, node, node.workers[row.worker])
        results.write(
            replace(
                blank if row.gpu is None else nodes.on_gpu(node, blank, row.gpu),
                task=row.task,
                rank=deal.rank_of(run, row.task, node.workers[row.worker].rank),
                attempt=row.attempt,
                outcome=outcome,
                started=round(row.started, 3),
                seconds=round(max(time.time() - row.started, 0.0), 3),
                code=code,
                signal=number,
                why=why,
            )
        )
    _say_lost(results, say)
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with {status}, which is a defect"
    say(
        f"the launcher on {node.name} ended {how}; unfinished there: {fold(unfinished) or 'no task that ran'}; "
        f"tasks that had ended are recorded; {together.unfinished_text(run)}"
    )
    return 1


_Endings = dict[int, tuple[Row, int | None, int | None, bool]]


def _written(node: Node, results: Results) -> set[tuple[int, int]]:
    """Return the attempts of this job that the loop has recorded."""
    try:
        data = results.file.read_bytes()
    except OSError:
        return set()  # the folder is gone: `_say_lost` prints the results
    return {(one.task, one.attempt) for one in run_folder.parse_results(data) if one.job == node.job}


def _find_unnamed(run: Run, node: Node, rows: tuple[Row, ...]) -> list[Row]:
    """Return the rows of tasks without a known end, and fill in missing pids if their tasks are found.

    A loop that is killed during posix_spawn(3) has not yet recorded the pid of the new task, which may already run.
    That task is a child of ours and a session leader, is in no row, began no earlier than its row, and has the
    variables of its row. If it has already ended, its environment is gone; then its cores must match, and either its
    name, or it is the only candidate on cores that one worker has alone (`#!/usr/bin/env python3` changes the name).
    Tasks on the same cores start one after the other, so only the oldest such row without a pid can have begun.
    Processes that other tasks have left behind do not match.
    """
    found, patience = {row.worker: row for row in rows if not row.has_ended}, Deadline.after(UNNAMED_S)
    known = {row.pid for row in rows}
    cpus = [frozenset(worker.place.cpus) if run.bind else None for worker in node.workers]
    alone = {one for one, workers in Counter(cpus).items() if one is not None and workers == 1}
    while patience.left() > 0:
        unnamed = sorted((row for row in found.values() if row.pid == 0), key=lambda row: row.since_boot, reverse=True)
        if not unnamed:
            break
        leaders = descendants.read_leaders()
        for row in {cpus[row.worker]: row for row in unnamed}.values():
            cores = cpus[row.worker]
            since_boot = row.since_boot - watchdog.CLOCK_TICK_S
            begun = [one for one in leaders if one.pid not in known and one.since_boot >= since_boot]
            one = next((one for one in begun if _is_task(run, row, one, cores)), None)
            if one is None and cores in alone:
                ended = [one for one in begun if one.cpus == cores and not (one.environ or _is_failed_start(one.pid))]
                one = ended[0] if len(ended) == 1 else None
            if one is not None:
                found[row.worker] = replace(row, pid=one.pid)
                known.add(one.pid)
        time.sleep(0.01)  # between vfork and setsid the task is not yet a session leader
    return list(found.values())


def _is_task(run: Run, row: Row, one: descendants.Leader, cpus: frozenset[int] | None) -> bool:
    """Return whether a process is a row's task: by its variables, or by name and cores if it has ended."""
    if one.environ:
        return row.variables <= one.environ
    program = Path(run.command[0] if run.command else task_process.find_shell()).name
    return one.name == program[:15] and cpus in (None, one.cpus)


def _is_failed_start(pid: int) -> bool:
    """Return whether a child ended like a posix_spawn(3) that could not execute its program: with exit code 127."""
    try:
        seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return seen is not None and (seen.si_code, seen.si_status) == (os.CLD_EXITED, EXIT_NOT_EXECUTED)
