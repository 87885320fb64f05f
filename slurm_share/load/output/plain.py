"""llload without columns, for a screen reader: `label: value`, one fact a line."""

from __future__ import annotations

from ...core import terminal
from ..rules import flags as flagging
from ..snapshot import Survey
from ..text import (
    NONE,
    UNKNOWN,
    Triple,
    core_words,
    gigabytes,
    gpu_count_words,
    memory_words,
    why_silent,
)
from .notes import banner, footer, header
from .view import Row, View


def as_plain(survey: Survey, view: View) -> list[str]:
    """The same as `label: value`, for a screen reader: no columns, one fact a line, a blank line between nodes."""
    lines = [line for line in (banner(view.whole or survey),) if line]
    lines += header(survey, View(whole=view.whole), terminal.WIDE)[len(lines) :]
    rows = [Row.of(node) for node in survey.nodes]
    if not rows:
        return [*lines, *view.nobody]
    for row in rows:
        lines += ["", *_plain_node(row, view)]
    return [*lines, "", *footer(survey, view, [])]


def _plain_node(row: Row, view: View) -> list[str]:
    one = row.figures
    said = [f"node: {terminal.safe(one.name)}"]
    if row.node.snapshot is None:
        said.append(f"no answer: {why_silent(row.node)}")

    def fact(label: str, values: Triple) -> str:
        words = {UNKNOWN: "unknown", NONE: "none"}
        total, used, free = (words.get(value, value) for value in values)
        return f"{label}: {used} of {total} used, {free} free"

    said += [
        fact("cores", core_words(one)),
        f"load: {'unknown' if one.load is None else f'{one.load:.2f}'}",
        fact("memory", memory_words(one.memory_mib, one.memory_used_mib)),
    ]
    if (view.gpus or view.detail) and one.gpus != 0:
        load = "unknown" if one.gpu_load is None else f"{one.gpu_load:.2f}"
        by = {"sm": " (SM activity)", "util": " (utilisation)", "both": " (SM activity, utilisation)", "": ""}
        partial = ", some GPUs unknown" if one.partial_gpu_load or one.partial_gpu_memory else ""
        said += [
            fact("GPUs", gpu_count_words(one)),
            f"GPU load: {load}{by[one.gpu_load_by]}{partial}",
            fact("GPU memory", memory_words(one.gpu_memory_mib, one.gpu_memory_used_mib)),
        ]
    snapshot = row.node.snapshot
    if view.detail and snapshot is not None:
        for gpu in snapshot.gpus:
            load = "unknown" if gpu.load_percent_5min is None else f"{gpu.load_percent_5min / 100:.2f}"
            used, total = (
                "unknown" if mib is None else gigabytes(mib) for mib in (gpu.memory_used_mib, gpu.memory_total_mib)
            )
            said.append(f"GPU {gpu.index}: load {load}, memory {used} of {total} used, {terminal.safe(gpu.name)}")
    if view.processes and snapshot is not None:
        for process in snapshot.processes:
            memory = gigabytes(sum(on.memory_mib or 0 for on in process.gpus))
            job = "no job" if process.job is None else f"job {process.job}"
            said.append(
                f"process {process.pid}: {terminal.safe(process.user)}, {job}, GPU memory {memory}, "
                f"{terminal.safe(process.name)}"
            )
    said += [f"flag: {flagging.MEANINGS[code]}" for code in row.codes]
    return said
