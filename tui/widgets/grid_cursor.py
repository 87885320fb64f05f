"""The cursor of a table, and its scrolling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

from textual import events
from textual.signal import Signal

from slurm_share.load import Column, Row

from ..query import Query
from .grid_layout import last_first
from .grid_lines import GridLines
from .grid_rows import RowSet


class GridCursor(GridLines[Row], Generic[Row]):
    """Keeps the cursor on its row when a new survey, a sort or a filter moves the row; until the user moves the cursor,
    it stays on the first visible line. The cursor is always visible, so no action applies to an invisible row."""

    def __init__(self, columns: Sequence[Column[Row]], key: Callable[[Row], str], **options: Any) -> None:
        super().__init__(columns, key, **options)
        self.arranged: Signal[Any] = Signal(self, "arranged")
        """Published when other rows are shown, or in another order."""
        self._query: Query | None = None
        self._wanted: str | None = None
        """Key of the row that the user put the cursor on; None: the user has not moved it."""
        self._hint = -1
        """Last known number of that row."""
        self._placing = False

    def _moved(self) -> None:
        """Handle a new row under the cursor."""

    @property
    def row(self) -> Row | None:
        """The row under the cursor; None: there are no rows."""
        return self._rows.rows[self._order[self._cursor]] if self._order else None

    @property
    def is_on_another_row(self) -> bool:
        """Return whether the cursor's row is gone and the cursor is on a row that the user did not choose: no
        command applies to it."""
        if self._wanted is None or not self._order:
            return False
        return self._rows.key(self._order[self._cursor]) != self._wanted

    @property
    def cursor(self) -> int:
        """The cursor's line, from 0."""
        return self._cursor

    def put(self, line: int) -> bool:
        """Move the cursor to this line, or to the nearest one; return whether the line exists."""
        if self._order:
            self._put(line)
        return 0 <= line < len(self._order)

    # --- Keys ---------------------------------------------------------------------------------------------------------

    def action_up(self) -> None:
        self.put(self._cursor - 1)

    def action_down(self) -> None:
        self.put(self._cursor + 1)

    def action_page_up(self) -> None:
        self._page(-1)

    def action_page_down(self) -> None:
        self._page(1)

    def action_first(self) -> None:
        """Move to the first line and stay there, whichever row comes to it."""
        self.put(0)
        self._wanted = None
        self._scroll(0)

    def action_last(self) -> None:
        self.put(len(self._order) - 1)

    def action_left(self) -> None:
        """Scroll to columns further left; at the left end show those that fit."""
        self._sideways(self._first - 1)

    def action_right(self) -> None:
        """Scroll to columns further right, including those that did not fit."""
        self._sideways(self._first + 1)

    def _on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        event.stop()
        self.action_right()

    def _on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        event.stop()
        self.action_left()

    # --- Position -----------------------------------------------------------------------------------------------------

    def _arrange(self, old: RowSet[Row], *, is_new: bool = False) -> None:
        """Sort and filter the rows, and find the cursor's row again. `old`: the rows shown before."""
        was, old_order = self._cursor, self._order
        before = old.key(old_order[was]) if old_order else None
        self._order = self._rows.order(self._query, self._by_id.get(self._sort[0]), self._sort[1])
        self._cursor = self._found(old, old_order, was)
        self._forget_lines()
        self._bring_into_view()
        self._measure(is_new=is_new)
        self._redraw()
        if before != (self._rows.key(self._order[self._cursor]) if self._order else None):
            self._moved()
        if self.is_attached:
            self.arranged.publish(self)

    def _found(self, old: RowSet[Row], old_order: Sequence[int], was: int) -> int:
        """Return the new line of the cursor's row; if it is hidden or gone, of the nearest row below it, else above."""
        if self._wanted is None or not self._order:
            return max(0, min(was, len(self._order) - 1))
        number = self._rows.number(self._wanted, self._hint)
        line = None if number is None else _line(self._order, number)
        if number is not None and line is not None:
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
        before, self._cursor = self._cursor, line
        if line != before:
            self._redraw_line(before)
            self._redraw_line(line)
            self._moved()

    def _page(self, direction: int) -> None:
        step = direction * max(1, self._seen - 1)
        top = self._top + step
        self.put(self._cursor + step)
        self._scroll(max(0, min(top, len(self._order) - self._seen)))

    def _bring_into_view(self) -> None:
        """Scroll to the cursor; if the user has not moved it, move it into the view."""
        most = max(0, len(self._order) - self._seen)
        if self._wanted is None:
            self._cursor = min(self._top, most)
            self._scroll(self._cursor)
        else:
            self._scroll(min(most, self._cursor, max(self._top, self._cursor - self._seen + 1)))

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
            elif (line := max(top, min(self._cursor, top + self._seen - 1))) != self._cursor:
                self._put(line)
        if self._measure():
            self._redraw()

    def _sideways(self, first: int) -> None:
        if self._first or self._layout_now.is_right:
            first = max(0, min(first, last_first(self._needs(), self._room)))
            if first != self._first:
                self._first = first
                self._redraw()

    def on_resize(self) -> None:
        self._bring_into_view()
        self._measure()
        self._redraw()


def _line(order: Sequence[int], number: int) -> int | None:
    """Return the line of a row; None: it is not shown."""
    try:
        return order.index(number)
    except ValueError:
        return None
