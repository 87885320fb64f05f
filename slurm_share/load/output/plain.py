"""llload --plain, for screen readers: `label: value`, one fact a line."""

from __future__ import annotations

from ...core import terminal
from .. import columns
from ..columns import gpu_columns
from ..rules import flags as flagging
from ..rules.gpu_rows import GpuRow, ProcessRow, SlotRow
from ..rules.node_rows import NodeRow, judged_rows
from ..rules.sums import add_up, whole
from ..snapshot import OnGpu, Survey
from ..text import why_silent
from .notes import View, banner, footer, header, unknown_processes

_OF_NODE = columns.shown_in("plain", columns.NODES)
_OF_ITS_GPUS = ("gpus_used", "gpu_load", "gpumem_used")
_OF_GPU = columns.shown_in("plain", columns.GPUS)
_OF_PROCESS = columns.shown_in("plain", columns.PROCESSES)


def as_plain(survey: Survey, view: View) -> list[str]:
    """Return the survey as lines of `label: value`, with a blank line between nodes."""
    lines = [line for line in (banner(view.whole or survey),) if line]
    lines += header(survey, View(whole=view.whole), terminal.WIDE)[len(lines) :]
    rows = judged_rows(survey)
    if not rows:
        return [*lines, *view.if_empty]
    for row in rows:
        lines += ["", *_plain_node(row, view)]
    return [*lines, "", *footer(survey, view, [])]


def _plain_node(row: NodeRow, view: View) -> list[str]:
    said = [f"node: {terminal.safe(row.name)}"]
    if row.node.snapshot is None:
        said.append(f"no answer: {why_silent(row.node)}")

    with_gpus = (view.gpus or view.detail) and row.figures.gpus != 0
    said += [
        terminal.safe(column.plain_of(row, ": "))
        for column in _OF_NODE
        if (with_gpus or column.id not in _OF_ITS_GPUS) and column.says(row)
    ]
    snapshot = row.node.snapshot
    if view.detail and snapshot is not None:
        for gpu in snapshot.gpus:
            one_gpu = GpuRow(row, gpu)
            facts = (terminal.safe(column.plain_of(one_gpu)) for column in _OF_GPU if column.says(one_gpu))
            said.append(f"GPU {gpu.index}: {', '.join((*facts, *gpu_columns.held(one_gpu)))}")
    if view.processes and snapshot is not None:
        said += unknown_processes([row.node])
        for process in snapshot.processes:
            on_all = OnGpu(uuid="", memory_mib=whole(add_up(on.memory_mib for on in process.gpus)))
            one = SlotRow(GpuRow(row), "process", process.slot, process=ProcessRow(row, process, on_all))
            facts = (terminal.safe(column.plain_of(one)) for column in _OF_PROCESS if column.says(one))
            said.append(f"process {process.pid}: {', '.join(facts)}")
    said += [f"flag: {flagging.MEANINGS[code]}" for code in row.codes]
    return said
