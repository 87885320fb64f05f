"""llload's tables of single things: a line for each GPU, each job on a node, each process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...core import terminal
from ...share.rules import queue
from .. import columns
from ..columns.base import GOES_FIRST, REST, Column, shown_in
from ..columns.nodes import note
from ..rules import idle
from ..rules.gpu_rows import GpuRow
from ..rules.node_rows import NodeRow
from ..snapshot import (
    HeldGpu,
    JobLoad,
    ProcessLoad,
    Survey,
)
from ..text import (
    NONE,
    UNKNOWN,
    cut,
    gigabytes,
    idle_words,
    load_words,
    number,
    percent,
    wrapped,
)

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a column stands, and how it gives way where the terminal is narrow; see `terminal.Column`."""

    id: str
    goes: int = 0
    shrinks_to: int | None = None


_GPUS = (
    _Place("hostname", shrinks_to=8),
    _Place("gpu"),
    _Place("load"),
    _Place("by", goes=2),
    _Place("now", goes=8),
    _Place("load1", goes=9),
    _Place("load15", goes=10),
    _Place("memory_used", goes=1),
    _Place("tasks", goes=3),
    _Place("occ", goes=13),
    _Place("tensor", goes=14),
    _Place("dram", goes=12),
    _Place("watt", goes=6),
    _Place("temp", goes=7),
    _Place(REST, goes=GOES_FIRST),
    _Place("job", goes=4, shrinks_to=8),
    _Place("user", goes=5, shrinks_to=8),
    _Place("name", goes=11, shrinks_to=10),
    _Place("note", shrinks_to=6),
)


class _Table(Generic[Row]):
    """A table of llload: which columns, where each stands, and its lines."""

    def __init__(self, columns: Sequence[Column[Row]], places: Sequence[_Place]) -> None:
        """`places`: those of columns that are not named are that of REST."""
        by_id = {place.id: place for place in places}
        self.columns = shown_in("table", columns, [place.id for place in places])
        self._places = [by_id.get(column.id) or by_id[REST] for column in self.columns]

    def cells(self, row: Row) -> list[str]:
        """Return what the line of a row says."""
        return [column.table_of(row) for column in self.columns]

    def laid_out(self, lines: Sequence[Sequence[str]], width: int) -> tuple[list[str], list[str]]:
        """Return (lines with the headings first, headings that were left out). Where even the columns that stay are too
        wide, there is a sign at the end of the line."""
        heads = [
            terminal.Column(
                f"{column.heading} - USED = FREE" if column.triple else column.heading,
                right=column.right and column.triple is None,
                shrinks_to=place.shrinks_to,
                goes=place.goes,
            )
            for column, place in zip(self.columns, self._places, strict=True)
        ]
        cells = [list(line) for line in lines]
        for at, column in enumerate(self.columns):
            if column.triple:
                for line, equation in zip(cells, _lined_up([line[at] for line in cells]), strict=True):
                    line[at] = equation
        found, left_out = terminal.lay_out(heads, cells, width)
        return [cut(line, width) for line in found], left_out


_GPU_TABLE = _Table(columns.GPUS, _GPUS)
"""Load is a mean over 5 minutes, 1.0 is a GPU that is always busy; NOW, OCC, TENSOR and DRAM are percent."""


def gpu_table(rows: Sequence[NodeRow], width: int) -> tuple[list[str], list[str]]:
    """(lines with the headings first, headings that were left out): a line for each GPU, or for a node without any."""
    lines: list[list[str]] = []
    for row in rows:
        gpus = () if row.node.snapshot is None else row.node.snapshot.gpus
        lines += [_GPU_TABLE.cells(GpuRow(row, gpu)) for gpu in gpus]
        if not gpus:
            # Slurm may know that it has none; else nobody says.
            sign = NONE if row.figures.gpus == 0 else UNKNOWN
            said = note(row) if row.node.snapshot is None else ""
            lines.append([row.name, *[sign] * (len(_GPU_TABLE.columns) - 2), said])
    return _GPU_TABLE.laid_out(lines, width)


