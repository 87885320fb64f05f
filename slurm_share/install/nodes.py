"""Checks whether nodes and other controllers have the files that the new lines name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping

from ..core.errors import CommandError, UsageError
from ..core.installed import EPILOG, LUA, PLUGIN, PROLOG
from ..core.nodelist import unfold
from ..core.process import Deadline
from ..slurm import controllers, remote_hosts
from ..slurm import nodes as slurm_nodes
from ..slurm.conf_text import ConfText
from ..slurm.rules.free import partition_now
from .rules.hosts import ControllersSeen, NodesSeen, starts_ours
from .rules.lines import Present

DEADLINE_S = 60.0
"""For all nodes together; nodes that have not answered by then are reported."""
CONTROLLERS_S = 15.0
SHOW_S = 30.0
_NEEDED = (PROLOG, EPILOG, PLUGIN)


def check_nodes(present: Present, *, by_jobs: bool) -> NodesSeen:
    """Return which nodes have the package. Ask through the site's remote command and, with `by_jobs`, where that does
    not answer, through a short job on each node that can start one at once."""
    partitions = _read_partitions()
    nodes = list(partitions) or nodes_of(present.slurm)
    deadline = Deadline.after(DEADLINE_S)
    there = remote_hosts.read_there(
        nodes, _NEEDED, lambda node: remote_hosts.remote_argv(present.settings.remote_command, node), deadline
    )
    in_force = remote_hosts.read_hooks_in_force()
    # if slurmd starts our hooks already, this job would itself drain a node without them
    if by_jobs and in_force is not None and not starts_ours(in_force):
        for _ in range(2):  # a busy controller may not start the first job at once
            free = {node: place for node, place in partitions.items() if place is not None and node not in there}
            if free:
                there |= _read_by_jobs(free, deadline)
    lacking = {node: tuple(file for file in _NEEDED if file not in there[node]) for node in nodes if node in there}
    return NodesSeen(
        tuple(node for node, files in lacking.items() if not files),
        {node: files for node, files in lacking.items() if files},
        tuple(node for node in nodes if node not in there),
    )


def _read_by_jobs(free: Mapping[str, str], deadline: Deadline) -> dict[str, frozenset[str]]:
    return remote_hosts.read_there(free, _NEEDED, lambda node: remote_hosts.srun_argv(node, free[node]), deadline)


def _read_partitions() -> dict[str, str | None]:
    """Return each node with a partition in which a job may start now; None: there is none. Empty if Slurm does not
    answer."""
    try:
        return {node.name: partition_now(node) for node in slurm_nodes.read_nodes(timeout_s=SHOW_S)}
    except CommandError:
        return {}


def check_controllers(present: Present) -> ControllersSeen:
    """Check, through the site's remote command, whether the other controllers have job_submit.lua and the same
    files."""
    all_of_them = controllers.named_in(present.slurm)
    here = os.uname().nodename
    others = [host for host in all_of_them if not controllers.is_same_host(host, here)]
    if len(all_of_them) < 2:
        return ControllersSeen()
    files = sorted(present.texts)
    sums = remote_hosts.read_sums(
        others,
        [LUA, *files],
        lambda host: remote_hosts.remote_argv(present.settings.remote_command, host),
        Deadline.after(CONTROLLERS_S),
    )
    ours = {
        file: hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        for file, text in present.texts.items()
    }
    differing = {host: tuple(file for file in files if found.get(file) != ours[file]) for host, found in sums.items()}
    return ControllersSeen(
        tuple(others),
        len(others) < len(all_of_them),
        tuple(host for host, found in sums.items() if LUA not in found),
        {host: names for host, names in differing.items() if names},
        tuple(host for host in others if host not in sums),
    )


def nodes_of(slurm: ConfText) -> list[str]:
    """Return the nodes that slurm.conf names."""
    return _named(line.pairs[0][1] for line, _ in slurm.node_lines())


def nodes_with(slurm: ConfText, feature: str) -> list[str]:
    """Return the nodes with a feature."""
    lines = slurm.node_lines("Feature", "Features")
    return _named(line.pairs[0][1] for line, features in lines if feature in features.split(","))


def _named(lists: Iterable[str]) -> list[str]:
    found: list[str] = []
    for one in lists:
        try:
            found += unfold(one)
        except UsageError:
            found.append(one)
    return list(dict.fromkeys(found))
