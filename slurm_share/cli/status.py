"""`slurm-share status`: the shares of this node; others' jobs only for root and the operators' group.

With `--cluster`: mode, shares and MPS daemons of all nodes, as each node reports them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import chain
from typing import Any

from msgspec import to_builtins
from rich.table import Table
from rich.text import Text

from ..core import names, terminal
from ..core.text import natural
from ..node.records import GpuReading
from ..share import (
    ClusterShares,
    LedgerJob,
    NodeStatus,
    cluster_status,
    modes_text,
    nodes_by_other_mode,
    read_status,
    switch,
)

SCHEMA = 1
FULL_UUID_WIDTH = 110
"""On narrower terminals UUIDs are cut; --json prints them in full."""
SIMULATED = "SIMULATED GPUs: nothing is computed on them"


def add_to(commands: Any) -> None:
    """Add the sub-command `status`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "status", help="print the shared jobs of this node with their users, GPUs and slots"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--cluster", action="store_true", help="print mode, shares and MPS daemons of all nodes, a line each"
    )
    parser.set_defaults(run=print_status)


def print_status(arguments: argparse.Namespace) -> int:
    """Print the shares. Return 0, also if nothing is shared, or 1 if a source did not answer; the rest is printed."""
    if arguments.cluster:
        return _print_cluster(as_json=arguments.json)
    status = read_status()
    if arguments.json:
        print(json.dumps(as_json(status), indent=2))
    else:
        terminal.show(*as_tables(status))
    for problem in status.problems:
        print(f"slurm-share: {problem}", file=sys.stderr)
    return 1 if status.problems else names.EXIT_OK


def as_json(status: NodeStatus) -> dict[str, Any]:
    """Return the documented JSON form, schema 1. Unknown is null."""
    return {
        "schema": SCHEMA,
        "node": status.node,
        "simulated": any(reading.gpu.simulated for reading in status.gpus),
        "everything": status.everything,
        "is_node": status.is_node,
        "mode": status.modes[""],
        "partition_modes": {name: mode for name, mode in status.modes.items() if name},
        "lua_problem": status.lua_problem or None,
        "plugin_problem": status.plugin_problem or None,
        "full": list(status.full),
        "problems": list(status.problems),
        "jobs": [
            {
                "job_id": job.job_id,
                "user": job.user,
                "uid": job.uid,
                "partition": job.partition,
                "share": job.share or None,
                "gpus": list(job.gpus),
                "slots": job.slots,
                "slots_used": _count(status.leased[job.job_id]),
                "slot_on_gpu": job.on_gpu,
                "since": job.since,
                "sharing": list(status.sharing[job.job_id]) if job.job_id in status.sharing else None,
            }
            for job in status.jobs
        ],
        "gpus": [
            {
                "uuid": reading.gpu.uuid,
                "index": reading.gpu.index,
                "name": reading.gpu.name,
                "simulated": reading.gpu.simulated,
                "problem": reading.gpu.problem,
                "memory_total_mib": reading.gpu.memory_total_mib,
                "is_host_memory": reading.gpu.is_host_memory,
                "memory_used_mib": reading.memory_used_mib,
                "utilization_percent": reading.utilization_percent,
                "slots": sum(_slots_on(job, reading.gpu.uuid) for job in status.jobs),
                "mps": status.daemons.get(reading.gpu.uuid),
                "processes": [
                    {
                        "pid": p.pid,
                        "user": status.owners[p.pid],
                        "job_id": status.tasks[p.pid].job_id,
                        "memory_used_mib": p.memory_used_mib,
                    }
                    for p in reading.processes
                    if p.pid in status.tasks
                ],
            }
            for reading in status.gpus
        ],
    }


def as_tables(status: NodeStatus) -> list[Any]:
    """Return the shares as tables."""
    parts: list[Any] = []
    if any(reading.gpu.simulated for reading in status.gpus):
        parts.append(Text(SIMULATED, style="bold reverse"))
    parts += [Text(line) for line in _mode_lines(status)]
    of_user = "" if status.everything else " of yours"
    if not status.is_node:
        parts.append(Text(f"{status.node} is no compute node of Slurm; run `slurm-share status` on one, or in a job"))
    elif not status.has_gpus:
        parts.append(Text(f"{status.node} has no GPUs to share: slurm.conf gives it none"))
    elif not status.jobs:
        parts.append(Text(f"{status.node}: no shared job{of_user}"))
    else:
        parts.append(_job_table(status))
    parts += [Text(line) for line in (status.plugin_problem, *status.full) if line]
    if status.gpus:
        parts += [Text(""), _gpu_table(status)]
    return parts


def _mode_lines(status: NodeStatus) -> list[str]:
    """Return where jobs are not shared, and why; empty if all may share."""
    lines = [f"{line} (mode in the configuration)" for line in switch.mode_sentences(status.modes)]
    return [*lines, status.lua_problem] if status.lua_problem else lines


