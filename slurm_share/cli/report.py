"""`slurm-share report`: what jobs and runs did and what to ask for next time, and reports of weeks."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import config, names, terminal
from ..core.errors import CommandError, SlurmShareError, UsageError

if TYPE_CHECKING:
    from ..core.settings import Configuration, Settings
    from ..report import JobFigures, JobReport, NextTime
    from ..report.sources import Viewer

EPILOG = """\
A report has what a job asked for, had and used: CPUs, memory, GPUs, waiting,
energy, for each GPU and task, and what to ask for next time. It can be asked
for while the job runs, a second after its end, and as long as the site keeps
the records. An unknown figure is shown as unknown.

examples
  slurm-share report                   your jobs of the last day, and the report
                                       of the last one
  slurm-share report 4711 LLSUB.3      a job, and a run of llsub
  slurm-share report 4711 --html report.html
                                       one file with plots, for a browser
  slurm-share report LLSUB.3 --csv     a row for each task (or GPU)
  slurm-share report --week            your last complete week
  slurm-share report --all --week 2026-W47 --drafts messages
                                       for operators: everybody's node-hours,
                                       and a draft of a message to each user
                                       whose nodes had low load

Weeks and days are in UTC. --from, --to, --user, --drafts and --folder are for
--all and imply it.

exit codes
  0 done, 1 a source cannot be read, 2 wrong usage: no such job, another
  user's job
