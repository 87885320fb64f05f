"""Read and write Slurm's node lists, such as n[1-3,7]."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from .errors import ConfigError, UsageError, shown
from .settings import Configuration

NODES_MAX = 100_000
"""Most nodes in a list: more than the largest clusters have, and few enough for memory (not n[1-999999999])."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
_PIECE = re.compile(r",(?![^\[]*\])")
_SIMPLE = re.compile(r"([A-Za-z0-9._-]+)\[([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)\]")
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")


def unfold(text: str) -> tuple[str, ...]:
    """Return the names in a list that Slurm wrote, in its order. Raises UsageError as `parse` does."""
    if "[" not in text:
        return tuple(text.split(",")) if text else ()
    if simple := _SIMPLE.fullmatch(text):  # nearly every list, twenty times as fast as ClusterShell
        head, ranges = simple.groups()
        spans = [span.partition("-") for span in ranges.split(",")]
        if sum(int(last or first) - int(first) for first, _, last in spans) <= NODES_MAX:
            return tuple(
                f"{head}{number:0{len(first)}d}"
                for first, _, last in spans
                for number in range(int(first), int(last or first) + 1)
            )
    return tuple(name for piece in _PIECE.split(text) for name in _set(piece))


def parse(text: str) -> tuple[str, ...]:
    """Return the names in a list that a person wrote, sorted, without duplicates. Raises UsageError."""
    return tuple(_set(text))


def fold(names: Iterable[str]) -> str:
    """Return the names as n[1-3,7], sorted; "" for no names. If any is not a valid node name, join them by commas."""
    wanted = list(names)
    if not all(map(_NAME.fullmatch, wanted)):
        return ",".join(wanted)
    return str(NodeSet.fromlist(wanted, resolver=RESOLVER_NOGROUP))


def _size(piece: str) -> int:
    """Return an upper bound of the number of names in a piece. Brackets multiply: n[1-3]m[1-4]."""
    size = 1
    if re.search(r"[\[,]\s*-|\]\s*[0-9]{6}", piece):  # ClusterShell reads -1, or joins digits to a range
        return NODES_MAX + 1
    for listed in re.findall(r"\[([^\[\]]*)", piece):
        spans = listed.count(",") + 1
        size *= spans + sum(max(0, int(last[:10]) - int(first[:10])) for first, last in _RANGE.findall(listed))
    return size


def _set(text: str) -> NodeSet:
    count = sum(_size(piece) for piece in _PIECE.split(text))
    try:
        if count > NODES_MAX:
            raise ValueError
        found = NodeSet(text, resolver=RESOLVER_NOGROUP)
    except (NodeSetException, ValueError) as error:
        raise UsageError(
            f"{shown(text) or repr(text)} is no list of nodes; write n1, or n[1-3,7], several with commas"
        ) from error
    if not found or not all(map(_NAME.fullmatch, found)):
        raise UsageError(f"{shown(text) or repr(text)} is no list of nodes; write n1, or n[1-3,7], several with commas")
    return found


def check_settings(configuration: Configuration) -> None:
    """Raise ConfigError if the setting `exclusive_user_nodes` is no list of nodes.

    A hook reads it only for an ordinary job, and could then only log the mistake.
    """
    for nodes in configuration.settings.exclusive_user_nodes:
        try:
            NodeSet(nodes, resolver=RESOLVER_NOGROUP)
        except NodeSetException as error:
            raise ConfigError(configuration.file, f"{error}; it says {nodes!r}", "exclusive_user_nodes") from error
