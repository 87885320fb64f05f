"""The view of one process: owner, task, memory on each GPU against its cap, and the other processes on its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from slurm_share.core import text as core_text
from slurm_share.load import NodeRow, ProcessLoad, ProcessRow, SlotRow, gpu_rows, process_rows, slot_rows, text

from ..history import alone_per_s
from ..location import JobPlace, Location
from ..picture import SurveyPicture
from ..widgets.bars import bar
from ..widgets.charts import Chart, Rates
from ..wire import Subject
from . import targets
from .node import SlotsView
from .summaries import gpu_charts, loads_on_node
from .text import Piece, facts, line, paragraph, time_axis, trend

BAR = 20
TALL_FROM = 24
"""Least height at which the sparkline has two lines and a time axis."""
PAUSED = "its launcher has stopped it for its neighbours"


class ProcessView(SlotsView):
    """The process of the location, and below it all processes on the same GPUs."""

    view = "process"
    needs_all = False

    def rows(self, picture: SurveyPicture, location: Location) -> Sequence[SlotRow]:
        """Return the slots of the process's GPUs; after its end those of the location's GPU."""
        node, one = process_at(picture, location)
        if node is None:
            return []
        uuids = {on.uuid for on in one.gpus} if one is not None else {location.gpu}
        gpus = (row for row in gpu_rows([node]) if row.gpu is not None and row.gpu.uuid in uuids)
        return [slot for gpu in gpus for slot in slot_rows(gpu)]

    def summary(self, picture: SurveyPicture, location: Location, width: int, height: int) -> list[Content]:
        node, one = process_at(picture, location)
        if node is None or one is None:
            where = f"process {location.process.pid if location.process else ''} on {location.node}"
            return [line((where, "strong"), "  ", ("it has ended, or is not shown any more", "H"))]
        of_job = {"step": one.step or None, "task": one.task, "slot": one.slot}
        numbers = [f"{name} {text.NONE if value is None else value}" for name, value in of_job.items()]
        found = [
            facts([(one.name, "strong"), f"process {one.pid} on {node.name}", f"of {one.user} ({one.uid})"], width),
            facts(["in no job"] if one.job is None else [f"job {node.job_name(one.job)}", *numbers], width),
        ]
        for row in process_rows(node, [one]):
            found += _on_gpu(row, width)
        found += self._work(node.name, one, width, height)
        host = [f"CPU {text.load_text(one.cpu_cores)} cores", f"host memory {text.gigabytes(one.memory_mib)}"]
        found.append(facts(host, width))
        for field, why in list(one.unknown.items())[: max(1, height // 6)]:
            found += paragraph(f"? {field}: {why}", width, "dim", most=1)
        loads = () if node.node.snapshot is None else node.node.snapshot.jobs
        found += loads_on_node(picture, [load for load in loads if load.job == one.job], width)
        return [*found, line(("on the same GPU:", "head"))]

    def page_charts(self, picture: SurveyPicture) -> tuple[Chart, ...]:
        """Return the rate of the process's task, and the charts of its GPU."""
        node, one = process_at(picture, self.location)
        if node is None or one is None:
            return ()
        now = one.progress
        rate = "" if now is None else core_text.rate_text(now.rate_per_s, now.rate_source)
        paused = now is not None and now.is_paused
        uuid = one.gpus[0].uuid if one.gpus else ""
        on = next((row for row in gpu_rows([node]) if row.gpu is not None and row.gpu.uuid == uuid), None)
        found = (Chart("rate", "paused" if paused else rate or text.UNKNOWN),)
        return found if on is None else (*found, *gpu_charts(on))

    def page_rates(self, picture: SurveyPicture) -> Rates:
        node, one = process_at(picture, self.location)
        return () if node is None or one is None else self.history.work.of_task(node.name, one)

    def page_name(self, subject: Subject, picture: SurveyPicture) -> str:
        """Return the names of the process, whose task has a rate, and of its GPU."""
        number = self.location.process.pid if self.location.process is not None else ""
        return f"process {number} and {super().page_name(subject, picture)}"

    def subject(self) -> Subject | None:
        """Return the GPU of the process, the first of several."""
        node, one = (None, None) if self.picture is None else process_at(self.picture, self.location)
        if node is None or one is None or not one.gpus:
            return super().subject()
        return Subject(node=node.name, gpu=one.gpus[0].uuid)

    def _work(self, node: str, one: ProcessLoad, width: int, height: int) -> list[Content]:
        """Return the progress of the process's task, with its rate over ten minutes."""
        progress = one.progress
        if progress is None or not (progress.is_paused or progress.rate_per_s is not None):
            unread = one.unknown.get("progress", "")
            what = "not known" if unread else "no progress reported"
            return [facts([("WORK", "strong"), what, unread or "LLSUB_PROGRESS or llsub --progress tells"], width)]
        full = self.history.work.most_per_s(node, one)
        now = "paused" if progress.is_paused else core_text.rate_text(progress.rate_per_s, progress.rate_source)
        values = self.history.work.percents(node, one, width)
        against = "alone" if alone_per_s(one) else "the most seen"
        speed = progress.speed_ratio
        said: list[Piece | str] = [
            f"     task {progress.task}" + (f" of {progress.run}" if progress.run else ""),
            (PAUSED, "H") if progress.is_paused else "",
            f"{speed:.2f} of its speed alone" if speed is not None else "",
            f"full is {core_text.rate_text(full)}, {against}" if full else "",
            f"{progress.units:.0f} units done" if progress.units is not None else "",
        ]
        if self.has_plots:
            return [line(("WORK", "strong"), " ", now), facts(said, width)]
        lines = trend("WORK", now, values, width, 2 if height >= TALL_FROM else 1)
        if height >= TALL_FROM:
            lines += time_axis(len(values), self.history.spark_s, width)
        return [*lines, facts(said, width)]

    def empty_text(self, picture: SurveyPicture, location: Location) -> str:
        return "nothing else is known about it"

    def location_of(self, row: SlotRow) -> Location | None:
        """Return the process in a slot, unless it is the one shown."""
        location = super().location_of(row)
        return None if location is None or location.process == self.location.process else location

    def targets(self) -> tuple[JobPlace, ...]:
        """Return the process of the view, whatever row the cursor is on."""
        node, one = (None, None) if self.picture is None else process_at(self.picture, self.location)
        if self.picture is None or node is None or one is None:
            return ()
        return (targets.process_target(ProcessRow(node, one), self.picture),)

    def copy_lines(self) -> tuple[str, ...]:
        return (str(self.location.process.pid),) if self.location.process is not None else super().copy_lines()


