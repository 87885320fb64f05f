"""Parse Slurm's texts of GPUs, shares and node states."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ...core import numbers

_SHARDS = re.compile(r"(?:^|,)shard:(?:[^:,()]+:)?[0-9]+\(([^)]*)\)")
_INDEXES = re.compile(r"(?:^|,)gpu:[^()]*\(IDX:([^)]*)\)")
_NO_INDEXES = ("", "N/A")
"""Written for a type of which a job, or a node's jobs, have none: gpu:a100:2(IDX:0-1),gpu:v100:0(IDX:)."""
_INDEX_LIST = r"[0-9]{1,4}(?:-[0-9]{1,4})?(?:,[0-9]{1,4}(?:-[0-9]{1,4})?)*"
_GPUS = re.compile(r"(?:^|,)gpu:(?:([^:,()]+):)?([0-9]{1,18})(?=[,(]|$)")
_SHARE = re.compile(r"(?:^|;)share-gpu=([^;]*)")
"""In AdminComment, as job_submit.lua writes it, behind what the site has there."""
_SHARE_OF_VERDICT = re.compile(r"(?:^|;)slurm-share=[^;]*?,share-gpu=([^;]*)")
"""In `extra` or `comment`, as the last field of the controller's verdict (share/rules/verdict.py)."""
_SILENT = {"DOWN", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "UNKNOWN", "FUTURE"}


def parse_gpus(gres: str) -> tuple[tuple[str, int], ...]:
    """Return (type, count) of each kind of GPU in a node's gres, such as gpu:a100:4(S:0-1),shard:16."""
    return tuple((name or "", int(count)) for name, count in _GPUS.findall(gres))


def count_gpus_in_parts(gres_used: str) -> int:
    """Return how many GPUs of a node have some shards taken. shard:a100:4(4/8,0/8,-/8) says it of each GPU; a whole
    one that is taken has a dash, or a 0 (24.11)."""
    return sum(
        (numbers.whole(part.partition("/")[0]) or 0) > 0
        for each in _SHARDS.findall(gres_used)
        for part in each.split(",")
    )


def parse_gpu_indexes(details: Sequence[str], node_count: int | None) -> tuple[tuple[int, ...], ...] | None:
    """Return the GPUs in `gres_detail`, which has an entry for each node of a job, or none at all.

    An entry is gpu:a100:2(IDX:0,3) for whole GPUs; for parts it is shard:a100:4(0/8,4/8), where the place in the list
    is the GPU's number.
    """
    if not details:
        return ()
    if node_count is not None and len(details) != node_count:
        return None
    found = []
    for text in details:
        indexes: set[int] = set()
        for listed in _INDEXES.findall(text):
            if listed in _NO_INDEXES:
                continue
            if not re.fullmatch(_INDEX_LIST, listed):
                return None
            for first, _, last in (part.partition("-") for part in listed.split(",")):
                indexes.update(range(int(first), int(last or first) + 1))
        for each in _SHARDS.findall(text):
            used = [part.partition("/")[0] for part in each.split(",")]
            indexes.update(number for number, taken in enumerate(used) if (numbers.whole(taken) or 0) > 0)
        if len(indexes) < sum(count for _, count in parse_gpus(text)):
            return None  # counted and not numbered: gres.conf names no device files
        found.append(tuple(sorted(indexes)))
    return tuple(found)


def granted_gpus(details: Sequence[str]) -> int:
    """Return the GPUs of a job from its `gres_detail`, which has one entry for every node."""
    return sum(count for node in details for _, count in parse_gpus(node))


def share_of(admin_comment: str, *with_verdict: str) -> str | None:
    """Return what was written after --share-gpu; None: an ordinary job.

    with_verdict: `extra` and `comment`, of which one has the controller's verdict. The scripts of other tools may
    overwrite AdminComment.
    """
    found = _SHARE.search(admin_comment)
    for text in with_verdict:
        found = found or _SHARE_OF_VERDICT.search(text)
    return None if found is None else found[1]


@lru_cache
def parse_node_states(text: str) -> tuple[tuple[str, ...], bool]:
    """Return the words of a node's state, and whether its slurmd answers. Of ten thousand nodes most are equal."""
    fields = dict.fromkeys(text.replace("*", "+NOT_RESPONDING").split("+"))
    return tuple(fields), not _SILENT & set(fields)
