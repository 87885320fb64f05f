"""The view of users: all of them for an operator, else the user's own line."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from textual.content import Content

from slurm_share.core.text import counted
from slurm_share.load import Column, UserRow, flags, job_rows, text, user_rows

from .. import tables
from ..location import JobPlace, Location
from ..picture import SurveyPicture
from ..widgets.charts import Chart
from ..wire import Point, Subject
from . import targets
from .summaries import advised, attention, no_figures, no_jobs_text, usage_charts, usage_sums
from .table import TableView, fetching
from .text import Piece, facts, line, small_table

JOB_COLUMNS = ("job", "name", "state", "tasks", "gpus_idle", "gpu", "gmem", "cpu", "nppn", "mem", "time", "nodelist")


class UsersView(TableView[UserRow]):
    """The users in the picture."""

    view = "users"
    what = "user"
    has_charts = True

    def make_columns(self) -> tuple[Column[UserRow], ...]:
        return tables.users(self.history)

    def key(self, row: UserRow) -> str:
        return row.user

    def rows(self, picture: SurveyPicture, location: Location) -> Sequence[UserRow]:
        return [] if fetching(picture) else user_rows(picture)

    def needs_attention(self, row: UserRow) -> bool:
        return flags.needs_attention(row.codes)

    def summary(self, picture: SurveyPicture, location: Location, width: int, height: int) -> list[Content]:
        """Return the number of users and jobs, or whose figures these are."""
        survey, rows = picture.survey, self.grid.shown_rows
        if not survey.everybody and self.grid.count == len(self.all_rows):
            return [line((f"{survey.user}, your own jobs and nodes", "strong"))]
        # As the column JOBS: 3+12.
        jobs, waiting = sum(row.running for row in rows), sum(row.waiting for row in rows)
        parts: list[Piece | str] = [
            (self.count_text(), "strong"),
            *attention(flags.severity(row.codes) for row in rows),
        ]
        parts += [f"{counted(jobs, 'job')} with nodes", f"{waiting} waiting" if waiting else ""]
        return [facts([*parts, *advised(one for row in rows for one in row.advice)], width)]

    def sums(self, rows: Sequence[UserRow], width: int) -> list[Content]:
        return usage_sums(rows, self.count_text(), width)

    def empty_text(self, picture: SurveyPicture, location: Location) -> str:
        return "no user has a job or a process on a GPU here" if picture.survey.everybody else no_jobs_text(picture)

    def details(self, row: UserRow, width: int, most: int) -> list[Content]:
        jobs = [] if self.picture is None else job_rows(self.picture, user=row.user)
        if not jobs:
            why = "no job" if self.picture is None else no_jobs_text(self.picture)
            return [facts([(text.named(row.user), "strong"), why], width)]
        silent = []
        if row.node_names and not row.measured and self.picture is not None:
            silent, most = [no_figures(self.picture, f"user {text.named(row.user)}", row.node_names)], most - 1
        shown = jobs if len(jobs) + 2 <= most else jobs[: max(1, most - 3)]
        head = facts([(f"jobs of {text.named(row.user)}", "strong")], width)
        lines = [head, *silent, *small_table(tables.JOBS, JOB_COLUMNS, shown, width)]
        left = len(jobs) - len(shown)
        return [*lines, line((f"... and {counted(left, 'more job')} (Enter)", "dim"))] if left else lines

    def charts(self, row: UserRow, newest: Point | None) -> tuple[Chart, ...]:
        return usage_charts(newest, "GPUs of the user's jobs", has_gpu=not row.has_no_gpu)

    def location_of(self, row: UserRow) -> Location | None:
        """Return the user's jobs; processes without a known user have no list."""
        return replace(self.location, view="jobs", user=row.user) if row.user else None

    def subject_of(self, row: UserRow) -> Subject:
        return Subject(user=row.user)

    def targets_of(self, rows: Sequence[UserRow], picture: SurveyPicture) -> tuple[JobPlace, ...]:
        """Return the user's own job, if it is the only one."""
        return targets.single_job_targets([job_rows(picture, user=row.user) for row in rows])

    def copy_lines(self) -> tuple[str, ...]:
        return tuple(row.user for row in self.selected_rows())
