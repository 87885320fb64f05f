"""`slurm-share report`: use of the nodes in a week by user, from the archive, with drafts of messages to users."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from ..core import config, names, terminal
from ..core.errors import UsageError

if TYPE_CHECKING:
    from ..history import report

SCHEMA = 1
EPILOG = """\
Weeks and days are in UTC, as in the archive's files.

examples
  slurm-share report                          the last complete week
  slurm-share report --week 2026-W47 --drafts messages
                                              and a file for each user whose
                                              nodes had low load for an hour or
                                              more, messages/alice-2026-W47.txt
  slurm-share report --from 2026-11-01 --to 2026-11-30 --user alice

exit codes
  0 done, 1 the archive cannot be read, 2 wrong usage
"""


def add_to(commands: Any) -> None:
    """Add the sub-command `report`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report", help="print each user's node-hours of low, good and high load in a week", epilog=EPILOG
    )
    add = parser.add_argument
    add("--week", nargs="?", const="", metavar="YYYY-Www", help="the week (default: the last complete one)")
    add("--from", dest="first", metavar="DAY", help="first day instead of a week, such as 2026-11-16")
    add("--to", dest="last", metavar="DAY", help="last day, with --from (default: today)")
    add("--user", metavar="NAME", help="print only this user")
    add("--json", action="store_true", help="print JSON")
    add("--drafts", metavar="FOLDER", type=Path, help="write a draft of a message to each user with low load")
    add("--folder", metavar="FOLDER", type=Path, help="folder of the archive (default: archive_folder in config.toml)")
    parser.set_defaults(run=print_report)


def print_report(arguments: argparse.Namespace) -> int:
    """Read the archive and print the report. Raises UsageError, StateError."""
    # Imported late: all commands of slurm-share load this module, also the launchers on all nodes.
    from ..history import archive as history_archive
    from ..history import report as decide
    from ..history import report_text

    if arguments.week is not None and (arguments.first or arguments.last):
        raise UsageError("--week is seven days by itself; leave out --from and --to, or --week")
    settings = config.load().settings
    now = time.time()
    if arguments.first or arguments.last:
        period = decide.days(arguments.first, arguments.last, now)
    else:
        period = decide.week(arguments.week or "", now)
    archive = history_archive.Archive(history_archive.find_folder(arguments.folder, settings))
    found = decide.report(archive.read(period.since, period.until), period, now, arguments.user)
    if arguments.json:
        print(json.dumps(as_json(found, archive.skipped), indent=2))
    else:
        terminal.print_lines(report_text.as_lines(found, archive.skipped, terminal.width()))
        days = archive.days()
        if not found.covered_h and days:
            print(f"slurm-share: the archive has {days[0]} to {days[-1]}", file=sys.stderr)
    if arguments.drafts is not None:
        _write_drafts(arguments.drafts, found, settings.documentation_url)
    return names.EXIT_OK


def _write_drafts(folder: Path, found: report.UsageReport, url: str) -> None:
    from ..history import archive as archive_files
    from ..history import report as decide
    from ..history import report_text

    uses = decide.to_write_to(found)
    drafts = {use.user: report_text.draft(use, found, url) for use in uses}
    left_out = archive_files.write_drafts(folder, drafts, found.period.label)
    count = len(uses) - len(left_out)
    print(f"slurm-share: {count} draft{'s' * (count != 1)} in {terminal.safe(str(folder))}", file=sys.stderr)
    for user in left_out:
        print(f"slurm-share: no draft for {terminal.safe(user)}, which is no name of a file", file=sys.stderr)


def as_json(found: report.UsageReport, skipped: int) -> dict[str, Any]:
    """Return the documented JSON form, schema 1. Unknown is null."""
    built: dict[str, Any] = to_builtins(found)
    for use, record in zip((found.total, *found.users), (built["total"], *built["users"]), strict=True):
        record["bad"] = round(use.bad, 4)
    return {"schema": SCHEMA, "skipped_lines": skipped, **built}
