"""The view of nodes: a line for each, as llload prints it, with bars."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from textual.content import Content

from slurm_share.load import Column, JobRow, NodeRow, SeverityOrder, job_row, nodes_of, text
from slurm_share.load import job_columns as job_table
from slurm_share.load import node_columns as table

from .. import tables
from ..history import NODES_WITH_GPUS, FigureHistory
from ..location import JobPlace, Location, ViewName
from ..picture import SurveyPicture
from ..widgets.charts import Chart, Rates
from ..wire import Point, Subject
from . import targets
from .summaries import (
    advice_text,
    flag_lines,
    job_headline,
    job_summary,
    jobs_on_node,
    no_jobs_text,
    node_charts,
    nodes_summary,
    request_lines,
    times_line,
    usage_charts,
)
from .table import ROWS_LEAST, TableView
from .text import Piece, facts, line, paragraph

MANY, SUMS_S = 2000, 4.0
"""With more nodes than MANY, the summary is updated every SUMS_S seconds."""


class NodesView(TableView[NodeRow]):
    """All nodes, or those of a job or a user."""

    view: ViewName = "nodes"
    what = "node"
    has_charts = True

    _totals: tuple[float, tuple[int, int, Location, str] | None, list[Content]] = (0.0, None, [])
    """Time, circumstances and lines of the last totals."""

    def make_columns(self) -> tuple[Column[NodeRow], ...]:
        return tables.nodes(self.history)

    def key(self, row: NodeRow) -> str:
        return row.name

    def __init__(self, history: FigureHistory) -> None:
        super().__init__(history)
        self._order, self._ordered_at = SeverityOrder(), self.location

    def draw(self, picture: SurveyPicture, location: Location) -> None:
        job = None if location.job is None else job_row(picture, location.job)
        self.grid.has_head = job is None or not job.is_waiting
        super().draw(picture, location)

    def rows(self, picture: SurveyPicture, location: Location) -> Sequence[NodeRow]:
        """Return the nodes, the most severe first. While the cursor is on a row that the user chose, and so that no row
        moves under it, they keep their order."""
        is_held = self.grid.is_placed and location == self._ordered_at
        self._ordered_at = location
        return self._order.sorted(nodes_at(picture, location), picture.survey.taken, is_held=is_held)

    def needs_attention(self, row: NodeRow) -> bool:
        return row.needs_attention

    def summary(self, picture: SurveyPicture, location: Location, width: int, height: int) -> list[Content]:
        """Return the job whose nodes these are, of a waiting one what it asks for; or the totals of the nodes."""
        if location.job is None:
            return self._all_of(picture, width)
        job = job_row(picture, location.job)
        if job is None:
            return [line((f"job {location.job_name or location.job} is not there any more", "H"))]
        if job.is_waiting:
            return [job_headline(job, width), *request_lines(job, width)]
        lines = [job_summary(job, width), times_line(job, width)]
        if job.advice is not None:
            lines += paragraph(advice_text(job.advice), width, most=max(1, height - ROWS_LEAST - len(lines)))
        return lines

    def _all_of(self, picture: SurveyPicture, width: int) -> list[Content]:
        """Return the totals of the nodes; for very many they are kept for SUMS_S."""
        rows = self.grid.shown_rows
        taken, is_of, known = self._totals
        now_of = (len(rows), width, self.location, self.grid.query_text)
        is_many = len(rows) > MANY and is_of == now_of
        if not (is_many and 0.0 <= picture.survey.taken - taken < SUMS_S):
            known = [nodes_summary(rows, width, self.count_text())] if rows else []
            self._totals = (picture.survey.taken, now_of, known)
        return known

    def empty_text(self, picture: SurveyPicture, location: Location) -> str:
        job = None if location.job is None else job_row(picture, location.job)
        if job is not None and job.is_waiting:
            return f"job {job.id} has no nodes yet"
        if location.job is not None or location.user:
            what = location.user if location.job is None else f"job {location.job_name or location.job}"
            return f"no node of {what} here"
        if picture.survey.everybody:
            return "there is no node to show"
        return no_jobs_text(picture)

    def details(self, row: NodeRow, width: int, most: int) -> list[Content]:
        """Return the node's state, its jobs and the reasons of its flags."""
        about: list[Piece | str] = [(row.name, "strong"), table.state(row), f"users {table.users(row)}"]
        if row.node.slurm is not None and row.node.slurm.partitions:
            about.append(f"partition {','.join(row.node.slurm.partitions)}")
        lines = [facts(about, width)]
        jobs = [] if self.picture is None else jobs_on_node(self.picture, row, width)
        if row.node.snapshot is None:
            why = f"no figures of {row.name}: {text.why_silent(row.node)}"
            told = [line(("n!", text.mark("n!")), f"  {why}") if "n!" in row.codes else line(why)]
            return [*lines, *jobs[: max(1, most - 2)], *told]
        lines += jobs[: max(1, most - 1 - len(row.flags))]
        return lines + flag_lines(row, most - len(lines))

    def charts(self, row: NodeRow, newest: Point | None) -> tuple[Chart, ...]:
        """Return load and memory of the node, and of its GPUs if it has any; on the page of a job those of the job."""
        job = self._job
        if job is not None:
            rate = job_table.rate([load for _, load in job.loads], with_source=True)
            return usage_charts(newest, "GPUs that it holds", has_gpu=not job.has_no_gpu, rate=rate)
        return node_charts(row)

    def rates(self, row: NodeRow) -> Rates:
        """Return the rate of the tasks of the job whose page this is."""
        return () if self._job is None else self.history.work.of_job(self._job.number)

    @property
    def is_page(self) -> bool:
        return self.location.job is not None

    @property
    def _job(self) -> JobRow | None:
        """Return the running job whose page this is; None: this is no job's page."""
        if self.location.job is None or self.picture is None or len(self.picture.nodes) > NODES_WITH_GPUS:
            return None
        job = job_row(self.picture, self.location.job)
        return None if job is None or job.is_waiting else job

    def charted_subject(self) -> Subject | None:
        """Return the job whose page this is, else the node under the cursor."""
        job = self._job
        return self.subject() if job is None else Subject(job=job.number)

    def location_of(self, row: NodeRow) -> Location:
        return replace(self.location, view="node", node=row.name)

    def subject_of(self, row: NodeRow) -> Subject:
        return Subject(node=row.name)

    def targets_of(self, rows: Sequence[NodeRow], picture: SurveyPicture) -> tuple[JobPlace, ...]:
        """Return the job whose nodes these are; else the user's own job on the node, if it is the only one."""
        if self.location.job is None:
            return targets.single_job_targets([targets.jobs_on_node(picture, row.name) for row in rows])
        job = job_row(picture, self.location.job)
        return () if job is None else (targets.job_target(job),)

    def copy_lines(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.selected_rows())


def nodes_at(picture: SurveyPicture, location: Location) -> Sequence[NodeRow]:
    """Return the nodes of a location's job or user, or all."""
    if location.job is None and not location.user:
        return picture.nodes
    named = {
        name
        for job in picture.survey.jobs
        if location.job in (None, job.job_id) and location.user in ("", job.user)
        for name in nodes_of(job)
    }
    return [row for row in picture.nodes if row.name in named or _carries(row, location)]


def _carries(row: NodeRow, location: Location) -> bool:
    snapshot = row.node.snapshot
    if snapshot is None:
        return False
    if location.job is not None:
        return any(load.job == location.job for load in snapshot.jobs)
    return any(load.user == location.user for load in snapshot.users)
