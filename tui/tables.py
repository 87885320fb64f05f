"""The columns of the views' tables: those of `slurm_share.load`, and sparklines from the dashboard's history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

from slurm_share.load import Advice, Column, GpuRow, JobRow, NodeRow, SlotRow, UserRow, columns, slot_rows, text
from slurm_share.load import gpu_columns as of_gpus
from slurm_share.load import node_columns as of_nodes
from slurm_share.load import process_columns as of_processes

from .history import Figure, FigureHistory
from .widgets import glyphs
from .widgets.bars import BLOCKS
from .wire import Subject

Row = TypeVar("Row")
Figures = Callable[[Row], float | None]
Trend = Callable[[Row], Sequence[float | None]]
SPARK_VALUES = 40
"""Values of a sparkline, more than any is wide in a table."""
STEPS, FREE, OVER = (BLOCKS, "12345678"), ("·", "."), "!"
"""Signs of a slot: how full it is, and free, each also for a terminal that has only ASCII; above its cap."""
JOBS: tuple[Column[JobRow], ...] = columns.shown_in("dashboard", columns.JOBS)
PROCESSES: tuple[Column[SlotRow], ...] = columns.shown_in("dashboard", columns.PROCESSES)
ADVICE: tuple[Column[Advice], ...] = columns.shown_in("dashboard", columns.ADVICE)
"""Columns without sparklines; PROCESSES is for tables without a history."""


def nodes(history: FigureHistory) -> tuple[Column[NodeRow], ...]:
    """Return the columns of nodes, with CPU and GPU load of ten minutes before the note."""

    def spark(of: Figure) -> Trend[NodeRow]:
        return lambda row: history.spark(Subject(node=row.name), of, SPARK_VALUES)

    cpu = "CPU load over the last ten minutes, from 0 to 100 percent of the node's CPUs"
    gpu = "GPU load over the last ten minutes, from 0 to 100 percent of the node's GPUs"
    trends = (
        _trend("cpu_trend", "CPU 10 MIN", cpu, of_nodes.cpu_percent, spark("cpu_load_percent"), 22),
        _trend("gpu_trend", "GPU 10 MIN", gpu, of_nodes.gpu_percent, spark("gpu_load_percent"), 21),
    )
    return _with(columns.NODES, before="note", more=trends)


def users(history: FigureHistory) -> tuple[Column[UserRow], ...]:
    """Return the columns of users, with GPU and CPU load of ten minutes before the note."""

    def spark(of: Figure) -> Trend[UserRow]:
        return lambda row: history.spark(Subject(user=row.user), of, SPARK_VALUES)

    gpu = "GPU load over the last ten minutes, 0 to 100 percent of the GPUs that the user's jobs have"
    cpu = "CPU time over the last ten minutes, 0 to 100 percent of the CPUs of the nodes"
    trends = (
        _trend("gpu_trend", "GPU 10 MIN", gpu, attrgetter("gpu_percent"), spark("gpu_load_percent"), 21),
        _trend("cpu_trend", "CPU 10 MIN", cpu, attrgetter("cpu_percent"), spark("cpu_load_percent"), 22),
    )
    return _with(columns.USERS, before="note", more=trends)


def gpus(history: FigureHistory) -> tuple[Column[GpuRow], ...]:
    """Return the columns of GPUs, with a character for each slot, and the load of ten minutes."""

    def spark(row: GpuRow) -> Sequence[float | None]:
        if row.gpu is None:
            return ()
        return history.spark(Subject(node=row.node.name, gpu=row.gpu.uuid), "gpu_load_percent", SPARK_VALUES)

    def percent(row: GpuRow) -> float | None:
        return None if row.gpu is None else row.gpu.load_percent_5min

    steps, free = STEPS[glyphs.is_ascii_only()], FREE[glyphs.is_ascii_only()]
    signs = f"({steps[0]} to {steps[-1]}, {OVER} above 95 percent), {free} free"
    slot: Column[GpuRow] = Column(
        "slots", "SLOTS", f"a sign for each slot: how full its memory is against its cap {signs}",
        text=slots, value=lambda row: text.known(slots(row)), needs="details", least=5, most=24, goes=12,
    )  # fmt: skip
    doc = "load over the last ten minutes, from 0 to 100 percent"
    load = replace(_trend("trend", "LOAD 10 MIN", doc, percent, spark, 19), text=of_gpus.load)
    return _with(_with(columns.GPUS, before="load", more=(slot,)), before="now", more=(load,))


def processes(history: FigureHistory) -> tuple[Column[SlotRow], ...]:
    """Return the columns of processes on GPUs, with the work of ten minutes."""

    def spark(row: SlotRow) -> Sequence[float | None]:
        if row.process is None:
            return ()
        return history.work.percents(row.on.node.name, row.process.process, SPARK_VALUES)

    doc = "rate of work over the last ten minutes: full is its speed alone, or where that is not known the most seen"
    trend: Column[SlotRow] = Column(
        "work_trend", "WORK", doc,
        text=of_processes.rate, value=of_processes.rate_per_s, spark=spark,
        least=8, most=20, goes=7, sorts_down=True, unless_empty=True,
    )  # fmt: skip
    return _with(columns.PROCESSES, before="memory_used", more=(trend,))


def slots(row: GpuRow) -> str:
    """Return a character for each slot and each task without one: its memory against its cap."""
    if not row.knows_tasks:
        return text.UNKNOWN
    return "".join(_sign(one) for one in slot_rows(row) if not one.is_mps) or text.NONE


def _sign(row: SlotRow) -> str:
    if row.process is None:
        return text.UNKNOWN if row.is_unknown else FREE[glyphs.is_ascii_only()]
    if (part := row.process.of_cap) is None:
        return text.UNKNOWN
    is_over = row.cap_mib and part >= of_gpus.OF_CAP_FULL
    return OVER if is_over else STEPS[glyphs.is_ascii_only()][max(0, min(7, int(part * 8 / 100)))]


def _trend(id: str, heading: str, doc: str, value: Figures[Row], spark: Trend[Row], goes: int) -> Column[Row]:
    """Return a column with a sparkline of percentages."""
    return Column(
        id, heading, doc,
        text=lambda row: text.percent_text(value(row)),
        value=value, spark=spark, unit="%", least=len(heading), most=20, goes=goes, sorts_down=True,
    )  # fmt: skip


def _with(found: Sequence[Column[Row]], *, before: str, more: Sequence[Column[Row]]) -> tuple[Column[Row], ...]:
    """Return the dashboard's columns of a table, with `more` inserted before the column with the id `before`."""
    shown = columns.shown_in("dashboard", found)
    at = next(at for at, column in enumerate(shown) if column.id == before)
    return (*shown[:at], *more, *shown[at:])
