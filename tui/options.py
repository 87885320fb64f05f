"""The command line of `llload-tui`, and the arguments of llload that come closest to it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from slurm_share.core.errors import UsageError
from slurm_share.core.parser import Parser
from slurm_share.load import Origin, options
from slurm_share.load import origin as load_origin

from .location import ViewName

PROGRAM = "llload-tui"
INTERVAL_S = 5.0
"""Default interval, that of an agent's samples."""
VIEWS: tuple[ViewName, ...] = ("nodes", "users", "jobs", "gpus", "advice")
"""The views that need no subject."""
_FORMS: Mapping[str, str] = {"users": "--detail", "jobs": "--detail", "gpus": "--detail", "advice": "--advise"}
"""The option of llload that shows about the same as a view."""
THEMES = "dark, light, high-contrast, colour-blind, mono and ansi"
EXAMPLES = """\
keys
  ? shows all keys; arrows and Enter go to details, Esc goes back, q quits

examples
  llload-tui                          my nodes
  llload-tui --view advice            how many processes to run, and why
  llload-tui --all                    everybody's nodes (operators)
  llload-tui --demo                   a simulated cluster, without Slurm
  llload-tui --replay day.jsonl.gz --at 14:30

Without a terminal llload runs once instead, with the same options.

exit codes
  0 success, 1 failure, 2 invalid options, recording or configuration.
"""


class Options(Struct, frozen=True, kw_only=True):
    """The parsed command line. None and empty: not given."""

    origin: Origin
    """Has an interval if one was given."""
    view: ViewName | None = None
    theme: str = ""
    config: Path | None = None
    readonly: bool = False
    no_color: bool = False


def parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        description="Show the load of the nodes that your jobs run on, live: nodes, users, jobs, GPUs, advice.",
        epilog=EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_version()
    options.add_which(parser, nodes="these nodes, such as n[1-3,7]")
    origin = options.add_origin(parser, replay="show a recording of llload --record")
    origin.add_argument("--interval", metavar="S", help=f"seconds between two surveys (default: {INTERVAL_S:g})")
    origin.add_argument(
        "--demo-nodes", metavar="N", help=f"number of nodes of --demo (default: {load_origin.DEMO_NODES})"
    )
    screen = parser.add_argument_group("the screen")
    screen.add_argument("--view", choices=VIEWS, help="the first view (default: the last one used)")
    screen.add_argument("--theme", metavar="NAME", help=THEMES)
    screen.add_argument("--no-color", action="store_true", help="no colours (as with NO_COLOR)")
    screen.add_argument("--readonly", action="store_true", help="switch off cancelling jobs and signalling processes")
    screen.add_argument("--config", metavar="FILE", type=Path, help="configuration (~/.config/slurm-share/tui.toml)")
    return parser


def checked(arguments: argparse.Namespace) -> Options:
    """Return the checked options. Raises UsageError for an invalid value, or options that exclude one another."""
    is_replay = arguments.replay is not None
    if arguments.at is not None:
        if not is_replay:
            raise UsageError("--at is the time of a recording; name one with --replay FILE")
        load_origin.moment(arguments.at, 0.0)
    if is_replay and (arguments.user is not None or arguments.job is not None or arguments.all):
        raise UsageError("-u, -j and --all choose what is recorded, not what is shown of a recording; -n does")
    if is_replay and arguments.interval is not None:
        raise UsageError("--interval does not apply to a recording; the keys { and } change its speed")
    if arguments.theme == "":
        raise UsageError(f"--theme: there is no theme ''; there are {THEMES}")
    if arguments.demo_nodes is not None and not arguments.demo:
        raise UsageError("--demo-nodes is the size of the demonstration; write --demo as well")
    return Options(
        origin=Origin(
            user=options.user(arguments.user, demo=arguments.demo),
            everybody=arguments.all,
            nodes=options.nodes(arguments.nodes),
            jobs=options.jobs(arguments.job),
            source=arguments.source or "",
            demo=arguments.demo,
            demo_nodes=options.count("--demo-nodes", arguments.demo_nodes) or load_origin.DEMO_NODES,
            replay=str(arguments.replay) if is_replay else None,
            at=arguments.at,
            waiting=True,
            interval_s=None if arguments.interval is None else options.seconds("--interval", arguments.interval),
        ),
        view=arguments.view,
        theme=arguments.theme or "",
        config=arguments.config,
        readonly=arguments.readonly,
        no_color=arguments.no_color,
    )


def llload_arguments(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments with which `llload` prints once what was asked for."""
    found = [_FORMS.get(arguments.view or "", "-g")]
    for option in ("user", "job", "nodes", "source", "replay", "at", "demo_nodes"):
        value = getattr(arguments, option)
        if value is not None:
            found.append(f"--{option.replace('_', '-')}={value}")
    return found + [
        f"--{option.replace('_', '-')}" for option in ("all", "demo", "no_color") if getattr(arguments, option)
    ]
