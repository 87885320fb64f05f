"""Follow a run while it waits and runs: one line of progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..core import names, terminal
from ..core.background import BackgroundCall
from ..core.errors import CommandError, StateError, UsageError
from ..core.records import JobStart
from ..core.text import counted, span_text
from ..packing import Progress, ProgressReader, RankWait
from ..slurm import jobs as slurm_jobs
from ..slurm.records import QueuedJob
from . import failed_tasks, result_files, run_folder, run_jobs, task_names
from .launcher import report
from .records import Run
from .rules import progress, submission, together
from .rules.progress import JobState, TaskCounts, all_done, is_outdated
from .rules.progress import line as progress_line

PAUSE_S = 1.0
QUEUE_EVERY_S = 5.0
"""Least seconds between two queries to Slurm, to limit the load of its controller."""
POLL_S = 0.25
POLL_MOST_S = 3.0
"""The queries for a map begin every POLL_S, for short runs, and slow down to this."""
SILENT_S = 60.0
"""Seconds without progress after which a node counts as silent: a network file system may show a file that late."""
DAY_S = 86400
NAMED_TASKS_MOST = 20_000
"""Most tasks of a run whose failed tasks are named in its line of progress: their results are read at each failure."""
NAMED_MOST = 3


def find_job(folder: Path) -> int:
    """Return the id of the run's last job, or of the first one in the queue if the run submits further ones.

    Raises UsageError for a run without a job, CommandError if Slurm does not answer.
    """
    jobs = run_folder.read_jobs(folder)
    if not jobs:
        raise UsageError(
            f"{folder.name} has no job of Slurm to watch: it ran with --local, or was not submitted; llsub --failed "
            f"{run_folder.typed(folder)} shows what failed, llsub --resume {run_folder.typed(folder)} runs what is left"
        )
    run = run_folder.read_run(folder)
    if run.until_done is None:
        return jobs[-1]
    queued = {one.job_id for one in slurm_jobs.read_queue(jobs=jobs)[1] if run_jobs.is_of_run(one, folder, run, jobs)}
    began = [job for job in jobs if job in queued or _has_output(folder, run, job)]
    return next((job for job in jobs if job in queued), began[-1] if began else jobs[-1])


def read_outcome(folder: Path, run: Run, job: int) -> tuple[int, str, list[str]]:
    """Return exit code, a sentence, and lines on failed tasks of a run whose job has ended. Raises StateError."""
    if run.kind == "llmapreduce" and not (folder / run_folder.RUN).exists():
        # The last job removes the folder only on success.
        return names.EXIT_OK, f"{folder.name}: {all_done(run.tasks)}", []
    run = run_folder.with_added(folder, run)
    found = report.count(result_files.ResultFiles(folder, run), run)
    if found.done == run.tasks:
        return names.EXIT_OK, f"{folder.name}: {all_done(run.tasks)}", []
    saved = f"{len(found.saved)} saved, not finished; " if found.saved else ""
    sentence = (
        f"{folder.name}: {found.done} of {counted(run.tasks, 'task')} {'is' if run.tasks == 1 else 'are'} done; {saved}"
        f"{_log_text(folder, run, job)}; {together.again_text(run, run_folder.typed(folder))}"
    )
    code = run_folder.read_exit_code(folder, run) or found.exit_code
    return code, sentence, failed_tasks.lines_of(folder, run, found)


def _has_output(folder: Path, run: Run, job: int) -> bool:
    """Return whether a job has begun: jobs that were not needed have no output."""
    try:
        file = submission.output_file(run_folder.scheduler_command(folder, run), job, run.cwd)
    except (StateError, UsageError):
        return False
    return file is None or Path(file).exists()


def _log_text(folder: Path, run: Run, job: int) -> str:
    """Return a clause on where the job's output is, which -o can put outside the run's folder."""
    try:
        file = submission.output_file(run_folder.scheduler_command(folder, run), job, run.cwd)
    except (StateError, UsageError):
        file = str(folder / (run_folder.LAUNCH_LOG + str(job)))
    if file is None:
        return f"see the output of job {job} (-o) for the others"
    if not Path(file).exists():
        return f"{file} does not exist: the job has not started, or its output could not be written"
    return f"see {file} for the others"


def follow_all(folder: Path, run: Run, job: int, show: Callable[[str], None]) -> int:
    """Follow a job, and each job that the run submits after it (--until-done), as `follow`; return the last one.

    Raises StateError if the run's list of jobs cannot be read.
    """
    while True:
        follow(folder, run, job, show)
        if run.until_done is None:
            return job
        known = run_folder.read_jobs(folder)
        later = known[known.index(job) + 1 :] if job in known else []
        found = [one for one in later if _in_queue(one, folder, run) is not None]
        if not found:
            return job
        job = found[0]


def follow(folder: Path, run: Run, job: int, show: Callable[[str], None]) -> None:
    """Show the progress of a job until it leaves the queue: `show` gets a line about once a second.

    Slurm is queried in another thread, so a controller that does not answer does not delay reading the run's folder.
    """
    reader = TaskCountsReader(folder, run, job)
    failed_names = _FailedNames(folder, run)
    asked = float("-inf")
    known: QueuedJob | None = None
    asking: BackgroundCall[QueuedJob | None] | None = None
    silent_since: float | None = None
    while True:
        now = time.monotonic()
        task_counts = reader.read()
        is_due = task_counts is not None and not task_counts.left + task_counts.running
        is_due = is_due or is_outdated(task_counts, None if known is None else state_of(known, time.time()))
        if asking is None and now - asked >= (PAUSE_S if is_due else QUEUE_EVERY_S):
            asking, asked = BackgroundCall(lambda: _in_queue(job, folder, run)), now
        if asking is not None and asking.wait(PAUSE_S if known is None else 0.0):
            try:
                known, silent_since = asking.answer(), None
                if known is None:
                    return
            except CommandError:
                if known is None:
                    raise
                silent_since = silent_since or asked
            asking = None
        state = None if known is None else state_of(known, time.time())
        line = progress_line(task_counts, state, reader.silent(now))
        line += failed_names.clause(task_counts)
        if line and run.together and state is not None and state.is_running:
            waits = together.waits_text(reader.waits, time.time())
            line += f"; {waits}" if waits else ""
        if silent_since is not None:
            line += f"; Slurm does not answer, its last answer is {span_text(now - silent_since)} old"
        if line:
            show(line)
        time.sleep(PAUSE_S)


class _FailedNames:
    """The names of failed tasks of a run with parameters, for a line of progress."""

    def __init__(self, folder: Path, run: Run) -> None:
        self._folder, self._run = folder, run
        is_small = run.kind == "llsub" and run.tasks <= NAMED_TASKS_MOST
        self._labels = task_names.Labels(run_folder.read_specs(folder, run) if is_small else ())
        self._failed = 0
        self._clause = ""

    def clause(self, counts: TaskCounts | None) -> str:
        """Return a clause with the first of them; empty: none has failed, or they have no names."""
        if not self._labels or counts is None or counts.failed == self._failed:
            return self._clause
        self._failed = counts.failed
        failed = [one for one in failed_tasks.read_account(self._folder)[1].failed if one < len(self._labels)]
        said = ", ".join(terminal.safe(self._labels[task]) for task in failed[:NAMED_MOST])
        more = f" and {len(failed) - NAMED_MOST} more" if len(failed) > NAMED_MOST else ""
        self._clause = f"; failed: {said}{more}" if failed else ""
        return self._clause


def follow_map(folder: Path, run: Run, jobs: Sequence[int], show: Callable[[str], None]) -> None:
    """Show the progress of a map and its reducer until their jobs leave the queue.

    `jobs`: the ids of map and reducer. Queries again if Slurm does not answer.
    """
    pause = POLL_S
    reader = TaskCountsReader(folder, run, jobs[0])
    while True:
        try:
            queued = slurm_jobs.read_queue(jobs=jobs)[1]
        except CommandError:
            queued = None
        if queued is not None:
            if not queued:
                return
            first = min(queued, key=lambda job: job.job_id)
            task_counts, now = reader.read() if first.job_id == jobs[0] else None, time.monotonic()
            show(progress_line(task_counts, state_of(first, time.time()), reader.silent(now)))
        time.sleep(pause)
        pause = min(POLL_MOST_S, pause * 1.25)


def _in_queue(job: int, folder: Path, run: Run) -> QueuedJob | None:
    """Return the job of the run, or None if it has ended. Raises CommandError if Slurm does not answer."""
    found = slurm_jobs.read_queue(jobs=[job])[1]
    return found[0] if found and run_jobs.is_of_run(found[0], folder, run, (job,)) else None


def state_of(job: QueuedJob, now: float) -> JobState:
    """Return the state of a job for a line of progress. `now`: Unix time, seconds."""
    start = ""
    if "PENDING" in job.states and job.start is not None and job.start > now:
        local = time.localtime(job.start)
        start = time.strftime("%H:%M:%S" if job.start - now < DAY_S else "%Y-%m-%d %H:%M", local)
    return JobState(job=job.job_id, states=job.states, reason=job.reason, start=start, restarts=job.restarts)


class TaskCountsReader:
    """Reads the progress of a run's job from the files of its launchers."""

    def __init__(self, folder: Path, run: Run, job: int) -> None:
        self._folder, self._run, self._job = folder, run, job
        self._progress = ProgressReader(folder / run.log_folder)
        self.waits: tuple[RankWait, ...] = ()
        """Ranks that wait for messages, as of the last `read`."""
        self._start = ""
        """The job with its last requeue, as in records.Ended."""
        self._before = 0
        """Tasks done before that start."""
        self._news: dict[str, tuple[float, float]] = {}
        """Node -> (time stamp of its last progress, when that was first read)."""

    def read(self) -> TaskCounts | None:
        """Return the counts since the job's last start plus tasks done before; None: no launcher has started."""
        parts = [one for one in self._progress.read() if JobStart.parse(one.job).number == self._job]
        if not parts:
            return None
        start = max((one.job for one in parts), key=lambda job: JobStart.parse(job).restarts)
        if start != self._start:
            self._start = start
            done = result_files.read_done(self._folder, self._run, before_start=start)
            self._before, self._news = len(done), {}
        ours = [one for one in parts if one.job == start]
        for one in ours:
            if not one.ended and self._news.get(one.node, (0.0, 0.0))[0] != one.at:
                self._news[one.node] = (one.at, time.monotonic())
            elif one.ended:
                self._news.pop(one.node, None)
        self.waits = tuple(wait for one in ours if not one.ended for wait in one.waits)
        return TaskCounts(
            max(self._run.tasks, *(one.tasks for one in ours)),
            done=self._before + sum(one.done for one in ours),
            failed=sum(one.failed for one in ours),
            saved=sum(one.saved for one in ours),
            given_up=sum(one.given_up for one in ours),
            running=sum(one.running for one in ours),
            per_s=_per_s(ours),
            restarts=JobStart.parse(start).restarts,
            work=progress.add_up(one.work for one in ours if one.work is not None and not one.ended),
        )

    def silent(self, now: float) -> list[str]:
        """Return the nodes without new progress for SILENT_S. Launchers write it once a second."""
        return sorted(node for node, (_, seen) in self._news.items() if now - seen > SILENT_S)


def _per_s(parts: Sequence[Progress]) -> float | None:
    """Return the tasks ended per second since the launchers began, by their clocks: the watcher's has just begun."""
    ended = sum(one.tasks_ended for one in parts)
    seconds = max(one.at for one in parts) - min(one.began for one in parts)
    return ended / seconds if ended and seconds > 0 and all(one.began for one in parts) else None