def _job_table(status: NodeStatus) -> Table:
    table = _table("JOB", "USER", "SHARE", "SHARING", "GPUS", "SLOTS", "USED", "SINCE", numbers=(0, 5, 6))
    index_of = {reading.gpu.uuid: str(reading.gpu.index) for reading in status.gpus}
    for job in status.jobs:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.since))
        gpus = ",".join(index_of.get(uuid, "?") for uuid in job.gpus)
        if job.share:
            slots = str(job.slots) if job.on_gpu is None else f"no. {job.on_gpu}"
            used = _known(_count(status.leased[job.job_id]))
            sharing = ",".join(status.sharing.get(job.job_id, ("?",)))
            table.add_row(str(job.job_id), job.user, job.share, sharing, gpus, slots, used, since)
        else:
            table.add_row(str(job.job_id), job.user, "-", "-", "-", "-", "-", since)
    return table


def _gpu_table(status: NodeStatus) -> Table:
    headings = ("GPU", "UUID", "NAME", "SLOTS", "TASKS", "MEMORY MIB", "UTIL", "MPS", "JOBS")
    table = _table(*headings, numbers=(0, 3, 4, 5, 6))
    # On narrow terminals the name is cut and not folded: eight GPUs stay eight lines.
    table.columns[1].no_wrap, table.columns[1].min_width = True, 13
    table.columns[2].no_wrap, table.columns[2].overflow = True, "ellipsis"
    in_full = terminal.width() >= FULL_UUID_WIDTH
    for reading in status.gpus:
        uuid = reading.gpu.uuid
        jobs = [job for job in status.jobs if uuid in job.gpus]
        table.add_row(
            str(reading.gpu.index),
            "unknown" if reading.gpu.problem else uuid if in_full else f"{uuid[:12]}…",
            reading.gpu.problem or reading.gpu.name,
            str(sum(_slots_on(job, uuid) for job in jobs)),
            str(sum(process.pid in status.tasks for process in reading.processes)),
            _memory(reading),
            f"{_known(reading.utilization_percent)} %",
            status.daemons.get(uuid) or "-",
            ",".join(str(job.job_id) for job in jobs) or "-",
        )
    return table


def _memory(reading: GpuReading) -> str:
    of_node = " of the node" if reading.gpu.is_host_memory else ""
    return f"{_known(reading.memory_used_mib)} / {_known(reading.gpu.memory_total_mib)}{of_node}"


def _table(*headings: str, numbers: tuple[int, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place in numbers else "left", overflow="fold")
    return table


def _slots_on(job: LedgerJob, uuid: str) -> int:
    """Return the slots of a job on a GPU. Slot i is on GPU i mod G, so each GPU has slots/G of them."""
    return job.slots // len(job.gpus) if uuid in job.gpus else 0


def _count(slots: frozenset[int] | None) -> int | None:
    return None if slots is None else len(slots)


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)


# ---- All nodes ----

EXIT_INCOMPLETE = 1
_CLUSTER_COLUMNS = (
    terminal.TerminalColumn("NODE"),
    terminal.TerminalColumn("STATE", goes=1),
    terminal.TerminalColumn("MODE"),
    terminal.TerminalColumn("JOBS", right=True),
    terminal.TerminalColumn("SLOTS", right=True),
    terminal.TerminalColumn("DAEMONS", right=True),
    terminal.TerminalColumn("PROBLEM"),
)


def _print_cluster(*, as_json: bool) -> int:
    """Ask all nodes and print the answers. Return 1 if one is incomplete, or the mode file cannot be read."""
    found = cluster_status.read()
    if as_json:
        print(json.dumps(_cluster_json(found), indent=2))
    else:
        _print_shares(found)
    for problem in found.problems:
        print(f"slurm-share: {terminal.safe(problem)}", file=sys.stderr)
    is_complete = not found.problems and all(one.problem is None for one in found.nodes.values())
    return names.EXIT_OK if is_complete else EXIT_INCOMPLETE


def _modes_here(found: ClusterShares) -> str:
    return modes_text(found.modes[""], _partition_modes(found))


def _partition_modes(found: ClusterShares) -> dict[str, str]:
    return {name: mode for name, mode in found.modes.items() if name}


def _cluster_json(found: ClusterShares) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "host": found.host,
        "mode": found.modes[""],
        "partition_modes": _partition_modes(found),
        "switched_off": found.is_switched_off,
        "mode_file": found.mode_file,
        "problems": list(found.problems),
        "differ": sorted(
            chain.from_iterable(nodes_by_other_mode(_modes_here(found), found.nodes).values()), key=natural
        ),
        "nodes": [{"node": node, "state": found.states[node], **to_builtins(one)} for node, one in found.nodes.items()],
    }


def _print_shares(found: ClusterShares) -> None:
    off = " (slurm-share off)" if found.is_switched_off else ""
    file = f"; mode file: {found.mode_file}" if found.mode_file else ""
    print(terminal.safe(f"{found.host}: mode {_modes_here(found)}{off}{file}"))
    rows = [
        (
            node,
            found.states[node],
            modes_text(one.mode, one.partition_modes),
            *(("?",) * 3 if one.mode is None else (str(len(one.jobs)), str(one.slots), str(one.daemons))),
            one.problem or "",
        )
        for node, one in found.nodes.items()
    ]
    lines, _ = terminal.lay_out(_CLUSTER_COLUMNS, rows, terminal.width())
    for line in lines:
        print(line.rstrip())
    for modes, nodes in nodes_by_other_mode(_modes_here(found), found.nodes).items():
        print(
            terminal.safe(
                f"mode {modes} on {', '.join(nodes)}, unlike {found.host}; the more restrictive of the two counts there"
            )
        )
