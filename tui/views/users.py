"""The users: for an operator all of them, for a user the own line first."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from textual.content import Content

from slurm_share.load import Column, UserRow, elements_of, job_rows, text, user_rows
from slurm_share.load import user_columns as table

from .. import tables
from ..picture import Picture
from ..place import Place
from ..target import Target
from ..widgets.charts import Chart
from ..wire import Point, Subject
from . import targets
from .sums import carried_charts, nobody
from .table import TableView, fetching
from .text import Piece, facts, line, small_table

JOB_COLUMNS = ("job", "name", "state", "tasks", "gpus_idle", "gpu", "gmem", "cpu", "nppn", "mem", "time", "nodelist")


class UsersView(TableView[UserRow]):
    """All users of the picture."""

    view = "users"
    has_charts = True

    def make_columns(self) -> tuple[Column[UserRow], ...]:
        """As TableView has it."""
        return tables.users(self.history)

    def key(self, row: UserRow) -> str:
        """As TableView has it."""
        return row.user

    def rows(self, picture: Picture, place: Place) -> Sequence[UserRow]:
        """As TableView has it."""
        return [] if fetching(picture) else user_rows(picture)

    def codes(self, row: UserRow) -> Sequence[str]:
        """As TableView has it."""
        return row.codes

    def said(self, picture: Picture, place: Place, width: int, height: int) -> list[Content]:
        """Whose figures these are."""
        survey = picture.survey
        if self.grid.query_text and self.grid.count < self.grid.total:
            return [line((self.counted("user"), "strong"))]
        if not survey.everybody:
            return [line((f"{survey.user}, your own jobs and nodes", "strong"))]
        users = {job.user for job in survey.jobs} | {
            load.user for row in picture.nodes if row.node.snapshot is not None for load in row.node.snapshot.users
        }
        jobs = sum(bool(job.nodes) for job in survey.jobs)
        waiting = sum(elements_of(job) for job in survey.jobs if not job.nodes)
        parts: list[Piece | str] = [
            (text.count_text(len(users), "user"), "strong"),
            text.count_text(jobs, "running job"),
        ]
        return [facts([*parts, f"{waiting} waiting" if waiting else ""], width)]

    def nothing(self, picture: Picture, place: Place) -> str:
        """As TableView has it."""
        return "nobody has a job or a process on a GPU here" if picture.survey.everybody else nobody(picture)

    def about(self, row: UserRow, width: int, most: int) -> list[Content]:
        """The user's jobs."""
        jobs = [] if self.picture is None else job_rows(self.picture, user=row.user)
        if not jobs:
            return [
                facts(
                    [(text.named(row.user), "strong"), "no job" if self.picture is None else nobody(self.picture)],
                    width,
                )
            ]
        columns = tables.JOBS
        shown = jobs if len(jobs) + 2 <= most else jobs[: max(1, most - 3)]
        lines = [
            facts([(f"jobs of {text.named(row.user)}", "strong")], width),
            *small_table(columns, JOB_COLUMNS, shown, width),
        ]
        left = len(jobs) - len(shown)
        return [*lines, line((f"... and {text.count_text(left, 'more job')} (Enter)", "dim"))] if left else lines

    def charts(self, row: UserRow, newest: Point | None) -> tuple[Chart, ...]:
        """As TableView has it."""
        return carried_charts(newest, "GPUs with a process", has_gpu=not table.has_no_gpu(row))

    def below(self) -> Place | None:
        """The user's jobs; of those of whom nobody says whose they are there is no list."""
        row = self.grid.row
        return None if row is None or not row.user else replace(self.place, view="jobs", user=row.user)

    def subject(self) -> Subject | None:
        """The user, over all nodes."""
        row = self.grid.row
        return None if row is None else Subject(user=row.user)

    def targets(self) -> tuple[Target, ...]:
        """The one own job that there is."""
        if self.picture is None:
            return ()
        return targets.of_rows(self.picture, [job_rows(self.picture, user=row.user) for row in self.chosen()])

    def copied(self) -> tuple[str, ...]:
        """Names of the users."""
        return tuple(row.user for row in self.chosen())
