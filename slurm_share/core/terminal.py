"""Print tables and text for people: within the terminal's width, or in full without a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType

WIDE = 10_000
GAP = "  "
ELLIPSIS = "…"
Cut = Literal["end", "middle", "list"]
"""Where a text that is too long loses characters. end: a sentence keeps its begin. middle: a name keeps some of its
begin, and its end, which tells node names apart; a reason in parentheses is cut as a sentence. list: whole names
between commas stay, the last ones go."""


def width() -> int:
    """Return the width of a line in columns."""
    return console().width


def console() -> Console:
    """Return a console on standard output. In a pipe, lines are neither folded nor cut: the reader may be grep."""
    terminal = Console(highlight=False, markup=False, emoji=False)
    return terminal if terminal.is_terminal else Console(highlight=False, markup=False, emoji=False, width=WIDE)


def show(*parts: RenderableType) -> None:
    """Print to standard output."""
    out = console()
    for part in parts:
        out.print(part)


@dataclass(frozen=True, slots=True)
class TerminalColumn:
    """A column of a table whose rows take one line each, whatever the width."""

    heading: str
    right: bool = False
    shrinks_to: int | None = None
    """Least width in characters to which cells are cut, with an ellipsis, if a line is too long; None: never cut."""
    goes: int = 0
    """If lines are still too long, columns are left out, the highest number first; 0: never left out."""
    cut: Cut = "end"
    """Where its cells are cut."""


def lay_out(
    columns: Sequence[TerminalColumn], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[str]]:
    """Return (lines with the headings first, headings of the columns that were left out) for lines of `width`."""
    cells = [[column.heading, *(safe(row[place]) for row in rows)] for place, column in enumerate(columns)]
    widest = [max(map(cell_len, column)) for column in cells]
    shown = list(range(len(columns)))

    def least(place: int) -> int:
        shrinks_to = columns[place].shrinks_to
        return widest[place] if shrinks_to is None else min(widest[place], max(shrinks_to, len(columns[place].heading)))

    def too_long(widths: Iterable[int]) -> int:
        return sum(widths) + len(GAP) * (len(shown) - 1) - width

    while too_long(map(least, shown)) > 0 and any(columns[place].goes for place in shown):
        shown.remove(max(shown, key=lambda place: columns[place].goes))
    widths = {place: widest[place] for place in shown}
    for _ in range(max(0, too_long(widths.values()))):
        place = max(shown, key=lambda place: widths[place] - least(place))
        widths[place] = max(least(place), widths[place] - 1)
    lines = [
        GAP.join(_fill(cells[place][line], widths[place], columns[place]) for place in shown).rstrip()
        for line in range(len(rows) + 1)
    ]
    return lines, [column.heading for place, column in enumerate(columns) if place not in shown]


def _fill(text: str, width: int, column: TerminalColumn) -> str:
    text = cut(text, width, column.cut)
    blanks = " " * (width - cell_len(text))
    return blanks + text if column.right else text + blanks


def cut(text: str, width: int, where: Cut = "end") -> str:
    """Return the text cut to at most `width` columns; an ellipsis shows where it was cut."""
    if cell_len(text) <= width:
        return text
    if where == "list":
        kept = text
        while "," in kept and cell_len(kept) + 2 > width:
            kept = kept.rpartition(",")[0]
        if cell_len(kept) + 2 <= width:
            return f"{kept},{ELLIPSIS}"
    if where == "end" or width < 3 or text[:1] == "(":
        return set_cell_size(text, max(0, width - 1)) + ELLIPSIS
    head, tail = set_cell_size(text, (width - 1) // 3), ""
    for one in reversed(text):
        if cell_len(head) + 1 + cell_len(one + tail) > width:
            break
        tail = one + tail
    return f"{head}{ELLIPSIS}{tail}"


def safe(text: str) -> str:
    """Return untrusted text for a table. Characters that would move the cursor or break the line become escapes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def shortened(text: str, most: int) -> str:
    """Return untrusted text as `safe` does, cut to `most` columns with an ellipsis."""
    return cut(safe(text), most)


def print_lines(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Print to standard output, or to `stream`. Characters that its encoding lacks become escapes."""
    encoding = (stream or sys.stdout).encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=stream)
