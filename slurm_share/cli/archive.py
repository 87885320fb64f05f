"""`slurm-share archive`: append one survey of all users' nodes to the file of the day. A timer runs it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..core import config, names, numbers
from ..core.command import EXIT_FAILED
from ..core.errors import shown
from ..core.settings import SOURCES_OF_ALL
from ..history import records

EPILOG = """\
The archive has one file a day, YYYY-MM-DD.tsv (UTC), with a line for each user
on each node and one for each survey. A second run in the same quarter of an hour
adds nothing.

exit codes
  0 done, 1 no node answered (Slurm's answer is kept) or the file cannot be
  written, 2 wrong usage
"""


def add_to(commands: Any) -> None:
    """Add the sub-command `archive`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "archive", help="append the load of all users to the archive, for slurm-share report --all", epilog=EPILOG
    )
    parser.add_argument(
        "--source", metavar="NAME", help=f"{', '.join(SOURCES_OF_ALL)} (default: load_source in config.toml)"
    )
    parser.add_argument(
        "--every",
        metavar="MIN",
        type=_minutes,
        default=records.INTERVAL_S // 60,
        help="minutes between two runs: the time that a survey counts for (default: 15)",
    )
    parser.add_argument(
        "--folder", metavar="FOLDER", type=Path, help="folder of the archive (default: archive_folder in config.toml)"
    )
    parser.set_defaults(run=archive)


def _minutes(text: str) -> int:
    number = numbers.whole(text, 1440)
    if not number:
        raise argparse.ArgumentTypeError(f"{shown(text) or repr(text)} is not a whole number from 1 to 1440")
    return number


def archive(arguments: argparse.Namespace) -> int:
    """Survey all nodes and append to the archive. Raises UsageError, StateError, CommandError."""
    # Imported late: all commands of slurm-share load this module, also the launchers on all nodes.
    from ..history import archive as archive_files
    from ..history import archiving

    configuration = config.load()
    folder = archive_files.find_folder(arguments.folder, configuration.settings)
    survey, done = archiving.take(arguments.source, folder, arguments.every * 60, configuration)
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
