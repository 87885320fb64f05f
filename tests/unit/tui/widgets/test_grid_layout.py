"""The layout of columns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as any_
from slurm_share_tui.widgets.grid_layout import (
    GUTTER,
    MARGIN,
    NOTHING,
    ColumnWidths,
    Layout,
    fitted,
    last_first,
    scrolled,
)

NAME = ColumnWidths(4, 10, 10)
FIGURE = ColumnWidths(6, 6, 6)
BAR = ColumnWidths(4, 9, 30, draws=True)
NOTE = ColumnWidths(4, 40, 40)
OLD = ColumnWidths(5, 5, 5, goes=2)
RARE = ColumnWidths(5, 5, 5, goes=9)


def seen(layout: Layout) -> list[int]:
    """Return the visible columns."""
    return [place.column for place in layout.placed]


def widths(layout: Layout) -> list[int]:
    """Return the widths of the visible columns."""
    return [place.width for place in layout.placed]


def test_what_fits_is_as_wide_as_it_would_like_with_two_blanks_between() -> None:
    layout = fitted([NAME, FIGURE, OLD], 60)
    assert widths(layout) == [10, 6, 5]
    assert [place.x for place in layout.placed] == [GUTTER, GUTTER + 12, GUTTER + 20]
    assert not layout.is_right
    assert not layout.is_left


def test_bars_grow_into_what_is_left_over() -> None:
    assert widths(fitted([NAME, BAR, BAR], 60)) == [10, 22, 22]
    assert widths(fitted([NAME, BAR, BAR], 200)) == [10, 30, 30]


def test_long_texts_give_way_before_any_column_goes() -> None:
    layout = fitted([NAME, FIGURE, NOTE, OLD], 40)
    assert seen(layout) == [0, 1, 2, 3]
    assert widths(layout) == [10, 6, 14, 5]


def test_columns_go_in_the_order_of_their_goes() -> None:
    assert seen(fitted([NAME, FIGURE, OLD, RARE], 26)) == [0, 1, 2, 3]
    assert seen(fitted([NAME, FIGURE, OLD, RARE], 22)) == [0, 1, 2]
    assert seen(fitted([NAME, FIGURE, OLD, RARE], 17)) == [0, 1]


def test_what_never_goes_is_left_out_from_the_right_where_nothing_else_is_left() -> None:
    assert seen(fitted([NAME, FIGURE, FIGURE], 16)) == [0, 1]
    assert fitted([NAME, FIGURE, FIGURE], 16).is_right
    assert seen(fitted([NAME, FIGURE], 5)) == [0]
    assert widths(fitted([NAME, FIGURE], 5)) == [3]


def test_sideways_the_first_column_stands_still_and_none_is_left_out() -> None:
    needs = [NAME, FIGURE, RARE, OLD, FIGURE, OLD]
    assert seen(fitted(needs, 40)) == [0, 1, 2, 3, 4, 5]
    assert seen(fitted(needs, 31)) == [0, 1, 3, 4]
    assert seen(scrolled(needs, 31, 1)) == [0, 1, 2, 3]
    assert seen(scrolled(needs, 31, 2)) == [0, 2, 3, 4]
    assert not scrolled(needs, 31, 1).is_left
    assert scrolled(needs, 31, 2).is_left
    assert scrolled(needs, 31, 2).is_right


def test_the_end_is_where_the_last_column_is_whole() -> None:
    needs = [NAME, FIGURE, RARE, OLD, FIGURE, OLD]
    end = last_first(needs, 31)
    assert seen(scrolled(needs, 31, end))[-1] == 5
    assert not scrolled(needs, 31, end).is_right
    assert scrolled(needs, 31, end - 1).is_right


def test_a_click_finds_the_column_and_the_gap_after_it() -> None:
    layout = fitted([NAME, FIGURE], 40)
    assert [layout.column_at(x) for x in (0, 1, 10, 12, 13, 39)] == [None, 0, 0, 0, 1, 1]


any_need = any_.builds(
    lambda least, more, most, goes: ColumnWidths(least, least + more, least + more + most, goes),
    any_.integers(1, 30),
    any_.integers(0, 60),
    any_.integers(0, 30),
    any_.integers(0, 5),
)


@given(any_.lists(any_need, min_size=1, max_size=20), any_.integers(0, 300), any_.integers(0, 22))
def test_nothing_ever_overlaps_or_leaves_the_terminal(needs: list[ColumnWidths], width: int, first: int) -> None:
    layout = scrolled(needs, width, first) if first else fitted(needs, width)
    at = GUTTER
    for place in layout.placed:
        assert place.x >= at
        assert place.width > 0
        at = place.x + place.width + 1
    assert not layout.placed or at - 1 <= width - MARGIN
    assert layout.placed or width <= GUTTER + MARGIN
    assert seen(layout) == sorted(set(seen(layout)))
    assert 1 <= last_first(needs, width) <= max(1, len(needs) - 1)


@given(any_.lists(any_need, min_size=1, max_size=12), any_.integers(3, 300))
def test_whatever_is_seen_is_at_least_as_wide_as_it_must_be(needs: list[ColumnWidths], width: int) -> None:
    layout = fitted(needs, width)
    assert all(place.width >= needs[place.column].least for place in layout.placed[1:])
    assert all(place.width <= needs[place.column].most for place in layout.placed)
    assert layout.is_right == (len(layout.placed) < len(needs))


def test_a_column_that_says_nothing_takes_no_room_and_is_not_missed() -> None:
    layout = fitted([NAME, NOTHING, FIGURE, NOTHING], 60)
    assert (seen(layout), widths(layout), layout.is_right) == ([0, 2], [10, 6], False)
    assert [place.x for place in layout.placed] == [GUTTER, GUTTER + 12]
    assert seen(scrolled([NAME, FIGURE, NOTHING, OLD, NOTHING], 60, 2)) == [0, 3]
    assert not scrolled([NAME, FIGURE, NOTHING, OLD, NOTHING], 60, 2).is_right
    assert last_first([NAME, FIGURE, FIGURE, OLD, NOTHING], 20) == last_first([NAME, FIGURE, FIGURE, OLD], 20)
    assert seen(fitted([NOTHING, FIGURE], 60)) == [1]
