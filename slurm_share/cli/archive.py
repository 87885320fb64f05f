"""`slurm-share archive`: one look at everybody's nodes, appended to the file of the day. A timer runs it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from ..core import config, names
from ..core.command import EXIT_FAILED
from ..core.errors import UsageError, shown
from ..core.process import Deadline
from ..core.settings import Settings
from ..history import records
from ..load.snapshot import Survey
from ..node import processes

SOURCES = ("agents", "prometheus", "local")
"""Those that show everybody's load."""
LOOK_S = 60.0
LOCK_S = 60.0
"""For another archiver to be through."""
EPILOG = """\
A file a day, YYYY-MM-DD.tsv (UTC), in archive_folder of the configuration; a
line for each user on each node, and one for each look. Run twice in the same
quarter of an hour, it adds nothing the second time.

exit codes
  0 done, 1 no node answered (what Slurm said is kept), or it could not be
  written; 2 it cannot be as asked.
"""


def add_to(commands: Any) -> None:
    """Add `archive`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "archive",
        help="append everybody's load to the history, for slurm-share report",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--source", metavar="NAME", help=f"{', '.join(SOURCES)} (default: load_source)")
    parser.add_argument(
        "--every", metavar="MIN", type=_minutes, default=records.INTERVAL_S // 60, help="minutes a look stands for (15)"
    )
    parser.add_argument("--folder", metavar="FOLDER", type=Path, help="instead of archive_folder")
    parser.set_defaults(run=archive)


def _minutes(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 1 <= int(text) <= 1440):
        raise argparse.ArgumentTypeError(f"{shown(text) or repr(text)} is not a whole number from 1 to 1440")
    return int(text)


def archive(arguments: argparse.Namespace) -> int:
    """Look, and append. Raises UsageError, StateError, CommandError."""
    # Here and not above: every command of slurm-share passes this module, the launchers' on all nodes, too.
    from ..history import archive as archive_files
    from ..history.rules import samples

    configuration = config.load()
    settings = configuration.settings
    folder = folder_of(arguments.folder, settings)
    survey = _look(_source(arguments.source, settings), settings)
    interval_s = arguments.every * 60
    found = samples.samples(
        survey, records.slot(survey.taken, interval_s), interval_s, settings, configuration.partitions
    )
    archive_files.prepare(folder, settings.operators_group)
    done = archive_files.append(folder, found, settings.operators_group, Deadline.after(LOCK_S))
    there = f", {done.there} there already" if done.there else ""
    torn = f"; half a line at its end was cut off ({done.torn_bytes} bytes)" if done.torn_bytes else ""
    print(
        f"{done.file}: {done.added} lines added{there}; {survey.answered} of {len(survey.nodes)} nodes answered{torn}"
    )
    for note in survey.notes:
        print(f"slurm-share: {note}", file=sys.stderr)
    if survey.nodes and not survey.answered:
        node = survey.nodes[0]
        print(f"slurm-share: no node answered ({node.name}: {node.why or 'no reason told'})", file=sys.stderr)
        return EXIT_FAILED
    return names.EXIT_OK


def folder_of(given: Path | None, settings: Settings) -> Path:
    """Where the archive is. Raises UsageError where there is none."""
    if given is None and not settings.archive_folder:
        raise UsageError("archive_folder is empty in the configuration: this site keeps no archive")
    return given or Path(settings.archive_folder)


def _source(given: str | None, settings: Settings) -> str:
    name = given or settings.load_source
    if name not in SOURCES:
        raise UsageError(
            f"the source {shown(name)} does not show everybody's load; write --source {', '.join(SOURCES[:-1])} or "
            f"{SOURCES[-1]}"
        )
    return name


def _look(source: str, settings: Settings) -> Survey:
    from ..load.sources.surveys import Surveyor, open_source

    surveyor = Surveyor(
        open_source(source, settings), user=processes.read_user_name(os.geteuid()), everybody=True, settings=settings
    )
    try:
        return surveyor.look(LOOK_S)
    finally:
        surveyor.close()
