"""llload's tables of GPUs, jobs and processes, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.cells import cell_len

from ...core import terminal
from .. import columns
from ..columns.base import GOES_FIRST, REST, Column, shown_in
from ..columns.node_columns import note
from ..rules.gpu_rows import GpuRow, process_slots
from ..rules.job_rows import JobRow
from ..rules.node_rows import NodeRow
from ..snapshot import Survey
from ..text import NONE, UNKNOWN, Triple, cut, wrapped
from .notes import unknown_processes

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a column in a table, and what happens to it in a narrow terminal; see `terminal.TerminalColumn`."""

    id: str
    goes: int = 0
    shrinks_to: int | None = None
    right: bool | None = None
    """None: `right` of the column."""


_NAME_LEAST = 32
"""Width to which the names of nodes and users are whole; other columns are left out first."""
_GPUS = (
    _Place("hostname", shrinks_to=_NAME_LEAST), _Place("gpu"), _Place("load"), _Place("by", 2), _Place("now", 8),
    _Place("load1", 9), _Place("load15", 10), _Place("memory_used", 1), _Place("booked", 3), _Place("rate", 3),
    _Place("tasks", 3), _Place("occ", 13), _Place("tensor", 14), _Place("dram", 12), _Place("watt", 6),
    _Place("temp", 7), _Place(REST, GOES_FIRST), _Place("job", 4, shrinks_to=12),
    _Place("user", 5, shrinks_to=_NAME_LEAST), _Place("name", 11, shrinks_to=10), _Place("note", shrinks_to=12),
)  # fmt: skip
"""LOAD is a mean over 5 minutes, 1.0 is always busy; NOW, OCC, TENSOR and DRAM are percent."""


_Sign = tuple[str, str, str]
"""A line without a row: its first cell, the sign in the others, its last cell."""


def _laid_out(
    columns: Sequence[Column[Row]], places: Sequence[_Place], lines: Sequence[Row | _Sign], width: int
) -> tuple[list[str], list[str]]:
    """Return (lines with the headings first, headings that were left out). A line that is still too long is cut and
    marked. `places`: the columns in order; REST stands for those that they do not name. Columns that are `unless_empty`
    are left out if no row has a value."""
    rows = [line for line in lines if not isinstance(line, tuple)]
    by_id = {place.id: place for place in places}
    shown = [
        (column, by_id.get(column.id) or by_id[REST])
        for column in shown_in("table", columns, [place.id for place in places])
        if not column.unless_empty or any(column.says(row) for row in rows)
    ]
    heads = [
        terminal.TerminalColumn(
            f"{column.heading} - USED = FREE" if column.triple else column.heading,
            right=column.right and column.triple is None if place.right is None else place.right,
            shrinks_to=place.shrinks_to and max(place.shrinks_to, _whole_width(column, rows)),
            goes=place.goes,
            cut=column.cut,
        )
        for column, place in shown
    ]

    def cells(line: Row | _Sign) -> list[str | Triple]:
        if isinstance(line, tuple):
            return [line[0], *[line[1]] * (len(shown) - 2), line[2]]
        return [column.triple(line) if column.triple else column.table_of(line) for column, _ in shown]

    by_column = map(_lined_up, zip(*map(cells, lines), strict=True))
    found, left_out = terminal.lay_out(heads, list(zip(*by_column, strict=True)), width)
    return [cut(line, width) for line in found], left_out


def _whole_width(column: Column[Row], rows: Sequence[Row]) -> int:
    """Return the width in which no cell loses what is never cut, such as a job's number in a note."""
    if column.whole is None:
        return 0
    cells = [(column.whole(row), column.table_of(row)) for row in rows]
    return max((cell_len(one) + 2 * (one != said) for one, said in cells if one), default=0)