"""


def add_to(commands: Any) -> None:
    """Add the sub-command `report`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="what a job or run used, per GPU and task, and what to ask for next time; reports of weeks",
        description="Report what jobs and runs did, and what to ask for next time.",
        epilog=EPILOG,
    )
    add = parser.add_argument
    add("targets", metavar="JOB|LLSUB.n", nargs="*", help="jobs and folders of runs (default: your last job)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV: a row for each task if tasks are known, or GPU")
    form.add_argument("--html", metavar="FILE", type=Path, help="write a page with plots, one file, for a browser")
    form.add_argument("--short", action="store_true", help="print the short report, as at the end of a job's output")
    add("--week", nargs="?", const="", metavar="YYYY-Www", help="your jobs of a week (default: the last complete one)")
    site = parser.add_argument_group("for operators")
    add = site.add_argument
    add("--all", action="store_true", help="everybody's node-hours of low, good and high load, from the archive")
    add("--from", dest="first", metavar="DAY", help="first day instead of a week, such as 2026-11-16")
    add("--to", dest="last", metavar="DAY", help="last day, with --from (default: today)")
    add("--user", metavar="NAME", help="print only this user")
    add("--drafts", metavar="FOLDER", type=Path, help="write a draft of a message to each user with low load")
    add("--folder", metavar="FOLDER", type=Path, help="folder of the archive (default: archive_folder in config.toml)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Print the report that was asked for. Raises UsageError, StateError, CommandError."""
    # Imported late: all commands of slurm-share load this module, also the launchers on all nodes.
    from . import report_site

    of_site = [
        name
        for name, value in (
            ("--all", arguments.all), ("--from", arguments.first), ("--to", arguments.last),
            ("--user", arguments.user), ("--drafts", arguments.drafts), ("--folder", arguments.folder),
        )
        if value
    ]  # fmt: skip
    if of_site:
        if arguments.targets or arguments.csv or arguments.html or arguments.short:
            raise UsageError(f"{of_site[0]} is for the site's report, which has no jobs, --csv, --html or --short")
        return report_site.print_report(arguments)
    loaded = config.load()
    if arguments.week is not None:
        if arguments.targets or arguments.csv or arguments.html or arguments.short:
            raise UsageError("--week is a report of all your jobs of a week; leave out jobs, --csv, --html and --short")
        return _print_week(arguments, loaded.settings)
    return _print_jobs(arguments, loaded)


def _print_jobs(arguments: argparse.Namespace, loaded: Configuration) -> int:
    from ..report import sources

    settings = loaded.settings
    who = sources.viewer(settings)
    targets = arguments.targets or _last(who, quiet=arguments.json or arguments.csv or arguments.html)
    found = [_with_figures(sources.read(target, who, settings), who, loaded) for target in dict.fromkeys(targets)]
    if arguments.json:
        from ..report import rows

        print(rows.as_json(found))
    elif arguments.csv:
        from ..report import rows

        terminal.print_lines(rows.as_csv(report for report, _, _ in found))
    elif arguments.html is not None:
        _write_page(arguments.html, found)
    elif arguments.short:
        from ..report import next_time, short_text

        for report, _, then in found:
            terminal.print_lines(short_text.lines(report, next_time.short_lines(then)))
    else:
        _print_text(found)
    return names.EXIT_OK


def _with_figures(report: JobReport, who: Viewer, loaded: Configuration) -> tuple[JobReport, JobFigures, NextTime]:
    from ..report import figures, resubmission

    found = figures.figures(report)
    settings = loaded.of(None if report.job is None else report.job.partition)
    return report, found, resubmission.next_time(report, found, settings, who)


def _last(who: Viewer, *, quiet: bool) -> list[str]:
    """Print the table of the user's jobs of the last day; return the last one that has started.

    Raises UsageError if there is none.
    """
    from ..report import sources, tables

    try:
        reports = sources.read_day(who, time.time())
    except CommandError as error:
        raise UsageError(
            f"Slurm's accounts cannot be read ({sources.reason(error)}), so your last job is not known: write its "
            "number, or the folder of a run: slurm-share report LLSUB.<n>"
        ) from error
    begun = [report for report in reports if report.job is not None and report.job.has_begun]
    if not begun:
        raise UsageError("no job of yours has run in the last day; write a number: slurm-share report JOB")
    if not quiet:
        shown = begun[-tables.DAY_MOST :]
        terminal.print_lines(tables.day_lines(shown, len(begun) - len(shown), terminal.width()))
        print()
    return [begun[-1].title]


def _print_text(found: list[tuple[JobReport, JobFigures, NextTime]]) -> None:
    from rich.text import Text

    from ..report import text

    console = terminal.console()
    width = console.width if console.is_terminal else 80
    for place, (report, sums, then) in enumerate(found):
        parts = text.sections(report, sums, then, width)
        said = text.lines(parts)
        if place:
            print()
        if not console.is_terminal:
            terminal.print_lines(said)
            continue
        titles = {part.title for part in parts if part.title} | {said[0]}
        for line in said:
            shown = Text(line, style="bold" if line in titles else "", no_wrap=True)
            shown.highlight_regex(r"\[\|+", "green")
            shown.highlight_regex(r"unknown", "yellow")
            console.print(shown, soft_wrap=True)


def _write_page(file: Path, found: list[tuple[JobReport, JobFigures, NextTime]]) -> None:
    from ..core import files
    from ..report import page

    data = page.page(found, time.time()).encode("utf-8")
    try:
        files.write(file, data, mode=0o666 & ~_umask())
    except OSError as error:
        raise UsageError(f"{terminal.safe(str(file))} cannot be written: {error.strerror}") from error
    print(f"slurm-share: {terminal.safe(str(file))}, {len(data) / 1024:.0f} KiB", file=sys.stderr)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _print_week(arguments: argparse.Namespace, settings: Settings) -> int:
    from ..report import sources, weeks

    who = sources.viewer(settings)
    try:
        found = weeks.read(arguments.week, who, settings, time.time())
    except CommandError as error:
        raise SlurmShareError(
            f"Slurm's accounts cannot be read ({sources.reason(error)}): a week is made from them"
        ) from error
    if arguments.json:
        print(weeks.as_json(found))
    else:
        terminal.print_lines(weeks.lines(found, min(terminal.width(), 100)))
    return names.EXIT_OK
