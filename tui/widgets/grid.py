"""A table of any number of rows, moved through by keys and mouse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic

from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message

from slurm_share.load import Column, Row

from ..keymap import KEYS, bindings, keys_of
from ..query import understand
from ..query_terms import QueryError
from .grid_cells import letters_for
from .grid_cursor import GridCursor
from .grid_rows import Held


class Grid(GridCursor[Row], Generic[Row], can_focus=True):
    """A table with headings that stand still, and a first column that stands still when one goes sideways.

    Where the cursor is is GridCursor's, how it looks GridLines'. Marks are kept by key, as the cursor is.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("grid")]

    class Said(Message):
        """Base of what a grid says."""

        def __init__(self, grid: Grid[Any]) -> None:
            self.grid = grid
            super().__init__()

        @property
        def control(self) -> Grid[Any]:
            """For handlers of one grid of several."""
            return self.grid

    class Entered(Said):
        """A row was double-clicked."""

        def __init__(self, grid: Grid[Any], row: Any) -> None:
            self.row = row
            super().__init__(grid)

    class Moved(Said):
        """There is another row under the cursor, or none any more; a newer one of the same key is no other."""

        def can_replace(self, message: Message) -> bool:
            """Where it is now is all that counts."""
            return isinstance(message, Grid.Moved) and message.grid is self.grid

    class Changed(Said):
        """The sort, the columns, the marks or the filter were changed."""

    def __init__(
        self,
        columns: Sequence[Column[Row]],
        key: Callable[[Row], str],
        *,
        name: str,
        empty: str = "",
    ) -> None:
        """`key`: what a row is known by from one picture to the next. `name`: of the table, for what is remembered of
        it. `empty`: what is said where there are no rows."""
        super().__init__(columns, key, name=name, empty=empty)
        self.mistake = ""
        """Why the text last given to `query_text` is no filter."""
        self.unfetched: frozenset[str] = frozenset()
        """Ids of the columns whose values are not fetched; set by whoever gives the rows."""
        self._give_letters({key for one in KEYS for key in one.keys.split(",")})

    def on_mount(self) -> None:
        """Letters that the user's own keys leave free."""
        own = {key for one in KEYS for key in keys_of(one.id, getattr(self.app, "keys", {}))}
        self._give_letters({*self.screen.active_bindings, *own})

    def _moved(self) -> None:
        self.post_message(self.Moved(self))

    def _give_letters(self, taken: set[str]) -> None:
        self.letters = letters_for(self.columns, taken.__contains__)

    # --- What it shows ------------------------------------------------------------------------------------------------

    def show(self, rows: Sequence[Row]) -> None:
        """These rows from now on; nothing in them changes any more."""
        old, self._held = self._held, Held(rows, self.columns, self._key)
        try:
            self._arrange(old, is_new=not old.rows)
        except QueryError as error:  # nothing was known yet when it was written
            self._query, self.mistake = None, str(error)
            self._arrange(old, is_new=not old.rows)

    @property
    def rows(self) -> Sequence[Row]:
        """All, as they were given."""
        return self._held.rows

    @property
    def shown_rows(self) -> list[Row]:
        """Those that fit the filter, as they are sorted."""
        return [self._held.rows[number] for number in self._order]

    @property
    def count(self) -> int:
        """Rows that fit the filter."""
        return len(self._order)

    @property
    def total(self) -> int:
        """Rows."""
        return len(self._held.rows)

    # --- Sort ---------------------------------------------------------------------------------------------------------

    @property
    def sort(self) -> tuple[str, bool]:
        """(column's id, whether the largest is first); an empty id: as the rows come."""
        return self._sort

    def sort_by(self, column_id: str, down: bool | None = None) -> None:
        """`down`: the largest first; None: the column's own way, and where it is sorted by already the other way round.
        An empty id: as the rows come. A column that there is none of changes nothing."""
        if column_id and column_id not in self._by_id:
            return
        if down is None:
            is_again = self._sort[0] == column_id
            down = not self._sort[1] if is_again else bool(column_id) and self._by_id[column_id].sorts_down
        if (column_id, down) != self._sort:
            self._sort = (column_id, down)
            self._to_top()
            self._arrange(self._held)
            self.post_message(self.Changed(self))

    def reverse(self) -> None:
        """The other way round; where nothing is sorted by, the first column from its end."""
        self.sort_by(self._sort[0] or self._chosen[0], not self._sort[1])

    # --- Filter -------------------------------------------------------------------------------------------------------

    @property
    def query_text(self) -> str:
        """The filter as it was written; empty: none."""
        return "" if self._query is None else self._query.text

    @query_text.setter
    def query_text(self, text: str) -> None:
        self.ask(text)

    def ask(self, text: str, *, is_whole: bool = True) -> None:
        """Filter. What is no filter leaves the old one, and `mistake` says why; while somebody is still writing
        (`is_whole` False), what fits nothing does so too: it may be the beginning of something that does."""
        before, self.mistake = self._query, ""
        try:
            query = understand(text, self.columns, self._chosen)
            may_fit = is_whole or not self.total or query is None or bool(query.columns & self.unfetched)
            if not may_fit and not self._held.order(query, None, False):
                self.mistake = "nothing fits"
                return
            if query != before:
                self._to_top()
            self._query = query
            self._arrange(self._held)
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
    def waits_for(self) -> tuple[str, ...]:
        """Names of the columns that are filtered or sorted by, and whose values are not fetched."""
        asked = {self._sort[0]} if self._query is None else {self._sort[0], *self._query.columns}
        return tuple(column.name for column in self.columns if column.id in asked & self.unfetched)

    @property
    def asks_details(self) -> bool:
        """Whether what is filtered or sorted by is nothing that a line for each node has."""
        asked = {self._sort[0]} if self._query is None else {self._sort[0], *self._query.columns}
        return any(column.needs == "details" for column in self.columns if column.id in asked)

    # --- Columns ------------------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> tuple[str, ...]:
        """Ids of the columns, in their order; where there is no room, some of them are not seen."""
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
        """Keys of the marked rows; of rows that are not there now none."""
        return frozenset(self._marked())

    @marks.setter
    def marks(self, keys: Iterable[str]) -> None:
        wanted = dict.fromkeys(keys, -1)
        if self._marks.keys() != wanted.keys():
            self._marks = wanted
            self._redraw()
            self.post_message(self.Changed(self))

    def marked_rows(self) -> tuple[Row, ...]:
        """In the order in which they are shown; those that the filter hides come last."""
        numbers = [*self._marked().values()]
        lines = {number: line for line, number in enumerate(self._order)} if numbers else {}
        numbers.sort(key=lambda number: (lines.get(number, len(lines)), number))
        return tuple(self._held.rows[number] for number in numbers)

    def _marked(self) -> dict[str, int]:
        """Key -> number, of those that there are."""
        for key, hint in self._marks.items():
            number = self._held.number(key, hint)
            self._marks[key] = -1 if number is None else number
        return {key: number for key, number in self._marks.items() if number >= 0}

    def _mark(self, line: int) -> None:
        number = self._order[line]
        key = self._held.key(number)
        if self._marks.pop(key, None) is None:
            self._marks[key] = number
        self._redraw_line(line)
        self.post_message(self.Changed(self))

    # --- Keys ---------------------------------------------------------------------------------------------------------

    def action_sort_left(self) -> None:
        """Sort by the column to the left of the sorted one."""
        self._sort_next_column(-1)

    def action_sort_right(self) -> None:
        """Sort by the column to the right of it."""
        self._sort_next_column(1)

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self.reverse()

    def action_mark(self) -> None:
        """Mark the row or unmark it, and go on to the next."""
        if self._order:
            self._mark(self._cursor)
            self.put(self._cursor + 1)

    def action_unmark_all(self) -> None:
        """No row is marked any more."""
        self.marks = frozenset()

    def on_key(self, event: events.Key) -> None:
        """Shift and a letter: sort by the column whose heading shows it."""
        for column_id, letter in self.letters.items():
            if letter == event.character:
                event.stop()
                event.prevent_default()
                self.sort_by(column_id)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Over a heading: what its column says."""
        at = event.get_content_offset(self)
        column = None if at is None or at.y else self._layout_now.column_at(at.x)
        tooltip = None if column is None else Content(self._by_id[self._chosen[column]].doc)
        if tooltip != self.tooltip:
            self.tooltip = tooltip

    def _sort_next_column(self, way: int) -> None:
        ids = [self._chosen[place.column] for place in self._layout_now.placed] or list(self._chosen)
        at = ids.index(self._sort[0]) + way if self._sort[0] in ids else 0 if way > 0 else len(ids) - 1
        if 0 <= at < len(ids):
            self.sort_by(ids[at])

    # --- Mouse --------------------------------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        """A heading sorts, a row gets the cursor; a double click enters it, with ctrl it is marked."""
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
