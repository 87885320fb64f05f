"""One node: what it does now and did before, its flags with their reasons, its jobs, its GPUs with the slots."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from textual.content import Content

from slurm_share.core.text import span_text
from slurm_share.load import Column, NodeRow, SlotRow, gpu_rows, job_row, slot_rows
from slurm_share.load import node_columns as node_table
from slurm_share.load import text as load_text_module

from .. import tables
from ..history import Of
from ..picture import Picture
from ..place import Place, Process
from ..target import Target
from ..wire import Subject
from . import targets
from .sums import flag_lines, is_told, jobs_here
from .table import TableView
from .text import (
    Piece,
    facts,
    line,
    side_by_side,
    time_axis,
    trend,
)

TALL_FROM, WIDE_FROM, AXIS_FROM = 30, 70, 14
"""Lines from which sparklines are several lines high, columns from which two stand beside one another, lines from which
times stand below them."""


class NodeView(TableView[SlotRow]):
    """The node of the place."""

    view = "node"

    def make_columns(self) -> tuple[Column[SlotRow], ...]:
        """As TableView has it."""
        return tables.processes(self.history)

    def key(self, row: SlotRow) -> str:
        """As TableView has it."""
        return row.key

    def rows(self, picture: Picture, place: Place) -> Sequence[SlotRow]:
        """Each GPU, below it its slots."""
        node = picture.by_name.get(place.node)
        if node is None or node.node.snapshot is None:
            return []
        return [slot for gpu in gpu_rows([node]) if gpu.gpu is not None for slot in slot_rows(gpu, with_gpu=True)]

    def codes(self, row: SlotRow) -> Sequence[str]:
        """As TableView has it: of its GPU."""
        return row.on.codes

    def said(self, picture: Picture, place: Place, width: int, height: int) -> list[Content]:
        """Who and what, the histories, the flags, the jobs."""
        node = picture.by_name.get(place.node)
        if node is None:
            gone = "it is looked at no more; its job may have ended (Esc: back)" if place.node else "1: choose one"
            return [line((place.node or "no node", "strong"), "  ", (gone, "H"))]
        lines = [_identity(node, picture, width)]
        if node.node.snapshot is None:
            lines.append(line(("silent", "!"), "  ", load_text_module.why_silent(node.node)))
        lines += self._trends(node, width, height)
        room = max(2, (height - len(lines)) // 3)
        flags = flag_lines(node, max(1, room - 1))
        jobs = jobs_here(picture, node, width)
        most = max(1, room - len(flags)) if self.grid.rows else max(1, height - len(lines) - len(flags) - 3)
        if len(jobs) > most:
            jobs = [
                *jobs[: max(1, most - 1)],
                line((f"... and {load_text_module.count_text(len(jobs) - most + 1, 'more job')}", "dim")),
            ]
        return [*lines, *flags, *jobs]

    def _trends(self, node: NodeRow, width: int, height: int) -> list[Content]:
        one, subject = node.figures, Subject(node=node.name)
        wide = (width - 2) // 2 if width >= WIDE_FROM else width
        tall = 3 if height >= TALL_FROM else 1

        def of(label: str, share: float | None, text: str, field: Of) -> list[Content]:
            now = f"{load_text_module.percent_text(share):>5} {text}"
            return trend(label, now, self.history.spark(subject, field, wide), wide, tall)

        cpu = of(
            "CPU",
            node_table.cpu_percent(node),
            f"{load_text_module.load_text(one.load)}/{load_text_module.core_text(one)[0]}",
            "cpu_load_percent",
        )
        text = load_text_module.of_text(load_text_module.memory_text(one.memory_mib, one.memory_used_mib))
        memory = of("MEM", node_table.memory_percent(node), text, "memory_percent")
        axis = time_axis(len(self.history.spark(subject, "cpu_load_percent", wide)), self.history.spark_s, wide)
        if height < AXIS_FROM:
            axis = []
        if one.gpus == 0:
            return (
                [*side_by_side(cpu, memory, wide), *side_by_side(axis, axis, wide)]
                if width >= WIDE_FROM
                else [*cpu, *memory, *axis]
            )
        text = (
            f"{load_text_module.gpu_load_text(one)}/{one.gpus if one.gpus is not None else '?'} {node_table.by(node)}"
        )
        gpu = of("GPU", node_table.gpu_percent(node), text, "gpu_load_percent")
        gpu_memory = of(
            "GMEM",
            node_table.gpu_memory_percent(node),
            load_text_module.of_text(load_text_module.gpu_memory_text(one)),
            "gpu_memory_percent",
        )
        if width < WIDE_FROM:
            return [*cpu, *memory, *gpu, *gpu_memory, *axis]
        return [*side_by_side(cpu, gpu, wide), *side_by_side(memory, gpu_memory, wide), *side_by_side(axis, axis, wide)]

    def nothing(self, picture: Picture, place: Place) -> str:
        """As TableView has it."""
        node = picture.by_name.get(place.node)
        if node is None:
            return ""
        if node.node.snapshot is None:
            return "nobody says what is on it"
        if node.figures.gpus == 0:
            return "this node has no GPU"
        hidden = node.node.snapshot.hidden_gpus
        return (
            f"{load_text_module.count_text(hidden, 'GPU')} that only others use"
            if hidden
            else "no GPU of it says anything"
        )

    def below(self) -> Place | None:
        """The process; of a free slot and of the GPU itself, the GPU."""
        return below(self.grid.row, self.place)

    def subject(self) -> Subject | None:
        """The node."""
        return Subject(node=self.place.node) if self.place.node else None

    def targets(self) -> tuple[Target, ...]:
        """The processes; of a free slot the job that has it."""
        return targets_of(self.chosen(), self.picture)

    def copied(self) -> tuple[str, ...]:
        """Numbers of the processes; of a GPU its name."""
        return copied(self.chosen())


def below(row: SlotRow | None, place: Place) -> Place | None:
    """Where Enter goes from a line of a GPU."""
    if row is None or row.on.gpu is None:
        return None
    on_gpu = replace(place, gpu=row.on.gpu.uuid, gpu_name=f"GPU {row.on.name}", node=row.on.node.name)
    if row.process is None:
        return None if place.view == "gpu" else replace(on_gpu, view="gpu")
    one = row.process.process
    return replace(on_gpu, view="process", process=Process(one.pid, one.start_ticks))


def targets_of(rows: Sequence[SlotRow], picture: Picture | None) -> tuple[Target, ...]:
    """The processes in these lines, each once; and of free slots the jobs that have them."""
    if picture is None:
        return ()
    found = {row.process.process.pid: row.process for row in rows if row.process is not None}
    numbers = dict.fromkeys(row.job.job for row in rows if row.process is None and row.job is not None)
    jobs = [job for number in numbers if (job := job_row(picture, number)) is not None]
    return (*(targets.of_process(process, picture) for process in found.values()), *map(targets.of_job, jobs))


def copied(rows: Sequence[SlotRow]) -> tuple[str, ...]:
    """Numbers of the processes in these lines; of a GPU the driver's name."""
    pids = {str(row.process.process.pid): None for row in rows if row.process is not None}
    return tuple(pids) or tuple(row.on.gpu.uuid for row in rows if row.on.gpu is not None)[:1]


