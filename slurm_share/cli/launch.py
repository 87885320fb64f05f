"""`slurm-share launch`: the task of each node of a triples job, started by the script that llsub writes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core import command, config, given_variables, names, numbers, terminal
from ..core.errors import ConfigError, SlurmShareError
from ..core.paths import Paths
from ..core.records import JobStart
from ..core.settings import Settings
from ..triples import (
    Run,
    chains,
    failed_tasks,
    launch_node,
    next_job,
    report,
    run_folder,
    seal_at_end,
    submission,
    submitting,
)
from .progress_line import LauncherLine

EXIT_ALL_DONE = 100
"""`--begin`: nothing is left to do; the job's script then exits with 0."""


def add_to(commands: Any) -> None:
    """Add the sub-command `launch`."""
    parser = commands.add_parser(
        "launch",
        help="run this node's tasks of llsub or llmapreduce (their job scripts call it)",
        description="Run this node's processes of a run. Tasks that are done are not run again.",
    )
    parser.add_argument("folder", type=Path, help="the folder of the run, LLSUB.N or MAPRED.N")
    parser.add_argument(
        "--summary",
        action="store_true",
        help="only summarize the results of all nodes; exit code 0: all tasks are done, 75: none failed and some are "
        "saved, 1: otherwise",
    )
    parser.add_argument(
        "--awaited",
        action="store_true",
        help="only look whether the runs that this one waits for are done; exit code 0: they are, 1: they are not",
    )
    parser.add_argument(
        "--begin",
        action="store_true",
        help="only ask whether a job that the run has submitted itself (llsub --until-done) has something to do; exit "
        f"code 0: yes, {EXIT_ALL_DONE}: all tasks are done, 1: no, with the reason",
    )
    parser.add_argument("--run", metavar="ID", default="", dest="id", help="the run that the folder must be of")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    folder = arguments.folder.absolute()
    run = run_folder.read_run_of_job(folder, arguments.id)
    if arguments.awaited:
        return _look_at_awaited(folder, run)
    if arguments.begin:
        return _begin(folder, run)
    if arguments.summary:
        return _summarize(folder, _sealed(folder, run))
    line = LauncherLine(run.tasks)
    in_slurm = "SLURM_JOB_ID" in os.environ
    if in_slurm:
        _forget_other_job(os.environ["SLURM_JOB_ID"])
    code = launch_node(run, folder, os.environ, Paths(), _settings(), _say, line.show)
    # Inside Slurm the job's script summarizes, after the launchers of all nodes have ended.
    if in_slurm:
        return code
    run = run_folder.read_run_of_job(folder, run.id)  # it may have been moved, or have grown, while it ran
    return max(code, _summarize(folder, run))


def _sealed(folder: Path, run: Run) -> Run:
    """Seal this job of a run, and return the run with the tasks that are the job's."""
    job = numbers.whole(os.environ.get("SLURM_JOB_ID"), numbers.UINT32_MOST)
    start = JobStart(job, numbers.whole(os.environ.get("SLURM_RESTART_COUNT")) or 0)
    return run if job is None else seal_at_end(folder, run, str(start))


def _look_at_awaited(folder: Path, run: Run) -> int:
    """Return 0 if the runs that this one waits for are done; else say what is, and submit it again if it helps."""
    found = chains.look(folder, run)
    if found.may_start:
        return 0
    _say(found.sentence)
    if found.has_further_jobs and not run.together:
        _sealed(folder, run)  # so that the new job is no second one of the run beside this one
        asked = submitting.ResumeOptions(
            retries=None, oom_retries=None, keep_going=False, max_failures=None, env=None, script=None, dry_run=False,
            after_sealed=True,
        )  # fmt: skip
        output = submitting.Output(command=lambda _: None, note=_say)
        try:
            job = submitting.resume(folder, submission.SbatchOptions(), asked, output).job
            _say(f"job {job} starts after that")
        except SlurmShareError as error:
            _say(f"it could not be submitted again from here ({error}); llsub --resume {folder} does")
    return 1


def _begin(folder: Path, run: Run) -> int:
    job = next_job.own_job(os.environ)
    why, is_done = ("", False) if job is None else next_job.why_not_begin(folder, run, job)
    if not why:
        return names.EXIT_OK
    _say(why)
    return EXIT_ALL_DONE if is_done else 1


def _forget_other_job(job: str) -> None:
    """Remove what slurm-share set in the job that this one was submitted from, on a host without its plugin."""
    kept = given_variables.forget(os.environ, numbers.whole(job, numbers.UINT32_MOST), slurms_stay=True)
    for name in os.environ.keys() - kept.keys():
        del os.environ[name]


def _summarize(folder: Path, run: Run) -> int:
    found = report.summarize(folder, run)
    made = report.table(run, found)
    try:
        if made.row_count:
            terminal.show(made)
    except OSError:
        command.forget_output()  # the exit code tells the result, too
    for sentence in report.sentences(run, found, folder):
        _say(sentence)
    if run.kind == "llsub":  # for llmapreduce, its own script names the inputs
        _print(failed_tasks.lines_of(folder, run, found.account))
    wanted = _settings().report
    if run.report or wanted == "all" or (wanted == "share" and run.share is not None):
        _report(folder)
    job = next_job.own_job(os.environ)
    if run.until_done is not None and job is not None:
        next_job.at_end(folder, run, found.account, job, _say)
    return run_folder.read_exit_code(folder, run) or found.account.exit_code


def _report(folder: Path) -> None:
    """Print the short report of the run, from its folder alone: the job has not ended for Slurm yet."""
    from ..report import figures, next_time, resubmission, short_text, sources

    try:
        who = sources.viewer(_settings())
        found = sources.read_folder(folder, os.environ, who)
        then = resubmission.next_time(found, figures.figures(found), _settings(), who)
        _print(short_text.lines(found, next_time.short_lines(then)))
    except (SlurmShareError, OSError) as error:
        _say(f"there is no report of the run: {error}")


def _settings() -> Settings:
    """Return the site's settings, or the defaults if the file has mistakes: the run should start anyway."""
    try:
        return config.load().of(os.environ.get("SLURM_JOB_PARTITION"))
    except ConfigError as error:
        _say(f"{error}; running with the defaults")
        return Settings()


def _say(sentence: str) -> None:
    """Print a sentence to the job's log. Ignore errors (disk full, reader gone): the tasks should run anyway."""
    _print([f"slurm-share launch: {sentence}"])


def _print(lines: Sequence[str]) -> None:
    try:
        terminal.print_lines(lines)
        sys.stdout.flush()
    except OSError:
        command.forget_output()
