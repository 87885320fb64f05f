"""The view of all GPUs: users, slots, memory and load."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from textual.content import Content

from slurm_share.load import Column, GpuLoad, GpuRow, JobRow, flags, gpu_rows, percent, slot_rows, text
from slurm_share.load import gpu_columns as table

from .. import tables
from ..location import JobPlace, Location
from ..picture import SurveyPicture
from ..widgets.charts import Chart
from ..wire import Point, Subject
from . import targets
from .nodes import nodes_at
from .summaries import attention, gpu_charts, left_idle
from .table import TableView, count_of
from .text import Piece, facts, line, small_table

SLOT_COLUMNS = ("slot", "user", "task", "sm_time", "mem", "memory_used", "cap", "job", "name", "pid", "peak", "memory")


class GpusView(TableView[GpuRow]):
    """All GPUs, or those of a node, a job or a user."""

    view = "gpus"
    what = "GPU"
    has_charts = True

    def make_columns(self) -> tuple[Column[GpuRow], ...]:
        return tables.gpus(self.history)

    def key(self, row: GpuRow) -> str:
        return row.key

    def rows(self, picture: SurveyPicture, location: Location) -> Sequence[GpuRow]:
        nodes = nodes_at(picture, location)
        if location.node:
            nodes = [row for row in picture.nodes if row.name == location.node]
        jobs = () if location.job is None else (location.job,)
        return gpu_rows(nodes, users=(location.user,) if location.user else (), jobs=jobs)

    def needs_attention(self, row: GpuRow) -> bool:
        return flags.needs_attention(row.codes)

    def count_text(self) -> str:
        """Return the number of GPUs that are shown, and of nodes whose GPUs are not known. A GPU in MIG mode is no GPU
        of its own: its instances follow."""
        gpus, unread = _count(self.grid.shown_rows)
        all_gpus, all_unread = _count(self.all_rows)
        nodes = f", {count_of(unread, all_unread, 'node')} not read" if all_unread else ""
        return count_of(gpus, all_gpus, self.what) + nodes

    def summary(self, picture: SurveyPicture, location: Location, width: int, height: int) -> list[Content]:
        """Return the number of GPUs, their load and memory, and how the load is measured."""
        rows = [row for row in self.grid.shown_rows if row.gpu is not None]
        gpus = [row.gpu for row in rows if row.gpu is not None and not row.gpu.mig_parent]
        if not self.grid.shown_rows:
            return []
        known = [gpu.load_percent_5min for gpu in gpus if gpu.load_percent_5min is not None]
        sizes = [(gpu.memory_used_mib, gpu.memory_total_mib) for gpu in gpus]
        memory = sum(used for used, total in sizes if used is not None and total is not None)
        total = sum(total for used, total in sizes if used is not None and total is not None)
        load = f"load {sum(known) / 100:.2f} ({text.percent_text(percent(sum(known), 100.0 * len(known)))})"
        has_util = any(table.by(row) == "util" for row in rows)
        parts: list[Piece | str] = [
            (self.count_text(), "strong"),
            *attention((flags.severity(row.codes) for row in rows), has_severities=True),
            left_idle(sum("iL" in row.codes for row in rows)),
            load if known else "",
            f"memory {text.whole_gigabytes(memory)} of {text.whole_gigabytes(total)}" if total else "",
            "sm: SM activity; util: utilisation, an upper bound of it" if has_util else "",
        ]
        return [facts(parts, width)]

    def empty_text(self, picture: SurveyPicture, location: Location) -> str:
        where = f" on {location.node}" if location.node else ""
        return f"there is no GPU to show{where}"

    def details(self, row: GpuRow, width: int, most: int) -> list[Content]:
        """Return the slots of the GPU with the task in each."""
        if row.gpu is None and row.node.node.snapshot is None:
            return [facts([f"no figures of the GPUs of {row.node.name}: {text.why_silent(row.node.node)}"], width)]
        if row.gpu is None:
            return [facts([(row.node.name, "strong"), table.note(row)], width)]
        found = slot_rows(row)
        head: list[Piece | str] = [
            (f"{row.node.name} GPU {row.name}", "strong"),
            row.gpu.name,
            "" if found else "no process" if row.knows_tasks else _why_unknown(row, row.gpu),
            table.note(row),
        ]
        lines = [facts(head, width)]
        if not found:
            return lines
        shown = found if len(found) + 2 <= most else found[: max(0, most - 3)]
        lines += small_table(tables.PROCESSES, SLOT_COLUMNS, shown, width) if shown else []
        left = len(found) - len(shown)
        return [*lines, line((f"... and {left} more (Enter)", "dim"))] if left else lines

    def charts(self, row: GpuRow, newest: Point | None) -> tuple[Chart, ...]:
        return gpu_charts(row)

    def location_of(self, row: GpuRow) -> Location:
        """Return the GPU; for a node whose GPUs are unknown, the node."""
        if row.gpu is None:
            return replace(self.location, view="node", node=row.node.name)
        return replace(self.location, view="gpu", node=row.node.name, gpu=row.gpu.uuid, gpu_name=f"GPU {row.name}")

    def subject_of(self, row: GpuRow) -> Subject:
        return Subject(node=row.node.name, gpu="" if row.gpu is None else row.gpu.uuid)

    def targets_of(self, rows: Sequence[GpuRow], picture: SurveyPicture) -> tuple[JobPlace, ...]:
        """Return the user's own job on the GPU, if it is the only one."""

        def jobs_on(row: GpuRow) -> list[JobRow]:
            numbers = {*(row.jobs or ()), *(one.job for one in row.holders)}
            return [job for job in targets.jobs_on_node(picture, row.node.name) if job.number in numbers]

        return targets.single_job_targets(map(jobs_on, rows))

    def copy_lines(self) -> tuple[str, ...]:
        return tuple(row.gpu.uuid for row in self.selected_rows() if row.gpu is not None)


def _count(rows: Sequence[GpuRow]) -> tuple[int, int]:
    """Return (GPUs, nodes whose GPUs are not known)."""
    gpus = sum(row.gpu is not None and not row.gpu.mig_parent for row in rows)
    return gpus, sum(row.gpu is None for row in rows)


def _why_unknown(row: GpuRow, gpu: GpuLoad) -> str:
    """Return why the processes on a GPU are not known."""
    snapshot = row.node.node.snapshot
    why = "" if snapshot is None else snapshot.unknown.get("processes", "")
    return f"processes not known: {why or gpu.unknown.get('clients', 'not reported')}"
