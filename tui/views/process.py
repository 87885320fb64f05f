"""One process: whose, of which task, what it has on each GPU against its cap, and who is beside it."""

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
from ..picture import Picture
from ..place import Place
from ..target import Target
from ..widgets.bars import bar
from ..wire import Subject
from . import targets
from .node import below, copied
from .sums import of_load
from .table import TableView
from .text import Piece, facts, line, paragraph, time_axis, trend

BAR = 20
TALL_FROM = 24
"""Lines from which the sparkline is two lines high, with the time below it."""
PAUSED = "its launcher has stopped it for its neighbours"


class ProcessView(TableView[SlotRow]):
    """The process of the place, and below it all that is on the same GPUs."""

    view = "process"

    def make_columns(self) -> tuple[Column[SlotRow], ...]:
        """As TableView has it."""
        return tables.processes(self.history)

    def key(self, row: SlotRow) -> str:
        """As TableView has it."""
        return row.key

    def rows(self, picture: Picture, place: Place) -> Sequence[SlotRow]:
        """All on the GPUs that it is on, and where it is gone on that of the place."""
        node, one = process_at(picture, place)
        if node is None:
            return []
        uuids = {on.uuid for on in one.gpus} if one is not None else {place.gpu}
        gpus: list[GpuRow] = [row for row in gpu_rows([node]) if row.gpu is not None and row.gpu.uuid in uuids]
        return [slot for gpu in gpus for slot in slot_rows(gpu)]

    def said(self, picture: Picture, place: Place, width: int, height: int) -> list[Content]:
        """All that is known of it."""
        node, one = process_at(picture, place)
        pid = "" if place.process is None else str(place.process.pid)
        if node is None or one is None:
            where = f"process {pid} on {place.node}"
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
            found.append(of_load(load, record, advice, width))
        return [*found, line(("on the same GPU:", "head"))]

    def _work(self, node: str, one: ProcessLoad, width: int, height: int) -> list[Content]:
        """What its task gets done, and did in the last ten minutes."""
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

    def nothing(self, picture: Picture, place: Place) -> str:
        """As TableView has it."""
        return "nothing else is known of it"

    def below(self) -> Place | None:
        """The process under the cursor, where it is another one."""
        place = below(self.grid.row, self.place)
        return None if place is None or place.process == self.place.process else place

    def subject(self) -> Subject | None:
        """The GPU that it is on."""
        return Subject(node=self.place.node, gpu=self.place.gpu) if self.place.gpu else Subject(node=self.place.node)

    def targets(self) -> tuple[Target, ...]:
        """This process, whatever the cursor is on: the view is of it."""
        if self.picture is None:
            return ()
        node, one = process_at(self.picture, self.place)
        if node is None or one is None:
            return ()
        return (targets.of_process(ProcessRow(node, one), self.picture),)

    def copied(self) -> tuple[str, ...]:
        """Its number."""
        return (str(self.place.process.pid),) if self.place.process is not None else copied(self.chosen())


def process_at(picture: Picture, place: Place) -> tuple[NodeRow | None, ProcessLoad | None]:
    """(the node, the process); None: not in the picture. A later process of the same number is another one."""
    node = picture.by_name.get(place.node)
    if node is None or node.node.snapshot is None or place.process is None:
        return node, None
    wanted = place.process
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
        return [line("on no GPU that is shown")]
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