def _laid_out(
    columns: Sequence[terminal.Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[str]]:
    """Where even the columns that stay are too wide, a sign at the end of the line."""
    lines, left_out = terminal.lay_out(columns, rows, width)
    return [cut(line, width) for line in lines], left_out


def _lined_up(equations: Sequence[str]) -> list[str]:
    split = [equation.replace(" = ", " - ").split(" - ") for equation in equations]
    whole = [one for one in split if len(one) == 3]
    widths = [max((len(one[at]) for one in whole), default=0) for at in range(3)]
    return [
        f"{one[0]:>{widths[0]}} - {one[1]:>{widths[1]}} = {one[2]:>{widths[2]}}" if len(one) == 3 else one[0]
        for one in split
    ]


_JOB_COLUMNS = (
    terminal.Column("JOB", right=True),
    terminal.Column("USER", shrinks_to=8, goes=6),
    terminal.Column("HOSTNAME", shrinks_to=8),
    terminal.Column("SHARE", right=True, goes=8),
    terminal.Column("SLOTS", right=True, goes=9),
    terminal.Column("TASKS", right=True, goes=1),
    terminal.Column("GPUS", right=True, goes=7),
    terminal.Column("IDLE", right=True, goes=1),
    terminal.Column("GPULOAD", right=True),
    terminal.Column("GPUMEM", right=True, goes=2),
    terminal.Column("TASKPEAK", right=True, goes=3),
    terminal.Column("CPU", right=True, goes=4),
    terminal.Column("MEMORY", right=True, goes=5),
    terminal.Column("KILLED", right=True, goes=2),
    terminal.Column("TRIPLE", goes=11),
    terminal.Column("NAME", shrinks_to=8, goes=10),
)
_PROCESS_COLUMNS = (
    terminal.Column("HOSTNAME", shrinks_to=8),
    terminal.Column("PID", right=True),
    terminal.Column("USER", shrinks_to=8, goes=5),
    terminal.Column("JOB", right=True, goes=3),
    terminal.Column("STEP", goes=10),
    terminal.Column("TASK", right=True, goes=11),
    terminal.Column("SLOT", right=True, goes=9),
    terminal.Column("GPU", right=True, goes=2),
    terminal.Column("SM", right=True, goes=1),
    terminal.Column("GPUMEM", right=True),
    terminal.Column("PEAK", right=True, goes=8),
    terminal.Column("CAP", right=True, goes=7),
    terminal.Column("CPU", right=True, goes=4),
    terminal.Column("MEMORY", right=True, goes=6),
    terminal.Column("NAME", shrinks_to=8, goes=5),
)


def job_table(rows: Sequence[NodeRow], survey: Survey, width: int) -> tuple[list[str], list[str]]:
    """The same of jobs, on each node that they have; no lines where there is none."""
    queued = {job.job_id: job for job in survey.jobs}
    lines = []
    for row in rows:
        for job in row.node.snapshot.jobs if row.node.snapshot is not None else ():
            named = queued.get(job.job)
            triple = None if named is None else queue.triple_of(named)
            identity = str(job.job) if named is None else named.id
            name = "" if named is None else named.name
            held = [one for one in row.node.held_gpus or () if one.job == job.job]
            lines.append(_job_row(row.node.name, job, identity, triple, name, held))
    return _laid_out(_JOB_COLUMNS, lines, width) if lines else ([], [])


def _job_row(
    node: str, job: JobLoad, identity: str, triple: str | None, name: str, held: Sequence[HeldGpu]
) -> tuple[str, ...]:
    idle_gpus, is_partial = idle.count(held)
    return (
        identity,
        job.user,
        node,
        NONE if job.share is None else str(job.share),
        NONE if job.slots is None else str(job.slots),
        str(job.tasks),
        str(len(job.gpus)),
        idle_words(idle_gpus, partial=is_partial) if held else NONE,
        load_words(job.gpu_load),
        gigabytes(job.gpu_memory_mib),
        gigabytes(job.task_peak_mib) if job.tasks_measured else NONE,
        load_words(job.cpu_cores),
        gigabytes(job.memory_mib),
        number(job.memory_kills),
        triple or NONE,
        name,
    )


def process_table(rows: Sequence[NodeRow], whole: Survey, width: int) -> tuple[list[str], list[str]]:
    """The same of processes, on each GPU that they have; a sentence where there is none in the whole survey."""
    lines = []
    for row in rows:
        snapshot = row.node.snapshot
        if snapshot is None:
            continue
        index = {gpu.uuid: str(gpu.index) for gpu in snapshot.gpus}
        for one in snapshot.processes:
            lines += _process_rows(row.node.name, one, index)
    if lines:
        return _laid_out(_PROCESS_COLUMNS, lines, width)
    is_anywhere = any(node.snapshot is not None and node.snapshot.processes for node in whole.nodes)
    return [] if is_anywhere else wrapped(["no process is on these GPUs"], width), []


def _process_rows(node: str, one: ProcessLoad, index: dict[str, str]) -> list[tuple[str, ...]]:
    def optional(value: object) -> str:
        return NONE if value is None else str(value)

    return [
        (
            node,
            str(one.pid),
            one.user,
            optional(one.job),
            optional(one.step),
            optional(one.task),
            optional(one.slot),
            UNKNOWN if on is None else index.get(on.uuid, UNKNOWN),
            percent(None if on is None else on.sm_percent),
            gigabytes(None if on is None else on.memory_mib),
            gigabytes(None if on is None else on.peak_mib),
            NONE if one.cap_mib is None else gigabytes(one.cap_mib),
            load_words(one.cpu_cores),
            gigabytes(one.memory_mib),
            one.name,
        )
        for on in one.gpus or (None,)
    ]
