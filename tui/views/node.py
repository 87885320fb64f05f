"""The view of one node: trends, flags with their reasons, jobs, and its GPUs with their slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace
from textual.content import Content

from slurm_share.core.text import counted, span_text
from slurm_share.load import Column, NodeRow, SlotRow, flags, gpu_rows, job_row, slot_rows, text
from slurm_share.load import node_columns as table

from .. import tables
from ..history import Figure
from ..location import JobPlace, Location, Process
from ..picture import SurveyPicture
from ..widgets.charts import CHART_LEAST, CHART_NARROW, SPAN_S, Chart, Rates, Shown, known_charts, least_height
from ..wire import Subject
from . import targets
from .summaries import flag_lines, jobs_on_node, knows_jobs, node_charts
from .table import TableView, subject_text
from .text import Piece, facts, line, side_by_side, time_axis, trend

TALL_FROM, WIDE_FROM, AXIS_FROM = 30, 70, 14
"""Least height at which sparklines have several lines; least width at which two are side by side, in columns; least
height with a time axis."""


class NodeTrend(NamedTuple):
    """A sparkline with its label and newest figure."""

    label: str
    percent: float | None
    said: str
    """The figure in its own unit."""
    of: Figure


class SlotsView(TableView[SlotRow]):
    """The base of views whose rows are slots of GPUs."""

    has_charts = True
    has_plots = False
    """Whether charts below the table replace the sparklines above it."""
    needs_all = True
    """Whether charts are drawn only where all of them fit: their figures stand nowhere else."""
    _plots: Shown | None = None

    def make_columns(self) -> tuple[Column[SlotRow], ...]:
        return tables.processes(self.history)

    def page_charts(self, picture: SurveyPicture) -> tuple[Chart, ...]:
        """Return the charts of what the page is about, with their newest figures."""
        return ()

    def page_rates(self, picture: SurveyPicture) -> Rates:
        """Return the rate of work over time of what the page is about; empty: it has none."""
        return ()

    def page_name(self, subject: Subject, picture: SurveyPicture) -> str:
        """Return the name of what the page is about."""
        return subject_text(subject, picture)

    def draw_summary(self) -> None:
        """Draw the lines above the table; with sparklines if there is no room for charts below it."""
        self.has_plots = True
        self._plots = None
        if self.picture is not None and self.is_mounted and self._wants_charts:
            width, height = self.room
            self._plots = self._page_plots(self.picture)
            charts = () if self._plots is None else self._plots.charts
            free = height - len(self.summary(self.picture, self.location, width, height)) - self._table_height
            least = least_height(len(charts), width) if self.needs_all else 1 + CHART_LEAST
            if not charts or width < CHART_NARROW + 2 or free < least:
                self._plots = None
        self.has_plots = self._plots is not None
        super().draw_summary()

    @property
    def _table_height(self) -> int:
        return (self.grid.total or 3) + 1

    def _page_plots(self, picture: SurveyPicture) -> Shown | None:
        subject, charts = self.subject(), self.page_charts(picture)
        if subject is None or not charts:
            return None
        of, taken = self.page_name(subject, picture), picture.survey.taken
        return known_charts(Shown(charts, self.history.points(subject, SPAN_S), taken, of, self.page_rates(picture)))

    def draw_details(self) -> None:
        """Draw the charts in the lines that the table leaves."""
        if not self.is_mounted:
            return
        height = self._table_height if self.has_plots else "1fr"
        self.grid.styles.height = self.left.styles.height = self.middle.styles.height = height
        self.below_pane.styles.height = "1fr"
        self.below_pane.show(self._plots)

    def key(self, row: SlotRow) -> str:
        return row.key

    def location_of(self, row: SlotRow) -> Location | None:
        """Return the process in a slot; for a free slot and a GPU's own line, the GPU."""
        if row.on.gpu is None:
            return None
        on_gpu = replace(self.location, gpu=row.on.gpu.uuid, gpu_name=f"GPU {row.on.name}", node=row.on.node.name)
        if row.process is None:
            return None if self.view == "gpu" else replace(on_gpu, view="gpu")
        one = row.process.process
        return replace(on_gpu, view="process", process=Process(one.pid, one.start_ticks))

    def targets_of(self, rows: Sequence[SlotRow], picture: SurveyPicture) -> tuple[JobPlace, ...]:
        """Return the processes in these slots, each once; for free slots the jobs that own them."""
        found = {row.process.process.pid: row.process for row in rows if row.process is not None}
        numbers = dict.fromkeys(row.job.job for row in rows if row.process is None and row.job is not None)
        jobs = [job for number in numbers if (job := job_row(picture, number)) is not None]
        processes = (targets.process_target(process, picture) for process in found.values())
        return (*processes, *map(targets.job_target, jobs))

    def copy_lines(self) -> tuple[str, ...]:
        """Return the PIDs of the processes in the slots; if there are none, the UUID of the GPU."""
        rows = self.selected_rows()
        pids = dict.fromkeys(str(row.process.process.pid) for row in rows if row.process is not None)
        return tuple(pids) or tuple(row.on.gpu.uuid for row in rows if row.on.gpu is not None)[:1]

    def subject(self) -> Subject | None:
        """Return the GPU of the location, else its node."""
        return Subject(node=self.location.node, gpu=self.location.gpu) if self.location.node else None

    def trends(
        self,
        subject: Subject,
        left: Sequence[NodeTrend],
        right: Sequence[NodeTrend],
        width: int,
        tall: int,
        *,
        has_axis: bool = True,
    ) -> list[Content]:
        """Return sparklines of `tall` lines in two columns, in a narrow view in one, with their time axis."""
        is_wide, spark = width >= WIDE_FROM, self.history.spark
        wide = (width - 2) // 2 if is_wide else width
        first, second = (
            [
                one
                for label, percent, said, of in some
                for one in trend(label, f"{text.percent_text(percent):>5} {said}", spark(subject, of, wide), wide, tall)
            ]
            for some in (left, right)
        )
        axis = time_axis(len(spark(subject, left[0].of, wide)), self.history.spark_s, wide) if has_axis else []
        return side_by_side([*first, *axis], [*second, *axis], wide) if is_wide else [*first, *second, *axis]


