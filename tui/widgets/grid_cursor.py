"""Where one is in a table: the cursor, and the part of the table that is seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

from textual import events
from textual.signal import Signal

from slurm_share.load import Column, Row

from ..query import Query
from .grid_layout import last_first
from .grid_lines import GridLines
from .grid_rows import Held


class GridCursor(GridLines[Row], Generic[Row]):
    """The cursor stays on its row, wherever a new picture, a sort or a filter puts it; as long as nobody has moved it,
    on the first line that is seen. It is always on the screen, so that no command acts on what is not seen."""

    def __init__(self, columns: Sequence[Column[Row]], key: Callable[[Row], str], **options: Any) -> None:
        super().__init__(columns, key, **options)
        self.arranged: Signal[Any] = Signal(self, "arranged")
        """Other rows are shown, or in another order."""
        self._query: Query | None = None
        self._wanted: str | None = None
        """Key that the cursor was put on, and goes back to; None: nobody has moved it."""
        self._hint = -1
        """Number of its row, when it was seen last."""
        self._placing = False

    def _moved(self) -> None:
        """There is another row under the cursor."""

    @property
    def row(self) -> Row | None:
        """Under the cursor; None: there are no rows."""
        return self._held.rows[self._order[self._cursor]] if self._order else None

    @property
    def is_on_another_row(self) -> bool:
        """Return whether the cursor's row is gone and the cursor is on a row that the user did not choose: no
        command applies to it."""
        if self._wanted is None or not self._order:
            return False
        return self._held.key(self._order[self._cursor]) != self._wanted

    @property
    def cursor(self) -> int:
        """Its line, from 0."""
        return self._cursor

    def put(self, line: int) -> bool:
        """The cursor on this line, or the nearest there is; False: there is no such line."""
        if self._order:
            self._put(line)
        return 0 <= line < len(self._order)

    # --- Keys ---------------------------------------------------------------------------------------------------------

    def action_up(self) -> None:
        """One row up."""
        self.put(self._cursor - 1)

    def action_down(self) -> None:
        """One row down."""
        self.put(self._cursor + 1)

    def action_page_up(self) -> None:
        """One screen up."""
        self._page(-1)

    def action_page_down(self) -> None:
        """One screen down."""
        self._page(1)

    def action_first(self) -> None:
        """The first row; the cursor stays on the first line then, whichever row comes there."""
        self.put(0)
        self._wanted = None
        self._scroll(0)

    def action_last(self) -> None:
        """The last row."""
        self.put(len(self._order) - 1)

    def action_left(self) -> None:
        """Columns further left; at the left end, those that fit."""
        self._sideways(self._first - 1)

    def action_right(self) -> None:
        """Columns further right, and those that had no room."""
        self._sideways(self._first + 1)

    def _on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        event.stop()
        self.action_right()

    def _on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        event.stop()
        self.action_left()

    # --- Where it stands ----------------------------------------------------------------------------------------------

    def _arrange(self, old: Held[Row], *, is_new: bool = False) -> None:
        """Sort and filter `_held`, and find the cursor's row again; `old`: whose rows were shown."""
        was, old_order = self._cursor, self._order
        before = old.key(old_order[was]) if old_order else None
        self._order = self._held.order(self._query, self._by_id.get(self._sort[0]), self._sort[1])
        self._cursor = self._found(old, old_order, was)
        self._forget_lines()
        self._bring_into_view()
        self._measure(is_new=is_new)
        self._redraw()
        if before != (self._held.key(self._order[self._cursor]) if self._order else None):
            self._moved()
        if self.is_attached:
            self.arranged.publish(self)

    def _found(self, old: Held[Row], old_order: Sequence[int], was: int) -> int:
        """Line of the row that the cursor was put on; where that is not shown, of the nearest that was below it, or
        above."""
        if self._wanted is None or not self._order:
            return max(0, min(was, len(self._order) - 1))
        number = self._held.number(self._wanted, self._hint)
        line = None if number is None else _line(self._order, number)
        if number is not None and line is not None:
            self._hint = number
            return line
        lines = {number: line for line, number in enumerate(self._order)}
        for before in [*old_order[was:], *reversed(old_order[:was])]:
            number = self._held.number(old.key(before), before)
            if number in lines:
                return lines[number]
        return min(was, len(self._order) - 1)

    def _put(self, line: int) -> None:
        line = max(0, min(line, len(self._order) - 1))
        self._hint = self._order[line]
        self._wanted = self._held.key(self._hint)
        self._move(line)
        self._bring_into_view()

    def _move(self, line: int) -> None:
        before, self._cursor = self._cursor, line
        if line != before:
            self._redraw_line(before)
            self._redraw_line(line)
            self._moved()

    def _page(self, way: int) -> None:
        step = way * max(1, self._seen - 1)
        top = self._top + step
        self.put(self._cursor + step)
        self._scroll(max(0, min(top, len(self._order) - self._seen)))

    def _bring_into_view(self) -> None:
        """The view to the cursor; where nobody has moved it, the cursor to the view."""
        most = max(0, len(self._order) - self._seen)
        if self._wanted is None:
            self._cursor = min(self._top, most)
            self._scroll(self._cursor)
        else:
            self._scroll(min(most, self._cursor, max(self._top, self._cursor - self._seen + 1)))

    def _to_top(self) -> None:
        """What is looked for anew begins at the top, where nobody has chosen a row."""
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
        """The wheel or the bar: the cursor comes along; columns grow as they need."""
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
        """As many columns as fit now, and the cursor on the screen."""
        self._bring_into_view()
        self._measure()
        self._redraw()


def _line(order: Sequence[int], number: int) -> int | None:
    """Where the row stands; None: it is not shown."""
    try:
        return order.index(number)
    except ValueError:
        return None
