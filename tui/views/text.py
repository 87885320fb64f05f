"""Lines of text for the views: facts side by side, small tables, sparklines with their figures. Nothing is read as
markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from slurm_share.core.terminal import safe
from slurm_share.core.text import span_text
from slurm_share.load import Column, Letter, Row
from slurm_share.load import text as load_text

from ..widgets.bars import bar
from ..widgets.grid_cells import filled
from ..widgets.spark import spark, tall

LONGEST = 2000
"""Most characters that are read of one piece of text."""
PART_MOST = 60
"""Most columns of one fact, so that a long name leaves room for the others."""
GAP = "  "
TREND_HEAD = 25
"""Columns before a sparkline: its label and newest figure."""
BAR = 8
"""Width of a bar in a small table, in columns."""
STYLES = {
    "": "",
    "strong": "bold",
    "dim": "$text-muted",
    "L": "bold $text-primary",
    "H": "bold $text-warning",
    "!": "bold reverse $text-error",
    "head": "bold underline",
}
"""Style of each kind of piece. None depends on hue alone."""

Piece = tuple[str, str]
"""(text, kind)."""


def line(*pieces: Piece | str) -> Content:
    """Return one line made of pieces."""
    return Content.assemble(
        *(
            safe(piece[:LONGEST]) if isinstance(piece, str) else (safe(piece[0][:LONGEST]), STYLES[piece[1]])
            for piece in pieces
            if piece
        )
    )


def facts(parts: Iterable[Piece | str], width: int) -> Content:
    """Return a line with as many of these facts as fit; the first one always."""
    found: list[Piece | str] = []
    room = width
    for part in parts:
        text = safe((part if isinstance(part, str) else part[0])[:LONGEST])
        if not text:
            continue
        if found:
            text = load_text.cut(text, PART_MOST)
            part = text if isinstance(part, str) else (text, part[1])
        wide = cell_len(text) + (cell_len(GAP) if found else 0)
        if found and wide > room:
            continue
        found += [GAP, part] if found else [part]
        room -= wide
    return line(*found)


def ruled(content: Content, width: int) -> Content:
    """Return the line as a border, which separates parts of the screen without colours too."""
    room = width - content.cell_length - 4
    return Content.assemble("── ", content, " " + "─" * room if room > 0 else "")


def paragraph(text: str, width: int, kind: str = "", most: int = 99) -> list[Content]:
    """Return a text wrapped to at most `most` lines, with a sign where the rest is cut off."""
    lines = load_text.wrapped([safe(text[:LONGEST])], max(10, width))
    if len(lines) > most:
        lines = (
            [*lines[: most - 1], load_text.cut(f"{lines[most - 1]} {lines[most].strip()}", width)] if most > 0 else []
        )
    return [line((one, kind)) for one in lines]


def small_table(columns: Sequence[Column[Row]], ids: Sequence[str], rows: Sequence[Row], width: int) -> list[Content]:
    """Return some columns of these rows as text, headings first."""
    by_id = {column.id: column for column in columns}
    chosen = [by_id[id] for id in ids]
    cells = [[_cell(column, row) for row in rows] for column in chosen]
    widths = [
        min(column.most, max([cell_len(column.heading), *(cell_len(text) for text, _ in found)]))
        for column, found in zip(chosen, cells, strict=True)
    ]
    shown = list(range(len(chosen)))
    while sum(widths[at] for at in shown) + len(GAP) * (len(shown) - 1) > width and len(shown) > 1:
        shown.pop()
    found = [line((GAP.join(filled(chosen[at].heading, widths[at], _is_right(chosen[at])) for at in shown), "head"))]
    for number in range(len(rows)):
        pieces: list[Piece | str] = []
        for at in shown:
            text, letter = cells[at][number]
            pieces += [GAP] if pieces else []
            pieces.append((filled(text, widths[at], _is_right(chosen[at])), letter))
        found.append(line(*pieces))
    return found


def _cell(column: Column[Any], row: Any) -> tuple[str, Letter]:
    text = safe(column.text(row)[:LONGEST])
    letter: Letter = "" if column.letter is None else column.letter(row)
    if column.bar is None:
        return text, letter
    share = column.bar(row)
    return (" " * BAR if share is None else "".join(bar(share, BAR))) + " " + text.rjust(4), letter


def _is_right(column: Column[Any]) -> bool:
    return column.right or column.bar is not None


def trend(label: str, now: str, values: Sequence[float | None], width: int, height: int = 1) -> list[Content]:
    """Return a labelled sparkline with its newest figure, exactly `width` columns and `height` lines."""
    head = f"{load_text.filled(label, 4)} {load_text.filled(now, TREND_HEAD - 6)} "
    room = width - cell_len(head)
    if room < 5:
        return [line(load_text.cut(f"{label} {now}", width)), *[line("")] * (height - 1)]
    if height <= 1:
        return [line((head[:5], "strong"), head[5:], spark(values, room))]
    rows = tall(values, room, height)
    blank = " " * cell_len(head)
    return [
        line((head[:5], "strong"), head[5:], rows[0]),
        *(line(blank, one) for one in rows[1:]),
    ]


def time_axis(count: int, span_s: float, width: int) -> list[Content]:
    """Return the line below sparklines of `trend`: the age of the oldest of `count` values, and now. Empty if there is
    no room or no history."""
    room = width - TREND_HEAD
    shown = min(count, room)
    ago = f"{span_text(span_s * shown / count)} ago" if count else ""
    if span_s <= 0 or shown < len(ago) + 5:
        return []
    return [line((" " * (width - shown) + ago + "now".rjust(shown - len(ago)), "dim"))]


def side_by_side(left: Sequence[Content], right: Sequence[Content], left_width: int) -> list[Content]:
    """Return two blocks of lines side by side, the right one after `left_width` columns and a gap."""
    count = max(len(left), len(right))
    padded = [*left, *[Content("")] * (count - len(left))]
    others = [*right, *[Content("")] * (count - len(right))]
    return [
        Content.assemble(one, " " * max(0, left_width - one.cell_length), GAP, other)
        for one, other in zip(padded, others, strict=True)
    ]


class Lines(Widget):
    """Static lines of text, as high as their number. Hidden while empty."""

    DEFAULT_CSS = """
    Lines { height: auto; width: 1fr; text-wrap: nowrap; text-overflow: ellipsis; display: none; }
    """

    def __init__(self, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.lines: tuple[Content, ...] = ()

    def show(self, lines: Sequence[Content], *, fills: bool = False) -> None:
        """Show these lines. `fills`: take all the height that is left."""
        found = tuple(lines)
        is_same = len(found) == len(self.lines) and all(map(Content.is_same, found, self.lines))
        self.lines = found
        self.styles.height = "1fr" if fills else len(found)
        self.display = bool(found)
        if not is_same:
            self.refresh()

    @property
    def text(self) -> str:
        """Return the lines without styles."""
        return "\n".join(one.plain for one in self.lines)

    def render(self) -> Content:
        return Content("\n").join(self.lines)