def _identity(node: NodeRow, picture: Picture, width: int) -> Content:
    """Name, state, who, what it is, how old this is."""
    slurm, snapshot = node.node.slurm, node.node.snapshot
    parts: list[Piece | str] = [(load_text_module.named(node.name), "strong"), node_table.state(node)]
    users = node_table.users(node)
    if snapshot is None:
        parts.append(f"of {users}" if users != "?" else "")
    else:
        parts.append(f"of {users}" if users not in ("-", "?") else "nobody's" if is_told(picture) else "")
        models = {gpu.name: sum(one.name == gpu.name for one in snapshot.whole_gpus) for gpu in snapshot.whole_gpus}
        parts += [f"{count} x {model}" for model, count in models.items()]
        if snapshot.hidden_gpus:
            parts.append(f"{load_text_module.count_text(snapshot.hidden_gpus, 'GPU')} of others not shown")
    parts += [
        f"{load_text_module.core_text(node.figures)[0]} CPUs",
        load_text_module.whole_gigabytes(node.figures.memory_mib),
    ]
    if slurm is not None and slurm.partitions:
        parts.append(f"partition {','.join(slurm.partitions)}")
    if snapshot is not None:
        parts.append(f"measured {span_text(max(0.0, picture.survey.taken - snapshot.taken))} before the look")
        if snapshot.driver is not None:
            parts.append(f"driver {snapshot.driver}")
    return facts(parts, width)
