"""The first process of a launcher: prepares the node, lets the loop run beside it, and puts right what a loop leaves
that is killed.

The loop can be killed by the kernel for memory, or by a person. Its tasks then become the guard's children
(PR_SET_CHILD_SUBREAPER), and what they were the guard reads in the table that both share: a task that had ended is
written down as it ended, one that ran is ended and counts as unfinished. A guard that is killed takes the loop with it,
in good order (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from ...core.errors import LaunchError, StateError
from ...core.paths import Paths
from ...core.process import Deadline
from ...core.settings import Settings
from ...core.text import fold
from ...node import descendants
from .. import result_files, run_folder
from ..records import ENV_ATTEMPT, ENV_TASK, Progress, Run
from ..result_files import Results
from ..rules import deal, memory_caps, outcomes, together
from . import leftovers, pauses, task_process, watchdog
from . import node as nodes
from .claims import Claims
from .feeder import Feeder
from .loop import COMMAND_SIGNALS, SIGNALS, STOPS, Loop
from .node import Node
from .start_errors import NO_PROCESSES
from .table import Row, Table

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from .rendezvous import Rendezvous

EXIT_INTERRUPTED = 130
EXIT_BROKEN = 70
"""A defect in the loop (EX_SOFTWARE of sysexits.h); its traceback is in the job's log."""
EXIT_NOT_EXECUTED = 127
"""SPAWN_ERROR in glibc's sysdeps/unix/sysv/linux/spawni.c; the same in musl."""
GRACE_S = 5.0
"""For the tasks of a loop that was killed, until SIGKILL."""
UNNAMED_S = 0.5
"""For a task that was just being started, to show itself."""


def launch_node(
    run: Run,
    folder: Path,
    environ: Mapping[str, str],
    paths: Paths,
    settings: Settings,
    say: Callable[[str], None],
    show: Callable[[Progress], None],
) -> int:
    """Run this node's part of a run; 0 where every task that it took is done, else 1, or 130 after Ctrl-C.

    Raises LaunchError where the node cannot run it, StateError where the run's folder cannot be used.
    """
    try:
        return _launch_node(run, folder, environ, paths, settings, say, show)
    except (LaunchError, StateError) as error:
        nodes.tell_failed(run, folder, environ, str(error))
        raise


def _launch_node(
    run: Run,
    folder: Path,
    environ: Mapping[str, str],
    paths: Paths,
    settings: Settings,
    say: Callable[[str], None],
    show: Callable[[Progress], None],
) -> int:
    lines = _read_lines(run, folder)
    specs = run_folder.read_specs(folder, run) if run.pack is not None else ()
    with _heard_later() as said:
        node = nodes.prepare(run, folder, environ, paths, settings)
    try:
        for note in node.notes:
            say(note)
        was_here = node.folder.is_dir()
        results = _open_results(node)
        _go_to(run, node)
        # Behind the lock of the results: another launcher may have been at work a moment ago.
        done, out_of_memory = result_files.read_before(folder, run)
        if said & set(STOPS):
            say(f"told to end before anything was started on {node.name}")
            nodes.tell_failed(run, folder, environ, "its launcher was told to end")
            return 1
        ranks, known = range(node.first_rank, node.last_rank + 1), memory_caps.from_before(out_of_memory)
        feeder = Feeder(run, ranks, done, _claims(run, folder, node), known)
        table = Table(len(node.workers))
        its_watchdog = None
        is_pausing = run.pack is not None and run.pack.settings.undo == "pause"
        if is_pausing or run.together:
            its_watchdog = watchdog.start(table, ends_all=run.together)
            if its_watchdog is None and is_pausing:
                say(f"{node.name} cannot start one more process, so no task is paused there: {NO_PROCESSES}")
        task_process.become_subreaper()
        guard = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            why = NO_PROCESSES if error.errno == errno.EAGAIN else error.strerror
            raise LaunchError(f"{node.name} cannot start the launcher: {why}") from error
        if pid == 0:

            def work() -> int:
                _stay_with(guard)
                try:
                    rendezvous, its = _begin_rendezvous(run, node, environ, settings, say)
                except LaunchError as error:
                    say(str(error))
                    nodes.tell_failed(run, folder, environ, str(error))
                    return 1
                loop = Loop(
                    run,
                    folder,
                    its,
                    feeder,
                    results,
                    table,
                    environ=environ,
                    lines=lines,
                    specs=specs,
                    out_of_memory=out_of_memory,
                    was_here=was_here,
                    say=say,
                    show=show,
                    watchdog=its_watchdog,
                    rendezvous=rendezvous,
                )
                code = loop.run()
                _say_lost(results, say)
                if os.getppid() != guard:
                    nodes.release(node)  # nobody else is left to do it
                return code

            _exit_with(work)
        status, heard = _watch(pid)
        if status not in (0, 1):
            status = _take_over(run, node, table, results, status, say)
        if its_watchdog is not None:
            its_watchdog.close()
        leftovers.end_children(GRACE_S, lambda pid, status: None)
        return EXIT_INTERRUPTED if status and signal.SIGINT in heard else status
    finally:
        for problem in nodes.release(node):
            say(problem)
        while signal.sigtimedwait(COMMAND_SIGNALS, 0) is not None:
            pass  # it came too late to be of use
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _read_lines(run: Run, folder: Path) -> list[str]:
    if run.task_kind == "rank":
        return []
    lines = run_folder.read_tasks(folder)
    if len(lines) < run.tasks:
        file = folder / run_folder.TASKS
        raise StateError(str(file), f"it has {len(lines)} lines, and the run {run.tasks} tasks; submit it anew")
    return lines


