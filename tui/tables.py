"""The columns of the views' tables: those of `slurm_share.load`, and sparklines from the dashboard's history."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from slurm_share.load import Advice, Column, GpuRow, JobRow, NodeRow, SlotRow, UserRow, columns, slot_rows, text
from slurm_share.load import gpu_columns as of_gpus
from slurm_share.load import node_columns as of_nodes
from slurm_share.load import process_columns as of_processes

from .history import Figure, History
from .widgets import glyphs
from .wire import Subject

Row = TypeVar("Row")
SPARK_VALUES = 40
"""Values of a sparkline, more than any is wide in a table."""
STEPS, FREE, OVER = "▁▂▃▄▅▆▇█", "·", "!"
PLAIN_STEPS, PLAIN_FREE = "12345678", "."
"""The same for a terminal that has only ASCII."""
JOBS: tuple[Column[JobRow], ...] = columns.shown_in("dashboard", columns.JOBS)
PROCESSES: tuple[Column[SlotRow], ...] = columns.shown_in("dashboard", columns.PROCESSES)
ADVICE: tuple[Column[Advice], ...] = columns.shown_in("dashboard", columns.ADVICE)
"""Columns without sparklines; PROCESSES is for tables without a history."""


def nodes(history: History) -> tuple[Column[NodeRow], ...]:
    """Return the columns of nodes, with CPU and GPU load of ten minutes before the note."""

    def spark(of: Figure, row: NodeRow) -> Sequence[float | None]:
        return history.spark(Subject(node=row.name), of, SPARK_VALUES)

    trends: tuple[Column[NodeRow], ...] = (
        Column(
            "cpu_trend", "CPU 10 MIN", "CPU load over the last ten minutes, from 0 to 100 percent of the node's CPUs",
            text=lambda row: text.percent_text(of_nodes.cpu_percent(row)),
            value=of_nodes.cpu_percent,
            spark=partial(spark, "cpu_load_percent"),
            unit="%", least=10, most=20, goes=12, sorts_down=True,
        ),
        Column(
            "gpu_trend", "GPU 10 MIN", "GPU load over the last ten minutes, from 0 to 100 percent of the node's GPUs",
            text=lambda row: text.percent_text(of_nodes.gpu_percent(row)),
            value=of_nodes.gpu_percent,
            spark=partial(spark, "gpu_load_percent"),
            unit="%", least=10, most=20, goes=11, sorts_down=True,
        ),
    )  # fmt: skip
    return _with(columns.NODES, before="note", more=trends)


def users(history: History) -> tuple[Column[UserRow], ...]:
    """Return the columns of users, with GPU and CPU load of ten minutes before the note."""

    def spark(of: Figure, row: UserRow) -> Sequence[float | None]:
        return history.spark(Subject(user=row.user), of, SPARK_VALUES)

    trends: tuple[Column[UserRow], ...] = (
        Column(
            "gpu_trend", "GPU 10 MIN", "GPU load over the last ten minutes, 0 to 100 percent of GPUs with a process",
            text=lambda row: text.percent_text(row.gpu_percent),
            value=lambda row: row.gpu_percent,
            spark=partial(spark, "gpu_load_percent"),
            unit="%", least=10, most=20, goes=10, sorts_down=True,
        ),
        Column(
            "cpu_trend", "CPU 10 MIN", "CPU time over the last ten minutes, 0 to 100 percent of the CPUs of the nodes",
            text=lambda row: text.percent_text(row.cpu_percent),
            value=lambda row: row.cpu_percent,
            spark=partial(spark, "cpu_load_percent"),
            unit="%", least=10, most=20, goes=11, sorts_down=True,
        ),
    )  # fmt: skip
    return _with(columns.USERS, before="note", more=trends)


def gpus(history: History) -> tuple[Column[GpuRow], ...]:
    """Return the columns of GPUs, with a character for each slot, and the load of ten minutes."""

    def spark(row: GpuRow) -> Sequence[float | None]:
        if row.gpu is None:
            return ()
        return history.spark(Subject(node=row.node.name, gpu=row.gpu.uuid), "gpu_load_percent", SPARK_VALUES)

    steps, free = (PLAIN_STEPS, PLAIN_FREE) if glyphs.is_ascii_only() else (STEPS, FREE)
    slot: Column[GpuRow] = Column(
        "slots", "SLOTS",
        "a sign for each slot: how full its memory is against its cap "
        f"({steps[0]} to {steps[-1]}, {OVER} above 95 percent), {free} free",
        text=slots,
        value=lambda row: text.known(slots(row)),
        needs="details", least=5, most=24, goes=3,
    )  # fmt: skip
    trend: Column[GpuRow] = Column(
        "trend", "LOAD 10 MIN", "load over the last ten minutes, from 0 to 100 percent",
        text=of_gpus.load,
        value=lambda row: None if row.gpu is None else row.gpu.load_percent_5min,
        spark=spark,
        unit="%", least=11, most=20, goes=9, sorts_down=True,
    )  # fmt: skip
    return _with(_with(columns.GPUS, before="load", more=(slot,)), before="now", more=(trend,))


def processes(history: History) -> tuple[Column[SlotRow], ...]:
    """Return the columns of processes on GPUs, with the work of ten minutes."""

    def spark(row: SlotRow) -> Sequence[float | None]:
        if row.process is None:
            return ()
        return history.work.percents(row.on.node.name, row.process.process, SPARK_VALUES)

    trend: Column[SlotRow] = Column(
        "work_trend", "WORK",
        "rate of work over the last ten minutes: full is its speed alone, or where that is not known the most seen",
        text=of_processes.rate,
        value=of_processes.rate_per_s,
        spark=spark,
        least=8, most=20, goes=2, sorts_down=True, unless_empty=True,
    )  # fmt: skip
    return _with(columns.PROCESSES, before="memory_used", more=(trend,))


def slots(row: GpuRow) -> str:
    """Return a character for each slot and each task without one: its memory against its cap."""
    if not row.knows_tasks:
        return text.UNKNOWN
    return "".join(_sign(one) for one in slot_rows(row) if not one.is_mps) or text.NONE


def _sign(row: SlotRow) -> str:
    if row.process is None:
        return PLAIN_FREE if glyphs.is_ascii_only() else FREE
    part = row.process.of_cap
    if part is None:
        return text.UNKNOWN
    steps = PLAIN_STEPS if glyphs.is_ascii_only() else STEPS
    return OVER if row.cap_mib and part >= of_gpus.OF_CAP_FULL else steps[max(0, min(7, int(part * 8 / 100)))]


def _with(found: Sequence[Column[Row]], *, before: str, more: Sequence[Column[Row]]) -> tuple[Column[Row], ...]:
    """Return the dashboard's columns of a table, with `more` inserted before the column with the id `before`."""
    shown = columns.shown_in("dashboard", found)
    at = next(at for at, column in enumerate(shown) if column.id == before)
    return (*shown[:at], *more, *shown[at:])
