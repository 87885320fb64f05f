"""The view of one process: owner, task, memory on each GPU against its cap, and the other processes on its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from slurm_share.core import text as core_text
from slurm_share.load import (
    Column,
    GpuRow,
    NodeRow,
    ProcessLoad,
    ProcessRow,
    SlotRow,
    gpu_rows,
    process_rows,
    slot_rows,
    text,
)

from .. import tables, work_history
from ..location import Location
from ..picture import Picture
from ..target import Target
from ..widgets.bars import bar
from ..wire import Subject
from . import targets
from .node import slot_copy_lines, slot_location
from .summaries import job_on_node_summary
from .table import TableView
from .text import Piece, facts, line, paragraph, time_axis, trend

BAR = 20
TALL_FROM = 24
"""Least height at which the sparkline has two lines and a time axis."""
PAUSED = "its launcher has stopped it for its neighbours"


class ProcessView(TableView[SlotRow]):
    """The process of the location, and below it all processes on the same GPUs."""

    view = "process"

    def make_columns(self) -> tuple[Column[SlotRow], ...]:
        return tables.processes(self.history)

    def key(self, row: SlotRow) -> str:
        return row.key

    def rows(self, picture: Picture, location: Location) -> Sequence[SlotRow]:
        """Return the slots of the process's GPUs; after its end those of the location's GPU."""
        node, one = process_at(picture, location)
        if node is None:
            return []
        uuids = {on.uuid for on in one.gpus} if one is not None else {location.gpu}
        gpus: list[GpuRow] = [row for row in gpu_rows([node]) if row.gpu is not None and row.gpu.uuid in uuids]
        return [slot for gpu in gpus for slot in slot_rows(gpu)]

    def summary(self, picture: Picture, location: Location, width: int, height: int) -> list[Content]:
        """Return all facts about the process."""
        node, one = process_at(picture, location)
        pid = "" if location.process is None else str(location.process.pid)
        if node is None or one is None:
            where = f"process {pid} on {location.node}"
            return [line((where, "strong"), "  ", ("it has ended, or is not shown any more", "H"))]
        found = [
            facts([(one.name, "strong"), f"process {one.pid} on {node.name}", f"of {one.user} ({one.uid})"], width),
            facts(_task(one), width),
        ]
        for row in process_rows(node, [one]):
            found += _on_gpu(row, width)
        found += self._work(node.name, one, width, height)
        found.append(
            facts(
                [f"CPU {text.load_text(one.cpu_cores)} cores", f"host memory {text.gigabytes(one.memory_mib)}"], width
            )
        )
        for field, why in list(one.unknown.items())[: max(1, height // 6)]:
            found += paragraph(f"? {field}: {why}", width, "dim", most=1)
        snapshot = node.node.snapshot
        load = next((load for load in snapshot.jobs if load.job == one.job), None) if snapshot is not None else None
        if load is not None:
            record = next((job for job in picture.survey.jobs if job.job_id == one.job), None)
            number = load.job if record is None else record.array or record.job_id
            advice = next((each for each in picture.advice if each.job == number), None)
            found.append(job_on_node_summary(load, record, advice, width))
        return [*found, line(("on the same GPU:", "head"))]

    def _work(self, node: str, one: ProcessLoad, width: int, height: int) -> list[Content]:
        """Return the progress of the process's task, with its rate over ten minutes."""
        progress = one.progress
        if progress is None or not (progress.is_paused or progress.rate_per_s is not None):
            how = "LLSUB_PROGRESS or llsub --progress tells"
            return [facts([("WORK", "strong"), "no progress reported", how], width)]
        full = self.history.work.most_per_s(node, one)
        now = "paused" if progress.is_paused else core_text.rate_text(progress.rate_per_s, progress.rate_source)
        values = self.history.work.percents(node, one, width)
        against = "alone" if work_history.alone_per_s(one) else "the most seen"
        speed = progress.speed_ratio
        said: list[Piece | str] = [
            f"     task {progress.task}" + (f" of {progress.run}" if progress.run else ""),
            (PAUSED, "H") if progress.is_paused else "",
            f"{speed:.2f} of its speed alone" if speed is not None else "",
            f"full is {core_text.rate_text(full)}, {against}" if full else "",
            f"{progress.units:.0f} units done" if progress.units is not None else "",
        ]
        lines = trend("WORK", now, values, width, 2 if height >= TALL_FROM else 1)
        if height >= TALL_FROM:
            lines += time_axis(len(values), self.history.spark_s, width)
        return [*lines, facts(said, width)]

    def empty_text(self, picture: Picture, location: Location) -> str:
        return "nothing else is known about it"

    def enter_location(self) -> Location | None:
        """Return the process under the cursor, unless it is the one shown."""
        location = slot_location(self.grid.row, self.location)
        return None if location is None or location.process == self.location.process else location

    def subject(self) -> Subject | None:
        """Return the GPU of the process."""
        return (
            Subject(node=self.location.node, gpu=self.location.gpu)
            if self.location.gpu
            else Subject(node=self.location.node)
        )

    def targets(self) -> tuple[Target, ...]:
        """Return the process of the view, whatever row the cursor is on."""
        if self.picture is None:
            return ()
        node, one = process_at(self.picture, self.location)
        if node is None or one is None:
            return ()
        return (targets.process_target(ProcessRow(node, one), self.picture),)

    def copy_lines(self) -> tuple[str, ...]:
        return (
            (str(self.location.process.pid),)
            if self.location.process is not None
            else slot_copy_lines(self.selected_rows())
        )


def process_at(picture: Picture, location: Location) -> tuple[NodeRow | None, ProcessLoad | None]:
    """Return the node and the process of a location; None: not in the picture. A later process with the same PID does
    not match."""
    node = picture.by_name.get(location.node)
    if node is None or node.node.snapshot is None or location.process is None:
        return node, None
    wanted = location.process
    return node, next(
        (
            one
            for one in node.node.snapshot.processes
            if one.pid == wanted.pid and wanted.start_ticks in (None, one.start_ticks)
        ),
        None,
    )


def _task(one: ProcessLoad) -> list[Piece | str]:
    if one.job is None:
        return ["in no job"]
    return [
        f"job {one.job}",
        f"step {one.step or text.NONE}",
        f"task {text.NONE if one.task is None else one.task}",
        f"slot {text.NONE if one.slot is None else one.slot}",
    ]


def _on_gpu(row: ProcessRow, width: int) -> list[Content]:
    if row.on is None:
        return [line("on no visible GPU")]
    one, cap = row.on, row.process.cap_mib
    name = f"GPU {row.gpu.index}" if row.gpu is not None else row.on.uuid
    model = row.gpu.name if row.gpu is not None else ""
    whole = cap or (row.gpu.memory_total_mib if row.gpu is not None else None)
    against = f"of its cap of {text.gigabytes(cap)}" if cap else f"of {text.gigabytes(whole)}, without a cap"
    part = row.of_cap

    def drawn(percent: float | None) -> str:
        value = text.share(percent)
        return " " * BAR if value is None else "".join(bar(value, BAR))

    full = cap is not None and part is not None and part >= 95.0
    memory = (f"{text.gigabytes(one.memory_mib)} ({text.percent_text(part)}) {against}", "!" if full else "")
    return [
        facts([(name, "strong"), model], width),
        facts(
            [f"  SM     {drawn(one.sm_percent)}", f"{text.percent_text(one.sm_percent)} of the time its kernels ran"],
            width,
        ),
        facts([f"  memory {drawn(part)}", memory, f"peak {text.gigabytes(one.peak_mib)}"], width),
    ]