def process_at(picture: SurveyPicture, location: Location) -> tuple[NodeRow | None, ProcessLoad | None]:
    """Return the node and the process of a location; None: not in the picture. A later process with the same PID does
    not match."""
    node = picture.by_name.get(location.node)
    if node is None or node.node.snapshot is None or location.process is None:
        return node, None
    pid, start_ticks = location.process.pid, location.process.start_ticks
    there = (one for one in node.node.snapshot.processes if one.pid == pid and start_ticks in (None, one.start_ticks))
    return node, next(there, None)


def _on_gpu(row: ProcessRow, width: int) -> list[Content]:
    if row.on is None:
        return [line("on no visible GPU")]
    one, cap = row.on, row.process.cap_mib
    name, model, whole = (one.uuid, "", None)
    if row.gpu is not None:
        name, model, whole = f"GPU {row.gpu.index}", row.gpu.name, row.gpu.memory_total_mib
    if row.is_cap_unknown:
        against = f"of its cap, which is not known, on a GPU of {text.gigabytes(whole)}"
    else:
        against = f"of its cap of {text.gigabytes(cap)}" if cap else f"of {text.gigabytes(whole)}, without a cap"
    part = row.of_cap

    def drawn(percent: float | None) -> str:
        value = text.share(percent)
        return " " * BAR if value is None else "".join(bar(value, BAR))

    full = cap is not None and part is not None and part >= 95.0
    memory = (f"{text.gigabytes(one.memory_mib)} ({text.percent_text(part)}) {against}", "H" if full else "")
    sm = f"{text.percent_text(one.sm_time_percent)} of the time its kernels ran"
    return [
        facts([(name, "strong"), model], width),
        facts([f"  SM time {drawn(one.sm_time_percent)}", sm], width),
        facts([f"  memory  {drawn(part)}", memory, f"peak {text.gigabytes(one.peak_mib)}"], width),
    ]
