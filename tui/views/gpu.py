"""One GPU: its load and memory, what its parts do, and its slots with the processes in them."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from slurm_share.load import Column, GpuRow, SlotRow, columns, gpu_rows, slot_rows, text
from slurm_share.load import gpu_columns as gpu_table

from .. import tables
from ..picture import Picture
from ..place import Place
from ..target import Target
from ..wire import Subject
from .node import below, copied, targets_of
from .table import TableView
from .text import (
    Piece,
    facts,
    line,
    side_by_side,
    time_axis,
    trend,
)

TALL_FROM = 24
_FURTHER = tuple(
    column for column in columns.shown_in("plain", columns.GPUS) if column.id not in ("load", "memory_used", "name")
)
"""Columns of a GPU that have no place of their own on this page."""


class GpuView(TableView[SlotRow]):
    """The GPU of the place."""

    view = "gpu"

    def make_columns(self) -> tuple[Column[SlotRow], ...]:
        """As TableView has it."""
        return tables.processes(self.history)[1:]

    def key(self, row: SlotRow) -> str:
        """As TableView has it."""
        return row.key

    def rows(self, picture: Picture, place: Place) -> Sequence[SlotRow]:
        """As TableView has it."""
        row = gpu_at(picture, place)
        return [] if row is None else slot_rows(row)

    def said(self, picture: Picture, place: Place, width: int, height: int) -> list[Content]:
        """What it is and does."""
        row = gpu_at(picture, place)
        if row is None or row.gpu is None:
            return [line((f"{place.node} {place.gpu_name}", "strong"), "  ", ("it is not shown any more", "H"))]
        gpu = row.gpu
        identity: list[Piece | str] = [
            (f"{row.node.name} GPU {row.name}", "strong"),
            gpu.name,
            f"of {gpu_table.users(row)}" if gpu_table.users(row) != text.NONE else "nobody is on it",
            gpu.uuid,
        ]
        lines = [facts(identity, width), *self._trends(row, width, height)]
        activity = gpu.activity
        counters: list[Piece | str] = [
            f"{name} {text.percent_text(value)}"
            for name, value in (
                ("SM", activity.sm_percent), ("occupancy", activity.occupancy_percent),
                ("tensor", activity.tensor_percent), ("DRAM", activity.dram_percent),
            )
            if value is not None
        ]  # fmt: skip
        if activity.sm_percent is None:
            counters.append(f"no SM activity: {gpu.unknown.get('sm', 'the driver does not give it')}")
        counters.append("" if gpu.power_w is None else f"{gpu.power_w:.0f} W")
        counters.append("" if gpu.temperature_c is None else f"{gpu.temperature_c} C")
        counters += [
            f"{name} {text.percent_text(value)}"
            for name, value in (
                ("FP64", activity.fp64_percent),
                ("FP32", activity.fp32_percent),
                ("FP16", activity.fp16_percent),
            )
            if value is not None
        ]
        counters += [column.plain_of(row) for column in _FURTHER if column.says(row)]
        lines.append(facts(counters, width))
        flags = [flag for flag in row.node.flags if flag.uuid == gpu.uuid]
        lines += [line((flag.code, flag.letter), "  ", flag.why) for flag in flags]
        if gpu.others_mib or gpu_table.held(row):
            lines.append(line((gpu_table.note(row), "H")))
        return lines

    def _trends(self, row: GpuRow, width: int, height: int) -> list[Content]:
        assert row.gpu is not None
        subject = Subject(node=row.node.name, gpu=row.gpu.uuid)
        tall = 4 if height >= TALL_FROM else 2
        wide = (width - 2) // 2 if width >= 70 else width
        load = f"{text.percent_text(row.gpu.load_percent_5min):>5} {gpu_table.by(row)}"
        memory = f"{text.percent_text(row.memory_percent):>5} {gpu_table.memory(row)}"
        first = trend("LOAD", load, self.history.spark(subject, "gpu_load_percent", wide), wide, tall)
        second = trend("MEM", memory, self.history.spark(subject, "gpu_memory_percent", wide), wide, tall)
        axis = time_axis(len(self.history.spark(subject, "gpu_load_percent", wide)), self.history.spark_s, wide)
        if width < 70:
            return [*first, *second, *axis]
        return [*side_by_side(first, second, wide), *side_by_side(axis, axis, wide)]

    def nothing(self, picture: Picture, place: Place) -> str:
        """As TableView has it."""
        return "no process is on this GPU" if gpu_at(picture, place) is not None else ""

    def below(self) -> Place | None:
        """The process."""
        return below(self.grid.row, self.place)

    def subject(self) -> Subject | None:
        """The GPU."""
        return Subject(node=self.place.node, gpu=self.place.gpu) if self.place.gpu else None

    def targets(self) -> tuple[Target, ...]:
        """The processes; of a free slot the job that has it."""
        return targets_of(self.chosen(), self.picture)

    def copied(self) -> tuple[str, ...]:
        """Numbers of the processes."""
        return copied(self.chosen())


def gpu_at(picture: Picture, place: Place) -> GpuRow | None:
    """The GPU of the place; None: it is not in the picture."""
    node = picture.by_name.get(place.node)
    if node is None:
        return None
    return next((row for row in gpu_rows([node]) if row.gpu is not None and row.gpu.uuid == place.gpu), None)
