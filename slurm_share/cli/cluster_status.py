"""`slurm-share status --cluster`: mode, shares and MPS daemons of all nodes, as each node reports them."""

from __future__ import annotations

import json
import sys
from itertools import chain
from typing import Any

from msgspec import to_builtins

from ..core import names, terminal
from ..core.text import natural
from ..share import ClusterShares, cluster_status, modes_text, nodes_by_other_mode

SCHEMA = 1
EXIT_INCOMPLETE = 1
COLUMNS = (
    terminal.TerminalColumn("NODE"),
    terminal.TerminalColumn("STATE", goes=1),
    terminal.TerminalColumn("MODE"),
    terminal.TerminalColumn("JOBS", right=True),
    terminal.TerminalColumn("SLOTS", right=True),
    terminal.TerminalColumn("DAEMONS", right=True),
    terminal.TerminalColumn("PROBLEM"),
)


def print_status(*, as_json: bool) -> int:
    """Ask all nodes and print the answers. Return 1 if one is incomplete, or the mode file cannot be read."""
    found = cluster_status.read()
    if as_json:
        print(json.dumps(_as_json(found), indent=2))
    else:
        _print(found)
    for problem in found.problems:
        print(f"slurm-share: {terminal.safe(problem)}", file=sys.stderr)
    is_complete = not found.problems and all(one.problem is None for one in found.nodes.values())
    return names.EXIT_OK if is_complete else EXIT_INCOMPLETE


def _modes_here(found: ClusterShares) -> str:
    return modes_text(found.modes[""], _partition_modes(found))


def _partition_modes(found: ClusterShares) -> dict[str, str]:
    return {name: mode for name, mode in found.modes.items() if name}


def _as_json(found: ClusterShares) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "host": found.host,
        "mode": found.modes[""],
        "partition_modes": _partition_modes(found),
        "switched_off": found.is_switched_off,
        "mode_file": found.mode_file,
        "problems": list(found.problems),
        "differ": sorted(
            chain.from_iterable(nodes_by_other_mode(_modes_here(found), found.nodes).values()), key=natural
        ),
        "nodes": [{"node": node, "state": found.states[node], **to_builtins(one)} for node, one in found.nodes.items()],
    }


def _print(found: ClusterShares) -> None:
    off = " (slurm-share off)" if found.is_switched_off else ""
    file = f"; mode file: {found.mode_file}" if found.mode_file else ""
    print(terminal.safe(f"{found.host}: mode {_modes_here(found)}{off}{file}"))
    rows = [
        (
            node,
            found.states[node],
            modes_text(one.mode, one.partition_modes),
            *(("?",) * 3 if one.mode is None else (str(len(one.jobs)), str(one.slots), str(one.daemons))),
            one.problem or "",
        )
        for node, one in found.nodes.items()
    ]
    lines, _ = terminal.lay_out(COLUMNS, rows, terminal.width())
    for line in lines:
        print(line.rstrip())
    for modes, nodes in nodes_by_other_mode(_modes_here(found), found.nodes).items():
        print(
            terminal.safe(
                f"mode {modes} on {', '.join(nodes)}, unlike {found.host}; the more restrictive of the two counts there"
            )
        )
