"""The columns of the queue: waiting jobs in groups, and nodes out of service."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ...slurm.records import SlurmNode
from ..rules.queue_rows import OUT_STATES, WaitingRow
from ..text import NONE, UNKNOWN, gb, gigabytes, joined, moment_text, number, time_text
from .base import DASHBOARD, Column
from .job_request import in_words


@dataclass(frozen=True)
class OutRow:
    """A node out of service."""

    node: SlurmNode
    now: float


def reason(row: WaitingRow) -> str:
    """Return Slurm's word."""
    return row.reason or "None"


def why(row: WaitingRow) -> str:
    """Return the reason in words; - where there are none."""
    return in_words(reason(row)) or NONE


def _start(row: WaitingRow) -> str:
    if row.starts is None:
        return NONE
    return moment_text(row.starts, row.now).removeprefix(time.strftime("%Y-", time.localtime(row.now)))


def state(row: OutRow) -> str:
    """Return the node's state as sinfo writes it: drained, draining, down*; * means that it does not respond."""
    states = set(row.node.states)
    if "DRAIN" in states:
        word = "draining" if states & {"MIXED", "ALLOCATED", "COMPLETING"} else "drained"
    else:
        word = next((one for one in row.node.states if one in OUT_STATES), row.node.states[0]).casefold()
    return f"{word}*" if "NOT_RESPONDING" in states and word != "not_responding" else word


def since(row: OutRow) -> str:
    """Return when the reason was given: 14:05, or 11-28 14:05; ? if it is not known."""
    whole = moment_text(row.node.reason_since, row.now)
    return whole.removeprefix(time.strftime("%Y-", time.localtime(row.now)))


def _since_s(row: OutRow) -> float | None:
    return None if row.node.reason_since is None else row.now - row.node.reason_since


WAITING: tuple[Column[WaitingRow], ...] = (
    Column(
        "reason", "REASON", "Slurm's word for why they wait",
        text=reason, value=reason, outputs=DASHBOARD, least=10, most=26, whole=lambda row: reason(row)[:26],
    ),
    Column(
        "partition", "PARTITION", "their partition",
        text=lambda row: row.partition or NONE, value=lambda row: row.partition or NONE,
        outputs=DASHBOARD, least=9, most=14, goes=3, cut="list",
    ),
    Column(
        "gpus", "GPUS", "GPUs that each job asks for; ?: whole nodes, or not known",
        text=lambda row: number(row.gpus), value=lambda row: row.gpus,
        outputs=DASHBOARD, right=True, least=4, most=6, sorts_down=True,
    ),
    Column(
        "jobs", "JOBS", "jobs that wait; each element of an array counts",
        text=lambda row: str(row.count), value=lambda row: row.count,
        outputs=DASHBOARD, right=True, least=4, most=7, sorts_down=True,
    ),
    Column(
        "own", "YOURS", "how many of them are yours",
        text=lambda row: str(row.own) if row.own else NONE, value=lambda row: row.own,
        outputs=DASHBOARD, right=True, least=5, most=6, goes=2, letter=lambda row: "L" if row.own else "",
        sorts_down=True,
    ),
    Column(
        "asked", "ASKED", "GPUs that all of them ask for together",
        text=lambda row: number(row.gpus_asked), value=lambda row: row.gpus_asked,
        outputs=DASHBOARD, right=True, least=5, most=7, goes=4, sorts_down=True,
    ),
    Column(
        "waited", "WAITED", "for how long the oldest has waited",
        text=lambda row: UNKNOWN if row.waited_s is None else time_text(row.waited_s), value=lambda row: row.waited_s,
        outputs=DASHBOARD, unit="s", right=True, least=7, most=12, goes=6, sorts_down=True,
    ),
    Column(
        "start", "START", "when Slurm expects the first of them to start; -: it has planned none",
        text=_start, value=lambda row: None if row.starts is None else row.starts - row.now,
        outputs=DASHBOARD, unit="s", is_moment=True, right=True, least=5, most=11, goes=5,
    ),
    Column(
        "users", "USERS", "their users, those with most jobs first",
        text=lambda row: joined(row.users), value=lambda row: ",".join(row.users) or None, has_names=True,
        outputs=DASHBOARD, least=5, most=24, goes=7, cut="list", alias=("user",),
    ),
    Column(
        "cpus", "CPUS", "CPUs that all of them ask for together",
        text=lambda row: number(row.cpus_asked), value=lambda row: row.cpus_asked,
        outputs=DASHBOARD, right=True, least=4, most=8, goes=9, sorts_down=True,
    ),
    Column(
        "mem", "MEMORY", "memory that all of them ask for together",
        text=lambda row: gigabytes(row.memory_mib), value=lambda row: gb(row.memory_mib),
        outputs=DASHBOARD, unit="GB", right=True, least=6, most=10, goes=10, sorts_down=True,
    ),
    Column(
        "why", "WHY", "the reason in words",
        text=why, value=why, outputs=DASHBOARD, least=12, most=60, goes=8,
    ),
)  # fmt: skip
OUT: tuple[Column[OutRow], ...] = (
    Column(
        "node", "OUT OF SERVICE", "a node that gets no job",
        text=lambda row: row.node.name, value=lambda row: row.node.name, whole=lambda row: row.node.name,
        outputs=DASHBOARD, least=14, most=24, cut="middle", alias=("name",),
    ),
    Column(
        "state", "STATE", "as sinfo writes it; *: it does not respond",
        text=state, value=state, outputs=DASHBOARD, least=6, most=16, goes=3, whole=state,
    ),
    Column(
        "gpus", "GPUS", "GPUs of the node",
        text=lambda row: number(row.node.gpus), value=lambda row: row.node.gpus,
        outputs=DASHBOARD, right=True, least=4, most=5, goes=4, sorts_down=True,
    ),
    Column(
        "reason", "REASON", "why, as whoever took it out of service wrote it",
        text=lambda row: row.node.reason or NONE, value=lambda row: row.node.reason or NONE,
        outputs=DASHBOARD, least=10, keeps=30, most=60,
    ),
    Column(
        "by", "BY", "who wrote the reason; slurm: Slurm itself",
        text=lambda row: row.node.reason_by or UNKNOWN, value=lambda row: row.node.reason_by or None,
        outputs=DASHBOARD, least=4, most=12, goes=1,
    ),
    Column(
        "since", "SINCE", "when the reason was written",
        text=since, value=_since_s, outputs=DASHBOARD, unit="s", right=True, least=5, most=11, goes=2, sorts_down=True,
    ),
    Column(
        "partition", "PARTITION", "its partitions",
        text=lambda row: joined(row.node.partitions), value=lambda row: ",".join(row.node.partitions) or None,
        has_names=True, outputs=DASHBOARD, least=9, most=16, goes=5, cut="list",
    ),
)  # fmt: skip
