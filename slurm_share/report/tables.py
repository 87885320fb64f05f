"""The tables of a report: GPUs, tasks, starts or elements, and the jobs of a day. Values in, cells and lines out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..core import nodelist, terminal
from ..core.terminal import TerminalColumn
from ..core.text import counted, fold_some, joules_text, span_text
from ..usage import TaskUse
from .records import JobFigures, JobReport, NodeGpu
from .rules import figures as adding
from .rules import spread, wording

GPUS_MOST = 8
"""GPUs that have a line each; of more, those that were idle for longest have one."""
TASKS_MOST = 10
"""The same for tasks, and for elements of an array."""
STARTS_MOST = 40
UNKNOWN = "?"
Rows = list[tuple[str, ...]]
"""The first row has the headings."""

GPU_COLUMNS = (
    TerminalColumn("NODE", shrinks_to=8, cut="middle"), TerminalColumn("GPU", right=True),
    TerminalColumn("LOAD", right=True), TerminalColumn("SM", right=True, goes=2),
    TerminalColumn("DRAM", right=True, goes=3), TerminalColumn("OWN", right=True, goes=4),
    TerminalColumn("MEMORY", right=True), TerminalColumn("OF", right=True), TerminalColumn("CAP", right=True, goes=5),
    TerminalColumn("IDLE", right=True), TerminalColumn("LONGEST", right=True, goes=1),
    TerminalColumn("ENERGY", right=True),
)  # fmt: skip
TASK_COLUMNS = (
    TerminalColumn("TASK", right=True), TerminalColumn("OUTCOME"), TerminalColumn("TIME", right=True),
    TerminalColumn("CPU", right=True, goes=2), TerminalColumn("MEMORY", right=True, goes=3),
    TerminalColumn("GPU", right=True, goes=4), TerminalColumn("GPU MEMORY", right=True),
    TerminalColumn("SM", right=True, goes=1), TerminalColumn("IDLE", right=True), TerminalColumn("ENERGY", right=True),
)  # fmt: skip
SPREAD_COLUMNS = (
    TerminalColumn(""), TerminalColumn("LEAST", right=True), TerminalColumn("HALF", right=True),
    TerminalColumn("90 %", right=True), TerminalColumn("MOST", right=True), TerminalColumn("TASK", right=True),
    TerminalColumn("SUM", right=True, goes=1),
)  # fmt: skip
START_COLUMNS = (
    TerminalColumn("JOB"), TerminalColumn("STATE"), TerminalColumn("NODES", shrinks_to=8, cut="middle"),
    TerminalColumn("STARTED", goes=2), TerminalColumn("TIME", right=True), TerminalColumn("CPU", right=True),
    TerminalColumn("MEMORY", right=True), TerminalColumn("GPU LOAD", right=True), TerminalColumn("GPU MEM", right=True),
    TerminalColumn("IDLE", right=True), TerminalColumn("ENERGY", right=True, goes=1),
)  # fmt: skip
DAY_COLUMNS = (
    TerminalColumn("JOB"), TerminalColumn("NAME", shrinks_to=10), TerminalColumn("STATE"),
    TerminalColumn("STARTED", goes=2), TerminalColumn("TIME", right=True), TerminalColumn("LIMIT", right=True, goes=1),
    TerminalColumn("CPU", right=True), TerminalColumn("MEMORY", right=True), TerminalColumn("GPUS", right=True),
    TerminalColumn("LOAD", right=True), TerminalColumn("IDLE", right=True),
    TerminalColumn("ENERGY", right=True, goes=3),
)  # fmt: skip
DAY_MOST = 20
"""Jobs of the last day that are shown."""


def headings(columns: Sequence[TerminalColumn]) -> tuple[str, ...]:
    """Return the headings of columns."""
    return tuple(column.heading for column in columns)


def without_empty(rows: Rows) -> tuple[Rows, list[int]]:
    """Return rows without the columns that say nothing, and the places of those that stay."""
    places = [
        place
        for place in range(len(rows[0]))
        if place == 0 or any(row[place] not in (UNKNOWN, "-", "") for row in rows[1:])
    ]
    return [tuple(row[place] for place in places) for row in rows], places


def as_lines(columns: Sequence[TerminalColumn], rows: Rows, width: int) -> list[str]:
    """Return rows as an indented table; empty without rows."""
    if len(rows) < 2:
        return []
    kept, places = without_empty(rows)
    found, _ = terminal.lay_out([columns[place] for place in places], kept[1:], width - 2)
    return [f"  {line}" for line in found]


def percent(value: float | None) -> str:
    """Return a percentage as a cell."""
    return UNKNOWN if value is None else f"{value:.0f} %"


def _size(mib: float | None, otherwise: str = UNKNOWN) -> str:
    return otherwise if mib is None else wording.size(mib)


def _span(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else span_text(seconds)


def clock(moment: float, before: float | None = None) -> str:
    """Return a moment in the host's time; without the day if that is the one of `before`."""
    there = time.localtime(moment)
    is_same = before is not None and time.localtime(before)[:3] == there[:3]
    return time.strftime("%H:%M:%S" if is_same else "%Y-%m-%d %H:%M:%S", there)


# ---- GPUs ----


def gpu_rows(found: JobFigures) -> tuple[Rows, str]:
    """Return (a row for each GPU, what is left out); no rows for a single GPU, of which the sums say all."""
    if len(found.gpus) < 2:
        return [], ""
    shown, note = found.gpus, ""
    if len(shown) > GPUS_MOST:
        shown = tuple(sorted(shown, key=lambda one: -(one.use.idle_s or 0.0))[: spread.WORST])
        note = f"the {spread.WORST} of {len(found.gpus)} GPUs that were idle for longest; --csv has all"
    return [headings(GPU_COLUMNS), *map(_gpu_row, shown)], note


