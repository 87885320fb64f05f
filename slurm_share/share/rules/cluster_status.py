"""Summarize the nodes' answers to `slurm-share status --cluster`."""

from __future__ import annotations

from collections.abc import Mapping

from ..records import NodeShares


def modes_text(mode: str | None, partition_modes: Mapping[str, str]) -> str:
    """Return a node's mode and those of partitions that differ from it; `?` if the node did not answer."""
    if mode is None:
        return "?"
    return ", ".join([mode, *(f"{name}: {its}" for name, its in sorted(partition_modes.items()) if its != mode)])


def without_driver_problem(one: NodeShares, *, has_gpus: bool) -> NodeShares:
    """Return a node's answer. Remove its problem, which is the missing driver, if the node has no GPUs."""
    if has_gpus or one.mode is None:
        return one
    return NodeShares(one.node, one.mode, one.partition_modes, one.jobs, one.slots, one.daemons)


def nodes_by_other_mode(own: str, nodes: Mapping[str, NodeShares]) -> dict[str, list[str]]:
    """Return nodes by their mode (`modes_text`), for the modes that differ from the controller's `own`."""
    differ: dict[str, list[str]] = {}
    for node, one in nodes.items():
        its = modes_text(one.mode, one.partition_modes)
        if one.mode is not None and its != own:
            differ.setdefault(its, []).append(node)
    return differ
