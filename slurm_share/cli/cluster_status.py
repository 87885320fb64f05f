"""`slurm-share status --cluster`: mode, shares and MPS daemons of every node, as each of them says."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..core import config, names, terminal
from ..core.config import Configuration
from ..core.text import natural
from ..share import cluster_status, mode_file, queue_verdicts
from ..share.records import NodeShares
from ..share.rules.verdict import word_of_file

SCHEMA = 1
EXIT_NOT_ALL = 1
COLUMNS = (
    terminal.Column("NODE"),
    terminal.Column("STATE", goes=1),
    terminal.Column("MODE"),
    terminal.Column("JOBS", right=True),
    terminal.Column("SLOTS", right=True),
    terminal.Column("DAEMONS", right=True),
    terminal.Column("PROBLEM"),
)


def print_status(*, as_json: bool) -> int:
    """Ask all nodes and print. 1 where one did not answer, or only in part, or the mode file cannot be read."""
    here = config.load()
    known = queue_verdicts.read_nodes()
    nodes = sorted(known, key=natural)
    found = cluster_status.read(here.settings.remote_command, nodes)
    shown = {node: _without_gpus(found[node], has_gpus=known[node][0]) for node in nodes}
    file, problem = _mode_file(here)
    problems = [] if problem is None else [problem]
    if as_json:
        print(json.dumps(_as_json(here, file, problems, {node: known[node][1] for node in nodes}, shown), indent=2))
    else:
        _print(here, file, {node: known[node][1] for node in nodes}, shown)
    for said in problems:
        print(f"slurm-share: {terminal.safe(said)}", file=sys.stderr)
    is_whole = not problems and all(one.problem is None for one in shown.values())
    return names.EXIT_OK if is_whole else EXIT_NOT_ALL


def _without_gpus(one: NodeShares, *, has_gpus: bool) -> NodeShares:
    """A node without GPUs has no driver to answer; that it has a mode is all there is to know."""
    if has_gpus or one.mode is None:
        return one
    return NodeShares(one.node, one.mode, one.partition_modes, one.jobs, one.slots, one.daemons)


def _modes(mode: str | None, partitions: Mapping[str, str]) -> str:
    if mode is None:
        return "?"
    return ", ".join([mode, *(f"{name}: {its}" for name, its in sorted(partitions.items()) if its != mode)])


def _own(here: Configuration) -> str:
    modes = here.modes()
    return _modes(modes[""], {name: mode for name, mode in modes.items() if name})


def _mode_file(here: Configuration) -> tuple[str | None, str | None]:
    """The word in force of the site's mode file (None: it has none), and why it cannot be read."""
    path = here.settings.mode_file
    if not path:
        return None, None
    found = mode_file.read(path)
    if found.problem is not None:
        return None, (
            f"the mode file {path} cannot be read here ({found.problem}); a node that cannot read it goes by its own "
            "mode and the job's verdict"
        )
    return None if found.text is None else word_of_file(found.text), None


def _differing(here: Configuration, found: Mapping[str, NodeShares]) -> dict[str, list[str]]:
    """Nodes by their modes, where these are not the controller's."""
    differ: dict[str, list[str]] = {}
    for node, one in found.items():
        its = _modes(one.mode, one.partition_modes)
        if one.mode is not None and its != _own(here):
            differ.setdefault(its, []).append(node)
    return differ


def _host() -> str:
    return os.uname().nodename.split(".")[0]


def _as_json(
    here: Configuration,
    file: str | None,
    problems: Sequence[str],
    states: Mapping[str, str],
    found: Mapping[str, NodeShares],
) -> dict[str, Any]:
    modes = here.modes()
    return {
        "schema": SCHEMA,
        "host": _host(),
        "mode": modes[""],
        "partition_modes": {name: mode for name, mode in modes.items() if name},
        "switched_off": here.settings.switched_off,
        "mode_file": file,
        "problems": list(problems),
        "differ": sorted((node for nodes in _differing(here, found).values() for node in nodes), key=natural),
        "nodes": [
            {
                "node": node,
                "state": states[node],
                "mode": one.mode,
                "partition_modes": dict(one.partition_modes),
                "jobs": list(one.jobs),
                "slots": one.slots,
                "daemons": one.daemons,
                "problem": one.problem,
            }
            for node, one in found.items()
        ],
    }


def _print(here: Configuration, file: str | None, states: Mapping[str, str], found: Mapping[str, NodeShares]) -> None:
    off = " (slurm-share off)" if here.settings.switched_off else ""
    print(terminal.safe(f"{_host()}: mode {_own(here)}{off}" + (f"; mode file: {file}" if file else "")))
    rows = [
        (
            node,
            states[node],
            _modes(one.mode, one.partition_modes),
            *(("?",) * 3 if one.mode is None else (str(len(one.jobs)), str(one.slots), str(one.daemons))),
            one.problem or "",
        )
        for node, one in found.items()
    ]
    lines, _ = terminal.lay_out(COLUMNS, rows, terminal.width())
    for line in lines:
        print(line.rstrip())
    for modes, nodes in _differing(here, found).items():
        print(
            terminal.safe(f"another mode than {_host()}'s: {modes} on {', '.join(nodes)}; the lesser one counts there")
        )
