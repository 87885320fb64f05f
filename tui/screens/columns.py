"""The screen to choose the columns of a table and their order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from slurm_share.load import Column

from ..keymap import COLUMNS as COLUMNS_KEYS
from ..keymap import bindings
from ..widgets.glyphs import arrow, is_ascii_only
from ..widgets.grid import Grid

SMALL = 10
"""In a terminal with fewer lines the screen has no frame."""


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """A column that can be shown."""

    column: Column[Any]
    is_shown: bool
    has_room: bool = True
    """False: it is chosen, and the table is too narrow for it."""


def _box(one: ColumnChoice) -> str:
    room = "" if one.has_room or not one.is_shown else " (no room)"
    return f"[{'x' if one.is_shown else ' '}] {one.column.heading or one.column.id}{room}"


NAME, DOC = attrgetter("column.id"), attrgetter("column.doc")
COLUMNS: tuple[Column[ColumnChoice], ...] = (
    Column("column", "Column", "heading of the column, and whether it is shown", _box, _box, least=12, most=32),
    Column("name", "Name", "name of the column in filters", NAME, NAME, least=6, most=16, goes=1),
    Column("doc", "Meaning", "meaning of the column, with its unit", DOC, DOC, least=10, most=120),
)


class Choices(Grid[ColumnChoice], inherit_bindings=False):
    """The columns in their order, without sort, marks and filter."""

    BINDINGS: ClassVar[list[BindingType]] = [one for one in bindings("grid") if (one.id or "").startswith("grid.")]

    class Toggled(Grid.GridMessage):
        """The box of a column was clicked."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, lambda one: one.column.id, name="columns", empty="this table has no columns")

    def _give_letters(self, taken: set[str]) -> None:
        """Assign no letters: the table is not sorted."""

    def on_click(self, event: events.Click) -> None:
        """Toggle a column by a click on its box or a double click, else move the cursor."""
        event.prevent_default()  # not Grid's handler, which sorts
        event.stop()
        at = event.get_content_offset(self)
        if at is None or at.y == 0 or not self.put(at.y - 1 + self.scroll_offset.y):
            return
        if at.x <= 4 or event.chain == 2:
            self.post_message(self.Toggled(self))


class ColumnsScreen(ModalScreen[tuple[str, ...] | None]):
    """Returns the ids of the chosen columns in their order; None: nothing changes."""

    DEFAULT_CSS = """
    ColumnsScreen {
        align: center middle;
        & > Vertical {
            width: 90%; max-width: 100; height: auto; max-height: 90%;
            background: $surface; border: round $primary; padding: 0 1;
        }
        & Choices { height: auto; }
        &.-small > Vertical { border: none; padding: 0; max-height: 100%; }
        & .columns--keys { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*COLUMNS_KEYS]

    def __init__(
        self, columns: Sequence[Column[Any]], chosen: Sequence[str], without_room: Collection[str] = ()
    ) -> None:
        """`chosen`: ids of the chosen columns; `without_room`: of those for which the table is too narrow."""
        super().__init__()
        self._columns = tuple(columns)
        self._without_room = frozenset(without_room)
        self._choices = self._from(chosen)

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Columns"
            yield Choices()
            arrows = ("/" if is_ascii_only() else "").join((arrow("up"), arrow("down")))
            keys = f"Space show or hide  Shift+{arrows} move  d default  Enter keep  Esc cancel"
            yield Static(keys, classes="columns--keys", markup=False)

    def on_mount(self) -> None:
        self._grid.focus()
        self._show()

    def action_choose(self) -> None:
        """Show or hide the column; at least one stays."""
        one = self._grid.row
        if one is not None and one.is_shown and sum(each.is_shown for each in self._choices) == 1:
            self.app.bell()
        elif one is not None:
            self._choices[self._choices.index(one)] = replace(one, is_shown=not one.is_shown)
            self._show()

    def on_resize(self, event: events.Resize) -> None:
        """Keep the line with the keys visible."""
        is_small = event.size.height < SMALL
        self.set_class(is_small, "-small")
        self._grid.styles.max_height = event.size.height - 1 if is_small else event.size.height * 9 // 10 - 3

    def on_choices_toggled(self) -> None:
        self.action_choose()

    def action_move(self, by: int) -> None:
        at = self._grid.cursor
        if 0 <= (to := at + by) < len(self._choices):
            self._choices[at], self._choices[to] = self._choices[to], self._choices[at]
            self._show()
            self._grid.put(to)

    def action_default(self) -> None:
        self._choices = self._from([column.id for column in self._columns if column.shown])
        self._show()

    def action_keep(self) -> None:
        self.dismiss(tuple(one.column.id for one in self._choices if one.is_shown))

    def action_leave(self) -> None:
        self.dismiss(None)

    @property
    def _grid(self) -> Choices:
        return self.query_one(Choices)

    def _show(self) -> None:
        self._grid.show(tuple(self._choices))

    def _from(self, chosen: Sequence[str]) -> list[ColumnChoice]:
        """Return the shown columns in their order, then the others."""
        by_id = {column.id: column for column in self._columns}
        shown = [
            ColumnChoice(by_id[id], True, id not in self._without_room) for id in dict.fromkeys(chosen) if id in by_id
        ]
        return shown + [ColumnChoice(column, False) for column in self._columns if column.id not in chosen]
