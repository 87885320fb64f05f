"""Lines of text for the views: facts side by side, small tables, sparklines with their figures. Nothing is read as
markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from slurm_share.core.terminal import safe
from slurm_share.core.text import span_text
from slurm_share.load import Column, Row
from slurm_share.load import text as load_text

from ..widgets.bars import bar, spark, tall
from ..widgets.grid_cells import BAR_LEAST, cell_text, filled, need
from ..widgets.grid_layout import GUTTER, MARGIN, fitted

LONGEST = 2000
"""Most characters that are read of one piece of text."""
PART_MOST, NAME_MOST = 60, 24
"""Most columns of one fact, and of one that is a single word, so that a long name leaves room for the others."""
GAP = "  "
LABEL = 10
"""Columns of a label before facts."""
TREND_HEAD = 25
"""Columns before a sparkline: its label and newest figure."""
STYLES = {
    "": "", "strong": "bold", "dim": "$text-muted", "head": "bold underline",
    "L": "bold $text-primary", "H": "bold $text-warning", "!": "bold reverse $text-error",
}  # fmt: skip
"""Style of each kind of piece. None depends on hue alone."""

Piece = tuple[str, str]
"""(text, kind)."""


def line(*pieces: Piece | str) -> Content:
    """Return one line made of pieces."""
    both = ((piece, "") if isinstance(piece, str) else piece for piece in pieces)
    return Content.assemble(*((safe(text[:LONGEST]), STYLES[kind]) for text, kind in both if text))


def facts(parts: Iterable[Piece | str], width: int) -> Content:
    """Return a line with as many of these facts as fit; the first one always. A long fact leaves room for the others
    and gets what they leave."""
    pieces = [(part, "") if isinstance(part, str) else part for part in parts]
    whole = [(safe(text[:LONGEST]), kind) for text, kind in pieces if text]
    found: list[tuple[int, int]] = []
    room = width
    for at, (text, _) in enumerate(whole):
        most = PART_MOST if " " in text else NAME_MOST
        least = min(cell_len(text), most) if found else cell_len(text)
        wide = least + (len(GAP) if found else 0)
        if wide <= room or not found:
            found.append((at, least))
            room -= wide
    shown: list[Piece | str] = []
    for at, least in found:
        text, kind = whole[at]
        more = max(0, min(room, cell_len(text) - least))
        room -= more
        shown += [GAP if shown else "", (load_text.cut(text, least + more, "end" if " " in text else "middle"), kind)]
    return line(*shown)


def labelled(label: str, parts: Iterable[str], width: int) -> list[Content]:
    """Return facts with a label before them, on as many lines as they need."""
    head, room = load_text.filled(label, LABEL - 1), max(10, width - LABEL)
    found: list[str] = []
    for part in parts:
        text = safe(part[:LONGEST])
        if found and cell_len(found[-1]) + cell_len(GAP) + cell_len(text) <= room:
            found[-1] += GAP + text
        else:
            found += load_text.wrapped([text], room)
    return [line((head if at == 0 else " " * (LABEL - 1), "strong"), " ", text) for at, text in enumerate(found)]


def ruled(content: Content, width: int) -> Content:
    """Return the line as a border, which separates parts of the screen without colours too."""
    room = width - content.cell_length - 4
    return Content.assemble("── ", content, " " + "─" * room if room > 0 else "")


def paragraph(text: str, width: int, kind: str = "", most: int = 99) -> list[Content]:
    """Return a text wrapped to at most `most` lines, with a sign where the rest is cut off."""
    lines = load_text.wrapped([safe(text[:LONGEST])], max(10, width))
    if len(lines) > most > 0:
        lines[most - 1] = load_text.cut(f"{lines[most - 1]} {lines[most].strip()}", width)
    return [line((one, kind)) for one in lines[:most]]


def small_table(columns: Sequence[Column[Row]], ids: Sequence[str], rows: Sequence[Row], width: int) -> list[Content]:
    """Return some columns of these rows as text, headings first. In a narrow view they give way as those of a Grid."""
    by_id = {column.id: column for column in columns}
    shown = [by_id[id] for id in ids]
    texts = [[cell_text(column, row) for row in rows] for column in shown]
    widest = [max(map(cell_len, cells), default=0) for cells in texts]
    whole = [0 if one.whole is None else max(cell_len(safe(one.whole(row))) for row in rows) for one in shown]
    layout = fitted(list(map(need, shown, widest, whole, map(set, texts))), width + GUTTER + MARGIN)
    lines: list[list[Piece]] = [[] for _ in range(len(rows) + 1)]
    at = GUTTER
    for place in layout.placed:
        column, gap, is_right = shown[place.column], " " * (place.x - at), shown[place.column].right
        lines[0].append((gap + filled(column.heading, place.width, is_right), "head"))
        for pieces, row, text in zip(lines[1:], rows, texts[place.column], strict=True):
            letter = "" if column.letter is None else column.letter(row)
            room = place.width - widest[place.column] - 1
            if column.bar is not None and room >= BAR_LEAST:
                share = column.bar(row)
                drawn = " " * room if share is None else "".join(bar(share, room))
                text = f"{drawn} {filled(text, widest[place.column], right=True)}"
            pieces += [(gap, ""), (filled(text, place.width, is_right, column.cut), letter)]
        at = place.x + place.width
    return [line(*pieces) for pieces in lines]


def trend(label: str, now: str, values: Sequence[float | None], width: int, height: int = 1) -> list[Content]:
    """Return a labelled sparkline with its newest figure, exactly `width` columns and `height` lines."""
    head = f"{load_text.filled(label, 4)} {load_text.filled(now, TREND_HEAD - 6)} "
    room = width - cell_len(head)
    if room < 5:
        return [line(load_text.cut(f"{label} {now}", width)), *[line("")] * (height - 1)]
    first, *others = tall(values, room, height) if height > 1 else [spark(values, room)]
    return [line((head[:5], "strong"), head[5:], first), *(line(" " * cell_len(head), one) for one in others)]


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
    return [
        Content.assemble(one, " " * max(0, left_width - one.cell_length), GAP, other)
        for one, other in zip_longest(left, right, fillvalue=Content(""))
    ]


class Lines(Widget):
    """Static lines of text, as high as their number. Hidden while empty."""

    DEFAULT_CSS = "Lines { height: auto; width: 1fr; text-wrap: nowrap; text-overflow: ellipsis; display: none; }"

    lines: tuple[Content, ...] = ()

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
        return "\n".join(one.plain for one in self.lines)

    def render(self) -> Content:
        return Content("\n").join(self.lines)
