"""Read the nodes of the cluster one by one, and sinfo's one word for the state of each.

For 10,000 nodes the JSON of scontrol takes 1.4 s and 24 MB, its text 0.1 s and 5 MB, so the text is read. Nodes of one
kind together, as sinfo groups them, are in jobs.py (`read_node_kinds`).
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping
from functools import lru_cache

from ..core.errors import CommandError, shown
from ..core.process import finish, run
from . import backend, pyslurm_backend
from .jobs import patience, queue_environment
from .records import SlurmNode
from .rules.resources import count_gpus_in_parts, parse_gpus, parse_node_states

_BEGIN = "\nNodeName="
_STATE = "State"
_FIELDS = (
    *("CPUAlloc", "CPUTot", "CPULoad", "RealMemory", "AllocMem", "FreeMem"),
    *("Gres", "GresUsed", "NodeAddr", "Partitions", "Version", _STATE),
)
_FIELD = re.compile(rf" ({'|'.join(_FIELDS)})=(\S*)")
_FREE_TEXT = re.compile(r" (?=(?:Reason|Comment|Extra)=)")
"""The last fields of a record. They hold whatever an administrator wrote, such as State=DOWN."""
_STAMP = r" \[(?P<by>[^\[\]]*)@(?P<since>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})\]"
_STAMPED = re.compile(rf"Reason=(.*?){_STAMP}(?=$| {{8}}| [A-Z][A-Za-z_]*=)", re.MULTILINE)
"""A reason with user and time. scontrol puts these after its first line; the other lines follow after eight blanks and
are left out."""
_BARE = re.compile(r"Reason=(.*?)(?=$| (?:Comment|Extra)=)", re.MULTILINE)
"""A reason from slurm.conf, without user and time."""
_NOT_FOUND = re.compile(r"^Node \S+ not found$", re.MULTILINE)
_GPU = re.compile(r"(^|,)gpu\b")
_NONE_THERE = "No nodes in the system"


def nodes_argv(nodes: str = "") -> list[str]:
    """Return the command that describes the nodes of a folded list, or all."""
    return ["scontrol", "--oneliner", "--detail", "show", "nodes", *([nodes] if nodes else [])]


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Return the nodes in scontrol's text. Raises CommandError for an answer that is not scontrol's."""
    return tuple(node for node, _, _ in parse_described(text))


def parse_described(text: str) -> tuple[tuple[SlurmNode, str, str], ...]:
    """Return (node, its Gres as Slurm writes it, the release of its slurmd) of each. Empty: it has no Gres, or its
    slurmd has not registered. Raises CommandError as `parse_nodes` does."""
    first, *records = f"\n{text}".split(_BEGIN)
    found = [described for record in records if (described := _described(record)) is not None]
    if not found and (records or not _is_none(first)):
        raise CommandError(("scontrol",), 0, f"an answer that has no nodes: {shown(text.strip())}")
    return tuple(found)


def _is_none(text: str) -> bool:
    return text.strip() in ("", _NONE_THERE) or _NOT_FOUND.search(text) is not None


def _described(record: str) -> tuple[SlurmNode, str, str] | None:
    """Return the parts of a record; None: it is a line of a comment, which can begin like a record."""
    head, *free_text = _FREE_TEXT.split(record, maxsplit=1)
    fields = dict(_FIELD.findall(head))
    try:
        states, heard = parse_node_states(fields[_STATE])
        reason, by, since = _reason(free_text[0]) if free_text else ("", "", None)
        node = SlurmNode(
            name=(name := head.partition(" ")[0]),
            address=address if (address := fields["NodeAddr"]) != name else "",
            states=states,
            reason=reason,
            reason_by=by,
            reason_since=since,
            cpus=int(fields["CPUTot"]),
            cpus_allocated=int(fields["CPUAlloc"]),
            memory_mib=int(fields["RealMemory"]),
            memory_allocated_mib=int(fields["AllocMem"]),
            gpus=_count(fields["Gres"]),
            gpus_allocated=_count_used(fields.get("GresUsed", "")),
            # The record of a silent node keeps what its slurmd reported last.
            load5=float(load) if heard and (load := fields["CPULoad"]) != "N/A" else None,
            memory_free_mib=int(free) if heard and (free := fields["FreeMem"]) != "N/A" else None,
            partitions=_partitions(fields.get("Partitions", "")),
        )
    except (KeyError, ValueError):
        return None
    gres = fields["Gres"]
    return node, "" if gres == "(null)" else gres, fields.get("Version", "")


def _reason(text: str) -> tuple[str, str, int | None]:
    """Return the reason, who gave it, and the Unix time of that."""
    if (stamped := _STAMPED.match(text)) is not None:
        return stamped[1], stamped["by"], _moment(stamped["since"])
    bare = _BARE.match(text)
    return "" if bare is None else bare[1], "", None


def _moment(text: str) -> int | None:
    """Return the Unix time of a time that scontrol writes in the time zone of this process."""
    try:
        return max(0, int(datetime.datetime.fromisoformat(text).timestamp()))
    except (ValueError, OverflowError):
        return None


# Of ten thousand nodes most are equal in these.


@lru_cache
def _count(gres: str) -> int:
    return sum(count for _, count in parse_gpus(gres))


@lru_cache
def _count_used(gres: str) -> int:
    return _count(gres) + count_gpus_in_parts(gres)


@lru_cache
def _partitions(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def read_nodes(nodes: str = "", *, timeout_s: float = 60) -> tuple[SlurmNode, ...]:
    """Return all nodes that Slurm shows the caller, or those of a folded list that it knows. Raises CommandError where
    Slurm does not answer."""
    answer = backend.ask("nodes", timeout_s=timeout_s)
    if answer and (found := pyslurm_backend.nodes(answer, nodes)) is not None:
        return found
    argv = nodes_argv(nodes)
    done = finish(argv, timeout_s=timeout_s, env=queue_environment(os.environ), check=patience(argv))
    if done.code != 0 and not _NOT_FOUND.search(done.stdout):
        raise CommandError(tuple(argv), done.code, done.stderr)
    return parse_nodes(done.stdout)


# --- One word of sinfo -----------------------------------------------------------------------------------------------


def parse_states(text: str) -> dict[str, tuple[bool, str]]:
    """Return, for each node, whether it has GPUs, and sinfo's word for its state."""
    rows = (line.split("|") for line in text.splitlines() if line.count("|") == 2)
    return {name: (_GPU.search(gres) is not None, state) for name, gres, state in rows}


def read_states(environ: Mapping[str, str]) -> dict[str, tuple[bool, str]]:
    """Return the nodes of the cluster that `environ` leads to, as `parse_states`. Raises CommandError where Slurm does
    not answer."""
    argv = ["sinfo", "--all", "--noheader", "--Node", "--format=%N|%G|%T"]
    return parse_states(run(argv, timeout_s=60.0, env=environ, check=patience(argv)))
