"""`slurm-share report --all`: use of the nodes in a week by user, from the archive, with drafts of messages."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from ..core import config, names, terminal
from ..core.errors import CommandError, UsageError

if TYPE_CHECKING:
    from ..history import report
    from ..report import SiteIdle

SCHEMA = 1
"""Version of the JSON form of `slurm-share report --all --json`."""


def print_report(arguments: argparse.Namespace) -> int:
    """Read the archive and print the report. Raises UsageError, StateError."""
    # Imported late: all commands of slurm-share load this module, also the launchers on all nodes.
    from ..history import archive as history_archive
    from ..history import report as decide
    from ..history import report_text
    from ..report import weeks

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
    idle, problem = _idle(arguments.folder, period.since, period.until, arguments.user, now)
    if arguments.json:
        print(json.dumps({**as_json(found, archive.skipped), "idle": to_builtins(idle)}, indent=2))
    else:
        terminal.print_lines(report_text.as_lines(found, archive.skipped, terminal.width()))
        if idle is not None:
            terminal.print_lines(["", *weeks.site_lines(idle, terminal.width())])
        elif problem:
            print(f"slurm-share: idle GPU-hours by job are not known: {problem}", file=sys.stderr)
        days = archive.days()
        if not found.covered_h and days:
            print(f"slurm-share: the archive has {days[0]} to {days[-1]}", file=sys.stderr)
    if arguments.drafts is not None:
        _write_drafts(arguments.drafts, found, settings.documentation_url)
    return names.EXIT_OK


def _idle(folder: Path | None, since: float, until: float, user: str | None, now: float) -> tuple[SiteIdle | None, str]:
    """Return idle GPU-hours by user and job from Slurm's accounts, and why they are not known. Of a `folder` that the
    caller names, which may be another cluster's, there are none."""
    from ..report import sources, weeks

    if folder is not None:
        return None, ""
    try:
        return weeks.read_site(since, until, user, now), ""
    except CommandError as error:
        return None, sources.reason(error)


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