def _gpu_row(one: NodeGpu) -> tuple[str, ...]:
    use = one.use
    return (
        one.node,
        UNKNOWN if use.index is None else str(use.index),
        percent(use.utilization_percent),
        percent(use.sm_percent),
        percent(use.dram_percent),
        percent(use.own_sm_percent),
        _size(use.memory_peak_mib),
        _size(use.memory_total_mib),
        _size(use.memory_cap_mib, "-"),
        _span(use.idle_s),
        _span(use.idle_longest_s),
        UNKNOWN if use.energy is None else joules_text(use.energy.joules),
    )


# ---- Tasks ----

_WRITTEN: dict[str, tuple[str, Callable[[float], str]]] = {
    "time": ("time", span_text),
    "cpu time": ("CPU time", span_text),
    "memory": ("host memory", wording.size),
    "gpu memory": ("GPU memory", wording.size),
    "sm": ("SM time", wording.percent),
    "gpu idle": ("GPU idle", span_text),
    "energy": ("energy", joules_text),
}
"""Figure of spread.FIGURES -> its name, and how it is written."""


def task_rows(tasks: Sequence[TaskUse]) -> Rows:
    """Return a row for each attempt at a task."""
    return [headings(TASK_COLUMNS), *map(_task_row, tasks)] if tasks else []


def spread_rows(tasks: Sequence[TaskUse]) -> Rows:
    """Return a row for each figure of many tasks: least, half, 90 %, most, the task with the most, and the sum."""
    rows: Rows = [headings(SPREAD_COLUMNS)]
    for one in spread.quantiles(tasks):
        label, write = _WRITTEN[one.name]
        summed = "" if one.name in ("sm", "memory", "gpu memory") else write(one.sum)
        values = [write(value) for value in (one.least, one.half, one.p90, one.most)]
        rows.append((label, *values, str(one.most_task), summed))
    return rows


def _task_row(task: TaskUse) -> tuple[str, ...]:
    def of(name: str) -> str:
        value = spread.FIGURES[name](task)
        return UNKNOWN if value is None else _WRITTEN[name][1](value)

    again = f" ({task.attempt})" if task.attempt > 1 else ""
    return (
        f"{task.task}{again}",
        task.outcome or task.step or "-",
        of("time"),
        of("cpu time"),
        of("memory"),
        fold_some(sorted(gpu.index for gpu in task.gpus if gpu.index is not None), 3) or "-",
        of("gpu memory"),
        of("sm"),
        of("gpu idle"),
        of("energy"),
    )


# ---- Starts, elements ----


def start_rows(report: JobReport) -> tuple[Rows, str]:
    """Return (a row for each start of a job or element of an array, what is left out); no rows for a single one."""
    if len(report.starts) < 2:
        return [], ""
    places, note = list(range(len(report.starts))), ""
    if len(places) > STARTS_MOST:
        places.sort(key=lambda place: report.starts[place].state in ("COMPLETED", "RUNNING"))
        places = places[:TASKS_MOST]
        note = f"{TASKS_MOST} of {len(report.starts)}, those that did not complete first; --json has all"
    return [headings(START_COLUMNS), *(_start_row(report, place) for place in places)], note


def _start_row(report: JobReport, place: int) -> tuple[str, ...]:
    one = report.starts[place]
    uses = tuple(use for use in report.uses if use.job == one.job and (use.restarts or 0) == (one.restarts or 0))
    found = adding.figures(
        JobReport(title=one.id, starts=(one,), uses=uses, now=report.now, share=report.share, triple=report.triple)
    )
    again = f" (start {one.restarts + 1})" if one.restarts else ""
    return (
        f"{one.id}{again}",
        one.state,
        nodelist.fold(one.nodes) if one.nodes else "-",
        "-" if one.start is None else clock(one.start),
        _span(found.elapsed_s),
        percent(found.cpu_percent),
        _size(found.memory_peak_mib),
        *_gpu_cells(found),
    )


def _gpu_cells(found: JobFigures) -> tuple[str, ...]:
    """Return load, memory, idle time and energy of GPUs."""
    if not found.gpu_count:
        return ("-",) * 4
    return (
        percent(found.gpu_load_percent),
        _size(found.gpu_peak_mib),
        _span(found.gpu_idle_s),
        UNKNOWN if found.energy_j is None else joules_text(found.energy_j),
    )


# ---- Jobs of a day ----


def day_lines(reports: Sequence[JobReport], left_out: int, width: int) -> list[str]:
    """Return a line for each job of the last day, the newest last."""
    rows = []
    for report in reports:
        found = adding.figures(report)
        job = report.job
        assert job is not None
        load, _, idle, energy = _gpu_cells(found)
        rows.append(
            (
                report.title,
                job.name,
                job.state,
                "-" if job.start is None else time.strftime("%H:%M", time.localtime(job.start)),
                _span(found.elapsed_s),
                "-" if found.limit_s is None else span_text(found.limit_s),
                percent(found.cpu_percent),
                _size(found.memory_peak_mib),
                str(found.gpu_count) if found.gpu_count else "-",
                load,
                idle,
                energy,
            )
        )
    lines, _ = terminal.lay_out(DAY_COLUMNS, rows, width)
    more = f"... and {counted(left_out, 'older job')}: slurm-share report JOB, sacct" if left_out else ""
    return [*lines, *([more] if more else [])]
