"""The promise to administrators names tests that exist, for every row."""

from __future__ import annotations

import pytest
from failure_modes import DOCUMENT, OTHER_MODES, ROWS, Row, find_tests, read_figures, render, rows_of, shown_by

KNOWN = find_tests()


def test_the_rows_are_one_to_thirty() -> None:
    assert [row.number for row in ROWS] == list(range(1, 31))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_every_row_has_a_test_of_its_own_and_all_that_it_names(row: Row) -> None:
    assert any(row.number in rows_of(name) for name in KNOWN)
    assert [name for name in row.also if name not in KNOWN] == []


def test_what_is_besides_the_rows_exists_too() -> None:
    assert [name for name in OTHER_MODES.values() if name not in KNOWN] == []


def test_a_row_that_is_gone_would_be_missed() -> None:
    without = {name: file for name, file in KNOWN.items() if 7 not in rows_of(name)}
    row = next(row for row in ROWS if row.number == 7)
    assert [name for name in shown_by(row, without) if 7 in rows_of(name)] == []
    assert (rows_of("test_rows_14_and_15_x"), rows_of("test_row_x")) == ({14, 15}, frozenset())


def test_the_document_is_what_the_tests_say() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render(KNOWN, read_figures())
