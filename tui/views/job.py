"""The page of one job: what it asked for and had, its limits, why it waits, and its whole life in charts."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from slurm_share.core.text import span_text
from slurm_share.load import JobRow, NodeRow, job_columns, job_request, job_row, text

from ..history import NODES_WITH_GPUS, FigureHistory
from ..location import Location
from ..picture import SurveyPicture
from ..widgets.charts import CHART_LEAST, CHART_NARROW, Chart, Shown, known_charts
from ..wire import Point, ReadLife, ReadRecorded, Subject
from .nodes import NodesView
from .summaries import advice_text, job_headline, usage_charts
from .table import ROWS_LEAST
from .text import labelled, line, paragraph

ASK_S = 30.0
"""Seconds between two questions about the job's life while the page is shown."""


class JobView(NodesView):
    """The job of the location, and its nodes."""

    view = "job"
    what = "node"

    def __init__(self, history: FigureHistory) -> None:
        super().__init__(history)
        self._asked: tuple[int, float] = (0, 0.0)
        """The job that was asked about last, and when."""
        self._life: Shown | None = None

    @property
    def is_page(self) -> bool:
        return True

    def draw(self, picture: SurveyPicture, location: Location) -> None:
        row = None if location.job is None else job_row(picture, location.job)
        if row is not None and not row.is_waiting:
            self._ask(row, picture)
        super().draw(picture, location)

    def _ask(self, row: JobRow, picture: SurveyPicture) -> None:
        """Ask for the job's life: of a recording once, of a live cluster again and again."""
        job, at = self._asked
        taken, subject = picture.survey.taken, Subject(job=row.number)
        if picture.is_replay:
            if not self.history.has_recorded(subject) and job != row.number:
                self._asked = (row.number, taken)
                self.tell(ReadRecorded(subject))
        elif picture.survey.source != "demo" and (job != row.number or not 0 <= taken - at < ASK_S):
            self._asked = (row.number, taken)
            self.tell(
                ReadLife(
                    job=row.number, nodes=row.node_names, began=row.starts, cpus=row.cpus, gpus=row.gpus,
                    memory_mib=row.memory_requested.mib,
                )
            )  # fmt: skip

    def draw_summary(self) -> None:
        """Read the life first: the lines above the table take what the charts leave."""
        self._life = None
        if self.picture is not None and self.location.job is not None:
            row = job_row(self.picture, self.location.job)
            self._life = None if row is None or row.is_waiting else self._whole_life(row, self.picture)
        super().draw_summary()

    def summary(self, picture: SurveyPicture, location: Location, width: int, height: int) -> list[Content]:
        """Return the job's facts, the most important first."""
        row = None if location.job is None else job_row(picture, location.job)
        if row is None:
            gone = "is not in the survey any more: it has ended, or it is not yours (Esc: back)"
            number = location.job_name.partition(" ")[0]
            number = str(location.job) if not number or "[" in number else number
            return [
                *paragraph(f"job {location.job_name or location.job} {gone}", width, "H", most=3),
                line(f"slurm-share report {number} tells what it used"),
            ]
        found = [job_headline(row, width)]
        for label, facts in described(row):
            found += labelled(label, facts, width)
        room = height - (0 if row.is_waiting else 2) - (1 + CHART_LEAST if self._life is not None else 0)
        return found[: max(ROWS_LEAST, room)]

    def draw_details(self) -> None:
        """Draw the charts in the lines that the table leaves."""
        if not self.is_mounted:
            return
        width, height = self.room
        left = height - len(self.head.lines)
        rows = min(max(self.grid.total, 1) + 1, max(2, left // 3))
        has_room = self._life is not None and self._wants_charts and left - rows > CHART_LEAST
        shown = self._life if has_room and width >= CHART_NARROW else None
        self.pane.show([])
        self.grid.styles.height = self.left.styles.height = self.middle.styles.height = rows if shown else "1fr"
        self.right_pane.show(None)
        self.below_pane.styles.height = "1fr"
        self.below_pane.show(shown)

    def _whole_life(self, row: JobRow, picture: SurveyPicture) -> Shown | None:
        """Return the charts of all that is known of the job: of a recording all of it, else the agents' records or
        Prometheus, else what this dashboard has seen."""
        if len(picture.nodes) > NODES_WITH_GPUS and self.history.life_of(row.number) is None:
            return None
        points, by = self._points(row, picture)
        if not points:
            return None
        began, now = row.starts, picture.survey.taken
        first, end = points[0].taken, max(points[-1].taken, now)
        title = f"since {_when(first, now)}, {by}"
        if began is not None and first - began > max(60.0, 0.02 * (end - began)):
            title += f"; it began {span_text(first - began)} before"
        charts = self._charts_of(row, points[-1], is_own=self._is_own(row, picture))
        return known_charts(Shown(charts, points, end, f"job {row.id}", span_s=end - first + 1.0, title=title))

    def _is_own(self, row: JobRow, picture: SurveyPicture) -> bool:
        life = self.history.life_of(row.number)
        return picture.is_replay or life is None or not life.points

    def _points(self, row: JobRow, picture: SurveyPicture) -> tuple[tuple[Point, ...], str]:
        subject = Subject(job=row.number)
        if not self._is_own(row, picture):
            life = self.history.life_of(row.number)
            assert life is not None
            return life.points, f"from {life.by}"
        points = self.history.points(subject, None)
        if picture.is_replay:
            return points, "from this recording"
        life = self.history.life_of(row.number)
        why = f" ({life.problem})" if life is not None and life.problem else ""
        return points, f"seen by this dashboard{why}"

    def _charts_of(self, row: JobRow, newest: Point, *, is_own: bool) -> tuple[Chart, ...]:
        if is_own:
            return usage_charts(newest, "GPUs that it holds", has_gpu=not row.has_no_gpu)
        host = (
            Chart("cpu_load_percent", f"{text.percent_text(newest.cpu_load_percent)} of its CPUs"),
            Chart("memory_percent", f"{text.percent_text(newest.memory_percent)} of its memory"),
        )
        if row.has_no_gpu:
            return host
        return (
            Chart("gpu_load_percent", f"{text.percent_text(newest.gpu_load_percent)} of its GPUs"),
            Chart("gpu_memory_percent", f"{text.percent_text(newest.gpu_memory_percent)} of its GPUs' memory"),
            *host,
        )

    def rows(self, picture: SurveyPicture, location: Location) -> Sequence[NodeRow]:
        return [] if location.job is None else super().rows(picture, location)


def described(row: JobRow) -> list[tuple[str, tuple[str, ...]]]:
    """Return the facts of a job, each with a label; of a waiting one what it waits for."""
    job = row.job
    if row.is_waiting or job is None:
        return job_request.facts(row)
    asked = (
        job_request.count(job.node_count, "node"),
        *job_request.resources(job),
        f"time limit {job_columns.limit(row)}",
    )
    memory = text.summed_memory(row.memory_requested)
    had = (
        job_columns.place(row),
        job_request.count(row.cpus, "CPU"),
        job_request.count(row.gpus, "GPU"),
        f"{memory} memory",
    )
    left = job_columns.time_left(row)
    waited = "" if job.submitted is None or job.start is None else text.time_text(max(0, job.start - job.submitted))
    time = (
        "running for " + ("?" if row.runs_s is None else text.time_text(row.runs_s)),
        "no time limit" if left == job_columns.UNLIMITED else f"{left} left of {job_columns.limit(row)}",
        "" if row.starts is None else f"started {text.moment_text(row.starts, row.now)}",
        f"waited {waited}" if waited else "",
    )
    uses = [
        f"CPU {text.summed_load(row.cpu)} of {text.number(row.cpus)} ({text.percent_text(row.cpu_percent)})",
        f"memory {text.summed_memory(row.memory)} of {memory} ({text.percent_text(row.memory_percent)})",
    ]
    if not row.has_no_gpu:
        uses.append(f"GPU {text.summed_load(row.gpu_load)} of {text.number(row.gpus)}")
        uses.append(f"GPU memory {text.summed_memory(row.gpu_memory)}")
        uses.append(f"{text.summed_count(row.idle_gpus)} GPUs idle")
        uses.append(f"tasks {job_columns.tasks(row)}")
    if rate := job_columns.rate([load for _, load in row.loads], with_source=True):
        uses.append(f"work {rate}")
    if row.kills.value:
        uses.append(f"{row.kills.value:.0f} processes ended out of memory")
    found = [
        ("time", time),
        ("uses", tuple(uses)),
        ("asked for", asked),
        ("has", had),
        ("shares", job_request.shares(row)),
        ("priority", (job_request.priority(job), *job_request.places(job))),
        ("advice", (advice_text(row.advice).removeprefix("advice: "),) if row.advice is not None else ()),
        ("depends", (job.dependency,)),
        ("features", (job.features,)),
    ]
    return [(label, known) for label, facts in found if (known := tuple(filter(None, facts)))]


def _when(at: float, now: float) -> str:
    return text.moment_text(at, now)
