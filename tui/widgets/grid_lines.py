"""Draw a table: from rows to lines of the screen. Only visible lines are computed, and only changed lines are sent to
the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic

from rich.cells import cell_len
from rich.style import Style
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from slurm_share.core.terminal import safe
from slurm_share.load import Column, Row
from slurm_share.load import text as load_text

from .grid_cells import Cell, HeadStyle, LineStyle, SegmentLine, cell_text, filled, head, line_of, need, spread
from .grid_layout import GUTTER, MARGIN, NOTHING, ColumnWidths, Layout, fitted, scrolled
from .grid_rows import RowSet

SAMPLE = 64
"""Number of rows over a new table that are measured, so that columns rarely grow while the user scrolls."""
LEAST = 2
"""Least width of the terminal in which something is drawn."""
KINDS = 4
"""Most texts of a column that are remembered: more than those that say nothing."""
KEPT = 2_000
"""Most lines that are cached while the user scrolls."""


@dataclass(frozen=True)
class GridStyles:
    """All styles of a table in the present theme."""

    plain: LineStyle
    cursor: LineStyle
    head: HeadStyle
    empty: Style


class GridLines(ScrollView, Generic[Row]):
    """The rows, their order, the cursor and the marks, as lines."""

    DEFAULT_CSS = """
    GridLines {
        height: 1fr;
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-gutter: stable;
        scrollbar-size: 0 1;
        background: $surface;
        color: $foreground;
        & > .grid--head { background: $panel; color: $foreground; text-style: bold; }
        & > .grid--sorted { background: $panel; color: $text-primary; text-style: bold; }
        & > .grid--key { text-style: underline; }
        & > .grid--track { color: $text-muted; text-style: dim; }
        & > .grid--bar { color: $secondary; }
        & > .grid--low { color: $text-accent; text-style: underline; }
        & > .grid--high { color: $text-warning; text-style: bold; }
        & > .grid--over { color: $text-error; text-style: bold reverse; }
        & > .grid--empty { color: $text-muted; }
        & > .grid--cursor { background: $primary 40%; color: $foreground; }
        &:focus > .grid--cursor { background: $primary; color: $text; text-style: bold; }
        &:nocolor > .grid--cursor { text-style: underline; }
        &:nocolor:focus > .grid--cursor { text-style: reverse; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "grid--head", "grid--sorted", "grid--key", "grid--track", "grid--bar", "grid--low", "grid--high", "grid--over",
        "grid--empty", "grid--cursor",
    }  # fmt: skip
    ALLOW_SELECT = False

    def __init__(self, columns: Sequence[Column[Row]], key: Callable[[Row], str], *, name: str) -> None:
        super().__init__(name=name)
        self.columns: tuple[Column[Row], ...] = tuple(columns)
        self.letters: dict[str, str] = {}
        """The letter that sorts by a column, with shift, by column id."""
        self._key = key
        self._by_id = {column.id: column for column in self.columns}
        self._chosen = tuple(column.id for column in self.columns if column.shown) or tuple(self._by_id)[:1]
        self.sort: tuple[str, bool] = ("", False)
        """(id of the column, whether the largest is first); an empty id: not sorted."""
        self.has_head = True
        """Whether the table has headings while it is empty. Set by the owner of the rows."""
        self._rows: RowSet[Row] = RowSet((), self.columns, key)
        self._order: Sequence[int] = ()
        """Numbers of the shown rows, sorted."""
        self.cursor = 0
        """The cursor's line, from 0."""
        self._marks: dict[str, int] = {}
        """Last known number of each marked row, by key."""
        self._first = 0
        """Horizontal scroll: 0 shows what fits, from 1 on it is the argument `first` of `scrolled`."""
        self._widest: dict[str, int] = {}
        """Width of the widest text seen in each column, by id."""
        self._whole: dict[str, int] = {}
        """Width of the widest part that is never cut (Column.whole), by id."""
        self._said: dict[str, set[str]] = {}
        """Different texts seen in each column, at most KINDS, by id."""
        self._layout_now = Layout(0)
        self._texts: dict[int, tuple[str, ...]] = {}
        """Cell texts of drawn rows, by number."""
        self._strips: dict[int, Strip] = {}
        """Drawn lines of the table, by line."""
        self._on_screen: dict[int, Strip] = {}
        """Lines last given to Textual, by line of the screen."""
        self._grid_styles: GridStyles | None = None

    @property
    def _top(self) -> int:
        """First visible line of the table."""
        return self.scroll_offset.y

    @property
    def _seen(self) -> int:
        """Number of visible lines without the headings."""
        return max(1, self.scrollable_content_region.height - 1)

    @property
    def _room(self) -> int:
        return self.scrollable_content_region.width

    def _why_empty(self) -> str:
        """Return what an empty table says."""
        raise NotImplementedError

    def _needs(self) -> list[ColumnWidths]:
        return [
            need(self._by_id[id], self._widest.get(id, 0), self._whole.get(id, 0), self._said.get(id, ()))
            for id in self._chosen
        ]

    def wish(self, *, sparks: bool) -> int:
        """Return the width in which the whole table fits, with or without its sparklines."""
        both = zip(self._chosen, self._needs(), strict=True)
        needs = [one for id, one in both if one != NOTHING and (sparks or self._by_id[id].spark is None)]
        return GUTTER + MARGIN + sum(one.wish if one.draws else one.most for one in needs) + 2 * (len(needs) - 1)

    def _measure(self, *, is_new: bool = False) -> bool:
        """Widen columns to their visible texts, narrow them only if `is_new`; return whether a width may have
        changed."""
        has_grown = is_new
        count, top = len(self._order), self._top
        lines = [*range(top, min(count, top + self._seen))]
        if len(self._texts) > KEPT:
            self._texts.clear()
        if is_new:
            self._widest.clear()
            self._whole.clear()
            self._said.clear()
            lines += range(0, count, max(1, count // SAMPLE))
        for line in lines:
            number = self._order[line]
            texts, row = self._texts.get(number), self._rows.rows[number]
            if texts is None:
                texts = self._texts[number] = tuple(cell_text(self._by_id[id], row) for id in self._chosen)
            elif not is_new:
                continue
            for id, text in zip(self._chosen, texts, strict=True):
                said = self._said.setdefault(id, set())
                if len(said) < KINDS and text not in said:
                    said.add(text)
                    has_grown = True
                if (width := cell_len(text)) > self._widest.get(id, 0):
                    self._widest[id] = width
                    has_grown = True
                if (part := self._by_id[id].whole) and (width := cell_len(safe(part(row)))) > self._whole.get(id, 0):
                    self._whole[id] = width
                    has_grown = True
        return has_grown

    def _lay_out(self) -> None:
        needs, width = self._needs(), self._room
        self._layout_now = scrolled(needs, width, self._first) if self._first else fitted(needs, width)

    def _forget_lines(self) -> None:
        """Drop cached lines after a change of rows, columns or order."""
        self._texts.clear()
        self._strips.clear()
        height = len(self._order) + 1
        if height != self.virtual_size.height:
            self.virtual_size = Size(0, height)

    def _redraw(self) -> None:
        """Draw all visible lines; unchanged ones are not sent again."""
        self._strips.clear()
        if not self.is_attached or not self.size:
            return
        self._lay_out()
        begin = None
        for y in range(self.size.height + 1):
            is_same = y == self.size.height or self._on_screen.get(y) == self._line(y)
            if not is_same and begin is None:
                begin = y
            elif is_same and begin is not None:
                self.refresh(Region(0, begin, self.size.width, y - begin))
                begin = None

    def _redraw_line(self, line: int) -> None:
        self._strips.pop(line, None)
        if 0 <= line - self._top < self._seen:
            self.refresh(Region(0, line + 1 - self._top, self.size.width, 1))

    def notify_style_update(self) -> None:
        """Drop cached styles after a change of the theme or the focus."""
        super().notify_style_update()
        self._grid_styles = None
        self._strips.clear()
        self._on_screen.clear()

    def render_line(self, y: int) -> Strip:
        strip = self._on_screen[y] = self._line(y)
        return strip

    def _line(self, y: int) -> Strip:
        grid_styles = self._grid_styles or self._choose_styles()
        if self._room < LEAST:
            return Strip.blank(self._room, grid_styles.plain.line)
        if y == 0 and not self._order and not self.has_head:
            return Strip.blank(self._room, grid_styles.plain.line)
        if y == 0:
            columns = [self._by_id[id] for id in self._chosen]
            return head(self._layout_now, columns, self.letters, self.sort, grid_styles.head)
        line = y - 1 + self._top
        if line >= len(self._order):
            return self._below(line, grid_styles)
        strip = self._strips.get(line)
        if strip is None:
            if len(self._strips) > KEPT:
                self._strips.clear()
            strip = self._strips[line] = self._row_line(
                line, grid_styles.cursor if line == self.cursor else grid_styles.plain
            )
        return strip

    def _row_line(self, line: int, line_style: LineStyle) -> Strip:
        number = self._order[line]
        if number not in self._texts:
            self._measure()
        row, texts = self._rows.rows[number], self._texts[number]
        cells = []
        for place in self._layout_now.placed:
            id = self._chosen[place.column]
            cells.append(Cell(place.x, place.width, texts[place.column], self._widest.get(id, 0), self._by_id[id]))
        cells = spread(cells, row)
        is_marked = bool(self._marks) and self._rows.key(number) in self._marks
        return line_of(cells, row, self._layout_now.width, line_style, is_marked=is_marked)

    def _below(self, line: int, grid_styles: GridStyles) -> Strip:
        """Return a line under the last row; in an empty table the reason."""
        if self._order:
            return Strip.blank(self._room, grid_styles.plain.line)
        lines = ["", *load_text.wrapped([safe(self._why_empty())], max(8, self._room - 4))]
        made = SegmentLine()
        made.add(filled(f"  {lines[line]}" if line < len(lines) else "", self._room), grid_styles.empty)
        return made.strip(self._room)

    def _choose_styles(self) -> GridStyles:
        style = self.get_component_rich_style
        plain, cursor = self.rich_style, style("grid--cursor")
        letters = {"": plain, "L": style("grid--low"), "H": style("grid--high"), "!": style("grid--over")}
        bars = {letter: one + Style(reverse=False, underline=False) for letter, one in letters.items()}
        # Under the cursor a cell keeps its bold, reverse and underline, and gets the cursor's colours.
        on_cursor: dict[str, Style] = {
            letter: cursor + Style(bold=one.bold, reverse=one.reverse and not cursor.reverse, underline=one.underline)
            for letter, one in letters.items()
        }
        self._grid_styles = GridStyles(
            plain=LineStyle(plain, style("grid--track"), letters, bars | {"": style("grid--bar")}),
            cursor=LineStyle(cursor, cursor, on_cursor | {"": cursor}, dict.fromkeys(letters, cursor)),
            head=HeadStyle(style("grid--head"), style("grid--sorted"), style("grid--key", partial=True)),
            empty=style("grid--empty"),
        )
        return self._grid_styles
