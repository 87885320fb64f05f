"""Draw the lines of a table: make texts safe and fit them to their columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from slurm_share.core import terminal
from slurm_share.core.terminal import safe
from slurm_share.load import Column, Letter, Row
from slurm_share.load import text as load_text
from slurm_share.load.text import NONE, UNKNOWN

from .bars import bar, spark
from .grid_layout import NOTHING, ColumnWidths, Layout

LONGEST = 500
"""Most characters of a text that are read: no column is that wide."""
BAR_LEAST, BAR_MOST = 4, 20
"""Width of a bar without its text, in columns."""
SPARK_LEAST, SPARK_WISH = 5, 10
NOTHING_SAID = frozenset(("", load_text.NONE, load_text.UNKNOWN))
SAYS_NOTHING_GOES = 100
"""Added to the `goes` of a column that says nothing in these rows, so that it is left out before all others."""
MARK, UP, DOWN, MORE_LEFT, MORE_RIGHT = "*", "▲", "▼", "‹", "›"


@dataclass(frozen=True)
class LineStyle:
    """Styles of one kind of line: plain, or under the cursor."""

    line: Style
    track: Style
    """Style of the empty part of a bar."""
    letters: dict[str, Style]
    """Style of a cell's text by its Letter, the empty one too."""
    bars: dict[str, Style]
    """Style of bars and sparklines by Letter: never reverse, which would swap full and empty."""


@dataclass(frozen=True)
class HeadStyle:
    """Styles of the headings: plain, sorted, and the sort letter."""

    line: Style
    sorted: Style
    key: Style
    """Style added to the letter that sorts by a column."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a line with its position and text."""

    x: int
    width: int
    text: str
    text_width: int
    """Width of the widest text of its column; a bar gets the rest."""
    column: Column[Any]


def cell_text(column: Column[Row], row: Row) -> str:
    """Return the text of a cell on one line, safe to draw; empty for a sparkline that is always drawn."""
    if column.spark is not None and not column.unless_empty:
        return ""
    text = (column.short(row) if column.short is not None else "") or column.text(row)
    return safe(text) if len(text) <= LONGEST else safe(text[:LONGEST]) + terminal.ELLIPSIS


def filled(text: str, width: int, right: bool = False, where: terminal.Cut = "end") -> str:
    """Return the text cut with a sign or padded to exactly `width` columns."""
    text = terminal.cut(text, width, where) if width > 0 else ""
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def need(column: Column[Row], text_width: int, whole_width: int = 0, texts: Collection[str] = ()) -> ColumnWidths:
    """Return the widths that a column needs. `whole_width`: of the widest text that must not be cut. Figures are never
    cut. `texts`: its different texts, if they are known; two are enough."""
    if column.unless_empty and not text_width:
        return NOTHING
    says_nothing = bool(texts) and (NOTHING_SAID.issuperset(texts) or (column.repeats and len(texts) == 1))
    goes = column.goes + SAYS_NOTHING_GOES if column.goes and says_nothing else column.goes
    heading = cell_len(column.heading)
    if column.spark is not None:
        wish = min(column.most, max(column.least, heading, SPARK_WISH))
        least = min(wish, max(column.least, SPARK_LEAST))
        return ColumnWidths(least, least, max(wish, column.most), goes, draws=True)
    if column.bar is not None:
        least, wish = max(heading, text_width), max(column.least, heading, text_width + 1 + BAR_LEAST)
        return ColumnWidths(least, wish, max(wish, min(column.most, text_width + 1 + BAR_MOST)), goes, draws=True)
    most = max(column.least, heading, text_width)
    if column.right:
        return ColumnWidths(most, most, most, goes)
    least = max(min(most, column.least), whole_width)
    return ColumnWidths(least, max(least, min(column.most, most)), most, goes, min(column.keeps, most))


class SegmentLine:
    """Collects segments and joins those of the same style: fewer segments are drawn faster."""

    def __init__(self) -> None:
        self._parts: list[tuple[list[str], Style]] = []

    def add(self, text: str, style: Style) -> None:
        if not text:
            return
        if self._parts and self._parts[-1][1] is style:
            self._parts[-1][0].append(text)
        else:
            self._parts.append(([text], style))

    def strip(self, width: int) -> Strip:
        """Return the line; `width`: its total width."""
        return Strip([Segment("".join(texts), style) for texts, style in self._parts], width)


def line_of(cells: Sequence[Cell], row: Any, width: int, line_style: LineStyle, *, is_marked: bool) -> Strip:
    """Return one row in exactly `width` columns."""
    made, at = SegmentLine(), 1
    made.add(MARK if is_marked else " ", line_style.line)
    for cell in cells:
        made.add(" " * (cell.x - at), line_style.line)
        _draw(made, cell, row, line_style)
        at = cell.x + cell.width
    made.add(" " * (width - at), line_style.line)
    return made.strip(max(width, at))


