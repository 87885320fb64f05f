"""The order of a table's rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as any_
from slurm_share_tui.widgets.grid_rows import RowSet, sort

from slurm_share.load.columns.base import Column, Value

NAN = float("nan")


def ordered(values: list[Value], down: bool = False) -> list[Value]:
    """Return the values in sorted order."""
    return [values[number] for number in sort(range(len(values)), values, down)]


@pytest.mark.parametrize(
    ("values", "rising", "falling"),
    [
        (["n10", "N2", "n1", "n007"], ["n1", "N2", "n007", "n10"], ["n10", "n007", "N2", "n1"]),
        ([3, 1.5, 0, 100], [0, 1.5, 3, 100], [100, 3, 1.5, 0]),
        (["77_3", 4711, None, "5_1", 12], [12, 4711, "5_1", "77_3", None], ["77_3", "5_1", 4711, 12, None]),
    ],
)
def test_names_are_sorted_as_people_count_and_figures_before_them(
    values: list[Value], rising: list[Value], falling: list[Value]
) -> None:
    assert ordered(values) == rising
    assert ordered(values, down=True) == falling


def test_unknown_is_last_either_way() -> None:
    assert ordered([None, 2, NAN, 1])[:2] == [1, 2]
    assert ordered([None, 2, NAN, 1], down=True)[:2] == [2, 1]
    assert ordered([None, "b", "a"], down=True) == ["b", "a", None]
    assert sort(range(4), [None, 2, NAN, 1], True)[2:] == [0, 2]


def test_equal_rows_stay_as_they_came() -> None:
    values: list[Value] = [1, 2, 1, 2, 1]
    assert sort(range(5), values, False) == [0, 2, 4, 1, 3]
    assert sort(range(5), values, True) == [1, 3, 0, 2, 4]


@given(any_.lists(any_.none() | any_.floats() | any_.integers() | any_.text(max_size=4)), any_.booleans())
def test_every_row_is_there_once_whatever_its_value(values: list[Value], down: bool) -> None:
    assert sorted(sort(range(len(values)), values, down)) == list(range(len(values)))


def test_values_are_asked_once_for_a_picture() -> None:
    asked: list[int] = []

    def value(row: int) -> int:
        asked.append(row)
        return -row

    column: Column[Any] = Column("n", "N", "", str, value)
    held = RowSet((1, 2, 3), (column,), str)
    assert list(held.order(None, column, False)) == [2, 1, 0]
    assert list(held.order(None, column, True)) == [0, 1, 2]
    assert asked == [1, 2, 3]


def test_a_row_is_found_by_its_key_where_it_was_or_anywhere() -> None:
    held = RowSet(("a", "b", "c"), (), str)
    assert held.number("b", 1) == 1
    assert held.number("b", 0) == 1
    assert held.number("b", 99) == 1
    assert held.number("b") == 1
    assert held.number("x", 1) is None
