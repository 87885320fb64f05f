"""The lines that make parts of a GPU possible: shards on every node line with GPUs, and as many in gres.conf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from ..conf_text import ConfLine, ConfText, Edit
from . import site_rules
from .site_values import Unclear, extended

SHARDS_PER_GPU = 720720
"""Divides by every share from 1 to 16."""


def gpu_lines(slurm: ConfText) -> Iterator[tuple[ConfLine, str]]:
    """(line of nodes, its Gres) for every line whose nodes have GPUs; one without a Gres of its own has that of the
    last NodeName=DEFAULT before it."""
    default = ""
    for line in slurm.lines:
        if not line.pairs or line.pairs[0][0].lower() != "nodename":
            continue
        gres = line.get("Gres")
        if line.pairs[0][1].upper() == "DEFAULT":
            default = default if gres is None else gres
        elif _gpus(gres if gres is not None else default):
            yield line, gres if gres is not None else default


def has_gpus(slurm: ConfText) -> bool:
    """Whether any node has GPUs; one whose Gres cannot be read has."""
    try:
        return any(True for _ in gpu_lines(slurm))
    except Unclear:
        return True


def node_edits(slurm: ConfText, texts: Mapping[str, str], per_gpu: int) -> Iterator[Edit]:
    """Shards on every line that has GPUs and none. Raises Unclear."""
    for line in slurm.lines_of("NodeName"):
        gres = line.get("Gres")
        if gres is None or not _gpus(gres) or any(one.name == "shard" for one in site_rules.parse_gres(gres)):
            continue
        shards = ",".join(f"shard:{kind}{count * per_gpu}" for kind, count in _gpus(gres))
        yield extended(texts, line, "Gres", f"{gres},{shards}", shards)


def gres_edits(slurm: ConfText, gres: ConfText, texts: Mapping[str, str], per_gpu: int) -> Iterator[Edit]:
    """The same in gres.conf, for the nodes it has no shards of."""
    have = [line for line in gres.lines if (line.get("Name") or "").lower() == "shard"]
    if any(line.get("NodeName") is None for line in have):
        return
    for line, counts in gpu_lines(slurm):
        nodes = line.pairs[0][1]
        if any(overlap(nodes, one.get("NodeName") or "") for one in have):
            continue
        for kind, count in _gpus(counts):
            of_type = f" Type={kind.rstrip(':')}" if kind else ""
            text = f"NodeName={nodes} Name=shard{of_type} Count={count * per_gpu}"
            yield Edit(str(gres.file), text, word=f"NodeName={nodes} Name=shard")


def overlap(one: str, other: str) -> bool:
    """Whether two lists of nodes have one in common. Raises Unclear for what is no list."""
    try:
        return bool(NodeSet(one, resolver=RESOLVER_NOGROUP).intersection(NodeSet(other, resolver=RESOLVER_NOGROUP)))
    except NodeSetException as error:
        raise Unclear(f"{one!r} or {other!r} is no list of nodes that can be read: {error}") from error


def _gpus(gres: str) -> list[tuple[str, int]]:
    """(type with its colon, or nothing; how many) of every `gpu` in a Gres. Raises Unclear."""
    found = []
    for one in site_rules.parse_gres(gres):
        if one.name != "gpu":
            continue
        if one.count is None:
            raise Unclear(f"Gres={gres} is not gpu[:TYPE][:COUNT]; write it so, then write this again")
        found.append((f"{one.kind}:" if one.kind else "", one.count))
    return found
