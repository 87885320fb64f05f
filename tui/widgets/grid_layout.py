"""Decide which columns of a table are visible, where, and how wide. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_share.load import BARS_GO

GUTTER = 1
"""Width left of the columns, for the sign of a marked row."""
MARGIN = 1
"""Width right of the columns, for the sign in the headings that there are more."""


@dataclass(frozen=True, slots=True)
class ColumnWidths:
    """The widths that one column asks for, in columns of the terminal."""

    least: int
    """Least width, unless the terminal is narrower: the heading of a text, a figure, a part that is never cut."""
    wish: int
    """Width that is given before columns beyond BARS_GO are shown; of a bar or a sparkline its least one."""
    most: int
    """Largest width: that of the whole text, or of the longest bar or sparkline, which grow into free space."""
    goes: int = 0
    """Order in which columns are left out, as Column.goes."""
    keeps: int = 0
    """Width below which a text is not cut while another column can be left out, at most two fifths of the line."""
    draws: bool = False
    """True: a bar or a sparkline, which gets what texts leave."""


NOTHING = ColumnWidths(0, 0, 0)
"""A column that is left out because it is empty."""


@dataclass(frozen=True, slots=True)
class PlacedColumn:
    """A visible column with its position and width."""

    column: int
    """Index among the chosen columns."""
    x: int
    width: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The visible columns."""

    width: int
    placed: tuple[PlacedColumn, ...] = ()
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


def fitted(needs: Sequence[ColumnWidths], width: int) -> Layout:
    """Lay out as many columns as fit. The first stays. What gives way, in this order: columns whose `goes` is above
    BARS_GO, the highest first, of equals the rightmost; bars; the ends of long texts; the other columns by their
    `goes`; then columns from the right."""
    room = max(1, width - GUTTER - MARGIN)
    wanted = tuple(_that_say(needs))
    if not wanted:
        return Layout(width)
    part = room * 2 // 5
    least = [need.least if need.draws else max(need.least, min(need.keeps, part)) for need in needs]
    whole = [need.wish if need.draws else min(need.most, room) for need in needs]
    wish = [need.wish if need.draws else max(one, min(need.wish, room)) for need, one in zip(needs, least, strict=True)]
    bars = True
    shown = _left(needs, wanted, wish, room, above=BARS_GO)
    if shown is None:
        bars = False
        bare = [need.least if need.draws else one for need, one in zip(needs, wish, strict=True)]
        shown = _left(needs, wanted, bare, room, above=BARS_GO)
    if shown is None:
        important = [at for at in wanted if at == wanted[0] or needs[at].goes <= BARS_GO]
        shown = _left(needs, important, least, room) or important[:1]

    def over(widths: Sequence[int], gap: int) -> int:
        return sum(widths) + gap * (len(shown) - 1) - room

    floor = {at: needs[at].wish if needs[at].draws and bars else least[at] for at in shown}
    soft = {at: max(floor[at], min(wish[at], whole[at])) for at in shown}
    widths = [max(floor[at], whole[at]) if bars or not needs[at].draws else least[at] for at in shown]
    gap = 2 if over(widths, 2) <= 0 else 1
    for limit in (soft, floor):
        _narrow(widths, [limit[at] for at in shown], over(widths, gap))
    spare = -over(widths, gap)
    if not bars and spare >= sum(needs[at].wish - widths[place] for place, at in enumerate(shown) if needs[at].draws):
        bars = True  # the next column is wider than what is free
    if bars:
        _widen(widths, [needs[at].most if needs[at].draws else 0 for at in shown], spare)
    return _placed(shown, widths, gap, width, wanted, is_left=False)


def _left(
    needs: Sequence[ColumnWidths], wanted: Sequence[int], widths: Sequence[int], room: int, above: int = 0
) -> list[int] | None:
    """Return the columns of these widths that fit after those with the highest `goes` are left out. `above`: only those
    with a higher `goes` may be; None: they are not enough."""
    shown = list(wanted)

    def is_too_long(some: Sequence[int]) -> bool:
        return sum(widths[at] for at in some) + len(some) - 1 > room

    while is_too_long(shown) and len(shown) > 1:
        going = [at for at in shown[1:] if needs[at].goes > above]
        if not going and above:
            return None
        shown.remove(max(going, key=lambda at: (needs[at].goes, at)) if going else shown[-1])
    for at in sorted(set(wanted) - set(shown), key=lambda at: (needs[at].goes, at)):
        if needs[at].goes and not is_too_long([*shown, at]):  # narrower than the last one that went
            shown.append(at)
    return sorted(shown)


def _narrow(widths: list[int], limits: Sequence[int], over: int) -> None:
    """Take `over` columns from the widths, always from the one that is furthest above its limit."""
    while over > 0:
        at = max(range(len(widths)), key=lambda at: widths[at] - limits[at])
        if widths[at] <= limits[at]:
            return
        widths[at] -= 1
        over -= 1


def _widen(widths: list[int], limits: Sequence[int], spare: int) -> None:
    """Add `spare` columns to the widths, one each in turn up to its limit."""
    growing = [at for at in range(len(widths)) if limits[at] > widths[at]]
    while spare > 0 and growing:
        for at in growing[:]:
            if spare > 0:
                widths[at] += 1
                spare -= 1
            if widths[at] >= limits[at]:
                growing.remove(at)


def scrolled(needs: Sequence[ColumnWidths], width: int, first: int) -> Layout:
    """Lay out the first column, which is fixed, and the columns from number `first` on (1: none is hidden at the left)
    as far as they fit; the last one is cut."""
    room = max(1, width - GUTTER - MARGIN)
    if not needs:
        return Layout(width)
    frozen, whole = needs[0], [max(need.least, need.wish if need.draws else need.most) for need in needs]
    head = min(whole[0], room)
    if len(needs) > 1 and head > room // 2:
        head = min(head, max(frozen.least, room // 2))
    shown, widths, left = [0], [head], room - head
    wanted = _that_say(needs)
    for at in wanted:
        if at < max(1, first):
            continue
        if left < 2 or left - 1 < min(needs[at].least, room // 3):
            break
        shown.append(at)
        widths.append(min(whole[at], left - 1))
        left -= widths[-1] + 1
    return _placed(shown, widths, 1, width, wanted, is_left=first > 1)


def last_first(needs: Sequence[ColumnWidths], width: int) -> int:
    """Return the least `first` of `scrolled` with which the last column is completely visible."""
    last = max(_that_say(needs), default=0)
    for first in range(1, len(needs)):
        placed = scrolled(needs, width, first).placed[-1:]
        if placed and placed[0].column == last and placed[0].width >= needs[last].wish:
            return first
    return max(1, len(needs) - 1)


def _that_say(needs: Sequence[ColumnWidths]) -> list[int]:
    """Return the indexes of the columns that are not empty, and the first."""
    return [at for at, need in enumerate(needs) if not at or need != NOTHING]


def _placed(
    shown: Sequence[int], widths: Sequence[int], gap: int, width: int, wanted: Sequence[int], *, is_left: bool
) -> Layout:
    placed, x = [], GUTTER
    for at, wide in zip(shown, widths, strict=True):
        wide = max(0, min(wide, width - MARGIN - x))
        if wide:
            placed.append(PlacedColumn(at, x, wide))
        x += wide + gap
    is_all = len(placed) == len(wanted) or (is_left and bool(placed) and placed[-1].column == wanted[-1])
    return Layout(width, tuple(placed), is_left, is_right=not is_all)
