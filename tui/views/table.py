"""The base of the views: a table with a summary above it; below or beside it details and charts of the row under the
cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message

from slurm_share.core.text import counted
from slurm_share.load import Column, Row, text

from ..history import Figure, FigureHistory
from ..location import JobPlace, Location, ViewName
from ..picture import SurveyPicture
from ..widgets.charts import CHART_LEAST, CHART_WIDE, SPAN_S, Chart, Charts, Rates, Shown, known_charts, least_height
from ..widgets.grid import Grid
from ..wire import Command, Point, Subject
from .text import TREND_HEAD, Lines, line, ruled, trend

ROWS_LEAST = 6
"""Fewest lines of the table: its headings and five rows."""
CHARTS_ROWS = 12
"""Fewest lines of a long table above charts."""
CHARTS_FROM = (96, 22)
"""Least width and height of a view with charts, in columns and lines: a terminal of 100x30."""
CHARTS_RIGHT = 48
"""Least width of charts beside a table, in columns."""
CHARTS_EVERY_S = 2.0
"""Least time between two drawings of the same charts, seconds: one column stands for four seconds or more."""
PLOT_FROM = 3
"""Fewest lines of details with a plot in one line."""
SUMS_FROM = 14
"""Least height of a view with a line of sums."""
ABOUT_FEW = 4
"""Most lines of details above charts."""


class TableView(Vertical, Generic[Row]):
    """A view with one table. The main screen keeps one of each kind, shows one at a time, and calls `draw` of that one
    alone: when a picture arrives, when the view is shown, and when the location changes."""

    DEFAULT_CSS = """
    TableView { layout: vertical; }
    TableView > .head { padding: 0 1; }
    TableView .foot { padding: 0 1; background: $panel; }
    TableView .pane { padding: 0 1; background: $panel; }
    TableView > .middle { height: 1fr; }
    TableView > .middle > .left { width: 1fr; height: 1fr; }
    TableView > .middle > Charts { border-left: solid $primary; }
    """
    view: ViewName
    what = "row"
    """The noun for a row, as in `3 jobs`."""
    needs_details = True
    """Whether the view is empty while a large cluster is known by one line per node."""
    has_charts = False
    """Whether the row under the cursor, or what the page is about, has a history to draw."""

    class Down(Message):
        """Asks to go to what the cursor is on: Enter or a double click."""

        def __init__(self, location: Location) -> None:
            self.location = location
            super().__init__()

    def __init__(self, history: FigureHistory) -> None:
        super().__init__()
        self.history = history
        self.tell: Callable[[Command], object] = lambda command: None
        """Sends a command to the feed. Set by the main screen."""
        self.picture: SurveyPicture | None = None
        self.location = Location(view=self.view)
        self.only_flagged = False
        """True: the table shows only rows that need attention (`needs_attention`)."""
        self.all_rows: Sequence[Row] = ()
        """The rows of this picture, those that are not shown too."""
        self.columns: tuple[Column[Row], ...] = self.make_columns()
        self.grid: Grid[Row] = Grid(self.columns, self.key, name=self.view)
        self.grid.count_text = self.count_text
        self.head = Lines(classes="head")
        self.foot, self.pane = Lines(classes="foot"), Lines(classes="pane")
        self.middle, self.left = Horizontal(classes="middle"), Vertical(classes="left")
        self.right_pane, self.below_pane = Charts(), Charts()
        self._charted: tuple[tuple[Subject, str] | None, Shown | None] = (None, None)

    def compose(self) -> ComposeResult:
        yield self.head
        with self.middle:
            with self.left:
                yield self.grid
                yield self.foot
                yield self.pane
            yield self.right_pane
        yield self.below_pane

    def make_columns(self) -> tuple[Column[Row], ...]:
        """Return the columns of the view's table."""
        raise NotImplementedError

    def key(self, row: Row) -> str:
        """Return the key that identifies a row in every picture."""
        raise NotImplementedError

    def rows(self, picture: SurveyPicture, location: Location) -> Sequence[Row]:
        """Return the rows of this picture, narrowed to the place."""
        raise NotImplementedError

    def needs_attention(self, row: Row) -> bool:
        """Return whether somebody should look at the row: severity waste or above."""
        return False

    def summary(self, picture: SurveyPicture, location: Location, width: int, height: int) -> list[Content]:
        """Return the lines above the table."""
        return []

    def sums(self, rows: Sequence[Row], width: int) -> list[Content]:
        """Return the line below the table: sums over the rows that match the filter."""
        return []

    def details(self, row: Row, width: int, most: int) -> list[Content]:
        """Return at most `most` lines about the row under the cursor."""
        return []

    def charts(self, row: Row, newest: Point | None) -> tuple[Chart, ...]:
        """Return the charts of a row with their newest figures. `newest`: the last point of its history."""
        return ()

    def rates(self, row: Row) -> Rates:
        """Return the rate of a row's tasks over time; empty: it has none."""
        return ()

    def empty_text(self, picture: SurveyPicture, location: Location) -> str:
        """Return what an empty table says."""
        return "there is nothing to show"

    def location_of(self, row: Row) -> Location | None:
        """Return where Enter leads from a row; None: nowhere."""
        return None

    def subject_of(self, row: Row) -> Subject | None:
        """Return what the large plot would show of a row."""
        return None

    def node_name(self) -> str:
        """Return the name of the node under the cursor; empty: there is none."""
        subject = self.subject()
        return "" if subject is None else subject.node

    def targets_of(self, rows: Sequence[Row], picture: SurveyPicture) -> tuple[JobPlace, ...]:
        """Return what an action on these rows would apply to."""
        return ()

    def copy_lines(self) -> tuple[str, ...]:
        """Return the lines that `copy` puts into the clipboard: for advice the resubmit lines, else the names of the
        rows."""
        return ()

    def enter_location(self) -> Location | None:
        """Return where Enter leads from the row under the cursor; None: nowhere."""
        return None if self.grid.row is None else self.location_of(self.grid.row)

    def subject(self) -> Subject | None:
        """Return what the large plot would show, the thing under the cursor; None: nothing."""
        return None if self.grid.row is None else self.subject_of(self.grid.row)

    def charted_subject(self) -> Subject | None:
        """Return what the charts show; None: nothing."""
        return self.subject()

    @property
    def is_page(self) -> bool:
        """Return whether the charts show what the view is about, not the row under the cursor."""
        return False

    def targets(self) -> tuple[JobPlace, ...]:
        """Return what an action would apply to: the marked rows, else the row under the cursor."""
        return () if self.picture is None else self.targets_of(self.selected_rows(), self.picture)

    def draw(self, picture: SurveyPicture, location: Location) -> None:
        self.picture, self.location = picture, location
        rows = self.all_rows = self.rows(picture, location)
        waits = fetching(picture) if self.needs_details else ""
        self.grid.empty = waits or self.empty_text(picture, location)
        if self.only_flagged:
            rows = [row for row in rows if self.needs_attention(row)]
            self.grid.empty = waits or "nothing needs attention (f shows all)"
        details = (column.id for column in self.columns if column.needs == "details")
        self.grid.unfetched = frozenset() if picture.details else frozenset(details)
        self.grid.show(rows)
        self.draw_summary()
        self.draw_details()

    def flag(self) -> None:
        self.only_flagged = not self.only_flagged
        if self.picture is not None:
            self.draw(self.picture, self.location)

    @property
    def room(self) -> tuple[int, int]:
        """Return the width and height of the view, before the first layout those of the terminal."""
        size = self.size if self.size else self.app.size
        return max(10, size.width - 2), max(4, size.height)

    def draw_summary(self) -> None:
        if self.picture is None or not self.is_mounted:
            return
        width, height = self.room
        lines = self.summary(self.picture, self.location, width, height)
        waits = fetching(self.picture)
        if waits and self.needs_details and (self.view != "nodes" or self.grid.waits_for):
            lines = [line((waits, "H")), *lines]
        if self.only_flagged:
            lines = [*lines, line(("only what needs attention (f shows all)", "strong"))]
        self.head.show(lines[: max(1, height - ROWS_LEAST)])
        self.foot.show(self.sums(self.grid.shown_rows, width) if height >= SUMS_FROM else [])

    def draw_details(self) -> None:
        """Draw details and charts: directly below the rows of a short table, else in a few lines at the bottom."""
        if not self.is_mounted:
            return
        width, height = self.room
        left = height - len(self.head.lines) - len(self.foot.lines)
        rows = max(self.grid.total, 3) + 1
        few = max(0, min(10, (left - 9) // 3))
        row = self.grid.row
        shown, where = self._charts(row, width, left, rows)
        below = self._least(shown, width) if shown is not None and where == "below" else 0
        right_width = max(CHARTS_RIGHT, width - self.grid.wish(sparks=True)) if where == "beside" else 0
        few = min(few, ABOUT_FEW) if below else few
        is_short = row is not None and left - rows - below >= max(1, few)
        most = left - rows - below if is_short else few
        plot = self._small_plot(row, width) if not where and most >= PLOT_FROM else []
        room = most - len(plot)
        lines = [] if row is None or room < 1 else self.details(row, width - right_width, room)[:room]
        if lines:
            lines += plot
            lines = [ruled(lines[0], width - right_width), *lines[1:]]
        if lines and (below or not is_short):
            # Else the table's height, or the charts', would change with every row. The table gets the lines of charts
            # that a row does not have.
            is_without = not where and self._has_room(width, left)
            lines += [line("")] * ((min(few, ABOUT_FEW) if below or is_without else most) - len(lines))
        self.grid.styles.height = rows if is_short and lines else "1fr"
        self.pane.show(lines, fills=is_short and not below)
        self.left.styles.height = self.middle.styles.height = (
            rows + len(self.foot.lines) + len(lines) if is_short and below else "1fr"
        )
        self.right_pane.styles.width = right_width
        self.below_pane.styles.height = "1fr" if is_short else below
        self.right_pane.show(shown if right_width else None)
        self.below_pane.show(shown if below else None)

    def _least(self, shown: Shown, width: int) -> int:
        """Return the least height of charts: of all of them, on a page of the first ones."""
        return 1 + CHART_LEAST if self.is_page else least_height(len(shown.charts), width)

    def _small_plot(self, row: Row | None, width: int) -> list[Content]:
        """Return the GPU load of the row's last ten minutes in one line, or its CPU load if it has no GPU: for a
        terminal without room for charts."""
        subject = self.charted_subject()
        if row is None or subject is None or self.picture is None or not self._wants_charts:
            return []
        shown = self._shown(row, subject, self.picture)
        of: tuple[Figure, ...] = ("gpu_load_percent", "cpu_load_percent")
        known = () if shown is None else [one for one in of if any(chart.of == one for chart in shown.charts)]
        if shown is None or not known:
            return []
        values = self.history.spark(subject, known[0], max(1, width - TREND_HEAD))
        if all(value is None for value in values):
            return []
        percent = getattr(shown.points[-1], known[0]) if shown.points else None
        return trend("GPU" if known[0] == of[0] else "CPU", f"{text.percent_text(percent)}, last 10 min", values, width)

    def _has_room(self, width: int, left: int) -> bool:
        return self._wants_charts and width >= CHARTS_FROM[0] and left >= CHARTS_FROM[1]

    @property
    def _wants_charts(self) -> bool:
        return self.has_charts and getattr(self.app, "shows_charts", True)

    def _charts(self, row: Row | None, width: int, left: int, rows: int) -> tuple[Shown | None, str]:
        """Return what to draw of the row's history, and where: `beside`, `below` or nowhere (empty)."""
        subject = self.charted_subject()
        is_wanted = self._wants_charts
        is_page = self.is_page and width >= 2 * CHART_WIDE
        has_room = is_page or self._has_room(width, left)
        if not is_wanted or not has_room or row is None or subject is None or self.picture is None:
            return None, ""
        shown = self._shown(row, subject, self.picture)
        if shown is None:
            return None, ""
        if width - self.grid.wish(sparks=False) >= CHARTS_RIGHT:
            return shown, "beside"
        is_room_below = left - self._least(shown, width) - ABOUT_FEW >= min(rows, CHARTS_ROWS)
        return (shown, "below") if is_room_below else (None, "")

    def _shown(self, row: Row, subject: Subject, picture: SurveyPicture) -> Shown | None:
        of, before = self._charted
        taken, now = picture.survey.taken, (subject, self.key(row))
        if of == now and before is not None and 0 <= taken - before.end < CHARTS_EVERY_S:
            return before
        points = self.history.points(subject, SPAN_S)
        charts = self.charts(row, points[-1] if points else None)
        shown = known_charts(Shown(charts, points, taken, subject_text(subject, picture), self.rates(row)))
        self._charted = (now, shown)
        return shown

    def on_resize(self, event: events.Resize) -> None:
        self.draw_summary()
        self.draw_details()

    @on(Grid.Moved)
    def on_moved(self) -> None:
        self.draw_details()

    @on(Grid.Changed)
    def on_changed(self) -> None:
        """Say what a new filter or sort waits for."""
        self.draw_summary()

    @on(Grid.Entered)
    def on_entered(self, event: Grid.Entered) -> None:
        event.stop()
        if (below := self.enter_location()) is not None:
            self.post_message(self.Down(below))

    def count_text(self) -> str:
        """Return the number of shown rows as text: 12 nodes; with a filter, or with `f`, 3 of 12 nodes. Every line that
        has this number has this text."""
        return count_of(self.grid.count, len(self.all_rows), self.what)

    def selected_rows(self) -> tuple[Row, ...]:
        """Return the marked rows, else the row under the cursor."""
        return self.grid.marked_rows() or (() if self.grid.row is None else (self.grid.row,))


def count_of(shown: int, total: int, what: str) -> str:
    """Return a number of rows as text: 12 nodes, 3 of 12 nodes."""
    return counted(total, what) if shown == total else f"{shown:,} of {counted(total, what)}"


def fetching(picture: SurveyPicture) -> str:
    """Return what is being fetched while a large cluster is known by one line per node; empty: nothing."""
    if picture.details:
        return ""
    return f"jobs, users and processes of {counted(len(picture.nodes), 'node')} are being fetched ..."


def subject_text(subject: Subject, picture: SurveyPicture) -> str:
    """Return the name of a subject: n1, GPU 0 of n1, job 4711, user alice."""
    if subject.gpu:
        row = picture.by_name.get(subject.node)
        gpus = () if row is None or row.node.snapshot is None else row.node.snapshot.gpus
        index = next((str(gpu.index) for gpu in gpus if gpu.uuid == subject.gpu), subject.gpu)
        return f"GPU {index} of {subject.node}"
    if subject.job:
        record = next((job.id for job in picture.survey.jobs if job.job_id == subject.job), subject.job)
        return f"job {record}"
    return f"user {subject.user}" if subject.user else subject.node
