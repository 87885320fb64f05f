"""The view of the advice: how many tasks a node should run, with the arithmetic and the lines to submit."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content

from slurm_share.core.text import counted
from slurm_share.load import Advice, Column, JobRow, job_rows, notes, snapshot
from slurm_share.load import advice_columns as table
from slurm_share.load import text as load_text

from .. import tables
from ..history import FigureHistory
from ..location import JobPlace, Location
from ..picture import SurveyPicture
from ..widgets.bars import bar
from ..widgets.glyphs import arrow
from ..wire import Subject
from . import targets
from .summaries import advised, knows_jobs, no_jobs_text
from .table import TableView
from .text import Lines, Piece, facts, line, paragraph, ruled

WIDE_FROM = 150
"""Least width at which the arithmetic is beside the table, in columns."""
LABEL, BAR_MOST, SCALE = 12, 32, 4
"""Width of a label and of the longest bar, in columns; SCALE: a bar's scale ends at this multiple of the present number
of tasks."""


class AdviceView(TableView[Advice]):
    """All advice, or the advice for the jobs of one user or node."""

    view = "advice"
    what = "job"
    DEFAULT_CSS = """
    AdviceView > .body { layout: vertical; height: 1fr; }
    AdviceView > .body.-wide { layout: horizontal; }
    AdviceView .why { height: 1fr; background: $panel; scrollbar-size-vertical: 1; }
    AdviceView .-wide > Grid { width: 2fr; }
    AdviceView .beside { height: 1fr; }
    AdviceView .more { background: $panel; padding: 0 1; }
    AdviceView .-wide > .beside { width: 3fr; border-left: solid $primary; }
    """

    def __init__(self, history: FigureHistory) -> None:
        super().__init__(history)
        self.body = Container(classes="body")
        self.why = VerticalScroll(classes="why")
        self.more = Lines(classes="more")
        """The line that says how much of the arithmetic is below the visible part."""
        self._unseen = 0
        """Lines below the visible part before scrolling."""

    def compose(self) -> ComposeResult:
        yield self.head
        with self.body:
            yield self.grid
            with Vertical(classes="beside"):
                with self.why:
                    yield self.pane
                yield self.more

    def make_columns(self) -> tuple[Column[Advice], ...]:
        return tables.ADVICE

    def key(self, row: Advice) -> str:
        return f"{row.job}/{row.user}/{'' if row.job is not None else load_text.fold(row.nodes)}"

    def rows(self, picture: SurveyPicture, location: Location) -> Sequence[Advice]:
        """Return the advice, jobs that should be changed first."""
        found = [one for one in picture.advice if location.user in ("", one.user) and location.job in (None, one.job)]
        if location.node:
            found = [one for one in found if location.node in one.nodes]
        return sorted(found, key=lambda one: -table.ORDER[one.verdict])

    def needs_attention(self, row: Advice) -> bool:
        return row.verdict in table.WANTS_CHANGE

    def summary(self, picture: SurveyPicture, location: Location, width: int, height: int) -> list[Content]:
        if not self.all_rows:
            return []
        head = (f"advice for {self.count_text()}", "strong")
        return [facts([head, *advised(self.grid.shown_rows)], width)]

    def empty_text(self, picture: SurveyPicture, location: Location) -> str:
        return "no job here to give advice on" if picture.nodes and knows_jobs(picture) else no_jobs_text(picture)

    def draw_details(self) -> None:
        """Draw the arithmetic in full; it scrolls."""
        if not self.is_mounted:
            return
        width, height = self.room
        is_wide = width >= WIDE_FROM
        self.body.set_class(is_wide, "-wide")
        row = self.grid.row
        self.why.display = row is not None
        left = height - len(self.head.lines)
        rows = min(max(self.grid.total, 3) + 1, max(4, left // 3))
        self.grid.styles.height = "1fr" if is_wide or row is None else rows
        room, seen = (width * 3 // 5 - 3, left) if is_wide else (width - 1, left - rows)
        lines = [] if row is None else arithmetic(row, room, seen, self._job_name(row))
        self._unseen = len(lines) - seen + 1 if len(lines) > seen else 0
        self._say_more()
        self.pane.show(lines if is_wide or not lines else [ruled(lines[0], room), *lines[1:]])

    def on_mount(self) -> None:
        self.watch(self.why, "scroll_y", self._say_more, init=False)

    def _say_more(self) -> None:
        """Draw the line at the end, which keeps its place while the text scrolls."""
        left = self._unseen - round(self.why.scroll_y)
        more = f"... {counted(left, 'more line')} of this: Tab, then {arrow('down')}"
        self.more.show([line((more if left > 0 else "end of the arithmetic", "dim"))] if self._unseen else [])

    def _job_name(self, row: Advice) -> str:
        jobs = () if self.picture is None or row.job is None else self.picture.survey.jobs
        return next((job.name for job in jobs if row.job in (job.array, job.job_id)), "")

    def location_of(self, row: Advice) -> Location | None:
        """Return the nodes of the job; for an array its elements."""
        if self.picture is None or row.job is None:
            return None
        is_array = any(job.is_array for job in _jobs(self.picture, row))
        name = f"{row.job} {self._job_name(row)}".strip()
        return replace(self.location, view="jobs" if is_array else "nodes", job=row.job, job_name=name)

    def subject_of(self, row: Advice) -> Subject:
        """Return the job's node; if it has several, its user."""
        return Subject(node=row.nodes[0]) if len(row.nodes) == 1 else Subject(user=row.user)

    def targets_of(self, rows: Sequence[Advice], picture: SurveyPicture) -> tuple[JobPlace, ...]:
        return tuple(targets.job_target(job) for row in rows for job in _jobs(picture, row))

    def copy_lines(self) -> tuple[str, ...]:
        return tuple(text for row in self.selected_rows() for text in row.resubmit or row.change)


