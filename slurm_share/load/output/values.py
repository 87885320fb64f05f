"""llload --tsv and --csv: raw numbers, one row for each node, GPU or process. An unknown value is an empty field."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from ...core import terminal
from .. import columns
from ..rules.gpu_rows import GpuRow, process_slots
from ..rules.node_rows import row_of
from ..snapshot import NodeLoad, Survey

Of = Literal["nodes", "gpus", "processes"]
Value = columns.Raw

_START = ("time", "cluster", "node")
_END = ("source", "taken", "simulated")
_NODES = columns.shown_in(
    "values",
    columns.NODES,
    (
        *("answered", "why", "state", "all_cores", "cores_used", "cores_free", "load1", "load", "load15", "cpu_cores"),
        *("all_memory", "memory_used", "memory_free", "all_gpus", "gpus_used", "gpus_free", "gpus_idle", "gpu_load1"),
        *("gpu_load", "gpu_load15", "by", "gpu_load_over_s", "all_gpumem", "gpumem_used", "gpumem_free"),
        *("hidden_gpus", "user", "jobs", "note", columns.REST),
    ),
)
_GPUS = columns.shown_in(
    "values",
    columns.GPUS,
    (
        *("gpu", "uuid", "name", "mig_of", "load1", "load", "load15", "by", "load_over_s", "utilization", "sm", "occ"),
        *("tensor", "dram", "fp64", "fp32", "fp16", "memory_mib", "memory_used", "memory_free_mib", "others_mib"),
        *("clients", "watt", "energy_j", "temp", "user", "job", "idle", "problem", "booked", "held_for", columns.REST),
    ),
)
_PROCESSES = columns.shown_in(
    "values",
    columns.PROCESSES,
    (
        *("pid", "name", "user", "uid", "job", "step", "task", "slot", "gpu", "uuid", "sm_time", "memory_used", "peak"),
        *("cap", "cpu", "memory", columns.REST),
    ),
)
"""Columns in an order on which programs may rely: a new column comes last."""
HEADINGS: dict[Of, tuple[str, ...]] = {
    "nodes": (*_START, *(column.field_name for column in _NODES), *_END),
    "gpus": (*_START, *(column.field_name for column in _GPUS), *_END),
    "processes": (*_START, *(column.field_name for column in _PROCESSES), *_END),
}
_FORMULA = ("=", "+", "-", "@")
"""Characters with which a spreadsheet's formula begins (OWASP, "CSV Injection")."""


def rows(survey: Survey, of: Of) -> Iterator[tuple[Value, ...]]:
    """Yield one row for each node, GPU or process; silent nodes have rows of nodes only."""
    when = _time(survey.taken)
    for node in survey.nodes:
        start = (when, survey.cluster, node.name)
        end: tuple[Value, ...] = (survey.source, None, None)
        if node.snapshot is not None:
            simulated = node.snapshot.simulated or "demo" in (survey.source, node.snapshot.source)
            end = (node.snapshot.source, _time(node.snapshot.taken), simulated)
        elif survey.source == "demo":
            end = (survey.source, None, True)
        for row in _rows_of(node, of):
            yield (*start, *row, *end)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))


def _rows_of(node: NodeLoad, of: Of) -> Iterator[list[Value]]:
    row = row_of(node)
    if of == "nodes":
        yield [column.raw_of(row) for column in _NODES]
    elif of == "gpus":
        for gpu in () if node.snapshot is None else node.snapshot.gpus:
            one = GpuRow(row, gpu)
            yield [column.raw_of(one) for column in _GPUS]
    else:
        for slot in process_slots(row):
            yield [column.raw_of(slot) for column in _PROCESSES]


def as_tsv(found: Iterable[Sequence[Value]]) -> Iterator[str]:
    """Yield a line for each row; characters that would break a line or a field are escaped."""
    for row in found:
        yield "\t".join(terminal.safe(_text(value)) for value in row)


def as_csv(found: Iterable[Sequence[Value]]) -> Iterator[str]:
    """Yield a line of CSV for each row; text that a spreadsheet would take for a formula gets an apostrophe in
    front."""
    for row in found:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow([_harmless(value) for value in row])
        yield line.getvalue()


def _harmless(value: Value) -> str:
    text = terminal.safe(_text(value))
    return f"'{text}" if isinstance(value, str) and text.lstrip().startswith(_FORMULA) else text


def _text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.1f}"
    return str(value)
