"""The nodes: LLload's line for each, with bars."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from textual.content import Content

from slurm_share.load import Column, NodeRow, job_row, nodes_of, text
from slurm_share.load import job_columns as job_table
from slurm_share.load import node_columns as table

from .. import tables
from ..history import History
from ..picture import Picture
from ..place import Place
from ..target import Target
from ..widgets.charts import Chart
from ..wire import Point, Subject
from . import targets
from .sums import (
    advice_text,
    flag_lines,
    jobs_here,
    nobody,
    of_job,
    of_nodes,
)
from .table import TableView
from .text import Piece, facts, line

MANY, SUMS_S = 2000, 4.0
"""With more nodes than MANY, the line above the table is updated every SUMS_S seconds."""


class NodesView(TableView[NodeRow]):
    """All nodes, or those of a job or a user."""

    view = "nodes"
    has_charts = True

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._summed: tuple[float, tuple[int, int, Place, str] | None, list[Content]] = (0.0, None, [])

    def make_columns(self) -> tuple[Column[NodeRow], ...]:
        """As TableView has it."""
        return tables.nodes(self.history)

    def key(self, row: NodeRow) -> str:
        """As TableView has it."""
        return row.name

    def rows(self, picture: Picture, place: Place) -> Sequence[NodeRow]:
        """As TableView has it."""
        return nodes_at(picture, place)

    def codes(self, row: NodeRow) -> Sequence[str]:
        """As TableView has it."""
        return row.codes

    def said(self, picture: Picture, place: Place, width: int, height: int) -> list[Content]:
        """The job whose nodes they are, or how full all of them are."""
        if place.job is None:
            return self._sums(picture, width)
        job = job_row(picture, place.job)
        if job is None:
            return [line((f"job {place.job_name or place.job} is not there any more", "H"))]
        lines = [of_job(job, width)]
        if height >= 16 and job.advice is not None:
            lines.append(facts([advice_text(job.advice)], width))
        return lines

    def _sums(self, picture: Picture, width: int) -> list[Content]:
        """Return the line above the table; with very many nodes it is not updated at every survey."""
        rows = self.grid.shown_rows if self.grid.query_text else self.grid.rows
        taken, is_of, known = self._summed
        now_of = (len(rows), width, self.place, self.grid.query_text)
        is_many = len(rows) > MANY and is_of == now_of
        if not (is_many and 0.0 <= picture.survey.taken - taken < SUMS_S):
            known = [of_nodes(rows, width, self.counted("node"))] if rows else []
            self._summed = (picture.survey.taken, now_of, known)
        return known

    def nothing(self, picture: Picture, place: Place) -> str:
        """As TableView has it."""
        job = None if place.job is None else job_row(picture, place.job)
        if job is not None and job.is_waiting:
            return f"job {job.id} {job_table.waits_text(job)}"
        if place.job is not None or place.user:
            return f"no node of {f'job {place.job_name or place.job}' if place.job is not None else place.user} here"
        if picture.survey.everybody:
            return "no node is there to be shown"
        return nobody(picture)

    def about(self, row: NodeRow, width: int, most: int) -> list[Content]:
        """Why it has its letters, and the jobs on it."""
        about: list[Piece | str] = [(row.name, "strong"), table.state(row), f"users {table.users(row)}"]
        if row.node.slurm is not None and row.node.slurm.partitions:
            about.append(f"partition {','.join(row.node.slurm.partitions)}")
        lines = [facts(about, width)]
        jobs = [] if self.picture is None else jobs_here(self.picture, row, width)
        lines += jobs[: max(1, most - 1 - len(row.flags))]
        return lines + flag_lines(row, most - len(lines))

    def charts(self, row: NodeRow, newest: Point | None) -> tuple[Chart, ...]:
        """As TableView has it: load and memory, of the GPUs where there are any."""
        one = row.figures
        cpus, gpus = text.core_text(one)[0], "?" if one.gpus is None else one.gpus
        memory = text.of_text(text.memory_text(one.memory_mib, one.memory_used_mib))
        return (
            Chart(
                "cpu_load_percent",
                f"{text.percent_text(table.cpu_percent(row))} of {cpus} CPUs, load {text.load_text(one.load)}",
            ),
            Chart("gpu_load_percent", f"{text.percent_text(table.gpu_percent(row))} of {gpus} GPUs, {table.by(row)}"),
            Chart("memory_percent", f"{text.percent_text(table.memory_percent(row))}, {memory}"),
            Chart(
                "gpu_memory_percent",
                f"{text.percent_text(table.gpu_memory_percent(row))}, {text.of_text(text.gpu_memory_text(one))}",
            ),
        )[:: 2 if one.gpus == 0 else 1]

    def below(self) -> Place | None:
        """The node."""
        row = self.grid.row
        return None if row is None else replace(self.place, view="node", node=row.name)

    def subject(self) -> Subject | None:
        """The node."""
        row = self.grid.row
        return None if row is None else Subject(node=row.name)

    def targets(self) -> tuple[Target, ...]:
        """The job, where these are the nodes of one; else the one own job on the node."""
        if self.picture is None:
            return ()
        if self.place.job is None:
            picture = self.picture
            return targets.of_rows(picture, [targets.on_node(picture, row.name) for row in self.chosen()])
        row = job_row(self.picture, self.place.job)
        return () if row is None else (targets.of_job(row),)

    def copied(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(row.name for row in self.chosen())


def nodes_at(picture: Picture, place: Place) -> Sequence[NodeRow]:
    """All nodes, or those that the place narrows them to."""
    if place.job is None and not place.user:
        return picture.nodes
    records = [
        job
        for job in picture.survey.jobs
        if (place.job is None or job.job_id == place.job) and (not place.user or job.user == place.user)
    ]
    named = {name for job in records for name in nodes_of(job)}
    return [row for row in picture.nodes if row.name in named or _carries(row, place)]


def _carries(row: NodeRow, place: Place) -> bool:
    snapshot = row.node.snapshot
    if snapshot is None:
        return False
    if place.job is not None:
        return any(load.job == place.job for load in snapshot.jobs)
    return any(load.user == place.user for load in snapshot.users)