def spread(cells: Sequence[Cell], row: Any) -> list[Cell]:
    """Return the cells of a row with the whole text of a column that was short (`Column.short`), as far left as it
    needs and the cells there say nothing. The first cell stays."""
    found = list(cells)
    for at in range(len(found) - 1, 0, -1):
        cell = found[at]
        if cell.column.short is None or not cell.column.short(row):
            continue
        text = safe(cell.column.text(row)[:LONGEST])
        first, end, wide = at, cell.x + cell.width, cell_len(text)
        while first > 1 and end - found[first].x < wide and _says_nothing(found[first - 1]):
            first -= 1
        x = found[first].x
        found[first : at + 1] = [replace(cell, x=x, width=end - x, text=text)]
        break
    return [_trimmed(cell) for cell in found]


def _trimmed(cell: Cell) -> Cell:
    """Return a cell with text at the left as wide as its text, so that a mark does not fill the rest of its column."""
    if cell.column.right or cell.column.bar is not None or cell.column.spark is not None or not cell.text:
        return cell
    return replace(cell, width=min(cell.width, cell_len(cell.text)))


def _says_nothing(cell: Cell) -> bool:
    return cell.text == NONE or cell.text[:1] in ("", UNKNOWN)


def _draw(made: SegmentLine, cell: Cell, row: Any, line_style: LineStyle) -> None:
    column, width = cell.column, cell.width
    letter: Letter = "" if column.letter is None else column.letter(row)
    style = line_style.letters[letter]
    if column.spark is not None:
        made.add(spark(column.spark(row), width), line_style.bars[letter])
        return
    text = cell.text or (load_text.NONE if column.unless_empty else "")
    room = 0 if column.bar is None else width - cell.text_width - 1
    if column.bar is None or room < BAR_LEAST:
        made.add(filled(text, width, column.right or column.bar is not None, column.cut), style)
        return
    share = column.bar(row)
    full, rest = ("", " " * room) if share is None else bar(share, room)
    made.add(full, line_style.bars[letter])
    made.add(rest, line_style.track)
    made.add(" ", line_style.line)
    made.add(filled(text, cell.text_width, True), style)


def head(
    layout: Layout, columns: Sequence[Column[Any]], letters: dict[str, str], sort: tuple[str, bool], style: HeadStyle
) -> Strip:
    """Return the headings. `letters`: sort letters by column id; `sort`: (column id, whether the largest is first)."""
    made, at = SegmentLine(), 1
    made.add(MORE_LEFT if layout.is_left else " ", style.line)
    for number, place in enumerate(layout.placed):
        column = columns[place.column]
        look = style.sorted if column.id == sort[0] else style.line
        arrow = "" if column.id != sort[0] else DOWN if sort[1] else UP
        is_last = number + 1 == len(layout.placed)
        end = layout.width - layout.is_right if is_last else layout.placed[number + 1].x
        made.add(" " * (place.x - at), style.line)
        text, width = _heading(column, place.width, arrow, has_gap=end > place.x + place.width)
        found = text.upper().find(letters.get(column.id) or "\0") if len(text.upper()) == len(text) else -1
        key = found if found >= 0 else len(text)
        made.add(text[:key], look)
        made.add(text[key : key + 1], look + style.key)
        made.add(text[key + 1 :], look)
        at = place.x + width
    made.add(" " * (layout.width - at - layout.is_right), style.line)
    made.add(MORE_RIGHT if layout.is_right else "", style.line)
    return made.strip(max(layout.width, at))


def _heading(column: Column[Any], width: int, arrow: str, *, has_gap: bool) -> tuple[str, int]:
    """Return a heading with its arrow, and its width. If the column is full, the arrow is in the gap after it."""
    text = safe(column.heading)
    is_right = column.right or column.bar is not None
    if arrow and cell_len(text) + 1 > width and has_gap:
        return filled(text, width, is_right) + arrow, width + 1
    if not arrow:
        return filled(text, width, is_right), width
    if is_right:
        return filled(arrow + text, width, True), width
    return filled(filled(text, max(0, min(width - 1, cell_len(text)))) + arrow, width), width


def letters_for(columns: Sequence[Column[Any]], is_taken: Callable[[str], bool]) -> dict[str, str]:
    """Return the letter that sorts by each column: the first free one of its heading; shown columns choose first,
    those with `takes_last` last."""
    found: dict[str, str] = {}
    for column in sorted(columns, key=lambda column: (column.takes_last, not column.shown)):
        letters = (one for one in column.heading.upper() if one.isascii() and one.isalpha() and not is_taken(one))
        if letter := next((one for one in letters if one not in found.values()), ""):
            found[column.id] = letter
    return found