@contextmanager
def _heard_later() -> Iterator[set[int]]:
    """Only note signals while the node is prepared, and block them afterwards, for `_watch`.

    Handlers note them: a signal that is blocked from the start stays blocked in the daemons that are started there.
    """
    said: set[int] = set()
    before = {number: signal.signal(number, lambda signo, frame: said.add(signo)) for number in COMMAND_SIGNALS}
    try:
        yield said
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for number, handler in before.items():
            signal.signal(number, handler)
        for signo in said:
            os.kill(os.getpid(), signo)


def _exit_with(work: Callable[[], int]) -> NoReturn:
    """Run `work` in a forked child and exit; no code of the parent may run there, whatever happens."""
    code = EXIT_BROKEN
    try:
        try:
            code = work()
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  (nobody is left to read what it says)
        pass
    finally:
        os._exit(code)


def _open_results(node: Node) -> Results:
    try:
        node.folder.mkdir(parents=True, exist_ok=True)
        return Results(node.folder)
    except BlockingIOError as error:
        raise LaunchError(
            f"another launcher is at work on this run on {node.name}; wait for its end, or its tasks would run twice"
        ) from error
    except OSError as error:
        raise LaunchError(
            f"the folder {node.folder} cannot be written on {node.name} ({error.strerror}), and without it nobody "
            f"would know what has been done; free it, or submit from another folder"
        ) from error


def _go_to(run: Run, node: Node) -> None:
    """Change to the folder in which the run was submitted, where its tasks start."""
    try:
        os.chdir(run.cwd)
    except OSError as error:
        raise LaunchError(
            f"{node.name} cannot go to {run.cwd}, where this was submitted ({error.strerror}); submit from a folder "
            "that all nodes have"
        ) from error


def _claims(run: Run, folder: Path, node: Node) -> Claims | None:
    if run.distribution != "dynamic":
        return None
    return Claims(folder / run_folder.QUEUE / node.job, f"{node.name}-{os.getpid()}", deal.chunks_of(run))


def _stay_with(guard: int) -> None:
    """Prepare the loop's process: end with the guard, in a group of its own, so that Ctrl-C reaches it once."""
    task_process.end_with_parent(signal.SIGTERM)
    if os.getppid() != guard:
        os._exit(EXIT_BROKEN)
    os.setpgid(0, 0)
    task_process.become_subreaper()


def _begin_rendezvous(
    run: Run, node: Node, environ: Mapping[str, str], settings: Settings, say: Callable[[str], None]
) -> tuple[Rendezvous | None, Node]:
    """Start the rendezvous process of ranks; return it, and the node with its names. None: the run has no ranks.

    In the loop's process, which alone holds its pipes: it ends with the loop. Raises LaunchError.
    """
    if not run.together:
        return None, node
    from . import rendezvous  # here: a plain run need not wait for what it does not use

    made = rendezvous.start(run, node, environ, settings.messages, say)
    return made, rendezvous.named(node, made, rendezvous.ports_of(settings.messages, environ))


def _say_lost(results: Results, say: Callable[[str], None]) -> None:
    results.close()
    if results.lost:
        say(f"these results could not be written to {results.file} ({results.write_error}):")
        say(results.lost.decode(errors="replace").rstrip("\n"))


def _watch(loop: int) -> tuple[int, set[int]]:
    """Pass on every signal until the loop has ended; return its exit code, or minus the signal that ended it, and the
    signals received."""
    heard: set[int] = set()
    while True:
        received = signal.sigwaitinfo(SIGNALS)
        if received.si_signo != signal.SIGCHLD:
            heard.add(received.si_signo)
            os.kill(loop, received.si_signo)  # our child, not waited for: the number is its own
            continue
        pid, status = os.waitpid(loop, os.WNOHANG)
        if pid == loop:
            return os.waitstatus_to_exitcode(status), heard


