"""The view of one GPU: load, memory, counters, and its slots with their processes."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from slurm_share.load import Column, GpuRow, SlotRow, columns, gpu_rows, slot_rows, text
from slurm_share.load import gpu_columns as gpu_table

from ..location import Location
from ..picture import SurveyPicture
from ..widgets.charts import Chart
from ..wire import Subject
from .node import NodeTrend, SlotsView
from .summaries import gpu_charts
from .text import Piece, facts, line

TALL_FROM = 24
_FURTHER = tuple(
    column for column in columns.shown_in("plain", columns.GPUS) if column.id not in ("load", "memory_used", "name")
)
"""Columns of a GPU that the page shows as plain facts."""


class GpuView(SlotsView):
    """The GPU of the location, with its slots as rows."""

    view = "gpu"

    def make_columns(self) -> tuple[Column[SlotRow], ...]:
        return super().make_columns()[1:]

    def rows(self, picture: SurveyPicture, location: Location) -> Sequence[SlotRow]:
        row = gpu_at(picture, location)
        return [] if row is None else slot_rows(row)

    def summary(self, picture: SurveyPicture, location: Location, width: int, height: int) -> list[Content]:
        """Return the GPU's identity, trends, counters and flags."""
        row = gpu_at(picture, location)
        if row is None or row.gpu is None:
            return [line((f"{location.node} {location.gpu_name}", "strong"), "  ", ("it is not shown any more", "H"))]
        gpu = row.gpu
        holds = gpu_table.holder(row)
        identity: list[Piece | str] = [
            (f"{row.node.name} GPU {row.name}", "strong"),
            gpu.name,
            holds or (f"of {gpu_table.users(row)}" if gpu_table.users(row) != text.NONE else "no user"),
            gpu.uuid,
        ]
        lines = [facts(identity, width), *([] if self.has_plots else self._trends(row, width, height))]
        one = gpu.activity
        counters = _percents(
            SM=one.sm_percent, occupancy=one.occupancy_percent, tensor=one.tensor_percent, DRAM=one.dram_percent
        )
        if one.sm_percent is None:
            counters.append(f"no SM activity: {gpu.unknown.get('sm', 'the driver does not give it')}")
        counters.append("" if gpu.power_w is None else f"{gpu.power_w:.0f} W")
        counters.append("" if gpu.temperature_c is None else f"{gpu.temperature_c} C")
        counters += _percents(FP64=one.fp64_percent, FP32=one.fp32_percent, FP16=one.fp16_percent)
        counters += [column.plain_of(row) for column in _FURTHER if column.says(row)]
        lines.append(facts(counters, width))
        flags = [flag for flag in row.node.flags if flag.uuid == gpu.uuid]
        lines += [line((flag.code, text.mark(flag.code)), "  ", flag.why) for flag in flags]
        if gpu.others_mib or gpu_table.held(row):
            lines.append(line((gpu_table.note(row), "H")))
        return lines

    def page_charts(self, picture: SurveyPicture) -> tuple[Chart, ...]:
        row = gpu_at(picture, self.location)
        return () if row is None else gpu_charts(row)

    def _trends(self, row: GpuRow, width: int, height: int) -> list[Content]:
        assert row.gpu is not None
        subject = Subject(node=row.node.name, gpu=row.gpu.uuid)
        tall = 4 if height >= TALL_FROM else 2
        load = NodeTrend("LOAD", row.gpu.load_percent_5min, gpu_table.by(row), "gpu_load_percent")
        memory = NodeTrend("MEM", row.memory_percent, gpu_table.memory(row), "gpu_memory_percent")
        return self.trends(subject, [load], [memory], width, tall)

    def empty_text(self, picture: SurveyPicture, location: Location) -> str:
        return "no process is on this GPU" if gpu_at(picture, location) is not None else ""


def _percents(**counters: float | None) -> list[str]:
    """Return the known ones of these counters as text."""
    return [f"{name} {text.percent_text(value)}" for name, value in counters.items() if value is not None]


def gpu_at(picture: SurveyPicture, location: Location) -> GpuRow | None:
    """Return the GPU of the location; None: it is not in the picture."""
    node = picture.by_name.get(location.node)
    rows = [] if node is None else gpu_rows([node])
    return next((row for row in rows if row.gpu is not None and row.gpu.uuid == location.gpu), None)