def gpu_table(rows: Sequence[NodeRow], width: int) -> tuple[list[str], list[str]]:
    """Return (lines with the headings first, headings that were left out): a line per GPU, and per node without
    GPUs."""
    lines: list[GpuRow | _Sign] = []
    for row in rows:
        gpus = () if row.node.snapshot is None else row.node.snapshot.gpus
        lines += [GpuRow(row, gpu) for gpu in gpus]
        if not gpus:
            # Without a snapshot, only Slurm knows whether the node has GPUs.
            sign = NONE if row.figures.gpus == 0 else UNKNOWN
            lines.append((row.name, sign, note(row) if row.node.snapshot is None else ""))
    return _laid_out(columns.GPUS, _GPUS, lines, width)


def _lined_up(cells: Sequence[str | Triple]) -> list[str]:
    """Return the cells of one column as text, triples as equations with aligned parts."""
    triples = [cell for cell in cells if not isinstance(cell, str)]
    widths = [max((len(triple[at]) for triple in triples), default=0) for at in range(3)]
    return [
        cell if isinstance(cell, str) else f"{cell[0]:>{widths[0]}} - {cell[1]:>{widths[1]}} = {cell[2]:>{widths[2]}}"
        for cell in cells
    ]


_JOBS = (
    _Place("job", right=True), _Place("user", 6), _Place("hostname", shrinks_to=_NAME_LEAST), _Place("share", 8),
    _Place("slots", 9), _Place("sharing", 10), _Place("tasks", 1), _Place("gpus", 7), _Place("gpus_idle", 1),
    _Place("gpu_load"),
    _Place("rate", 2), _Place("gmem", 2), _Place("peak", 3), _Place("cpu_cores", 4), _Place("mem", 5),
    _Place("killed", 2), _Place("left", 12), _Place("limit", 13), _Place(REST, GOES_FIRST), _Place("triple", 11),
    _Place("partition", 14), _Place("account", 15),
    _Place("name", 10, shrinks_to=12),
)  # fmt: skip
_PROCESSES = (
    _Place("hostname", shrinks_to=_NAME_LEAST), _Place("pid"), _Place("user", 5), _Place("job", 3, right=True),
    _Place("step", 10), _Place("task", 11), _Place("slot", 9), _Place("gpu", 2, right=True), _Place("sm_time", 1),
    _Place("rate", 1), _Place("speed", 3), _Place("memory_used"), _Place("peak", 8), _Place("cap", 7), _Place("cpu", 4),
    _Place("memory", 6), _Place(REST, GOES_FIRST), _Place("name", 5, shrinks_to=12),
)  # fmt: skip


def job_table(rows: Sequence[NodeRow], survey: Survey, width: int) -> tuple[list[str], list[str]]:
    """Return the table of jobs, a line per node of a job; empty without jobs."""
    queued = {job.job_id: job for job in survey.jobs}
    found = []
    for row in rows:
        for job in row.node.snapshot.jobs if row.node.snapshot is not None else ():
            named = queued.get(job.job)
            one = JobRow(
                records=() if named is None else (named,),
                loads=((row, job),),
                held=tuple(one for one in row.node.held_gpus or () if one.job == job.job),
                now=survey.taken,
                number=job.job,
            )
            found.append(one)
    return _laid_out(columns.JOBS, _JOBS, found, width) if found else ([], [])


def process_table(rows: Sequence[NodeRow], whole: Survey, width: int) -> tuple[list[str], list[str]]:
    """Return the table of processes, a line per GPU of a process; a sentence if the survey has no process, and for the
    nodes whose source keeps none."""
    found = [one for row in rows for one in process_slots(row)]
    lines, left_out = _laid_out(columns.PROCESSES, _PROCESSES, found, width) if found else ([], [])
    said = unknown_processes(row.node for row in rows)
    if not (found or said) and not any(node.snapshot and node.snapshot.processes for node in whole.nodes):
        said = ["no process is on these GPUs"]
    return [*lines, *wrapped(said, width)], left_out
