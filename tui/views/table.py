"""What the views have in common: lines about the whole, a table, and where there is room lines about the row under the
cursor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content

from slurm_share.load import Column, Row, text

from ..history import History
from ..picture import Picture
from ..place import Place
from ..view import View
from ..widgets.charts import SPAN_S, Chart, Charts, Shown, least_height
from ..widgets.grid import Grid
from ..wire import Point, Subject
from .text import Lines, line, ruled

ROWS_LEAST = 6
"""Lines of a table that stay, whatever else is said: its headings and five rows."""
CHARTS_ROWS = 12
"""Lines that stay for a long table above charts."""
CHARTS_FROM = (96, 22)
"""Columns and lines of a view in which charts have a place: a terminal of 100x30."""
CHARTS_RIGHT = 48
"""Columns that charts beside a table have, at the least."""
CHARTS_EVERY_S = 2.0
"""Charts of the same row are drawn anew after so many seconds: a column of one stands for four and more."""
ABOUT_FEW = 4
"""Lines about the row that stand above charts."""


class TableView(View, Generic[Row]):
    """A view with one table in it."""

    DEFAULT_CSS = """
    TableView { layout: vertical; }
    TableView > .head { padding: 0 1; }
    TableView .pane { padding: 0 1; background: $panel; }
    TableView > .middle { height: 1fr; }
    TableView > .middle > .left { width: 1fr; height: 1fr; }
    TableView > .middle > Charts { border-left: solid $primary; }
    """
    has_charts = False
    """Whether there is a history of the row under the cursor: see `charts`."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self.history = history
        self.picture: Picture | None = None
        self.place = Place(view=self.view)
        self.only_flagged = False
        """Only rows that deserve a look: see `flag`."""
        self.columns: tuple[Column[Row], ...] = self.make_columns()
        self.grid: Grid[Row] = Grid(self.columns, self.key, name=self.view)
        self.head = Lines(classes="head")
        self.pane = Lines(classes="pane")
        self.middle, self.left = Horizontal(classes="middle"), Vertical(classes="left")
        self.right_pane, self.below_pane = Charts(), Charts()
        self._charted: tuple[tuple[Subject, str] | None, Shown | None] = (None, None)

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield self.head
        with self.middle:
            with self.left:
                yield self.grid
                yield self.pane
            yield self.right_pane
        yield self.below_pane

    # --- What a view says for itself ----------------------------------------------------------------------------------

    @abstractmethod
    def make_columns(self) -> tuple[Column[Row], ...]:
        """Return the columns of the view's table."""

    @abstractmethod
    def key(self, row: Row) -> str:
        """What a row is known by from one picture to the next."""

    @abstractmethod
    def rows(self, picture: Picture, place: Place) -> Sequence[Row]:
        """Return the rows of this picture, narrowed to the place."""

    def codes(self, row: Row) -> Sequence[str]:
        """Return the codes of a row, for `flag`."""
        return ()

    def said(self, picture: Picture, place: Place, width: int, height: int) -> list[Content]:
        """The lines above the table."""
        return []

    def about(self, row: Row, width: int, most: int) -> list[Content]:
        """The lines below it, about the row under the cursor; at most so many are seen."""
        return []

    def charts(self, row: Row, newest: Point | None) -> tuple[Chart, ...]:
        """Which charts are drawn of a row, with the figures of now. `newest`: of its history."""
        return ()

    def nothing(self, picture: Picture, place: Place) -> str:
        """What is said where there is no row."""
        return "there is nothing to be shown"

    # --- Drawing ------------------------------------------------------------------------------------------------------

    def draw(self, picture: Picture, place: Place) -> None:
        """As View has it."""
        self.picture, self.place = picture, place
        rows = self.rows(picture, place)
        if self.only_flagged:
            rows = [row for row in rows if self.codes(row)]
        empty = fetching(picture) or self.nothing(picture, place)
        if self.only_flagged and not fetching(picture):
            empty = "nothing here is flagged: all that answered is within the bands of good load (f shows all)"
        self.grid.empty = empty
        details = (column.id for column in self.columns if column.needs == "details")
        self.grid.unfetched = frozenset() if picture.details else frozenset(details)
        self.grid.show(rows)
        self.say()
        self.say_about()

    def flag(self) -> bool:
        """Only rows that deserve a look, or all of them again. True: only those now."""
        self.only_flagged = not self.only_flagged
        if self.picture is not None:
            self.draw(self.picture, self.place)
        return self.only_flagged

    @property
    def room(self) -> tuple[int, int]:
        """Columns and lines that it has; before it was laid out, those of the terminal."""
        size = self.size if self.size else self.app.size
        return max(10, size.width - 2), max(4, size.height)

    def say(self) -> None:
        """The lines above the table."""
        if self.picture is None or not self.is_mounted:
            return
        width, height = self.room
        lines = self.said(self.picture, self.place, width, height)
        waits = fetching(self.picture)
        if waits and (self.view != "nodes" or self.grid.waits_for):
            lines = [line((waits, "H")), *lines]
        if self.only_flagged:
            lines = [*lines, line(("only what is flagged (f shows all)", "strong"))]
        self.head.show(lines[: max(1, height - ROWS_LEAST)])

    def say_about(self) -> None:
        """The lines below it: right below the rows where these leave room, else a few at the end."""
        if not self.is_mounted:
            return
        width, height = self.room
        left = height - len(self.head.lines)
        rows = max(self.grid.total, 3) + 1
        few = self.about_few(left)
        row = self.grid.row
        shown, where = self._charts(row, width, left, rows)
        below = right_width = 0
        if shown is not None and where == "below":
            below = least_height(len(shown.charts), width)
            few = min(few, ABOUT_FEW)
        elif where == "beside":
            right_width = max(CHARTS_RIGHT, width - self.grid.wish(sparks=True))
        is_short = row is not None and left - rows - below >= max(1, few)
        most = left - rows - below if is_short else few
        lines = [] if row is None or most < 1 else self.about(row, width - right_width, most)[:most]
        if lines:
            lines = [ruled(lines[0], width - right_width), *lines[1:]]
        if lines and (below or not is_short):
            # Else the table's height, or the charts', would change with every row.
            lines += [line("")] * ((few if below else most) - len(lines))
        self.grid.styles.height = rows if is_short and lines else "1fr"
        self.pane.show(lines, fills=is_short and not below)
        self.left.styles.height = rows + len(lines) if is_short and below else "1fr"
        self.middle.styles.height = rows + len(lines) if is_short and below else "1fr"
        self.right_pane.styles.width = right_width
        self.below_pane.styles.height = "1fr" if is_short else below
        self.right_pane.show(shown if right_width else None)
        self.below_pane.show(shown if below else None)

    def _charts(self, row: Row | None, width: int, left: int, rows: int) -> tuple[Shown | None, str]:
        """(what is drawn of the row's history, where: beside, below or nowhere)."""
        subject = self.subject()
        is_wanted = self.has_charts and getattr(self.app, "shows_charts", True)
        if not is_wanted or row is None or subject is None or self.picture is None:
            return None, ""
        if width < CHARTS_FROM[0] or left < CHARTS_FROM[1]:
            return None, ""
        shown = self._shown(row, subject, self.picture)
        if shown is None:
            return None, ""
        if width - self.grid.wish(sparks=False) >= CHARTS_RIGHT:
            return shown, "beside"
        below = least_height(len(shown.charts), width)
        has_room = left - below - ABOUT_FEW >= min(rows, CHARTS_ROWS)
        return (shown, "below") if has_room else (None, "")

    def _shown(self, row: Row, subject: Subject, picture: Picture) -> Shown | None:
        of, before = self._charted
        taken, now = picture.survey.taken, (subject, self.key(row))
        if of == now and before is not None and 0 <= taken - before.end < CHARTS_EVERY_S:
            return before
        points = self.history.points(subject, SPAN_S)
        charts = self.charts(row, points[-1] if points else None)
        shown = Shown(charts, points, taken, subject_text(subject, picture)) if charts else None
        self._charted = (now, shown)
        return shown

    def about_few(self, height: int) -> int:
        """How many lines it is below a long table, of so many for both."""
        return max(0, min(10, (height - 9) // 3))

    # --- What happens -------------------------------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        """Other lines have room now."""
        self.say()
        self.say_about()

    @on(Grid.Moved)
    def on_moved(self, event: Grid.Said) -> None:
        """The cursor is on another row."""
        if event.grid is self.grid:
            self.say_about()

    @on(Grid.Changed)
    def on_changed(self, event: Grid.Said) -> None:
        """What is filtered or sorted by may have to be fetched."""
        if event.grid is self.grid:
            self.say()

    @on(Grid.Entered)
    def on_entered(self, event: Grid.Entered) -> None:
        """A double click."""
        event.stop()
        below = self.below()
        if below is not None:
            self.post_message(self.Down(below))

    def counted(self, what: str) -> str:
        """How many rows there are: 12 nodes; with a filter those that fit it: 3 of 12 nodes."""
        whole = text.count_text(self.grid.total, what)
        return whole if self.grid.count == self.grid.total else f"{self.grid.count} of {whole}"

    def chosen(self) -> tuple[Row, ...]:
        """The marked rows, else the one under the cursor."""
        marked = self.grid.marked_rows()
        row: Any = self.grid.row
        return marked or (() if row is None else (row,))


def fetching(picture: Picture) -> str:
    """Where there is a line for each node and no more: what is coming. Empty: nothing is missing."""
    if picture.details:
        return ""
    return f"jobs, users and processes of {text.count_text(len(picture.nodes), 'node')} are being fetched ..."


def subject_text(subject: Subject, picture: Picture) -> str:
    """What a plot is of: n1, GPU 0 of n1, job 4711, user alice."""
    if subject.gpu:
        row = picture.by_name.get(subject.node)
        gpus = () if row is None or row.node.snapshot is None else row.node.snapshot.gpus
        index = next((str(gpu.index) for gpu in gpus if gpu.uuid == subject.gpu), subject.gpu)
        return f"GPU {index} of {subject.node}"
    if subject.job:
        record = next((job.id for job in picture.survey.jobs if job.job_id == subject.job), subject.job)
        return f"job {record}"
    return f"user {subject.user}" if subject.user else subject.node