def _jobs(picture: SurveyPicture, row: Advice) -> list[JobRow]:
    """Return the job that the advice is about, in a list; empty: it is not in the picture."""
    return [job for job in job_rows(picture) if job.number == row.job and row.job is not None][:1]


def arithmetic(advice: Advice, width: int, most: int, name: str = "") -> list[Content]:
    """Return the advice in lines: what to do, the lines to submit, the bounds as bars, the evidence. Uses the short
    form if the full one has more than `most` lines."""
    full = _lines(advice, width, name, is_short=False)
    return full if len(full) <= most else _lines(advice, width, name, is_short=True)


def _lines(advice: Advice, width: int, name: str, *, is_short: bool) -> list[Content]:
    head: list[Piece | str] = [
        (f"job {table.job(advice)}", "strong"),
        name,
        f"of {load_text.named(advice.user)}" + (f" on {load_text.fold(advice.nodes)}" if advice.nodes else ""),
        (advice.work, "strong"),
    ]
    lines = [facts(head, width), *paragraph(advice.sentence, width)]
    blank = [] if is_short else [line("")]
    if advice.resubmit and is_short:
        joined = load_text.cut(" | ".join(advice.resubmit), width - 14)
        lines.append(line(("  $ ", "dim"), (joined, "strong"), ("  y copies", "dim")))
    elif advice.resubmit:
        lines += [line(("  $ ", "dim"), (load_text.cut(one, width - 4), "strong")) for one in advice.resubmit]
        lines.append(line(("    y copies these lines", "dim")))
    elif advice.change:
        lines += paragraph(notes.resubmit_head(advice), width)
    if advice.now is not None or advice.bounds:
        lines += [*blank, *_bars(advice, width, is_short=is_short)]
    lines += blank
    if advice.memory_allows is not None and not is_short:
        least, most = advice.memory_allows
        lines += paragraph(f"by GPU memory alone: {least if least == most else f'{least} to {most}'}", width)
    evidence = f" ({'; '.join(advice.evidence)})" if advice.evidence else ""
    return [*lines, *paragraph(f"confidence: {advice.confidence}{evidence}", width)]


def _bars(advice: Advice, width: int, *, is_short: bool) -> list[Content]:
    """Return bars on one scale: tasks on a node now, next, and as many as each resource allows."""
    room = max(8, min(BAR_MOST, width // 4))
    base = max(1, advice.now or 0, advice.next or 0)
    bounds = [bound.nppn for bound in advice.bounds if bound.nppn is not None]
    end = min(SCALE * base, max([base, *bounds]))
    lines = [] if is_short else [line((f"{'tasks a node':<{LABEL}} ", "head"), (f"0{end:>{room - 1}}", "head"))]
    lines.append(_bar("now", advice.now, end, room, "strong", ""))
    if advice.next is not None and advice.verdict != "stay":
        lines.append(_bar("next", advice.next, end, room, "strong", table.SIGNS[advice.verdict]))
    left = max(20, width - LABEL - room - 7)
    for bound in advice.bounds:
        decides = bound.resource == advice.decided_by and advice.verdict not in snapshot.CAUSES
        binds = bound.nppn is not None and (advice.verdict != "more" or bound.nppn >= (advice.next or 0))
        stops = " (stops a rise)" if binds and not bound.hard else ""
        said = f"{'<- decides; ' if decides else ''}{bound.why}{stops}"
        why = [one.plain for one in paragraph(said, left, most=1 if is_short else 9)] or [""]
        lines.append(_bar(bound.resource, bound.nppn, end, room, "strong" if decides else "", why[0]))
        lines += [line(" " * (LABEL + room + 7), one.strip()) for one in why[1:]]
    return lines


def _bar(label: str, value: int | None, end: int, room: int, kind: str, after: str) -> Content:
    if value is None:
        return line((f"{label:<{LABEL}} ", kind), " " * room, ("    - ", kind), after)
    full, rest = bar(value / end, room)
    return line((f"{label:<{LABEL}} ", kind), full, (rest, "dim"), (f"{value:>5} ", kind), after)
