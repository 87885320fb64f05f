"""Find a host's node in slurm.conf, as slurmd does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ...core.errors import ConfigError, UsageError
from ...core.nodelist import unfold
from ..conf_text import ConfText

_HOST_KEYS = ("NodeHostname", "NodeName", "NodeAddr")
"""The fields of a node that may contain the name of its host. Without NodeHostname, Slurm takes NodeName. slurmd does
not compare NodeAddr, but sites that start slurmd with a name (-N) often write the host's name there."""


def node_of_host(text: ConfText, host: str) -> str | None:
    """Return the node that slurm.conf has for a host; None: it has none, or several with the host's short name.

    The host's full name is looked for first, then the name without the last parts of its domain, then its first part
    among the first parts of the names in slurm.conf.
    """
    hosts = tuple(_hosts(text))
    parts = host.split(".")
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        for key in _HOST_KEYS:
            found = next((node for node, its_key, its_host in hosts if its_key == key and its_host == name), None)
            if found is not None:
                return found
    for key in _HOST_KEYS[:2]:
        short = {node for node, its_key, its_host in hosts if its_key == key and its_host.split(".")[0] == parts[0]}
        if short:
            return short.pop() if len(short) == 1 else None
    return None


def has_gpus(text: ConfText, node: str) -> bool | None:
    """Return whether slurm.conf gives a node GPUs, which it must even where gres.conf has AutoDetect; None: it does not
    name the node (a dynamic or cloud node may register with a gres of its own)."""
    for line, gres in text.node_lines("Gres"):
        if node in _names(line.get("NodeName") or ""):
            return any(item.strip().partition(":")[0] == "gpu" for item in gres.split(","))
    return None


def _hosts(text: ConfText) -> Iterator[tuple[str, str, str]]:
    """Yield (node, key, host) for each name of a host in slurm.conf's lines about nodes."""
    for line in text.lines_of("NodeName"):
        nodes = _names(line.get("NodeName") or "")
        hostnames = _names(line.get("NodeHostname") or "")
        keys = ("NodeHostname", "NodeAddr") if len(hostnames) == len(nodes) else ("NodeName", "NodeAddr")
        for key in keys:
            hosts = _names(line.get(key) or "")
            if len(hosts) == len(nodes):
                yield from ((node, key, host) for node, host in zip(nodes, hosts, strict=True))


def _names(folded: str) -> tuple[str, ...]:
    try:
        return unfold(folded)
    except (UsageError, ConfigError):
        return ()


def name_of_option(argv: Sequence[str]) -> str:
    """Return the node's name in slurmd's arguments (-N n1, -Nn1), which may differ from the host's; "": none."""
    for value, following in pairwise((*argv, "")):
        if value.startswith("-N"):
            return value[2:] or following
    return ""