class NodeView(SlotsView):
    """The node of the location."""

    view = "node"

    def rows(self, picture: SurveyPicture, location: Location) -> Sequence[SlotRow]:
        """Return the GPUs, each followed by its slots."""
        node = picture.by_name.get(location.node)
        if node is None or node.node.snapshot is None:
            return []
        return [slot for gpu in gpu_rows([node]) if gpu.gpu is not None for slot in slot_rows(gpu, with_gpu=True)]

    def needs_attention(self, row: SlotRow) -> bool:
        return flags.needs_attention(row.on.codes)

    def summary(self, picture: SurveyPicture, location: Location, width: int, height: int) -> list[Content]:
        """Return the node's identity, trends, flags and jobs."""
        node = picture.by_name.get(location.node)
        if node is None:
            gone = "no longer in the survey; its job may have ended (Esc: back)" if location.node else "1: choose one"
            return [line((location.node or "no node", "strong"), "  ", (gone, "H"))]
        lines = [_identity(node, picture, width)]
        if node.node.snapshot is None:
            lines.append(line(("silent", "!"), "  ", text.why_silent(node.node)))
        elif node.node.snapshot.gpus and not node.node.snapshot.knows_processes:
            lines.append(line((f"processes not known: {node.node.snapshot.unknown['processes']}", "dim")))
        if node.node.snapshot is not None and not self.has_plots:
            lines += self._trends(node, width, height)
        room = max(2, (height - len(lines)) // 3)
        flags = flag_lines(node, max(1, room - 1))
        jobs = jobs_on_node(picture, node, width)
        most = max(1, room - len(flags)) if self.grid.rows else max(1, height - len(lines) - len(flags) - 3)
        if len(jobs) > most:
            left = counted(len(jobs) - most + 1, "more job")
            jobs = [*jobs[: max(1, most - 1)], line((f"... and {left}", "dim"))]
        return [*lines, *flags, *jobs]

    def page_charts(self, picture: SurveyPicture) -> tuple[Chart, ...]:
        node = picture.by_name.get(self.location.node)
        return () if node is None else node_charts(node)

    def _trends(self, node: NodeRow, width: int, height: int) -> list[Content]:
        one = node.figures
        load = f"{text.load_text(one.load)}/{text.core_text(one)[0]}"
        memory = text.of_text(text.memory_text(one.memory_mib, one.memory_used_mib))
        left = [
            NodeTrend("CPU", table.cpu_percent(node), load, "cpu_load_percent"),
            NodeTrend("MEM", table.memory_percent(node), memory, "memory_percent"),
        ]
        if one.gpus == 0:
            left, right = left[:1], left[1:]
        else:
            load = f"{text.gpu_load_text(one)}/{one.gpus if one.gpus is not None else '?'} {table.by(node)}"
            memory = text.of_text(text.gpu_memory_text(one))
            right = [
                NodeTrend("GPU", table.gpu_percent(node), load, "gpu_load_percent"),
                NodeTrend("GMEM", table.gpu_memory_percent(node), memory, "gpu_memory_percent"),
            ]
        tall = 3 if height >= TALL_FROM else 1
        return self.trends(Subject(node=node.name), left, right, width, tall, has_axis=height >= AXIS_FROM)

    def empty_text(self, picture: SurveyPicture, location: Location) -> str:
        node = picture.by_name.get(location.node)
        if node is None:
            return ""
        if node.node.snapshot is None:
            return "what is on it is unknown"
        if node.figures.gpus == 0:
            return "this node has no GPU"
        hidden = node.node.snapshot.hidden_gpus
        return f"{counted(hidden, 'GPU')} that only others use" if hidden else "its GPUs gave no figures"


def _identity(node: NodeRow, picture: SurveyPicture, width: int) -> Content:
    """Return the node's name, state, users, hardware and the age of its figures."""
    slurm, snapshot = node.node.slurm, node.node.snapshot
    parts: list[Piece | str] = [(text.named(node.name), "strong"), table.state(node)]
    users = table.users(node)
    if snapshot is None:
        parts.append({"?": "", "-": "no user"}.get(users, f"of {users}"))
    else:
        parts.append(f"of {users}" if users not in ("-", "?") else "no user" if knows_jobs(picture) else "")
        models = Counter(gpu.name for gpu in snapshot.whole_gpus)
        parts += [f"{count} x {model}" for model, count in models.items()]
        if snapshot.hidden_gpus:
            parts.append(f"{counted(snapshot.hidden_gpus, 'GPU')} of others not shown")
    parts += [f"{text.core_text(node.figures)[0]} CPUs", text.whole_gigabytes(node.figures.memory_mib)]
    if slurm is not None and slurm.partitions:
        parts.append(f"partition {','.join(slurm.partitions)}")
    if snapshot is not None:
        parts.append(f"measured {span_text(max(0.0, picture.survey.taken - snapshot.taken))} before the survey")
        if snapshot.driver is not None:
            parts.append(f"driver {snapshot.driver}")
    return facts(parts, width)
