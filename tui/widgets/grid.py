"""A table of any number of rows, moved through by keys and mouse.

The grid is our own because a survey of a large cluster is too much for Textual's DataTable and for
textual-fastdatatable. With 10,000 rows of 12 columns in a terminal of 160 x 50 (tests/bench/tui_grids.py, one run on
two busy cores):

                                                   this grid   DataTable   textual-fastdatatable
    first paint, by the clock                          66 ms     3652 ms                  248 ms
    memory                                             6 MiB      82 MiB                  85 MiB
    visible cells change twice a second: one core      1.7 %      18.7 %                  21.7 %
        longest frame, CPU time                        22 ms      239 ms                  304 ms
    ten pages scrolled a second as well: one core     11.0 %      36.8 %                  40.3 %
        longest frame, CPU time                        71 ms      569 ms                  534 ms
    all rows change every 2 s, sorted: one core        0.6 %      49.4 %                   6.9 %
        longest frame, CPU time                        12 ms     3948 ms                  247 ms

The dashboard promises that no frame takes more than 100 ms. Rows are given as a whole and read lazily: only the visible
cells become text, and only lines that differ are sent to the terminal. Neither of the others has a filter, marks by
key, bars and sparklines in cells, columns that are left out where they do not fit, or a cursor that follows its row
when the order changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic

from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.signal import Signal

from slurm_share.load import Column, Row

from ..keymap import KEYS, bindings, keys_of
from ..query import Query, parse
from ..query_terms import QueryError
from .grid_cells import letters_for
from .grid_layout import NOTHING, last_first
from .grid_lines import GridLines
from .grid_rows import RowSet


class Grid(GridLines[Row], Generic[Row], can_focus=True):
    """A table with fixed headings and a fixed first column; GridLines draws it. Marks are kept by key.

    The cursor stays on its row when a new survey, a sort or a filter moves the row; until the user moves the cursor, it
    stays on the first visible line. It is always visible, so no action applies to an invisible row.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("grid")]

    class GridMessage(Message):
        """Base of the grid's messages."""

        def __init__(self, grid: Grid[Any]) -> None:
            self.grid = grid
            super().__init__()

    class Entered(GridMessage):
        """A row was double-clicked."""

        def __init__(self, grid: Grid[Any], row: Any) -> None:
            self.row = row
            super().__init__(grid)

    class Moved(GridMessage):
        """Another row is under the cursor, or none any more. A new version of the same row does not count."""

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, Grid.Moved) and message.grid is self.grid

    class Changed(GridMessage):
        """The sort, the columns, the marks or the filter have changed."""

    def __init__(
        self, columns: Sequence[Column[Row]], key: Callable[[Row], str], *, name: str, empty: str = ""
    ) -> None:
        """`key`: returns the key that identifies a row in every survey. `name`: of the table, for its remembered
        choices. `empty`: what an empty table says."""
        super().__init__(columns, key, name=name)
        self.empty = empty
        self.count_text: Callable[[], str] = lambda: f"{self.count:,} of {self.total:,}"
        """Returns the number of shown rows as text. Set by the owner of the rows."""
        self.arranged: Signal[Any] = Signal(self, "arranged")
        """Published when other rows are shown, or in another order."""
        self.mistake = ""
        """Why the text last given as a filter is invalid; empty: it is valid."""
        self.unfetched: frozenset[str] = frozenset()
        """Ids of the columns whose values are not fetched. Set by the owner of the rows."""
        self._query: Query | None = None
        self._wanted: str | None = None
        """Key of the row that the user put the cursor on; None: the user has not moved it."""
        self._hint = -1
        """Last known number of that row."""
        self._placing = False
        self._give_letters({key for one in KEYS for key in one.keys.split(",")})

    def on_mount(self) -> None:
        """Assign the sort letters that the configured keys leave free."""
        own = {key for one in KEYS for key in keys_of(one.id, getattr(self.app, "keys", {}))}
        self._give_letters({*self.screen.active_bindings, *own})

    def _give_letters(self, taken: set[str]) -> None:
        self.letters = letters_for(self.columns, taken.__contains__)

    # --- Rows ---------------------------------------------------------------------------------------------------------

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows, which must not change any more."""
        old, self._rows = self._rows, RowSet(rows, self.columns, self._key)
        try:
            self._arrange(old, is_new=not old.rows)
        except QueryError as error:  # the filter was typed before there were rows
            self._query, self.mistake = None, str(error)
            self._arrange(old, is_new=not old.rows)

    @property
    def rows(self) -> Sequence[Row]:
        return self._rows.rows

    @property
    def shown_rows(self) -> list[Row]:
        """The rows that match the filter, sorted."""
        return [self._rows.rows[number] for number in self._order]

    @property
    def count(self) -> int:
        """Number of rows that match the filter."""
        return len(self._order)

    @property
    def total(self) -> int:
        """Number of rows."""
        return len(self._rows.rows)

    @property
    def row(self) -> Row | None:
        """The row under the cursor; None: there are no rows."""
        return self._rows.rows[self._order[self.cursor]] if self._order else None

    @property
    def is_placed(self) -> bool:
        """Return whether the user has put the cursor on a row."""
        return self._wanted is not None

    @property
    def is_on_another_row(self) -> bool:
        """Return whether the cursor's row is gone and the cursor is on a row that the user did not choose: no
        command applies to it."""
        if self._wanted is None or not self._order:
            return False
        return self._rows.key(self._order[self.cursor]) != self._wanted

    def put(self, line: int) -> bool:
        """Move the cursor to this line, or to the nearest one; return whether the line exists."""
        if self._order:
            self._put(line)
        return 0 <= line < len(self._order)

    # --- Sort ---------------------------------------------------------------------------------------------------------

    def sort_by(self, column_id: str, down: bool | None = None) -> None:
        """Sort by a column; an unknown id does nothing, an empty id restores the original order. `down`: the largest
        first; None: the column's default, or the reverse of the present sort by it."""
        if column_id and column_id not in self._by_id:
            return
        if down is None:
            is_again = self.sort[0] == column_id
            down = not self.sort[1] if is_again else bool(column_id) and self._by_id[column_id].sorts_down
        if (column_id, down) != self.sort:
            self.sort = (column_id, down)
            self._to_top()
            self._arrange(self._rows)
            self.post_message(self.Changed(self))

    # --- Filter -------------------------------------------------------------------------------------------------------

    @property
    def query_text(self) -> str:
        """The filter as typed; empty: none."""
        return "" if self._query is None else self._query.text

    @query_text.setter
    def query_text(self, text: str) -> None:
        self.ask(text)

    def ask(self, text: str, *, is_whole: bool = True) -> None:
        """Filter the rows. An invalid filter leaves the old one and sets `mistake`; so does one that matches nothing
        while the user is typing (`is_whole` False)."""
        before, self.mistake = self._query, ""
        try:
            query = parse(text, self.columns, self._chosen)
            may_fit = is_whole or not self.total or query is None or bool(query.columns & self.unfetched)
            if not may_fit and not self._rows.order(query, None, False):
                self.mistake = "nothing fits"
                return
            if query != before:
                self._to_top()
            self._query = query
            self._arrange(self._rows)
        except QueryError as error:
            self._query, self.mistake = before, str(error)
        if self._query != before:
            self.post_message(self.Changed(self))

    def _why_empty(self) -> str:
        if self._query is None or not self.total:
            return self.empty
        if waits := self.waits_for:
            return f"not fetched yet: {', '.join(waits)}; asked for, the rows that fit {self.query_text} are coming"
        return f"none of {self.total:,} rows fits the filter {self.query_text}; Esc clears it"

    @property
    def _read_columns(self) -> list[Column[Row]]:
        """The columns that the filter and the sort read."""
        ids = {self.sort[0]} if self._query is None else {self.sort[0], *self._query.columns}
        return [column for column in self.columns if column.id in ids]

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Names of the columns that the filter or the sort needs and that are not fetched."""
        return tuple(column.name for column in self._read_columns if column.id in self.unfetched)

    @property
    def asks_details(self) -> bool:
        """Whether the filter or the sort needs more than one line for each node."""
        return any(column.needs == "details" for column in self._read_columns)

    # --- Columns ------------------------------------------------------------------------------------------------------

    @property
    def without_room(self) -> frozenset[str]:
        """Ids of the chosen columns for which the table is too narrow."""
        placed = {one.column for one in self._layout_now.placed}
        needs = enumerate(zip(self._chosen, self._needs(), strict=True))
        return frozenset(id for at, (id, need) in needs if at not in placed and need != NOTHING)

    @property
    def chosen(self) -> tuple[str, ...]:
        """Ids of the chosen columns in their order, including those that do not fit."""
        return self._chosen

    @chosen.setter
    def chosen(self, ids: Sequence[str]) -> None:
        found = tuple(dict.fromkeys(one for one in ids if one in self._by_id))
        if found and found != self._chosen:
            self._chosen, self._first = found, 0
            self._forget_lines()
            self._measure(is_new=True)
            self._redraw()
            self.post_message(self.Changed(self))

    # --- Marks --------------------------------------------------------------------------------------------------------

    @property
    def marks(self) -> frozenset[str]:
        """Keys of the marked rows that exist."""
        return frozenset(self._marked())

    @marks.setter
    def marks(self, keys: Iterable[str]) -> None:
        wanted = dict.fromkeys(keys, -1)
        if self._marks.keys() != wanted.keys():
            self._marks = wanted
            self._redraw()
            self.post_message(self.Changed(self))

    def marked_rows(self) -> tuple[Row, ...]:
        """Return the marked rows in their order on the screen, hidden ones last."""
        numbers = [*self._marked().values()]
        lines = {number: line for line, number in enumerate(self._order)} if numbers else {}
        numbers.sort(key=lambda number: (lines.get(number, len(lines)), number))
        return tuple(self._rows.rows[number] for number in numbers)

    def _marked(self) -> dict[str, int]:
        """Return the numbers of the marked rows by key."""
        for key, hint in self._marks.items():
            number = self._rows.number(key, hint)
            self._marks[key] = -1 if number is None else number
        return {key: number for key, number in self._marks.items() if number >= 0}

    def _mark(self, line: int) -> None:
        number = self._order[line]
        key = self._rows.key(number)
        if self._marks.pop(key, None) is None:
            self._marks[key] = number
        self._redraw_line(line)
        self.post_message(self.Changed(self))

    # --- Keys ---------------------------------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        self.put(self.cursor + by)

    def action_page(self, direction: int) -> None:
        step = direction * max(1, self._seen - 1)
        top = self._top + step
        self.put(self.cursor + step)
        self._scroll(max(0, min(top, len(self._order) - self._seen)))

    def action_first(self) -> None:
        """Move to the first line and stay there, whichever row comes to it."""
        self.put(0)
        self._wanted = None
        self._scroll(0)

    def action_last(self) -> None:
        self.put(len(self._order) - 1)

    def action_sideways(self, by: int) -> None:
        """Scroll to columns further right, including those that did not fit; at the left end show those that fit."""
        if self._first or self._layout_now.is_right:
            first = max(0, min(self._first + by, last_first(self._needs(), self._room)))
            if first != self._first:
                self._first = first
                self._redraw()

    def _on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        event.stop()
        self.action_sideways(1)

    def _on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        event.stop()
        self.action_sideways(-1)

    def action_sort_next(self, direction: int) -> None:
        ids = [self._chosen[place.column] for place in self._layout_now.placed] or list(self._chosen)
        at = ids.index(self.sort[0]) + direction if self.sort[0] in ids else 0 if direction > 0 else len(ids) - 1
        if 0 <= at < len(ids):
            self.sort_by(ids[at])

    def action_reverse(self) -> None:
        """Reverse the sort; without one, sort by the first column."""
        self.sort_by(self.sort[0] or self._chosen[0], not self.sort[1])

    def action_mark(self) -> None:
        if self._order:
            self._mark(self.cursor)
            self.put(self.cursor + 1)

    def action_unmark_all(self) -> None:
        self.marks = frozenset()

    def on_key(self, event: events.Key) -> None:
        """Sort by the column whose heading shows this letter."""
        for column_id, letter in self.letters.items():
            if letter == event.character:
                event.stop()
                event.prevent_default()
                self.sort_by(column_id)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show what a column means over its heading."""
        at = event.get_content_offset(self)
        column = None if at is None or at.y else self._layout_now.column_at(at.x)
        tooltip = None if column is None else Content(self._by_id[self._chosen[column]].doc)
        if tooltip != self.tooltip:
            self.tooltip = tooltip

    # --- Position -----------------------------------------------------------------------------------------------------

    def _arrange(self, old: RowSet[Row], *, is_new: bool = False) -> None:
        """Sort and filter the rows, and find the cursor's row again. `old`: the rows shown before."""
        was, old_order = self.cursor, self._order
        before = old.key(old_order[was]) if old_order else None
        self._order = self._rows.order(self._query, self._by_id.get(self.sort[0]), self.sort[1])
        self.cursor = self._found(old, old_order, was)
        self._forget_lines()
        self._bring_into_view()
        self._measure(is_new=is_new)
        self._redraw()
        if before != (self._rows.key(self._order[self.cursor]) if self._order else None):
            self.post_message(self.Moved(self))
        if self.is_attached:
            self.arranged.publish(self)

    def _found(self, old: RowSet[Row], old_order: Sequence[int], was: int) -> int:
        """Return the new line of the cursor's row; if it is hidden or gone, of the nearest row below it, else above."""
        if self._wanted is None or not self._order:
            return max(0, min(was, len(self._order) - 1))
        number = self._rows.number(self._wanted, self._hint)
        if number is not None:
            with contextlib.suppress(ValueError):  # the filter hides it
                line = self._order.index(number)
                self._hint = number
                return line
        lines = {number: line for line, number in enumerate(self._order)}
        for before in [*old_order[was:], *reversed(old_order[:was])]:
            number = self._rows.number(old.key(before), before)
            if number in lines:
                return lines[number]
        return min(was, len(self._order) - 1)

    def _put(self, line: int) -> None:
        line = max(0, min(line, len(self._order) - 1))
        self._hint = self._order[line]
        self._wanted = self._rows.key(self._hint)
        self._move(line)
        self._bring_into_view()

    def _move(self, line: int) -> None:
        before, self.cursor = self.cursor, line
        if line != before:
            self._redraw_line(before)
            self._redraw_line(line)
            self.post_message(self.Moved(self))

    def _bring_into_view(self) -> None:
        """Scroll to the cursor; if the user has not moved it, move it into the view."""
        most = max(0, len(self._order) - self._seen)
        if self._wanted is None:
            self.cursor = min(self._top, most)
            self._scroll(self.cursor)
        else:
            self._scroll(min(most, self.cursor, max(self._top, self.cursor - self._seen + 1)))

    def _to_top(self) -> None:
        """Scroll to the top after a new sort or filter, unless the user has chosen a row."""
        if self._wanted is None:
            self._scroll(0)

    def _scroll(self, top: int) -> None:
        if top == self.scroll_y:
            return
        self._placing = True
        try:
            self.scroll_to(y=top, animate=False, force=True)
        finally:
            self._placing = False

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Move the cursor with the scroll wheel and bar; widen columns if necessary."""
        super().watch_scroll_y(old_value, new_value)
        if not self._placing and self._order:
            top = self._top
            if self._wanted is None:
                self._move(min(top, len(self._order) - 1))
            elif (line := max(top, min(self.cursor, top + self._seen - 1))) != self.cursor:
                self._put(line)
        if self._measure():
            self._redraw()

    def on_resize(self) -> None:
        self._bring_into_view()
        self._measure()
        self._redraw()

    # --- Mouse --------------------------------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        """Sort by a heading; move the cursor to a row, enter it at a double click, mark it with Ctrl."""
        at = event.get_content_offset(self)
        if at is None:
            return
        event.stop()
        if at.y == 0:
            column = self._layout_now.column_at(at.x)
            if column is not None:
                self.sort_by(self._chosen[column])
        elif self.put(line := at.y - 1 + self._top):
            if event.ctrl:
                self._mark(line)
            elif event.chain == 2:
                self.post_message(self.Entered(self, self.row))
