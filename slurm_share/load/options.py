"""The command-line options that llload and the dashboard have in common: users, nodes, jobs, intervals."""

from __future__ import annotations

import argparse
import math
import os
import re
from pathlib import Path

from ..core import numbers
from ..core.errors import UsageError, shown
from ..node import processes
from .sources.origin import SOURCES

Group = argparse._ArgumentGroup
"""argparse has no public name for this type."""
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.5, 86_400.0
_JOB = re.compile(r"([0-9]{1,10})((?:[_+][0-9]{1,10})?)")
"""A job as squeue writes it: 4711, an element 4711_3 of an array, a component 4711+1 of a heterogeneous job."""


def add_which(parser: argparse.ArgumentParser, *, nodes: str) -> Group:
    """Add the options that select nodes; `nodes`: help for -n."""
    which = parser.add_argument_group("nodes")
    selection = which.add_mutually_exclusive_group()
    selection.add_argument("-u", "--user", metavar="USER", help="nodes of this user's jobs")
    selection.add_argument(
        "-a", "--all", action="store_true", help="all nodes (operators, if the source shows other users)"
    )
    which.add_argument("-j", "--job", metavar="JOB", help="nodes of this job, or of several: 4711,77_3")
    which.add_argument("-n", "--nodes", metavar="NODES", help=nodes)
    return which


def add_origin(parser: argparse.ArgumentParser, *, replay: str) -> Group:
    """Add the options that select the source; `replay`: help for --replay."""
    origin = parser.add_argument_group("source")
    origins = origin.add_mutually_exclusive_group()
    origins.add_argument(
        "--source", choices=SOURCES, help="how to read the nodes (default: load_source in config.toml)"
    )
    origins.add_argument("--demo", action="store_true", help="show a simulated cluster")
    origins.add_argument("--replay", metavar="FILE", type=Path, help=replay)
    origin.add_argument("--at", metavar="TIME", help="start of a replay: 2026-01-31T14:30, 14:30, or Unix time")
    return origin


def user(text: str | None, *, demo: bool) -> str:
    """Return the name of the user in -u (a name or a number); None: the caller. Raises UsageError."""
    if demo:
        from .sources.demo import USER

        return USER if text is None else text
    if text is None:
        return processes.read_user_name(os.geteuid())
    uid = processes.read_user_id(text)
    if uid is None:
        raise UsageError(f"there is no user {shown(text) or repr(text)} here; write a user's name, or its number")
    return processes.read_user_name(uid)


def nodes(text: str | None) -> tuple[str, ...]:
    """Return the nodes in `n[1-3,7]`. Raises UsageError."""
    if text is None:
        return ()
    from ..core import nodelist

    return nodelist.parse(text)


def jobs(text: str | None) -> tuple[str, ...]:
    """Return the jobs in `4711,4712_3`. Raises UsageError."""
    if text is None:
        return ()
    found = []
    for part in text.split(","):
        named = _JOB.fullmatch(part)
        if named is None or not 0 < int(named[1]) < 1 << 32:
            raise UsageError(
                f"{shown(part) or repr(part)} is no number of a job; write 4711 or 4711,4712, and 77_3 of an array"
            )
        found.append(str(int(named[1])) + named[2])
    return tuple(found)


def count(option: str, text: str | None) -> int | None:
    """Return the number in the option's text; None: not given. Raises UsageError."""
    if text is None:
        return None
    number = numbers.whole(text, 999_999)
    if not number:
        raise UsageError(f"{option} {shown(text) or repr(text)}: write a number of nodes, 1 or more")
    return number


def seconds(option: str, text: str) -> float:
    """Return the seconds between two surveys. Raises UsageError."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not LEAST_INTERVAL_S <= found <= MOST_INTERVAL_S:
        range_text = f"{LEAST_INTERVAL_S} to {MOST_INTERVAL_S:.0f}"
        raise UsageError(f"{option} {shown(text)}: write seconds, {range_text} (default: 5)")
    return found
