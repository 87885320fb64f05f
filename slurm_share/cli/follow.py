"""Following a run while it waits and works: one line that says how far it is."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from .. import run_folder
from ..decide import submission
from ..decide.standing import Standing, in_words
from ..errors import CommandError, StateError, UsageError
from ..readers import result_files, slurm
from ..records import QueuedJob
from ..work import Run
from .door import EXIT_FAILED, EXIT_INTERRUPTED

PAUSE_S = 1.0
QUEUE_EVERY_S = 5.0
"""Slurm is asked no oftener: its controller serves everybody."""
LINE_EVERY_S = 30.0
"""Where no terminal shows it, lines are kept."""


def watch(folder: Path, job: int | None = None) -> int:
    """Show how far the run's last job is until it is over; 0 where every task is done, 1 otherwise.

    Raises UsageError for a run that has no job.
    """
    run = run_folder.read_run(folder)
    jobs = run_folder.read_jobs(folder)
    job = job if job is not None else jobs[-1] if jobs else None
    if job is None:
        raise UsageError(f"{folder.name} was not given to the scheduler; there is nothing to watch")
    line = Line()
    try:
        _follow(folder, run, job, line)
    except KeyboardInterrupt:
        line.end()
        print(f"job {job} runs on: llsub --watch {folder.name} shows it again, llkill {job} ends it", file=sys.stderr)
        return EXIT_INTERRUPTED
    line.end()
    if run.kind == "llmapreduce" and not (folder / run_folder.RUN).exists():
        print(f"{folder.name}: all {run.tasks} tasks are done")  # only then its last job takes the folder away
        return 0
    done = len(result_files.read_done(folder, run))
    if done >= run.tasks:
        print(f"{folder.name}: all {run.tasks} tasks are done")
        return 0
    print(
        f"{folder.name}: {done} of {run.tasks} tasks are done; {_log_words(folder, run, job)}; llsub --resume "
        f"{folder.name} runs the others"
    )
    return EXIT_FAILED


def _log_words(folder: Path, run: Run, job: int) -> str:
    """Where the job's own output is: with -o FILE not in the run's folder."""
    try:
        file = submission.output_file(run_folder.read_scheduler_command(folder), job, run.cwd)
    except (StateError, UsageError):
        file = str(folder / (run_folder.LAUNCH_LOG + str(job)))
    if file is None:
        return f"what became of the others is in the output of job {job}, where -o put it"
    if not Path(file).exists():
        return f"there is no {file}: the job has not started, or its output could not be written"
    return f"what became of the others is in {file}"


def _follow(folder: Path, run: Run, job: int, line: Line) -> None:
    before = len(result_files.read_done(folder, run, before_job=job))
    asked, queued, began = float("-inf"), None, None
    while True:
        now = time.monotonic()
        standing = read_standing(folder, run, job, before)
        over = standing is not None and not standing.left + standing.running
        if now - asked >= (PAUSE_S if over else QUEUE_EVERY_S):
            queued, asked = _in_queue(job, queued), now
        if standing is not None:
            began = began or (now, standing.done + standing.failed)
            ended = standing.done + standing.failed - began[1]
            line.show(in_words(standing, ended / (now - began[0]) if now > began[0] and ended else None))
        elif queued is not None:
            line.show(f"job {job}: {' '.join(queued.states).lower()}{f' ({queued.reason})' if queued.reason else ''}")
        if queued is None:
            return
        time.sleep(PAUSE_S)


def _in_queue(job: int, known: QueuedJob | None) -> QueuedJob | None:
    """The job; None: it has ended. Where Slurm does not answer, what is known stays."""
    try:
        found = slurm.read_queue(jobs=[job])[1]
    except CommandError:
        if known is None:
            raise
        return known
    return found[0] if found else None


def read_standing(folder: Path, run: Run, job: int, before: int) -> Standing | None:
    """How far this job is, with `before` tasks done by earlier ones; None: no launcher has begun."""
    parts = [one for one in run_folder.read_progress(folder, run) if one.job.partition(".")[0] == str(job)]
    if not parts:
        return None
    return Standing(
        run.tasks,
        done=before + sum(part.done for part in parts),
        failed=sum(part.failed for part in parts),
        running=sum(part.running for part in parts),
    )


class Line:
    """On a terminal one line, written over; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._text, self._at = "", float("-inf")

    def show(self, text: str) -> None:
        """Put it in the place of the last one."""
        now = time.monotonic()
        if self._terminal:
            sys.stdout.write(f"\r\x1b[K{text[: os.get_terminal_size(sys.stdout.fileno()).columns - 1]}")
        elif text != self._text and now - self._at >= LINE_EVERY_S:
            sys.stdout.write(f"{text}\n")
            self._at = now
        self._text = text
        sys.stdout.flush()

    def end(self) -> None:
        """What comes next begins on a line of its own."""
        if self._terminal and self._text:
            sys.stdout.write("\n")
            sys.stdout.flush()
