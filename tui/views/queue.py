"""The view of the queue: waiting jobs by reason, partition and GPUs, free GPUs by type, nodes out of service."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.content import Content

from slurm_share.core.text import counted, span_text
from slurm_share.load import Column, QueueState, Sum, WaitingRow, job_request, queue_columns, queue_rows, text
from slurm_share.slurm.records import QueuedJob

from ..history import FigureHistory
from ..location import JobPlace, Location
from ..picture import SurveyPicture
from ..widgets.grid import Grid
from .table import TableView
from .text import Piece, facts, line, paragraph, small_table

OUT_LEAST, OUT_MOST = 3, 12
"""Fewest and most lines of the table of nodes out of service, with its headings."""
HEADS: tuple[Column[QueuedJob], ...] = (
    Column("job", "JOB", "", lambda job: job.id, lambda job: job.id, least=6, most=18, cut="middle",
           whole=lambda job: job.id[:18]),
    Column("user", "USER", "", lambda job: job.user, lambda job: job.user, least=5, most=16, cut="middle"),
    Column("name", "NAME", "", lambda job: job.name, lambda job: job.name, least=6, most=24, goes=1, cut="middle"),
    Column("account", "ACCOUNT", "", lambda job: job.account or "-", lambda job: job.account, least=5, most=14, goes=3),
    Column("priority", "PRIORITY", "", lambda job: text.number(job.priority), lambda job: job.priority, right=True,
           least=6, goes=2),
    Column("cpus", "CPUS", "", lambda job: text.number(job.cpus), lambda job: job.cpus, right=True, goes=4),
    Column("limit", "LIMIT", "", lambda job: _limit(job), lambda job: job.limit_s, right=True, least=7, goes=5),
)  # fmt: skip
"""The jobs below the table."""


class QueueView(TableView[WaitingRow]):
    """The waiting jobs of the whole cluster. The second table has the nodes out of service."""

    view = "queue"
    what = "group"
    needs_details = False

    def __init__(self, history: FigureHistory) -> None:
        super().__init__(history)
        self.out: Grid[queue_columns.OutRow] = Grid(
            queue_columns.OUT, lambda row: row.node.name, name="queue.out", empty="no node is out of service"
        )
        self.out.count_text = lambda: counted(self.out.count, "node")

    def compose(self) -> ComposeResult:
        yield self.head
        with self.middle:
            with self.left:
                yield self.grid
                yield self.foot
                yield self.pane
            yield self.right_pane
        yield self.out
        yield self.below_pane

    def make_columns(self) -> tuple[Column[WaitingRow], ...]:
        return queue_columns.WAITING

    def key(self, row: WaitingRow) -> str:
        return f"{row.reason} {row.partition} {row.gpus}"

    def rows(self, picture: SurveyPicture, location: Location) -> Sequence[WaitingRow]:
        state = picture.queue_state
        return [] if state is None else queue_rows.waiting_rows(state, picture.survey.user)

    def draw(self, picture: SurveyPicture, location: Location) -> None:
        state = picture.queue_state
        nodes = () if state is None else state.out
        now = picture.survey.taken
        self.out.show([queue_columns.OutRow(node, now) for node in nodes])
        most = max(OUT_LEAST, min(OUT_MOST, self.room[1] // 3))
        self.out.display = bool(nodes)
        self.out.styles.height = min(most, len(nodes) + 1)
        super().draw(picture, location)

    @property
    def room(self) -> tuple[int, int]:
        """Return the width and height of the view without the second table."""
        width, height = super().room
        out = self.out.styles.height.value if self.out.display and self.out.styles.height is not None else 0
        return width, max(4, height - int(out))

    def needs_attention(self, row: WaitingRow) -> bool:
        """Return whether some of the viewer's own jobs wait for this."""
        return row.own > 0

    def summary(self, picture: SurveyPicture, location: Location, width: int, height: int) -> list[Content]:
        """Return how many jobs wait, and the free GPUs of each type."""
        state = picture.queue_state
        if state is None:
            return [line(("the queue of the cluster is being read ...", "H"))]
        if state.problem:
            return paragraph(state.problem, width, "!", most=3)
        rows = self.grid.shown_rows
        jobs, own = sum(row.count for row in rows), sum(row.own for row in rows)
        known = [row.gpus_asked for row in rows if row.gpus_asked is not None]
        asked = text.summed_count(Sum(float(sum(known)) if known else None, len(known) < len(rows)))
        age_s = picture.survey.taken - state.taken
        parts: list[Piece | str] = [
            (f"{counted(jobs, 'job')} wait{'s' * (jobs == 1)}", "strong"),
            f"for {asked} GPU{'' if asked == '1' else 's'}" if rows else "",
            f"{own} of them yours" if own else "",
            f"{state.more:,} more of a lower priority" if state.more else "",
            ("of this recording's nodes and jobs only", "dim") if state.is_part else "",
            (f"read {span_text(int(age_s))} ago", "dim") if age_s >= 1 else "",
        ]
        return [facts(parts, width), *_free(state, width)]

    def empty_text(self, picture: SurveyPicture, location: Location) -> str:
        state = picture.queue_state
        return "" if state is None or state.problem else "no job waits"

    def details(self, row: WaitingRow, width: int, most: int) -> list[Content]:
        """Return the reason in words, then the first jobs."""
        head = job_request.why(row.reason)
        lines = paragraph(head[:1].upper() + head[1:], width, "strong", most=2)
        # Slurm's own text where it adds something, as the names of nodes.
        more = next((job.reason for job in row.jobs if "," in job.reason), "")
        lines += paragraph(more, width, "dim", most=1) if more else []
        room = most - len(lines) - 1
        if room < 1:
            return lines
        shown = row.jobs if len(row.jobs) <= room else row.jobs[: max(1, room - 1)]
        left = len(row.jobs) - len(shown)
        ids = [column.id for column in HEADS]
        return [
            *lines,
            *small_table(HEADS, ids, shown, width),
            *([line((f"... and {left:,} more", "dim"))] if left else []),
        ]

    def enter_location(self) -> Location | None:
        """Return the page of the node under the cursor while the second table has the focus; None: it has none."""
        if not self.out.has_focus:
            return super().enter_location()
        row = self.out.row
        if row is None or self.picture is None or row.node.name not in self.picture.by_name:
            return None
        return Location(view="node", node=row.node.name)

    def selected_rows(self) -> tuple[WaitingRow, ...]:
        """Return no rows while the second table has the focus: no job under a cursor that the user does not move is
        cancelled."""
        return () if self.out.has_focus else super().selected_rows()

    def location_of(self, row: WaitingRow) -> Location | None:
        """Return the page of the viewer's own job, if there is one in the group."""
        own = [job for job in row.jobs if job.user == row.user]
        if not own:
            return None
        return Location(view="job", user=own[0].user, job=own[0].job_id, job_name=f"{own[0].id} {own[0].name}")

    def targets_of(self, rows: Sequence[WaitingRow], picture: SurveyPicture) -> tuple[JobPlace, ...]:
        """Return the viewer's own job of a group, if it is the only one."""
        found = [job for row in rows for job in row.jobs if job.user == row.user]
        if len(found) != 1:
            return ()
        return (JobPlace(owner=found[0].user, job=found[0].id, job_id=found[0].job_id),)

    def copy_lines(self) -> tuple[str, ...]:
        """Return the names of the nodes out of service if their table has the focus, else the numbers of the jobs."""
        if self.out.has_focus:
            rows = self.out.marked_rows() or (() if self.out.row is None else (self.out.row,))
            return tuple(row.node.name for row in rows)
        return tuple(job.id for row in self.selected_rows() for job in row.jobs)


def _free(state: QueueState, width: int) -> list[Content]:
    parts: list[Piece | str] = [("free GPUs", "strong")]
    for one in state.gpus:
        out = f" ({one.unusable} out of service)" if one.unusable else ""
        parts.append((f"{one.name or 'GPU'} {one.free} of {one.count}{out}", "" if one.free else "H"))
    return [facts(parts, width)] if state.gpus else []


def _limit(job: QueuedJob) -> str:
    if job.is_unlimited:
        return "UNLIMITED"
    return text.UNKNOWN if job.limit_s is None else text.time_text(job.limit_s)
