"""The view of jobs, the user's own first. An array is one line, Enter shows its elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace
from textual.content import Content

from slurm_share.core.text import counted
from slurm_share.load import Column, JobRow, flags, job_rows, text
from slurm_share.load import job_columns as table

from .. import tables
from ..history import NODES_WITH_GPUS
from ..location import JobPlace, Location
from ..picture import SurveyPicture
from ..widgets.charts import Chart, Rates
from ..wire import Point, Subject
from . import targets
from .summaries import (
    advice_text,
    advised,
    attention,
    job_headline,
    knows_jobs,
    no_figures,
    no_jobs_text,
    request_lines,
    tasks_text,
    usage_charts,
    usage_sums,
)
from .table import TableView, count_of, fetching
from .text import Piece, facts, line, paragraph


class JobsView(TableView[JobRow]):
    """All jobs, those of a user or a node, or the elements of one array."""

    view = "jobs"
    what = "job"
    has_charts = True

    def make_columns(self) -> tuple[Column[JobRow], ...]:
        return tables.JOBS

    def key(self, row: JobRow) -> str:
        return f"{row.number}{'*' if row.is_array else ''}"

    def rows(self, picture: SurveyPicture, location: Location) -> Sequence[JobRow]:
        if fetching(picture):
            return []
        found = job_rows(picture, arrays=location.job is None)
        if location.job is not None:
            found = [one for one in found if location.job in (one.number, None if one.job is None else one.job.array)]
        if location.node:
            found = [one for one in found if location.node in one.node_names]
        return [one for one in found if location.user in ("", one.user)]

    def needs_attention(self, row: JobRow) -> bool:
        return flags.needs_attention(row.codes)

    def summary(self, picture: SurveyPicture, location: Location, width: int, height: int) -> list[Content]:
        """Return the number of jobs by state, and how many should change."""
        rows = self.grid.shown_rows
        if not rows:
            return []
        states: Counter[str] = Counter()
        for row in rows:
            states.update(row.states)
        of_user = f" of {location.user}" if location.user else "" if picture.survey.everybody else " of yours"
        where = f" on {location.node}" if location.node else ""
        how_many = self.count_text()
        if location.job is not None:
            how_many += f" of array {location.job}"
        parts: list[Piece | str] = [
            (f"{how_many}{of_user}{where}", "strong"),
            ", ".join(f"{count} {state}" for state, count in states.items()),
            *attention(flags.severity(row.codes) for row in rows),
            *advised(row.advice for row in rows),
        ]
        return [facts(parts, width)]

    def count_text(self) -> str:
        """Return the number of jobs, every element of an array counted."""
        shown, total = (
            sum(max(sum(row.states.values()), 1) for row in rows) for rows in (self.grid.shown_rows, self.all_rows)
        )
        return count_of(shown, total, self.what if self.location.job is None else "element")

    def sums(self, rows: Sequence[JobRow], width: int) -> list[Content]:
        return usage_sums(rows, self.count_text(), width)

    def empty_text(self, picture: SurveyPicture, location: Location) -> str:
        if location.job is not None:
            return f"array {location.job} is not there any more"
        if location.user and location.user != picture.survey.user:
            return f"{location.user} has no job running here"
        return f"no job is on {location.node}" if location.node and knows_jobs(picture) else no_jobs_text(picture)

    def details(self, row: JobRow, width: int, most: int) -> list[Content]:
        """Return the job's identity, the advice, and its share of each node; of a waiting job what it asks for."""
        head: list[Piece | str] = [(f"job {table.job_id(row)}", "strong"), row.name, f"of {text.named(row.user)}"]
        if row.is_waiting:
            return [job_headline(row, width), *request_lines(row, width, most - 1)]
        if row.job is not None:
            head += [f"partition {row.job.partition}", table.place(row)]
        if row.share is not None:
            head.append(f"--share-gpu={row.share}")
        if row.triple:
            head.append(f"triple {row.triple}")
        if row.tasks_measured:
            head.append(f"largest task {text.gigabytes(row.peak_mib)}")
        lines = [facts(head, width)]
        if row.advice is not None:
            lines += paragraph(advice_text(row.advice), width, most=max(1, most - 2))
        if row.node_names and not row.measured and self.picture is not None:
            return [*lines, no_figures(self.picture, f"job {table.job_id(row)}", row.node_names)]
        room = most - len(lines)
        shown = row.loads if len(row.loads) <= room else row.loads[: max(0, room - 1)]
        for node, load in shown:
            tasks = str(load.tasks) + ("" if load.slots is None else f"/{load.slots}")
            told: list[Piece | str] = [(node.name, "strong")]
            if not row.has_no_gpu:
                told += [tasks_text(tasks), f"GPU {text.load_text(load.gpu_load)}", text.gigabytes(load.gpu_memory_mib)]
            told += [
                f"work {rate}" if (rate := table.rate([load], with_source=True)) else "",
                f"CPU {text.load_text(load.cpu_cores)}",
                f"memory {text.gigabytes(load.memory_mib)}",
                " ".join(node.codes),
            ]
            lines.append(facts(told, width))
        left = len(row.node_names) - len(shown)
        if left > 0 and room > 0:
            silent = len(row.node_names) - row.measured
            said = f"... and {counted(left, 'more node')}" if shown else counted(left, "node")
            lines.append(line((said + (f", {silent} of them silent" if silent else ""), "dim")))
        return lines

    def charts(self, row: JobRow, newest: Point | None) -> tuple[Chart, ...]:
        if not row.node_names or not row.measured:
            return ()
        rate = table.rate([load for _, load in row.loads], with_source=True)
        return usage_charts(newest, "GPUs that it holds", has_gpu=not row.has_no_gpu, rate=rate)

    def rates(self, row: JobRow) -> Rates:
        return () if row.is_array else self.history.work.of_job(row.number)

    def location_of(self, row: JobRow) -> Location:
        name = f"{table.job_id(row) if row.is_array else row.id} {row.name}".strip()
        return replace(self.location, view="jobs" if row.is_array else "nodes", job=row.number, job_name=name)

    def subject_of(self, row: JobRow) -> Subject:
        """Return the job. Arrays, and jobs of a very large cluster, have no history: return the job's node, or its user
        if it has several nodes."""
        if not row.is_array and self.picture is not None and len(self.picture.nodes) <= NODES_WITH_GPUS:
            return Subject(job=row.number)
        return Subject(node=row.node_names[0]) if len(row.node_names) == 1 else Subject(user=row.user)

    def node_name(self) -> str:
        row = self.grid.row
        return row.node_names[0] if row is not None and len(row.node_names) == 1 else ""

    def targets_of(self, rows: Sequence[JobRow], picture: SurveyPicture) -> tuple[JobPlace, ...]:
        return tuple(map(targets.job_target, rows))

    def copy_lines(self) -> tuple[str, ...]:
        """Return the job ids, as scancel takes them."""
        return tuple(row.id for row in self.selected_rows() if row.id != text.NONE)
