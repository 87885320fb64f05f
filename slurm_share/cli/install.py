"""`slurm-share install`: show, write and remove the lines that Slurm's files need."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from ..core import names
from ..core.command import EXIT_FAILED
from ..core.errors import SlurmShareError, StateError, UsageError
from ..core.terminal import print_lines
from ..install import (
    SHARDS_PER_GPU,
    Action,
    InstallReport,
    ReportPrinter,
    WantedOptions,
    choices,
    named_hooks,
    named_lua,
)
from ..install import apply as install_apply
from ..install import text as install_text
from ..install import undo as install_undo
from ..slurm.conf import slurm_conf_path
from .doctor import excepted

EXIT_MISSING = 1


def add_to(commands: Any) -> None:
    """Add the sub-command `install`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "install",
        help="show, write or remove the lines that slurm.conf, plugstack.conf and gres.conf need",
        description="Show the lines that Slurm's files on this host lack, write them, or remove them. Exit code of "
        "--check: 0 if nothing is missing and the checks of `slurm-share doctor` find nothing, 1 if lines are missing "
        "or a check warns, 2 if a check fails or you must decide something first.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check", action="store_true", help="show what is missing as a diff, and change nothing (default)"
    )
    what.add_argument("--apply", action="store_true", help="write all files or none, and keep copies of the old ones")
    what.add_argument("--undo", action="store_true", help="remove what --apply wrote, and nothing else")
    what.add_argument(
        "--names-hooks",
        action="store_true",
        help="for the removal of the packages: print the lines of slurm.conf that start the hooks of slurm-share; exit "
        "code 0 if there are none, 1 if there are some, 2 if this is unknown",
    )
    what.add_argument(
        "--names-lua",
        action="store_true",
        help="the same for lines of job_submit.lua that call the script of slurm-share",
    )
    parser.add_argument(
        "--shards",
        nargs="?",
        type=int,
        const=SHARDS_PER_GPU,
        default=0,
        metavar="N",
        help=f"also write lines for jobs on parts of a GPU, N shards for each GPU (default: {SHARDS_PER_GPU})",
    )
    parser.add_argument(
        "--with",
        dest="taken",
        action="append",
        choices=choices.CHOICES,
        default=[],
        help="also write a line that changes other jobs; --check lists such lines and their effects; repeatable",
    )
    parser.add_argument(
        "--except",
        dest="without",
        action="append",
        default=[],
        metavar="CHECK,...",
        help="leave out checks of `slurm-share doctor` by name",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="with --undo: remove lines of slurm-share even if somebody added text to them",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, also for errors; install.md describes its fields"
    )
    parser.add_argument(
        "--conf", type=Path, metavar="FILE", help="path of slurm.conf (default: the one that Slurm uses on this host)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the action and return its exit code: 0, or for --check 1 or 2 as well.

    Raises UsageError if the administrator must decide something first, or a file cannot be read or written.
    """
    action: Action = "undo" if arguments.undo else "apply" if arguments.apply else "check"
    if not arguments.json:
        return _run(arguments, ReportPrinter(action, sorted(set(arguments.taken)), say))
    report = ReportPrinter(action, sorted(set(arguments.taken)), lambda text: None)
    try:
        code = _run(arguments, report)
    except SlurmShareError as error:
        _print_json(report.done(names.EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED, str(error)))
        raise
    _print_json(report.done(code))
    return code


def say(text: str) -> None:
    """Print lines without terminal control characters, which the files shown here may contain."""
    if text:
        print_lines(install_text.printable(text).split("\n"))


def _print_json(report: InstallReport) -> None:
    # json and not msgspec: a file's bytes that are no UTF-8 are lone surrogates here, which it writes as escapes
    print(json.dumps(to_builtins(report), indent=2))


def _run(arguments: argparse.Namespace, report: ReportPrinter) -> int:
    if arguments.json and (arguments.names_hooks or arguments.names_lua):
        raise UsageError("--json belongs to --check, --apply and --undo")
    if arguments.force and not arguments.undo:
        raise UsageError("--force belongs to --undo")
    if not 0 <= arguments.shards < 2**32:
        raise UsageError(f"--shards={arguments.shards}: from 1 to {2**32 - 1}; without a number it is {SHARDS_PER_GPU}")
    named = slurm_conf_path(arguments.conf).absolute()
    try:
        conf = named.parent.resolve() / named.name  # resolved, so that a folder has one journal
        if arguments.names_hooks or arguments.names_lua:
            return tell_named(conf, named_lua(conf) if arguments.names_lua else named_hooks(conf))
        report.record.slurm_conf = str(conf)
        if arguments.undo:
            install_undo.undo(conf, report, force=arguments.force)
            return names.EXIT_OK
        wanted = WantedOptions(
            arguments.shards, frozenset(arguments.taken), arguments.conf, excepted(arguments.without)
        )
        if arguments.apply:
            install_apply.apply(conf, wanted, report)
            return names.EXIT_OK
        return install_apply.check(conf, wanted, report)
    except (StateError, UsageError) as error:
        raise UsageError(install_text.printable(str(error))) from error


def tell_named(conf: Path, lines: list[str]) -> int:
    """Print the lines of Slurm's configuration that name our files, for the packages' scripts."""
    say("\n".join(f"{conf}: {line}" for line in lines))
    return EXIT_MISSING if lines else names.EXIT_OK
