"""Edits for shards: `shard` on every node line with NVIDIA GPUs, and the same count in gres.conf."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ...core import nodelist
from ...core.errors import UsageError
from ...share import site
from ...slurm.conf_text import ConfLine, ConfText, Edit
from .edits import UnclearLine, extended

SHARDS_PER_GPU = 720720
"""Divisible by every number of tasks from 1 to 16."""
_NVIDIA_DETECTED = frozenset({"nvml", "nvidia"})
_OTHERS_DETECTED = frozenset({"rsmi", "oneapi", "nrt"})
"""Values of AutoDetect in gres.conf for GPUs of AMD, Intel and AWS."""
_NVIDIA_DEVICE = re.compile(r"/dev/nvidia")
_OTHERS_DEVICE = re.compile(r"/dev/(dri|kfd|accel|neuron|habanalabs|hl)")
_OTHERS_TYPE = re.compile(
    r"mi\d{2,3}[a-z]*|(amd|instinct|radeon|gfx|intel|pvc|ponte|arc|flex|gaudi|hl\d|max_?1[15])[\w-]*", re.I
)
"""Type names that sites give to GPUs of other vendors: mi300x, max1550, gaudi2."""


def gpu_lines(slurm: ConfText) -> Iterator[tuple[ConfLine, str]]:
    """Yield (node line, Gres) for every line whose nodes have GPUs."""
    return ((line, gres) for line, gres in slurm.node_lines("Gres") if _gpus(gres))


def has_gpus(slurm: ConfText) -> bool:
    """Return whether any node has GPUs; True if a Gres cannot be parsed."""
    try:
        return any(True for _ in gpu_lines(slurm))
    except UnclearLine:
        return True


def node_edits(slurm: ConfText, gres: ConfText, texts: Mapping[str, str], per_gpu: int) -> Iterator[Edit]:
    """Yield shards for every node line with NVIDIA GPUs and no shards. Raises Unclear."""
    for line in slurm.lines_of("NodeName"):
        given = line.get("Gres")
        if given is None or any(one.name == "shard" for one in site.parse_gres(given)):
            continue
        ours = _nvidia(line.pairs[0][1], given, gres)
        if not ours:
            continue
        shards = ",".join(f"shard:{kind}{count * per_gpu}" for kind, count in ours)
        yield extended(texts, line, "Gres", f"{given},{shards}", shards)


def gres_edits(slurm: ConfText, gres: ConfText, texts: Mapping[str, str], per_gpu: int) -> Iterator[Edit]:
    """Yield lines of gres.conf for the nodes that have no shards there. Raises Unclear."""
    have = [line for line in gres.lines if (line.get("Name") or "").lower() == "shard"]
    if any(line.get("NodeName") is None for line in have):
        return
    for line, counts in gpu_lines(slurm):
        nodes = line.pairs[0][1]
        if any(overlap(nodes, one.get("NodeName") or "") for one in have):
            continue
        kinds = _nvidia(nodes, counts, gres)
        for kind, count in kinds:
            of_type = f" Type={kind.rstrip(':')}" if kind else ""
            # With shards of several types slurmd must know which GPUs each has (_build_shared_list).
            files = _files(nodes, kind.rstrip(":"), count, gres) if len(kinds) > 1 else {"": count}
            for file, number in files.items():
                text = f"NodeName={nodes} Name=shard{of_type} Count={number * per_gpu}{file and f' File={file}'}"
                yield Edit(str(gres.file), text, word=f"NodeName={nodes} Name=shard")


def _files(nodes: str, kind: str, count: int, gres: ConfText) -> dict[str, int]:
    """Return File= of the GPUs of a type on these nodes, and the number of GPUs of each. Raises Unclear."""
    found: dict[str, int] = {}
    for line in gres.lines:
        names, file = line.get("NodeName"), line.get("File")
        is_here = names is None or nodes.upper() == "DEFAULT" or overlap(nodes, names)
        if (line.get("Name") or "").lower() == "gpu" and (line.get("Type") or "") == kind and is_here and file:
            try:
                found[file] = len(nodelist.parse_paths(file))
            except UsageError as error:
                raise UnclearLine(str(error)) from error
    if sum(found.values()) != count:
        raise UnclearLine(
            f"NodeName={nodes} has GPUs of several types, for which slurmd wants File= in each shard line, and "
            f"{gres.file} does not have the File= of {count} GPUs of type {kind or 'none'}; write its gpu lines with "
            "Type= and File=, then run this again"
        )
    return found


def other_vendors(slurm: ConfText, gres: ConfText) -> tuple[str, ...]:
    """Return the names of node lines with GPUs of other vendors, as far as slurm.conf and gres.conf tell. Raises
    Unclear."""
    return tuple(
        line.pairs[0][1]
        for line, given in gpu_lines(slurm)
        if len(_nvidia(line.pairs[0][1], given, gres)) < len(_gpus(given))
    )


def has_nvidia(slurm: ConfText, gres: ConfText) -> bool:
    """Return whether any node may have NVIDIA GPUs; True if a Gres cannot be parsed."""
    try:
        return any(_nvidia(line.pairs[0][1], given, gres) for line, given in gpu_lines(slurm))
    except UnclearLine:
        return True


def _nvidia(nodes: str, given: str, gres: ConfText) -> list[tuple[str, int]]:
    """Return the GPUs of a Gres without those known to be of another vendor."""
    return [(kind, count) for kind, count in _gpus(given) if not _is_others(nodes, kind.rstrip(":"), gres)]


def _is_others(nodes: str, kind: str, gres: ConfText) -> bool:
    """Return whether GPUs of this type on these nodes are another vendor's: by type, else by gres.conf lines for these
    nodes, else by its lines for all nodes."""
    if _OTHERS_TYPE.fullmatch(kind):
        return True
    lines = [line for line in gres.lines if (line.get("Name") or "gpu").lower() == "gpu"]
    own = [
        line
        for line in lines
        if (names := line.get("NodeName")) is not None and (nodes.upper() == "DEFAULT" or overlap(nodes, names))
    ]
    for group in (own, [line for line in lines if line.get("NodeName") is None]):
        found = {_vendor_of(line) for line in group if not kind or (line.get("Type") or kind) == kind}
        if "other" in found:
            return True
        if "nvidia" in found:
            return False
    return False


def _vendor_of(line: ConfLine) -> str:
    """Return `nvidia`, `other`, or empty if a line of gres.conf does not tell."""
    detected = (line.get("AutoDetect") or "").lower()
    device = line.get("File") or ""
    if detected in _OTHERS_DETECTED or _OTHERS_DEVICE.match(device) or _OTHERS_TYPE.fullmatch(line.get("Type") or ""):
        return "other"
    return "nvidia" if detected in _NVIDIA_DETECTED or _NVIDIA_DEVICE.match(device) else ""


def overlap(one: str, other: str) -> bool:
    """Return whether two node lists overlap. Raises Unclear for an invalid list."""
    try:
        return bool(one and other) and not frozenset(nodelist.parse(one)).isdisjoint(nodelist.parse(other))
    except UsageError as error:
        raise UnclearLine(str(error)) from error


def _gpus(gres: str) -> list[tuple[str, int]]:
    """Return (type with colon, or empty; count) for every `gpu` in a Gres. Raises Unclear."""
    found = []
    for one in site.parse_gres(gres):
        if one.name != "gpu":
            continue
        if one.count is None:
            raise UnclearLine(f"Gres={gres} is not gpu[:TYPE][:COUNT]; write it so, then run this again")
        found.append((f"{one.kind}:" if one.kind else "", one.count))
    return found
