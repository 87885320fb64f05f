"""llload's tables of single things: a line for each GPU, each job on a node, each process."""

from __future__ import annotations

from collections.abc import Sequence

from ...core import terminal
from ...share.rules import queue
from ..rules import figures as numbers
from ..rules import idle
from ..snapshot import (
    GpuLoad,
    HeldGpu,
    JobLoad,
    ProcessLoad,
    Snapshot,
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
from .view import Row

_GPU_COLUMNS = (
    terminal.Column("HOSTNAME", shrinks_to=8),
    terminal.Column("GPU"),
    terminal.Column("LOAD", right=True),
    terminal.Column("BY", goes=2),
    terminal.Column("NOW", right=True, goes=8),
    terminal.Column("1MIN", right=True, goes=9),
    terminal.Column("15MIN", right=True, goes=10),
    terminal.Column("GPUMEM - USED = FREE", goes=1),
    terminal.Column("TASKS", right=True, goes=3),
    terminal.Column("OCC", right=True, goes=13),
    terminal.Column("TENSOR", right=True, goes=14),
    terminal.Column("DRAM", right=True, goes=12),
    terminal.Column("WATT", right=True, goes=6),
    terminal.Column("TEMP", right=True, goes=7),
    terminal.Column("JOBS", shrinks_to=8, goes=4),
    terminal.Column("USERS", shrinks_to=8, goes=5),
    terminal.Column("NAME", shrinks_to=10, goes=11),
    terminal.Column("NOTE", shrinks_to=6),
)
"""Load is a mean over 5 minutes, 1.0 is a GPU that is always busy; NOW, OCC, TENSOR and DRAM are percent."""


def gpu_table(rows: Sequence[Row], width: int) -> tuple[list[str], list[str]]:
    """(lines with the headings first, headings that were left out): a line for each GPU, or for a node without any."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        snapshot = row.node.snapshot
        if snapshot is None:
            # Slurm may know that it has none; else nobody says.
            sign = NONE if row.figures.gpus == 0 else UNKNOWN
            lines.append((row.node.name, *[sign] * (len(_GPU_COLUMNS) - 2), row.note(False)))
            continue
        if not snapshot.gpus:
            sign = NONE if row.figures.gpus == 0 else UNKNOWN
            lines.append((row.node.name, *[sign] * (len(_GPU_COLUMNS) - 2), ""))
        lines += [_gpu_row(snapshot, gpu, row) for gpu in snapshot.gpus]
    equations = _lined_up([line[7] for line in lines])
    lines = [(*line[:7], equation, *line[8:]) for line, equation in zip(lines, equations, strict=True)]
    return _laid_out(_GPU_COLUMNS, lines, width)


def _gpu_row(snapshot: Snapshot, gpu: GpuLoad, row: Row) -> tuple[str, ...]:
    here = numbers.tasks_on(snapshot, gpu)
    used = gpu.memory_used_mib
    total = gpu.memory_total_mib
    free = None if total is None or used is None else total - used
    load = gpu.load_percent_windows
    by = "sm" if gpu.sm_percent_windows is not None else "util" if gpu.load_percent_5min is not None else UNKNOWN
    said = list(dict.fromkeys(flag.code for flag in row.flags if flag.uuid == gpu.uuid and flag.of in "iv"))
    if gpu.mig_parent:
        said.append("MIG: its instances follow")
    if gpu.problem is not None:
        said.append(f"n! {gpu.problem}")
    if gpu.others_mib:
        said.append(f"others have {gigabytes(gpu.others_mib)}")
    jobs = sorted({one.job for one in here if one.job is not None})
    whole = gpu.load_percent_5min
    # A driver that has GPM for this GPU gives all of it or says why not; one that has none has nothing to say.
    none = NONE if gpu.sm_percent_windows is None and gpu.activity == type(gpu.activity)() else UNKNOWN
    return (
        snapshot.node,
        str(gpu.index) + (f" {gpu.name.rpartition(' ')[2]}" if gpu.mig_of else ""),
        UNKNOWN if whole is None else f"{whole / 100:.2f}",
        by,
        percent(gpu.load_percent),
        UNKNOWN if load is None else f"{load.m1 / 100:.2f}",
        UNKNOWN if load is None else f"{load.m15 / 100:.2f}",
        f"{gigabytes(total)} - {gigabytes(used)} = {gigabytes(free)}",
        str(len(here)),
        percent(gpu.activity.occupancy_percent, none),
        percent(gpu.activity.tensor_percent, none),
        percent(gpu.activity.dram_percent, none),
        UNKNOWN if gpu.power_w is None else f"{gpu.power_w:.0f}",
        UNKNOWN if gpu.temperature_c is None else f"{gpu.temperature_c}C",
        ",".join(map(str, jobs)) or NONE,
        ",".join(sorted({one.user for one in here})) or NONE,
        gpu.name,
        " ".join(said),
    )


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


def job_table(rows: Sequence[Row], survey: Survey, width: int) -> tuple[list[str], list[str]]:
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


def process_table(rows: Sequence[Row], whole: Survey, width: int) -> tuple[list[str], list[str]]:
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
