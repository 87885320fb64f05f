"""Decide which columns of a table are visible, where, and how wide. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GUTTER = 1
"""Width left of the columns, for the sign of a marked row."""
MARGIN = 1
"""Width right of the columns, for the sign in the headings that there are more."""


@dataclass(frozen=True, slots=True)
class Need:
    """The widths that one column asks for, in columns of the terminal."""

    least: int
    """Least width, unless the terminal is narrower."""
    wish: int
    """Width of its content."""
    most: int
    """Largest width: bars and sparklines grow into free space."""
    goes: int = 0
    """Order in which columns are left out, as Column.goes."""


NOTHING = Need(0, 0, 0)
"""A column that is left out because it is empty."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A visible column with its position and width."""

    column: int
    """Index among the chosen columns."""
    x: int
    width: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The visible columns."""

    width: int
    placed: tuple[Placed, ...] = ()
    is_left: bool = False
    """True: columns are hidden left of the visible ones (after the fixed one)."""
    is_right: bool = False
    """True: columns are hidden at the right."""

    def column_at(self, x: int) -> int | None:
        """Return the index of the chosen column at this position; the gap after a column belongs to it."""
        found = None
        for one in self.placed:
            if one.x <= x:
                found = one.column
        return found


def fitted(needs: Sequence[Need], width: int) -> Layout:
    """Lay out as many columns as fit. The highest `goes` are left out first, of equals the rightmost; then columns from
    the right. The first stays."""
    room = max(1, width - GUTTER - MARGIN)
    shown = _that_say(needs)
    if not shown:
        return Layout(width)
    wanted = tuple(shown)

    def too_long(widths: Sequence[int], gap: int) -> int:
        return sum(widths) + gap * (len(shown) - 1) - room

    while too_long([needs[at].least for at in shown], 1) > 0 and len(shown) > 1:
        going = [at for at in shown[1:] if needs[at].goes]
        shown.remove(max(going, key=lambda at: (needs[at].goes, at)) if going else shown[-1])
    widths = [needs[at].wish for at in shown]
    gap = 2 if too_long(widths, 2) <= 0 else 1
    over = too_long(widths, gap)
    while over > 0:
        at = max(range(len(shown)), key=lambda at: widths[at] - needs[shown[at]].least)
        if widths[at] <= needs[shown[at]].least:
            break  # only the first column is left, and the terminal is narrower
        widths[at] -= 1
        over -= 1
    spare = -over
    growing = [at for at in range(len(shown)) if needs[shown[at]].most > widths[at]]
    while spare > 0 and growing:
        for at in growing[:]:
            if spare > 0 and widths[at] < needs[shown[at]].most:
                widths[at] += 1
                spare -= 1
            if widths[at] >= needs[shown[at]].most:
                growing.remove(at)
    return _placed(shown, widths, gap, width, wanted, is_left=False)


def scrolled(needs: Sequence[Need], width: int, first: int) -> Layout:
    """Lay out the first column, which is fixed, and the columns from number `first` on (1: none is hidden at the left)
    as far as they fit; the last one is cut."""
    room = max(1, width - GUTTER - MARGIN)
    if not needs:
        return Layout(width)
    frozen = needs[0]
    head = min(frozen.wish, room)
    if len(needs) > 1 and head > room // 2:
        head = min(head, max(frozen.least, room // 2))
    shown, widths, left = [0], [head], room - head
    wanted = _that_say(needs)
    for at in wanted:
        if at < max(1, first):
            continue
        if left < 2 or left - 1 < min(needs[at].least, needs[at].wish, room // 3):
            break
        shown.append(at)
        widths.append(min(needs[at].wish, left - 1))
        left -= widths[-1] + 1
    return _placed(shown, widths, 1, width, wanted, is_left=first > 1)


def last_first(needs: Sequence[Need], width: int) -> int:
    """Return the least `first` of `scrolled` with which the last column is completely visible."""
    last = max(_that_say(needs), default=0)
    for first in range(1, len(needs)):
        placed = scrolled(needs, width, first).placed[-1:]
        if placed and placed[0].column == last and placed[0].width >= needs[last].wish:
            return first
    return max(1, len(needs) - 1)


def _that_say(needs: Sequence[Need]) -> list[int]:
    """Return the indexes of the columns that are not empty, and the first."""
    return [at for at, need in enumerate(needs) if not at or need != NOTHING]


def _placed(
    shown: Sequence[int], widths: Sequence[int], gap: int, width: int, wanted: Sequence[int], *, is_left: bool
) -> Layout:
    placed, x = [], GUTTER
    for at, wide in zip(shown, widths, strict=True):
        wide = max(0, min(wide, width - MARGIN - x))
        if wide:
            placed.append(Placed(at, x, wide))
        x += wide + gap
    is_all = len(placed) == len(wanted) or (is_left and bool(placed) and placed[-1].column == wanted[-1])
    return Layout(width, tuple(placed), is_left, is_right=not is_all)