def _take_over(run: Run, node: Node, table: Table, results: Results, status: int, say: Callable[[str], None]) -> int:
    """End the tasks of a loop that died and record how each ended. First the processes, then the files, which may be
    why it died."""
    rows = table.rows()
    # Those whose end the loop saw, and perhaps did not come to write down.
    endings: _Endings = {row.pid: (row, row.code, row.signal, False) for row in rows if _is_seen(row)}
    unseen = _find_unnamed(run, node, rows)
    open_rows = {row.pid: row for row in unseen if row.pid}
    told: set[int] = set()

    def ended(pid: int, status: int) -> None:
        row = open_rows.get(pid)
        if row is not None:
            code = os.waitstatus_to_exitcode(status)
            endings[pid] = (row, code, None, pid in told) if code >= 0 else (row, None, -code, pid in told)

    _reap(ended)
    for pid in open_rows:
        if pid not in endings:
            task_process.signal_group(pid, signal.SIGTERM)
            task_process.signal_group(pid, signal.SIGCONT)
            told.add(pid)
    for row in rows:
        if row.paused_ticks and row.pid > 1:
            pauses.go_on(row.pid)
    leftovers.end_children(GRACE_S, ended, asked=told)
    unfinished = [row.task for row in unseen if row.pid not in endings]
    known = _written(node, results)
    for row, code, number, ours in endings.values():
        if (row.task, row.attempt) in known:
            continue
        outcome, why = outcomes.outcome(outcomes.Ending(code, number, stopped_by_us=ours))
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
        f"the launcher on {node.name} ended {how}; unfinished there: {fold(unfinished) or 'nothing that ran'}; "
        f"what had ended is written down; {together.unfinished_text(run)}"
    )
    return 1


_Endings = dict[int, tuple[Row, int | None, int | None, bool]]


def _is_seen(row: Row) -> bool:
    return (row.code, row.signal) != (None, None)


def _reap(ended: Callable[[int, int], None]) -> None:
    """Collect the tasks that ended before they were sent a signal."""
    try:
        while (waited := os.waitpid(-1, os.WNOHANG))[0]:
            ended(*waited)
    except ChildProcessError:
        pass


def _written(node: Node, results: Results) -> set[tuple[int, int]]:
    """Return the attempts of this job that the loop has recorded."""
    try:
        data = results.file.read_bytes()
    except OSError:
        return set()  # the folder is gone; what is written now will be lost, too, and said
    return {(one.task, one.attempt) for one in run_folder.parse_results(data) if one.job == node.job}


def _find_unnamed(run: Run, node: Node, rows: tuple[Row, ...]) -> list[Row]:
    """Return the rows whose end nobody has seen; those without a pid with that of their task, where it is found.

    posix_spawn comes back when the new program runs already; on a busy machine that can be long after, and a loop that
    was killed meanwhile has not named its task. Its task is a child of ours that leads a session, that no row names,
    that began no earlier than its row, and that is the program it should be: by its environment, or, where it has
    ended already, by its cores, and by its name or by being the only one on cores of its worker alone. (`#!/usr/bin/env
    python3` ends under another name.) Tasks with the same cores are started one after the other, so that only the first
    of them without a pid can have begun. What another task has left behind is none of these.
    """
    found, patience = {row.worker: row for row in rows if not _is_seen(row)}, Deadline.after(UNNAMED_S)
    known = {row.pid for row in rows}
    cpus = [frozenset(worker.place.cpus) if run.bind else None for worker in node.workers]
    alone = {one for one, workers in Counter(cpus).items() if one is not None and workers == 1}
    while patience.left() > 0:
        unnamed = sorted((row for row in found.values() if row.pid == 0), key=lambda row: row.since_boot, reverse=True)
        if not unnamed:
            break
        leaders = descendants.read_leaders()
        for row in {cpus[row.worker]: row for row in unnamed}.values():
            its = cpus[row.worker]
            begun = [
                one
                for one in leaders
                if one.pid not in known and one.since_boot >= row.since_boot - watchdog.CLOCK_TICK_S
            ]
            one = next((one for one in begun if _is_task(run, row, one, its)), None)
            if one is None and its in alone:
                ended = [one for one in begun if one.cpus == its and not one.environ and not _is_failed_start(one.pid)]
                one = ended[0] if len(ended) == 1 else None
            if one is not None:
                found[row.worker] = replace(row, pid=one.pid)
                known.add(one.pid)
        time.sleep(0.01)  # between vfork and setsid it leads nothing yet
    return list(found.values())


def _is_task(run: Run, row: Row, one: descendants.Leader, cpus: frozenset[int] | None) -> bool:
    """Return whether a process that is no older than its row is the row's task by its environment, or by name and
    cores."""
    if one.environ:
        return {f"{ENV_TASK}={row.task}".encode(), f"{ENV_ATTEMPT}={row.attempt}".encode()} <= one.environ
    program = Path(run.command[0] if run.command else "/bin/sh").name
    return one.name == program[:15] and cpus in (None, one.cpus)


def _is_failed_start(pid: int) -> bool:
    """Return whether a child may be one that posix_spawn(3) made and that could not execute its program: the C library
    ends it with 127."""
    try:
        seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return seen is not None and (seen.si_code, seen.si_status) == (os.CLD_EXITED, EXIT_NOT_EXECUTED)
